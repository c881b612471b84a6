"""What a sentence says would help must help: followed to the letter, it starts the workload."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from advised import helps, useless_advice
from advised_worlds import worlds
from builders import World, node, q
from hotdesk_scheduler import simulate
from hotdesk_scheduler.core.advice import Help, HelpKind, applied, sentence
from hotdesk_scheduler.core.decide import decide
from hotdesk_scheduler.core.explain import explain
from hotdesk_scheduler.core.model import Kind, Policy, Snapshot
from hotdesk_scheduler.core.plan import Hold, Move, Plan, Stop
from hotdesk_scheduler.core.reasons import ReasonCode


def check(world: World) -> int:
    """How many advices the last plan gave; every one has to help."""
    assert useless_advice(world.snapshot(), world.policy, world.now, world.plan) == []
    return sum(len(d.helps) for d in world.plan.decisions if isinstance(d, Hold))


@pytest.mark.parametrize("slice_", range(8))
def test_every_advice_in_random_worlds_helps_and_nobody_is_left_without(slice_: int) -> None:
    """Every hold says what would let it start, and that does; or it says that it can only wait."""
    given = states = 0
    for world in worlds(2000 + slice_, 26):
        given, states = given + check(world), states + 1
        for hold in world.plan.decisions:
            if isinstance(hold, Hold) and not hold.helps:
                assert "can only wait" in hold.reason.sentence
                never = hold.reason.code in (ReasonCode.NODES_EXCLUDED, ReasonCode.NO_NODE_LARGE_ENOUGH, ReasonCode.KEPT_FOR_OTHERS)
                assert never or "even when" in hold.reason.sentence, hold.reason.sentence
    assert (states >= 63, given > 100) == (True, True), "more than 500 worlds in all"


def test_every_kind_of_help_occurs_in_random_worlds() -> None:
    """All but the release, which no world at rest waits for: it has a test of its own."""
    kinds: set[HelpKind] = set()
    for world in worlds(2000, 30):
        kinds |= {help_.kind for hold in world.plan.decisions if isinstance(hold, Hold) for advice in hold.helps for help_ in advice}
        if len(kinds) == len(HelpKind) - 1:
            break
    assert set(HelpKind) - kinds == {HelpKind.RELEASE}


def test_a_release_that_is_waited_for_lets_it_start() -> None:
    world = World(node(gpus=1), policy=Policy(grace_s=60), a=0, b=1)
    world.runs("a", 1)
    name = world.asks("b", 1)
    asyncio.run(world._apply(world.decide()))
    world.decide()
    (hold,) = [d for d in world.plan.decisions if isinstance(d, Hold) and d.workload_id == name]
    assert [help_.kind for advice in hold.helps for help_ in advice] == [HelpKind.RELEASE]
    assert check(world) == 1
    assert not helps(world.snapshot(), world.policy, world.now, name, ())


def test_what_stands_in_the_way_on_a_node_is_found_also_where_a_limit_is_in_the_way_first() -> None:
    """The nodes are looked at as they were before anything was ended for the limit."""
    world = World(node(gpus=1), a=q(0, limit=4), b=q(1, limit=1))
    world.runs("b", 1, fixed=True)
    world.asks("b", 1, fixed=True)
    waits = world.asks("a", 0.3)
    world.settle()
    assert world.hold(waits).sentence.endswith("In its turn it starts when b1 of b ends.")


# --- how it is written -----------------------------------------------------------------------------------------------------------------

WRONG = [
    (r"(?<![\d.])1 (GPUs|pods|CPU cores|nodes|others|retries)\b(?! of| it may)", "one of several"),
    (r"(?<![\d.])([2-9]|\d\d+|0) (GPU|pod|CPU core|node)\b(?!s)", "several of one"),
    (r"\b\d{4,} (GPU|CPU)", "thousandths"),
    (r"[a-z]_[a-z]", "a code"),
    (r"\b(None|True|False|by nobody|inf|nan)\b", "a value of the program"),
    (r"  |\.\.|,,| ,| \.", "spaces and stops"),
    (r"(?i)insufficient", "insufficient resources"),
    (r"\b(\w+) \1\b", "a word twice"),
]


@pytest.mark.parametrize("slice_", range(4))
def test_sentences_of_random_worlds_are_short_and_well_formed(slice_: int) -> None:
    seen: set[str] = set()
    for world in worlds(3000 + slice_, 20):
        for workload in world.snapshot().workloads[:1]:
            seen.add(explain(world.snapshot(), world.policy, world.now, workload.id).sentence)
        seen |= {d.reason.sentence for plan in world.plans for d in plan.decisions if isinstance(d, Hold | Stop | Move)}
        world.plans.clear()
    assert len(seen) > 100
    for text in seen:
        wrong = [(name, found[0]) for pattern, name in WRONG if (found := re.search(pattern, text))]
        assert not wrong, f"{wrong}: {text}"
        assert len(text) <= 400, text
        assert text[0].isupper() or text[0].isdigit(), text
        assert text.endswith("."), text


def test_every_advice_in_the_shared_scenarios_helps(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    given: list[Plan] = []

    def watched(snapshot: Snapshot, policy: Policy, now: float, *memory: Any) -> Plan:
        plan = decide(snapshot, policy, now, *memory)
        said.extend(useless_advice(snapshot, policy, now, plan))
        given.append(plan)
        return plan

    monkeypatch.setattr(simulate, "decide", watched)
    for file in sorted((shared / "scenarios").glob("*.jsonl")):
        simulate.main([str(file)])
    assert said == []
    assert sum(len(d.helps) for plan in given for d in plan.decisions if isinstance(d, Hold)) > 100


def test_ending_work_is_no_advice_where_the_request_alone_is_over_quota() -> None:
    world = World(node(gpus=4), a=2)
    name = world.asks("a", 3, fixed=True)
    world.settle()
    assert check(world) == 3
    assert world.hold(name).sentence == (
        "Non-preemptible work never goes over quota: project a has a quota of 2 GPUs, non-preemptible work holds 0 GPUs of it, and this "
        "asks for 3 GPUs. It starts as preemptible, when the quota of project a is raised to 3 GPUs, or with 2 GPUs."
    )


def test_helps_that_are_needed_together_are_said_together() -> None:
    world = World(node(gpus=2), a=1, b=1)
    world.runs("b", 1, fixed=True)
    name = world.asks("a", 2, fixed=True)
    world.settle()
    assert check(world) > 0
    assert "when the quota of project a is raised to 2 GPUs and b1 of b ends" in world.hold(name).sentence


def test_a_limit_is_raised_to_what_is_needed_once_the_other_work_has_ended() -> None:
    world = World(node(gpus=4), a=q(2, 1, limit=2))
    world.runs("a", 2, fixed=True)
    name = world.asks("a", 4)
    world.settle()
    assert check(world) > 0
    assert "when the limit of project a is raised to 4 GPUs and a1 of a ends" in world.hold(name).sentence


def test_a_quota_is_raised_to_what_is_needed_once_the_other_work_has_ended() -> None:
    world = World(node(gpus=2), a=1)
    world.runs("a", 1, fixed=True)
    name = world.asks("a", 2, fixed=True)
    world.settle()
    assert check(world) > 0
    assert "when the quota of project a is raised to 2 GPUs and a1 of a ends" in world.hold(name).sentence


def test_what_alone_suffices_is_not_said_again_with_more() -> None:
    world = World(node(gpus=3), a=2, b=1)
    world.runs("b", 1, fixed=True)
    world.runs("a", 0.5, fixed=True)
    name = world.asks("a", 2, fixed=True)
    world.settle()
    assert check(world) == 2
    assert world.hold(name).sentence.endswith("It starts when a1 of a ends, or with 1 GPU.")


def test_others_that_wait_are_a_matter_of_turn() -> None:
    world = World(node(gpus=1), a=1)
    world.runs("a", 1, fixed=True)
    first, second = world.asks("a", 1), world.asks("a", 1)
    world.settle()
    assert check(world) == 2
    assert world.hold(first).sentence.endswith("In its turn it starts when a1 of a ends.")
    assert world.hold(second) == world.hold(first)


def test_without_following_the_advice_it_waits_on() -> None:
    """Else the tests here would prove nothing."""
    world = World(node(gpus=1), a=1)
    world.runs("a", 1, fixed=True)
    name = world.asks("a", 1)
    world.settle()
    assert not helps(world.snapshot(), world.policy, world.now, name, ())


def test_many_names_are_counted_not_listed() -> None:
    ended = tuple((f"w{i}", f"w{i}", "a") for i in range(6))
    said = sentence([(Help(HelpKind.END_WORK, workloads=ended),)], in_turn=False)
    assert said == "It starts when w0, w1 and w2 of a and 3 more end."


def test_other_nodes_are_no_advice_where_they_would_not_do() -> None:
    world = World(node("n1", 2, node_type="v100"), a=4)
    name = world.asks("a", 4, node_type="h200")
    world.settle()
    assert check(world) == 0
    assert "It starts" not in world.hold(name).sentence


def test_raising_a_cpu_limit_is_said_in_cores() -> None:
    help_ = Help(HelpKind.RAISE_LIMIT, 8000, 1, "a")
    assert sentence([(help_,)], in_turn=False) == "It starts when the CPU limit of project a is raised to 8 CPU cores."
    world = World(node(gpus=1), a=1)
    (project,) = applied(world.snapshot(), "x", (help_,)).projects
    assert project.cpu.limit == 8000


def test_hpo_is_told_what_its_pods_may_ask() -> None:
    world = World(node(gpus=2), a=2)
    world.runs("a", 1, fixed=True)
    world.asks("a", 2, kind=Kind.HPO)
    world.settle()
    assert check(world) > 0
