"""A scheduler ends, is killed or loses its lease: the next one finds everything, and nothing is done twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster.running import Cluster
from engine_world import RECLAIMED, eventually, half
from hotdesk_api.errors import Unavailable
from hotdesk_api.models import WorkloadSpec
from hotdesk_scheduler.core.model import GpuRequest, Kind, Phase, Placement, PodState
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines.kubernetes import manifests
from hotdesk_scheduler.engines.kubernetes.api import ApiError
from hotdesk_scheduler.engines.kubernetes.engine import KubernetesEngine
from hotdesk_scheduler.engines.kubernetes.lease import Terms, awake_or_not
from kube_world import PATIENT, Kube, kube_world


async def test_everything_is_read_back_after_a_restart(kube: Kube) -> None:
    spec = WorkloadSpec(name="job", project="team-a", image="bash", gpu_millis=500, environment={"someName": "x"}, labels={"aB": "c"})
    workload = replace(kube.workload("job", gpu=GpuRequest(millis=500)), ttl_after_finish_s=60.0, node_pools=("default",))
    await kube.engine.submit(workload, spec)
    await kube.run("id-job", placement=half())
    desk = await kube.submit("desk", kind=Kind.WORKSPACE, image="")
    await kube.start(desk, placement=half("g2"))
    await kube.submit("waits")
    await kube.engine.set_phase("id-waits", Phase.SUSPENDED, Reason(ReasonCode.SUSPENDED, "ada", (("limit", 3), ("what", "x"))), 12.0)
    before = {one.id: one for one in kube.engine.snapshot().workloads}
    devices = kube.engine.details("id-job", 0).devices
    await kube.restart()
    after = {one.id: one for one in kube.engine.snapshot().workloads}
    for name in ("id-job", "id-desk", "id-waits"):
        assert after[name] == before[name]
    assert kube.engine.spec("id-job") == spec
    assert kube.engine.details("id-job", 0).devices == devices
    assert [project.name for project in kube.engine.snapshot().projects] == ["team-a"]


async def test_what_ended_while_nobody_looked_is_counted_once(kube: Kube) -> None:
    await kube.run(await kube.submit("failed"))
    await kube.run(await kube.submit("deleted"))
    paths = [kube.pod_path(f"id-{name}") for name in ("failed", "deleted")]
    await kube.engine.close()
    state = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": {"terminated": {"exitCode": 4}}}
    await kube.api.merge(f"{paths[0]}/status", {"status": {"phase": "Failed", "containerStatuses": [state]}})
    await kube.api.delete(paths[1])
    await _gone(kube, paths[1])
    for _ in range(2):
        kube.engine = KubernetesEngine(kube.config)
        await kube.engine.open()
        failed, deleted = kube.find("id-failed"), kube.find("id-deleted")
        assert failed is not None
        assert deleted is not None
        assert (failed.failures, failed.pods[0].state, failed.pods[0].exit_code) == (1, PodState.FAILED, 4)
        assert (deleted.failures, deleted.pods[0].state) == (0, PodState.LOST)
        await kube.engine.close()
    await kube.engine.open()


async def test_killed_between_making_a_pod_and_writing_it_down_the_next_one_goes_on_with_that_pod(kube: Kube) -> None:
    workload_id = await kube.submit("job", gpu=GpuRequest(whole=1))

    async def killed(*_: Any) -> None:
        raise asyncio.CancelledError

    kube.engine._pods._bind = killed  # type: ignore[method-assign,assignment]  # as if the process ended here
    await kube.start(workload_id, placement=Placement("dgx1-2", whole=1))
    path = kube.pod_path(workload_id)
    await _there(kube, path)
    await _kill(kube.engine)
    await kube.api.merge(_lease(kube), {"spec": {"holderIdentity": ""}})
    kube.engine = KubernetesEngine(kube.config)
    await kube.engine.open()
    running = await kube.until(workload_id, PodState.RUNNING)
    assert running.placement == Placement("dgx1-2", whole=1)
    assert len((await kube.api.get(path.rpartition("/")[0]))["items"]) == 1


async def test_a_stop_that_was_under_way_is_carried_through(kube: Kube) -> None:
    workload_id = await kube.submit("job")
    await kube.run(workload_id)

    async def killed(*_: Any) -> bool:
        raise asyncio.CancelledError

    kube.engine._pods._delete = killed  # type: ignore[method-assign,assignment]  # as if the process ended here
    await kube.engine.stop_pod(workload_id, 0, RECLAIMED, 0.0, time.time())
    await kube.status("job", lambda status: status["pods"][0]["state"] == "releasing")
    await _kill(kube.engine)
    await kube.api.merge(_lease(kube), {"spec": {"holderIdentity": ""}})
    kube.engine = KubernetesEngine(kube.config)
    await kube.engine.open()
    stopped = await kube.until(workload_id, PodState.STOPPED)
    assert stopped.stop_reason == RECLAIMED


async def test_a_stop_of_which_the_pod_has_not_heard_is_told_with_grace_though_its_time_is_over(kube: Kube) -> None:
    workload_id = await kube.submit("job")
    await kube.run(workload_id)

    async def killed(*_: Any) -> bool:
        raise asyncio.CancelledError

    kube.engine._pods._delete = killed  # type: ignore[method-assign,assignment]  # as if the process ended here
    await kube.engine.stop_pod(workload_id, 0, RECLAIMED, 0.5, time.time())
    await kube.status("job", lambda status: status["pods"][0]["state"] == "releasing")
    await kube.kill()
    await asyncio.sleep(0.5)
    async with kept(kube, kube.pod_path(workload_id)) as grace:
        await kube.take_over()
        assert await grace() == 30


async def test_a_pod_that_nobody_counts_is_ended_before_it_is_gone(kube: Kube) -> None:
    workload_id = await kube.submit("job")
    await kube.run(workload_id)
    made = await kube.api.get(kube.pod_path(workload_id))
    entry = kube.engine._book.entry(workload_id)
    made["metadata"] = {"name": manifests.pod_name(entry.workload, entry.uid, replace(entry.pod(0), attempt=1)), **KEPT}
    path = kube.pod_path(workload_id).rpartition("/")[0]
    await kube.api.create(path, made)
    async with kept(kube, f"{path}/{made['metadata']['name']}") as grace:
        assert await grace() == 2


KEPT = {"finalizers": ["test.hotdesk.io/keeps"], "annotations": {"test.hotdesk.io/stops-in": "60s"}}


@asynccontextmanager
async def kept(kube: Kube, path: str) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """A pod that is still there when it is deleted: with how many seconds of grace, once it is."""

    async def grace() -> int:
        for _ in range(200):
            meta = (await kube.api.get(path))["metadata"]
            if "deletionTimestamp" in meta:
                return int(meta["deletionGracePeriodSeconds"])
            await asyncio.sleep(0.05)
        raise AssertionError(f"{path} is not deleted")

    await kube.api.merge(path, {"metadata": KEPT})
    try:
        yield grace
    finally:
        await kube.api.merge(path, {"metadata": {"finalizers": None}})


async def test_a_second_replica_waits_and_takes_over_when_the_first_gives_up(kube: Kube) -> None:
    workload_id = await kube.submit("job")
    await kube.run(workload_id)
    second = KubernetesEngine(kube.config)
    opening = asyncio.create_task(second.open())
    await asyncio.sleep(1)
    assert not opening.done()
    await kube.engine.close()
    begun = time.monotonic()
    await asyncio.wait_for(opening, 20)
    assert time.monotonic() - begun < 20
    kube.engine = second
    assert kube.pod(workload_id).state is PodState.RUNNING


async def test_a_replica_takes_over_from_one_that_was_killed_when_its_lease_has_run_out(cluster: Cluster, tmp_path: Path) -> None:
    async with kube_world(cluster, tmp_path, terms=Terms(lasts_s=6.0, renew_s=0.5, look_s=0.1)) as kube:
        workload_id = await kube.submit("job")
        await _kill(kube.engine)
        kube.engine = KubernetesEngine(kube.config)
        begun = time.monotonic()
        await asyncio.wait_for(kube.engine.open(), 30)
        assert time.monotonic() - begun > 4
        await kube.run(workload_id)


async def test_the_pod_of_the_leader_is_marked_as_long_as_it_leads(kube: Kube) -> None:
    """And alone: one whose node has died could not take its mark off."""
    path = f"/api/v1/namespaces/{kube.namespace}/pods"
    await eventually_account(kube)
    for name in ("scheduler-0", "scheduler-on-a-dead-node"):
        meta = {"name": name, "labels": {"hotdesk.io/leads": "true"}}
        spec = {"containers": [{"name": "main", "image": "x"}]}
        await kube.api.create(path, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    async def leads(name: str = "scheduler-0") -> str | None:
        labels = (await kube.api.get(f"{path}/{name}"))["metadata"].get("labels", {})
        return "true" if labels.get("hotdesk.io/leads") == "true" else None

    waiting = KubernetesEngine(replace(kube.config, pod="scheduler-0"))
    opening = asyncio.create_task(waiting.open())
    for _ in range(200):
        if await leads() is None:
            break
        await asyncio.sleep(0.05)
    assert await leads() is None
    assert not opening.done()
    await kube.engine.close()
    await asyncio.wait_for(opening, 30)
    assert (await leads(), await leads("scheduler-on-a-dead-node")) == ("true", None)
    await waiting.close()
    assert await leads() is None
    kube.engine = KubernetesEngine(kube.config)
    await kube.engine.open()


async def eventually_account(kube: Kube) -> None:
    """Pods are refused before their namespace has one."""
    while not (await kube.api.get(f"/api/v1/namespaces/{kube.namespace}/serviceaccounts"))["items"]:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def test_events_of_the_last_moment_before_an_orderly_end_are_there(kube: Kube) -> None:
    workload_id = await kube.submit("job")
    for number in range(3):
        kube.engine.show_event(workload_id, "Warning", f"Failed{number}", "It failed.")
    await kube.restart()
    events = (await kube.api.get(f"/api/v1/namespaces/{kube.namespace}-team-a/events"))["items"]
    assert {one["reason"] for one in events if one["involvedObject"]["name"] == "job"} == {"Failed0", "Failed1", "Failed2"}


async def test_one_who_lost_the_lease_knows_and_does_nothing_more(kube: Kube) -> None:
    workload_id = await kube.submit("job")
    lease = _lease(kube)
    await kube.api.merge(lease, {"spec": {"holderIdentity": "somebody else"}})
    await asyncio.wait_for(kube.engine.lost(), 10)
    first = kube.engine
    await first.start_pod(workload_id, 0, Placement("dgx1-1"), 1.0)
    path = kube.pod_path(workload_id)
    await first.close()
    with pytest.raises(ApiError):
        await kube.api.get(path)
    assert (await kube.api.get(lease))["spec"]["holderIdentity"] == "somebody else"
    await kube.api.merge(lease, {"spec": {"holderIdentity": ""}})
    kube.engine = KubernetesEngine(kube.config)
    await kube.engine.open()
    assert kube.pod(workload_id).state is PodState.PENDING


async def test_a_leader_that_wakes_up_after_its_time_writes_nothing_of_what_it_decides(kube: Kube) -> None:
    workload_id = await kube.submit("job")
    path, first = kube.pod_path(workload_id), kube.engine
    first._lease._monotonic = lambda: awake_or_not() + 3600  # it slept for an hour; the loop has not looked yet
    await kube.start(workload_id, placement=Placement("dgx1-1"))
    with pytest.raises(Unavailable):
        await kube.submit("another")
    await asyncio.wait_for(first.lost(), 30)
    await first.close()
    with pytest.raises(ApiError, match="404"):
        await kube.api.get(path)
    await kube.api.merge(_lease(kube), {"spec": {"holderIdentity": ""}})
    kube.engine = KubernetesEngine(kube.config)
    await kube.engine.open()
    assert [one.name for one in kube.engine.snapshot().workloads] == ["job"]
    assert kube.pod(workload_id).state is PodState.PENDING


async def test_two_who_both_think_they_lead_make_one_pod_in_one_place(kube: Kube) -> None:
    workload_id = await kube.submit("job")
    other = KubernetesEngine(replace(kube.config))

    async def leads() -> None:
        """Its clock, or a stopped process, makes it believe so."""

    other._take_lease = leads  # type: ignore[method-assign]
    await other.open()
    await kube.start(workload_id, placement=Placement("dgx1-1"))
    await other.start_pod(workload_id, 0, Placement("dgx1-2"), time.time())
    first = await kube.until(workload_id, PodState.RUNNING)

    def seconds_view() -> Any:
        pod = other.snapshot().workloads[0].pods[0]
        return pod.state is PodState.RUNNING and pod.placement

    assert await eventually(seconds_view, "the second one seeing it run") == first.placement
    await _kill(other)


def _lease(kube: Kube) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{kube.namespace}/leases/hotdesk-scheduler"


async def _gone(kube: Kube, path: str) -> None:
    for _ in range(200):
        try:
            await kube.api.get(path)
        except ApiError:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{path} is still there")


async def _there(kube: Kube, path: str) -> None:
    for _ in range(200):
        try:
            await kube.api.get(path)
            return
        except ApiError:
            await asyncio.sleep(0.05)
    raise AssertionError(f"{path} is not there")


async def _kill(engine: KubernetesEngine) -> None:
    """As kill -9 leaves it: nothing is finished, the lease stays taken. Its tasks end with it."""
    engine._is_closed = True
    if engine._lease._task:
        engine._lease._task.cancel()
    await engine._intake.stop()
    await engine._pods.close(0.01)
    await engine._saving.close(0.01)
    await engine._api.close()


async def test_what_the_service_wants_kept_is_there_for_the_next_leader_and_outlives_renewals(kube: Kube) -> None:
    await kube.engine.keep("paused by ann")
    await asyncio.sleep(PATIENT.renew_s + 0.5)  # renewed once by now, or soon: neither may lose it
    await kube.restart()
    assert await kube.engine.kept() == "paused by ann"
    await kube.engine.keep("")
    assert await kube.engine.kept() == ""


async def test_what_the_service_wants_kept_outlives_a_lease_that_somebody_deletes(kube: Kube) -> None:
    await kube.engine.keep("paused by ann")
    await kube.api.delete(kube.engine._lease._path)
    await _there(kube, kube.engine._lease._path)
    assert await kube.engine.kept() == "paused by ann"
