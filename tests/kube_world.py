"""The Kubernetes engine's world: a real API server, nodes that kwok plays, an installation of its own for each test."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cluster.running import Cluster
from engine_world import World, eventually
from hotdesk_scheduler.core.model import Project
from hotdesk_scheduler.engines.kubernetes import crds, manifests, resources
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError
from hotdesk_scheduler.engines.kubernetes.engine import KubernetesConfig, KubernetesEngine
from hotdesk_scheduler.engines.kubernetes.lease import Terms

PATIENT = Terms(lasts_s=60.0, renew_s=2.0, look_s=0.1)  # a busy machine is no reason to lose it
NODES = ("dgx1-1", "dgx1-2")
Json = dict[str, Any]


def node_object(name: str, *, gpus: int = 8, labels: dict[str, str] | None = None, owner: str = "", as_real: bool = False) -> Json:
    """A node for kwok to play; `owner`: the test it ends with. `as_real`: to be treated as one that has a device plugin."""
    room = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    marks = {"test.hotdesk.io/namespace": owner} if owner else {}
    known = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB", "nvidia.com/gpu.memory": "32768", "kubernetes.io/hostname": name}
    notes = {"kwok.x-k8s.io/node": "fake", **({"hotdesk.io/simulated": "false"} if as_real else {})}
    meta = {"name": name, "labels": {**known, **marks, **(labels or {})}, "annotations": notes}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {"capacity": room, "allocatable": room}}


@asynccontextmanager
async def kube_world(cluster: Cluster, directory: Path, **config: Any) -> AsyncIterator[Kube]:
    """With its engine open and project team-a; nothing of it is left."""
    world = Kube(cluster, directory, **config)
    await world.prepare()
    try:
        await world.engine.open()
        await world.engine.put_project(Project("team-a"))
        yield world
        await world.engine.close()
    finally:
        await world.clean_up()


class Kube(World):
    """`api` is the administrator's; `restart()` and `second()` are for tests of taking over."""

    engine: KubernetesEngine

    def __init__(self, cluster: Cluster, directory: Path, **config: Any) -> None:
        self.cluster = cluster
        self.namespace = f"test-{uuid.uuid4().hex[:8]}"
        names = {"namespace": self.namespace, "prefix": f"{self.namespace}-"}
        self.config = KubernetesConfig(**{**names, "kubeconfig": cluster.kubeconfig, "terms": PATIENT, "node_patience_s": 0.5, **config})
        super().__init__(KubernetesEngine(self.config), directory)

    async def prepare(self) -> None:
        """Definitions, nodes, the installation's own namespace."""
        self.api = await Api.connect(self.config.kubeconfig)
        await crds.install(self.api)
        for name in NODES:
            await self.add_node(name)
        await self.api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})

    async def add_node(self, name: str, **values: Any) -> str:
        """There and Ready when it returns, for the open engine too: what starts on a node that it takes for not ready is lost."""
        try:
            await self.api.create("/api/v1/nodes", node_object(name, **values))
        except ApiError as error:
            if error.status != 409:
                raise
        for _ in range(600):
            conditions = (await self.api.get(f"/api/v1/nodes/{name}"))["status"].get("conditions", [])
            if any(one["type"] == "Ready" and one["status"] == "True" for one in conditions):
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError(f"kwok did not make node {name} Ready")
        if self.engine._opening is not None:
            nodes = self.engine._book.nodes
            await eventually(lambda: name in nodes and nodes[name].ready, f"the engine hearing that node {name} is ready")
        return name

    async def restart(self) -> None:
        await self.engine.close()
        await self.restart_after_close()

    async def restart_after_close(self) -> None:
        self.engine = KubernetesEngine(self.config)
        await self.engine.open()

    async def kill(self) -> None:
        """As kill -9 leaves the engine: nothing is finished, the lease stays taken. Its tasks end with it."""
        engine = self.engine
        engine._is_closed = True
        if engine._lease._task:
            engine._lease._task.cancel()
        await engine._intake.stop()
        await engine._reservations.close()
        await engine._pods.close(0.01)
        await engine._saving.close(0.01)
        await engine._events.close()
        await engine._api.close()
        await engine._own_api.close()

    async def take_over(self) -> None:
        """The next scheduler, without waiting until the lease of a killed one has run out."""
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/hotdesk-scheduler"
        await self.api.merge(lease, {"spec": {"holderIdentity": ""}})
        self.engine = KubernetesEngine(self.config)
        await self.engine.open()

    async def clean_up(self) -> None:
        """Nothing is waited for: the controllers do the rest."""
        spaces = [self.namespace, *(key for key in await self._namespaces() if key.startswith(f"{self.namespace}-"))]
        for space in spaces:
            for item in (await self.api.get(resources.path("Workload", space)))["items"]:
                path = resources.path("Workload", space, item["metadata"]["name"])
                await self._quietly(self.api.merge(path, {"metadata": {"finalizers": None}}))
            options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
            await self._quietly(self.api.request("DELETE", f"/api/v1/namespaces/{space}/pods", options))
            await self._quietly(self.api.delete(f"/api/v1/namespaces/{space}"))
        await self._quietly(
            self.api.request("DELETE", "/api/v1/nodes", params={"labelSelector": f"test.hotdesk.io/namespace={self.namespace}"})
        )
        await self.api.close()

    async def _namespaces(self) -> list[str]:
        return [item["metadata"]["name"] for item in (await self.api.get("/api/v1/namespaces"))["items"]]

    @staticmethod
    async def _quietly(call: Any) -> None:
        try:
            await call
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def waiting(self, name: str) -> Json:
        """Nothing runs on played nodes: `end()` says what the kubelet would."""
        return {"command": ["sleep", "infinity"]}

    async def end(self, workload_id: str, index: int = 0, code: int = 0) -> None:
        await self.until_pod(workload_id, index)
        await self.set_status(workload_id, index, phase="Failed" if code else "Succeeded", state={"terminated": {"exitCode": code}})

    async def set_status(
        self, workload_id: str, index: int = 0, *, phase: str, state: Json | None = None, allocated: list[Json] | None = None, **status: Any
    ) -> None:
        """The pod's status, as its kubelet would write it. `allocated`: how the devices of its container are."""
        one = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        containers = [{**one, "allocatedResourcesStatus": allocated or []}] if state else []
        path = self.pod_path(workload_id, index)
        await self.api.merge(f"{path}/status", {"status": {"phase": phase, "containerStatuses": containers, **status}})

    async def until_pod(self, workload_id: str, index: int = 0) -> Json:
        """The pod's object, once it is bound."""
        for _ in range(600):
            try:
                item = await self.api.get(self.pod_path(workload_id, index))
            except ApiError as error:
                if error.status != 404:
                    raise
            else:
                if item["spec"].get("nodeName"):
                    return item
            await asyncio.sleep(0.05)
        raise AssertionError(f"{workload_id} got no pod on a node")

    def pod_path(self, workload_id: str, index: int = 0) -> str:
        entry = self.engine._book.entry(workload_id)
        return f"/api/v1/namespaces/{entry.namespace}/pods/{manifests.pod_name(entry.workload, entry.uid, entry.pod(index))}"

    def resource_path(self, name: str, project: str = "team-a") -> str:
        return resources.path("Workload", f"{self.namespace}-{project}", name)

    async def status(self, name: str, holds: Any = lambda status: True) -> Json:
        """The recorded status of a workload, once `holds(status)`."""
        give_up = time.monotonic() + 30
        while True:
            found: Json = (await self.api.get(self.resource_path(name))).get("status") or {}
            if found and holds(found):
                return found
            assert time.monotonic() < give_up, f"the status of {name} stays {found}"
            await asyncio.sleep(0.05)
