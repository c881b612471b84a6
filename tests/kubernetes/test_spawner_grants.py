"""What the engine grants a workspace: the hub makes its pod, which counts as the workspace's and as nobody else's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engine_world import RECLAIMED, eventually
from hotdesk_api.models import PodGrant
from hotdesk_scheduler.core.model import GpuRequest, Kind, Placement, PodState, Resources
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError
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
    variables = [{"name": "JOB_UUID", "value": kube.engine.details("id-workspace-alice", 0).environment["JOB_UUID"]}]
    resources = {"limits": {"nvidia.com/gpu": str(grant.gpus)}}
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "jupyter-alice", "labels": grant.labels, "annotations": grant.annotations},
        "spec": {
            "schedulerName": "hotdesk",
            "nodeName": PLACE.node,
            "containers": [{"name": "notebook", "image": "x", "resources": resources, "env": variables}],
        },
    }
    path = f"/api/v1/namespaces/{grant.namespace}/pods"
    await kube.api.create(path, body)
    await eventually(lambda: (grant.namespace, "jupyter-alice") in kube.engine._book.pods, "the pod being seen")
    return f"{path}/jupyter-alice"


def foreign(kube: Kube, node: str = PLACE.node) -> Resources:
    return next(one.foreign for one in kube.engine.snapshot().nodes if one.name == node)


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


async def test_commands_reach_the_pod_that_the_hub_made_whatever_its_name(kube: Kube) -> None:
    if kube.cluster.external:
        pytest.skip("played nodes of a cluster of others have no kubelet that its API server could reach")
    workload_id, grant = await granted(kube)
    assert await kube.log(workload_id) == "", "there is no pod yet"
    await make_pod(kube, grant)
    await kube.engine.report_pod(workload_id, 0, PodState.RUNNING, 1.0)
    session = await kube.engine.exec(workload_id, 0, ["echo", "hello"], tty=False)
    assert await session.read() == (1, b"hello\n")
    await session.close()


async def test_a_right_that_is_missing_is_named_with_who_grants_it(kube: Kube, tmp_path: Path) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody"}}
    kube.cluster.apply(account, namespace=kube.namespace)
    config = json.loads(kube.cluster.kubeconfig.read_text())
    token = kube.cluster.kubectl("create", "token", "nobody", "-n", kube.namespace).strip()
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    (tmp_path / "nobody").write_text(json.dumps(config))
    api = await Api.connect(tmp_path / "nobody")
    try:
        with pytest.raises(ApiError) as refused:
            await api.create(f"/api/v1/namespaces/{kube.namespace}/pods", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}})
    finally:
        await api.close()
    said = refused.value.for_people()
    assert said.status == 403
    assert said.sentence == f"Hotdesk has no right to create pods in namespace {kube.namespace}."
    assert f"An admin grants it to system:serviceaccount:{kube.namespace}:nobody" in str(said.next_step)


async def test_a_job_has_no_such_grant(kube: Kube) -> None:
    workload_id = await kube.submit("job")
    await kube.run(workload_id)
    assert kube.engine.details(workload_id, 0).grant is None


async def test_labels_taken_off_or_changed_by_hand_do_not_make_its_pod_another_ones(kube: Kube) -> None:
    workload_id, grant = await granted(kube)
    path = await make_pod(kube, grant)
    await kube.engine.report_pod(workload_id, 0, PodState.RUNNING, 1.0)
    nonsense: list[Any] = [None, {"hotdesk.io/workload-id": "zebra", "hotdesk.io/pod-index": "0", "hotdesk.io/attempt": "0"}]
    for labels in nonsense:
        changed = await kube.api.merge(path, {"metadata": {"labels": labels}})
        version = int(changed["metadata"]["resourceVersion"])
        key = (grant.namespace, "jupyter-alice")
        await eventually(lambda version=version, key=key: kube.engine._intake.pods._versions[key] >= version, "the change being seen")  # type: ignore[misc]  # a default is no type
        assert foreign(kube).gpu_millis == 0
        assert [one.id for one in kube.engine.snapshot().workloads] == [workload_id], "nor is it a pod of others to place"
        await kube.restart()
        assert foreign(kube).gpu_millis == 0
        assert kube.engine._book.pod_of(workload_id, kube.pod(workload_id)) == "jupyter-alice"


async def test_what_pods_with_a_workspaces_labels_or_variable_use_beyond_its_room_is_subtracted_as_others(kube: Kube) -> None:
    workload_id, grant = await granted(kube)
    path = await make_pod(kube, grant)
    variables = [{"name": "JOB_UUID", "value": workload_id}]
    bodies: list[tuple[str, int, dict[str, str], dict[str, str]]] = [
        ("copy", 4, grant.labels, {"schedulerName": "hotdesk", "nodeName": PLACE.node}),
        ("bare", 3, {}, {"schedulerName": "hotdesk", "nodeName": PLACE.node}),
        ("elsewhere", 4, grant.labels, {"nodeName": "dgx1-2"}),
    ]
    for name, gpus, labels, spec in bodies:
        container = {"name": "notebook", "image": "x", "env": variables, "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        meta = {"name": name, "labels": labels}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {**spec, "containers": [container]}}
        await kube.api.create(path.rpartition("/")[0], pod)
        await eventually(lambda name=name: (grant.namespace, name) in kube.engine._book.pods, "the pod being seen")  # type: ignore[misc]  # a default is no type
    for _ in range(2):
        assert (foreign(kube).gpu_millis, foreign(kube, "dgx1-2").gpu_millis) == (7000, 4000)
        await kube.restart()
    await kube.engine.report_pod(workload_id, 0, PodState.RUNNING, 1.0)
    await kube.engine.report_pod(workload_id, 0, PodState.STOPPED, 2.0)
    assert foreign(kube).gpu_millis == 9000
