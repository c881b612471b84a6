"""Preempt: inside one project, work of strictly lower priority makes way (scheduling.md 4). No moves; the project may grow by it only
within its allocatable share.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotdesk_scheduler.core import limits, stops
from hotdesk_scheduler.core.choice import Loser, Search, Tally, Units, may_go
from hotdesk_scheduler.core.greedy import choose
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.model import PodRequest
from hotdesk_scheduler.core.offers import Offers
from hotdesk_scheduler.core.requests import Request, Requests
from hotdesk_scheduler.core.turns import take_turns
from hotdesk_scheduler.core.victims import Pools, Unit


class PreemptRules:
    """The rules for one request: all victims are of its own project."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def legal(self, units: Units) -> bool:
        request = self.request
        for account in request.account.path:
            for r in request.asked:
                before = account.allocated[r]
                ends = before + request.ask[r] - sum(unit.amount[r] for unit in units)
                if ends > account.limit[r] or ends > max(before, account.share[r]):
                    return False
        return limits.over_fixed_quota(request) is None

    def more(self, tally: Tally, units: Units) -> bool:
        """Stopping more only lets the project end lower: the whole set is judged in the end."""
        tally.add(units)
        return True

    def pushes(self, units: Units) -> bool:
        return False

    def badness(self, unit: Unit) -> tuple[int, ...]:
        return (0,)


def preempt(ledger: Ledger, requests: Requests, pools: Pools) -> None:
    """Start, in order, what its own project's less important work can make way for."""
    take_turns(
        ledger,
        requests,
        pools,
        lambda request: not request.surplus and _preempt_for(ledger, request, pools),
        alike=lambda request: (request.account.name, request.shape, request.workload.priority),
    )


def _preempt_for(ledger: Ledger, request: Request, pools: Pools) -> bool:
    found = victims_for(ledger, request, pools)
    if found is None:
        return False
    search, chosen = found
    stops.commit_preempt(search, chosen)
    pools.stopped_for(request.workload)
    pools.skip_gone({request.account.name})
    return True


def victims_for(ledger: Ledger, request: Request, pools: Pools) -> tuple[Search, list[Unit]] | None:
    """Whom its own project would have to stop for it."""
    if ledger.lowest.get(request.workload.project, request.workload.priority) >= request.workload.priority:
        return None
    if limits.over_fixed_quota(request) is not None:
        return None
    search = Search(ledger, request, PreemptRules(request))
    search.losers = [_loser(search, pools)]
    chosen = choose(search, _units(search, pools), may_move=False)
    if chosen is None and ledger.policy.min_runtime_s:
        search.losers = ()
        stops.note_protection(ledger, request, choose(search, _units(search, pools, protect=False), may_move=False))
    return (search, chosen) if chosen else None


def _units(search: Search, pools: Pools, *, protect: bool = True) -> Iterator[Unit]:
    units = pools.of(search.request.account.name, below=search.request.workload.priority)
    return (unit for unit in units if may_go(search, unit, protect=protect))


def _loser(search: Search, pools: Pools) -> Loser:
    name, priority, asked = search.request.account.name, search.request.workload.priority, search.request.asked

    def offers(request: PodRequest) -> Offers:
        def less_important(unit: Unit) -> bool:
            return unit.workload.priority < priority and may_go(search, unit)

        return pools.offers.of(name, request, search.request.eligible, less_important, (asked, priority))

    return Loser(offers, pools.has_started(name))
