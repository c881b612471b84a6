"""Who of a set of victims must go, proved by counting: for each kind of pod the request has, how many of them the nodes could take.

The count looks at one kind at a time, as if the nodes were its alone, so it is never too low: a victim without whom it falls below the
number of such pods is needed, and nothing has to be tried. Where all pods are equal the count is exact.

    pods ask 8 GPUs, one node of 8 full of eight one-GPU jobs, all of them chosen  ->  1 place; without any one of them 0: each is needed
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.model import WHOLE_GPU, PodRequest
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
            parts = room.free_gpus * (WHOLE_GPU // millis) + sum((WHOLE_GPU - used) // millis for used in room.groups.values())
        counts.append(parts // gpu.devices)
    return max(0, min(counts))


class Slots:
    """Places for the pods of one request while chosen victims are taken out, and put back one by one."""

    def __init__(self, ledger: Ledger, request: Request, chosen: Sequence[Unit]) -> None:
        self._needed = Counter(pod.request for pod in request.pods)
        self._spots = {spot.order: spot for spot in ledger.spots if spot.node.ready and spot.order in request.eligible}
        self._rooms: dict[int, Room] = {}
        for unit in chosen:
            self._sit(unit, -1)
        self._count = {
            kind: sum(slots(self._rooms.get(order, spot.later), spot, kind) for order, spot in self._spots.items()) for kind in self._needed
        }

    def _sit(self, unit: Unit, sign: int) -> None:
        for seat in unit.seats:
            order = seat.spot.order
            if order in self._spots:
                if order not in self._rooms:
                    self._rooms[order] = seat.spot.later.copy()
                self._rooms[order].change(seat.placement, seat.pod.request, sign)

    def _places(self, orders: Sequence[int]) -> list[int]:
        return [sum(slots(self._rooms[order], self._spots[order], kind) for order in orders) for kind in self._needed]

    def leave_running(self, unit: Unit) -> bool:
        """Put it back where it was; False, and nothing has changed, if the pods are then too many for what is left."""
        orders = [order for order in dict.fromkeys(seat.spot.order for seat in unit.seats) if order in self._spots]
        before = self._places(orders)
        self._sit(unit, 1)
        after = self._places(orders)
        left = [count + b - a for count, a, b in zip(self._count.values(), before, after, strict=True)]
        if any(places < needed for places, needed in zip(left, self._needed.values(), strict=True)):
            self._sit(unit, -1)
            return False
        self._count = dict(zip(self._needed, left, strict=True))
        return True

    def stop_after_all(self, unit: Unit) -> None:
        """Take out again what was put back: something that counting does not see needs it."""
        orders = [order for order in dict.fromkeys(seat.spot.order for seat in unit.seats) if order in self._spots]
        before = self._places(orders)
        self._sit(unit, -1)
        after = self._places(orders)
        self._count = {kind: self._count[kind] + b - a for kind, a, b in zip(self._needed, before, after, strict=True)}
