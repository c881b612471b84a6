"""What the progress page is told, and that every viewer gets the whole story."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from hotdesk_api.models import Grant, ReasonOut, WorkloadOut
from hotdesk_spawner import progress


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
    assert event["message"] == "Number 2 in the queue of team-a. team-a has used its 4 GPUs."
    assert event["hotdesk"]["position"] == 2
    assert progress.waiting(workload(position=None, sentence=""))["message"] == "Waiting."


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
