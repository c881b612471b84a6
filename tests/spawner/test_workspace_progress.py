"""What the progress page is told, and that every viewer gets the whole story."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import cast

import pytest
from hotdesk_api.calls import Call
from hotdesk_api.client import AsyncClient
from hotdesk_api.errors import Unavailable
from hotdesk_api.models import Explanation, Grant, ReasonOut, WorkloadOut
from hotdesk_spawner import progress
from hotdesk_spawner.telling import Teller


def workload(*, position: int | None = 2, sentence: str = "team-a has used its 4 GPUs.") -> WorkloadOut:
    return WorkloadOut(
        id="1",
        name="workspace-alice",
        project="team-a",
        user="alice",
        kind="workspace",
        type="Interactive",
        status="Pending",
        created_at=datetime.now(UTC),
        priority=100,
        preemptible=False,
        gpu_millis_requested=500,
        gpu_millis_allocated=0,
        reason=ReasonOut(code="non_preemptible_over_quota", sentence=sentence),
        queue_position=position,
    )


async def told(board: progress.Board) -> list[str]:
    return [event["message"] async for event in board.follow()]


def test_waiting_tells_place_and_reason() -> None:
    event = progress.waiting(workload())
    assert event["message"] == "Number 2 in the queue. team-a has used its 4 GPUs."
    assert event["hotdesk"]["position"] == 2
    assert progress.waiting(workload(position=None, sentence=""))["message"] == "Waiting."


def of_kubespawner(reason: str, message: str, percent: int) -> progress.Event:
    raw = {"reason": reason, "message": message}
    return {"progress": percent, "raw_event": raw, "message": f"2026-11-22T00:17:00Z [Warning] {message}"}


def test_what_the_cluster_says_of_a_placed_pod_is_in_plain_words_and_never_goes_back_on_the_bar() -> None:
    mount = progress.from_cluster(of_kubespawner("FailedMount", "PVC is not bound", 30))
    assert mount["message"] == "Its home or another volume is not there yet, and the cluster tries again: PVC is not bound"
    assert mount["progress"] == progress.granted(Grant(node="node-1", environment={}, gpu_millis=0, simulated=False, tier=""))["progress"]
    started = progress.from_cluster(of_kubespawner("Started", "Container started", 63))
    assert (started["message"], started["progress"]) == ("Container started", 63)
    assert progress.from_cluster({"message": "slow"}) == {"message": "slow"}


ANSWER = Explanation(
    sentence="team-a has used its 4 GPUs.",
    starts_now=False,
    asked_millis=500,
    quota_millis=4000,
    fair_share_millis=4000,
    used_millis=4000,
    held_by={"team-a": 4000, "team-b": 1000},
    queue_position=2,
    queue_length=5,
    what_would_help="It starts when job-1 of team-a ends.",
)


def test_waiting_has_the_numbers_that_why_shows() -> None:
    assert progress.waiting(workload(), ANSWER)["hotdesk"]["numbers"] == [
        ["Asked", "0.5 GPU"],
        ["Quota", "4 GPUs"],
        ["Fair share", "4 GPUs"],
        ["Used by the project", "4 GPUs"],
        ["GPUs held by", "team-a (4 GPUs), team-b (1 GPU)"],
        ["Place in the queue", "2 of 5"],
        ["What would help", "It starts when job-1 of team-a ends."],
    ]
    assert progress.waiting(workload())["hotdesk"]["numbers"] == []


async def test_new_numbers_take_the_place_of_the_old_ones() -> None:
    board = progress.Board()
    board.put({"message": "asked"})
    early = asyncio.ensure_future(told(board))
    for held in (4000, 3000, 2000):
        board.put(progress.waiting(workload(), ANSWER.model_copy(update={"held_by": {"team-a": held}})))
        await asyncio.sleep(0)
    board.close()
    waiting = progress.waiting(workload())["message"]
    assert await early == ["asked", waiting, waiting, waiting]
    assert await told(board) == ["asked", waiting]
    assert board.events[-1]["hotdesk"]["numbers"][4] == ["GPUs held by", "team-a (2 GPUs)"]


class Scheduler:
    """Answers why, each time with more that others hold."""

    def __init__(self) -> None:
        self.asked = 0
        self.enough = asyncio.Event()

    async def call(self, call: Call[Explanation]) -> Explanation:
        self.asked += 1
        if self.asked == 2:
            raise Unavailable("The scheduler is away.")
        if self.asked == 4:
            self.enough.set()
            await asyncio.Event().wait()
        return ANSWER.model_copy(update={"held_by": {"team-b": 1000 * self.asked}})


async def test_while_it_waits_its_numbers_are_kept_up_to_date_without_news_of_it() -> None:
    board, scheduler = progress.Board(), Scheduler()
    teller = Teller(cast(AsyncClient, scheduler), board, at_most_every_s=0, at_least_every_s=0.001)
    keeping_up = asyncio.ensure_future(teller.keep_up())
    teller.told(workload())
    assert board.events[0]["hotdesk"]["numbers"] == [], "the sentence does not wait for the numbers"
    await scheduler.enough.wait()
    keeping_up.cancel()
    assert len(board.events) == 1
    assert ["GPUs held by", "team-b (3 GPUs)"] in board.events[0]["hotdesk"]["numbers"]


@pytest.mark.parametrize("steps", range(4))
async def test_keeping_up_ends_also_when_news_comes_at_the_very_same_moment(steps: int) -> None:
    teller = Teller(cast(AsyncClient, Scheduler()), progress.Board(), at_most_every_s=3600, at_least_every_s=3600)
    keeping_up = asyncio.ensure_future(teller.keep_up())
    await asyncio.sleep(0.01)  # it waits by now
    teller.told(workload())
    for _ in range(steps):
        await asyncio.sleep(0)
    keeping_up.cancel()
    await asyncio.wait([keeping_up], timeout=1)
    assert keeping_up.cancelled()


def test_simulated_gpus_are_marked_as_such() -> None:
    grant = Grant(node="node-1", environment={}, gpu_millis=500, simulated=True, tier="simulated")
    assert "SIMULATED" in progress.granted(grant)["message"]


async def test_a_viewer_who_comes_late_or_comes_back_gets_everything() -> None:
    board = progress.Board()
    early = asyncio.ensure_future(told(board))
    board.put({"message": "one"})
    await asyncio.sleep(0)
    board.put({"message": "two"})
    late = asyncio.ensure_future(told(board))
    await asyncio.sleep(0)
    board.put({"message": "three"})
    board.close()
    assert await early == await late == await told(board) == ["one", "two", "three"]


async def test_the_same_thing_is_not_said_twice_in_a_row() -> None:
    board = progress.Board()
    for message in ("one", "one", "two", "one"):
        board.put({"message": message})
    board.close()
    assert await told(board) == ["one", "two", "one"]


async def test_a_new_spawn_begins_an_empty_board() -> None:
    board = progress.Board()
    board.put({"message": "old"})
    board.close()
    board.clear()
    board.put({"message": "new"})
    board.close()
    assert await told(board) == ["new"]
