"""`why` and `what if`: where something is, or what would become of it, with its numbers; a forecast is what then happens."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
from advised_worlds import ask, worlds
from builders import World, node, q
from hotdesk_scheduler.core.decide import cycle, decide
from hotdesk_scheduler.core.displaced import in_words
from hotdesk_scheduler.core.explain import Explainer, Explanation, explain, what_if
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.memory import Memory
from hotdesk_scheduler.core.model import Kind, Phase, Policy, Quota, Workload
from hotdesk_scheduler.core.plan import Hold, Move, Nominate, Start, Stop
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.core.requests import Requests

NOTICE = Policy(grace_s=30)
SUSPENDED = Reason(ReasonCode.SUSPENDED, "alice suspended it; `runai resume a1 -p a` lets it go on.")


def why(world: World, name: str) -> Explanation:
    return explain(world.snapshot(), world.policy, world.now, name)


def forecast(world: World, workload: Workload) -> Explanation:
    return what_if(world.snapshot(), world.policy, world.now, workload)


def test_a_forecast_of_a_reclaim_names_who_stops_and_both_shares() -> None:
    world = World(node(gpus=3), policy=NOTICE, a=1, b=2)
    world.runs("a", 1)
    world.runs("a", 1)
    world.runs("b", 1)
    story = forecast(world, world.workload("b", 1))
    assert story.starts_now is True
    assert story.sentence == (
        "It would start on n1 (1 whole GPU) as soon as room is made (at most 30 s of notice): a2 of a stops (reclaimed: a goes from "
        "2 GPUs to 1 and may have 1, b from 1 to 2 and may have 2)."
    )
    (victim,) = story.would_stop
    assert (victim.name, victim.project, victim.reason.code) == ("a2", "a", ReasonCode.RECLAIMED)
    assert {"before": 2000, "after": 1000, "by_before": 1000, "by_after": 2000}.items() <= dict(victim.reason.numbers).items()
    assert (story.quota_millis, story.fair_share_millis, story.used_millis, story.asked_millis) == (2000, 2000, 1000, 1000)


def test_a_forecast_of_a_reclaim_of_cores_is_said_in_cores() -> None:
    cores = {**q(4), "cpu": Quota(4000)}
    world = World(node(gpus=8, cpu_millis=8000), policy=NOTICE, a=cores, b=cores)
    world.runs("a", 1, cpu_millis=4000)
    world.runs("a", 1, cpu_millis=4000)
    story = forecast(world, world.workload("b", 0, cpu_millis=4000))
    assert "a goes from 8 CPU cores to 4 and may have 4, b from 0 to 4 and may have 4" in story.sentence


def test_a_forecast_names_each_priority_that_gives_way() -> None:
    world = World(node(gpus=2), policy=NOTICE, a=2)
    world.runs("a", 1, priority=40)
    world.runs("a", 1, priority=60)
    story = forecast(world, world.workload("a", 2, fixed=True))
    assert "a1 of a stops (preempted: priority 40, this has 100)" in story.sentence
    assert "a2 of a stops (preempted: priority 60, this has 100)" in story.sentence


def test_what_the_project_uses_is_told_as_it_is_before_its_own_work_gives_way() -> None:
    world = World(node(gpus=3), policy=NOTICE, a=3)
    world.runs("a", 1)
    world.runs("a", 2)
    story = forecast(world, world.workload("a", 2, fixed=True))
    assert [one.name for one in story.would_stop] == ["a2"]
    assert (story.used_millis, story.held_by) == (3000, (("a", 3000),))


def test_a_surplus_pod_that_gives_way_is_not_told_as_the_end_of_its_workload() -> None:
    world = World(node(gpus=4), policy=NOTICE, a=1, b=3)
    world.runs("a", 1, pods=4, min_pods=1)
    story = forecast(world, world.workload("b", 2))
    assert story.sentence == (
        "It would start on n1 (2 whole GPUs) as soon as room is made (at most 30 s of notice): 2 pods of a1 of a stop (reclaimed: a goes "
        "from 4 GPUs to 2 and may have 2, b from 0 to 2 and may have 3)."
    )
    name = world.asks("b", 2)
    world.cycle()
    assert world.hold(name).sentence.startswith(
        "Its place on n1 is kept while 2 pods of a1 of a shut down; it starts as soon as they are gone"
    )
    assert world.stop_reasons()["a1"].sentence.endswith("Only this pod stops and is queued again; the rest goes on.")


def test_a_surplus_pod_preempted_leaves_the_rest() -> None:
    world = World(node(gpus=2), policy=NOTICE, a=2)
    world.runs("a", 1, pods=2, min_pods=1, priority=40)
    story = forecast(world, world.workload("a", 1, fixed=True))
    assert story.sentence.endswith("1 pod of a1 of a stops (preempted: priority 40, this has 100).")


def test_an_elastic_workload_that_stops_as_a_whole_is_told_so() -> None:
    world = World(node(gpus=2), policy=NOTICE, a=2)
    world.runs("a", 1, pods=2, min_pods=1, priority=40)
    story = forecast(world, world.workload("a", 2, fixed=True))
    assert story.sentence.endswith(": a1 of a stops (preempted: priority 40, this has 100).")


def test_a_forecast_of_a_preemption_names_the_priorities() -> None:
    world = World(node(gpus=1), policy=NOTICE, a=1)
    world.runs("a", 1)
    story = forecast(world, world.workload("a", 1, fixed=True))
    assert story.sentence.endswith("a1 of a stops (preempted: priority 50, this has 100).")


def test_a_forecast_of_a_move_says_who_moves_where() -> None:
    world = World(node("n1", 2), node("n2", 2), policy=NOTICE, a=4)
    world.runs("a", 1, on="n1")
    world.runs("a", 1, on="n2")
    story = forecast(world, world.workload("a", 2))
    assert story.sentence.endswith("as soon as room is made (at most 30 s of notice): a2 of a moves to n1.")
    assert [(one.name, dict(one.reason.numbers)["to"]) for one in story.would_move] == [("a2", "n1")]
    assert story.would_stop == ()


def test_many_who_would_stop_are_counted() -> None:
    world = World(node(gpus=8), policy=NOTICE, a=0, b=8)
    for _ in range(8):
        world.runs("a", 1)
    story = forecast(world, world.workload("b", 8))
    assert len(story.would_stop) == 8
    assert "a1, a2, a3 and 5 more of a stop (reclaimed: a goes from 8 GPUs to 0 and may have 0, b from 0 to 8" in story.sentence
    assert in_words(story.would_stop) in story.sentence


def test_what_would_wait_says_for_what_and_what_would_help() -> None:
    world = World(node(gpus=2), a=1, b=1)
    world.runs("a", 2)
    story = forecast(world, world.workload("b", 2, fixed=True))
    assert story.starts_now is False
    assert story.reason is not None
    assert story.reason.code is ReasonCode.NON_PREEMPTIBLE_OVER_QUOTA
    assert story.what_would_help is not None
    assert (story.queue_position, story.queue_length) == (1, 1)


def test_what_waits_on_record_starts_rather_than_would_start() -> None:
    world = World(node(gpus=1), policy=NOTICE, a=0, b=1)
    world.runs("a", 1)
    story = why(world, world.asks("b", 1))
    assert story.sentence.startswith("It starts on n1 (1 whole GPU) as soon as room is made (at most 30 s of notice): a1 of a stops (")
    assert story.held_by == (("a", 1000),), "as it is now"


def test_who_holds_gpus_is_left_out_where_nothing_is_in_the_way() -> None:
    world = World(node(gpus=2), a=1)
    world.runs("a", 1)
    assert forecast(world, world.workload("a", 1)).held_by == ()
    world.runs("a", 0, cpu_millis=79_000)
    assert forecast(world, world.workload("a", 0, cpu_millis=5_000)).held_by == ()


def test_what_if_on_free_gpus_says_where() -> None:
    world = World(node("n1", 2), a=1)
    story = forecast(world, world.workload("a", 0.5))
    assert story.sentence == "Starts now on n1 (0.5 of one GPU)."
    assert (story.node, story.gpus) == ("n1", "0.5 of one GPU")


def test_what_runs_says_where_and_its_own_gpus_are_its_projects_too() -> None:
    world = World(node(gpus=2), a=1)
    story = why(world, world.runs("a", 2))
    assert (story.starts_now, story.sentence, story.used_millis) == (None, "It is running on n1 (2 whole GPUs).", 2000)


def test_what_starts_is_told_in_words() -> None:
    world = World(node(gpus=2), a=2)
    world.asks("a", 1)
    world.cycle()
    assert why(world, "a1").sentence == "It is starting on n1 (1 whole GPU)."


def test_what_runs_in_part_says_how_many_pods_run_and_wait() -> None:
    world = World(node("n1", 2), a=4)
    name = world.asks("a", 1, pods=3, min_pods=1)
    world.settle()
    assert why(world, name).sentence == "It is running on n1 (2 whole GPUs). 2 of its 3 pods run, 1 more waits for room."


def test_a_gang_below_its_minimum_says_what_becomes_of_it() -> None:
    world = World(node("n1", 2), a=4)
    name = world.runs("a", 1, pods=2, on=["n1"])
    assert why(world, name).sentence.endswith(
        "1 of its 2 pods run, 1 more waits for room; it needs at least 2 and stops as a whole if they do not start soon."
    )


def test_hpo_says_how_many_completions_are_done() -> None:
    world = World(node("n1", 2), a=4)
    name = world.runs("a", 1, pods=2, kind=Kind.HPO, min_pods=1, completions=12, parallelism=2, succeeded=5)
    assert why(world, name).sentence == "It is running on n1 (2 whole GPUs). 5 of 12 completions are done."


def test_what_is_being_stopped_says_for_whom() -> None:
    world = World(node(gpus=1), policy=NOTICE, a=0, b=1)
    name = world.runs("a", 1)
    world.asks("b", 1)
    world.cycle()
    assert why(world, name).sentence.startswith("It is stopping on n1 (1 whole GPU). Reclaimed by project b for b1: a held 1 GPU,")


def test_what_waits_for_a_release_says_for_how_long_at_most() -> None:
    world = World(node(gpus=1), policy=NOTICE, a=0, b=1)
    world.runs("a", 1)
    name = world.asks("b", 1)
    world.cycle()
    world.decide()
    story = why(world, name)
    assert story.left_s is not None
    assert 0 < story.left_s <= 30


@pytest.mark.parametrize(
    ("phase", "sentence"),
    [
        ("failed", "It ended with exit code 3. Its logs say why."),
        ("succeeded", "It has done all of its work."),
        ("suspended", SUSPENDED.sentence),
    ],
)
def test_what_has_ended_says_how(phase: str, sentence: str) -> None:
    world = World(node(gpus=2), a=2)
    name = world.runs("a", 1, fixed=True)
    if phase == "suspended":
        asyncio.run(world.engine.set_phase(name, Phase.SUSPENDED, SUSPENDED, world.now))
    else:
        world.finish(name, exit_code=3 if phase == "failed" else 0)
    world.settle()
    assert why(world, name).sentence == sentence


def test_why_says_who_holds_the_gpus_its_place_in_the_queue_and_who_took_its_place() -> None:
    world = World(node("n1", 2, node_type="v100"), node("n2", 2, node_type="h200"), a=0, b=1)
    name = world.runs("a", 2, on="n1", node_type="v100")
    world.runs("a", 2, on="n2", node_type="h200", fixed=True)
    world.asks("b", 1, node_type="v100", fixed=True)
    waits = world.asks("a", 1, node_type="h200")
    world.settle()
    story = why(world, name)
    assert story.held_by == (("b", 1000),)
    assert (story.queue_position, story.queue_length) == (1, 2)
    assert story.stopped is not None
    assert story.stopped.code is ReasonCode.RECLAIMED
    assert why(world, waits).held_by == (("a", 2000),)


def test_who_took_its_place_is_told_until_it_ends_also_while_it_runs_again() -> None:
    world = World(node(gpus=1), a=0, b=1)
    name, taker = world.runs("a", 1), world.asks("b", 1)
    world.settle()
    world.delete(taker)
    world.settle()
    story = why(world, name)
    assert story.sentence == "It is running on n1 (1 whole GPU)."
    assert story.stopped is not None
    assert story.stopped.sentence.startswith(
        "Reclaimed by project b for b1: a held 1 GPU, may have 0 and goes back to 0; b goes from 0 to 1"
    )
    world.finish(name)
    world.settle()
    assert why(world, name).stopped is None


@pytest.mark.parametrize("slice_", range(8))
def test_a_forecast_is_what_happens_when_it_is_submitted(slice_: int) -> None:
    """Starts now where -> it starts there; would stop or move whom -> they do, for it; waits -> held for the same reason."""
    chance = random.Random(1000 + slice_)
    told = {"starts": 0, "stops": 0, "waits": 0}
    for world in worlds(slice_, 26):
        workload = world.workload(**{**ask(chance), "name": "asked", "age_s": None})
        story = forecast(world, replace(workload, created_at=world.now))
        world.engine.put_workload(replace(workload, created_at=world.now))
        world.decide()
        mine = [d for d in world.plan.decisions if d.workload_id == workload.id]
        displaced = {d.workload_id for d in world.plan.decisions if isinstance(d, Stop | Move) and d.beneficiary == workload.id}
        assert {one.name for one in (*story.would_stop, *story.would_move)} == displaced
        places = {d.placement.node for d in mine if isinstance(d, Start | Nominate) and d.placement}
        if story.starts_now:
            assert places
            assert story.node is not None
            assert all(place in story.node for place in places)
            assert any(isinstance(d, Start) for d in mine) or displaced
            told["stops" if displaced else "starts"] += 1
        else:
            (hold,) = [d for d in mine if isinstance(d, Hold)]
            assert story.reason == hold.reason
            assert story.queue_position == hold.position
            told["waits"] += 1
        world.engine._workloads.pop(workload.id)
    assert sum(told.values()) >= 63, "more than 500 in all"
    assert min(told["starts"], told["waits"]) > 5


def test_one_who_is_asked_again_and_again_says_what_a_fresh_answer_says_and_changes_no_decision() -> None:
    world, memory = World(node("n1", 2), policy=Policy(grace_s=0, reserve_after_s=500.0), a=1, b=1), Memory()
    explainer = Explainer(memory)
    for number in range(6):
        world.asks("ab"[number % 2], 1 + number % 2)
        snapshot = world.snapshot()
        for workload in (*snapshot.workloads, *reversed(snapshot.workloads)):
            assert explainer.why(snapshot, world.policy, world.now, workload.id) == explain(snapshot, world.policy, world.now, workload.id)
        wish = world.workload("b", 2)
        assert explainer.what_if(snapshot, world.policy, world.now, wish) == what_if(snapshot, world.policy, world.now, wish)
        assert decide(snapshot, world.policy, world.now, memory) == decide(snapshot, world.policy, world.now)
        world.cycle()
        world.now += 200


def test_as_long_as_nothing_changes_one_cycle_answers_all_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    world, cycles = World(node("n1", 1), a=1, b=1), 0
    names = [world.asks(project) for project in "abab"]

    def counted(*arguments: Any) -> tuple[Ledger, Requests]:
        nonlocal cycles
        cycles += 1
        return cycle(*arguments)

    monkeypatch.setattr("hotdesk_scheduler.core.explain.cycle", counted)
    explainer = Explainer()
    for name in names:
        explainer.why(world.snapshot(), world.policy, world.now, name)
    assert cycles == 1
    world.asks("a")
    explainer.why(world.snapshot(), world.policy, world.now, names[0])
    assert cycles == 2


def test_who_is_beyond_his_share_is_not_told_to_wait_for_the_preemption_delay() -> None:
    """Nobody would be stopped for it afterwards either."""
    world = World(node(gpus=1), policy=Policy(grace_s=0, preemption_delay_s=60), a=1, b=0)
    world.runs("a", 1)
    name = world.asks("b", 1, age_s=0)
    world.cycle()
    assert world.hold(name).code is ReasonCode.FAIR_SHARE_REACHED
