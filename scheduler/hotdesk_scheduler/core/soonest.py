"""Which nodes free up soonest for a request that has waited long (`reserve`): nobody knows how long work runs, so

- nodes come first where all that is in the way was there when the reservation began: as nothing comes to it that does not give way, the
  node kept for a request never gets worse, and the wait is bounded by the run time of what was there;
- then those where least work has to end that has no end of its own (notebooks, inference), then least GPUs;
- for a gang, a node that it uses already; then where least gives way; then by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from hotdesk_scheduler.core.ledger import Ledger, Seat
from hotdesk_scheduler.core.model import Kind, Placement, Pod, PodRequest, PodState, Share, Workload
from hotdesk_scheduler.core.placement import alike, fits_in
from hotdesk_scheduler.core.quantities import GPU, asked
from hotdesk_scheduler.core.requests import Request
from hotdesk_scheduler.core.rooms import BOTH, NOW, Room, Spot

LASTING = frozenset({Kind.INTERACTIVE, Kind.WORKSPACE, Kind.INFERENCE})
"""Has no end of its own."""


class Waits(Protocol):
    """A reservation, as far as it matters here."""

    since: float

    def gives_way(self, workload: Workload, size: int, *, surplus: bool) -> bool: ...


@dataclass(slots=True, eq=False)
class Unit:
    """What stops together: the minimum of a workload, or one surplus pod (which goes before the minimum)."""

    workload: Workload
    seats: tuple[Seat, ...]
    surplus: bool


Young = dict[str, list[Seat]]
"""Seats of preemptible workloads of which something started lately, by workload."""


def seats_since(ledger: Ledger, since: float) -> Young:
    """All seats of those of which a pod started then or later; not of who was just moved, or for whom others were stopped."""
    found: dict[str, Workload] = {}
    for seat in ledger.seats.values():
        if seat.workload.preemptible and seat.rooms == BOTH and _started(seat, since) >= since:
            found[seat.workload.id] = seat.workload
    young: Young = {}
    for workload in found.values():
        found_seats = (ledger.seats.get((workload.id, pod.index)) for pod in workload.pods)
        seats = [seat for seat in found_seats if seat and seat.rooms == BOTH]
        if workload.id not in ledger.beneficiaries and workload.id not in ledger.moved:
            young[workload.id] = seats
    return young


def _started(seat: Seat, since: float) -> float:
    """When it started; `since` if that is not known or it starts now."""
    return since if seat.started_now or seat.pod.started_at is None else seat.pod.started_at


def behind(ledger: Ledger, young: Young, one: Waits) -> Iterator[Unit]:
    """What started behind the reservation and gives way to it, surplus pods first."""
    for seats in young.values():
        workload = seats[0].workload
        minimum, surplus = apart(seats)
        late = [seat for seat in surplus if _started(seat, one.since) >= one.since]
        if late and one.gives_way(workload, 0, surplus=True):
            yield from (Unit(workload, (seat,), True) for seat in reversed(late))
        all_late = len(late) == len(surplus) and min((_started(seat, one.since) for seat in minimum), default=0.0) >= one.since
        if minimum and all_late and one.gives_way(workload, size_of(workload, ledger.smallest_gpu_mib), surplus=False):
            yield Unit(workload, tuple(minimum), False)


def apart(seats: list[Seat]) -> tuple[list[Seat], list[Seat]]:
    """The seats of one workload: those of its minimum, and the surplus (pods that are done count towards the minimum)."""
    workload = seats[0].workload
    if len(workload.pods) == workload.min_pods:
        return seats, []
    seats = sorted(seats, key=lambda seat: seat.pod.index)
    least = max(0, workload.min_pods - sum(pod.state is PodState.SUCCEEDED for pod in workload.pods))
    return seats[:least], seats[least:]


def size_of(workload: Workload, smallest_gpu_mib: int) -> int:
    """GPU thousandths of the pods that start together."""
    pods = workload.pods
    if len(pods) == 1:
        return asked(pods[0].request, smallest_gpu_mib)[GPU]
    if len(pods) > workload.min_pods:
        pods = pods[: max(1, workload.min_pods)]
    return sum(asked(pod.request, smallest_gpu_mib)[GPU] for pod in pods)


Key = tuple[float, int, int, bool, int, int]


@dataclass(slots=True, eq=False)
class _View:
    """One node as it could be for one more pod: what leaves (by id of the seat), who has to end."""

    room: Room
    gone: set[int]
    ends: list[Seat]


class Outlook:
    """What is kept for one request is no more there for the next."""

    def __init__(self, ledger: Ledger, young: Young) -> None:
        self._ledger = ledger
        self._views: dict[int, _View] = {}
        self._roughly: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
        self._young: dict[int, int] = {}
        self._on: dict[int, list[Seat]] = {}
        for seats in young.values():
            for seat in seats:
                self._young[seat.spot.order] = self._young.get(seat.spot.order, 0) + _devices(seat)
        for table in (ledger.seats, ledger.nominated):
            for seat in table.values():
                if seat.rooms != NOW:
                    self._on.setdefault(seat.spot.order, []).append(seat)

    def soonest(
        self, request: Request, since: float, leaving: frozenset[int], taken: frozenset[int]
    ) -> tuple[frozenset[int], tuple[Workload, ...]] | None:
        """The nodes (by order, none of those taken) for all its pods, and who has to end there; None if no nodes are large enough."""
        chosen: dict[int, _View] = {}
        for pods in alike(request.pods):
            rough = [(missing, order) for missing, order in self._rough(request, pods[0].request) if order not in taken]
            if not self._choose(rough, pods, since, leaving, chosen):
                return None
        self._views.update(chosen)
        ends = {
            seat.workload.id: seat.workload
            for order in sorted(chosen)
            for seat in chosen[order].ends
            if seat.workload.id != request.workload.id
        }
        return frozenset(chosen), tuple(ends.values())

    def _choose(
        self, rough: list[tuple[int, int]], pods: list[Pod], since: float, leaving: frozenset[int], chosen: dict[int, _View]
    ) -> bool:
        """Nodes are looked at closely only as long as one of them could still be better than the best so far."""
        wanted = pods[0].request
        heap: list[tuple[Key, int, _View]] = []
        at = 0

        def look(order: int) -> None:
            found = self._look(order, wanted, since, leaving, chosen)
            if found:
                heappush(heap, (found[0], order, found[1]))

        for _ in pods:
            while at < len(rough) and not (heap and heap[0][0][:3] <= (since, 0, rough[at][0])):
                look(rough[at][1])
                at += 1
            if not heap:
                return False
            _, order, view = heappop(heap)
            chosen[order] = view
            _take(view.room, self._ledger.spots[order], wanted)
            look(order)
        return True

    def _rough(self, request: Request, wanted: PodRequest) -> list[tuple[int, int]]:
        """(at least so many GPUs are missing, node) of all that are large enough; fewest first, then the fullest."""
        gpu, eligible, views = wanted.gpu, request.eligible, self._views
        devices = gpu.whole or (0 if gpu.is_none else gpu.devices)
        key = (gpu.whole, devices, id(eligible))
        if key not in self._roughly:
            spots = (s for s in self._ledger.spots if s.order in eligible and s.node.ready and s.node.gpus >= devices)
            self._roughly[key] = sorted(self._roughly_on(spot.order, spot.later, gpu.whole) for spot in spots)
        found = self._roughly[key]
        if views:
            planned = (order for _, _, order in found if order in views)
            again = [self._roughly_on(order, views[order].room, gpu.whole) for order in planned]
            found = sorted([entry for entry in found if entry[2] not in views] + again)
        return [(missing, order) for missing, _, order in found]

    def _roughly_on(self, order: int, room: Room, whole: int) -> tuple[int, int, int]:
        return max(0, whole - room.free_gpus - self._young.get(order, 0)), room.free_gpus, order

    def _look(
        self, order: int, wanted: PodRequest, since: float, leaving: frozenset[int], chosen: dict[int, _View]
    ) -> tuple[Key, _View] | None:
        """The node with what gives way gone, and as much else as it takes: first what has an end of its own, then what is there longest."""
        spot = self._ledger.spots[order]
        before = chosen.get(order) or self._views.get(order)
        room = before.room.copy() if before else spot.later.copy()
        gone = set(before.gone) if before else set()
        ends = list(before.ends) if order in chosen and before else []
        yields = missing = lasting = 0
        last = since
        in_the_way: list[tuple[bool, float, str, int, Seat]] = []
        for seat in self._on.get(order, ()):
            if id(seat) in gone:
                continue
            if id(seat) in leaving:
                room.change(seat.placement, seat.pod.request, -1)
                gone.add(id(seat))
                yields += _devices(seat)
            else:
                started = self._ledger.now if seat.pod.started_at is None else seat.pod.started_at
                in_the_way.append((seat.workload.kind in LASTING, started, seat.workload.id, seat.pod.index, seat))
        in_the_way.sort(key=lambda entry: entry[:4], reverse=True)
        while not fits_in(room, spot, wanted):
            if not in_the_way:
                return None
            stays_long, started, _, _, seat = in_the_way.pop()
            room.change(seat.placement, seat.pod.request, -1)
            gone.add(id(seat))
            ends.append(seat)
            missing += _devices(seat)
            lasting += stays_long
            last = max(last, started)
        return (last, lasting, missing, order not in chosen, yields, order), _View(room, gone, ends)


def _devices(seat: Seat) -> int:
    return seat.placement.whole or len(seat.placement.shares)


def _take(room: Room, spot: Spot, request: PodRequest) -> None:
    """Put one such pod into a room where it fits."""
    gpu = request.gpu
    if gpu.whole or gpu.is_none:
        room.change(Placement(spot.node.name, gpu.whole), request, 1)
        return
    millis = spot.millis_for(request)
    joined = sorted((group for group, used in room.groups.items() if used + millis <= 1000), key=lambda g: (-room.groups[g], g))
    opened = [f"kept-{len(room.groups)}-{i}" for i in range(gpu.devices)]
    groups = (joined + opened)[: gpu.devices]
    room.change(Placement(spot.node.name, shares=tuple(Share(group, millis) for group in groups)), request, 1)
