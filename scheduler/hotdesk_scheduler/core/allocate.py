"""Allocate: start what fits on free capacity, in order; plan on what is being released (scheduling.md 4)."""

from __future__ import annotations

from collections import Counter

from hotdesk_scheduler.core import limits, placement
from hotdesk_scheduler.core.ledger import Ledger, Seat
from hotdesk_scheduler.core.model import WHOLE_GPU, PodState, Workload
from hotdesk_scheduler.core.order import Line
from hotdesk_scheduler.core.quantities import RESOURCES
from hotdesk_scheduler.core.requests import Request, Requests, alive, is_placed
from hotdesk_scheduler.core.rooms import BOTH, LATER


def honour_nominations(ledger: Ledger) -> None:
    """Start what waits at a place that is free by now, all pods of a workload together; give up places that are no more. Not in a pause."""
    if ledger.policy.paused is not None:
        return
    by_workload: dict[str, list[Seat]] = {}
    for seat in ledger.nominated.values():
        by_workload.setdefault(seat.workload.id, []).append(seat)
    for workload_id in sorted(by_workload, key=lambda name: (-ledger.workloads[name].created_at, name)):
        seats = sorted(by_workload[workload_id], key=lambda seat: seat.pod.index)
        if not all(_still_possible(ledger, seat) for seat in seats) or not _still_allowed(ledger, seats[0].workload):
            for seat in seats:
                ledger.give_up_nomination(seat)
            continue
        pending = [seat for seat in seats if seat.pod.state is PodState.PENDING]
        if len(pending) < len(seats):
            continue
        if alive(pending[0].workload) + len(pending) < pending[0].workload.min_pods:
            for seat in pending:
                ledger.give_up_nomination(seat)
        else:
            _start_together(ledger, pending)


def _still_possible(ledger: Ledger, seat: Seat) -> bool:
    """No longer so when a node is lost, or when a plan was carried out only in part: kept for it, and its holder never stopped."""
    room = seat.spot.later
    shared = max((room.groups.get(share.group, 0) for share in seat.placement.shares), default=0)
    if not seat.spot.node.ready or min(room.cpu_millis, room.memory_mib, room.pods, WHOLE_GPU - shared) < 0:
        return False
    return room.free_gpus >= 0 or not _takes_a_gpu(ledger, seat)


def _takes_a_gpu(ledger: Ledger, seat: Seat) -> bool:
    """Whether a device is held for kept places alone, this one among them: one that somebody is on they only join."""
    kept: Counter[str] = Counter()
    for other in ledger.nominated.values():
        if other.spot is seat.spot:
            kept.update({share.group: share.millis for share in other.placement.shares})
    return seat.placement.whole > 0 or any(seat.spot.later.groups[s.group] == kept[s.group] for s in seat.placement.shares)


def _still_allowed(ledger: Ledger, workload: Workload) -> bool:
    """No longer so when a limit or a quota was lowered while it waited for its place (what it keeps counts as allocated)."""
    account = ledger.projects.get(workload.project)
    for one in account.path if account else ():
        if any(one.allocated[r] > one.limit[r] or (not workload.preemptible and one.fixed[r] > one.quota[r]) for r in RESOURCES):
            return False
    return True


def _start_together(ledger: Ledger, seats: list[Seat]) -> None:
    checkpoint = ledger.checkpoint()
    for seat in seats:
        if not seat.spot.now.fits(seat.placement, seat.pod.request):
            ledger.rollback(checkpoint)
            return
        ledger.start_nominated(seat)
    ledger.beneficiaries.add(seats[0].workload.id)  # others stopped or moved for it: this plan does not take it back


def allocate(ledger: Ledger, requests: Requests) -> None:
    """Start what fits."""
    no_room: set[int] = set()
    not_allowed: set[tuple[str, int]] = set()

    def hopeless(request: Request) -> bool:
        return request.shape in no_room or (request.account.name, request.shape) in not_allowed

    for request in Line(requests.by_project, hopeless, lambda request: is_placed(ledger, request)):
        if request.surplus and not minimum_runs(ledger, request):
            continue
        if not limits.may_start(request):
            not_allowed.add((request.account.name, request.shape))
        elif not fit(ledger, request):
            no_room.add(request.shape)


def fit(ledger: Ledger, request: Request) -> bool:
    """Start it on what is free, or else nominate it on what is being released."""
    if placement.place(ledger, request, BOTH) == len(request.pods):
        return True
    return bool(ledger.releasing) and placement.place(ledger, request, LATER) == len(request.pods)


def minimum_runs(ledger: Ledger, request: Request) -> bool:
    """Whether a surplus pod's workload has its minimum, on the plan as it stands (done pods count)."""
    workload = request.workload
    count = 0
    for pod in workload.pods:
        key = (workload.id, pod.index)
        count += ledger.stays(workload, pod) or key in ledger.nominated or pod.state is PodState.SUCCEEDED
    return count >= workload.min_pods
