"""Preempt: inside one project, work of strictly lower priority makes way (scheduling.md 4). No moves; the project may grow by it only
within its allocatable share.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotdesk_scheduler.core import limits, stops
from hotdesk_scheduler.core.allocate import fit, minimum_runs
from hotdesk_scheduler.core.choice import Search, Tally, Units, few
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.order import Line
from hotdesk_scheduler.core.reclaim import may_evict
from hotdesk_scheduler.core.requests import Request, Requests, is_placed
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
    """Start, in order, what its own project's less important work can make way for; what fits by then just starts."""
    freed = 0
    no_room: dict[int, int] = {}
    in_vain: dict[tuple[str, int, int], int] = {}

    def hopeless(request: Request) -> bool:
        return in_vain.get((request.account.name, request.shape, request.workload.priority)) == freed

    for request in Line(requests.by_project, hopeless, lambda request: is_placed(ledger, request)):
        if request.surplus and not minimum_runs(ledger, request):
            continue
        if no_room.get(request.shape) != freed and limits.may_start(request):
            if fit(ledger, request):
                pools.add(request.workload)
                continue
            no_room[request.shape] = freed
        if not request.surplus and may_evict(ledger, request) and _preempt_for(ledger, request, pools):
            freed += 1
        else:
            in_vain[request.account.name, request.shape, request.workload.priority] = freed


def _preempt_for(ledger: Ledger, request: Request, pools: Pools) -> bool:
    rules = PreemptRules(request)
    if ledger.lowest.get(request.workload.project, request.workload.priority) >= request.workload.priority:
        return False
    if limits.over_fixed_quota(request) is not None:
        return False
    search = Search(ledger, request, rules)
    chosen = _choose(search, pools, protect=True)
    if chosen is None:
        if ledger.policy.min_runtime_s:
            stops.note_protection(ledger, request, _choose(search, pools, protect=False))
        return False
    stops.commit_preempt(search, chosen)
    pools.skip_gone({request.account.name})
    return True


def _units(search: Search, pools: Pools, *, protect: bool) -> Iterator[Unit]:
    request, ledger = search.request, search.ledger
    everywhere = request.eligible.allowed is None
    for unit in pools.of(request.account.name):
        if unit.workload.priority >= request.workload.priority or not any(unit.amount[r] for r in request.asked):
            continue
        if not everywhere and not any(seat.spot.order in request.eligible for seat in unit.seats):
            continue
        if protect and unit.protected_until(ledger) is not None:
            continue
        yield unit


def _choose(search: Search, pools: Pools, *, protect: bool) -> list[Unit] | None:
    units = list(_units(search, pools, protect=protect))
    if not units:
        return None
    return search.exact(units) if few(units) else search.greedy(iter(units))
