"""Sets of many victims, built greedily: none of them could have been left running, however many they are."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from builders import World, node, q
from hotdesk_scheduler.core.choice import Search
from hotdesk_scheduler.core.greedy import Greedy
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.model import Policy
from hotdesk_scheduler.core.reclaim import ReclaimRules
from hotdesk_scheduler.core.requests import Request, Requests
from hotdesk_scheduler.core.slots import Slots
from hotdesk_scheduler.core.victims import Pools, Unit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.slow
NODES = 14


def full_of_lent_work(chance: random.Random) -> World:
    """Nodes of 8 GPUs full of what `lent` and `more` have running beyond their quota; `owner` asks for a gang on most of them."""
    cpu = chance.choice([80_000, 900])
    world = World(
        *[node(f"n{i:02}", 8, cpu_millis=cpu) for i in range(NODES)], lent=q(0, 0), more=q(chance.choice([0, 3]), 0), owner=q(8 * NODES)
    )
    for i in range(NODES):
        free = 8
        while free:
            size = min(free, chance.choice([1, 1, 1, 1, 2]))
            world.runs(chance.choice(["lent", "more"]), size, on=f"n{i:02}")
            free -= size
    pods = chance.randint(NODES - 4, NODES - 1)
    world.asks("owner", chance.choice([8, 7, 6, 5]), pods=pods)
    return world


def chosen_for(world: World) -> tuple[Search, list[Unit]]:
    ledger, request, units = question(world)
    search = Search(ledger, request, ReclaimRules(request))
    in_order = sorted(units, key=lambda unit: (search.rules.badness(unit), unit.preference))
    return search, Greedy(search).greedy(in_order, []) or []


def question(world: World) -> tuple[Ledger, Request, list[Unit]]:
    """The working copy, what `owner` asks for, and all that others have running."""
    ledger = Ledger(world.snapshot(), world.policy, world.now)
    (request,) = Requests(ledger).by_project["owner"]
    pools = Pools(ledger)
    return ledger, request, [unit for name in ledger.projects if name != "owner" for unit in pools.of(name)]


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1_000_000))
def test_of_many_victims_none_could_have_been_left_running(seed: int) -> None:
    search, chosen = chosen_for(full_of_lent_work(random.Random(seed)))
    for unit in chosen:
        rest = [other for other in chosen if other is not unit]
        assert not (search.rules.legal(rest) and search.suffices(rest)), f"{unit.workload.name} of {len(chosen)} could have been left"


def test_more_than_half_of_what_is_lent_is_taken_back_where_it_has_to_be() -> None:
    world = World(*[node(f"n{i:02}", 8) for i in range(NODES)], lent=q(0, 0), owner=q(8 * NODES))
    for i in range(8 * NODES):
        world.runs("lent", 1, on=f"n{i % NODES:02}")
    world.asks("owner", 8, pods=NODES - 1)
    world.settle()
    assert world.used("owner") == 8 * (NODES - 1)
    assert world.used("lent") == 8


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1_000_000))
def test_what_counting_says_is_needed_is_needed(seed: int) -> None:
    """All that runs is taken out, and put back one by one: where the count says no, the gang does not fit."""
    ledger, request, left = question(full_of_lent_work(random.Random(seed)))
    search = Search(ledger, request, ReclaimRules(request))
    places = Slots(ledger, request, left)
    for unit in left[::3]:
        rest = [other for other in left if other is not unit]
        if places.leave_running(unit):
            left = rest
            assert search.suffices(left), "all pods are equal: the count is exact"
        else:
            assert not search.suffices(rest)


def test_beyond_twelve_workloads_some_stop_and_others_move() -> None:
    """Acceptance case 29 among many more possible victims: one small train stops, a larger one moves beside it."""
    small = [node(f"s{i}", 1) for i in range(14)]
    world = World(node("n1", 4), node("n2", 4), *small, lent=q(0, 0), a=q(4), b=q(4), policy=Policy(grace_s=0))
    for i in range(14):
        world.runs("lent", 1, on=f"s{i}", priority=60)
    world.runs("a", 2, on="n1")
    world.runs("a", 2, on="n2")
    stops = world.runs("lent", 1, on="n2", priority=40)
    asked = world.asks("b", 4)
    world.settle()
    assert asked in world.running()
    assert world.stopped == [stops]
    assert world.used("a") == 4


def test_of_more_than_sixty_four_possible_victims_those_that_keep_the_project_at_its_limit_are_found() -> None:
    """The gang has room on empty nodes; what it needs is the right to start: its own less important work has to go, wherever it runs."""
    world = World(*[node(f"n{i:02}", 8) for i in range(24)], a=q(96, limit=96))
    for i in range(96):
        world.runs("a", 1, on=f"n{i % 12:02}", priority=40)
    asked = world.asks("a", 8, pods=9, priority=60)
    world.settle()
    assert asked in world.running()
    assert len(world.stopped) == 72


@pytest.mark.parametrize("seed", range(12))
def test_offers_kept_from_one_request_to_the_next_change_no_answer(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    with_offers = Greedy.greedy

    def both_ways(self: Greedy, units: Iterable[Unit], seen: list[Unit]) -> list[Unit] | None:
        search, everybody = self.search, list(units)
        losers, search.losers = search.losers, ()
        expected = with_offers(self, iter(everybody), [])
        rest, search.losers = iter(everybody), losers
        chosen = with_offers(self, rest, seen)
        seen.extend(rest)
        assert chosen == expected
        compared.append(len(losers))
        return chosen

    monkeypatch.setattr(Greedy, "greedy", both_ways)
    chance = random.Random(seed)
    world = full_of_lent_work(chance)
    for _ in range(30):
        pods, project = chance.choice([1, 1, 2, 3]), chance.choice(["owner", "owner", "lent"])
        surplus = chance.choice([0, 0, pods - 1])
        world.asks(project, chance.choice([1, 2, 2, 4, 8, 0.5]), pods=pods, min_pods=pods - surplus, priority=chance.choice([40, 50, 60]))
    world.decide()
    assert len(compared) > 5
