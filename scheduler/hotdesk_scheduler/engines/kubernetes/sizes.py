"""How many pods of a group start together, as its PodGroup says. Asked for while its pods wait, again and again: it may be changed.

Most clusters have no such kind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError
from hotdesk_scheduler.engines.kubernetes.groups import size_in

log = logging.getLogger(__name__)

FIRST_PAUSE_S, MOST_PAUSE_S = 0.5, 20.0
AGAIN_S = 60.0
NONE = 0


class Sizes:
    """`heard()` after every answer that is news; `is_wanted(path)` ends the asking for one."""

    def __init__(self, api: Api, *, heard: Callable[[], None], is_wanted: Callable[[str], bool]) -> None:
        self._api = api
        self._heard = heard
        self._is_wanted = is_wanted
        self._known: dict[str, int] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def of(self, path: str) -> int | None:
        """NONE if nothing says it so far; None if that is just being asked."""
        if path not in self._asking:
            self._asking[path] = asyncio.create_task(self._ask(path), name=f"size {path}")
        return self._known.get(path)

    def known(self, path: str) -> int:
        """Without asking; NONE if nothing says it so far."""
        return self._known.get(path, NONE)

    def forget(self, path: str) -> None:
        """The group is gone; the next one of that name may be another."""
        self._known.pop(path, None)
        if (task := self._asking.pop(path, None)) is not None:
            task.cancel()

    async def stop(self) -> None:
        tasks = tuple(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, path: str) -> None:
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                found = await self._answer(path)
                if found != self._known.get(path):
                    self._known[path] = found
                    self._heard()
                if not self._is_wanted(path):
                    return
                await asyncio.sleep(AGAIN_S if found else pause_s)
                pause_s = min(MOST_PAUSE_S, pause_s * 2)
        finally:
            if self._asking.get(path) is asyncio.current_task():
                del self._asking[path]
                if not self._known.get(path):
                    self._known.pop(path, None)

    async def _answer(self, path: str) -> int:
        try:
            return size_in(await self._api.get(path)) or NONE
        except ApiError as error:
            if error.status not in (0, 404):
                log.warning("group.not_readable path=%s error=%s", path, error)
            return NONE
