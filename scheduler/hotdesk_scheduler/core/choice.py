"""The smallest sufficient set: who is stopped so that a request can start, and nobody who could have been left running.

The theory: of all sets of victims that the rules allow and that make room, the best by a fixed list of criteria is taken
(scheduling.md 4). With few possible victims all sets are looked at; with many, one is built node by node from the units that come
first by the same criteria, then pruned until nobody in it could have been left running. Neither depends on time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Protocol

from hotdesk_scheduler.core import placement
from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.allocate import fit
from hotdesk_scheduler.core.consolidate import make_hole
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.model import PodRequest
from hotdesk_scheduler.core.quantities import GPU, RESOURCES, Vector
from hotdesk_scheduler.core.requests import Request
from hotdesk_scheduler.core.rooms import LATER, Room, Spot
from hotdesk_scheduler.core.slots import Slots
from hotdesk_scheduler.core.victims import Unit

EXACT_WORKLOADS = 12
MOST_SETS = 20_000
MOST_TAKEN = 64

Units = Sequence[Unit]


@dataclass(slots=True, eq=False)
class Tally:
    """Sums over a set of victims that is being built, by account: what they free, and the largest of them.

    `allocated` is what everybody holds before anything is tried: on the ledger those in the set may have left already.
    """

    allocated: dict[int, Vector]
    freed: dict[int, list[int]] = field(default_factory=dict)
    largest: dict[int, tuple[int, ...]] = field(default_factory=dict)
    accounts: dict[int, Account] = field(default_factory=dict)

    def add(self, units: Units, sign: int = 1) -> None:
        for unit in units:
            for account in unit.account.path:
                key = id(account)
                self.accounts[key] = account
                sums = self.freed.setdefault(key, [0, 0, 0])
                for r in RESOURCES:
                    sums[r] += sign * unit.amount[r]
                self.largest[key] = max(self.largest.get(key, (0, 0, 0)), unit.amount)


class Rules(Protocol):
    """What reclaim and preempt say about a set of victims."""

    def legal(self, units: Units) -> bool:
        """Whether these may be stopped for the request, and it may start then."""

    def more(self, tally: Tally, units: Units) -> bool:
        """Whether these may be stopped too, beyond those in the tally; if so they are added to it."""

    def pushes(self, units: Units) -> bool:
        """Whether somebody would end below its allocatable share."""

    def badness(self, unit: Unit) -> tuple[int, ...]:
        """How wrong it is to take from this unit's project: smaller is more over-served, then younger."""


@dataclass(slots=True, eq=False)
class Search:
    """One request looking for victims."""

    ledger: Ledger
    request: Request
    rules: Rules
    moves: bool = False
    """Whether others are also moved to make the room (reclaim, where stopping alone does not do as well)."""

    # --- criteria ----------------------------------------------------------------------------------------------------------------

    def key(self, units: Units) -> tuple[object, ...]:
        """Sorts sets: the first that suffices is taken."""
        return (
            any(not unit.started_now for unit in units),
            self.rules.pushes(units),
            max(self.rules.badness(unit) for unit in units),
            max(unit.workload.priority for unit in units),
            any(not unit.surplus for unit in units),
            sum(unit.amount[0] for unit in units),
            sum(unit.amount[1] for unit in units),
            tuple(sorted((-unit.seniority for unit in units), reverse=True)),
        )

    def suffices(self, units: Units) -> bool:
        """Whether all pods of the request can start, now or when these are gone."""
        checkpoint = self.ledger.checkpoint()
        self.vacate(units)
        fits = self.fits()
        self.ledger.rollback(checkpoint)
        return fits

    def fits(self) -> bool:
        """Put the request on the ledger as it stands, moving others if that is allowed."""
        return fit(self.ledger, self.request) or (self.moves and make_hole(self.ledger, self.request))

    def vacate(self, units: Units) -> None:
        for unit in units:
            for seat in unit.seats:
                self.ledger.vacate(seat)

    def choose(self, units: Iterable[Unit], *, may_move: bool) -> list[Unit] | None:
        """Whom to stop, or None; `units` are all that may be stopped, in order of preference. `moves` then says whether others move.

        Moves are looked at where a set with them could still come first: stopping alone does not do, or pushes somebody below its share.
        """
        self.moves = False
        head: list[Unit] = []
        rest = iter(units)
        count = Few()
        for unit in rest:
            head.append(unit)
            if not count.add(unit):
                return self._of_many([*head, *rest], may_move=may_move)
        if not head:
            return None
        chosen = self.exact(head)
        before = self.key(chosen)[:2] if chosen else None
        if may_move and (before is None or any(self.key([unit])[:2] < before for unit in head)):
            self.moves = True
            better = self.exact(head, before=before)
            self.moves = better is not None
            return better or chosen
        return chosen

    # --- exact -------------------------------------------------------------------------------------------------------------------

    def exact(self, units: Units, *, before: tuple[object, ...] | None = None) -> list[Unit] | None:
        """The best of all sets (of those whose key starts lower than `before`), or None; `units` are all that may be stopped.

        A part of a set always comes before it, so nobody in the first set that suffices could have been left running.
        """
        if not self.suffices(units):
            return None
        too_small: list[frozenset[int]] = []
        for chosen in self._in_order(units, before):
            if not self._frees_enough(chosen) or not self.rules.legal(chosen):
                continue
            ids = frozenset(map(id, chosen))
            if any(ids <= other for other in too_small):
                continue
            if self.suffices(chosen):
                return chosen
            too_small.append(ids)
        return None

    def _in_order(self, units: Units, before: tuple[object, ...] | None) -> Iterator[list[Unit]]:
        """All sets that respect the chains, the preferred first, made as they are asked for: a set never sorts before a part of it.

        Each set grows by the next unit of its last workload, or by the first unit of a later one, so that it is made once.
        """
        chains = _chains(units)
        heap: list[tuple[tuple[object, ...], int, int, list[Unit]]] = []

        def offer(chosen: list[Unit], last: int, length: int) -> None:
            key = self.key(chosen)
            if before is None or key[:2] < before:
                heappush(heap, (key, last, length, chosen))

        for i, chain in enumerate(chains):
            offer(chain[:1], i, 1)
        while heap:
            _, last, length, chosen = heappop(heap)
            yield chosen
            if length < len(chains[last]):
                offer([*chosen, chains[last][length]], last, length + 1)
            for i in range(last + 1, len(chains)):
                offer([*chosen, chains[i][0]], i, 1)

    def _frees_enough(self, units: Units) -> bool:
        """A quick look at sums of GPUs, before anything is tried: on one node for one pod, in all for several (or with moves)."""
        pods = self.request.pods
        whole = pods[0].request.gpu.whole
        if not whole:
            return True
        seats = [seat for unit in units for seat in unit.seats]
        if len(pods) == 1 and not self.moves:
            return placement.could_open(whole, seats, self.ledger)
        nodes = self.ledger.index.later
        free = sum(count * len(bucket) for count, bucket in enumerate(nodes.buckets)) * 1000
        groups = sum(len(groups) for groups in self.ledger.index.later_groups.buckets.values()) * 1000
        return free + groups + sum(unit.amount[GPU] for unit in units) >= self.request.ask[GPU]

    # --- greedy ------------------------------------------------------------------------------------------------------------------

    def _of_many(self, units: Units, *, may_move: bool) -> list[Unit] | None:
        return self.greedy(units)

    def greedy(self, units: Iterable[Unit]) -> list[Unit] | None:
        """A set built in order of the criteria and pruned, or None. `units` come in that order, lazily."""
        seen: list[Unit] = []
        if len(self.request.pods) == 1:
            for unit in units:
                seen.append(unit)
                if self._alone(unit):
                    return [unit]
        else:
            seen.extend(units)
        return self._by_node(seen) or self._all_then_prune(seen)

    def _alone(self, unit: Unit) -> bool:
        """Whether this one unit is enough."""
        whole = self.request.pods[0].request.gpu.whole
        if whole:
            spots = {seat.spot.order: seat.spot for seat in unit.seats}
            freed = unit.amount[GPU] // 1000 + len(unit.seats)
            if all(spot.later.free_gpus + freed < whole for spot in spots.values()):
                return False
        chain = unit.chain(self.ledger)
        return len(chain) == 1 and self.rules.legal(chain) and self.suffices(chain)

    def _by_node(self, units: Units) -> list[Unit] | None:
        """For each pod that does not fit on free capacity, the node where the best set makes room for it."""
        by_spot: dict[int, list[Unit]] = {}
        for unit in units:
            for order in dict.fromkeys(seat.spot.order for seat in unit.seats):
                by_spot.setdefault(order, []).append(unit)
        checkpoint = self.ledger.checkpoint()
        chosen = self._fill(by_spot)
        self.ledger.rollback(checkpoint)
        if chosen is None or not chosen:
            return None
        return self._prune(chosen)

    def _fill(self, by_spot: dict[int, list[Unit]]) -> list[Unit] | None:
        ledger, workload = self.ledger, self.request.workload
        stage = self.request.eligible
        chosen: list[Unit] = []
        tally = Tally(_sums(self.ledger))
        heap: list[tuple[tuple[object, ...], int, list[Unit]]] | None = None
        asked = None
        for pod in self.request.pods:
            place = placement.find(ledger, pod.request, stage, LATER)
            if place is None:
                if heap is None or pod.request != asked:
                    asked = pod.request
                    offers = ((order, self._offer(ledger.spots[order], by_spot[order], pod.request)) for order in by_spot)
                    heap = [(self.key(offer), order, offer) for order, offer in offers if offer and order in stage]
                    heapify(heap)
                taken = self._best_offer(heap, tally, by_spot)
                if taken is None:
                    return None
                spot, offer = taken
                self.vacate(offer)
                chosen.extend(offer)
                place = placement.on_spot(spot, pod.request, LATER)
                if place is None:
                    return None
                ledger.nominate(workload, pod, place)
                again = self._offer(spot, by_spot[spot.order], pod.request)
                if again:
                    heappush(heap, (self.key(again), spot.order, again))
            else:
                ledger.nominate(workload, pod, place)
        return chosen

    def _best_offer(
        self,
        heap: list[tuple[tuple[object, ...], int, list[Unit]]],
        tally: Tally,
        by_spot: dict[int, list[Unit]],
    ) -> tuple[Spot, list[Unit]] | None:
        """The best offer that still stands and is legal together with what was chosen."""
        while heap:
            _, order, offer = heappop(heap)
            spot = self.ledger.spots[order]
            if not all(unit.available(self.ledger) for unit in offer):
                again = self._offer(spot, by_spot[order], self.request.pods[0].request)
                if again:
                    heappush(heap, (self.key(again), order, again))
                continue
            if self.rules.more(tally, offer):
                return spot, offer
        return None

    def _offer(self, spot: Spot, units: Units, request: PodRequest) -> list[Unit] | None:
        """The units that make room for one such pod on this node, in order of preference, less those that need not go."""
        room = spot.later.copy()
        if placement.fits_in(room, spot, request):
            return None
        taken: list[Unit] = []
        for unit in units:
            if unit in taken or not unit.available(self.ledger):
                continue
            chain = [u for u in unit.chain(self.ledger) if u not in taken]
            _leave(room, spot, chain)
            taken.extend(chain)
            if placement.fits_in(room, spot, request):
                break
        else:
            return None
        for unit in sorted(taken, key=lambda u: u.seniority) if len(taken) > 1 else ():
            if len(taken) == 1 or any(other.before is unit for other in taken):
                continue
            _leave(room, spot, [unit], back=True)
            if placement.fits_in(room, spot, request):
                taken = [u for u in taken if u is not unit]
            else:
                _leave(room, spot, [unit])
        return taken

    def _all_then_prune(self, units: Units) -> list[Unit] | None:
        """Where no node by itself is the answer: as many as the rules allow, less those that need not go."""
        if len(units) > MOST_TAKEN:
            return None
        tally = Tally(_sums(self.ledger))
        taken: list[Unit] = []
        for unit in units:
            chain = [u for u in unit.chain(self.ledger) if u not in taken]
            if self.rules.more(tally, chain):
                taken.extend(chain)
        return self._prune(taken) if taken else None

    def _prune(self, chosen: list[Unit]) -> list[Unit] | None:
        """Leave running whoever need not go, the best-protected first; None if the whole is not legal or does not suffice."""
        if not self.rules.legal(chosen) or not self.suffices(chosen):
            return None
        places = Slots(self.ledger, self.request, chosen)
        pruned = True
        while pruned:
            pruned = False
            for unit in sorted(chosen, key=lambda u: u.preference, reverse=True):
                if self._chained(unit, chosen) or not places.leave_running(unit):
                    continue
                rest = [u for u in chosen if u is not unit]
                if self.rules.legal(rest) and self.suffices(rest):
                    chosen = rest
                    pruned = True
                else:
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


@dataclass(slots=True, eq=False)
class Few:
    """Counts possible victims as they come."""

    sets: int = 1
    lengths: dict[str, int] = field(default_factory=dict)

    def add(self, unit: Unit) -> bool:
        """Whether with this one all sets can still be looked at."""
        length = self.lengths.get(unit.workload.id, 0) + 1
        self.lengths[unit.workload.id] = length
        self.sets = self.sets // length * (length + 1)
        return len(self.lengths) <= EXACT_WORKLOADS and self.sets <= MOST_SETS


def _chains(units: Units) -> list[list[Unit]]:
    """The units of each workload, in the order in which they have to go."""
    chains: dict[str, list[Unit]] = {}
    for unit in units:
        chains.setdefault(unit.workload.id, []).append(unit)
    for chain in chains.values():
        chain.sort(key=_depth)
    return list(chains.values())


def _depth(unit: Unit) -> int:
    depth = 0
    while unit.before is not None:
        unit, depth = unit.before, depth + 1
    return depth


def larger(unit: Unit) -> tuple[int, ...]:
    """Sorts a side's victims so that the largest comes last."""
    return tuple(unit.amount[r] for r in RESOURCES)
