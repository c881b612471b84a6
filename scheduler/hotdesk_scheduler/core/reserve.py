"""Reservations: who has waited long within his fair share gets nodes kept for him, so that big jobs do not starve behind small ones.

The theory: the nodes where least is missing are kept. Non-preemptible work does not start there; preemptible work may, behind the
reservation, and gives way as soon as that is enough. What ran there before is left alone, so the wait is bounded by its run time.
Nothing is remembered between cycles: who waits, since when, and what started since then say it all.

    8 GPUs; A waits with T8 for an hour; small trains of one GPU come and go  ->  nobody who came later is in the way for ever:
    once all that runs started behind the reservation, it gives way together and T8 starts
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from hotdesk_scheduler.core import limits
from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.allocate import fit
from hotdesk_scheduler.core.eligible import Eligible
from hotdesk_scheduler.core.ledger import Ledger, Seat
from hotdesk_scheduler.core.model import Workload
from hotdesk_scheduler.core.quantities import GPU
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.core.requests import Request, Requests, is_placed
from hotdesk_scheduler.core.rooms import BOTH

MOST_RESERVATIONS = 16


@dataclass(slots=True, eq=False)
class Reservation:
    """`nodes` (by order) are kept for the request; what started after `since` gives way.

    Quota yields only to quota: beyond it, nobody's non-preemptible work is kept out, and nobody is pushed below quota.
    """

    request: Request
    nodes: frozenset[int]
    since: float
    within_quota: bool = False

    def keeps_out(self, other: Request) -> bool:
        """Whether other work may not start on these nodes: non-preemptible, and not before it in its own project."""
        mine, theirs = self.request.workload, other.workload
        if theirs.preemptible or theirs.id == mine.id:
            return False
        return not _before(theirs, mine) if theirs.project == mine.project else self.within_quota

    def yields(self, workload: Workload, seats: list[Seat]) -> bool:
        """Whether this running workload started behind the reservation, on its nodes.

        Only the younger gives way, so two that are both kept places never stop each other in turns.
        """
        mine = self.request.workload
        younger = (workload.created_at, workload.name) > (mine.created_at, mine.name)
        if not workload.preemptible or not younger or (workload.project == mine.project and _before(workload, mine)):
            return False
        behind = all(seat.started_now or (seat.pod.started_at or self.since) >= self.since for seat in seats)
        return behind and any(seat.spot.order in self.nodes for seat in seats)


def _before(first: Workload, second: Workload) -> bool:
    """The order inside a project: priority, then age."""
    return (-first.priority, first.created_at, first.name) < (-second.priority, second.created_at, second.name)


def reserve(ledger: Ledger, requests: Requests) -> list[Reservation]:
    """Choose nodes for those who have waited longer than the policy says, and keep other non-preemptible work off them."""
    after = ledger.policy.reserve_after_s
    if after is None:
        return []
    due = [
        (request.workload.created_at + after, request.workload.name, request)
        for waiting in requests.by_project.values()
        for request in waiting
        if not request.surplus and request.ask[GPU] and request.workload.created_at + after <= ledger.now
    ]
    found: list[Reservation] = []
    taken: set[int] = set()
    for since, _, request in sorted(due, key=lambda entry: entry[:2])[:MOST_RESERVATIONS]:
        may = limits.may_start(request) and _within_share(request)
        nodes = _nodes(ledger, request, since, taken) if may else None
        if nodes:
            found.append(Reservation(request, nodes, since, _within_quota(request)))
            taken |= nodes
    if found:
        _keep_out(requests, found)
    return found


def _within_quota(request: Request) -> bool:
    return all(a.allocated[GPU] + request.ask[GPU] <= a.quota[GPU] for a in request.account.path)


def _within_share(request: Request) -> bool:
    """Its project and department stay within their allocatable share with it."""
    return all(a.allocated[r] + request.ask[r] <= a.share[r] for a in request.account.path for r in request.asked)


def _nodes(ledger: Ledger, request: Request, since: float, taken: set[int]) -> frozenset[int] | None:
    """The nodes where least is missing, counting what would give way as free; the fullest first, then by name."""
    whole = request.pods[0].request.gpu.whole or 1
    anywhere = frozenset(spot.order for spot in ledger.spots)
    yielding = _yielding(ledger, Reservation(request, anywhere, since))
    free = {s.order: s.later.free_gpus for s in ledger.spots if s.order in request.eligible and s.order not in taken and s.node.ready}
    for seats in yielding.values():
        for seat in seats:
            if seat.spot.order in free:
                free[seat.spot.order] += seat.placement.whole or len(seat.placement.shares)
    heap = [(max(0, whole - count), count, order) for order, count in free.items() if ledger.spots[order].node.gpus >= whole]
    heapify(heap)
    used: dict[int, int] = {}
    for _ in request.pods:
        while heap and (used.get(heap[0][2], 0) + 1) * whole > ledger.spots[heap[0][2]].node.gpus:
            heappop(heap)
        if not heap:
            return None
        _, count, order = heap[0]
        used[order] = used.get(order, 0) + 1
        heapreplace(heap, (max(0, whole - (count - whole)), count - whole, order))
    return frozenset(used)


def _yielding(ledger: Ledger, reservation: Reservation) -> dict[str, list[Seat]]:
    """Seats of the workloads that would give way, by workload."""
    seats: dict[str, list[Seat]] = {}
    for seat in ledger.seats.values():
        if seat.rooms == BOTH and seat.workload.preemptible and seat.workload.id not in ledger.beneficiaries:
            seats.setdefault(seat.workload.id, []).append(seat)
    return {key: found for key, found in seats.items() if reservation.yields(found[0].workload, found)}


def _keep_out(requests: Requests, reservations: list[Reservation]) -> None:
    narrowed: dict[tuple[int, frozenset[int]], Eligible] = {}
    for waiting in requests.by_project.values():
        for request in waiting:
            keeping = [one for one in reservations if one.keeps_out(request)]
            if keeping:
                nodes = frozenset[int]().union(*(one.nodes for one in keeping))
                key = (id(request.eligible), nodes)
                if key not in narrowed:
                    narrowed[key] = _without(request.eligible, nodes, len(requests.ledger.spots))
                requests.narrow(request, narrowed[key], kept_for=keeping[0].request.workload)
    requests.mark_runs()


def _without(eligible: Eligible, nodes: frozenset[int], count: int) -> Eligible:
    def mask(part: Eligible) -> tuple[bool, ...]:
        return tuple(order in part and order not in nodes for order in range(count))

    return Eligible(mask(eligible), tuple(Eligible(mask(stage)) for stage in eligible.stages))


def give_way(ledger: Ledger, reservations: list[Reservation]) -> None:
    """Where what started behind a reservation is all that is in the way, as little of it as suffices stops."""
    for reservation in reservations:
        request = reservation.request
        if is_placed(ledger, request):
            continue
        checkpoint = ledger.checkpoint()
        chosen = _chosen(ledger, reservation)
        ledger.rollback(checkpoint)
        if chosen is not None:
            _carry_out(ledger, reservation, chosen)


def _chosen(ledger: Ledger, reservation: Reservation) -> list[list[Seat]] | None:
    """Who gives way: what this plan started first, then the youngest; nobody who could have been left running."""
    groups = sorted(_yielding(ledger, reservation).values(), key=_last_to_go, reverse=True)
    checkpoint = ledger.checkpoint()
    chosen: list[list[Seat]] = []
    for group in groups:
        if _suffices(ledger, reservation, chosen):
            break
        if _may_lose(ledger, reservation, [*chosen, group]):
            chosen.append(group)
    ledger.rollback(checkpoint)
    if not _suffices(ledger, reservation, chosen):
        return None
    for group in sorted(chosen, key=_last_to_go):
        rest = [one for one in chosen if one is not group]
        if _suffices(ledger, reservation, rest):
            chosen = rest
    return chosen


def _last_to_go(group: list[Seat]) -> tuple[bool, float, str]:
    """Sorts the best protected first: what runs, then the older."""
    return (group[0].started_now, group[0].workload.created_at, group[0].workload.name)


def _suffices(ledger: Ledger, reservation: Reservation, groups: list[list[Seat]]) -> bool:
    checkpoint = ledger.checkpoint()
    for group in groups:
        for seat in group:
            ledger.vacate(seat)
    request = reservation.request
    allowed = limits.may_start(request) and _within_share(request) and _within_quota(request) >= reservation.within_quota
    fits = allowed and fit(ledger, request)
    ledger.rollback(checkpoint)
    return fits


def _may_lose(ledger: Ledger, reservation: Reservation, groups: list[list[Seat]]) -> bool:
    """A reservation that ends beyond its quota pushes nobody below theirs."""
    if reservation.within_quota:
        return True
    freed: dict[int, tuple[Account, int]] = {}
    for group in groups:
        account = ledger.projects.get(group[0].workload.project)
        for one in account.path if account else ():
            freed[id(one)] = (one, freed.get(id(one), (one, 0))[1] + sum(seat.amount[GPU] for seat in group))
    mine = {id(account) for account in reservation.request.account.path}
    return all(one.allocated[GPU] - amount >= one.quota[GPU] for key, (one, amount) in freed.items() if key not in mine)


def _carry_out(ledger: Ledger, reservation: Reservation, groups: list[list[Seat]]) -> None:
    request = reservation.request
    waited = ledger.policy.reserve_after_s or 0.0
    sentence = (
        f"It gave way to {request.workload.name} of project {request.account.name}, for which these GPUs were kept: that had waited longer "
        f"than {waited:.0f} s when this started behind it. It is queued again and keeps its place by age."
    )
    numbers = (("by", request.account.name), ("for", request.workload.name), ("reserve_after_s", int(waited)))
    for group in groups:
        for seat in group:
            ledger.vacate(seat)
    if not fit(ledger, request):
        raise AssertionError(f"what gives way to {request.workload.name} does not make room")
    for seat in (seat for group in groups for seat in group):
        if not seat.started_now:
            ledger.beneficiaries.add(request.workload.id)
        ledger.record_stop(seat, Reason(ReasonCode.GAVE_WAY, sentence, numbers), request.workload.id)


def kept_nodes(reservations: list[Reservation], ledger: Ledger) -> dict[str, tuple[str, ...]]:
    """Names of the nodes kept for each workload."""
    return {one.request.workload.id: tuple(ledger.spots[order].node.name for order in sorted(one.nodes)) for one in reservations}
