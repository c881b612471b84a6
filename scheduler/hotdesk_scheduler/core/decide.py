"""One cycle: a snapshot in, a plan out (scheduling.md 4). Pure: the same input, in any order, gives the same plan."""

from __future__ import annotations

from hotdesk_scheduler.core.allocate import allocate
from hotdesk_scheduler.core.consolidate import consolidate
from hotdesk_scheduler.core.give_way import give_way
from hotdesk_scheduler.core.holds import holds
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.memory import Memory
from hotdesk_scheduler.core.model import Policy, Snapshot
from hotdesk_scheduler.core.plan import Plan
from hotdesk_scheduler.core.preempt import preempt
from hotdesk_scheduler.core.reclaim import reclaim
from hotdesk_scheduler.core.requests import Requests
from hotdesk_scheduler.core.reserve import hold_back, kept_nodes, reserve
from hotdesk_scheduler.core.stops import stop_stale_gangs
from hotdesk_scheduler.core.victims import Pools


def decide(snapshot: Snapshot, policy: Policy, now: float, memory: Memory | None = None) -> Plan:
    """What to start, stop, move and hold. Every workload with pods that wait and do not start gets exactly one Hold.

    `memory` makes it faster if little has changed since it was last handed in, and never changes the plan.
    """
    memory = memory or Memory()
    ledger, requests = cycle(snapshot, policy, now, memory)
    fair = tuple(sorted((name, account.fair[0]) for name, account in ledger.projects.items()))
    plan = Plan(snapshot.version, tuple(ledger.decisions.values()), holds(ledger, requests), fair, ledger.weights_now())
    memory.keep(ledger, requests)
    return plan


def cycle(snapshot: Snapshot, policy: Policy, now: float, memory: Memory | None = None) -> tuple[Ledger, Requests]:
    """The steps of a cycle on a working copy; each works on the outcome of the one before it."""
    ledger, requests = (memory or Memory()).take_up(snapshot, policy, now)
    if policy.paused is not None:
        return ledger, requests
    reservations = reserve(ledger, requests)
    allocate(ledger, requests)
    if requests.by_project:
        hold_back(requests, reservations)
        consolidate(ledger, requests, within_share=True)
        pools = Pools(ledger)
        reclaim(ledger, requests, pools)
        preempt(ledger, requests, pools)
        consolidate(ledger, requests, within_share=False)
        give_way(ledger, requests, reservations)
        requests.kept = kept_nodes(reservations, ledger)
    stop_stale_gangs(ledger)
    return ledger, requests


def fair_shares(snapshot: Snapshot, policy: Policy, now: float) -> dict[str, int]:
    """GPU thousandths each project may have now, as a plan of this snapshot would say."""
    return {name: account.fair[0] for name, account in Ledger(snapshot, policy, now).projects.items()}
