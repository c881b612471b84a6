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
from hotdesk_scheduler.core.eligible import Eligible
from hotdesk_scheduler.core.ledger import Ledger, Seat
from hotdesk_scheduler.core.model import Pod, PodRequest
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
    movable = Movable(ledger)

    def hopeless(request: Request) -> bool:
        return request.surplus or request.shape in no_hole or (request.account.name, request.shape) in not_now

    for request in Line(requests.by_project, hopeless, lambda request: is_placed(ledger, request)):
        if not limits.may_start(request) or limits.stays_within_share(request) is not within_share:
            not_now.add((request.account.name, request.shape))
            continue
        if fit(ledger, request):
            continue
        if make_hole(ledger, request, movable):
            ledger.beneficiaries.add(request.workload.id)
        else:
            no_hole.add(request.shape)


def make_hole(ledger: Ledger, request: Request, movable: Movable | None = None) -> bool:
    """Move pods so that the request has its place as soon as they have left; nothing is changed if that is not possible."""
    movable = movable or Movable(ledger)
    if not _room_in_pieces(ledger, request) or not _moves_left(ledger) or not movable.catch_up():
        return False
    if movable.count <= FEW_PODS:
        few = movable.all()
        whole = request.pods[0].request.gpu.whole if len(request.pods) == 1 else 0
        if whole and not placement.could_open(whole, few, ledger):
            return False
        promising = (s for s in _sets(few) if not whole or placement.could_open(whole, s, ledger))
        return any(_try(ledger, request, chosen) for chosen in promising)
    return _by_node(ledger, request, movable)


def _moves_left(ledger: Ledger) -> bool:
    return ledger.policy.max_moves is None or ledger.policy.max_moves > len(ledger.moved)


def _room_in_pieces(ledger: Ledger, request: Request) -> bool:
    """Whether what is free adds up to what is asked: moving pods makes nothing more."""
    if not request.ask[GPU]:
        return True
    free = sum(count * len(bucket) for count, bucket in enumerate(ledger.index.later.buckets)) * 1000
    if free >= request.ask[GPU]:
        return True
    free += sum(amount * len(groups) for amount, groups in ledger.index.later_groups.buckets.items())
    return free >= request.ask[GPU]


class Movable:
    """Running preemptible pods of workloads that this plan has neither started, stopped nor moved, by node; looked for when first asked.

    Keeps what moving the least on each node would take, between requests whose pods ask the same: nodes only get fuller meanwhile.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._by_spot: dict[int, dict[int, Seat]] | None = None
        self._by_workload: dict[str, list[Seat]] = {}
        self._out: set[str] = set()
        self._offered: tuple[PodRequest, Eligible] | None = None
        self._heap: list[tuple[Key, int, list[Seat]]] = []
        self._tried: list[tuple[Key, int, list[Seat]]] = []
        self.count = 0

    def catch_up(self) -> bool:
        """Leave out what has moved or found its place since; whether anything is left."""
        ledger = self._ledger
        if self._by_spot is None:
            self._by_spot = {}
            for seat in ledger.seats.values():
                if seat.rooms == BOTH and seat.workload.preemptible and not seat.started_now and seat.workload.short_of_gang_since is None:
                    self._by_spot.setdefault(seat.spot.order, {})[id(seat)] = seat
                    self._by_workload.setdefault(seat.workload.id, []).append(seat)
                    self.count += 1
        for workload_id in (*ledger.moved, *ledger.beneficiaries):
            if workload_id not in self._out:
                self._out.add(workload_id)
                for seat in self._by_workload.pop(workload_id, ()):
                    del self._by_spot[seat.spot.order][id(seat)]
                    self.count -= 1
        return self.count > 0

    def all(self) -> list[Seat]:
        return [seat for seats in self._by_workload.values() for seat in seats]

    def offer(self, order: int, request: PodRequest) -> list[Seat] | None:
        """The pods of this node whose leaving makes room for one such pod."""
        seats = (self._by_spot or {}).get(order, {}).values()
        ledger = self._ledger
        return _offer(ledger.spots[order], [seat for seat in seats if _still_movable(ledger, seat)], request)

    def ask(self, request: PodRequest, eligible: Eligible) -> None:
        """Offers for such a pod from here on."""
        self._heap.extend(self._tried)
        self._tried.clear()
        if self._offered == (request, eligible):
            heapify(self._heap)
            return
        self._offered = (request, eligible)
        offers = ((order, self.offer(order, request)) for order in self._by_spot or () if order in eligible)
        self._heap = [(_key(offer), order, offer) for order, offer in offers if offer]
        heapify(self._heap)

    def best(self) -> tuple[int, list[Seat]] | None:
        """The best offer that has not been tried for this request: (node, pods)."""
        while self._heap and self._offered:
            key, order, _ = heappop(self._heap)
            fresh = self.offer(order, self._offered[0])
            if fresh is None:
                continue
            entry = (_key(fresh), order, fresh)
            if entry[0] == key:
                self._tried.append(entry)
                return order, fresh
            heappush(self._heap, entry)
        return None

    def forget_offers(self) -> None:
        """What was tried has been taken back."""
        self._offered = None
        self._heap, self._tried = [], []


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


def _by_node(ledger: Ledger, request: Request, movable: Movable) -> bool:
    """Pod by pod: where it does not fit, the node where moving the least makes room."""
    checkpoint = ledger.checkpoint()
    asked: PodRequest | None = None
    for pod in request.pods:
        place = placement.find(ledger, pod.request, request.eligible, LATER)
        if place is not None:
            ledger.nominate(request.workload, pod, place)
            continue
        if asked != pod.request:
            asked = pod.request
            movable.ask(asked, request.eligible)
        if not _take_offer(ledger, request, pod, movable):
            ledger.rollback(checkpoint)
            movable.forget_offers()
            return False
    return True


def _take_offer(ledger: Ledger, request: Request, pod: Pod, movable: Movable) -> bool:
    """Carry out the best offer that still stands for this pod."""
    while found := movable.best():
        order, offer = found
        checkpoint = ledger.checkpoint()
        for seat in offer:
            ledger.vacate(seat)
        place = placement.on_spot(ledger.spots[order], pod.request, LATER)
        if place is not None and _within_cap(ledger, offer):
            ledger.nominate(request.workload, pod, place)
            if _resettle(ledger, request, offer):
                return True
        ledger.rollback(checkpoint)
    return False


def _still_movable(ledger: Ledger, seat: Seat) -> bool:
    return ledger.seats.get((seat.workload.id, seat.pod.index)) is seat


def _offer(spot: Spot, seats: Seats, request: PodRequest) -> list[Seat] | None:
    """The pods of this node whose leaving makes room for one such pod: as few as possible, small before large."""
    left = sorted(
        seats,
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
