"""Properties of the core (scheduling.md 7) over random clusters, projects and histories; the worlds are those of `random_worlds`.

`World.decide` checks every plan against `invariants`, which read the plan; what is looked at here is what is there afterwards.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from builders import World, at_once, node, q
from hotdesk_scheduler.core import choice, invariants
from hotdesk_scheduler.core.decide import decide
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.model import HOLDING, PodState, Policy, Quota
from hotdesk_scheduler.core.plan import Hold, Move, Start, Stop
from hotdesk_scheduler.core.shares import Claim, divide
from hypothesis import given
from hypothesis import strategies as st
from random_worlds import MANY, NAMES, SEEDS, SHARED_GPUS, QuickWorld, a_history, a_smaller, a_state, an_ask, shuffled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


# --- at rest ---------------------------------------------------------------------------------------------------------------------------


@MANY
@given(seed=SEEDS)
def test_whatever_happened_it_is_at_rest_within_six_cycles_and_five_more_change_nothing(seed: int) -> None:
    a_history(seed).rest()


@MANY
@given(seed=SEEDS)
def test_it_comes_to_rest_as_well_where_sets_of_victims_are_built_greedily(seed: int) -> None:
    with patch.object(choice, "EXACT_WORKLOADS", 0):
        a_history(seed, batches=3).rest()


@MANY
@given(seed=SEEDS)
def test_a_state_that_no_history_led_to_comes_to_rest_within_ten_cycles(seed: int) -> None:
    a_state(seed).rest(within=10)


# --- conserved, bounded ----------------------------------------------------------------------------------------------------------------


class Watched(QuickWorld):
    """Looks at what is there after every cycle."""

    def cycle(self) -> bool:
        moved = super().cycle()
        broken = invariants.state(self.snapshot())
        assert not broken, "; ".join(broken)
        for workload in self.snapshot().workloads:
            there = sum(pod.state in (PodState.STARTING, PodState.RUNNING) or pod.nominated is not None for pod in workload.pods)
            assert there == 0 or there >= workload.min_pods, f"{workload.name} has {there} of at least {workload.min_pods} pods"
        return moved


@MANY
@given(seed=SEEDS)
def test_no_device_is_both_whole_and_shared_no_quota_or_limit_exceeded_and_no_gang_partly_started(seed: int) -> None:
    """In histories of submissions and deletions: only a lost node, a failed pod or a lowered quota may break these."""
    a_history(seed, kind=Watched, breaks=False)


@MANY
@given(seed=SEEDS)
def test_what_is_held_and_what_is_free_is_what_there_is_and_no_share_is_handed_out_twice(seed: int) -> None:
    world = a_state(seed)
    ledger = Ledger(world.snapshot(), world.policy, world.now)
    for spot in ledger.spots:
        room = spot.later
        held = sum(seat.placement.whole for seat in ledger.seats.values() if seat.spot is spot)
        assert room.free_gpus + held + len(room.groups) == spot.node.gpus
    holding = [pod.placement for w in world.snapshot().workloads for pod in w.pods if pod.placement]
    assert sum(account.allocated[0] for account in ledger.top) == sum(place.gpu_millis for place in holding)
    assert sum(account.fair[0] for account in ledger.top) <= ledger.capacity[0] or any(a.quota[0] > 2**60 for a in ledger.top)
    for account in (*ledger.top, *ledger.projects.values()):
        assert 0 <= account.fair[0] <= min(account.limit[0], account.requested[0])
        if account.children and all(child.quota[0] < 2**60 for child in account.children):
            assert sum(child.fair[0] for child in account.children) <= account.fair[0]


@MANY
@given(seed=SEEDS)
def test_nobody_is_put_on_a_shared_gpu_that_is_closed_and_it_comes_to_rest(seed: int) -> None:
    """Those who are on it stay (`invariants` look at who comes)."""
    world, chance = a_state(seed), random.Random(seed)
    for one in world.snapshot().nodes:
        world.engine.put_node(replace(one, closed_groups=tuple(sorted(chance.sample(SHARED_GPUS, chance.randint(1, 2))))))
    world.rest(within=10)


class Shrunk(QuickWorld):
    """Nodes that became smaller under what runs: after every cycle none lacks more than it lacked before."""

    def lacking(self) -> list[tuple[int, ...]]:
        rooms = [spot.now for spot in Ledger(self.snapshot(), self.policy, self.now).spots]
        return [tuple(min(0, amount) for amount in (r.free_gpus, r.cpu_millis, r.memory_mib, r.pods)) for r in rooms]

    def cycle(self) -> bool:
        before = self.lacking()
        moved = super().cycle()
        for old, new in zip(before, self.lacking(), strict=True):
            assert all(b >= a for a, b in zip(old, new, strict=True)), f"lacked {old} and lacks {new} (GPUs, CPU, memory, pods)"
        return moved


@MANY
@given(seed=SEEDS)
def test_nodes_that_become_smaller_than_what_runs_there_stop_nobody_else_and_it_comes_to_rest(seed: int) -> None:
    world, chance = a_history(seed, batches=3, kind=Shrunk), random.Random(seed)
    for _ in range(chance.randint(1, 3)):
        for one in world.snapshot().nodes:
            world.engine.put_node(a_smaller(one, chance))
        for _ in range(chance.randint(0, 2)):
            project, gpus, more = an_ask(chance)
            world.asks(project, chance.choice([gpus, 0]), **more)
        for _ in range(chance.randint(0, 2)):
            world.cycle()
    world.rest(within=10)


# --- deterministic ---------------------------------------------------------------------------------------------------------------------


@MANY
@given(seed=SEEDS)
def test_the_order_of_the_input_changes_nothing(seed: int) -> None:
    world = a_state(seed)
    snapshot = world.snapshot()
    assert decide(shuffled(snapshot, seed), world.policy, world.now) == decide(snapshot, world.policy, world.now)


# --- no stop for nothing ---------------------------------------------------------------------------------------------------------------


class Remembering(QuickWorld):
    """Keeps for whom something was stopped or moved, and expects it to run two cycles later."""

    expected: frozenset[str] = frozenset()

    def cycle(self) -> bool:
        moved = super().cycle()
        missing = self.expected.difference(self.running())
        assert not missing, f"something was stopped for {missing}, which does not run"
        self.expected = frozenset(d.beneficiary for d in self.plan.decisions if isinstance(d, Stop | Move) and d.beneficiary)
        return moved


@MANY
@given(seed=SEEDS)
def test_for_whom_something_is_stopped_or_moved_runs_as_soon_as_that_is_gone(seed: int) -> None:
    a_state(seed, kind=Remembering).rest(within=10)


@MANY
@given(seed=SEEDS)
def test_nothing_non_preemptible_is_ever_stopped(seed: int) -> None:
    world = a_state(seed)
    fixed = {w.id for w in world.snapshot().workloads if not w.preemptible}
    assert not fixed & {d.workload_id for d in world.decide().decisions if isinstance(d, Stop | Move)}


# --- what is one's own -----------------------------------------------------------------------------------------------------------------


def a_fair_cluster(chance: random.Random) -> QuickWorld:
    """Whole GPUs, quotas that can all be met at once, projects and departments; everybody may have lent and queued anything."""
    gpus = [chance.randint(1, 4) for _ in range(chance.randint(1, 3))]
    left = sum(gpus)
    quotas = []
    for _ in NAMES:
        quotas.append(chance.randint(0, left))
        left -= quotas[-1]
    homes = [chance.choice([None, "x", "y"]) for _ in NAMES]
    departments = {d: q(sum(quota for quota, home in zip(quotas, homes, strict=True) if home == d)) for d in "xy"}
    projects: dict[str, Any] = {
        name: {**q(quota, chance.choice([None, 0, 1])), "department": home} for name, quota, home in zip(NAMES, quotas, homes, strict=True)
    }
    return QuickWorld(*[node(f"n{i}", n) for i, n in enumerate(gpus)], departments=departments, **projects)


@MANY
@given(seed=SEEDS)
def test_one_gpu_of_a_project_below_quota_starts_within_a_cycle_whatever_others_have_queued(seed: int) -> None:
    """Quotas fit the cluster, so the GPU is free, or held by preemptible work above quota, or somebody below quota comes first."""
    chance = random.Random(seed)
    world = a_fair_cluster(chance)
    for _ in range(chance.randint(1, 3)):
        for _ in range(chance.randint(1, 5)):
            project, gpus, more = an_ask(chance)
            world.asks(project, max(1, int(gpus)), **{**more, "cpu_millis": 100, "memory_mib": 100})
        world.rest()
    waiting = [p for p in world.snapshot().projects if world.used(p.name) * 1000 + 1000 <= (p.gpu.quota or 0)]
    asked = [world.asks(p.name, 1, priority=200) for p in waiting]
    world.cycle()
    for name in asked:
        pod = world.get(name).pods[0]
        assert pod.placement or pod.nominated, f"{name} is below quota and waits"


@MANY
@given(seed=SEEDS)
def test_who_has_more_quota_never_runs_less(seed: int) -> None:
    """One-GPU trains and nothing else, so that no size of hole decides."""
    chance = random.Random(seed)
    poor = a_fair_cluster(chance)
    for _ in range(chance.randint(2, 14)):
        poor.asks(chance.choice(NAMES), 1, priority=chance.choice([40, 50]))
    rich = QuickWorld(*poor.snapshot().nodes)
    favoured = chance.choice(poor.snapshot().projects)
    for department in poor.snapshot().departments:
        at_once(rich.engine.put_department(department))
    for project in poor.snapshot().projects:
        more = Quota((project.gpu.quota or 0) + 1000 * chance.randint(1, 3))
        at_once(rich.engine.put_project(replace(project, gpu=more) if project is favoured else project))
    for workload in poor.snapshot().workloads:
        rich.engine.put_workload(workload)
    poor.rest()
    rich.rest()
    assert rich.used(favoured.name) >= poor.used(favoured.name)


# --- told ------------------------------------------------------------------------------------------------------------------------------


class Telling(QuickWorld):
    decide = World.decide


@MANY
@given(seed=SEEDS)
def test_everybody_who_waits_is_told_why_once(seed: int) -> None:
    world = a_state(seed, kind=Telling)
    pending = set(world.pending())
    plan = world.decide()
    holds = [d for d in plan.decisions if isinstance(d, Hold)]
    told = {d.workload_id for d in holds}
    assert len(told) == len(holds)
    assert pending - {d.workload_id for d in plan.decisions if isinstance(d, Start)} <= told
    assert told <= pending | {d.workload_id for d in plan.decisions if isinstance(d, Stop)}
    assert sorted(d.position for d in holds) == list(range(1, len(holds) + 1))
    assert all(d.reason.sentence.endswith(".") and "insufficient" not in d.reason.sentence.lower() for d in holds)


# --- shares ----------------------------------------------------------------------------------------------------------------------------


claims = st.lists(
    st.builds(
        Claim,
        quota=st.integers(0, 8).map(lambda n: n * 500),
        wants=st.integers(0, 20).map(lambda n: n * 500),
        weight=st.integers(0, 5).map(lambda n: n * 1000),
        priority=st.integers(0, 1),
    ),
    min_size=1,
    max_size=6,
)
capacities = st.integers(0, 20).map(lambda n: n * 1000)


@MANY
@given(capacity=capacities, everyone=claims)
def test_shares_are_conserved_and_bounded(capacity: int, everyone: list[Claim]) -> None:
    shares = divide(capacity, everyone, 1000)
    assert sum(shares) <= capacity
    assert all(0 <= share <= claim.wants for share, claim in zip(shares, everyone, strict=True))
    weighted = [c for c in everyone if c.weight] or everyone
    if any(share < claim.wants for share, claim in zip(shares, everyone, strict=True) if claim in weighted):
        assert sum(shares) == capacity


@MANY
@given(capacity=capacities, everyone=claims, more=st.integers(1, 4))
def test_more_quota_never_means_a_smaller_share(capacity: int, everyone: list[Claim], more: int) -> None:
    """Where weights do not follow quotas; what goes out in whole GPUs may shift by less than one."""
    richer = [replace(everyone[0], quota=everyone[0].quota + more * 1000), *everyone[1:]]
    assert divide(capacity, richer, 1000)[0] + 1000 > divide(capacity, everyone, 1000)[0]


# --- by hand ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["binpack", "spread"])
def test_both_ways_of_placing_keep_the_invariants(placement: str) -> None:
    world = World(node("n1", 4), node("n2", 4), policy=Policy(grace_s=0, placement=placement), a=4, b=4)
    for gpu in (1, 0.5, 0.5, 2, 1, 0.3):
        world.asks("a", gpu)
    world.settle()
    used = {p.placement.node for w in world.snapshot().workloads for p in w.pods if p.state in HOLDING and p.placement}
    assert used == ({"n1", "n2"})
    assert any(isinstance(d, Start) for plan in world.plans for d in plan.decisions)


def test_an_elastic_workload_that_just_grew_is_one_victim_not_two() -> None:
    """Its surplus pod gets a kept place while the same plan may still take the rest of it."""
    world = World(node("n1", 4), node("n2", 4), a=q(1, 0), b=q(7, 1))
    world.runs("a", 1, pods=4, min_pods=1, on=["n1", "n1", "n1"])
    for index in range(3):
        world.runs("a", 1, on="n2", name=f"filler{index}")
    leaving = world.runs("b", 1, on="n2")
    world.delete(leaving)
    world.asks("b", 3)
    world.asks("b", 4)
    world.settle()
    assert world.used("b") == 7
