"""What the API server says about all pods, moment by moment, and what may never be true in it: one pod twice, one GPU twice.

It reads the stream by itself, with nothing of the engine's but the connection. Over a restart of the API server it lists again: what was
written in the last instant before and undone at once it would not see.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError

Json = dict[str, Any]
ENDED = ("Succeeded", "Failed")
PODS = "/api/v1/pods"


@dataclass(frozen=True)
class Alive:
    """A pod that has not ended. `whose`: workload (uid) and index, if it is a workload's. `place`: as annotated."""

    name: str
    node: str | None
    whose: tuple[str, str] | None
    whole: int
    shares: tuple[tuple[str, int], ...]


def _alive(item: Json) -> Alive | None:
    meta, spec = item["metadata"], item["spec"]
    if item.get("status", {}).get("phase") in ENDED:
        return None
    owner = next((one["uid"] for one in meta.get("ownerReferences", []) if one["kind"] == "Workload"), None)
    asked = [one.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", "0") for one in spec["containers"]]
    placed = json.loads(meta.get("annotations", {}).get("hotdesk.io/placement", "{}"))
    return Alive(
        name=f"{meta['namespace']}/{meta['name']}",
        node=spec.get("nodeName"),
        whose=(owner, meta["labels"]["hotdesk.io/pod-index"]) if owner else None,
        whole=sum(map(int, asked)),
        shares=tuple((share["group"], share["millis"]) for share in placed.get("shares", ())),
    )


class History:
    """`gpus`: of each node. `wrong`: every moment at which something was, in words. Use `watched()`."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self.alive: dict[str, Alive] = {}
        self.made: set[str] = set()
        self.moments = 0
        self.lists = 0
        self.wrong: list[str] = []

    async def follow(self, api: Api) -> None:
        while True:
            with contextlib.suppress(ApiError, aiohttp.ClientError, OSError, TimeoutError):
                version = await self._list(api)
                await self._watch(api, version)
            await asyncio.sleep(0.05)

    async def _list(self, api: Api) -> str:
        found = await api.get(PODS)
        self.alive = {item["metadata"]["uid"]: pod for item in found["items"] if (pod := _alive(item))}
        self.made |= set(self.alive)
        self.lists += 1
        version = str(found["metadata"]["resourceVersion"])
        self._check(version)
        return version

    async def _watch(self, api: Api, version: str) -> None:
        """Goes on from there until the server will not."""
        while True:
            response = await api.stream(PODS, {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"})
            with contextlib.closing(response):
                async for line in response.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._event(event["type"], event["object"], version)

    def _event(self, kind: str, item: Json, version: str) -> None:
        uid = item["metadata"]["uid"]
        pod = _alive(item) if kind != "DELETED" else None
        if pod is None:
            self.alive.pop(uid, None)
        else:
            self.alive[uid] = pod
            self.made.add(uid)
        self.moments += 1
        self._check(version)

    def _check(self, version: str) -> None:
        twice = [whose for whose, count in Counter(pod.whose for pod in self.alive.values() if pod.whose).items() if count > 1]
        for whose in twice:
            self.wrong.append(f"at {version} workload {whose} has {[pod.name for pod in self.alive.values() if pod.whose == whose]}")
        for node in {pod.node for pod in self.alive.values() if pod.node}:
            on_it = [pod for pod in self.alive.values() if pod.node == node]
            groups: Counter[str] = Counter()
            for pod in on_it:
                groups.update(dict(pod.shares))
            whole = sum(pod.whole for pod in on_it)
            if whole + len(groups) > self.gpus or any(millis > 1000 for millis in groups.values()):
                self.wrong.append(f"at {version} {node} holds {whole} GPUs and {dict(groups)}: {[pod.name for pod in on_it]}")

    def gpus_held(self) -> int:
        return sum(pod.whole for pod in self.alive.values() if pod.node)


@contextlib.asynccontextmanager
async def watched(api: Api, *, gpus: int) -> AsyncIterator[History]:
    """At the end nothing was ever wrong, and enough happened that it could have been."""
    history = History(gpus)
    following = asyncio.create_task(history.follow(api))
    try:
        yield history
        assert not following.done(), following.exception()
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await following
    assert history.wrong == []
    assert len(history.made) > 10, "too little happened for this to prove anything"
