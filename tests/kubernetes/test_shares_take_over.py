"""A scheduler that is killed in the middle of sharing a GPU, at each of its writes in turn: the next one gets to the same end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster.running import Cluster
from hotdesk_scheduler.core.model import HOLDING, Phase, PodState
from kube_world import Kube
from shares_world import HALF, half, nothing_is_left, reservations, shares_world, told, until

pytestmark = pytest.mark.slow


@pytest.fixture
async def kube(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Kube]:
    async with shares_world(cluster, tmp_path) as world:
        yield world


class Killer:
    """Stops the engine for good after one of its writes was done and before anything was made of the answer. `at`: None = never."""

    def __init__(self, kube: Kube, at: str | None) -> None:
        self.at = at
        self.seen: list[str] = []
        self.dead = asyncio.Event()
        self.is_replaced = False
        usual = kube.engine._api.request

        async def request(method: str, path: str, *arguments: Any, **options: Any) -> Any:
            counts = method != "GET" and "/leases" not in path and "/events" not in path
            if self.dead.is_set() and counts:
                await asyncio.Future()
            try:
                return await usual(method, path, *arguments, **options)
            finally:
                if counts and self._note(method, path) == self.at:
                    self.dead.set()
                    await asyncio.Future()

        kube.engine._api.request = request  # type: ignore[method-assign]  # as if the process ended there

    def _note(self, method: str, path: str) -> str:
        """Which write of its kind it is: in which order the kinds come is not the same each time."""
        kind = f"{method} {_kind_of(path)}"
        self.seen.append(f"{kind} {1 + sum(one.startswith(kind) for one in self.seen)}")
        return self.seen[-1]


def _kind_of(path: str) -> str:
    if "-reservations/pods" in path:
        return "reservation"
    found = [word for word in ("binding", "status", "configmaps", "workloads", "pods", "namespaces") if f"/{word}" in path]
    return found[0]


async def _go_on(kube: Kube, ids: list[str]) -> None:
    """What the service's loop would do: everything that is to run is started, until it runs."""
    for one in ids:
        while kube.pod(one).state is not PodState.RUNNING:
            if kube.pod(one).state is PodState.PENDING:
                await kube.start(one, placement=half(kube, "g0"))
            elif kube.pod(one).state not in HOLDING:
                await kube.engine.requeue_pod(one, 0)
            await asyncio.sleep(0.01)


async def _end(kube: Kube, ids: list[str]) -> None:
    """Everything is deleted, and nothing is left."""
    for one in ids:
        if (workload := kube.find(one)) is not None and workload.phase is Phase.ACTIVE:
            await kube.engine.set_phase(one, Phase.DELETING, None, 5.0)
    for one in ids:
        while (workload := kube.find(one)) is not None:
            if workload.pods[0].state in HOLDING:
                await kube.stop(one, grace_s=0)
                await asyncio.sleep(0.01)
            else:
                await kube.engine.forget(one)
    await until(kube, lambda: nothing_is_left(kube), "nothing being left")


async def _done(kube: Kube, work: Callable[[], Awaitable[None]], killer: Killer) -> None:
    """By the next scheduler if this one is killed on the way."""
    if not killer.is_replaced:
        working, dying = asyncio.ensure_future(work()), asyncio.ensure_future(killer.dead.wait())
        await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
        for task in (working, dying):
            if not task.done():
                task.cancel()
        ended, _ = await asyncio.gather(working, dying, return_exceptions=True)
        if not killer.dead.is_set():
            assert ended is None, ended
            return
        await kube.kill()
        await kube.take_over()
        killer.is_replaced = True
    await asyncio.wait_for(work(), 60)


async def _shares_agree(kube: Kube, ids: list[str]) -> None:
    """One reservation, and both pods were told its device."""
    (held,) = await reservations(kube)
    devices = await told(kube)
    for one in ids:
        pod = await kube.until_pod(one)
        assert devices[f"{pod['metadata']['name']}-gpu"] == f"GPU-played-{held['metadata']['uid']}"
        assert held["metadata"]["uid"] in pod["metadata"]["annotations"]["hotdesk.io/reserved-gpus"]


async def test_killed_after_any_write_the_next_scheduler_shares_the_gpu_and_leaves_nothing_behind(kube: Kube) -> None:
    async def whole_life(name: str, at: str | None) -> Killer:
        ids = [await kube.submit(f"{name}{which}", gpu=HALF) for which in "ab"]
        killer = Killer(kube, at)
        await _done(kube, partial(_go_on, kube, ids), killer)
        await _shares_agree(kube, ids)
        await _done(kube, partial(_end, kube, ids), killer)
        killer.at = None
        return killer

    steps = tuple((await whole_life("first-", None)).seen)
    assert {"POST reservation 1", "POST configmaps 2", "DELETE reservation 1", "DELETE configmaps 2"} <= set(steps)
    killed = set()
    for number, at in enumerate(steps):
        if (await whole_life(f"j{number}-", at)).is_replaced:
            killed.add(at)
    assert {"POST reservation 1", "POST configmaps 1", "DELETE reservation 1"} <= killed
    assert len(killed) >= len(steps) - 3, "how often a status is written may vary by a few"
