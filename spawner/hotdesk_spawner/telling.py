"""Tells a spawn's board about a workspace that waits: what the scheduler's stream says at once, its numbers as they change."""

from __future__ import annotations

import asyncio
import contextlib

from hotdesk_api import calls
from hotdesk_api.client import AsyncClient
from hotdesk_api.errors import HotdeskError
from hotdesk_api.models import Explanation, WorkloadOut

from hotdesk_spawner import progress

AT_MOST_EVERY_S = 3.0  # an explanation is a scheduling cycle
AT_LEAST_EVERY_S = 15.0


class Teller:
    """`told` with every change; `keep_up` runs beside it until it is cancelled."""

    def __init__(
        self,
        client: AsyncClient,
        board: progress.Board,
        *,
        at_most_every_s: float = AT_MOST_EVERY_S,
        at_least_every_s: float = AT_LEAST_EVERY_S,
    ) -> None:
        self._client, self._board = client, board
        self._at_most_every_s, self._at_least_every_s = at_most_every_s, at_least_every_s
        self._workload: WorkloadOut | None = None
        self._answer: Explanation | None = None
        self._news = asyncio.Event()

    def told(self, workload: WorkloadOut) -> None:
        self._workload = workload
        self._board.put(progress.waiting(workload, self._answer))
        self._news.set()

    async def keep_up(self) -> None:
        """Ask why again after news, and now and then: what others hold changes without news of this one."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._at_least_every_s):  # wait_for would swallow a cancellation in the moment of news
                    await self._news.wait()
            self._news.clear()
            if self._workload:
                await self._ask(self._workload)
            await asyncio.sleep(self._at_most_every_s)

    async def _ask(self, workload: WorkloadOut) -> None:
        try:
            self._answer = await self._client.call(calls.why(workload.project, workload.name))
        except HotdeskError:
            return  # the sentence is there; the stream says when the scheduler is away
        if self._answer.starts_now is False:
            self._board.put(progress.waiting(self._workload or workload, self._answer))
