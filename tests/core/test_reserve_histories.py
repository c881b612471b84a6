"""Random histories with nodes kept for who has waited long: it comes to rest, nobody is stopped in vain, nobody gives way twice."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from builders import World, node
from hotdesk_scheduler.core.model import Policy
from hotdesk_scheduler.core.plan import Move, Stop
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hypothesis import given, settings
from random_worlds import HAPPENINGS, SEEDS, QuickWorld, a_cluster, an_ask

AFTER_S = 20.0
KEEPS = Policy(grace_s=0, reserve_after_s=AFTER_S)
SOME = settings(max_examples=5 * settings().max_examples)


class Keeping(QuickWorld):
    """Expects for whom something was stopped or moved to run two cycles later, and counts who gave way."""

    expected: frozenset[str] = frozenset()
    gave_way: Counter[str] = Counter()

    def happens(self) -> None:
        """Something changed from outside: who was expected to run may be gone."""
        self.expected = frozenset()

    def cycle(self) -> bool:
        moved = super().cycle()
        missing = self.expected.difference(self.running())
        assert not missing, f"something was stopped for {missing}, which does not run"
        stops = [d for d in self.plan.decisions if isinstance(d, Stop | Move)]
        self.expected = frozenset(d.beneficiary for d in stops if d.beneficiary)
        self.gave_way = self.gave_way + Counter({d.workload_id for d in stops if d.reason.code is ReasonCode.GAVE_WAY})
        return moved


def a_history_with_kept_nodes(seed: int) -> Keeping:
    chance = random.Random(seed)
    world = a_cluster(chance, Keeping, reserve_after_s=AFTER_S)
    assert isinstance(world, Keeping)
    for _ in range(chance.randint(2, 6)):
        for _ in range(chance.randint(2, 6)):
            if chance.random() < 0.8:
                project, gpus, more = an_ask(chance)
                world.asks(project, gpus, age_s=chance.choice([0, 5, 100]), **more)
            else:
                chance.choice(HAPPENINGS[1:3])(world, chance)
            world.happens()
        for _ in range(chance.randint(1, 3)):
            world.cycle()
        world.now += chance.choice([0, 30])
        world.happens()
    world.now += 5000
    return world


@pytest.mark.slow
@SOME
@given(seed=SEEDS)
def test_with_nodes_kept_it_comes_to_rest_nobody_is_stopped_in_vain_and_nobody_gives_way_twice(seed: int) -> None:
    world = a_history_with_kept_nodes(seed)
    world.happens()
    world.rest(within=10)
    assert not {name: times for name, times in world.gave_way.items() if times > 1}


def gave_way_before(world: World, name: str) -> str:
    workload = world.get(name)
    why = Reason(ReasonCode.GAVE_WAY, "It gave way to another.")
    world.engine.put_workload(replace(workload, pods=tuple(replace(pod, stop_reason=why) for pod in workload.pods)))
    return name


def test_who_gave_way_once_does_not_fill_in_again() -> None:
    world = World(node("n1", 4), policy=KEEPS, a=4, b=4)
    blocker = world.runs("b", 3, fixed=True)
    world.asks("a", 4, age_s=100)
    gave_way = gave_way_before(world, world.asks("b", 1, age_s=1))
    world.settle()
    assert world.running() == [blocker]
    assert world.hold(gave_way).code is ReasonCode.KEPT_FOR_OTHERS


def test_who_gave_way_once_and_runs_again_is_not_stopped_for_the_next_that_waits_long() -> None:
    world = World(node("n1", 4), policy=KEEPS, a=4, b=4)
    again = gave_way_before(world, world.runs("b", 1, started_s_ago=10, age_s=1))
    big = world.asks("a", 4, age_s=100)
    world.settle()
    assert world.stopped == []
    assert world.hold(big).sentence.endswith(f"{again} of b has to end first.")
    world.delete(again)
    world.settle()
    assert world.running() == [big]


def test_nobody_gives_way_for_one_who_would_then_be_preempted_at_once() -> None:
    """Both of a wait for the same GPU, the less important one for longer: it would be stopped for the other as soon as it runs."""
    world = World(node("n1", 1), policy=KEEPS, a=1, b=1)
    filler = world.runs("b", 1, started_s_ago=10, age_s=0)
    world.asks("a", 1, name="usual", age_s=100)
    urgent = world.asks("a", 1, priority=60, age_s=0)
    world.settle()
    assert world.running() == [filler]
    world.delete(filler)
    world.settle()
    assert world.running() == [urgent]
    assert world.stopped == []


def test_a_gang_of_which_a_pod_was_just_moved_does_not_give_way_in_part() -> None:
    world = World(node("n1", 2), node("n2", 1), node("n9", 2, pool="p"), policy=KEEPS, c=2, a=2, b=1)
    gang = world.runs("b", 1, pods=2, on=["n1", "n9"], started_s_ago=10, age_s=0)
    long = world.asks("a", 2, fixed=True, age_s=100, node_pools=("p",))
    hole = world.asks("c", 2, age_s=1)
    world.decide()
    assert [d.workload_id for d in world.plan.decisions if isinstance(d, Move)] == [gang]
    world.settle()
    assert {long, hole} <= set(world.running())
