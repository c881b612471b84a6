"""Books and deadlines kept from one pass to the next say what a fresh look says, and plans that break a rule are found with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import World, node, q
from hotdesk_scheduler.core import invariants
from hotdesk_scheduler.core.books import Books
from hotdesk_scheduler.core.deadlines import Deadlines
from hotdesk_scheduler.core.decide import decide
from hotdesk_scheduler.core.model import Placement
from hotdesk_scheduler.core.plan import Hold, Nominate, Plan, Start, Stop
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hypothesis import given
from random_worlds import SEEDS, QuickWorld, a_history

REASON = Reason(ReasonCode.RECLAIMED, "It gives way.")


def facts(books: Books) -> dict[str, Any]:
    """All that books say, but for what is empty."""
    sums = {
        name: [(account.name, account.allocated, account.fixed) for project in accounts.values() for account in project.path]
        for name, accounts in (("running", books.running), ("later", books.later_accounts))
    }
    places = {name: {at: held for at, held in table.items() if held} for name, table in (("now", books.now), ("then", books.later))}
    return {**sums, **places, "nodes": books.nodes, "workloads": books.workloads, "waiting": books.waiting}


class Kept(QuickWorld):
    """Compares the books it keeps with fresh ones at every decision."""

    def __init__(self, *nodes: Any, **more: Any) -> None:
        super().__init__(*nodes, **more)
        self.books, self.deadlines = Books(), Deadlines()

    def decide(self) -> Plan:
        snapshot, plan, fresh = self.snapshot(), super().decide(), Books()
        assert not invariants.check(snapshot, plan, self.books, told=False)
        fresh.catch_up(snapshot)
        assert facts(self.books) == facts(fresh)
        assert self.deadlines.next(snapshot, self.policy, self.now) == Deadlines().next(snapshot, self.policy, self.now)
        return plan


@given(SEEDS)
def test_what_is_kept_is_that_of_a_fresh_look(seed: int) -> None:
    a_history(seed, kind=Kept)


def busy() -> World:
    world = World(node("n1", 2), node("n2", 2), a=q(1, limit=2), b=q(2))
    world.runs("a", 1, on="n1")
    world.runs("b", 1, on="n1", fixed=True)
    world.asks("a", 1)
    world.asks("a", 1)
    world.asks("b", 1, pods=2)
    return world


def hold(workload_id: str, position: int = 1) -> Hold:
    return Hold(workload_id, REASON, position)


BROKEN: dict[str, tuple[tuple[Any, ...], str]] = {
    "a full node": ((Start("a2", 0, Placement("n1", whole=1)),), "n1 has 2 GPUs"),
    "no such node": ((Start("a2", 0, Placement("n9", whole=1)),), "there is no node n9"),
    "more than the limit": ((Start("a2", 0, Placement("n2", whole=1)), Start("a3", 0, Placement("n2", whole=1))), "limit"),
    "started twice": ((Start("a2", 0, Placement("n2", whole=1)), Start("a2", 0, Placement("n2", whole=1))), "twice"),
    "nobody there": ((Start("zz", 0, Placement("n2", whole=1)),), "was not pending"),
    "half a gang": ((Start("b2", 0, Placement("n2", whole=1)),), "at least 2 pods"),
    "non-preemptible": ((Stop("b1", 0, REASON, 0.0, "a2"), Nominate("a2", 0, Placement("n1", whole=1))), "non-preemptible"),
    "for nobody": ((Stop("a1", 0, REASON, 0.0),), "for nobody"),
    "for one that gains nothing": ((Stop("a1", 0, REASON, 0.0, "a2"),), "neither starts nor keeps"),
    "a place kept on a full node": ((Nominate("a2", 0, Placement("n1", whole=1)),), "n1 has 2 GPUs"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_plan_that_breaks_a_rule_is_found_with_kept_books_as_with_none(case: str) -> None:
    world = busy()
    ids = {workload.name: workload.id for workload in world.snapshot().workloads}
    snapshot, books = world.snapshot(), Books()
    good = decide(snapshot, world.policy, world.now)
    assert not invariants.check(snapshot, good, books)
    acts, sentence = BROKEN[case]
    named = tuple(replace(act, workload_id=ids.get(act.workload_id, act.workload_id)) for act in acts)
    named = tuple(replace(a, beneficiary=ids.get(a.beneficiary or "")) if isinstance(a, Stop) else a for a in named)
    broken = Plan(snapshot.version, named)
    found = invariants.check(snapshot, broken, books, told=False)
    assert found == invariants.check(snapshot, broken, told=False)
    assert any(sentence in problem for problem in found), found
    assert not invariants.check(snapshot, good, books), "the broken plan left nothing behind"


def test_who_waits_without_a_hold_or_with_two_or_starts_with_one_is_found() -> None:
    world = World(node("n1", 1), a=1)
    world.asks("a", 1)
    world.asks("a", 1)
    snapshot = world.snapshot()
    first, second = (workload.id for workload in snapshot.workloads)
    start = Start(first, 0, Placement("n1", whole=1))
    assert not invariants.check(snapshot, Plan(snapshot.version, (start,), (hold(second),)))
    for holds, problem in (
        ((), "without a reason"),
        ((hold(second), hold(second, 2)), "2 holds"),
        ((hold(first), hold(second, 2)), "starts and"),
    ):
        assert any(problem in found for found in invariants.check(snapshot, Plan(snapshot.version, (start,), holds)))
