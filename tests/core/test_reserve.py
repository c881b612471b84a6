"""Big jobs do not starve: who has waited long within his fair share gets nodes kept for him; small work fills in and gives way."""

from __future__ import annotations

import random

import pytest
from builders import World, node, q
from hotdesk_scheduler.core.model import Policy
from hotdesk_scheduler.core.reasons import ReasonCode

AFTER_S = 20.0
KEEPS = Policy(grace_s=0, reserve_after_s=AFTER_S)


def stream(world: World, big: str, *, seed: int, most: int, ends_after: int) -> int:
    """One-GPU trains of two other projects come every cycle and run for so many cycles each; how long the big one waited."""
    chance = random.Random(seed)
    since: dict[str, int] = {}
    for cycle in range(most):
        if big in world.running():
            return cycle
        for _ in range(3):
            world.asks(chance.choice("bc"), 1, age_s=0)
        for name in world.running():
            since.setdefault(name, cycle + chance.randint(0, 2))
            if name != big and cycle - since[name] >= ends_after:
                world.delete(name)
        world.cycle()
    return most


@pytest.mark.parametrize("seed", range(4))
def test_a_big_job_waits_no_longer_than_what_ran_before_it_takes(seed: int) -> None:
    waited = {}
    for policy in (KEEPS, Policy(grace_s=0)):
        world = World(node("n1", 4), node("n2", 4), policy=policy, a=4, b=8, c=8)
        for turn in range(8):
            world.asks("b" if turn % 2 else "c", 1, age_s=0)
        world.cycle()
        big = world.asks("a", 4, age_s=0)
        waited[policy.reserve_after_s] = stream(world, big, seed=seed, most=60, ends_after=6)
    assert waited[AFTER_S] <= AFTER_S + 6 + 2 + 3
    assert waited[None] > waited[AFTER_S], "the stream is hard enough to starve it"


def test_what_filled_in_gives_way_and_is_told_for_whom() -> None:
    world = World(node("n1", 4), policy=KEEPS, a=4, b=4)
    world.runs("b", 3, fixed=True)
    big = world.asks("a", 4, age_s=100)
    filler = world.asks("b", 1, age_s=0)
    world.cycle()
    assert world.running() == ["b1", filler]
    reason = world.hold(big)
    assert reason.sentence.endswith(
        "n1 is kept for it, as it has waited longer than 20 s: what started there since then gives way. b1 of b has to end first."
    )
    assert dict(reason.numbers)["kept_since"] == world.get(big).created_at + AFTER_S
    world.delete("b1")
    world.settle()
    assert world.running() == [big]
    reason = world.stop_reasons()[filler]
    assert reason.code is ReasonCode.GAVE_WAY
    assert reason.sentence == (
        f"It gave way to {big} of project a, for which these GPUs were kept: that had waited longer than 20 s when this started behind it. "
        "It is queued again and keeps its place by age."
    )


def test_non_preemptible_work_does_not_start_where_a_place_is_kept() -> None:
    world = World(node("n1", 4), policy=KEEPS, a=4, b=4)
    world.runs("b", 3, fixed=True)
    world.asks("a", 4, name="big", age_s=100)
    notebook = world.asks("b", 1, fixed=True, age_s=0)
    world.settle()
    reason = world.hold(notebook)
    assert reason.code is ReasonCode.KEPT_FOR_OTHERS
    assert reason.sentence == (
        "What is free on n1 is kept for big of a, which has waited long; until that has started only work that gives way to it may "
        "start there. In its turn it starts as preemptible."
    )


def test_a_projects_own_later_jobs_do_not_starve_its_big_one() -> None:
    """They fill its share: what comes after it gives way, whichever nodes it is on."""
    world = World(node("n1", 4), node("n2", 4), policy=KEEPS, a=q(4, limit=4), b=4)
    world.runs("a", 1, fixed=True, on="n1", priority=50)
    big = world.asks("a", 4, age_s=100)
    later = [world.asks("a", 1, age_s=0) for _ in range(3)]
    world.settle()
    assert set(later) < set(world.running())
    world.delete("a1")
    world.settle()
    assert world.running() == [big]
    assert set(world.stopped) == set(later)


def test_a_projects_own_later_notebook_does_not_take_the_quota_that_its_big_one_waits_for() -> None:
    world = World(node("n1", 4), node("n2", 4), policy=KEEPS, a=4)
    earlier = world.runs("a", 1, fixed=True, priority=50, age_s=1)
    big = world.asks("a", 4, fixed=True, priority=50, age_s=100)
    later = world.asks("a", 1, fixed=True, priority=50, age_s=0)
    world.settle()
    assert world.pending() == [big, later]
    assert world.hold(later).code is ReasonCode.KEPT_FOR_OTHERS
    world.delete(earlier)
    world.settle()
    assert world.running() == [big]


def test_who_fills_in_has_nobody_stopped_for_it_on_kept_nodes() -> None:
    """c takes back what is lent on the other node, although less would have to stop on the kept one, where a notebook has to end."""
    world = World(node("n1", 5), node("n2", 3), policy=KEEPS, a=5, b=2, c=1)
    world.runs("b", 1, fixed=True)
    for _ in range(4):
        world.runs("b", 1)
    lent = world.runs("b", 3, on="n2")
    world.asks("a", 5, name="big", age_s=100)
    small = world.asks("c", 1, age_s=0)
    world.settle()
    assert world.stopped == [lent]
    assert world.node_of(small) == "n2"


def test_the_larger_of_two_that_have_waited_long_goes_first_and_the_smaller_beside_it() -> None:
    world = World(node("n1", 4), policy=KEEPS, a=3, b=1, c=4)
    world.runs("c", 4, fixed=True)
    small, big = world.asks("b", 1, fixed=True, age_s=200), world.asks("a", 3, fixed=True, age_s=100)
    world.settle()
    world.delete("c1")
    world.settle()
    assert world.running() == sorted([big, small])


def test_surplus_pods_that_joined_behind_give_way_and_the_minimum_stays() -> None:
    world = World(node("n1", 4), policy=KEEPS, a=3, b=1)
    world.runs("b", 1, pods=4, min_pods=1, on=["n1"], age_s=500)
    blocker = world.runs("a", 1, fixed=True)
    big = world.asks("a", 3, age_s=100)
    world.cycle()
    assert world.pods_running("b1") > 1
    world.delete(blocker)
    world.settle()
    assert world.pods_running("b1") == 1
    assert big in world.running()


def test_a_gang_gets_as_many_nodes_as_it_needs_where_least_has_to_end() -> None:
    nodes = [node(f"n{i}", 4) for i in range(1, 5)]
    world = World(*nodes, policy=KEEPS, a=8, b=8)
    for name, gpus in (("n1", 3), ("n2", 1), ("n3", 4), ("n4", 2)):
        world.runs("b", gpus, fixed=True, on=name)
    gang = world.asks("a", 4, pods=2, age_s=100)
    world.settle()
    assert " n2 and n4 are kept for it" in world.hold(gang).sentence
    assert world.hold(gang).sentence.endswith("b2 of b and b4 of b have to end first.")


def test_a_node_full_of_notebooks_is_kept_last_for_nobody_knows_when_they_end() -> None:
    world = World(node("n1", 4), node("n2", 4), policy=KEEPS, a=3, b=5)
    for _ in range(2):
        world.runs("b", 1, fixed=True, on="n1")
    world.runs("b", 3, on="n2")
    big = world.asks("a", 3, age_s=100)
    world.settle()
    assert "n2 is kept for it" in world.hold(big).sentence


def test_a_node_whose_cpu_is_taken_is_not_kept_as_if_it_were_free() -> None:
    world = World(node("n1", 4, cpu_millis=8000), node("n2", 4, cpu_millis=8000), policy=KEEPS, a=4, b=8)
    world.runs("b", 0, fixed=True, cpu_millis=6000, on="n1")
    world.runs("b", 0, fixed=True, cpu_millis=6000, on="n1", name="more", memory_mib=1)
    world.runs("b", 2, fixed=True, on="n2")
    big = world.asks("a", 4, cpu_millis=4000, age_s=100)
    world.settle()
    assert "n2 is kept for it" in world.hold(big).sentence


@pytest.mark.parametrize("change", ["deleted", "its node lost"])
def test_nothing_is_kept_any_more_for_who_is_gone(change: str) -> None:
    world = World(node("n1", 4), node("n2", 1), policy=KEEPS, a=4, b=5)
    world.runs("b", 3, fixed=True)
    world.asks("a", 4, name="big", age_s=100)
    notebook = world.asks("b", 1, fixed=True, age_s=0)
    other = world.runs("b", 1, fixed=True, on="n2")
    world.settle()
    assert notebook in world.pending()
    if change == "deleted":
        world.delete("big")
    else:
        world.engine.lose_node("n1")
        world.delete(other)
    world.settle()
    assert notebook in world.running()


def test_a_reservation_beyond_quota_keeps_out_nobody_who_is_within_his() -> None:
    world = World(node("n1", 4), policy=KEEPS, a=q(0, 1), b=4)
    world.runs("b", 1, fixed=True)
    world.runs("b", 1, fixed=True)
    world.asks("a", 2, name="big", age_s=0)
    world.settle()
    notebook = world.asks("b", 1, fixed=True, age_s=0)
    world.settle()
    assert notebook in world.running()


@pytest.mark.parametrize("fixed", [True, False])
def test_a_reservation_keeps_out_nobody_below_quota_while_its_own_project_runs_beyond_its_quota(fixed: bool) -> None:
    """Younger work of its project that ran before it had waited long stays, so its start would be beyond quota."""
    world = World(node("n1", 4), node("n2", 4), policy=KEEPS, a=2, b=2, c=4)
    world.asks("a", 2, name="old")
    world.runs("a", 2, on="n2", started_s_ago=20_000)
    world.runs("a", 2, on="n2", started_s_ago=20_000)
    world.runs("c", 4, on="n1", started_s_ago=20_000)
    owner = world.asks("b", 1, fixed=fixed, age_s=0)
    world.settle()
    assert owner in world.running()


def test_more_important_work_of_its_own_project_is_not_kept_out() -> None:
    world = World(node("n1", 4), policy=KEEPS, a=4)
    world.runs("a", 3, fixed=True)
    world.asks("a", 4, name="big", age_s=100)
    notebook = world.asks("a", 1, fixed=True, age_s=0)
    world.settle()
    assert notebook in world.running()


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_with_reservations_come_to_rest_and_break_nothing(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        quotas = {
            name: q(chance.choice([0, 1, 2, 4]), chance.choice([None, 0, 1]), department=chance.choice([None, "x"])) for name in "abc"
        }
        nodes = [node(f"n{i}", chance.randint(1, 4)) for i in range(chance.randint(1, 3))]
        world = World(*nodes, policy=KEEPS, departments={"x": q(3)}, **quotas)
        for _ in range(4):
            for _ in range(chance.randint(1, 5)):
                fixed = chance.random() < 0.3
                pods = chance.choice([1, 1, 2])
                age_s = chance.choice([0, 5, 100])
                world.asks(chance.choice("abc"), chance.choice([1, 1, 2, 3, 0.5]), pods=pods, fixed=fixed, age_s=age_s)
            world.settle(20)
            if world.running() and chance.random() < 0.6:
                world.delete(chance.choice(world.running()))
                world.settle(20)
            world.now += chance.choice([0, 30])
