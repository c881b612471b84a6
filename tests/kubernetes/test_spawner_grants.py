"""What the engine grants a workspace: the hub makes its pod, which counts as the workspace's and as nobody else's."""

from __future__ import annotations

from typing import Any

from engine_world import RECLAIMED, eventually
from hotdesk_api.models import PodGrant
from hotdesk_scheduler.core.model import GpuRequest, Kind, Placement, PodState, Resources
from kube_world import Kube

PLACE = Placement("dgx1-1", whole=2)


async def granted(kube: Kube) -> tuple[str, PodGrant]:
    workload_id = await kube.submit("workspace-alice", kind=Kind.WORKSPACE, gpu=GpuRequest(whole=2))
    await kube.start(workload_id, placement=PLACE)
    grant = kube.engine.details(workload_id, 0).grant
    assert grant is not None
    return workload_id, grant


async def make_pod(kube: Kube, grant: PodGrant) -> str:
    """As the hub's spawner does."""
    resources = {"limits": {"nvidia.com/gpu": str(grant.gpus)}}
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "jupyter-alice", "labels": grant.labels, "annotations": grant.annotations},
        "spec": {
            "schedulerName": "hotdesk",
            "nodeName": PLACE.node,
            "containers": [{"name": "notebook", "image": "x", "resources": resources}],
        },
    }
    path = f"/api/v1/namespaces/{grant.namespace}/pods"
    await kube.api.create(path, body)
    await eventually(lambda: (grant.namespace, "jupyter-alice") in kube.engine._book.pods, "the pod being seen")
    return f"{path}/jupyter-alice"


def foreign(kube: Kube) -> Resources:
    return next(node.foreign for node in kube.engine.snapshot().nodes if node.name == PLACE.node)


async def test_its_pod_counts_once_as_long_as_the_workspace_holds_the_place_and_as_foreign_afterwards(kube: Kube) -> None:
    workload_id, grant = await granted(kube)
    assert (grant.namespace, grant.gpus) == (f"{kube.namespace}-team-a", 2)
    await make_pod(kube, grant)
    await kube.engine.report_pod(workload_id, 0, PodState.RUNNING, 1.0)
    assert foreign(kube).gpu_millis == 0
    await kube.engine.report_pod(workload_id, 0, PodState.STOPPED, 2.0)
    assert foreign(kube).gpu_millis == 2000, "until the pod is gone nobody else can have them"
    await kube.engine.forget(workload_id)
    assert foreign(kube).gpu_millis == 2000


async def test_after_a_restart_the_pod_is_still_the_workspaces(kube: Kube) -> None:
    workload_id, grant = await granted(kube)
    await make_pod(kube, grant)
    await kube.engine.report_pod(workload_id, 0, PodState.RUNNING, 1.0)
    await kube.restart()
    assert kube.pod(workload_id).state is PodState.RUNNING
    assert foreign(kube).gpu_millis == 0
    again = kube.engine.details(workload_id, 0).grant
    assert again is not None
    assert again.labels == grant.labels


async def test_of_its_end_the_hub_tells_and_not_the_pod(kube: Kube) -> None:
    workload_id, grant = await granted(kube)
    path = await make_pod(kube, grant)
    await kube.api.delete(path, {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})
    await eventually(lambda: (grant.namespace, "jupyter-alice") not in kube.engine._book.pods, "the pod being gone")
    assert kube.pod(workload_id).state is PodState.STARTING
    await kube.engine.stop_pod(workload_id, 0, RECLAIMED, 5.0, 1.0)
    assert kube.pod(workload_id).state is PodState.RELEASING
    await kube.engine.report_pod(workload_id, 0, PodState.STOPPED, 2.0)
    assert kube.pod(workload_id).state is PodState.STOPPED


async def test_a_job_has_no_such_grant(kube: Kube) -> None:
    workload_id = await kube.submit("job")
    await kube.run(workload_id)
    assert kube.engine.details(workload_id, 0).grant is None
