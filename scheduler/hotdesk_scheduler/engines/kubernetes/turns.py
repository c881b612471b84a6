"""Whose turn it is to ask the API server: a flood of starts is not held up by what only tells of it.

Submissions and pods do not wait for each other, nor for anything else; statuses have one turn at a time meanwhile, and all the room
there is once nothing else is under way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from enum import IntEnum


class Rank(IntEnum):
    """Who goes first."""

    SUBMISSION = 0
    POD = 1
    STATUS = 2


MOST = {Rank.SUBMISSION: 32, Rank.POD: 24, Rank.STATUS: 4}
LEAST = {**MOST, Rank.STATUS: 1}


class Turns:
    """First come, first served within a rank."""

    def __init__(self) -> None:
        self._under_way = dict.fromkeys(Rank, 0)
        self._waiting: dict[Rank, deque[asyncio.Future[None]]] = {rank: deque() for rank in Rank}
        self._quiet = asyncio.Event()
        self._quiet.set()

    @contextlib.asynccontextmanager
    async def take(self, rank: Rank) -> AsyncIterator[None]:
        if self._waiting[rank] or not self._may(rank):
            await self._wait(rank)
        else:
            self._begin(rank)
        try:
            yield
        finally:
            self._under_way[rank] -= 1
            self._next()

    async def quiet(self, within_s: float) -> None:
        """Until nothing is under way, or that long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._quiet.wait()

    def _may(self, rank: Rank) -> bool:
        is_alone = not any(self._under_way[one] or self._waiting[one] for one in Rank if one < rank)
        return self._under_way[rank] < (MOST if is_alone else LEAST)[rank]

    def _begin(self, rank: Rank) -> None:
        self._under_way[rank] += 1
        self._quiet.clear()

    async def _wait(self, rank: Rank) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[rank].append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came in the same moment: the next one has it
                self._under_way[rank] -= 1
            self._next()
            raise

    def _next(self) -> None:
        for rank in Rank:
            while self._waiting[rank] and self._may(rank):
                turn = self._waiting[rank].popleft()
                if not turn.done():  # or nobody waits for it any more
                    self._begin(rank)
                    turn.set_result(None)
        if not any(self._under_way.values()):
            self._quiet.set()
