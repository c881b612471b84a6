"""Who started behind a reservation gives way as soon as that is enough: as little of it as suffices stops (`reserve`).

A minimum run time does not protect from it: who started there took what was kept for another. Nobody gives way for one who would then
be stopped at once himself, by reclaim or preempt: his turn comes after theirs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import replace

from hotdesk_scheduler.core import limits, preempt, reclaim
from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.allocate import fit
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.quantities import GPU
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.core.requests import Request, Requests, is_placed
from hotdesk_scheduler.core.reserve import Reservation
from hotdesk_scheduler.core.soonest import Unit, Young, behind, seats_since
from hotdesk_scheduler.core.victims import Pools

FEW = 16
"""Up to so many, each is tried whether it could be left running; of more, those alone on whose node there is room to spare."""


def give_way(ledger: Ledger, requests: Requests, reservations: list[Reservation]) -> None:
    """Where what started behind a reservation is all that is in the way, as little of it as suffices stops."""
    young: Young | None = None
    for reservation in reservations:
        if reservation.blockers or is_placed(ledger, reservation.request):
            continue
        if young is None:
            young = seats_since(ledger, min(one.since for one in reservations))
        chosen = _chosen(ledger, reservation, young)
        if chosen is not None and not _in_vain(ledger, requests, reservation, chosen):
            _carry_out(ledger, reservation, chosen)
            young = None


def _chosen(ledger: Ledger, reservation: Reservation, young: Young) -> list[Unit] | None:
    """Who gives way: first what this plan started, his own project's, surplus pods, the youngest; nobody who could have stayed."""
    units: list[Unit] = []
    stays: set[str] = set()
    last_to_go = _last_to_go(reservation.request.account.name)
    for unit in sorted(_candidates(ledger, reservation, young), key=last_to_go, reverse=True):
        if unit.workload.id not in stays and _may_lose(ledger, reservation, [*units, unit]):
            units.append(unit)
        else:
            stays.add(unit.workload.id)
    if not _suffices(ledger, reservation, units):
        return None
    enough = bisect_left(range(len(units)), True, key=lambda count: _suffices(ledger, reservation, units[:count]))
    chosen = units[:enough]
    for unit in sorted(_could_stay(ledger, reservation, chosen), key=last_to_go):
        rest = [one for one in chosen if one is not unit]
        whole_goes = unit.surplus and any(one.workload is unit.workload and not one.surplus for one in rest)
        if not whole_goes and _suffices(ledger, reservation, rest):
            chosen = rest
    return chosen


def _in_vain(ledger: Ledger, requests: Requests, reservation: Reservation, chosen: list[Unit]) -> bool:
    """Whether somebody who waits, or gives way, would in the next cycle stop the one that they give way to."""
    checkpoint = ledger.checkpoint()
    _vacate(ledger, chosen)
    placed = fit(ledger, reservation.request)
    pools = Pools(ledger)
    stopped = placed and any(_would_stop(ledger, other, reservation.request, pools) for other in _claimants(ledger, requests, chosen))
    ledger.rollback(checkpoint)
    return stopped


def _claimants(ledger: Ledger, requests: Requests, chosen: list[Unit]) -> Iterator[Request]:
    """One of each kind that waits, on all nodes that it may use; and who gives way, as they will wait."""
    for queue in requests.by_project.values():
        for group in queue.groups.values():
            request = next((one for one in group if not is_placed(ledger, one)), None)
            if request is not None:
                yield replace(request, eligible=request.wished or request.eligible)
    for unit in chosen:
        account = ledger.projects.get(unit.workload.project)
        if account is not None:
            yield requests.request(unit.workload, account, tuple(seat.pod for seat in unit.seats), surplus=unit.surplus)


def _would_stop(ledger: Ledger, other: Request, request: Request, pools: Pools) -> bool:
    if not request.workload.preemptible or other.workload.id == request.workload.id:
        return False
    if other.account is request.account:
        found = preempt.victims_for(ledger, other, pools) if other.workload.priority > request.workload.priority else None
    else:
        may = reclaim.ReclaimRules(other)
        found = reclaim.victims_for(ledger, other, pools) if may.may_ask() and may.could_lose(request.account) else None
    return found is not None and any(unit.workload.id == request.workload.id for unit in found[1])


def _candidates(ledger: Ledger, reservation: Reservation, young: Young) -> list[Unit]:
    """Of workloads on its nodes; and of its own project's and department's anywhere, which may be in the way of its share."""
    side = reservation.request.account.side
    near = {child.name for child in side.children} or {side.name}
    return [
        unit
        for unit in behind(ledger, young, reservation)
        if unit.workload.project in near or any(seat.spot.order in reservation.nodes for seat in young[unit.workload.id])
    ]


def _last_to_go(project: str) -> Callable[[Unit], tuple[bool, bool, bool, float, str, int]]:
    """Sorts the best protected first: what runs, then other projects' work, then what is no surplus, then the older."""

    def key(unit: Unit) -> tuple[bool, bool, bool, float, str, int]:
        first, workload = unit.seats[0], unit.workload
        return (first.started_now, workload.project == project, unit.surplus, workload.created_at, workload.name, first.pod.index)

    return key


def _could_stay(ledger: Ledger, reservation: Reservation, chosen: list[Unit]) -> list[Unit]:
    if len(chosen) <= FEW:
        return chosen
    checkpoint = ledger.checkpoint()
    _vacate(ledger, chosen)
    fit(ledger, reservation.request)
    could = [unit for unit in chosen if all(seat.spot.later.free_gpus >= seat.placement.whole for seat in unit.seats)]
    ledger.rollback(checkpoint)
    return could


def _vacate(ledger: Ledger, units: list[Unit]) -> None:
    for unit in units:
        for seat in unit.seats:
            ledger.vacate(seat)


def _suffices(ledger: Ledger, reservation: Reservation, units: list[Unit]) -> bool:
    checkpoint = ledger.checkpoint()
    _vacate(ledger, units)
    request = reservation.request
    allowed = limits.may_start(request) and _within_share(request) and _within_quota(request) >= reservation.within_quota
    fits = allowed and fit(ledger, request)
    ledger.rollback(checkpoint)
    return fits


def _within_quota(request: Request) -> bool:
    return all(a.allocated[GPU] + request.ask[GPU] <= a.quota[GPU] for a in request.account.path)


def _within_share(request: Request) -> bool:
    """Its project and department stay within their allocatable share with it."""
    return all(a.allocated[r] + request.ask[r] <= a.share[r] for a in request.account.path for r in request.asked)


def _may_lose(ledger: Ledger, reservation: Reservation, units: list[Unit]) -> bool:
    """A reservation that ends beyond its quota pushes nobody below theirs."""
    if reservation.within_quota:
        return True
    freed: dict[int, tuple[Account, int]] = {}
    for unit in units:
        account = ledger.projects.get(unit.workload.project)
        for one in account.path if account else ():
            freed[id(one)] = (one, freed.get(id(one), (one, 0))[1] + sum(seat.amount[GPU] for seat in unit.seats))
    mine = {id(account) for account in reservation.request.account.path}
    return all(one.allocated[GPU] - amount >= one.quota[GPU] for key, (one, amount) in freed.items() if key not in mine)


def _carry_out(ledger: Ledger, reservation: Reservation, units: list[Unit]) -> None:
    request = reservation.request
    waited = ledger.policy.reserve_after_s or 0.0
    sentence = (
        f"It gave way to {request.workload.name} of project {request.account.name}, for which these GPUs were kept: that had waited longer "
        f"than {waited:.0f} s when this started behind it. It is queued again and keeps its place by age."
    )
    numbers = (("by", request.account.name), ("for", request.workload.name), ("reserve_after_s", int(waited)))
    _vacate(ledger, units)
    if not fit(ledger, request):
        raise AssertionError(f"what gives way to {request.workload.name} does not make room")
    for seat in (seat for unit in units for seat in unit.seats):
        if not seat.started_now:
            ledger.beneficiaries.add(request.workload.id)
        ledger.record_stop(seat, Reason(ReasonCode.GAVE_WAY, sentence, numbers), request.workload.id)
