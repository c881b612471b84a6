"""What is remembered from the last cycle makes the next one faster and never another: the plan is that of a start from nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from builders import World, node, q
from hotdesk_scheduler.core.decide import decide
from hotdesk_scheduler.core.line import Holds, Told
from hotdesk_scheduler.core.memory import Memory
from hotdesk_scheduler.core.model import Kind, Phase, PodState, Policy, Quota, Snapshot
from hotdesk_scheduler.core.plan import Plan

SIZES = [0, 1, 1, 1, 2, 2, 3, 0.5, 0.3, 0.7]


def a_world(chance: random.Random) -> World:
    """Two or three nodes, four projects, two departments; any of the policy's settings."""
    policy = Policy(
        grace_s=0,
        max_moves=chance.choice([16, 2, None]),
        min_runtime_s=chance.choice([0.0, 0.0, 3.0]),
        preemption_delay_s=chance.choice([0.0, 0.0, 3.0]),
        reserve_after_s=chance.choice([None, 2.0, 20_000.0]),
        stale_grace_s=2.0,
        placement=chance.choice(["binpack", "binpack", "spread"]),
    )
    entitlements: dict[str, dict[str, Any]] = {
        name: {
            **q(chance.choice([0, 1, 2, 4, None]), chance.choice([None, 0, 1, 3]), chance.choice([None, None, 4])),
            "department": chance.choice([None, "x", "y"]),
        }
        for name in "abcd"
    }
    nodes = [node(f"n{i}", chance.choice([1, 2, 4]), pool=chance.choice(["default", "other"])) for i in range(chance.randint(2, 3))]
    return World(*nodes, departments={"x": q(3), "y": q(2, 1, 6)}, policy=policy, **entitlements)


def submit(world: World, chance: random.Random) -> None:
    pods = chance.choice([1, 1, 1, 2, 3])
    fixed = chance.random() < 0.25
    world.asks(
        chance.choice(["a", "b", "c", "d", "a", "b", "c", "d", "nobody's"]),
        chance.choice(SIZES),
        pods=pods,
        min_pods=chance.choice([pods, pods, 1]),
        fixed=fixed,
        kind=chance.choice([Kind.TRAIN, Kind.TRAIN, Kind.HPO]),
        priority=None if fixed else chance.choice([None, None, 40, 60]),
        node_pools=chance.choice([(), (), (), ("other",)]),
    )


def live(world: World, chance: random.Random) -> None:
    """What happens between two cycles: little, or much."""
    for _ in range(chance.choice([0, 0, 1, 1, 1, 2, 5])):
        happening = chance.random()
        workloads = world.snapshot().workloads
        some = chance.choice(workloads) if workloads else None
        running = [(w.id, p.index) for w in workloads for p in w.pods if p.state in (PodState.RUNNING, PodState.STARTING)]
        if happening < 0.5 or some is None:
            submit(world, chance)
        elif happening < 0.65:
            world.delete(some.id)
        elif happening < 0.8 and running:
            world.finish(*chance.choice(running), exit_code=chance.choice([0, 1]))
        elif happening < 0.85 and some.phase is Phase.ACTIVE:
            world.engine.put_workload(replace(some, priority=chance.choice([40, 50, 60])))
        elif happening < 0.9:
            chosen = chance.choice(world.snapshot().projects)
            world.engine._projects[chosen.name] = replace(chosen, gpu=Quota(chance.choice([0, 1000, 2000, 4000])))
            world.engine._changed("project")
        elif happening < 0.95:
            world.engine.lose_node(chance.choice(world.snapshot().nodes).name)
        else:
            world.engine.return_node(chance.choice(world.snapshot().nodes).name)


class Remembering(World):
    """Decides twice, from nothing and with its memory."""

    memory: Memory

    def decide(self) -> Plan:
        snapshot = self.snapshot()
        warm = decide(snapshot, self.policy, self.now, self.memory)
        cold = super().decide()
        assert warm.acts == cold.acts
        assert warm == cold
        return cold


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_in_no_history_does_what_is_remembered_change_a_plan(part: int) -> None:
    for seed in range(part * 130, (part + 1) * 130):
        chance = random.Random(seed)
        world = a_world(chance)
        world.__class__ = Remembering
        assert isinstance(world, Remembering)
        world.memory = Memory()
        for _ in range(8):
            live(world, chance)
            if chance.random() < 0.5:
                world.cycle()
            else:
                world.decide()
            world.now += chance.choice([0.0, 1.0, 5.0])


def shuffled(snapshot: Snapshot, chance: random.Random) -> Snapshot:
    def mixed(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(chance.sample(items, len(items)))

    return replace(snapshot, projects=mixed(snapshot.projects), workloads=mixed(snapshot.workloads))


@pytest.mark.slow
def test_the_order_of_what_is_new_changes_nothing_either() -> None:
    for seed in range(100):
        chance = random.Random(seed)
        world = a_world(chance)
        memory = Memory()
        for _ in range(5):
            for _ in range(3):
                live(world, chance)
            world.cycle()
            snapshot = shuffled(world.snapshot(), chance)
            assert decide(snapshot, world.policy, world.now, memory) == decide(world.snapshot(), world.policy, world.now)


def test_the_queue_is_that_of_its_plan_however_late_it_is_looked_at() -> None:
    world, memory = World(node("n1", 1), a=1, b=1), Memory()
    for project in "abab":
        world.asks(project)
    early = decide(world.snapshot(), world.policy, world.now, memory)
    expected = tuple(decide(world.snapshot(), world.policy, world.now).holds)
    world.delete("a2", "b1")
    for _ in range(3):
        world.asks("b")
    decide(world.snapshot(), world.policy, world.now, memory)
    assert tuple(early.holds) == expected
    assert [hold.position for hold in early.holds] == [1, 2, 3]


def test_a_reason_is_there_before_the_queue_is_counted() -> None:
    world = World(node("n1", 1), a=1, b=1)
    for project in "abab":
        world.asks(project)
    holds = decide(world.snapshot(), world.policy, world.now).holds
    assert isinstance(holds, Holds)
    before = holds.told()
    assert holds.counted is None
    assert before == {hold.workload_id: Told(hold.reason, hold.helps) for hold in holds}


def test_a_cycle_that_fails_leaves_nothing_to_remember(monkeypatch: pytest.MonkeyPatch) -> None:
    world, memory = World(node("n1", 2), a=1, b=1), Memory()
    world.asks("a")
    decide(world.snapshot(), world.policy, world.now, memory)
    world.asks("b")
    with monkeypatch.context() as broken:
        broken.setattr("hotdesk_scheduler.core.decide.stop_stale_gangs", lambda ledger: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            decide(world.snapshot(), world.policy, world.now, memory)
    assert decide(world.snapshot(), world.policy, world.now, memory) == decide(world.snapshot(), world.policy, world.now)


def test_a_small_change_and_another_quota_are_caught_up_with_and_another_department_starts_from_nothing() -> None:
    world, memory = World(node("n1", 2), a=1, b=1), Memory()
    world.asks("a")
    decide(world.snapshot(), world.policy, world.now, memory)
    first, _ = memory._kept or (None, None)
    world.asks("b")
    decide(world.snapshot(), world.policy, world.now + 1, memory)
    assert first is not None
    assert memory._kept is not None
    assert memory._kept[0] is first
    for changed, stays in ({"gpu": Quota(2000)}, True), ({"department": "x"}, False):
        change_a_project(world, 0, **changed)
        plan = decide(world.snapshot(), world.policy, world.now + 2, memory)
        assert (memory._kept[0] is first) is stays
        assert plan == decide(world.snapshot(), world.policy, world.now + 2)


def change_a_project(world: World, number: int, **changed: Any) -> None:
    chosen = world.snapshot().projects[number]
    world.engine._projects[chosen.name] = replace(chosen, **changed)
    world.engine._changed("project")


@pytest.mark.parametrize("seed", range(25))
def test_what_projects_are_entitled_to_may_change_again_and_again(seed: int) -> None:
    chance = random.Random(seed)
    world = a_world(chance)
    world.__class__ = Remembering
    assert isinstance(world, Remembering)
    world.memory = Memory()
    for _ in range(10):
        submit(world, chance)
    for _ in range(6):
        entitled = {
            "gpu": Quota(chance.choice([None, 0, 1000, 3000]), chance.choice([None, None, 2000])),
            "weight": chance.choice([None, 0, 1000, 3000]),
            "priority": chance.choice([0, 0, 1]),
            "over_quota": chance.random() < 0.8,
        }
        change_a_project(world, chance.randrange(4), **entitled)
        world.cycle()
        world.now += 1.0
