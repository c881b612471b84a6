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
from typing import Any, Protocol

from hotdesk_scheduler.core import placement
from hotdesk_scheduler.core.choice import Few, Search, Tally, Units
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.model import PodRequest
from hotdesk_scheduler.core.offers import offer_on
from hotdesk_scheduler.core.quantities import GPU, Vector
from hotdesk_scheduler.core.rooms import LATER, Spot
from hotdesk_scheduler.core.slots import Slots
from hotdesk_scheduler.core.victims import Unit

MOST_TAKEN = 256
SOME_UNITS = 64
SOME_SETS = 2_000
SOME_SETS_WITH_MOVES = 320

LOOKED_AT_FIRST = 4
"""Units tried one by one before it is worth while to ask which of all make room."""

Heap = list[tuple[tuple[Any, ...], int, list[Unit]]]


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
                if self.search.losers and len(seen) == LOOKED_AT_FIRST and (found := self._of_kept_offers()):
                    return found
        elif self.search.losers and (found := self._by_node(First(self.search))):
            return found
        seen.extend(units)
        nodes = Everybody(self.search, seen)
        return self._by_node(nodes) or self._some_sets(seen) or self._first_that_suffice(self._as_many_as_allowed(seen, gently=False))

    def _of_kept_offers(self) -> list[Unit] | None:
        """What all of `greedy` would find for one pod that finds no place by itself, where offers that are kept can tell."""
        search = self.search
        request = search.request.pods[0].request
        if placement.find(search.ledger, request, search.request.eligible, LATER) is not None:
            return None
        for loser in search.losers:
            for unit in loser.offers(request).alone():
                if search.rules.legal([unit]):
                    return [unit]
        return self._by_node(First(search))

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

    def _by_node(self, nodes: Nodes) -> list[Unit] | None:
        """For each pod that does not fit on free capacity, the node where the best set makes room for it."""
        checkpoint = self.search.ledger.checkpoint()
        chosen = self._fill(nodes)
        self.search.ledger.rollback(checkpoint)
        if chosen is None or not chosen:
            return None
        return self._prune(chosen)

    def _fill(self, nodes: Nodes) -> list[Unit] | None:
        ledger, workload = self.search.ledger, self.search.request.workload
        stage = self.search.request.eligible
        chosen: list[Unit] = []
        tally = Tally(_sums(self.search.ledger))
        heap: Heap | None = None
        asked = None
        for pod in self.search.request.pods:
            place = placement.find(ledger, pod.request, stage, LATER)
            if place is None:
                if heap is None or pod.request != asked:
                    asked = pod.request
                    heap = nodes.offers(asked)
                taken = self._best_offer(pod.request, heap, tally, nodes)
                if taken is None:
                    return None
                spot, offer = taken
                self.search.vacate(offer)
                chosen.extend(offer)
                place = placement.on_spot(spot, pod.request, LATER)
                if place is None:
                    return None
                ledger.nominate(workload, pod, place)
                again = offer_on(ledger, spot, nodes.on(spot.order), pod.request)
                if again:
                    heappush(heap, (self.search.key(again), spot.order, again))
            else:
                ledger.nominate(workload, pod, place)
        return chosen

    def _best_offer(self, request: PodRequest, heap: Heap, tally: Tally, nodes: Nodes) -> tuple[Spot, list[Unit]] | None:
        """The best offer that still stands and is legal together with what was chosen."""
        ledger, rules = self.search.ledger, self.search.rules
        while heap:
            key, order, offer = heappop(heap)
            spot, units = ledger.spots[order], nodes.on(order)
            if not all(unit.available(ledger) for unit in offer):
                again = offer_on(ledger, spot, units, request)
                if again:
                    heappush(heap, (self.search.key(again), order, again))
                continue
            if not nodes.tells(key):
                return None
            if rules.more(tally, offer):
                return spot, offer
            if not nodes.everybody:
                return None
            again = self._offer_beside(tally, spot, units, request)
            if again and rules.more(tally, again):
                return spot, again
        return None

    def _offer_beside(self, tally: Tally, spot: Spot, units: Units, request: PodRequest) -> list[Unit]:
        """An offer of those that may be stopped beside the ones in the tally."""
        largest, taken = dict(tally.largest), list[Unit]()

        def allow(links: Units) -> bool:
            allowed = self.search.rules.more(tally, links)
            taken.extend(links if allowed else ())
            return allowed

        offer = offer_on(self.search.ledger, spot, units, request, allow)
        tally.add(taken, -1)
        tally.largest = largest
        return offer

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
        if not self.search.rules.legal(chosen):
            return None
        places = None if self.search.moves else Slots(self.search.ledger, self.search.request, chosen)
        decided = places is not None and places.decides
        if not (places.enough if places and decided else self.search.suffices(chosen)):
            return None
        pruned = True
        while pruned:
            pruned = False
            for unit in sorted(chosen, key=lambda u: u.preference, reverse=True):
                if len(chosen) == 1 or self._chained(unit, chosen) or (places and not places.leave_running(unit)):
                    continue
                rest = [u for u in chosen if u is not unit]
                if self.search.rules.legal(rest) and (decided or self.search.suffices(rest)):
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


class Nodes(Protocol):
    """Possible victims by node."""

    everybody: bool
    """Whether all are in it, or only those of the project that comes first."""

    def on(self, order: int) -> Units:
        """Those on this node, in order of preference."""

    def offers(self, request: PodRequest) -> Heap:
        """The best set that makes room for such a pod, of each node, by `Search.key`."""

    def tells(self, key: tuple[Any, ...]) -> bool:
        """Whether an offer with this key comes before all that there could be besides."""


class Everybody:
    """All of these."""

    everybody = True

    def __init__(self, search: Search, units: Units) -> None:
        self._search = search
        self._by_spot: dict[int, list[Unit]] = {}
        for unit in units:
            for order in dict.fromkeys(seat.spot.order for seat in unit.seats):
                self._by_spot.setdefault(order, []).append(unit)

    def on(self, order: int) -> Units:
        return self._by_spot[order]

    def offers(self, request: PodRequest) -> Heap:
        ledger, stage = self._search.ledger, self._search.request.eligible
        found = ((order, offer_on(ledger, ledger.spots[order], units, request)) for order, units in self._by_spot.items() if order in stage)
        heap = [(self._search.key(offer), order, offer) for order, offer in found if offer]
        heapify(heap)
        return heap

    def tells(self, key: tuple[Any, ...]) -> bool:
        return True


class First:
    """Only those of the project that comes first, by the offers kept for it.

    A set of its units alone comes before all with others in them, as the others' are less over-served, unless it pushes somebody
    below its share, or stops what runs where others have something that this plan has just started.
    """

    def __init__(self, search: Search) -> None:
        self._search = search
        self._first = search.losers[0]
        self._offers = self._first.offers(search.request.pods[0].request)
        self.everybody = len(search.losers) == 1
        self._others_started = any(loser.has_started for loser in search.losers[1:])

    def on(self, order: int) -> Units:
        return self._offers.by_spot[order]

    def tells(self, key: tuple[Any, ...]) -> bool:
        return self.everybody or not (key[1] or (key[0] and self._others_started))

    def offers(self, request: PodRequest) -> Heap:
        rules = self._search.rules
        self._offers = self._first.offers(request)
        best = self._offers.best() if len(self._search.request.pods) == 1 else None
        entries = [best] if best and not rules.pushes(best[3].units) else self._offers.all()
        pushes: dict[Vector, bool] = {}
        heap: Heap = []
        for (not_now, *rest), order, _, offer in entries:
            units, amount = offer.units, offer.amount
            if amount not in pushes:
                pushes[amount] = rules.pushes(units)
            heap.append(((not_now, pushes[amount], rules.badness(units[0]), *rest), order, units))
        heapify(heap)
        return heap
