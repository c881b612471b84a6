"""Statuses and events on their way to an API server that answers as it likes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hotdesk_api.models import WorkloadSpec
from hotdesk_scheduler.core.model import GpuRequest, Kind, Placement, Pod, PodRequest, PodState, Workload
from hotdesk_scheduler.engines.kubernetes import events, saving, turns
from hotdesk_scheduler.engines.kubernetes.api import ApiError
from hotdesk_scheduler.engines.kubernetes.entry import Entry
from hotdesk_scheduler.engines.kubernetes.events import Events
from hotdesk_scheduler.engines.kubernetes.saving import Saving
from hotdesk_scheduler.engines.kubernetes.turns import MOST, Rank, Turns

Json = dict[str, Any]


class Server:
    """Takes what is written, but for `failures` of a name, as often as said there, with `answers`; `there`: uids of what can be read."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.written: list[tuple[str, str]] = []
        self.posted: list[str] = []
        self.failures: dict[str, int] = {}
        self.answers: dict[str, int] = {}
        self.there: dict[str, str] = {}
        self.seen: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.tries = 0

    async def put(self, path: str, body: Json) -> Json:
        name = body["metadata"]["name"]
        self._may_fail(name)
        self.written.append((name, body["status"]["status"]))
        self.meanwhile()
        return {"metadata": {"resourceVersion": str(int(body["metadata"]["resourceVersion"]) + 1)}}

    async def get(self, path: str) -> Json:
        name = path.rpartition("/")[2]
        if name not in self.there:
            raise ApiError(404, "NotFound", "it is gone")
        return {"metadata": {"name": name, "uid": self.there[name], "resourceVersion": "7"}}

    async def create(self, path: str, body: Json) -> Json:
        self._may_fail(body["involvedObject"]["name"])
        self.posted.append(body["involvedObject"]["name"])
        return body

    def _may_fail(self, name: str) -> None:
        self.tries += 1
        if self.failures.get(name, 0):
            self.failures[name] -= 1
            raise ApiError(self.answers.get(name, 500), "", "no")

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():  # noqa: ASYNC110  nothing tells of it
                await asyncio.sleep(0.005)


@asynccontextmanager
async def saved(server: Server) -> AsyncIterator[Saving]:
    def see(item: Json) -> None:
        server.seen.append(item["metadata"]["name"])

    one = Saving(server, note=lambda key, version: None, see=see, is_over=lambda: False)  # type: ignore[arg-type]  # only what it is asked
    try:
        yield one
    finally:
        await one.close(0)


def entry(name: str, state: PodState) -> Entry:
    pod = Pod(
        0, PodRequest(GpuRequest(whole=1)), state, Placement("n1", whole=1) if state is not PodState.PENDING else None, started_at=1.0
    )
    workload = Workload(name, name, "team-a", Kind.TRAIN, pods=(pod,))
    return Entry("s", f"uid-{name}", 1, workload, WorkloadSpec(name=name, project="team-a", image="x"))


def becomes(one: Entry, state: PodState) -> None:
    one.workload = replace(one.workload, pods=(replace(one.workload.pods[0], state=state),))


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "CALM_S", 0.0)
    for module in (saving, events):
        monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
        monkeypatch.setattr(module, "MOST_PAUSE_S", 0.01)


async def test_a_start_is_told_with_its_running_in_one_write() -> None:
    server, one = Server(), entry("job", PodState.STARTING)
    async with saved(server) as saving:
        saving.soon(one)
        await asyncio.sleep(0.05)
        becomes(one, PodState.RUNNING)
        saving.soon(one)
        await server.until(lambda: bool(server.written))
        assert server.written == [("job", "Running")]


async def test_a_start_that_takes_long_is_told_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "STARTING_S", 0.05)
    server, one = Server(), entry("job", PodState.STARTING)
    async with saved(server) as saver:
        saver.soon(one)
        await server.until(lambda: server.written == [("job", "ContainerCreating")])
        becomes(one, PodState.RUNNING)
        saver.soon(one)
        await server.until(lambda: server.written[1:] == [("job", "Running")])


async def test_a_status_that_cannot_be_written_now_holds_up_no_other_and_is_written_later() -> None:
    server = Server()
    stubborn = [entry(f"stubborn-{number}", PodState.RUNNING) for number in range(2 * MOST[Rank.STATUS])]
    server.failures = {one.workload.name: 5 for one in stubborn}
    async with saved(server) as saving:
        for one in (*stubborn, entry("easy", PodState.RUNNING)):
            saving.soon(one)
        await server.until(lambda: len(server.written) == len(stubborn) + 1)
        assert server.written[0] == ("easy", "Running")
        assert not any(one.is_saving for one in stubborn)


async def test_what_is_to_be_written_just_when_the_last_writer_ends_is_written() -> None:
    server, first = Server(), [entry(f"first-{number}", PodState.RUNNING) for number in range(MOST[Rank.STATUS])]
    second = entry("second", PodState.RUNNING)
    async with saved(server) as saver:

        def come_with_the_last() -> None:
            if len(server.written) == len(first):
                asyncio.get_running_loop().call_soon(saver.soon, second)

        server.meanwhile = come_with_the_last
        for one in first:
            saver.soon(one)
        await server.until(lambda: ("second", "Running") in server.written)


async def test_a_status_that_is_refused_is_tried_again_as_long_as_its_resource_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "REFUSED_PAUSE_S", 0.01)
    server, refused, without_status, gone = Server(), *(entry(name, PodState.RUNNING) for name in ("refused", "without-status", "gone"))
    server.failures = {"refused": 3, "without-status": 3, "gone": 1000}
    server.answers = {"refused": 403, "without-status": 404, "gone": 404}
    server.there = {"without-status": without_status.uid}
    async with saved(server) as saver:
        for one in (refused, without_status, gone):
            saver.soon(one)
        await server.until(lambda: {name for name, _ in server.written} == {"refused", "without-status"} and not gone.is_saving)
    assert server.failures["gone"] == 999


async def test_what_others_wrote_in_between_is_looked_at_and_overwritten() -> None:
    server, one = Server(), entry("job", PodState.RUNNING)
    server.failures, server.answers, server.there = {"job": 1}, {"job": 409}, {"job": one.uid}
    async with saved(server) as saver:
        saver.soon(one)
        await server.until(lambda: bool(server.written))
    assert server.seen == ["job"]


async def test_what_others_wrote_after_it_before_it_was_answered_is_overwritten() -> None:
    server, one = Server(), entry("job", PodState.RUNNING)

    def by_a_hand() -> None:
        one.version = max(one.version, 5)

    server.meanwhile = by_a_hand
    async with saved(server) as saver:
        saver.soon(one)
        await server.until(lambda: len(server.written) == 2 and not one.is_saving)
    assert one.version == 6


async def test_what_is_not_told_yet_is_written_at_the_end() -> None:
    server, one, other = Server(), entry("starts", PodState.STARTING), entry("waits", PodState.PENDING)
    async with saved(server) as saving, server.turns.take(Rank.POD):
        for entry_ in (one, other, *(entry(f"more-{number}", PodState.RUNNING) for number in range(10))):
            saving.soon(entry_)
        await saving.close(30)
        assert len(server.written) == 12


async def test_an_event_that_the_server_never_takes_holds_up_the_next_ones_for_a_moment_only() -> None:
    server = Server()
    server.failures = {"stubborn": 1000}
    told = Events(server)  # type: ignore[arg-type]  # only what it is asked
    for name in ("stubborn", "easy"):
        told.add(entry(name, PodState.RUNNING), "Normal", "Started", "It runs.")
    await server.until(lambda: bool(server.posted))
    await told.close()
    assert server.posted == ["easy"]
    assert server.tries == events.TRIES + 1


async def test_events_that_wait_are_posted_at_the_end_as_far_as_there_is_time() -> None:
    server = Server()
    told = Events(server)  # type: ignore[arg-type]  # only what it is asked
    async with server.turns.take(Rank.POD):
        for number in range(10):
            told.add(entry(f"job-{number}", PodState.RUNNING), "Normal", "Started", "It runs.")
        await told.close(30)
    assert server.posted == [f"job-{number}" for number in range(10)]


async def test_an_event_that_cannot_be_posted_does_not_hold_up_the_end() -> None:
    server = Server()
    server.failures = {"stubborn": 1000}
    told = Events(server)  # type: ignore[arg-type]  # only what it is asked
    told.add(entry("stubborn", PodState.RUNNING), "Normal", "Started", "It runs.")
    async with asyncio.timeout(30):
        await told.close(0.02)
    assert server.posted == []
