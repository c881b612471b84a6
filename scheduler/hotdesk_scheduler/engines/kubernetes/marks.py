"""What every Workload carries that we run, also one that somebody wrote by hand, or edited: finalizer, labels, what its spec came to.

With the finalizer it is stopped with grace before it goes; with `spec.scheduling` it stays what it was when it was queued.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from hotdesk_scheduler.engines.kubernetes import objects, resources
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError, until_it_works
from hotdesk_scheduler.engines.kubernetes.codec import Json
from hotdesk_scheduler.engines.kubernetes.entry import Entry
from hotdesk_scheduler.engines.kubernetes.resources import Asked

log = logging.getLogger(__name__)


class Marks:
    """Put again when a hand took them off; one write at a time for each workload. `is_over()` ends all trying."""

    def __init__(self, api: Api, is_over: Callable[[], bool]) -> None:
        self._api = api
        self._is_over = is_over
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def put(self, entry: Entry, asked: Asked) -> None:
        """Nothing to do for one that has them all, or is on its way out."""
        patch = resources.missing_marks(asked, entry.workload)
        if not patch or asked.deleting or entry.uid in self._tasks:
            return
        self._tasks[entry.uid] = asyncio.create_task(self._put(entry, asked, patch))

    def let_go(self, item: Json) -> None:
        """Of one that was deleted and that nobody runs: it cannot be read, or its project is gone. Its pods go with it."""
        if (uid := item["metadata"]["uid"]) not in self._tasks:
            self._tasks[uid] = asyncio.create_task(self._let_go(item["metadata"]))

    async def stop(self) -> None:
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _put(self, entry: Entry, asked: Asked, patch: Json) -> None:
        """If it changed since it was read, it is read again: a status of our own is no news that the stream would bring."""
        path = resources.path("Workload", entry.namespace, entry.workload.name)
        try:
            while patch:
                try:
                    await until_it_works(partial(self._api.merge, path, patch), gives_up=self._is_over)
                    return
                except ApiError as error:
                    if error.status != 409:
                        raise
                there = await until_it_works(partial(self._api.get, path), gives_up=self._is_over)
                patch = _still_missing(entry, asked, there) if there else {}
        except ApiError as error:
            if error.status != 404:
                log.error("workload.not_marked workload=%s error=%s", entry.workload.id, error)
        finally:
            self._tasks.pop(entry.uid, None)

    async def _let_go(self, meta: Json) -> None:
        namespace, name, uid = meta["namespace"], meta["name"], meta["uid"]
        try:
            await until_it_works(lambda: objects.remove_workload(self._api, namespace, name, uid), gives_up=self._is_over)
        except ApiError as error:
            log.error("workload.not_let_go workload=%s/%s error=%s", namespace, name, error)
        finally:
            self._tasks.pop(uid, None)


def _still_missing(entry: Entry, asked: Asked, there: Json) -> Json:
    meta = there["metadata"]
    if meta["uid"] != entry.uid or "deletionTimestamp" in meta:
        return {}
    now = replace(asked, version=int(meta["resourceVersion"]), **resources.marks(there))
    return resources.missing_marks(now, entry.workload)
