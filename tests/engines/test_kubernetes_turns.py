"""Who asks the API server first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hotdesk_scheduler.core.model import Resources
from hotdesk_scheduler.engines.kubernetes import turns
from hotdesk_scheduler.engines.kubernetes.api import ApiError
from hotdesk_scheduler.engines.kubernetes.book import Book
from hotdesk_scheduler.engines.kubernetes.observe import Life, Seen
from hotdesk_scheduler.engines.kubernetes.pods import Pods
from hotdesk_scheduler.engines.kubernetes.turns import MOST, TRICKLE_S, Rank, Turns

NOBODY = dict.fromkeys(Rank, 0)


class Asking:
    """Requests that take until `answer()`; `order`: whose turn came, as it came."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.order: list[Rank] = []
        self.under_way = dict.fromkeys(Rank, 0)
        self._began: list[float] = []
        self._answers: list[asyncio.Event] = []

    def ask(self, rank: Rank, count: int = 1, since: float | None = None) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._one(rank, since)) for _ in range(count)]

    def turns_began(self, rank: Rank) -> list[float]:
        return [at for one, at in zip(self.order, self._began, strict=True) if one is rank]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():  # noqa: ASYNC110  nothing tells of it
                await asyncio.sleep(0.005)

    async def _one(self, rank: Rank, since: float | None) -> None:
        async with self.turns.take(rank, since):
            self.order.append(rank)
            self._began.append(turns.now())
            self.under_way[rank] += 1
            answered = asyncio.Event()
            self._answers.append(answered)
            try:
                await answered.wait()
            finally:
                self.under_way[rank] -= 1
                if not answered.is_set():
                    self._answers.remove(answered)

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def answer(self) -> None:
        """The oldest request."""
        self._answers.pop(0).set()
        await self.settle()


async def test_a_status_that_comes_alone_goes_at_once_and_pods_never_wait_for_it() -> None:
    asking = Asking()
    statuses = asking.ask(Rank.STATUS)
    pods = asking.ask(Rank.POD, MOST[Rank.POD])
    await asking.settle()
    assert asking.under_way == {**NOBODY, Rank.POD: MOST[Rank.POD], Rank.STATUS: 1}
    await end(*statuses, *pods)


async def test_while_pods_are_made_statuses_trickle_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRICKLE_S, Rank.STATUS, 0.02)
    asking = Asking()
    pods = asking.ask(Rank.POD, 2)
    statuses = asking.ask(Rank.STATUS, 5)
    await asking.settle()
    assert asking.under_way == {**NOBODY, Rank.POD: 2, Rank.STATUS: 1}
    await asking.until(lambda: asking.under_way[Rank.STATUS] == 2)
    assert asking.turns_began(Rank.STATUS)[1] - asking.turns_began(Rank.STATUS)[0] >= 0.019
    await end(*statuses, *pods)


async def test_statuses_have_all_their_room_when_no_pod_has_moved_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "CALM_S", 0.05)
    monkeypatch.setitem(TRICKLE_S, Rank.STATUS, 1000.0)
    asking = Asking()
    pods = asking.ask(Rank.POD, 2)
    statuses = asking.ask(Rank.STATUS, 40)
    await asking.settle()
    await end(*pods)
    stirred_at = turns.now()
    asking.turns.stir()
    await asking.settle()
    assert asking.under_way == {**NOBODY, Rank.STATUS: 1}
    await asking.until(lambda: asking.under_way[Rank.STATUS] == MOST[Rank.STATUS])
    assert asking.turns_began(Rank.STATUS)[1] - stirred_at >= 0.049
    await end(*statuses)


async def test_who_waited_long_elsewhere_does_not_wait_for_calm() -> None:
    asking = Asking()
    pods = asking.ask(Rank.POD)
    statuses = [*asking.ask(Rank.STATUS), *asking.ask(Rank.STATUS, since=turns.now() - turns.PATIENCE_S)]
    await asking.settle()
    assert asking.under_way == {**NOBODY, Rank.POD: 1, Rank.STATUS: 2}
    await end(*statuses, *pods)


async def test_events_go_one_by_one_after_statuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRICKLE_S, Rank.EVENT, 1000.0)
    asking = Asking()
    events = asking.ask(Rank.EVENT, 3)
    statuses = asking.ask(Rank.STATUS)
    await asking.settle()
    await asking.answer()
    assert asking.order == [Rank.EVENT, Rank.STATUS]
    await asking.answer()
    await asking.until(lambda: len(asking.order) == 3)
    assert asking.under_way == {**NOBODY, Rank.EVENT: 1}
    await end(*statuses, *events)


async def test_at_the_end_nobody_waits_for_calm() -> None:
    asking = Asking()
    pods = asking.ask(Rank.POD)
    statuses = asking.ask(Rank.STATUS, 3)
    await asking.settle()
    asking.turns.end()
    await asking.settle()
    assert asking.under_way == {**NOBODY, Rank.POD: 1, Rank.STATUS: 3}
    await end(*statuses, *pods)


async def test_turns_of_who_gave_up_go_to_the_next() -> None:
    asking = Asking()
    asking.ask(Rank.POD, MOST[Rank.POD])
    await asking.settle()
    gave_up, patient = asking.ask(Rank.POD, 2)
    await asking.settle()
    gave_up.cancel()
    await asking.answer()
    assert asking.under_way[Rank.POD] == MOST[Rank.POD]
    assert not patient.done()
    assert len(asking.order) == MOST[Rank.POD] + 1


async def test_a_turn_that_comes_in_the_moment_of_giving_up_is_not_lost() -> None:
    asking = Asking()
    first = asking.ask(Rank.POD, MOST[Rank.POD])
    await asking.settle()
    (late,) = asking.ask(Rank.POD)
    await asking.settle()
    asking._answers.pop(0).set()
    await asyncio.sleep(0)  # the turn is given, its task has not gone on yet
    late.cancel()
    await asking.settle()
    for task in first:
        task.cancel()
    await asking.settle()
    assert asking.turns._under_way == dict.fromkeys(Rank, 0)


async def test_pods_that_the_api_server_cannot_delete_now_hold_up_no_others() -> None:
    """As where a webhook of one namespace is down: each try has a turn, the pause after it has none."""
    api = Failing()
    over = asyncio.Event()
    pods = Pods(api, Book(version=1), None, shares=None, reservations=None, take_in_again=None, is_over=over.is_set)  # type: ignore[arg-type]  # only what is asked
    for _ in range(MOST[Rank.POD]):
        pods.discard(Seen("p", "s", "u", "n1", Life.RUNNING, leaving=False, uses=Resources()))
    await api.failed.wait()
    async with asyncio.timeout(60), api.turns.take(Rank.POD):
        over.set()
    await pods.close()


async def end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Failing:
    def __init__(self) -> None:
        self.turns = Turns()
        self.failed = asyncio.Event()

    async def delete(self, path: str, body: object) -> bool:
        self.failed.set()
        raise ApiError(500, "InternalError", "failed calling webhook")
