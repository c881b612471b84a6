"""Stops that the hub is asked for, each in a task of its own: it answers when a server has ended or ten seconds are over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from hotdesk_api.errors import Unavailable

from hotdesk_scheduler.service.hub import Hub

log = logging.getLogger(__name__)

AT_ONCE = 20


class Stops:
    """`on_end` is called when one was answered, or could not be asked for."""

    def __init__(self, hub: Hub | None, *, on_end: Callable[[], None]) -> None:
        self._hub = hub
        self._on_end = on_end
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, str] = {}

    @property
    def problem(self) -> str | None:
        """Why a workspace could not be stopped, as a sentence."""
        return next(iter(self._failures.values()), None)

    def ask(self, workload_id: str, user: str, server_name: str) -> bool:
        """Whether the hub is asked now. Not if it is being asked already, or about AT_ONCE others: then another look decides."""
        if self._hub is None or workload_id in self._under_way or len(self._under_way) >= AT_ONCE:
            return False
        self._under_way[workload_id] = asyncio.create_task(
            self._stop(self._hub, workload_id, user, server_name), name=f"stop {workload_id}"
        )
        return True

    async def _stop(self, hub: Hub, workload_id: str, user: str, server_name: str) -> None:
        failure = None
        try:
            await hub.stop(user, server_name)
        except Unavailable as error:
            failure = error.sentence
        except Exception as error:
            log.exception("workspace.stop_failed workload=%s", workload_id)
            failure = f"The hub could not be asked to stop {user}'s workspace: {error}"
        finally:
            if self._under_way.pop(workload_id, None) is not None:
                self._note(workload_id, failure)
                self._on_end()

    def _note(self, workload_id: str, failure: str | None) -> None:
        if failure is None:
            self._failures.pop(workload_id, None)
        elif self._failures.get(workload_id) != failure:
            log.warning("workspace.not_stopped workload=%s error=%s", workload_id, failure)
            self._failures[workload_id] = failure

    def drop(self, workload_id: str) -> None:
        """It has gone, however that came."""
        self._failures.pop(workload_id, None)

    async def close(self) -> None:
        tasks = list(self._under_way.values())
        self._under_way.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
