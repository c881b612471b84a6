"""A scheduler may be killed between two decisions of a plan, and owners act meanwhile: the next plan starts from what that left."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from builders import World, node, q
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.model import Phase, Placement, PodState
from hotdesk_scheduler.core.plan import Nominate, Plan, Stop


def carry_out(world: World, *kinds: type) -> None:
    """Apply only the decisions of these kinds, as if the scheduler had been killed before the others."""
    some = tuple(d for d in world.plan.acts if isinstance(d, kinds))
    assert some
    asyncio.run(world._apply(replace(world.plan, acts=some)))


def test_a_share_kept_for_one_whose_victim_was_never_stopped_is_asked_for_again() -> None:
    world = World(node("n1", 1), a=q(1), b=q(0))
    world.runs("b", 0.5, group="g1")
    world.runs("b", 0.5, group="g1")
    world.asks("a", 0.5)
    world.decide()
    carry_out(world, Nominate)
    world.decide()
    carry_out(world, Nominate, Stop)
    world.settle()
    assert world.running("a") == ["a1"]
    assert len(world.running("b")) == 1


def test_a_place_on_record_is_given_back_however_often_the_plan_changes_its_mind() -> None:
    world = World(node("n1", 1), a=q(1))
    name, place = world.asks("a", 1), Placement("n1", 1)
    asyncio.run(world.engine.nominate(name, 0, place))
    ledger = Ledger(world.snapshot(), world.policy, world.now)
    ledger.start_nominated(ledger.nominated[name, 0])
    ledger.vacate(ledger.seats[name, 0])
    ledger.nominate(world.get(name), world.get(name).pods[0], place)
    ledger.vacate(ledger.nominated[name, 0])
    assert list(ledger.decisions.values()) == [Nominate(name, 0, None)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_no_history_of_plans_carried_out_in_part_leads_to_a_broken_one(seed: int) -> None:
    """The world checks every plan against the invariants; shared GPUs, slow releases and deletions in each history."""
    chance = random.Random(seed)
    world = World(node("n1", 2), node("n2", 2), a=q(2), b=q(2))
    for _ in range(25):
        for _ in range(chance.randint(0, 3)):
            pods = chance.choice([1, 1, 1, 2, 3])
            gpus = chance.choice([0, 0.3, 0.5, 1, 1, 2])
            world.asks(chance.choice("ab"), gpus, pods=pods, min_pods=1, fixed=pods == 1 and chance.random() < 0.4)
        _live(world, chance)
        asyncio.run(world._review())
        decided = world.decide().acts
        done = decided[: chance.randint(0, len(decided))] if chance.random() < 0.4 else decided
        asyncio.run(world._apply(Plan(world.plan.version, done)))
        world.now += chance.uniform(1, 20)


def _live(world: World, chance: random.Random) -> None:
    """Some pods start, go, or end by themselves; some workloads are deleted."""
    world.engine.now = world.now
    for workload in world.snapshot().workloads:
        for pod in workload.pods:
            if pod.state in (PodState.STARTING, PodState.RELEASING) and chance.random() < 0.5:
                world.engine._settle_pod(workload.id, pod.index)
            elif pod.state is PodState.RUNNING and chance.random() < 0.15:
                world.finish(workload.id, pod.index)
        if workload.phase is Phase.ACTIVE and chance.random() < 0.04:
            world.delete(workload.id)
