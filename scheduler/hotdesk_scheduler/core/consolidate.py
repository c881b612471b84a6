"""Consolidate: move preemptible pods so that a request finds a contiguous hole (scheduling.md 4).

The theory: total capacity is there, but in pieces. A pod may be moved only to a place that is free now, so nobody ends pending.
Fewest workloads first, then fewest GPUs, then lowest priority, then the newest.

    two nodes of 2 GPUs, one T1 on each, T2 asks  ->  one T1 moves beside the other, T2 takes the node it left
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations

from hotdesk_scheduler.core import limits, placement
from hotdesk_scheduler.core.allocate import fit
from hotdesk_scheduler.core.ledger import Ledger, Seat
from hotdesk_scheduler.core.model import PodRequest
from hotdesk_scheduler.core.order import Line
from hotdesk_scheduler.core.quantities import GPU
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.core.requests import Request, Requests, is_placed
from hotdesk_scheduler.core.rooms import BOTH, LATER, Spot

FEW_PODS = 10
"""Up to so many movable pods all sets are tried; beyond, holes are made node by node."""

Seats = Sequence[Seat]
Key = tuple[int, int, int, float, tuple[tuple[str, int], ...]]


def consolidate(ledger: Ledger, requests: Requests, *, within_share: bool) -> None:
    """Make holes, in order, for those that stay within their allocatable share, or for the rest."""
    no_hole: set[int] = set()
    not_now: set[tuple[str, int]] = set()

    def hopeless(request: Request) -> bool:
        return request.surplus or request.shape in no_hole or (request.account.name, request.shape) in not_now

    for request in Line(requests.by_project, hopeless, lambda request: is_placed(ledger, request)):
        if not limits.may_start(request) or limits.stays_within_share(request) is not within_share:
            not_now.add((request.account.name, request.shape))
            continue
        if fit(ledger, request):
            continue
        if make_hole(ledger, request):
            ledger.beneficiaries.add(request.workload.id)
        else:
            no_hole.add(request.shape)


def make_hole(ledger: Ledger, request: Request) -> bool:
    """Move pods so that the request has its place as soon as they have left; nothing is changed if that is not possible."""
    if not _room_in_pieces(ledger, request):
        return False
    movable = _movable(ledger)
    if not movable:
        return False
    if len(movable) <= FEW_PODS:
        whole = request.pods[0].request.gpu.whole if len(request.pods) == 1 else 0
        if whole and not placement.could_open(whole, movable, ledger):
            return False
        promising = (s for s in _sets(movable) if not whole or placement.could_open(whole, s, ledger))
        return any(_try(ledger, request, chosen) for chosen in promising)
    return _by_node(ledger, request, movable)


def _room_in_pieces(ledger: Ledger, request: Request) -> bool:
    """Whether what is free adds up to what is asked: moving pods makes nothing more."""
    if not request.ask[GPU]:
        return True
    free = sum(count * len(bucket) for count, bucket in enumerate(ledger.index.later.buckets)) * 1000
    if free >= request.ask[GPU]:
        return True
    free += sum(amount * len(groups) for amount, groups in ledger.index.later_groups.buckets.items())
    return free >= request.ask[GPU]


def _movable(ledger: Ledger) -> list[Seat]:
    """Running preemptible pods of workloads that this plan has neither started, stopped nor moved."""
    left = None if ledger.policy.max_moves is None else ledger.policy.max_moves - len(ledger.moved)
    if left is not None and left <= 0:
        return []
    return [
        seat
        for seat in ledger.seats.values()
        if seat.rooms == BOTH
        and seat.workload.preemptible
        and not seat.started_now
        and seat.workload.short_of_gang_since is None
        and seat.workload.id not in ledger.moved
        and seat.workload.id not in ledger.beneficiaries
    ]


def _key(seats: Iterable[Seat]) -> Key:
    """Fewest workloads, fewest GPUs, lowest priority, newest."""
    seats = list(seats)
    return (
        len({seat.workload.id for seat in seats}),
        sum(seat.amount[GPU] for seat in seats),
        max(seat.workload.priority for seat in seats),
        -min(seat.workload.created_at for seat in seats),
        tuple(sorted((seat.workload.name, seat.pod.index) for seat in seats)),
    )


def _sets(movable: Seats) -> list[tuple[Seat, ...]]:
    """All sets, the preferred first."""
    found = [chosen for count in range(1, len(movable) + 1) for chosen in combinations(movable, count)]
    return sorted(found, key=_key)


def _try(ledger: Ledger, request: Request, chosen: Seats) -> bool:
    """Vacate these, place the request, and find each of them a place that is free now."""
    checkpoint = ledger.checkpoint()
    for seat in chosen:
        ledger.vacate(seat)
    fits = placement.place(ledger, request, LATER) == len(request.pods)
    if fits and _within_cap(ledger, chosen) and _resettle(ledger, request, chosen):
        return True
    ledger.rollback(checkpoint)
    return False


def _within_cap(ledger: Ledger, chosen: Seats) -> bool:
    most = ledger.policy.max_moves
    return most is None or len({*ledger.moved, *(seat.workload.id for seat in chosen)}) <= most


def _resettle(ledger: Ledger, request: Request, chosen: Seats) -> bool:
    """Give every moved pod its new place, the largest first; False (leaving a mess to roll back) if one finds none."""
    for seat in sorted(chosen, key=lambda s: (-s.amount[GPU], s.workload.name, s.pod.index)):
        place = placement.find(ledger, seat.pod.request, ledger.eligible_of(seat.workload), BOTH)
        if place is None or (place.node == seat.placement.node and not seat.placement.shares):
            return False
        ledger.settle(seat, place)
        there = f"from {seat.placement.node} to" if place.node != seat.placement.node else "to another GPU of"
        sentence = (
            f"Moved {there} {place.node} so that {request.workload.name} of project {request.workload.project} "
            "finds its GPUs together. It starts again there at once, with the same command."
        )
        numbers = (("for", request.workload.name), ("from", seat.placement.node), ("to", place.node))
        ledger.record_move(seat, place, Reason(ReasonCode.MOVED, sentence, numbers), request.workload.id)
    return True


# --- many movable pods -----------------------------------------------------------------------------------------------------------------


def _by_node(ledger: Ledger, request: Request, movable: Seats) -> bool:
    """Pod by pod: where it does not fit, the node where moving the least makes room."""
    by_spot: dict[int, list[Seat]] = {}
    for seat in movable:
        by_spot.setdefault(seat.spot.order, []).append(seat)
    checkpoint = ledger.checkpoint()
    heap: list[tuple[Key, int, list[Seat]]] | None = None
    asked: PodRequest | None = None
    for pod in request.pods:
        place = placement.find(ledger, pod.request, request.eligible, LATER)
        if place is not None:
            ledger.nominate(request.workload, pod, place)
            continue
        if heap is None or asked != pod.request:
            asked = pod.request
            offers = ((o, _offer(ledger, ledger.spots[o], seats, asked)) for o, seats in by_spot.items() if o in request.eligible)
            heap = [(_key(offer), order, offer) for order, offer in offers if offer]
            heapify(heap)
        if not _take_offer(ledger, request, pod.index, heap, by_spot):
            ledger.rollback(checkpoint)
            return False
    return True


def _take_offer(
    ledger: Ledger, request: Request, index: int, heap: list[tuple[Key, int, list[Seat]]], by_spot: dict[int, list[Seat]]
) -> bool:
    """Carry out the best offer that still stands for this pod."""
    pod = next(p for p in request.pods if p.index == index)
    while heap:
        _, order, offer = heappop(heap)
        spot = ledger.spots[order]
        if not all(_still_movable(ledger, seat) for seat in offer):
            continue
        fresh = _offer(ledger, spot, by_spot[order], pod.request)
        if fresh is None:
            continue
        if _key(fresh) > _key(offer):
            heappush(heap, (_key(fresh), order, fresh))
            continue
        checkpoint = ledger.checkpoint()
        for seat in fresh:
            ledger.vacate(seat)
        place = placement.on_spot(spot, pod.request, LATER)
        if place is not None and _within_cap(ledger, fresh):
            ledger.nominate(request.workload, pod, place)
            if _resettle(ledger, request, fresh):
                return True
        ledger.rollback(checkpoint)
    return False


def _still_movable(ledger: Ledger, seat: Seat) -> bool:
    return ledger.seats.get((seat.workload.id, seat.pod.index)) is seat


def _offer(ledger: Ledger, spot: Spot, seats: Seats, request: PodRequest) -> list[Seat] | None:
    """The pods of this node whose leaving makes room for one such pod: as few as possible, small before large."""
    left = sorted(
        (seat for seat in seats if _still_movable(ledger, seat)),
        key=lambda s: (s.amount[GPU], s.workload.priority, -s.workload.created_at, s.workload.name),
    )
    room = spot.later.copy()
    taken: list[Seat] = []
    while left:
        for seat in left:
            room.change(seat.placement, seat.pod.request, -1)
            if placement.fits_in(room, spot, request):
                return [*taken, seat]
            room.change(seat.placement, seat.pod.request, 1)
        largest = left.pop()
        room.change(largest.placement, largest.pod.request, -1)
        taken.append(largest)
    return None
