"""Who of a set of victims must go, proved by counting: for each kind of pod the request has, how many of them the nodes could take.

The count looks at one kind at a time, as if the nodes were its alone, so it is never too low: a victim without whom it falls below the
number of such pods is needed, and nothing has to be tried. Where all pods are equal the count is exact. Where they are not, a second
count is of GPUs alone: a pod of 8 takes two places of 4.

    pods ask 8 GPUs, one node of 8 full of eight one-GPU jobs, all of them chosen  ->  1 place; without any one of them 0: each is needed
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hotdesk_scheduler.core.eligible import Eligible
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.model import WHOLE_GPU, Pod, PodRequest
from hotdesk_scheduler.core.requests import Request
from hotdesk_scheduler.core.rooms import Room, Spot
from hotdesk_scheduler.core.victims import Unit


def slots(room: Room, spot: Spot, request: PodRequest) -> int:
    """How many pods with this request the node could take at most if this were its room."""
    gpu = request.gpu
    counts = [room.pods]
    if request.cpu_millis:
        counts.append(room.cpu_millis // request.cpu_millis)
    if request.memory_mib:
        counts.append(room.memory_mib // request.memory_mib)
    if gpu.whole:
        counts.append(room.free_gpus // gpu.whole)
    elif not gpu.is_none:
        millis = spot.millis_for(request)
        parts = 0
        if 0 < millis <= WHOLE_GPU:
            parts = max(0, room.free_gpus) * (WHOLE_GPU // millis) + sum(
                max(0, WHOLE_GPU - used) // millis for used in room.groups.values()
            )
        counts.append(parts // gpu.devices)
    return max(0, min(counts))


@dataclass(frozen=True, slots=True)
class Measure:
    """A count of places for such pods, by GPUs alone or by everything, and how many the request takes of them."""

    kind: PodRequest
    needed: int
    gpus_alone: bool

    def of(self, room: Room, spot: Spot) -> int:
        return max(0, room.free_gpus) // self.kind.gpu.whole if self.gpus_alone else slots(room, spot, self.kind)

    def there(self, ledger: Ledger, eligible: Eligible, besides: Mapping[int, Room]) -> int:
        """Places on all nodes besides these; only some have enough GPUs free."""
        if self.kind.gpu.whole:
            spots = [ledger.spots[order] for bucket in ledger.index.later.upwards(self.kind.gpu.whole) for order in bucket]
        else:
            spots = [spot for spot in ledger.spots if spot.node.ready]
        return sum(self.of(spot.later, spot) for spot in spots if spot.order in eligible and spot.order not in besides)


def _measures(pods: Sequence[Pod]) -> list[Measure]:
    kinds = Counter(pod.request for pod in pods)
    found = [Measure(kind, count, False) for kind, count in kinds.items()]
    if len(kinds) > 1:
        for kind in kinds:
            if size := kind.gpu.whole:
                found.append(Measure(kind, sum(count * (other.gpu.whole // size) for other, count in kinds.items()), True))
    return found


class Slots:
    """Places for the pods of one request while chosen victims are taken out, and put back one by one."""

    def __init__(self, ledger: Ledger, request: Request, chosen: Sequence[Unit]) -> None:
        self._measures = _measures(request.pods)
        self._spots = {
            seat.spot.order: seat.spot
            for unit in chosen
            for seat in unit.seats
            if seat.spot.node.ready and seat.spot.order in request.eligible
        }
        self._rooms: dict[int, Room] = {}
        for unit in chosen:
            self._sit(unit, -1)
        besides = [measure.there(ledger, request.eligible, self._rooms) for measure in self._measures]
        self._counts = [count + here for count, here in zip(besides, self._places(list(self._rooms)), strict=True)]
        self.decides = len(self._measures) == len(request.eligible.stages) == 1 and request.pods[0].request.gpu.whole > 0
        """Whether the count is exact, and nothing but it matters: then nothing has to be tried."""

    def _sit(self, unit: Unit, sign: int) -> None:
        for seat in unit.seats:
            order = seat.spot.order
            if order in self._spots:
                if order not in self._rooms:
                    self._rooms[order] = seat.spot.later.copy()
                self._rooms[order].change(seat.placement, seat.pod.request, sign)

    def _places(self, orders: Sequence[int]) -> list[int]:
        return [sum(measure.of(self._rooms[order], self._spots[order]) for order in orders) for measure in self._measures]

    @property
    def enough(self) -> bool:
        """Whether there are as many as needed now."""
        return all(count >= measure.needed for count, measure in zip(self._counts, self._measures, strict=True))

    def _put(self, unit: Unit, sign: int) -> None:
        orders = [order for order in dict.fromkeys(seat.spot.order for seat in unit.seats) if order in self._spots]
        before = self._places(orders)
        self._sit(unit, sign)
        after = self._places(orders)
        self._counts = [count + b - a for count, a, b in zip(self._counts, before, after, strict=True)]

    def leave_running(self, unit: Unit) -> bool:
        """Put it back where it was; False, and nothing has changed, if the pods are then too many for what is left."""
        counts = self._counts
        self._put(unit, 1)
        if self.enough:
            return True
        self._sit(unit, -1)
        self._counts = counts
        return False

    def stop_after_all(self, unit: Unit) -> None:
        """Take out again what was put back: something that counting does not see needs it."""
        self._put(unit, -1)
