"""The scheduler's role: enough for everything it does, and nothing else, as the API server's audit log has it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from cluster.running import Cluster
from engine_world import NODE, RECLAIMED, eventually
from helm_chart import LEAST, Json, asked_by, granted_to, render, why_no_helm
from hotdesk_scheduler.core.model import Department, GpuRequest, Kind, Placement, PodState, Project, Share
from hotdesk_scheduler.engines.kubernetes import manifests
from hotdesk_scheduler.engines.kubernetes.engine import KubernetesEngine
from hotdesk_scheduler.engines.kubernetes.resources import API_VERSION, FINALIZER, MANAGED
from hotdesk_scheduler.engines.kubernetes.volumes import SELECTED_NODE
from kube_world import Kube

pytestmark = pytest.mark.skipif(why_no_helm() is not None, reason=str(why_no_helm()))

_RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
# The websocket of exec is asked for as `get` by servers before 1.36 and as `create` by later ones: the role has both.
# Kubernetes' own groups are off by default in 1.37: a pod's `schedulingGroup` is dropped.
_OF_OTHER_VERSIONS = {("", "pods/exec", "get"), ("", "pods/exec", "create"), ("scheduling.k8s.io", "podgroups", "get")}
# Asked for only when a pod is there that the stream has not told of yet: it may always be the quicker one.
_IF_THE_STREAM_IS_SLOWER = {("", "pods", "get")}


@pytest.fixture
async def limited(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Kube]:
    """The engine with the rights of the chart's service account and no others."""
    if cluster.external:
        pytest.skip("KUBECONFIG names another cluster, whose audit log is not ours")
    world = Kube(cluster, tmp_path)
    rights = [item for item in render(LEAST, namespace=world.namespace) if item["kind"] in _RIGHTS]
    await world.prepare()
    try:
        cluster.apply(*rights, namespace=world.namespace)
        limits = _kubeconfig_of(cluster, world.namespace, tmp_path)
        world.config = replace(world.config, kubeconfig=limits, pod=await _own_pod(world))
        world.engine = KubernetesEngine(world.config)
        await world.engine.open()
        try:
            yield world
        finally:
            await world.engine.close()
    finally:
        await world.clean_up()
        for item in rights:
            if item["kind"].startswith("Cluster"):
                cluster.kubectl("delete", item["kind"], item["metadata"]["name"], "--ignore-not-found", "--wait=false")


async def _own_pod(world: Kube) -> str:
    """What the scheduler would run in, for it to mark."""
    spec = {"containers": [{"name": "scheduler", "image": "x"}]}
    await world.api.create(
        f"/api/v1/namespaces/{world.namespace}/pods", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "own"}, "spec": spec}
    )
    return "own"


def _kubeconfig_of(cluster: Cluster, namespace: str, folder: Path) -> Path:
    config: Json = json.loads(cluster.kubeconfig.read_text())
    token = cluster.kubectl("create", "token", "rel-hotdesk", "-n", namespace).strip()
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path = folder / "limited.kubeconfig"
    path.write_text(json.dumps(config))
    return path


async def test_role_has_what_the_scheduler_does_and_no_more(limited: Kube) -> None:
    await _do_everything(limited)
    asked, refused = asked_by(limited.cluster, limited.namespace, "rel-hotdesk")
    assert refused == set()
    granted = granted_to(render(LEAST, namespace=limited.namespace))
    assert asked - granted == set()
    assert granted - asked - _OF_OTHER_VERSIONS - _IF_THE_STREAM_IS_SLOWER == set()


async def _do_everything(world: Kube) -> None:
    engine = world.engine
    await engine.put_department(Department("physics"))
    await engine.put_department(Department("physics", priority=1))
    await engine.put_department(Department("chemistry"))
    await engine.delete_department("chemistry")
    await engine.put_project(Project("team-a"))
    await engine.put_project(Project("team-a", department="physics"))
    await engine.put_project(Project("team-b"))
    await engine.delete_project("team-b")
    await _leave_a_program(world, "job")
    job = await world.submit("job", program="print(1)", gpu=GpuRequest(whole=1))
    await world.run(job)
    assert isinstance(await world.log(job), str)
    session = await engine.exec(job, 0, ["true"], tty=False)
    await session.wait()
    await world.stop(job, grace_s=0)
    await world.until(job, PodState.STOPPED)
    await engine.forget(job)
    await _adopt(world)
    await _take_in(world)
    await _have_a_volume_made(world)
    await _share(world)
    await _look_where_a_home_lies(world)
    await _forget_what_others_hold(world)
    engine.show_event("id-adopted", "Normal", "Scheduled", "It runs.")
    for _ in range(300):
        if (await world.api.get(f"/api/v1/namespaces/{world.namespace}-team-a/events"))["items"]:
            break
        await asyncio.sleep(0.05)
    await world.restart()


async def _leave_a_program(world: Kube, name: str) -> None:
    """Of an earlier workload of that name. A real one would be gone as soon as the garbage collector came by: nobody knows when."""
    owner = {"apiVersion": API_VERSION, "kind": "Workload", "name": name, "uid": "of-before"}
    meta = {"name": f"{name}-program", "labels": MANAGED, "ownerReferences": [owner]}
    path = f"/api/v1/namespaces/{world.namespace}-team-a/configmaps"
    await world.api.create(path, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "immutable": True, "data": {"program": "old"}})


async def _adopt(world: Kube) -> None:
    """A pod that a scheduler made just before it was killed."""
    job = await world.submit("adopted")
    entry = world.engine._book.entry(job)
    pod = replace(entry.pod(0), placement=Placement(NODE), started_at=1.0)
    made = manifests.pod_object(entry.workload, entry.spec, pod, uid=entry.uid, namespace=entry.namespace, variables={})
    await world.api.create(f"/api/v1/namespaces/{entry.namespace}/pods", made)
    await world.run(job)


async def _take_in(world: Kube) -> None:
    """A pod of somebody else that names us: told why it waits, bound, evicted."""
    path = f"/api/v1/namespaces/{world.namespace}-team-a/pods"
    spec = {"schedulerName": "hotdesk", "containers": [{"name": "theirs", "image": "x"}]}
    made = await world.api.create(path, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare"}, "spec": spec})
    uid = made["metadata"]["uid"]
    await eventually(lambda: world.find(uid), "it being queued")
    world.engine.show_holds({uid: RECLAIMED})
    for _ in range(300):
        if (await world.api.get(f"{path}/bare"))["status"].get("conditions"):
            break
        await asyncio.sleep(0.05)
    await world.run(uid)
    await world.stop(uid, grace_s=0)
    await eventually(lambda: world.find(uid) is None, "it being gone")
    for number, key in enumerate(("pod-group-name", "scheduling.x-k8s.io/pod-group", "scheduling.k8s.io/group-name")):
        meta = {"name": f"one-of-many-{number}", "annotations": {key: "g"}}
        await world.api.create(path, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        for _ in range(300):
            found = (await world.api.get(f"{path}/one-of-many-{number}"))["status"].get("conditions", [])
            if any("Nothing says how many" in one.get("message", "") for one in found):
                break
            await asyncio.sleep(0.05)


async def _have_a_volume_made(world: Kube) -> None:
    """For a pod of somebody else, by a class that waits for its node."""
    name, classes = f"{world.namespace}-late", "/apis/storage.k8s.io/v1/storageclasses"
    kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
    await world.api.create(classes, {**kind, "provisioner": "test.hotdesk.io/x", "volumeBindingMode": "WaitForFirstConsumer"})
    space = f"/api/v1/namespaces/{world.namespace}-team-a"
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": name}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "late"}, "spec": spec}
    await world.api.create(f"{space}/persistentvolumeclaims", claim)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "late"}}]
    pod = {"schedulerName": "hotdesk", "containers": [{"name": "theirs", "image": "x"}], "volumes": volumes}
    made = await world.api.create(f"{space}/pods", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stores"}, "spec": pod})
    await eventually(lambda: world.find(made["metadata"]["uid"]), "it being queued")
    await world.start(made["metadata"]["uid"])
    for _ in range(300):
        if SELECTED_NODE in (await world.api.get(f"{space}/persistentvolumeclaims/late"))["metadata"].get("annotations", {}):
            break
        await asyncio.sleep(0.05)
    await world.api.delete(f"{classes}/{name}")


async def _share(world: Kube) -> None:
    """A GPU of a node with a device plugin: set aside, told, given back."""
    node = await world.add_node(f"{world.namespace}-n", gpus=1, owner=world.namespace, as_real=True)
    job = await world.submit("shares", gpu=GpuRequest(millis=500))
    entry = world.engine._book.entry(job)
    meta = {"name": manifests.config_map_name(entry.workload, entry.uid, entry.pod(0)), "labels": MANAGED}  # of a killed scheduler
    await world.api.create(
        f"/api/v1/namespaces/{entry.namespace}/configmaps", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "immutable": True}
    )
    await world.run(job, placement=Placement(node, shares=(Share("g0", 500),)))
    await world.stop(job, grace_s=0)
    await world.until(job, PodState.STOPPED)
    reserved = f"/api/v1/namespaces/{world.namespace}-reservations/pods"
    for _ in range(300):
        if not (await world.api.get(reserved))["items"]:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the reservation stays")


async def _look_where_a_home_lies(world: Kube) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "volumeName": f"{world.namespace}-none"}
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "home"}, "spec": spec}
    await world.api.create(f"/api/v1/namespaces/{world.namespace}-team-a/persistentvolumeclaims", body)
    await world.submit("desk", kind=Kind.WORKSPACE, image="", volume_claims=["home"])


async def _forget_what_others_hold(world: Kube) -> None:
    """A workload that somebody else's finalizer keeps."""
    job = await world.submit("held")
    path = world.resource_path("held")
    await world.api.merge(path, {"metadata": {"finalizers": ["example.org/theirs", FINALIZER]}})
    await world.engine.forget(job)
    await world.api.merge(path, {"metadata": {"finalizers": None}})
