"""A long queue does not make answers slow."""

from __future__ import annotations

from pathlib import Path

import crowd
from hotdesk_scheduler.core.model import Policy
from hotdesk_scheduler.service.loop import Loop


async def test_a_burst_of_submissions_is_answered_beside_ten_thousand_that_wait(tmp_path: Path) -> None:
    found = await crowd.burst(tmp_path, queued=10_000, submits=200, at_once=8)
    assert len(found.answers) == 200
    assert found.p99 < 1.0, "seconds of this process's CPU"
    assert 0 < found.passes < 200, "several submissions share a pass"


async def test_a_pass_counts_no_places_in_a_queue_that_nobody_looks_at() -> None:
    engine = crowd.engine(100)
    loop = Loop(engine, Policy())
    await loop.run_pass()
    await loop.run_pass()
    assert len(loop.told) == 84
    plan = loop.last_plan
    assert plan is not None
    assert plan.holds.counted is None  # type: ignore[attr-defined]  # a plan of `decide` has it
    assert loop.hold("id-0") is None
    assert plan.holds.counted is None  # type: ignore[attr-defined]  # nor for one that runs
    assert sorted(hold.position for hold in loop.holds.values()) == list(range(1, 85))
