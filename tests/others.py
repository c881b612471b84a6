"""Somebody with kubectl, for tests of pods that name our scheduler and are not ours."""

from __future__ import annotations

import asyncio
from typing import Any

from engine_world import eventually
from hotdesk_scheduler.core.model import Workload
from kube_world import Kube

Json = dict[str, Any]


def pod_spec(*, gpus: int = 0, **spec: Any) -> Json:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    return {"schedulerName": "hotdesk", "containers": [{"name": "theirs", "image": "train:1", "resources": resources}], **spec}


class Others:
    """Somebody who makes pods in a namespace; team-a's own one unless said."""

    def __init__(self, kube: Kube, space: str = "") -> None:
        self.kube = kube
        self.space = space or f"{kube.namespace}-team-a"
        self.path = f"/api/v1/namespaces/{self.space}/pods"

    async def put(
        self, name: str, *, annotations: Json | None = None, labels: Json | None = None, owner: Json | None = None, **spec: Any
    ) -> str:
        """The uid of a pod that is there."""
        meta = {"name": name, "annotations": annotations or {}, "labels": labels or {}, "ownerReferences": [owner] if owner else []}
        made = await self.kube.api.create(self.path, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod_spec(**spec)})
        return str(made["metadata"]["uid"])

    async def make(self, name: str, **values: Any) -> str:
        """The workload's id, once it is queued."""
        uid = await self.put(name, **values)
        await eventually(lambda: self.kube.find(uid), f"{name} being queued")
        return uid

    async def job(self, name: str, *, pods: int = 1, annotations: Json | None = None, **spec: Any) -> Json:
        """Its controller makes the pods."""
        template = {"metadata": {"annotations": annotations or {}}, "spec": pod_spec(restartPolicy="Never", **spec)}
        job = {"parallelism": pods, "completions": pods, "template": template}
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": job}
        return await self.kube.api.create(f"/apis/batch/v1/namespaces/{self.space}/jobs", body)

    async def delete(self, name: str) -> None:
        """At once; returns when its name is free."""
        await self.kube.api.delete(f"{self.path}/{name}", {"gracePeriodSeconds": 0})
        for _ in range(200):
            if name not in [item["metadata"]["name"] for item in (await self.kube.api.get(self.path))["items"]]:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{name} is still there")

    async def condition(self, name: str) -> Json:
        found = (await self.kube.api.get(f"{self.path}/{name}"))["status"].get("conditions", [])
        return next((one for one in found if one["type"] == "PodScheduled"), {})

    async def until_told(self, name: str, words: str) -> None:
        for _ in range(300):
            if words in (await self.condition(name)).get("message", ""):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"{name} says {await self.condition(name)}")

    def called(self, prefix: str) -> Workload | None:
        return next((one for one in self.kube.engine.snapshot().workloads if one.name.startswith(prefix)), None)

    def pod_of(self, workload_id: str, index: int) -> str:
        """The name of the pod with that index."""
        return self.kube.engine.details(workload_id, index).name
