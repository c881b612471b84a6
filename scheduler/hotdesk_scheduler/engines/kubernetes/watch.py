"""Informers: list once, watch from there, list again when the server has forgotten (410) or the stream cannot go on.

What was written by ourselves is put in at once (`put`), so a caller sees his own change; older news of the same object is ignored.
Resource versions are compared as numbers, which Kubernetes promises since 1.35 and etcd always gave.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

import aiohttp

from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError, Json

log = logging.getLogger(__name__)

T = TypeVar("T")
Key = tuple[str, str]
PAGE = 500
WATCH_S = 240
SILENCE_S = 75.0
"""Bookmarks come every minute: of a stream that says nothing for longer the way there was forgotten, by a balancer or a firewall."""
FIRST_PAUSE_S = 0.1
MOST_PAUSE_S = 5.0
REMEMBERED = 10_000  # deletions, for late answers to writes of our own


class Expired(Exception):
    """The server no longer knows the version we ask to go on from."""


def key_of(item: Json) -> Key:
    meta = item["metadata"]
    return meta.get("namespace", ""), meta["name"]


class Informer(Generic[T]):
    """Objects of one kind by (namespace, name), each as what `keep` makes of it (None: not for us).

    `tell(key, new, old)` is called for every change, in order, with None for what is not there. New and old are one object: of one that
    was made again under its name, first the end is told.
    """

    def __init__(self, api: Api, path: str, keep: Callable[[Json], T | None], tell: Callable[[Key, T | None, T | None], None]) -> None:
        self.items: dict[Key, T] = {}
        self.synced = asyncio.Event()
        self.lists = 0
        self._api = api
        self._path = path
        self._keep = keep
        self._tell = tell
        self._versions: dict[Key, int] = {}
        self._uids: dict[Key, str] = {}
        self._gone: dict[Key, int] = {}
        self._listed = -1  # the version of the last list; what is older and unknown is gone
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"watch {self._path}")

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        pause_s, version = FIRST_PAUSE_S, 0
        while True:
            try:
                if not version:
                    version = await self.list()
                async for reached in self._watch(version):
                    version, pause_s = reached, FIRST_PAUSE_S
                continue
            except Expired:
                log.info("watch.expired path=%s", self._path)
                version = 0
            except (ApiError, aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                log.warning("watch.broken path=%s error=%s", self._path, error)
            except Exception:  # an object nobody thought of: the engine may not go deaf by it
                log.exception("watch.failed path=%s", self._path)
                version = 0
            await asyncio.sleep(pause_s * random.uniform(0.5, 1))  # noqa: S311  no secret
            pause_s = min(MOST_PAUSE_S, pause_s * 2)

    async def list(self) -> int:
        """Everything there is now; what is not in it any more is told as gone. The version to watch from. Raises ApiError, Expired."""
        self._listed = -1
        found: dict[Key, Json] = {}
        params: Json = {"limit": PAGE}
        while True:
            try:
                page = await self._api.get(self._path, **params)
            except ApiError as error:
                if error.status == 410:
                    raise Expired from error
                raise
            found.update((key_of(item), item) for item in page["items"])
            if not (rest := page["metadata"].get("continue")):
                break
            params["continue"] = rest
        version = int(page["metadata"]["resourceVersion"])
        self.lists += 1
        for item in found.values():
            self.put(item)
        for key in [key for key, seen in self._versions.items() if key not in found and seen <= version]:
            self._remove(key, version)
        self._gone.clear()
        self._listed = version
        self.synced.set()
        return version

    async def _watch(self, version: int) -> AsyncIterator[int]:
        """Follow from `version`; yields each version reached."""
        params = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": WATCH_S}
        try:
            response = await self._api.stream(self._path, params, total_s=WATCH_S + 30, silence_s=SILENCE_S)
        except ApiError as error:
            if error.status == 410:
                raise Expired from error
            raise
        try:
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    if event["object"].get("code") == 410:
                        raise Expired
                    raise ApiError(event["object"].get("code", 0), event["object"].get("reason", ""), event["object"].get("message", ""))
                if event["type"] == "DELETED":
                    self._remove(key_of(event["object"]), _version(event["object"]))
                elif event["type"] != "BOOKMARK":
                    self.put(event["object"])
                yield _version(event["object"])
        finally:
            response.close()

    def put(self, item: Json) -> None:
        """News of an object, also from the answer to a write of our own."""
        key, version, uid = key_of(item), _version(item), item["metadata"]["uid"]
        if version <= self._versions.get(key, self._listed) or version <= self._gone.get(key, -1):
            return
        if self._uids.get(key, uid) != uid:
            self.remove(key)
        self._versions[key], self._uids[key] = version, uid
        self._gone.pop(key, None)
        kept = self._keep(item)
        if kept is None:
            old = self.items.pop(key, None)
        else:
            old = self.items.get(key)
            self.items[key] = kept
        if kept != old:
            self._tell(key, kept, old)

    def note(self, key: Key, version: int) -> None:
        """We have written this version ourselves and know what it says: it is no news when the stream brings it."""
        self._versions[key] = max(version, self._versions.get(key, -1))

    def again(self) -> None:
        """Look again at what was not for us before (`keep` would judge it differently now). At once: who stops it stops the new one."""
        if self._task:
            self._task.cancel()
        self._versions = {key: version for key, version in self._versions.items() if key in self.items}
        self.start()

    def remove(self, key: Key) -> None:
        """It is gone: we have deleted it ourselves, or another one has its name."""
        self._remove(key, self._versions.get(key, 0))

    def _remove(self, key: Key, version: int) -> None:
        if version < self._versions.get(key, -1):
            return
        self._uids.pop(key, None)
        if self._versions.pop(key, None) is not None:
            self._gone[key] = version
            if len(self._gone) > REMEMBERED:
                del self._gone[next(iter(self._gone))]
        old = self.items.pop(key, None)
        if old is not None:
            self._tell(key, None, old)


def _version(item: Json) -> int:
    return int(item["metadata"]["resourceVersion"])
