"""Whose turn it is to ask the API server: a flood of starts is not held up by what only tells of it.

Submissions, answers and pods do not wait for each other, nor for anything else. Statuses and events have a trickle of turns meanwhile
(one that comes alone goes at once), and all the room there is when it is calm: nothing more urgent under way, no news of pods for a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from enum import IntEnum


class Rank(IntEnum):
    """Who goes first. ANSWER: a status that somebody waits for, a person or the loop."""

    SUBMISSION = 0
    ANSWER = 1
    POD = 2
    STATUS = 3
    EVENT = 4


MOST = {Rank.SUBMISSION: 32, Rank.ANSWER: 8, Rank.POD: 24, Rank.STATUS: 4, Rank.EVENT: 1}
TRICKLE_S = {Rank.STATUS: 0.25, Rank.EVENT: 1.0}  # from one turn to the next one while it is not calm
CALM_S = 1.0
PATIENCE_S = 60.0  # who waited for so long does not wait for calm


class Turns:
    """First come, first served within a rank."""

    def __init__(self) -> None:
        self._under_way = dict.fromkeys(Rank, 0)
        self._waiting: dict[Rank, deque[tuple[float, asyncio.Future[None]]]] = {rank: deque() for rank in Rank}
        self._last = dict.fromkeys(Rank, float("-inf"))
        self._stirred_at = float("-inf")
        self._is_ending = False
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def take(self, rank: Rank, since: float | None = None) -> AsyncIterator[None]:
        """`since`: when it began to wait, by the event loop's clock, if that was elsewhere."""
        since = now() if since is None else since
        if self._waiting[rank] or self._opens_at(rank, since) > now():
            await self._wait(rank, since)
        else:
            self._begin(rank)
        try:
            yield
        finally:
            self._under_way[rank] -= 1
            self._next()

    def stir(self) -> None:
        """Pods move: the API server is busy with them."""
        self._stirred_at = now()

    def end(self) -> None:
        """Who waits need not wait for calm any more."""
        self._is_ending = True
        self._next()

    def _opens_at(self, rank: Rank, since: float) -> float:
        """When one more that waits since then may begin, if nothing changes; infinity if somebody has to end first."""
        if self._under_way[rank] >= MOST[rank]:
            return float("inf")
        if rank not in TRICKLE_S or self._is_ending:
            return float("-inf")
        at = min(self._last[rank] + TRICKLE_S[rank], since + PATIENCE_S)
        is_alone = not any(self._under_way[one] or self._waiting[one] for one in Rank if one < rank)
        return min(at, self._stirred_at + CALM_S) if is_alone else at

    def _begin(self, rank: Rank) -> None:
        self._under_way[rank] += 1
        self._last[rank] = now()
        if rank not in TRICKLE_S:
            self.stir()

    async def _wait(self, rank: Rank, since: float) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[rank].append((since, turn))
        self._look_again()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came in the same moment: the next one has it
                self._under_way[rank] -= 1
            self._next()
            raise

    def _next(self) -> None:
        for rank in Rank:
            while self._waiting[rank] and self._opens_at(rank, self._waiting[rank][0][0]) <= now():
                _, turn = self._waiting[rank].popleft()
                if not turn.done():  # or nobody waits for it any more
                    self._begin(rank)
                    turn.set_result(None)
        self._look_again()

    def _look_again(self) -> None:
        """When the next one may begin by the clock alone. Too early does not matter."""
        times = [self._opens_at(rank, self._waiting[rank][0][0]) for rank in TRICKLE_S if self._waiting[rank]]
        at = max(min(times, default=float("inf")), now() + 0.001)
        if at == float("inf") or (self._timer is not None and now() < self._timer.when() <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(at, self._next)


def now() -> float:
    """By the event loop's clock."""
    return asyncio.get_running_loop().time()
