"""Nodes that go, come back or do not answer, with workloads on them. Nobody plays them: a kubelet's part the tests play, or nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from cluster.running import Cluster
from engine_world import eventually
from hotdesk_scheduler.core import invariants
from hotdesk_scheduler.core.decide import decide
from hotdesk_scheduler.core.line import told_of
from hotdesk_scheduler.core.model import GpuRequest, Kind, Placement, PodState, Policy
from hotdesk_scheduler.core.plan import Start
from hotdesk_scheduler.core.reasons import ReasonCode
from hotdesk_scheduler.engines.kubernetes.api import ApiError
from kube_world import Json, Kube, kube_world, node_object

PATIENCE_S = 2.0


@pytest.fixture
async def world(cluster: Cluster, tmp_path: Path) -> AsyncIterator[tuple[Kube, str]]:
    """With a node of eight GPUs that is ready and has no kubelet."""
    async with kube_world(cluster, tmp_path, node_patience_s=PATIENCE_S) as kube:
        name = f"{kube.namespace}-n"
        node = node_object(name, owner=kube.namespace)
        del node["metadata"]["annotations"]
        await kube.api.create("/api/v1/nodes", node)
        await says_ready(kube, name, True)
        yield kube, name


async def says_ready(kube: Kube, name: str, ready: bool) -> None:
    """Until the engine knows; the node controller adds and takes off its taints meanwhile."""

    def known() -> bool:
        node = kube.engine._book.nodes.get(name)
        return node is not None and node.ready is ready and not node.taints

    give_up = time.monotonic() + 60
    while not known() or ready is False:
        condition = {"type": "Ready", "status": str(ready), "reason": "Test", "message": "said by the test"}
        await kube.api.request(
            "PATCH",
            f"/api/v1/nodes/{name}/status",
            {"status": {"conditions": [condition]}},
            content_type="application/strategic-merge-patch+json",
        )
        if not ready:
            await eventually(lambda: not kube.engine._book.nodes[name].ready, "the node being not ready")
            return
        await kube.api.merge(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
        assert time.monotonic() < give_up, f"node {name} does not become ready"
        await asyncio.sleep(0.1)


async def run(kube: Kube, node: str, name: str) -> str:
    """A job on the node, all of whose GPUs it has, running there."""
    workload_id = await kube.submit(name, gpu=GpuRequest(whole=8))
    await kube.start(workload_id, placement=Placement(node, whole=8))
    await kube.until_pod(workload_id)
    await kube.set_status(workload_id, phase="Running", state={"running": {}})
    await kube.until(workload_id, PodState.RUNNING)
    return workload_id


async def is_there(kube: Kube, path: str) -> bool:
    try:
        await kube.api.get(path)
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return True


async def until_gone(kube: Kube, path: str) -> None:
    give_up = time.monotonic() + 60
    while await is_there(kube, path):
        assert time.monotonic() < give_up, f"{path} is still there"
        await asyncio.sleep(0.05)


async def test_a_node_that_is_back_in_time_loses_nothing_and_one_that_is_not_loses_its_pods_for_good(world: tuple[Kube, str]) -> None:
    kube, node = world
    workload_id = await run(kube, node, "job")
    path = kube.pod_path(workload_id)
    await says_ready(kube, node, False)
    await says_ready(kube, node, True)
    await asyncio.sleep(PATIENCE_S + 0.5)
    assert kube.pod(workload_id).state is PodState.RUNNING
    await says_ready(kube, node, False)
    lost = await kube.until(workload_id, PodState.LOST)
    assert lost.stop_reason is not None
    assert lost.stop_reason.code is ReasonCode.NODE_LOST
    await until_gone(kube, path)  # though no kubelet ever said so
    await says_ready(kube, node, True)
    await kube.engine.requeue_pod(workload_id, 0)
    await kube.run(workload_id, placement=Placement("dgx1-1", whole=8))
    other = await run(kube, node, "other")
    assert kube.pod(other).state is PodState.RUNNING


async def test_a_pod_that_does_not_end_holds_its_gpus_until_its_node_is_lost(world: tuple[Kube, str]) -> None:
    kube, node = world
    workload_id = await run(kube, node, "stuck")
    path = kube.pod_path(workload_id)
    await kube.stop(workload_id, grace_s=1)
    give_up = time.monotonic() + 60
    while "deletionTimestamp" not in (await kube.api.get(path))["metadata"]:
        assert time.monotonic() < give_up, "it is not being deleted"
        await asyncio.sleep(0.05)
    await kube.restart()
    assert kube.pod(workload_id).state is PodState.RELEASING  # it may still run: nobody else may have its GPUs
    await says_ready(kube, node, False)
    await kube.until(workload_id, PodState.LOST)
    await until_gone(kube, path)


async def test_a_workspace_on_a_lost_node_is_lost_with_the_pod_its_hub_made(world: tuple[Kube, str]) -> None:
    kube, node = world
    workload_id = await kube.submit("desk", kind=Kind.WORKSPACE, image="")
    await kube.start(workload_id, placement=Placement(node, whole=1))
    grant = kube.engine.details(workload_id, 0).grant
    assert grant is not None
    meta: Json = {"name": "jupyter-ada", "labels": grant.labels, "annotations": grant.annotations}
    spec = {"nodeName": node, "containers": [{"name": "notebook", "image": "x"}]}
    await kube.api.create(f"/api/v1/namespaces/{grant.namespace}/pods", {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    await kube.engine.report_pod(workload_id, 0, PodState.RUNNING, time.time())
    await eventually(lambda: (grant.namespace, "jupyter-ada") in kube.engine._book.pods, "the pod being seen")
    await says_ready(kube, node, False)
    await kube.until(workload_id, PodState.LOST)
    await until_gone(kube, f"/api/v1/namespaces/{grant.namespace}/pods/jupyter-ada")


async def test_a_node_whose_gpus_become_fewer_than_are_held_stops_nothing_and_gives_out_no_more(world: tuple[Kube, str]) -> None:
    kube, node = world
    workload_id = await run(kube, node, "job")
    await kube.api.merge(f"/api/v1/nodes/{node}/status", {"status": {"allocatable": {"nvidia.com/gpu": "7"}}})
    await eventually(lambda: kube.engine._book.nodes[node].gpus == 7, "the engine knowing it")
    waits, no_gpu = await kube.submit("waits", gpu=GpuRequest(whole=1)), await kube.submit("no-gpu")
    await eventually(lambda: len(kube.engine.snapshot().workloads) == 3, "all three being known")
    snapshot = kube.engine.snapshot()
    snapshot = replace(snapshot, nodes=tuple(one for one in snapshot.nodes if one.name == node))
    plan = decide(snapshot, Policy(), time.time())
    assert plan.acts == (Start(no_gpu, 0, Placement(node)),)
    assert waits in told_of(plan)
    assert not invariants.check(snapshot, plan)
    assert kube.pod(workload_id).state is PodState.RUNNING
