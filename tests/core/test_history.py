"""Past use: how it fades, and what it does to shares. What is guaranteed is never touched."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import World, node, q
from hotdesk_scheduler.core import history
from hotdesk_scheduler.core.decide import decide
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.memory import Memory
from hotdesk_scheduler.core.model import Policy
from hotdesk_scheduler.core.plan import Hold, Stop
from hotdesk_scheduler.core.shares import Claim, divide
from hypothesis import given, settings
from hypothesis import strategies as st

DAY_MS = 86_400_000
GPU = 1_000_000_000
amounts = st.integers(0, 12_000)
claims = st.lists(
    st.builds(Claim, amounts, amounts, st.sampled_from([0, 1, 500, 1000, 3000]), st.integers(0, 1), st.integers(0, 8 * GPU)),
    min_size=1,
    max_size=6,
)


def shares_of(world: World, k: float, **used_gpus: float) -> dict[str, int]:
    usage = tuple((name, int(used * GPU)) for name, used in sorted(used_gpus.items()))
    ledger = Ledger(replace(world.snapshot(), usage=usage), replace(world.policy, history_weight=k), world.now)
    return {name: account.fair[0] for name, account in ledger.projects.items()}


def test_a_half_of_the_past_is_left_after_each_half_life() -> None:
    assert [history.left_after(days * DAY_MS, DAY_MS) for days in (0, 1, 2, 3)] == [1 << 64, 1 << 63, 1 << 62, 1 << 61]


def test_the_past_fades_evenly_however_the_time_is_cut() -> None:
    once = history.left_after(DAY_MS, 7 * DAY_MS) / (1 << 64)
    hourly = (history.left_after(DAY_MS // 24, 7 * DAY_MS) / (1 << 64)) ** 24
    assert once == pytest.approx(2 ** (-1 / 7), rel=1e-6)
    assert hourly == pytest.approx(once, rel=1e-5)


def test_a_past_longer_ago_than_anything_is_gone() -> None:
    assert history.faded((("a", 8 * GPU),), {}, elapsed_ms=1000 * DAY_MS, half_life_ms=DAY_MS) == ()


def test_who_held_the_same_for_a_half_life_is_half_way_there() -> None:
    assert history.faded((), {"a": 4 * GPU}, elapsed_ms=DAY_MS, half_life_ms=DAY_MS) == (("a", 2 * GPU),)
    assert history.faded((("a", 4 * GPU),), {"a": 4 * GPU}, elapsed_ms=DAY_MS, half_life_ms=DAY_MS) == (("a", 4 * GPU),)


def test_a_clock_that_went_back_changes_nothing() -> None:
    assert history.faded((("a", GPU),), {"a": 9 * GPU}, elapsed_ms=-5, half_life_ms=DAY_MS) == (("a", GPU),)


def test_what_every_project_holds_is_summed_over_its_pods() -> None:
    world = World(node(gpus=4), a=2, b=2)
    world.runs("a", 1, pods=2)
    world.runs("a", 0.5)
    world.asks("b", 1)
    assert history.allocation(world.snapshot()) == {"a": 2500}


def test_without_a_weight_for_the_past_it_counts_for_nothing() -> None:
    world = World(node(gpus=8), a=q(0, 1), b=q(0, 1))
    for project in "ab":
        world.asks(project, 8)
    assert shares_of(world, 0, a=8) == {"a": 4000, "b": 4000}


def test_who_used_the_idle_half_all_week_yields_to_who_did_not() -> None:
    """0.5 + k (0.5 - 1) = 0.25 and 0.75 with k = 0.5: two and six of eight."""
    world = World(node(gpus=8), a=q(0, 1), b=q(0, 1))
    for project in "ab":
        world.asks(project, 8)
    assert shares_of(world, 0.5, a=4) == {"a": 2000, "b": 6000}


def test_who_used_what_his_weight_says_keeps_his_share() -> None:
    world = World(node(gpus=8), a=q(0, 3), b=q(0, 1))
    for project in "ab":
        world.asks(project, 8)
    assert shares_of(world, 1, a=6, b=2) == {"a": 6000, "b": 2000}


def test_the_past_never_touches_what_is_within_quota() -> None:
    world = World(node(gpus=8), a=q(4, 1), b=q(0, 1))
    for project in "ab":
        world.asks(project, 8)
    assert shares_of(world, 9, a=8) == {"a": 4000, "b": 4000}


def test_what_nobody_else_wants_is_a_share_even_of_who_used_everything() -> None:
    world = World(node(gpus=8), a=q(0, 1), b=q(0, 1), idle=q(0, 5))
    world.asks("a", 8)
    world.asks("b", 1)
    assert shares_of(world, 1, a=8) == {"a": 7000, "b": 1000, "idle": 0}


def test_the_past_counts_between_departments_and_inside_them() -> None:
    parents = {"x": q(0, 1), "y": q(0, 1)}
    a, b, c = (q(0, 1, department=department) for department in "xxy")
    world = World(node(gpus=16), departments=parents, a=a, b=b, c=c)
    for project in "abc":
        world.asks(project, 16)
    assert shares_of(world, 0.5, a=4) == {"a": 1000, "b": 3000, "c": 12_000}
    assert shares_of(world, 0.5, a=4, b=4, c=8) == {"a": 4000, "b": 4000, "c": 8000}


def test_a_job_of_who_used_less_takes_over_from_who_used_more() -> None:
    world = World(node(gpus=4), a=q(0, 1), b=q(0, 1), policy=Policy(grace_s=0, history_weight=0.5))
    for _ in range(4):
        world.runs("a", 1)
    for _ in range(4):
        world.asks("b", 1)
    plan = decide(replace(world.snapshot(), usage=(("a", 4 * GPU),)), world.policy, world.now)
    assert dict(plan.fair_shares) == {"a": 1000, "b": 3000}
    assert dict(plan.weights) == {"a": 500, "b": 1500}
    assert sorted(stop.workload_id for stop in plan.decisions if isinstance(stop, Stop)) == ["a2", "a3", "a4"]


def test_the_weight_as_it_is_now_can_be_shown() -> None:
    world = World(node(gpus=8), a=q(0, 1), b=q(0, 1))
    for project in "ab":
        world.asks(project, 8)
    ledger = Ledger(replace(world.snapshot(), usage=(("a", GPU),)), Policy(history_weight=0.4), world.now)
    assert {name: account.weight_now for name, account in ledger.projects.items()} == {"a": 600, "b": 1400}


def test_who_has_reached_a_share_that_past_use_made_smaller_is_told_so() -> None:
    """Weights 1:1 with k = 0.4 are 0.6 and 1.4 now: of 10 GPUs a may have 3, which it has."""
    world = World(node(gpus=10), a=q(0, 1), b=q(0, 1), policy=Policy(grace_s=0, history_weight=0.4))
    for project, count in (("a", 3), ("b", 7)):
        for _ in range(count):
            world.runs(project, 1)
    waits = world.asks("a", 1)
    world.asks("b", 1)
    plan = decide(replace(world.snapshot(), usage=(("a", 4 * GPU),)), world.policy, world.now)
    told = next(hold.reason.sentence for hold in plan.decisions if isinstance(hold, Hold) and hold.workload_id == waits)
    assert "Its over-quota weight is 1, now 0.6 because of past use." in told


def test_a_warm_start_follows_past_use_as_a_cold_one_does() -> None:
    world = World(node(gpus=8), a=q(0, 1), b=q(0, 1), policy=Policy(grace_s=0, history_weight=0.4))
    for project in "ab":
        for _ in range(8):
            world.asks(project, 1)
    memory = Memory()
    for usage in ((("a", GPU),), (("a", GPU), ("b", GPU)), (("b", GPU),), ()):
        snapshot = replace(world.snapshot(), usage=usage)
        warm, cold = decide(snapshot, world.policy, world.now, memory), decide(snapshot, world.policy, world.now)
        assert (warm.acts, warm.fair_shares, warm.weights) == (cold.acts, cold.fair_shares, cold.weights)
        assert [hold.reason for hold in warm.holds] == [hold.reason for hold in cold.holds]


@settings(max_examples=300)
@given(capacity=st.integers(0, 20_000), claims=claims, k_millis=st.sampled_from([0, 1, 400, 1000, 20_000]))
def test_corrected_shares_still_sum_to_what_is_wanted_or_there(capacity: int, claims: list[Claim], k_millis: int) -> None:
    corrected, plain = divide(capacity, claims, 1000, k_millis), divide(capacity, claims, 1000)
    guaranteed = divide(capacity, [replace(claim, wants=min(claim.wants, claim.quota)) for claim in claims], 1000)
    assert sum(corrected) <= capacity
    assert all(low <= share <= claim.wants for share, claim, low in zip(corrected, claims, guaranteed, strict=True))
    assert sum(corrected) == sum(plain)


@given(claims=claims)
def test_who_used_more_never_gets_more_for_it(claims: list[Claim]) -> None:
    """Up to the rounding to thousandths."""
    spender = replace(claims[0], used=claims[0].used + GPU)
    assert divide(8000, [spender, *claims[1:]], 1, 500)[0] <= divide(8000, claims, 1, 500)[0] + len(claims)
