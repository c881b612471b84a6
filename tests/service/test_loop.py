"""The loop: woken by change, outlives what fails, throws stale plans away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import desks
import pytest
from hotdesk_scheduler.core.decide import decide
from hotdesk_scheduler.core.mix import ENOUGH
from hotdesk_scheduler.core.model import Phase, Placement, PodState, Policy, Snapshot, Workload
from hotdesk_scheduler.core.plan import Plan, Start
from hotdesk_scheduler.engines.fake import FakeEngine
from hotdesk_scheduler.records import Event
from hotdesk_scheduler.service import loop as module
from hotdesk_scheduler.service.loop import Loop
from hotdesk_scheduler.service.specs import workload_of


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def submitted(engine: FakeEngine, name: str, **wishes: Any) -> Workload:
    spec = desks.spec(name, **wishes)
    workload = workload_of(spec, workload_id=f"id-{name}", name=name, user="alice", now=1000.0)
    await engine.submit(workload, spec)
    return workload


def state_of(engine: FakeEngine, name: str) -> PodState:
    return next(workload.pods[0].state for workload in engine.snapshot().workloads if workload.name == name)


@asynccontextmanager
async def looping(engine: FakeEngine, **options: Any) -> AsyncIterator[Loop]:
    loop = Loop(engine, Policy(grace_s=1.0), tick_s=options.pop("tick_s", 3600.0), **options)
    await loop.start()
    try:
        yield loop
    finally:
        await loop.stop()


async def test_a_submission_wakes_it_long_before_the_timer() -> None:
    engine = desks.fake_engine()
    async with looping(engine) as loop:
        await desks.until(lambda: loop.passes)
        await submitted(engine, "one")
        await desks.until(lambda: state_of(engine, "one") is PodState.RUNNING)


async def test_that_a_pod_runs_by_now_is_told_at_once_and_looked_at_later_since_it_makes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LATER_S", 0.2)
    engine, told = desks.fake_engine(), asyncio.Event()
    async with looping(engine, news=told.set) as loop:
        await desks.until(lambda: loop.passes)
        passes = await resting(loop)
        engine._changed("started", "somebody")
        async with asyncio.timeout(30):
            await told.wait()
        assert loop.passes == passes
        await desks.until(lambda: loop.passes > passes)
        passes = await resting(loop)
        monkeypatch.setattr(module, "LATER_S", 3600.0)
        engine._changed("exited", "somebody")
        await desks.until(lambda: loop.passes > passes)


async def resting(loop: Loop) -> int:
    """How many passes there were when it had come to rest."""
    passes = -1
    while passes != loop.passes:
        passes = loop.passes
        await asyncio.sleep(0.5)
    return passes


async def test_it_comes_to_rest_when_nothing_changes() -> None:
    engine = desks.fake_engine()
    for number in range(30):
        await submitted(engine, f"job-{number}")
    async with looping(engine) as loop:
        await desks.until(lambda: sum(w.pods[0].state is PodState.RUNNING for w in engine.snapshot().workloads) == 16)
        version = engine.snapshot().version
        await desks.until(lambda: loop.holds)
        passes = loop.passes
        loop.wake()
        await desks.until(lambda: loop.passes > passes)
        assert engine.snapshot().version == version
        assert len(loop.holds) == 14


async def test_it_ends_also_when_it_is_woken_at_the_very_same_moment() -> None:
    loop = Loop(desks.fake_engine(), Policy(), tick_s=3600.0)
    await loop.start()
    await desks.until(lambda: loop.passes)
    await asyncio.sleep(0.05)  # it waits by now
    loop.wake()
    ending = asyncio.create_task(loop.stop())
    await asyncio.wait([ending], timeout=10)
    assert ending.done()


async def test_an_engine_that_fails_to_start_a_pod_is_an_event_and_the_others_start(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = desks.fake_engine()
    told: list[Event] = []
    start, failures = engine.start_pod, 1

    async def fails_once(workload_id: str, index: int, placement: Placement, now: float) -> None:
        nonlocal failures
        if workload_id == "id-one" and failures:
            failures -= 1
            raise OSError(28, "No space left on device")
        await start(workload_id, index, placement, now)

    monkeypatch.setattr(engine, "start_pod", fails_once)
    await submitted(engine, "one")
    await submitted(engine, "two")
    async with looping(engine, announce=told.append):
        await desks.until(lambda: state_of(engine, "two") is PodState.RUNNING)
        await desks.until(lambda: state_of(engine, "one") is PodState.RUNNING)
    failed = [event for event in told if event.reason == "FailedVerb"]
    assert [(event.workload, event.type) for event in failed] == [("one", "Warning")]
    assert "No space left" in failed[0].message


async def test_a_clock_that_is_set_back_does_not_put_off_what_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, clock = desks.fake_engine(), Clock()
    start = engine.start_pod
    broken = True

    async def fails(workload_id: str, index: int, placement: Placement, now: float) -> None:
        if broken:
            raise OSError(28, "No space left on device")
        await start(workload_id, index, placement, now)

    monkeypatch.setattr(engine, "start_pod", fails)
    await submitted(engine, "one")
    async with looping(engine, clock=clock) as loop:
        await desks.until(lambda: loop.problem)
        broken = False
        clock.now -= 500
        loop.wake()
        await desks.until(lambda: state_of(engine, "one") is PodState.RUNNING, within_s=20)


async def test_a_pass_that_fails_is_shown_and_tried_again() -> None:
    engine = desks.fake_engine()
    broken = True

    def sometimes(*arguments: Any) -> Any:
        if broken:
            raise RuntimeError("a bug")
        return decide(*arguments)

    await submitted(engine, "one")
    async with looping(engine, decide=sometimes) as loop:
        await desks.until(lambda: loop.problem)
        assert "a bug" in str(loop.problem)
        broken = False
        await desks.until(lambda: loop.problem is None)
        assert state_of(engine, "one") is PodState.RUNNING


async def test_a_pass_that_keeps_failing_is_tried_again_when_something_changes_not_when_its_back_off_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FIRST_BACK_OFF_S", 0.05)
    monkeypatch.setattr(module, "MAX_BACK_OFF_S", 3600.0)
    engine = desks.fake_engine()
    tries, broken = 0, True

    def sometimes(*arguments: Any) -> Any:
        nonlocal tries
        tries += 1
        if broken:
            raise RuntimeError("a bug")
        return decide(*arguments)

    async with looping(engine, decide=sometimes) as loop:
        await desks.until(lambda: tries >= 8)  # the next pause is 6.4 s, and each one twice the last
        broken = False
        await submitted(engine, "one")
        await desks.until(lambda: state_of(engine, "one") is PodState.RUNNING, within_s=3)
        assert loop.problem is None


async def test_kept_places_that_no_plan_can_live_with_are_given_up() -> None:
    engine = desks.fake_engine()
    await submitted(engine, "stuck")
    await engine.nominate("id-stuck", 0, Placement("sim-1", whole=1))

    def stumbles_over_kept_places(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
        kept = any(pod.nominated for workload in snapshot.workloads for pod in workload.pods)
        return Plan(snapshot.version, (Start("id-stuck", 0, Placement("nowhere", whole=99)),)) if kept else decide(snapshot, policy, now)

    async with looping(engine, decide=stumbles_over_kept_places) as loop:
        await desks.until(lambda: state_of(engine, "stuck") is PodState.RUNNING)
        assert loop.problem is None


async def test_a_plan_that_breaks_an_invariant_is_not_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = desks.fake_engine()
    monkeypatch.setattr("hotdesk_scheduler.core.invariants.check", lambda *_: ["two workloads on one GPU"])
    await submitted(engine, "one")
    async with looping(engine) as loop:
        await desks.until(lambda: loop.problem)
        assert "two workloads on one GPU" in str(loop.problem)
        assert state_of(engine, "one") is PodState.PENDING


async def test_a_stale_plan_is_thrown_away_whole_and_computed_again() -> None:
    engine = desks.fake_engine()
    calls_made = 0

    def overtaken(snapshot: Any, policy: Any, now: float) -> Any:
        nonlocal calls_made
        calls_made += 1
        if calls_made == 1:  # while it thinks, a node goes away
            engine.lose_node("sim-1")
        return decide(snapshot, policy, now)

    await submitted(engine, "one")
    loop = Loop(engine, Policy(), decide=overtaken)
    await loop.run_pass()
    assert calls_made == 2
    placement = engine.snapshot().workloads[0].pods[0].placement
    assert placement is not None
    assert placement.node == "sim-2"


async def test_what_was_deleted_while_the_plan_was_carried_out_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = desks.fake_engine()
    start = engine.start_pod

    async def and_meanwhile(workload_id: str, index: int, placement: Placement, now: float) -> None:
        await engine.set_phase("id-two", Phase.DELETING, None, now)
        await start(workload_id, index, placement, now)

    monkeypatch.setattr(engine, "start_pod", and_meanwhile)
    await submitted(engine, "one")
    await submitted(engine, "two")
    await Loop(engine, Policy()).run_pass()
    assert state_of(engine, "two") is PodState.PENDING


async def test_a_broken_change_stream_is_taken_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = desks.fake_engine()
    changes, broken = engine.changes, 0

    async def breaks_once() -> AsyncIterator[Any]:
        nonlocal broken
        broken += 1
        if broken == 1:
            raise ConnectionError("gone")
        async for change in changes():
            yield change

    monkeypatch.setattr(engine, "changes", breaks_once)
    async with looping(engine):
        await desks.until(lambda: broken > 1)
        await submitted(engine, "one")
        await desks.until(lambda: state_of(engine, "one") is PodState.RUNNING)


async def test_finished_work_goes_when_its_time_is_over_without_any_change() -> None:
    engine = desks.fake_engine()
    await submitted(engine, "one", ttl_after_finish_s=1)
    async with looping(engine):
        await desks.until(lambda: state_of(engine, "one") is PodState.RUNNING)
        engine.exit_pod("id-one", 0)
        await desks.until(lambda: not engine.snapshot().workloads)


async def test_what_falls_due_while_a_plan_is_made_is_not_put_off_to_the_timer() -> None:
    engine, clock = desks.fake_engine(), Clock()

    def slow(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
        clock.now = 1001.5
        return decide(snapshot, policy, now)

    one = await submitted(engine, "one", ttl_after_finish_s=1)
    await engine.set_phase(one.id, Phase.SUCCEEDED, None, 1000.0)
    loop = Loop(engine, Policy(), tick_s=3600.0, clock=clock, decide=slow)
    await loop.run_pass()
    assert engine.snapshot().workloads
    assert loop._pause_s() < 1
    await loop.run_pass()
    assert not engine.snapshot().workloads


async def test_why_something_waits_becomes_an_event_once_per_reason() -> None:
    engine = desks.fake_engine()
    told: list[Event] = []
    for number in range(17):
        await submitted(engine, f"job-{number}")
    async with looping(engine, announce=told.append) as loop:
        await desks.until(lambda: loop.holds)
        for _ in range(3):
            passes = loop.passes
            loop.wake()
            await desks.until(lambda: loop.passes > passes)  # noqa: B023  # awaited in this very round
    assert len([event for event in told if event.reason == "Waiting"]) == 1


async def test_a_pod_that_can_never_be_started_does_not_slow_down_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = desks.fake_engine()
    start, tried = engine.start_pod, 0

    async def fails(workload_id: str, index: int, placement: Placement, now: float) -> None:
        nonlocal tried
        if workload_id == "id-bad":
            tried += 1
            raise RuntimeError("its port is taken")
        await start(workload_id, index, placement, now)

    monkeypatch.setattr(engine, "start_pod", fails)
    await submitted(engine, "bad")
    async with looping(engine) as loop:
        await desks.until(lambda: loop.problem)
        for number in range(8):
            await submitted(engine, f"good-{number}")
            await desks.until(lambda: state_of(engine, f"good-{number}") is PodState.RUNNING, within_s=5)  # noqa: B023  # awaited here
        assert "its port is taken" in str(loop.problem)
        assert tried < 6
        await engine.set_phase("id-bad", Phase.DELETING, None, 0.0)
        await desks.until(lambda: loop.problem is None)


async def test_a_deletion_in_the_middle_of_a_review_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = desks.fake_engine()
    finish = engine.set_phase

    async def and_meanwhile(workload_id: str, phase: Phase, reason: Any, now: float) -> None:
        if workload_id == "id-one" and phase is Phase.SUCCEEDED:
            await finish("id-two", Phase.DELETING, None, now)
        await finish(workload_id, phase, reason, now)

    for name in ("one", "two"):
        await submitted(engine, name)
    await Loop(engine, Policy()).run_pass()
    for name in ("one", "two"):
        engine.exit_pod(f"id-{name}", 0)
    monkeypatch.setattr(engine, "set_phase", and_meanwhile)
    await Loop(engine, Policy()).run_pass()
    assert [workload.name for workload in engine.snapshot().workloads] == ["one"]


async def test_decisions_are_made_for_the_mix_of_requests_seen_whatever_became_of_them() -> None:
    engine = desks.fake_engine()
    mixes = []

    def watched(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
        mixes.append(snapshot.mix)
        return decide(snapshot, policy, now)

    async with looping(engine, decide=watched) as loop:
        for number in range(ENOUGH):
            workload = await submitted(engine, f"job-{number}", gpus=0.3)
            await desks.until(lambda: loop.snapshot().version == engine.snapshot().version)
            await engine.set_phase(workload.id, Phase.DELETING, None, 1000.0)
        await submitted(engine, "last", gpus=0.5)
        await desks.until(lambda: state_of(engine, "last") is PodState.RUNNING)
    assert mixes[-1] is not None
    assert [(request.gpu.millis, count) for request, _, count in mixes[-1].requests] == [(300, ENOUGH)]
