"""Views that are kept and renewed in part say the same as views that are made anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import desks
from hotdesk_api import calls
from hotdesk_api.models import Progress, WorkloadOut
from hotdesk_scheduler.core.model import Phase, PodState, Policy, Workload
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines.fake import FakeEngine
from hotdesk_scheduler.service.loop import Loop
from hotdesk_scheduler.service.specs import workload_of
from hotdesk_scheduler.service.views import Views


async def busy(count: int) -> tuple[FakeEngine, Loop]:
    """More asked than the 16 GPUs have room for, by two projects."""
    engine = desks.fake_engine()
    for number in range(count):
        spec = desks.spec(f"job-{number}", project=("team-a", "team-b")[number % 2], gpus=1 + number % 3)
        await engine.submit(workload_of(spec, workload_id=f"id-{number}", name=f"job-{number}", user="alice", now=1000.0 + number), spec)
    loop = Loop(engine, Policy(grace_s=0.0))
    await loop.run_pass()
    return engine, loop


async def test_a_queue_that_moves_up_is_seen_as_it_is_by_who_looked_before() -> None:
    engine, loop = await busy(30)
    views = Views(engine)
    reports: dict[str, Progress] = {}
    for turn in range(8):
        running = [w.id for w in engine.snapshot().workloads if w.pods[0].state is PodState.RUNNING]
        if turn == 2:
            reports[running[-1]] = Progress(progress=0.5)
        if turn == 4:
            waiting = next(w.id for w in engine.snapshot().workloads if w.id in loop.holds)
            await engine.set_phase(waiting, Phase.SUSPENDED, None, 2000.0)
        changed, _ = views.refresh(engine.snapshot(), loop.holds, reports)
        fresh = Views(engine)
        fresh.refresh(engine.snapshot(), loop.holds, reports)
        assert [entry.view for entry in views] == [entry.view for entry in fresh]
        assert [entry.json for entry in views] == [entry.json for entry in fresh]
        assert [WorkloadOut.model_validate_json(entry.json) for entry in views] == [entry.view for entry in fresh]
        assert views.refresh(engine.snapshot(), loop.holds, reports) == ([], [])
        assert changed
        engine.exit_pod(running[0], 0)
        await loop.run_pass()


async def test_only_what_moved_is_told() -> None:
    engine, loop = await busy(30)
    views = Views(engine)
    views.refresh(engine.snapshot(), loop.holds, {})
    last = max(loop.holds.values(), key=lambda hold: hold.position)
    await engine.set_phase(last.workload_id, Phase.DELETING, None, 2000.0)
    await loop.run_pass()
    changed, removed = views.refresh(engine.snapshot(), loop.holds, {})
    assert [view.id for view in removed] == [last.workload_id]
    assert len(changed) < len(loop.holds)


async def test_two_of_one_name_are_both_listed_and_the_one_that_stays_is_found() -> None:
    engine, loop = await busy(4)
    there = engine.snapshot()
    views = Views(engine)

    def listed(*workloads: Workload) -> list[str]:
        views.refresh(replace(there, workloads=workloads), loop.holds, {})
        return [entry.view.id for entry in views]

    first, second = (replace(workload, project="team-a", name="same") for workload in there.workloads[:2])
    assert listed(first) == [first.id]
    assert listed(first, second) == [first.id, second.id]
    first, second = (replace(workload, priority=70) for workload in (first, second))
    assert listed(first, second) == [first.id, second.id]
    assert listed(second) == [second.id]
    assert views.id_of("team-a", "same") == second.id
    assert listed() == []
    assert views.id_of("team-a", "same") is None


async def test_a_job_is_simulated_where_its_node_is_and_while_it_waits_where_no_gpu_is_real() -> None:
    engine, loop = await busy(30)
    there = engine.snapshot()
    (first, *others) = (replace(node, simulated=True) for node in there.nodes)
    for nodes, waiting_too in (((first, *others), True), ((first, *(replace(node, simulated=False) for node in others)), False)):
        views = Views(engine)
        views.refresh(replace(there, nodes=nodes), loop.holds, {})
        played = {node.name for node in nodes if node.simulated}
        for entry in views:
            assert entry.view.simulated == (bool(set(entry.view.nodes) & played) if entry.view.nodes else waiting_too)


async def test_what_keeps_a_pod_from_starting_or_going_is_told_in_lists_and_by_why(tmp_path: Path) -> None:
    engine = desks.fake_engine(automatic=False)
    async with desks.running(tmp_path, engine=engine) as service:
        alice, trouble = service.client(), "Its pod cannot be made; it has been tried again and again since 10:00 UTC: it broke."

        async def told() -> str | None:
            reason = (await alice.call(calls.workload("team-a", "job"))).reason
            return reason.sentence if reason else None

        await alice.call(calls.submit(desks.spec("job")))
        await desks.until(lambda: engine.snapshot().workloads[0].pods[0].state is PodState.STARTING)
        assert await told() is None
        (workload,) = engine.snapshot().workloads
        engine.say(workload.id, 0, trouble)
        assert await told() == trouble
        assert (await alice.call(calls.why("team-a", "job"))).sentence == f"It is starting on sim-1 (1 whole GPU). {trouble}"
        engine.say(workload.id, 0, "")
        await engine.stop_pod(workload.id, 0, Reason(ReasonCode.RECLAIMED, "Its owner asked for its place."), 5.0, 1.0)
        assert await told() == "Its owner asked for its place."
        engine.say(workload.id, 0, "Its pod cannot be deleted.")
        assert await told() == "Its owner asked for its place. Its pod cannot be deleted."
        engine.say(workload.id, 0, "Its owner asked for its place.")
        assert await told() == "Its owner asked for its place."
        assert (await alice.call(calls.why("team-a", "job"))).sentence.count("Its owner asked for its place.") == 1
