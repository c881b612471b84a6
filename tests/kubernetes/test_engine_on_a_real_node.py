"""The engine on a real kubelet: logs, commands inside, notice and grace, memory, GPUs of a device plugin, images that are not there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cluster.real_node import NODE
from cluster.running import Cluster
from engine_world import RECLAIMED
from hotdesk_scheduler.core.model import GpuRequest, Kind, Placement, PodState
from hotdesk_spawner.manifest import ended_in_running_pod
from kube_world import Json, Kube, kube_world

pytestmark = pytest.mark.slow
HERE = Placement(NODE)


@pytest.fixture
async def real(real_cluster: Cluster, tmp_path: Path) -> AsyncIterator[Kube]:
    if real_cluster.external:
        pytest.skip("KUBECONFIG names another cluster: its nodes have not our images")
    async with kube_world(real_cluster, tmp_path) as world:
        yield world


def shell(script: str, **spec: Any) -> dict[str, Any]:
    return {"image": "localhost/busybox:1", "image_pull_policy": "Never", "command": ["sh", "-c", script], **spec}


async def said(real: Kube, workload_id: str, word: str) -> None:
    for _ in range(300):
        if word in await real.log(workload_id):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{workload_id} never said {word!r}")


async def workspace_pod(real: Kube, workload_id: str, script: str, *, gpus: int = 0, beside: bool = False) -> str:
    """As the hub's spawner makes it; its path."""
    grant = real.engine.details(workload_id, 0).grant
    assert grant is not None
    container = {"image": "localhost/busybox:1", "imagePullPolicy": "Never"}
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    notebook = {"name": "notebook", "command": ["sh", "-c", script], "resources": limits, **container}
    others = [{"name": "beside", "command": ["sleep", "1000"], **container}] if beside else []
    spec = {"nodeName": NODE, "terminationGracePeriodSeconds": 0, "restartPolicy": "OnFailure", "containers": [*others, notebook]}
    meta = {"name": "jupyter-alice", "labels": grant.labels, "annotations": grant.annotations}
    path = f"/api/v1/namespaces/{grant.namespace}/pods"
    await real.api.create(path, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    return f"{path}/jupyter-alice"


async def until_running(real: Kube, path: str) -> Json:
    give_up = time.monotonic() + 60
    while (pod := await real.api.get(path))["status"]["phase"] != "Running":
        assert time.monotonic() < give_up, f"{path} does not run"
        await asyncio.sleep(0.1)
    return pod


async def test_a_job_talks_hears_commands_and_ends_with_its_code(real: Kube) -> None:
    workload_id = await real.submit(
        "job", **shell("echo hello from $JOB_NAME; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo gone; exit 3")
    )
    await real.run(workload_id, placement=HERE)
    await said(real, workload_id, "hello from job")
    session = await real.engine.exec(workload_id, 0, ["sh", "-c", "cat; echo $JOB_UUID >&2; exit 5"], tty=False)
    await session.write(b"typed")
    await session.write(b"")
    heard = {1: b"", 2: b""}
    while (item := await session.read()) is not None:
        heard[item[0]] += item[1]
    assert heard == {1: b"typed", 2: b"id-job\n"}
    assert await session.wait() == 5
    await session.close()
    session = await real.engine.exec(workload_id, 0, ["touch", "/tmp/go"], tty=False)
    assert await session.wait() == 0
    await session.close()
    failed = await real.until(workload_id, PodState.FAILED)
    assert failed.exit_code == 3
    assert await real.log(workload_id, tail=1) == "gone\n"


async def test_what_a_workspace_says_is_heard_from_the_pod_that_the_hub_made(real: Kube) -> None:
    workload_id = await real.submit("workspace-alice", kind=Kind.WORKSPACE)
    await real.start(workload_id, placement=HERE)
    await workspace_pod(real, workload_id, "echo open; sleep 1000", beside=True)
    await said(real, workload_id, "open")


async def test_a_workspace_whose_server_dies_keeps_its_share_in_the_pod_that_starts_it_again(real: Kube) -> None:
    workload_id = await real.submit("workspace-alice", kind=Kind.WORKSPACE, gpu=GpuRequest(whole=1))
    await real.start(workload_id, placement=Placement(NODE, whole=1))
    path = await workspace_pod(real, workload_id, "echo open; while [ ! -e /tmp/die ]; do sleep 0.1; done; exit 3", gpus=1)
    await until_running(real, path)
    await real.engine.report_pod(workload_id, 0, PodState.RUNNING, time.time())
    session = await real.engine.exec(workload_id, 0, ["touch", "/tmp/die"], tty=False)
    await session.wait()
    await session.close()
    give_up = time.monotonic() + 60
    while True:
        pod = await real.api.get(path)
        ended = ended_in_running_pod(pod)
        assert pod["status"]["phase"] == "Running"
        assert ended is None or ended.starts_again
        (status,) = pod["status"]["containerStatuses"]
        if status["restartCount"] and "running" in status["state"]:
            break
        assert time.monotonic() < give_up, f"it is not started again: {status}"
    assert status["lastState"]["terminated"]["exitCode"] == 3
    await real.restart()
    assert real.pod(workload_id).state is PodState.RUNNING
    (node,) = (node for node in real.engine.snapshot().nodes if node.name == NODE)
    assert node.foreign.gpu_millis == 0, "the workspace holds it, and nobody else does"


async def test_a_stopped_job_gets_its_notice_and_its_grace(real: Kube) -> None:
    script = "trap 'echo noticed; sleep 1; echo done; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    workload_id = await real.submit("job", **shell(script))
    await real.run(workload_id, placement=HERE)
    await said(real, workload_id, "ready")
    words = asyncio.create_task(real.log(workload_id, follow=True))
    await asyncio.sleep(0.5)
    await real.stop(workload_id, grace_s=20)
    await real.until(workload_id, PodState.STOPPED)
    assert (await words).split() == ["ready", "noticed", "done"]


async def test_a_job_that_does_not_listen_is_killed_after_its_grace(real: Kube) -> None:
    workload_id = await real.submit("job", **shell("trap '' TERM; while :; do sleep 0.1; done"))
    await real.run(workload_id, placement=HERE)
    begun = time.monotonic()
    await real.stop(workload_id, grace_s=2)
    stopped = await real.until(workload_id, PodState.STOPPED)
    assert 1.5 < time.monotonic() - begun < 25
    assert stopped.stop_reason == RECLAIMED


async def test_too_much_memory_is_said(real: Kube) -> None:
    workload_id = await real.submit("job", **shell("x=a; while :; do x=$x$x; done", memory_mib=32))
    await real.start(workload_id, placement=HERE)
    failed = await real.until(workload_id, PodState.FAILED)
    assert failed.stop_reason is not None
    assert "OOMKilled" in failed.stop_reason.sentence


async def test_whole_gpus_come_from_the_device_plugin_and_an_image_that_is_not_there_is_named(real: Kube) -> None:
    gpus = await real.submit("gpus", gpu=GpuRequest(whole=2), **shell("echo $NVIDIA_VISIBLE_DEVICES"))
    await real.start(gpus, placement=Placement(NODE, whole=2))
    await real.until(gpus, PodState.SUCCEEDED)
    assert len(set((await real.log(gpus)).strip().split(","))) == 2
    missing = await real.submit("missing", **shell("true", image="localhost/nothing:9"))
    await real.start(missing, placement=HERE)
    failed = await real.until(missing, PodState.FAILED)
    assert failed.stop_reason is not None
    assert "localhost/nothing:9" in failed.stop_reason.sentence


async def test_more_gpus_than_the_node_has_left_is_the_kubelets_refusal_in_words(real: Kube) -> None:
    holds = await real.submit("holds", gpu=GpuRequest(whole=3), **shell("sleep 1000"))
    await real.run(holds, placement=Placement(NODE, whole=3))
    second = await real.submit("second", gpu=GpuRequest(whole=3), **shell("sleep 1000"))
    await real.start(second, placement=Placement(NODE, whole=3))
    failed = await real.until(second, PodState.FAILED)
    assert failed.stop_reason is not None
    assert "Its node would not start it" in failed.stop_reason.sentence
    await real.stop(holds, grace_s=0)
    await real.until(holds, PodState.STOPPED)
