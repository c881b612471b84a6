"""Against brute force on small clusters: at rest, nothing waits that some legal set of victims would have let start."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from unittest.mock import patch

import pytest
from builders import World, node, q
from hotdesk_scheduler.core import choice, limits
from hotdesk_scheduler.core.allocate import minimum_runs
from hotdesk_scheduler.core.choice import Rules, Search
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.preempt import PreemptRules
from hotdesk_scheduler.core.reclaim import ReclaimRules
from hotdesk_scheduler.core.requests import Request, Requests
from hotdesk_scheduler.core.victims import Pools, Unit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

MOST_UNITS = 9
pytestmark = pytest.mark.slow


def a_world_at_rest(seed: int) -> World:
    chance = random.Random(seed)
    projects = [
        {
            **q(chance.choice([0, 1, 2, 3, 4, 0.5, None]), chance.choice([None, None, 0, 1, 3]), chance.choice([None, None, None, 2, 4])),
            "priority": chance.choice([0, 0, 0, 1]),
            "department": chance.choice([None, None, "x", "y"]),
        }
        for _ in range(4)
    ]
    nodes = [node(f"n{i}", chance.randint(1, 4)) for i in range(chance.randint(1, 3))]
    a, b, c, d = projects
    world = World(*nodes, departments={"x": q(3), "y": q(2, 1, 6)}, a=a, b=b, c=c, d=d)
    for _ in range(chance.randint(1, 4)):
        for _ in range(chance.randint(1, 4)):
            submit_something(world, chance)
        world.settle()
    return world


def submit_something(world: World, chance: random.Random) -> None:
    pods, fixed = chance.choice([1, 1, 1, 1, 2, 3]), chance.random() < 0.25
    world.asks(
        chance.choice("abcd"),
        chance.choice([1, 1, 1, 2, 2, 3, 4, 0.5, 0.3, 0.7, 0.25]),
        pods=pods,
        fixed=fixed,
        min_pods=1 if chance.random() < 0.5 else pods,
        priority=None if fixed else chance.choice([None, None, 40, 60]),
    )


def missed(world: World) -> Iterator[str]:
    """What could have started and did not, by looking at every set of victims."""
    ledger = Ledger(world.snapshot(), world.policy, world.now)
    requests, pools = Requests(ledger), Pools(ledger)
    for request in [r for several in requests.by_project.values() for r in several]:
        if request.surplus and not minimum_runs(ledger, request):
            continue
        rules = ReclaimRules(request)
        if limits.may_start(request) and Search(ledger, request, rules).suffices([]):
            yield f"{request.workload.name} fits as it is"
        others = [unit for name in ledger.projects if name != request.account.name for unit in pools.of(name)]
        if rules.may_ask() and a_set_exists(ledger, request, rules, others):
            yield f"{request.workload.name} could have reclaimed"
        own = [unit for unit in pools.of(request.account.name) if unit.workload.priority < request.workload.priority]
        if not request.surplus and a_set_exists(ledger, request, PreemptRules(request), own):
            yield f"{request.workload.name} could have preempted"


def a_set_exists(ledger: Ledger, request: Request, rules: Rules, units: list[Unit]) -> bool:
    if len(units) > MOST_UNITS:
        return False
    search = Search(ledger, request, rules)
    for chosen in product([False, True], repeat=len(units)):
        taken = [unit for unit, is_taken in zip(units, chosen, strict=True) if is_taken]
        in_order = all(unit.before is None or unit.before in taken for unit in taken)
        if taken and in_order and rules.legal(taken) and search.suffices(taken):
            return True
    return False


@pytest.mark.parametrize("exact_up_to", [12, 0], ids=["all sets looked at", "built greedily"])
def test_no_reclaim_and_no_preemption_is_missed(exact_up_to: int) -> None:
    @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
    @given(seed=st.integers(0, 1_000_000))
    def look(seed: int) -> None:
        assert list(missed(a_world_at_rest(seed))) == []

    with patch.object(choice, "EXACT_WORKLOADS", exact_up_to):
        look()
