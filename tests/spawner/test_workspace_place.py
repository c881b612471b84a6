"""A place in the queue: what has its name but is not ours is never ended, what may be ours always is."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hotdesk_api.calls import Call
from hotdesk_api.client import AsyncClient
from hotdesk_api.errors import Conflict, Invalid, Refused
from hotdesk_api.models import WorkloadDetail, WorkloadSpec
from hotdesk_spawner import options, shared
from hotdesk_spawner.place import Place

SPEC = options.spec_of(options.Wish("team-a", gpu_millis=500), user="alice", server="")


class Scheduler:
    """Answers a submission with `answer`, shows `there` under the name, and notes every request."""

    def __init__(self, answer: BaseException | WorkloadDetail, there: WorkloadDetail | None = None) -> None:
        self.answer = answer
        self.there = there
        self.asked: list[str] = []

    async def call(self, call: Call[Any]) -> Any:
        self.asked.append(f"{call.method} {call.path}")
        if call.method == "POST":
            if isinstance(self.answer, BaseException):
                raise self.answer
            return self.answer
        return self.there


def place_at(scheduler: Scheduler) -> Place:
    return Place(cast(AsyncClient, scheduler), project="team-a", name="workspace-alice")


def somebody_elses() -> WorkloadDetail:
    return WorkloadDetail(
        id="1",
        name="workspace-alice",
        project="team-a",
        user="eve",
        kind="workspace",
        type="Interactive",
        status="Running",
        created_at=datetime.now(UTC),
        priority=100,
        preemptible=False,
        gpu_millis_requested=0,
        gpu_millis_allocated=0,
        spec=WorkloadSpec(name="workspace-alice", project="team-a", kind="workspace", owner="eve", server_name=""),
    )


@pytest.mark.parametrize("wrong", [Invalid("No."), Refused("No.")])
async def test_a_refused_place_leaves_nothing_behind_and_ends_nothing(wrong: Exception) -> None:
    scheduler = Scheduler(wrong)
    place = place_at(scheduler)
    with pytest.raises(type(wrong)):
        await place.enter(SPEC, lambda sentence: None)
    assert await place.leave("stopped", None) is None
    assert scheduler.asked == ["POST /v1/workloads"]


async def test_a_name_taken_by_somebody_else_is_said_and_left_alone() -> None:
    scheduler = Scheduler(Conflict("Taken."), somebody_elses())
    place = place_at(scheduler)
    with pytest.raises(Refused, match=r"taken in team-a by another workload of eve.*under another server name"):
        await place.enter(SPEC, lambda sentence: None)
    await place.leave("stopped", None)
    assert not [request for request in scheduler.asked if request.startswith("DELETE")]


async def test_a_submission_that_was_cancelled_half_way_is_taken_back() -> None:
    scheduler = Scheduler(asyncio.CancelledError())
    place = place_at(scheduler)
    with pytest.raises(asyncio.CancelledError):
        await place.enter(SPEC, lambda sentence: None)
    await place.leave("stopped", None)
    assert scheduler.asked[-1] == "DELETE /v1/workloads/team-a/workspace-alice"


async def test_an_end_that_is_told_late_does_not_end_the_workspace_that_was_opened_meanwhile() -> None:
    """The scheduler was away; both have the same name."""
    entered = somebody_elses()
    scheduler = Scheduler(entered, entered.model_copy(update={"id": "2"}))
    place = place_at(scheduler)
    await place.enter(SPEC, lambda sentence: None)
    place.running = True
    assert await place.leave("stopped", None) is None
    assert scheduler.asked == ["POST /v1/workloads", "GET /v1/workloads/team-a/workspace-alice"]


async def test_an_end_nobody_could_be_told_is_forgotten_when_the_workspace_is_opened_again() -> None:
    """That takes over the place with the same id, or one that was asked for and never answered."""
    told: list[str] = []

    async def tell(what: str) -> None:
        await asyncio.sleep(0.02)
        told.append(what)

    shared.tell_end("alice", "", tell("alice"))
    shared.tell_end("bob", "", tell("bob"))
    shared.forget_end("alice", "")
    await asyncio.sleep(0.1)
    assert told == ["bob"]


async def test_a_place_that_is_still_its_own_is_given_back() -> None:
    scheduler = Scheduler(somebody_elses(), somebody_elses())
    place = place_at(scheduler)
    await place.enter(SPEC, lambda sentence: None)
    await place.leave("stopped", None)
    assert scheduler.asked[-1] == "DELETE /v1/workloads/team-a/workspace-alice"
