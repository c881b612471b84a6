"""Whom to stop where the sets are too many to look at all of them.

The theory: one is built node by node from the units that come first by the criteria of `choice`, then pruned until nobody in it could
have been left running. Where no node by itself is the answer (a limit is in the way, others have to be moved, the right to take went to
the wrong ones) a bounded number of sets is looked at in order, then the first one, two, four … units that may be taken together.
The bounds are counts: a set of more than 256 units that is not the answer node by node is not found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import chain

from hotdesk_scheduler.core import placement
from hotdesk_scheduler.core.choice import Few, Search, Tally, Units
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.model import PodRequest
from hotdesk_scheduler.core.quantities import GPU, Vector
from hotdesk_scheduler.core.rooms import LATER, Room, Spot
from hotdesk_scheduler.core.slots import Slots
from hotdesk_scheduler.core.victims import Unit

MOST_TAKEN = 256
SOME_UNITS = 64
SOME_SETS = 2_000
SOME_SETS_WITH_MOVES = 320

Offers = list[tuple[tuple[object, ...], int, list[Unit]]]


def choose(search: Search, units: Iterable[Unit], *, may_move: bool) -> list[Unit] | None:
    """Whom to stop, or None; `units` are all that may be stopped, in order of preference. `moves` then says whether others move.

    Moves are looked at where a set with them could still come first: stopping alone does not do, or pushes somebody below its share.
    """
    search.moves = False
    head: list[Unit] = []
    rest = iter(units)
    count = Few()
    for unit in rest:
        head.append(unit)
        if not count.add(unit):
            return Greedy(search).of_many(chain(head, rest), may_move=may_move)
    if not head:
        return None
    chosen = search.exact(head)
    before = search.key(chosen)[:2] if chosen else None
    if may_move and (before is None or any(search.key([unit])[:2] < before for unit in head)):
        search.moves = True
        better = search.exact(head, before=before)
        search.moves = better is not None
        return better or chosen
    return chosen


@dataclass(slots=True, eq=False)
class Greedy:
    """One search among many possible victims."""

    search: Search

    def of_many(self, units: Iterator[Unit], *, may_move: bool) -> list[Unit] | None:
        seen: list[Unit] = []
        chosen = self.greedy(units, seen)
        if not may_move or (chosen is not None and not self.search.rules.pushes(chosen)):
            return chosen
        self.search.moves = True
        before = self.search.key(chosen)[:2] if chosen else None
        everybody = [*seen, *units]
        better = self._some_sets(everybody, before=before)
        if better is None:
            better = self._first_that_suffice(self._as_many_as_allowed(everybody, gently=chosen is not None))
        self.search.moves = better is not None
        return better or chosen

    def greedy(self, units: Iterable[Unit], seen: list[Unit]) -> list[Unit] | None:
        """A set built in order of the criteria and pruned, or None. `units` come in that order, lazily; `seen` are those looked at."""
        if len(self.search.request.pods) == 1:
            for unit in units:
                seen.append(unit)
                if self._alone(unit):
                    return [unit]
        else:
            seen.extend(units)
        return self._by_node(seen) or self._some_sets(seen) or self._first_that_suffice(self._as_many_as_allowed(seen, gently=False))

    def _some_sets(self, units: Units, *, before: tuple[object, ...] | None = None) -> list[Unit] | None:
        """The best of the first sets of the first units: finds what a greedy choice spends the right to take on the wrong ones."""
        most = SOME_SETS_WITH_MOVES if self.search.moves else SOME_SETS
        return self.search.exact(units[:SOME_UNITS], before=before, most=most) if units else None

    def _alone(self, unit: Unit) -> bool:
        """Whether this one unit is enough."""
        whole = self.search.request.pods[0].request.gpu.whole
        if whole:
            spots = {seat.spot.order: seat.spot for seat in unit.seats}
            freed = unit.amount[GPU] // 1000 + len(unit.seats)
            if all(spot.later.free_gpus + freed < whole for spot in spots.values()):
                return False
        links = unit.chain(self.search.ledger)
        return len(links) == 1 and self.search.rules.legal(links) and self.search.suffices(links)

    def _by_node(self, units: Units) -> list[Unit] | None:
        """For each pod that does not fit on free capacity, the node where the best set makes room for it."""
        by_spot: dict[int, list[Unit]] = {}
        for unit in units:
            for order in dict.fromkeys(seat.spot.order for seat in unit.seats):
                by_spot.setdefault(order, []).append(unit)
        checkpoint = self.search.ledger.checkpoint()
        chosen = self._fill(by_spot)
        self.search.ledger.rollback(checkpoint)
        if chosen is None or not chosen:
            return None
        return self._prune(chosen)

    def _fill(self, by_spot: dict[int, list[Unit]]) -> list[Unit] | None:
        ledger, workload = self.search.ledger, self.search.request.workload
        stage = self.search.request.eligible
        chosen: list[Unit] = []
        tally = Tally(_sums(self.search.ledger))
        heap: Offers | None = None
        asked = None
        for pod in self.search.request.pods:
            place = placement.find(ledger, pod.request, stage, LATER)
            if place is None:
                if heap is None or pod.request != asked:
                    asked = pod.request
                    offers = ((order, self._offer(ledger.spots[order], by_spot[order], pod.request)) for order in by_spot)
                    heap = [(self.search.key(offer), order, offer) for order, offer in offers if offer and order in stage]
                    heapify(heap)
                taken = self._best_offer(pod.request, heap, tally, by_spot=by_spot)
                if taken is None:
                    return None
                spot, offer = taken
                self.search.vacate(offer)
                chosen.extend(offer)
                place = placement.on_spot(spot, pod.request, LATER)
                if place is None:
                    return None
                ledger.nominate(workload, pod, place)
                again = self._offer(spot, by_spot[spot.order], pod.request)
                if again:
                    heappush(heap, (self.search.key(again), spot.order, again))
            else:
                ledger.nominate(workload, pod, place)
        return chosen

    def _best_offer(
        self, request: PodRequest, heap: Offers, tally: Tally, *, by_spot: dict[int, list[Unit]]
    ) -> tuple[Spot, list[Unit]] | None:
        """The best offer that still stands and is legal together with what was chosen."""
        while heap:
            _, order, offer = heappop(heap)
            spot = self.search.ledger.spots[order]
            if not all(unit.available(self.search.ledger) for unit in offer):
                again = self._offer(spot, by_spot[order], request)
                if again:
                    heappush(heap, (self.search.key(again), order, again))
                continue
            if self.search.rules.more(tally, offer):
                return spot, offer
            again = self._offer(spot, by_spot[order], request, beside=tally)
            if again and self.search.rules.more(tally, again):
                return spot, again
        return None

    def _offer(self, spot: Spot, units: Units, request: PodRequest, *, beside: Tally | None = None) -> list[Unit] | None:
        """The units that make room for one such pod on this node, in order of preference, less those that need not go.

        With `beside` only those that may be stopped beside the ones in that tally.
        """
        room = spot.later.copy()
        if placement.fits_in(room, spot, request):
            return None
        taken: list[Unit] = []
        largest = dict(beside.largest) if beside else {}
        enough = False
        for unit in units:
            if unit in taken or not unit.available(self.search.ledger):
                continue
            links = [u for u in unit.chain(self.search.ledger) if u not in taken]
            if beside and not self.search.rules.more(beside, links):
                continue
            _leave(room, spot, links)
            taken.extend(links)
            if enough := placement.fits_in(room, spot, request):
                break
        if beside:
            beside.add(taken, -1)
            beside.largest = largest
        return self._less(taken, room, spot, request) if enough else None

    def _less(self, taken: list[Unit], room: Room, spot: Spot, request: PodRequest) -> list[Unit]:
        """Without those, the older first, whose seats are not needed for such a pod on this node; `room` is what it has without all."""
        for unit in sorted(taken, key=lambda u: u.seniority) if len(taken) > 1 else ():
            if len(taken) == 1 or any(other.before is unit for other in taken):
                continue
            _leave(room, spot, [unit], back=True)
            if placement.fits_in(room, spot, request):
                taken = [u for u in taken if u is not unit]
            else:
                _leave(room, spot, [unit])
        return taken

    def _as_many_as_allowed(self, units: Units, *, gently: bool) -> list[Unit]:
        """In order of preference, whoever may be stopped beside those before (with `gently` without pushing anybody below its share)."""
        tally = Tally(_sums(self.search.ledger))
        taken: list[Unit] = []
        ids: set[int] = set()
        for unit in units:
            links = [u for u in unit.chain(self.search.ledger) if id(u) not in ids]
            if gently and self.search.rules.pushes([*taken, *links]):
                continue
            if links and self.search.rules.more(tally, links):
                taken.extend(links)
                ids.update(map(id, links))
                if len(taken) >= MOST_TAKEN:
                    break
        return taken

    def _first_that_suffice(self, units: Units) -> list[Unit] | None:
        """Where no node by itself is the answer: the first one, two, four … of these, less those that need not go."""
        if not units or not self.search.frees_enough(units) or not self.search.suffices(units):
            return None
        count = 1
        while count < len(units):
            first = list(units[:count])
            if first[-1].before not in units[count:] and self.search.frees_enough(first) and (chosen := self._prune(first)):
                return chosen
            count *= 2
        return self._prune(list(units))

    def _prune(self, chosen: list[Unit]) -> list[Unit] | None:
        """Leave running whoever need not go, the best-protected first; None if the whole is not legal or does not suffice."""
        if not self.search.rules.legal(chosen) or not self.search.suffices(chosen):
            return None
        places = None if self.search.moves else Slots(self.search.ledger, self.search.request, chosen)
        pruned = True
        while pruned:
            pruned = False
            for unit in sorted(chosen, key=lambda u: u.preference, reverse=True):
                if len(chosen) == 1 or self._chained(unit, chosen) or (places and not places.leave_running(unit)):
                    continue
                rest = [u for u in chosen if u is not unit]
                if self.search.rules.legal(rest) and self.search.suffices(rest):
                    chosen = rest
                    pruned = True
                elif places:
                    places.stop_after_all(unit)
        return chosen

    def _chained(self, unit: Unit, chosen: Units) -> bool:
        """Whether another of them may only go after this one."""
        return len(unit.workload.pods) > 1 and any(other.before is unit for other in chosen)


def _sums(ledger: Ledger) -> dict[int, Vector]:
    accounts = {id(account): account for project in ledger.projects.values() for account in project.path}
    return {key: (a.allocated[0], a.allocated[1], a.allocated[2]) for key, a in accounts.items()}


def _leave(room: Room, spot: Spot, units: Units, *, back: bool = False) -> None:
    """Take what these hold on this node out of a copy of its room, or put it back."""
    for unit in units:
        for seat in unit.seats:
            if seat.spot is spot:
                room.change(seat.placement, seat.pod.request, 1 if back else -1)
