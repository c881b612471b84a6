"""What a sentence says would help must help: followed to the letter, it starts the workload."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from advised import helps, useless_advice
from builders import World, node, q
from hotdesk_scheduler import simulate
from hotdesk_scheduler.core.advice import Help, HelpKind, applied, sentence
from hotdesk_scheduler.core.decide import decide
from hotdesk_scheduler.core.model import Kind, Policy, Snapshot
from hotdesk_scheduler.core.plan import Hold, Plan

SIZES = (1, 1, 1, 2, 2, 3, 4, 5, 0.5, 0.3, 0.7)


def check(world: World) -> int:
    """How many advices the last plan gave; every one has to help."""
    assert useless_advice(world.snapshot(), world.policy, world.now, world.plan) == []
    return sum(len(d.helps) for d in world.plan.decisions if isinstance(d, Hold))


def random_world(chance: random.Random) -> World:
    """Nodes of two types, projects with and without departments, quotas, limits, over-quota."""

    def entitled() -> dict[str, object]:
        quota = chance.choice([0, 1, 2, 3, None])
        limit = chance.choice([None, None, 2, 4]) if quota is not None else None
        more = {"department": chance.choice([None, None, "x", "y"]), "over_quota": chance.random() < 0.85}
        return q(quota, chance.choice([None, 0, 1]), limit, **more)

    nodes = [node(f"n{i}", chance.randint(1, 4), node_type=chance.choice(["v100", "h200"])) for i in range(chance.randint(1, 3))]
    departments = {"x": q(3), "y": q(2, 1, 5)}
    return World(*nodes, departments=departments, a=entitled(), b=entitled(), c=entitled())


def submit(world: World, chance: random.Random) -> None:
    pods = chance.choice([1, 1, 1, 1, 2, 3])
    fixed = chance.random() < 0.3
    world.asks(
        chance.choice("abc"),
        chance.choice(SIZES),
        pods=pods,
        fixed=fixed,
        min_pods=chance.choice([1, pods]),
        priority=None if fixed else chance.choice([None, 40, 60]),
        node_type=chance.choice([None, None, None, "v100", "a100"]),
        cpu_millis=chance.choice([100, 100, 30_000]),
    )


@pytest.mark.parametrize("seed", range(20))
def test_every_advice_in_random_worlds_helps(seed: int) -> None:
    chance = random.Random(seed)
    given = 0
    for _ in range(5):
        world = random_world(chance)
        for _ in range(chance.randint(2, 3)):
            for _ in range(chance.randint(2, 6)):
                submit(world, chance)
            world.settle()
            given += check(world)
            if world.running() and chance.random() < 0.4:
                world.delete(chance.choice(world.running()))
                world.settle()
                given += check(world)
    assert given > 5


def test_every_advice_in_the_shared_scenarios_helps(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    given: list[Plan] = []

    def watched(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
        plan = decide(snapshot, policy, now)
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
