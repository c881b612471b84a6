"""Pods that others make with `schedulerName: hotdesk`: queued, explained, bound, evicted; what we do not know is said."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from engine_world import RECLAIMED, eventually
from hotdesk_api.errors import Conflict
from hotdesk_scheduler.core.model import GpuRequest, Phase, Placement, PodState, Share, Workload
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from kube_world import Kube

WAITS = Reason(ReasonCode.NO_FREE_BLOCK, "No node has a free GPU.")


def pod_spec(*, gpus: int = 0, **spec: Any) -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    return {"schedulerName": "hotdesk", "containers": [{"name": "theirs", "image": "train:1", "resources": resources}], **spec}


class Others:
    """Somebody with kubectl in the namespace of team-a."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.space = f"{kube.namespace}-team-a"
        self.path = f"/api/v1/namespaces/{self.space}/pods"

    async def make(self, name: str, *, annotations: dict[str, str] | None = None, **spec: Any) -> str:
        """The workload's id, once it is queued."""
        meta = {"name": name, "annotations": annotations or {}}
        made = await self.kube.api.create(self.path, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod_spec(**spec)})
        uid = str(made["metadata"]["uid"])
        await eventually(lambda: self.kube.find(uid), f"{name} being queued")
        return uid

    async def condition(self, name: str) -> dict[str, Any]:
        found = (await self.kube.api.get(f"{self.path}/{name}"))["status"].get("conditions", [])
        return next((one for one in found if one["type"] == "PodScheduled"), {})

    async def until_told(self, name: str, message: str) -> None:
        for _ in range(300):
            if (await self.condition(name)).get("message") == message:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"{name} says {await self.condition(name)}")

    def called(self, prefix: str) -> Workload | None:
        return next((one for one in self.kube.engine.snapshot().workloads if one.name.startswith(prefix)), None)


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


async def test_what_it_holds_is_counted_once(kube: Kube, others: Others) -> None:
    name = await kube.add_node(f"{kube.namespace}-n", owner=kube.namespace)
    await eventually(lambda: any(node.name == name for node in kube.engine.snapshot().nodes), "the node")
    uid = await others.make("bare", gpus=2)
    await kube.run(uid, placement=Placement(name, whole=2))
    node = next(node for node in kube.engine.snapshot().nodes if node.name == name)
    assert node.foreign.gpu_millis == 0
    assert len(kube.engine.details(uid, 0).devices) == 2


async def test_a_jobs_pod_is_evicted_with_grace_and_its_controller_makes_the_next_one(kube: Kube, others: Others) -> None:
    template = {"metadata": {"annotations": {"test.hotdesk.io/stops-in": "500ms"}}, "spec": pod_spec(gpus=1, restartPolicy="Never")}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "theirs"}, "spec": {"template": template}}
    await kube.api.create(f"/apis/batch/v1/namespaces/{others.space}/jobs", job)
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


@pytest.mark.parametrize(
    ("spec", "annotations", "words"),
    [
        ({"nodeSelector": {"disk": "ssd"}}, {}, "does not choose nodes by the label disk"),
        ({}, {"hotdesk.io/pod-group": "g"}, "as a gang yet"),
        ({}, {"gpu-fraction": "lots"}, "'lots' is no share of a GPU"),
    ],
)
async def test_what_is_not_understood_is_said_and_not_placed(
    kube: Kube, others: Others, spec: dict[str, Any], annotations: dict[str, str], words: str
) -> None:
    meta = {"name": "odd", "annotations": annotations}
    await kube.api.create(others.path, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod_spec(**spec)})
    for _ in range(300):
        if words in (await others.condition("odd")).get("message", ""):
            break
        await asyncio.sleep(0.1)
    assert words in (await others.condition("odd"))["message"]
    assert others.called("odd") is None


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


async def test_pods_outside_of_projects_are_not_ours(kube: Kube) -> None:
    kube.cluster.wait_until("an account", lambda: bool(kube.cluster.get("serviceaccounts", "-n", kube.namespace)["items"]))
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stray"}, "spec": pod_spec()}
    made = await kube.api.create(f"/api/v1/namespaces/{kube.namespace}/pods", body)
    await eventually(lambda: (kube.namespace, "stray") in kube.engine._book.pods, "the pod being seen")
    assert kube.find(made["metadata"]["uid"]) is None
