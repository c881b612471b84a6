"""Pods that others make with `schedulerName: hotdesk`: queued, explained, bound, evicted; what we do not know is said."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from engine_world import RECLAIMED, eventually
from hotdesk_api.errors import Conflict
from hotdesk_scheduler.core.model import GpuRequest, Phase, Placement, PodState, Project, Share, Workload
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines.kubernetes import resources
from kube_world import Kube
from others import Others

WAITS = Reason(ReasonCode.NO_FREE_BLOCK, "No node has a free GPU.")


@pytest.fixture
def others(kube: Kube) -> Others:
    return Others(kube)


async def test_a_bare_pod_is_queued_explained_bound_and_gone_when_it_ends(kube: Kube, others: Others) -> None:
    uid = await others.make("bare", gpus=2, annotations={"hotdesk.io/user": "bob", "hotdesk.io/priority": "70"})
    workload = kube.find(uid)
    assert workload is not None
    assert (workload.name, workload.project, workload.user, workload.priority) == ("bare", "team-a", "bob", 70)
    assert workload.pods[0].request.gpu == GpuRequest(whole=2)
    assert kube.engine.spec(uid).image == "train:1"
    kube.engine.show_holds({uid: WAITS})
    await others.until_told("bare", WAITS.sentence)
    await kube.run(uid, placement=Placement("dgx1-2", whole=2))
    pod = await kube.api.get(f"{others.path}/bare")
    assert pod["spec"]["nodeName"] == "dgx1-2"
    assert (await others.condition("bare"))["status"] == "True"
    await kube.api.merge(f"{others.path}/bare/status", {"status": {"phase": "Succeeded"}})
    await eventually(lambda: kube.find(uid) is None, "it being gone")


async def test_one_that_a_hand_labels_as_a_workloads_pod_is_nobodys_and_its_gpus_are_others(kube: Kube, others: Others) -> None:
    name = await kube.add_node(f"{kube.namespace}-n", owner=kube.namespace)
    await eventually(lambda: any(node.name == name for node in kube.engine.snapshot().nodes), "the node")
    uid = await others.make("bare", gpus=2)
    await kube.run(uid, placement=Placement(name, whole=2))
    labels = {"hotdesk.io/workload-id": "nobody", "hotdesk.io/pod-index": "0", "hotdesk.io/attempt": "0"}
    await kube.api.merge(f"{others.path}/bare", {"metadata": {"labels": labels}})
    await eventually(lambda: kube.find(uid) is None, "its workload being gone")
    assert next(node for node in kube.engine.snapshot().nodes if node.name == name).foreign.gpu_millis == 2000


async def test_a_name_is_one_workloads_in_its_project(kube: Kube, others: Others) -> None:
    """A list that has one of two is no help, and a command by name would reach either of them."""
    bare = await others.make("train", gpus=1)
    with pytest.raises(Conflict, match="Project team-a already has a workload named train"):
        await kube.submit("train")
    await others.put("one", annotations={"hotdesk.io/pod-group": "train", "hotdesk.io/pod-group-size": "1"})
    gang: Workload = await eventually(lambda: others.called("train."), "the gang")
    by_hand = {"apiVersion": resources.API_VERSION, "kind": "Workload", "metadata": {"name": "train"}, "spec": {"image": "bash"}}
    await kube.api.create(resources.path("Workload", others.space), by_hand)
    await eventually(lambda: kube.find(bare).name != "train", "the pod giving way")  # type: ignore[union-attr]  # it is there
    ours = next(workload for workload in kube.engine.snapshot().workloads if workload.name == "train")
    names = {bare: f"train.{bare}", gang.id: f"train.{others.space}", ours.id: "train"}
    assert {workload.id: workload.name for workload in kube.engine.snapshot().workloads} == names
    assert kube.engine.spec(bare).name == names[bare]
    await kube.run(bare, placement=Placement("dgx1-1", whole=1))
    await kube.restart()
    assert kube.find(ours.id).name == "train"  # type: ignore[union-attr]  # it is there
    assert len({workload.name for workload in kube.engine.snapshot().workloads}) == 3


async def test_what_it_holds_is_counted_once(kube: Kube, others: Others) -> None:
    name = await kube.add_node(f"{kube.namespace}-n", owner=kube.namespace)
    await eventually(lambda: any(node.name == name for node in kube.engine.snapshot().nodes), "the node")
    uid = await others.make("bare", gpus=2)
    await kube.run(uid, placement=Placement(name, whole=2))
    node = next(node for node in kube.engine.snapshot().nodes if node.name == name)
    assert node.foreign.gpu_millis == 0
    assert len(kube.engine.details(uid, 0).devices) == 2


async def test_a_jobs_pod_is_evicted_with_grace_and_its_controller_makes_the_next_one(kube: Kube, others: Others) -> None:
    await others.job("theirs", gpus=1, annotations={"test.hotdesk.io/stops-in": "500ms"})
    first: Workload = await eventually(lambda: others.called("theirs-"), "the Job's pod being queued")
    await kube.run(first.id, placement=Placement("dgx1-1", whole=1))
    await kube.engine.stop_pod(first.id, 0, RECLAIMED, 3.0, time.time())
    assert kube.pod(first.id).state is PodState.RELEASING

    def another() -> Workload | None:
        found = others.called("theirs-")
        return found if found is not None and found.id != first.id else None

    second: Workload = await eventually(another, "the next pod being queued")
    assert second.pods[0].state is PodState.PENDING
    assert kube.find(first.id) is None
    await kube.run(second.id, placement=Placement("dgx1-1", whole=1))


async def test_a_fraction_as_runai_and_kai_write_it_is_understood(kube: Kube, others: Others) -> None:
    uid = await others.make("part", annotations={"gpu-fraction": "0.5"})
    assert kube.pod(uid).request.gpu == GpuRequest(millis=500)
    place = Placement("dgx1-1", shares=(Share("g1", 500),))
    await kube.run(uid, placement=place)
    assert kube.pod(uid).placement == place
    memory = await others.make("memory", annotations={"gpu-memory": "4096"})
    assert kube.pod(memory).request.gpu == GpuRequest(memory_mib=4096)


async def test_what_runs_is_found_again_after_a_restart_with_its_place(kube: Kube, others: Others) -> None:
    runs = await others.make("runs", annotations={"gpu-fraction": "0.5"})
    place = Placement("dgx1-1", shares=(Share("g1", 500),))
    await kube.run(runs, placement=place)
    waits = await others.make("waits", gpus=1)
    await kube.restart()
    assert (kube.pod(runs).state, kube.pod(runs).placement) == (PodState.RUNNING, place)
    assert kube.pod(waits).state is PodState.PENDING


async def test_one_made_again_under_its_name_while_nobody_watched_is_another_and_the_first_holds_nothing(
    kube: Kube, others: Others
) -> None:
    first = await others.make("worker-0", gpus=1)
    await kube.run(first, placement=Placement("dgx1-1", whole=1))
    await kube.engine._intake.pods.stop()
    await others.delete("worker-0")
    second = await others.put("worker-0", gpus=1)
    kube.engine._intake.pods.start()
    await eventually(lambda: kube.find(second), "the second one being queued")
    assert kube.find(first) is None


Keep = Callable[[str], Awaitable[str]]
TWICE = ("kept", "kept-again")
"""The cluster itself gives up such a pod, in rounds of 20 s: not in both of two tries."""


@pytest.fixture
async def keep(kube: Kube, others: Others) -> AsyncIterator[Keep]:
    """Makes a pod that waits, and that a finalizer keeps when it is deleted; answers its path."""
    paths: list[str] = []

    async def make(name: str) -> str:
        paths.append(f"{others.path}/{name}")
        await others.make(name, gpus=1)
        await kube.api.merge(paths[-1], {"metadata": {"finalizers": ["test.hotdesk.io/keeps"]}})
        return paths[-1]

    yield make
    for path in paths:
        await kube.api.merge(path, {"metadata": {"finalizers": None}})


async def is_given_up(kube: Kube, path: str) -> bool:
    """By the cluster: who looks at that pod now has not seen what the engine does by itself."""
    return bool((await kube.api.get(path))["status"]["phase"] != "Pending")


async def test_one_that_is_deleted_while_it_waits_leaves_the_queue_though_a_finalizer_keeps_it(
    kube: Kube, others: Others, keep: Keep
) -> None:
    for name in TWICE:
        path = await keep(name)
        await kube.api.delete(path)
        await eventually(partial(is_out, others, name), "it being out of the queue")
        if not await is_given_up(kube, path):
            break
    else:
        pytest.fail("the cluster gave it up both times")
    await kube.restart()
    assert is_out(others, name)


def is_out(others: Others, name: str) -> bool:
    return others.called(name) is None


async def test_one_that_is_deleted_while_it_is_started_gives_its_place_back_though_a_finalizer_keeps_it(
    kube: Kube, others: Others, keep: Keep
) -> None:
    for name in TWICE:
        path = await keep(name)
        found = others.called(name)
        assert found is not None
        await kube.engine._intake.pods.stop()
        await kube.api.delete(path)
        await kube.start(found.id, placement=Placement("dgx1-1", whole=1))
        await asyncio.sleep(0.5)  # its binding is refused
        kube.engine._intake.pods.start()
        await eventually(partial(is_out, others, name), "it being out of the queue")
        if not await is_given_up(kube, path):
            return
    pytest.fail("the cluster gave it up both times")


@pytest.mark.parametrize("said", ["[" * 100_000, '{"node":"dgx1-1","shares":[{"group":"g1","millis":1e999}]}'], ids=["deep", "endless"])
async def test_what_a_hand_writes_about_its_place_keeps_no_scheduler_from_starting(kube: Kube, others: Others, said: str) -> None:
    uid = await others.make("bare", annotations={"gpu-fraction": "0.5"})
    await kube.run(uid, placement=Placement("dgx1-1", shares=(Share("g1", 500),)))
    await kube.api.merge(f"{others.path}/bare", {"metadata": {"annotations": {"hotdesk.io/placement": said}}})
    await kube.restart()
    assert kube.pod(uid).state is PodState.RUNNING


@pytest.mark.parametrize(
    ("spec", "annotations", "words"),
    [
        ({}, {"hotdesk.io/pod-group": "g"}, "Nothing says how many pods of group g start together"),
        ({}, {"hotdesk.io/pod-group": "g", "hotdesk.io/pod-group-size": "four"}, "'four' is no size of a pod group"),
        ({}, {"kai.scheduler/preemptibility": "semi-preemptible"}, "does not know semi-preemptible"),
        (
            {"resourceClaims": [{"name": "nic", "resourceClaimName": "not-there"}]},
            {},
            "It uses a resource claim (nic), and Hotdesk does not",
        ),
        ({}, {"gpu-fraction": "lots"}, "'lots' is no share of a GPU"),
        ({}, {"gpu-memory": "1e9999999"}, "'1e9999999' is no share of a GPU"),
    ],
)
async def test_what_is_not_understood_is_said_and_not_placed(
    kube: Kube, others: Others, spec: dict[str, Any], annotations: dict[str, str], words: str
) -> None:
    await others.put("odd", annotations=annotations, **spec)
    await others.until_told("odd", words)
    assert others.called("odd") is None


async def test_what_is_not_understood_is_taken_in_once_it_is_changed(kube: Kube, others: Others) -> None:
    uid = await others.put("odd", annotations={"gpu-fraction": "lots"})
    await others.until_told("odd", "'lots' is no share")
    await kube.api.merge(f"{others.path}/odd", {"metadata": {"annotations": {"gpu-fraction": "0.5"}}})
    await eventually(lambda: kube.find(uid), "it being queued")
    assert kube.pod(uid).request.gpu == GpuRequest(millis=500)
    await kube.api.merge(f"{others.path}/odd", {"metadata": {"annotations": {"hotdesk.io/priority": "80"}}})
    await eventually(lambda: (found := kube.find(uid)) and found.priority == 80, "its new priority")


async def test_deleted_through_hotdesk_the_pod_goes_and_suspending_says_who_could(kube: Kube, others: Others) -> None:
    uid = await others.make("bare")
    with pytest.raises(Conflict, match="somebody else"):
        await kube.engine.set_phase(uid, Phase.SUSPENDED, None, 1.0)
    await kube.engine.set_phase(uid, Phase.DELETING, None, 1.0)
    await kube.engine.forget(uid)
    for _ in range(100):
        if "bare" not in [item["metadata"]["name"] for item in (await kube.api.get(others.path))["items"]]:
            break
        await asyncio.sleep(0.1)
    assert kube.find(uid) is None


async def test_what_something_would_make_again_is_not_deleted_but_named(kube: Kube, others: Others) -> None:
    await others.job("theirs")
    found: Workload = await eventually(lambda: others.called("theirs-"), "the Job's pod being queued")
    with pytest.raises(Conflict, match="made by job theirs") as refused:
        await kube.engine.set_phase(found.id, Phase.DELETING, None, 1.0)
    assert refused.value.next_step == f"Delete that: kubectl delete job theirs -n {others.space}."


async def test_outside_of_projects_a_pod_names_its_project_and_is_taken_in_when_that_is_made(kube: Kube) -> None:
    kube.cluster.wait_until("an account", lambda: bool(kube.cluster.get("serviceaccounts", "-n", kube.namespace)["items"]))
    others = Others(kube, kube.namespace)
    stray = await others.put("stray")
    await others.until_told("stray", "It names no project: label it hotdesk.io/project")
    early = await others.put("early", labels={"kai.scheduler/queue": "team-c"})
    await others.until_told("early", "There is no project team-c, which kai.scheduler/queue names")
    known = await others.make("known", labels={"hotdesk.io/project": "team-a", "runai/queue": "x", "user": "bob"}, gpus=1)
    workload = kube.find(known)
    assert workload is not None
    assert (workload.project, workload.user, workload.name) == ("team-a", "bob", f"known.{kube.namespace}")
    await kube.run(known, placement=Placement("dgx1-1", whole=1))
    assert kube.engine.details(known, 0).name == "known"
    await kube.engine.put_project(Project("team-c"))
    await eventually(lambda: (found := kube.find(early)) and found.project == "team-c", "it being taken in")
    await kube.api.merge(f"{others.path}/stray", {"metadata": {"labels": {"project": "team-c"}}})
    await eventually(lambda: (found := kube.find(stray)) and found.project == "team-c", "the other being taken in")


async def test_a_projects_own_namespace_speaks_for_no_other(kube: Kube, others: Others) -> None:
    await kube.engine.put_project(Project("team-b"))
    await others.put("third", labels={"hotdesk.io/project": "team-b"})
    await others.until_told("third", f"Namespace {others.space} is project team-a's and hotdesk.io/project names team-b")
    own = await others.make("own", labels={"hotdesk.io/project": "team-a"})
    loose = await others.make("loose", labels={"project": "anything"})
    assert {kube.find(own).project, kube.find(loose).project} == {"team-a"}  # type: ignore[union-attr]  # they are there
