"""Who asks the API server first."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from hotdesk_scheduler.core.model import Resources
from hotdesk_scheduler.engines.kubernetes.api import ApiError
from hotdesk_scheduler.engines.kubernetes.book import Book
from hotdesk_scheduler.engines.kubernetes.observe import Life, Seen
from hotdesk_scheduler.engines.kubernetes.pods import Pods
from hotdesk_scheduler.engines.kubernetes.turns import LEAST, MOST, Rank, Turns


class Asking:
    """Requests that take until `answer()`; `order`: whose turn came, as it came."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.order: list[Rank] = []
        self.under_way = dict.fromkeys(Rank, 0)
        self._answers: list[asyncio.Event] = []

    def ask(self, rank: Rank, count: int = 1) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._one(rank)) for _ in range(count)]

    async def _one(self, rank: Rank) -> None:
        async with self.turns.take(rank):
            self.order.append(rank)
            self.under_way[rank] += 1
            answered = asyncio.Event()
            self._answers.append(answered)
            try:
                await answered.wait()
            finally:
                self.under_way[rank] -= 1

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def answer(self) -> None:
        """The oldest request."""
        self._answers.pop(0).set()
        await self.settle()


async def test_pods_that_wait_go_before_statuses_that_waited_longer() -> None:
    asking = Asking()
    asking.ask(Rank.POD, MOST[Rank.POD])
    await asking.settle()
    statuses = asking.ask(Rank.STATUS, 5)
    pods = asking.ask(Rank.POD, 3)
    await asking.settle()
    assert asking.under_way == {Rank.SUBMISSION: 0, Rank.POD: MOST[Rank.POD], Rank.STATUS: LEAST[Rank.STATUS]}
    for _ in range(3):
        await asking.answer()
    assert asking.order[-3:] == [Rank.POD] * 3
    for task in (*statuses, *pods):
        task.cancel()


async def test_statuses_are_never_without_a_turn_and_have_all_of_them_when_no_pod_waits() -> None:
    asking = Asking()
    pods = asking.ask(Rank.POD, 2)
    asking.ask(Rank.STATUS, 40)
    await asking.settle()
    assert asking.under_way == {Rank.SUBMISSION: 0, Rank.POD: 2, Rank.STATUS: LEAST[Rank.STATUS]}
    for task in pods:
        task.cancel()
    await asking.settle()
    assert asking.under_way == {Rank.SUBMISSION: 0, Rank.POD: 0, Rank.STATUS: MOST[Rank.STATUS]}


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


async def test_quiet_is_when_nothing_is_under_way_or_after_a_while() -> None:
    asking = Asking()
    await asyncio.wait_for(asking.turns.quiet(60), 30)
    (pod,) = asking.ask(Rank.POD)
    await asking.settle()
    await asking.turns.quiet(0.01)
    assert not pod.done()
    waiting = asyncio.create_task(asking.turns.quiet(60))
    await asking.settle()
    assert not waiting.done()
    await asking.answer()
    await asyncio.wait_for(waiting, 30)


async def test_pods_that_the_api_server_cannot_delete_now_hold_up_no_others() -> None:
    """As where a webhook of one namespace is down: each try has a turn, the pause after it has none."""
    api = Failing()
    over = asyncio.Event()
    pods = Pods(api, Book(version=1), None, shares=None, reservations=SimpleNamespace(), is_over=over.is_set)  # type: ignore[arg-type]  # only what is asked
    for _ in range(MOST[Rank.POD]):
        pods.discard(Seen("p", "s", "u", "n1", Life.RUNNING, leaving=False, uses=Resources()))
    await api.failed.wait()
    async with asyncio.timeout(60), api.turns.take(Rank.POD):
        over.set()
    await pods.close()


class Failing:
    def __init__(self) -> None:
        self.turns = Turns()
        self.failed = asyncio.Event()

    async def delete(self, path: str, body: object) -> bool:
        self.failed.set()
        raise ApiError(500, "InternalError", "failed calling webhook")
