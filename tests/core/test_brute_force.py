"""Against brute force on small clusters (`tests/brute_force`): the best set of victims is found, and none that exists is missed."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
from brute_force import FEW_UNITS, Key, Preempt, Reclaim, Rules, best, candidates, key, makes_room, sets
from builders import World
from hotdesk_scheduler.core import choice, limits, preempt, reclaim
from hotdesk_scheduler.core.allocate import minimum_runs
from hotdesk_scheduler.core.choice import Search
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.requests import Request, Requests
from hotdesk_scheduler.core.victims import Pools, Unit
from hypothesis import given
from random_worlds import MANY, SEEDS, a_history, a_state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def questions(seed: int) -> Iterator[tuple[Ledger, Pools, Request]]:
    """Everything that waits in a random state and does not simply fit, each asked on the untouched cluster."""
    for ledger, pools, request in asked_of(a_state(seed)):
        fits = makes_room(ledger, request, [])
        search = Search(ledger, request, reclaim.ReclaimRules(request))
        assert search.suffices([]) == fits, f"{request.workload.name} fits: {fits}"
        if not (fits and limits.may_start(request)):
            yield ledger, pools, request


def asked_of(world: World) -> Iterator[tuple[Ledger, Pools, Request]]:
    """Everything that waits there."""
    ledger = Ledger(world.snapshot(), world.policy, world.now)
    requests, pools = Requests(ledger), Pools(ledger)
    for request in [one for several in requests.by_project.values() for one in several]:
        if not request.surplus or minimum_runs(ledger, request):
            yield ledger, pools, request


def found(rules: Rules, ledger: Ledger, pools: Pools) -> tuple[Search, list[Unit]] | None:
    """What the scheduler would choose."""
    if isinstance(rules, Reclaim):
        return reclaim.victims_for(ledger, rules.request, pools)
    return preempt.victims_for(ledger, rules.request, pools)


def kinds(request: Request) -> list[Rules]:
    return [Reclaim(request)] if request.surplus else [Reclaim(request), Preempt(request)]


@MANY
@given(seed=SEEDS)
def test_the_set_that_is_chosen_is_the_first_of_all_by_the_order_of_the_rule_book(seed: int) -> None:
    for ledger, pools, request in questions(seed):
        for rules in kinds(request):
            if len(candidates(rules, ledger, pools)) > FEW_UNITS:
                continue
            expected = best(rules, ledger, pools, may_move=isinstance(rules, Reclaim) and not request.surplus)
            chosen = found(rules, ledger, pools)
            have = (key(rules, chosen[1], moves=chosen[0].moves), chosen[1]) if chosen else None
            assert (have and have[0]) == (expected and expected[0]), f"{request.workload.name}: {words(have)}, not {words(expected)}"


@MANY
@given(seed=SEEDS)
def test_built_greedily_no_set_is_missed_and_nobody_in_it_could_have_been_left_running(seed: int) -> None:
    with patch.object(choice, "EXACT_WORKLOADS", 0):
        for ledger, pools, request in questions(seed):
            for rules in kinds(request):
                if len(candidates(rules, ledger, pools)) > FEW_UNITS:
                    continue
                chosen = found(rules, ledger, pools)
                if chosen is None:
                    possible = best(rules, ledger, pools, may_move=isinstance(rules, Reclaim) and not request.surplus)
                    assert possible is None, f"{request.workload.name}: {words(possible)} was missed"
                else:
                    search, units = chosen
                    assert rules.is_legal(units)
                    assert search.suffices(units)
                    for rest in sets(units):
                        if len(rest) == len(units) - 1:
                            assert not (rules.is_legal(rest) and search.suffices(rest)), (
                                f"{request.workload.name}: {names(units)} can be {names(rest)}"
                            )


@MANY
@given(seed=SEEDS)
def test_at_rest_after_any_history_nobody_waits_who_fits_or_for_whom_others_may_be_stopped(seed: int) -> None:
    """Of the whole cycle, with everything that it passes over as hopeless."""
    world = a_history(seed)
    world.rest()
    for ledger, pools, request in asked_of(world):
        assert not (makes_room(ledger, request, []) and limits.may_start(request)), f"{request.workload.name} fits and waits"
        for rules in kinds(request):
            if len(candidates(rules, ledger, pools)) <= FEW_UNITS:
                missed = best(rules, ledger, pools, may_move=isinstance(rules, Reclaim) and not request.surplus)
                assert missed is None, f"{request.workload.name}: {words(missed)} was missed"


def words(entry: tuple[Key, list[Unit]] | None) -> str:
    return f"{names(entry[1])} {entry[0]}" if entry else "nobody"


def names(units: list[Unit]) -> list[tuple[str, int]]:
    return [(unit.workload.name, len(unit.seats)) for unit in units]
