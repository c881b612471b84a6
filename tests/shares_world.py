"""A world for tests of shared GPUs: one played node with two GPUs that counts as real, and what is made for sharing there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cluster.running import Cluster
from hotdesk_scheduler.core.model import GpuRequest, Placement, Resources, Share
from kube_world import Json, Kube, kube_world

HALF = GpuRequest(millis=500)


@asynccontextmanager
async def shares_world(cluster: Cluster, directory: Path, **config: Any) -> AsyncIterator[Kube]:
    async with kube_world(cluster, directory, **config) as world:
        await world.add_node(node(world), gpus=2, owner=world.namespace, as_real=True)
        yield world


def node(kube: Kube) -> str:
    return f"{kube.namespace}-n"


def half(kube: Kube, *groups: str, millis: int = 500) -> Placement:
    return Placement(node(kube), shares=tuple(Share(group, millis) for group in groups))


async def start(kube: Kube, name: str, *groups: str, **spec: Any) -> str:
    workload_id = await kube.submit(name, gpu=GpuRequest(millis=500, devices=len(groups)), **spec)
    await kube.start(workload_id, placement=half(kube, *groups))
    return workload_id


async def items(kube: Kube, kind: str, space: str) -> list[Json]:
    found: list[Json] = (await kube.api.get(f"/api/v1/namespaces/{kube.namespace}-{space}/{kind}"))["items"]
    return found


async def reservations(kube: Kube) -> list[Json]:
    return await items(kube, "pods", "reservations")


async def told(kube: Kube) -> dict[str, str]:
    """ConfigMaps of shares by name: the device."""
    found = await items(kube, "configmaps", "team-a")
    return {one["metadata"]["name"]: one["data"]["NVIDIA_VISIBLE_DEVICES"] for one in found if one["metadata"]["name"].endswith("-gpu")}


async def until(kube: Kube, holds: Callable[[], Awaitable[bool]], what: str) -> None:
    give_up = time.monotonic() + 30
    while not await holds():
        assert time.monotonic() < give_up, f"{what} did not happen"
        await asyncio.sleep(0.05)


async def nothing_is_left(kube: Kube) -> bool:
    return not await reservations(kube) and not await told(kube) and foreign(kube) == Resources()


def foreign(kube: Kube) -> Resources:
    return next(one.foreign for one in kube.engine.snapshot().nodes if one.name == node(kube))


def written(kube: Kube) -> list[str]:
    """What this engine asks of the API server from now on, but for its lease and what it looks at."""
    asked: list[str] = []
    usual = kube.engine._api.request

    async def noted(method: str, path: str, *arguments: Any, **options: Any) -> Any:
        if method != "GET" and "/leases" not in path:
            asked.append(f"{method} {path}")
        return await usual(method, path, *arguments, **options)

    kube.engine._api.request = noted  # type: ignore[method-assign]  # to count
    return asked
