"""A Job's gang on a real kubelet: bound together, noticed and evicted with grace, made again by the Job and not counted as failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cluster.real_node import NODE
from cluster.running import Cluster
from engine_world import RECLAIMED, eventually
from hotdesk_scheduler.core.model import Placement, PodState, Workload
from kube_world import Kube, kube_world
from others import Json, Others

pytestmark = pytest.mark.slow
SCRIPT = "trap 'echo noticed; sleep 1; echo saved; exit 1' TERM; echo $NVIDIA_VISIBLE_DEVICES; while [ ! -e /go/go ]; do sleep 0.1; done"


@pytest.fixture
async def real(real_cluster: Cluster, tmp_path: Path) -> AsyncIterator[Kube]:
    if real_cluster.external:
        pytest.skip("KUBECONFIG names another cluster: its nodes have not our images")
    async with kube_world(real_cluster, tmp_path) as world:
        yield world


def job() -> Json:
    """Two pods of one GPU; an eviction is no failure of theirs."""
    marks = {"hotdesk.io/pod-group": "theirs", "hotdesk.io/pod-group-size": "2", "hotdesk.io/user": "bob"}
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "main", "image": "localhost/busybox:1", "imagePullPolicy": "Never", "resources": limits}
    shell = {"command": ["sh", "-c", SCRIPT], "volumeMounts": [{"name": "go", "mountPath": "/go"}]}
    volumes = [{"name": "go", "configMap": {"name": "go", "optional": True}}]
    pod = {"schedulerName": "hotdesk", "restartPolicy": "Never", "containers": [{**container, **shell}], "volumes": volumes}
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
    spec = {"parallelism": 2, "completions": 2, "backoffLimit": 0, "podFailurePolicy": {"rules": rules}}
    template = {"metadata": {"annotations": marks}, "spec": pod}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "theirs"}, "spec": {**spec, "template": template}}


async def until(real: Kube, others: Others, state: PodState) -> Workload:
    def there() -> Workload | None:
        found = others.called("theirs")
        return found if found is not None and [pod.state for pod in found.pods] == [state, state] else None

    found: Workload = await eventually(there, f"two pods being {state}", within_s=120)
    return found


async def test_a_jobs_gang_gets_notice_and_grace_and_is_made_again_uncounted(real: Kube) -> None:
    others = Others(real)
    await real.api.create(f"/apis/batch/v1/namespaces/{others.space}/jobs", job())
    gang = await until(real, others, PodState.PENDING)
    for pod in gang.pods:
        await real.start(gang.id, pod.index, Placement(NODE, whole=1))
    gang = await until(real, others, PodState.RUNNING)
    heard = [(await real.says(gang.id, "GPU", pod.index)).strip() for pod in gang.pods]
    assert len(set(heard)) == 2  # each its own device
    logs = [asyncio.create_task(real.log(gang.id, pod.index, follow=True)) for pod in gang.pods]
    session = await real.engine.exec(gang.id, gang.pods[1].index, ["hostname"], tty=False)
    assert await session.read() == (1, f"{others.pod_of(gang.id, gang.pods[1].index)}\n".encode())
    await session.close()
    for pod in gang.pods:
        await real.engine.stop_pod(gang.id, pod.index, RECLAIMED, 20.0, time.time())
    for words in await asyncio.gather(*logs):
        assert words.split()[1:] == ["noticed", "saved"]
    again = await until(real, others, PodState.PENDING)
    assert (again.id, again.created_at) == (gang.id, gang.created_at)
    go = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "go"}, "data": {"go": ""}}
    await real.api.create(f"/api/v1/namespaces/{others.space}/configmaps", go)
    for pod in again.pods:
        await real.start(gang.id, pod.index, Placement(NODE, whole=1))
    await eventually(lambda: real.find(gang.id) is None, "the Job being done", within_s=120)
    path = f"/apis/batch/v1/namespaces/{others.space}/jobs/theirs"
    for _ in range(600):
        status = (await real.api.get(path))["status"]
        if status.get("succeeded") == 2:
            break
        await asyncio.sleep(0.1)
    assert status["succeeded"] == 2
    assert not status.get("failed")
