"""The kubelet of a real node goes and comes back while workloads run there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest
from cluster.real_node import GPUS, NODE
from cluster.running import Cluster
from engine_world import eventually
from hotdesk_scheduler.core.model import GpuRequest, Placement, PodState
from hotdesk_scheduler.core.reasons import ReasonCode
from kube_world import Json, Kube, kube_world

pytestmark = pytest.mark.slow
PATIENCE_S = 10.0
GONE_WITHIN_S = 120.0  # until Kubernetes itself notices


@pytest.fixture
async def real(real_cluster: Cluster, tmp_path: Path) -> AsyncIterator[Kube]:
    if real_cluster.external:
        pytest.skip("KUBECONFIG names another cluster, whose kubelets are not ours")
    async with kube_world(real_cluster, tmp_path, node_patience_s=PATIENCE_S) as world:
        yield world


async def run(real: Kube, name: str, gpus: int) -> str:
    shell: Json = {"image": "localhost/busybox:1", "image_pull_policy": "Never", "command": ["sh", "-c", "while :; do sleep 0.1; done"]}
    workload_id = await real.submit(name, gpu=GpuRequest(whole=gpus), **shell)
    await real.run(workload_id, placement=Placement(NODE, whole=gpus))
    return workload_id


async def until_back(real: Kube, since: float) -> None:
    """The kubelet has said since then that its node is ready, with all of its GPUs."""
    give_up = time.monotonic() + 90
    while True:
        status = (await real.api.get(f"/api/v1/nodes/{NODE}"))["status"]
        ready = next(one for one in status["conditions"] if one["type"] == "Ready")
        heard = datetime.fromisoformat(ready["lastHeartbeatTime"]).timestamp() > since
        if heard and ready["status"] == "True" and status["allocatable"]["nvidia.com/gpu"] == str(GPUS):
            break
        assert time.monotonic() < give_up, f"the kubelet is not back: {ready}"
        await asyncio.sleep(0.1)
    await eventually(lambda: real.engine._book.nodes[NODE].ready and real.engine._book.nodes[NODE].gpus == GPUS, "the engine knowing it")


async def its_pod(real: Kube, workload_id: str) -> Json:
    found: Json = await real.api.get(real.pod_path(workload_id))
    return found


async def test_what_runs_outlives_a_kubelet_that_is_back_in_time_and_waits_again_after_one_that_is_not(
    real: Kube, real_cluster: Cluster
) -> None:
    workload_id = await run(real, "job", 3)
    before = await its_pod(real, workload_id)
    real_cluster.kill_kubelet()
    since = time.time() + 1  # heartbeats are told in whole seconds
    await asyncio.sleep(1)
    real_cluster.start_kubelet()
    await until_back(real, since)
    await asyncio.sleep(PATIENCE_S + 1)
    after = await its_pod(real, workload_id)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert [one["restartCount"] for one in after["status"]["containerStatuses"]] == [0]
    assert (real.pod(workload_id).state, real.pod(workload_id).attempt) == (PodState.RUNNING, 0)

    real_cluster.kill_kubelet()
    try:
        await eventually(lambda: real.pod(workload_id).state is PodState.LOST, "its node being given up", GONE_WITHIN_S)
        lost = real.pod(workload_id)
        assert lost.stop_reason is not None
        assert lost.stop_reason.code is ReasonCode.NODE_LOST
    finally:
        since = time.time()
        real_cluster.start_kubelet()
    await until_back(real, since)
    await real.engine.requeue_pod(workload_id, 0)
    await real.run(workload_id, placement=Placement(NODE, whole=3))
    assert (await its_pod(real, workload_id))["metadata"]["uid"] != before["metadata"]["uid"]
