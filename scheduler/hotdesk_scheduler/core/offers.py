"""Who makes room for one pod, node by node, kept from one request to the next: where many ask the same, few nodes differ between them.

One `Offers` is about one project's units and one kind of pod. For each node it has the units that make room there, in order of
preference and less those that need not go; and those units that make room alone. What has changed on a node is looked at again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from hotdesk_scheduler.core import placement
from hotdesk_scheduler.core.eligible import Eligible
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.model import PodRequest
from hotdesk_scheduler.core.quantities import Vector, total
from hotdesk_scheduler.core.rooms import Room, Spot

if TYPE_CHECKING:
    from hotdesk_scheduler.core.victims import Pools, Unit

Standing = tuple[bool, int, bool, int, int, tuple[int, ...]]


def standing(units: Sequence[Unit]) -> Standing:
    """The criteria of `choice.Search.key` that depend on the units alone, in its order."""
    return (
        any(not unit.started_now for unit in units),
        max(unit.workload.priority for unit in units),
        any(not unit.surplus for unit in units),
        sum(unit.amount[0] for unit in units),
        sum(unit.amount[1] for unit in units),
        tuple(sorted((-unit.seniority for unit in units), reverse=True)),
    )


def leave(room: Room, spot: Spot, units: Iterable[Unit], *, back: bool = False) -> None:
    """Take what these hold on this node out of a copy of its room, or put it back."""
    for unit in units:
        for seat in unit.seats:
            if seat.spot is spot:
                room.change(seat.placement, seat.pod.request, 1 if back else -1)


def offer_on(
    ledger: Ledger, spot: Spot, units: Sequence[Unit], request: PodRequest, allow: Callable[[Sequence[Unit]], bool] | None = None
) -> list[Unit]:
    """The units that make room for one such pod on this node, in their order, less those that need not go; none if there are none.

    `allow` is asked about each with what has to go before it, if only some may go.
    """
    room = spot.later.copy()
    taken: list[Unit] = []
    if placement.fits_in(room, spot, request):
        return taken
    for unit in units:
        if unit in taken or not unit.available(ledger):
            continue
        links = [u for u in unit.chain(ledger) if u not in taken]
        if allow and not allow(links):
            continue
        leave(room, spot, links)
        taken.extend(links)
        if placement.fits_in(room, spot, request):
            return _less(taken, room, spot, request)
    return []


def _less(taken: list[Unit], room: Room, spot: Spot, request: PodRequest) -> list[Unit]:
    """Without those, the older first, whose seats are not needed for such a pod on this node; `room` is what it has without all."""
    elastic = any(unit.before for unit in taken)
    for unit in sorted(taken, key=_seniority) if len(taken) > 1 else ():
        if len(taken) == 1 or (elastic and any(other.before is unit for other in taken)):
            continue
        leave(room, spot, [unit], back=True)
        if placement.fits_in(room, spot, request):
            taken = [u for u in taken if u is not unit]
        else:
            leave(room, spot, [unit])
    return taken


@dataclass(slots=True, eq=False)
class Offer:
    """What makes room on one node. It stands until something there changes."""

    units: list[Unit]
    amount: Vector
    stands: bool = True


Entry = tuple[Standing, int, int, Offer]
"""An offer with its node, and a number that makes each entry different."""
Alone = tuple[tuple[object, ...], int, "Unit"]

_numbers = count()
_seniority = attrgetter("seniority")
_place = itemgetter(0, 1)


class Offers:
    """Of one project, for one kind of pod on the nodes it may use; `may_go` says of each unit whether it is one of them."""

    def __init__(self, pools: Pools, project: str, request: PodRequest, eligible: Eligible, may_go: Callable[[Unit], bool]) -> None:
        self.by_spot: dict[int, list[Unit]] = {}
        self.changed: set[int] = set()
        """Nodes that have changed since they were looked at."""
        self._pools, self._project, self._request, self._eligible, self._may_go = pools, project, request, eligible, may_go
        self._offers: dict[int, Offer] = {}
        self._heap: list[Entry] = []
        self._untried: set[int] = set()
        """Nodes on which it has not been asked anew who makes room alone."""
        self._alone: list[Alone] = []
        self._alone_on: dict[int, list[Alone]] = {}
        self._spread: dict[str, set[int]] = {}
        """The nodes of workloads with several pods: what happens on one matters on all."""
        self.remade = pools.remade[project]
        self._joined = len(pools.joined[project])
        for unit in pools.all_of(project):
            self._take_in(unit)

    def _take_in(self, unit: Unit) -> list[int]:
        """Its nodes, if it is one of them."""
        if not self._may_go(unit):
            return []
        orders = _orders(unit)
        for order in orders:
            self.by_spot.setdefault(order, []).append(unit)
        if len(unit.workload.pods) > 1:
            self._spread.setdefault(unit.workload.id, set()).update(orders)
        self.changed.update(orders)
        return orders

    def catch_up(self) -> None:
        """With what has joined, and with what has changed on nodes."""
        joined = self._pools.joined[self._project]
        while self._joined < len(joined):
            for order in self._take_in(joined[self._joined]):
                self.by_spot[order].sort(key=lambda unit: unit.preference)
            self._joined += 1
        if self.changed:
            near = {o for order in self.changed for unit in self.by_spot.get(order, ()) for o in self._spread.get(unit.workload.id, ())}
            for order in self.changed | near:
                if order in self.by_spot and order in self._eligible:
                    self._look(order)
            self.changed.clear()

    def _look(self, order: int) -> None:
        ledger = self._pools.ledger
        spot = ledger.spots[order]
        before = self._offers.pop(order, None)
        if before:
            before.stands = False
        there = [unit for unit in self.by_spot[order] if self._pools.runs(unit)]
        units = offer_on(ledger, spot, there, self._request)
        if units:
            self._offers[order] = offer = Offer(units, total([unit.amount for unit in units]))
            heappush(self._heap, (standing(units), order, next(_numbers), offer))
        self._untried.add(order)

    def _try_alone(self, order: int) -> None:
        for entry in self._alone_on.pop(order, ()):
            del self._alone[bisect_left(self._alone, entry[:2], key=_place)]
        spot = self._pools.ledger.spots[order]
        there = (unit for unit in self.by_spot[order] if self._pools.runs(unit))
        alone: list[Alone] = [(unit.preference, order, unit) for unit in there if self._suffices(unit, spot)]
        for entry in alone:
            insort(self._alone, entry, key=_place)
        if alone:
            self._alone_on[order] = alone

    def _suffices(self, unit: Unit, spot: Spot) -> bool:
        """Whether this one alone makes room here."""
        if unit.before and len(unit.chain(self._pools.ledger)) > 1:
            return False
        room = spot.later.copy()
        leave(room, spot, (unit,))
        return placement.fits_in(room, spot, self._request)

    def alone(self) -> Iterator[Unit]:
        """Units any of which makes room by itself, in order of preference."""
        for order in self._untried:
            self._try_alone(order)
        self._untried.clear()
        return (unit for _, _, unit in self._alone)

    def best(self) -> Entry | None:
        """The best by the criteria that depend on units alone."""
        while self._heap and not self._heap[0][3].stands:
            heappop(self._heap)
        return self._heap[0] if self._heap else None

    def all(self) -> list[Entry]:
        """Every offer that stands."""
        if len(self._heap) > 2 * len(self._offers):
            self._heap = sorted(entry for entry in self._heap if entry[3].stands)
        return [entry for entry in self._heap if entry[3].stands]


def _orders(unit: Unit) -> list[int]:
    """Its nodes."""
    if len(unit.seats) == 1:
        return [unit.seats[0].spot.order]
    return list(dict.fromkeys(seat.spot.order for seat in unit.seats))


class OfferBook:
    """The offers of a cycle."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._changed: set[int] | None = None
        self._found: dict[object, Offers] = {}

    def of(self, project: str, request: PodRequest, eligible: Eligible, may_go: Callable[[Unit], bool], alike: object) -> Offers:
        """Those of a project for such a pod, as things stand; whose `may_go` are `alike` share them."""
        if self._changed is None:
            self._changed = self._pools.ledger.index.watch("offers")
        for offers in self._found.values() if self._changed else ():
            offers.changed |= self._changed
        self._changed.clear()
        key = (project, request, id(eligible), alike)
        found = self._found.get(key)
        if found is None or found.remade != self._pools.remade[project]:
            found = self._found[key] = Offers(self._pools, project, request, eligible, may_go)
        found.catch_up()
        return found
