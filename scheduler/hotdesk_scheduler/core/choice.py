"""The smallest sufficient set: who is stopped so that a request can start, and nobody who could have been left running.

The theory: of all sets of victims that the rules allow and that make room, the best by a fixed list of criteria is taken
(scheduling.md 4). With few possible victims all sets are looked at, the preferred first; with many, `greedy` builds one. Neither
depends on time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from typing import Any, Protocol

from hotdesk_scheduler.core import placement
from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.allocate import fit
from hotdesk_scheduler.core.consolidate import make_hole
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.model import PodRequest
from hotdesk_scheduler.core.offers import Offers
from hotdesk_scheduler.core.quantities import GPU, RESOURCES, Vector
from hotdesk_scheduler.core.requests import Request
from hotdesk_scheduler.core.victims import Unit

EXACT_WORKLOADS = 12
MOST_SETS = 20_000
MOST_TAKEN = 256
SOME_UNITS = 64
SOME_SETS = 2_000
SOME_SETS_WITH_MOVES = 320

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


@dataclass(frozen=True, slots=True, eq=False)
class Loser:
    """One project that could lose something: what its units offer for one kind of pod, and whether this plan started any of them."""

    offers: Callable[[PodRequest], Offers]
    has_started: bool


@dataclass(slots=True, eq=False)
class Search:
    """One request looking for victims."""

    ledger: Ledger
    request: Request
    rules: Rules
    losers: Sequence[Loser] = ()
    """Whose units they are, in order of preference."""
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

    # --- exact -------------------------------------------------------------------------------------------------------------------

    def exact(self, units: Units, *, before: tuple[object, ...] | None = None, most: int | None = None) -> list[Unit] | None:
        """The best of all sets (of those whose key starts lower than `before`), or None; `units` are all that may be stopped.

        A part of a set always comes before it, so nobody in the first set that suffices could have been left running. With `most`
        only so many sets are looked at, and a tenth of them tried.
        """
        if not self.suffices(units):
            return None
        too_small: list[frozenset[int]] = []
        for chosen in islice(self._in_order(units, before), most):
            if not self.frees_enough(chosen) or not self.rules.legal(chosen):
                continue
            ids = frozenset(map(id, chosen))
            if any(ids <= other for other in too_small):
                continue
            if self.suffices(chosen):
                return chosen
            too_small.append(ids)
            if most is not None and len(too_small) * 10 >= most:
                break
        return None

    def _in_order(self, units: Units, before: tuple[object, ...] | None) -> Iterator[list[Unit]]:
        """All sets that respect the chains, the preferred first, made as they are asked for: a set never sorts before a part of it.

        Each set grows by the next unit of its last workload, or by the first unit of a later one, so that it is made once.
        """
        chains = _chains(units, self.ledger)
        heap: list[tuple[tuple[object, ...], int, int, list[Unit]]] = []

        def offer(larger: list[Unit], last: int, length: int, key: tuple[object, ...]) -> None:
            if before is None or key[:2] < before:
                heappush(heap, (key, last, length, larger))

        alone = [[self.key([unit]) for unit in links] for links in chains]
        for i, links in enumerate(chains):
            offer(links[:1], i, 1, alone[i][0])
        while heap:
            key, last, length, chosen = heappop(heap)
            yield chosen
            if length < len(chains[last]):
                larger = [*chosen, chains[last][length]]
                offer(larger, last, length + 1, self._key_with(key, alone[last][length], larger))
            for i in range(last + 1, len(chains)):
                larger = [*chosen, chains[i][0]]
                offer(larger, i, 1, self._key_with(key, alone[i][0], larger))

    def _key_with(self, before: tuple[Any, ...], last: tuple[Any, ...], units: Units) -> tuple[object, ...]:
        """`key(units)`, from that of all but the last and that of the last alone: who is pushed by a part is pushed by the whole."""
        not_now, pushes, badness, priority, whole, gpu, cpu, ages = before
        return (
            not_now or last[0],
            pushes or last[1] or self.rules.pushes(units),
            max(badness, last[2]),
            max(priority, last[3]),
            whole or last[4],
            gpu + last[5],
            cpu + last[6],
            tuple(sorted((*ages, *last[7]), reverse=True)),
        )

    def frees_enough(self, units: Units) -> bool:
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


def may_go(search: Search, unit: Unit, *, protect: bool = True) -> bool:
    """On nodes the request may use, holding something it asks for, not protected."""
    request = search.request
    if not _holds_any(unit, request.asked):
        return False
    if request.eligible.allowed is not None and not any(seat.spot.order in request.eligible for seat in unit.seats):
        return False
    return not protect or unit.protected_until(search.ledger) is None


def _holds_any(unit: Unit, resources: tuple[int, ...]) -> bool:
    amount = unit.amount
    for r in resources:  # noqa: SIM110  # asked of every possible victim of every request: a generator here costs a third of it
        if amount[r]:
            return True
    return False


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


def _chains(units: Units, ledger: Ledger) -> list[list[Unit]]:
    """The units of each workload, in the order in which they have to go; none that would leave one before it behind."""
    among = set(map(id, units))
    chains: dict[str, list[Unit]] = {}
    for unit in units:
        if unit.before is None or all(id(link) in among for link in unit.chain(ledger)):
            chains.setdefault(unit.workload.id, []).append(unit)
    for links in chains.values():
        links.sort(key=_depth)
    return list(chains.values())


def _depth(unit: Unit) -> int:
    depth = 0
    while unit.before is not None:
        unit, depth = unit.before, depth + 1
    return depth


def larger(unit: Unit) -> tuple[int, ...]:
    """Sorts a side's victims so that the largest comes last."""
    return tuple(unit.amount[r] for r in RESOURCES)
