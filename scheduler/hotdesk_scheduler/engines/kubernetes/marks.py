"""What every Workload carries that we run, also one that somebody wrote by hand, or edited: finalizer, labels, what its spec came to.

With the finalizer it is stopped with grace before it goes; with `spec.scheduling` it stays what it was when it was queued.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from hotdesk_scheduler.engines.kubernetes import resources
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError, until_it_works
from hotdesk_scheduler.engines.kubernetes.book import Entry
from hotdesk_scheduler.engines.kubernetes.codec import Json
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
        self._tasks[entry.uid] = asyncio.create_task(self._put(entry, patch))

    async def stop(self) -> None:
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _put(self, entry: Entry, patch: Json) -> None:
        """If it changed since it was read, it is looked at again when the stream brings it."""
        path = resources.path("Workload", entry.namespace, entry.workload.name)
        try:
            await until_it_works(lambda: self._api.merge(path, patch), gives_up=self._is_over)
        except ApiError as error:
            if error.status not in (404, 409):
                log.error("workload.not_marked workload=%s error=%s", entry.workload.id, error)
        finally:
            self._tasks.pop(entry.uid, None)
