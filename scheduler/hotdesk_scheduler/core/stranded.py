"""Which place strands the least GPU, for the mix of requests seen (scheduling.md 5, fragmentation).

What a node has lost, in thousandths of a GPU:
- on each device, `unfilled[left]`: the part of what is left that stays empty after requests of the mix, drawn at random, were packed
  into it for as long as one fits;
- what its CPU is too short for: the GPU still to be filled beyond what the CPU left can feed, at the CPU that the mix asks a GPU with.
The place where this grows least is taken; growth is compared in steps of `STEP`, so that the everyday rules (fullest shared GPU,
fullest node: least GPU left, then least CPU; name) decide wherever it makes no real difference. A node type that others ask for by name
has its price. Several whole GPUs are reckoned by the mean of one. What is scarcer than CPU goes by the everyday rules at once: whole GPUs
where nobody asks for fractions (blocks), and CPU-only work (CPU beside GPUs).

    mix: halves and 0.7s. On a shared GPU with 0.7 left, 0.5 would leave 0.2, which nobody fills: lost 200.
    On another with 0.5 left it leaves nothing: lost 0. So 0.5 goes there, and 0.7 finds its place later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hotdesk_scheduler.core.eligible import Eligible
from hotdesk_scheduler.core.model import WHOLE_GPU, GpuRequest, Mix, Placement, PodRequest, Share
from hotdesk_scheduler.core.quantities import millis_on
from hotdesk_scheduler.core.rooms import LATER, NOW, Index, Spot

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

STEP = 100
"""Differences below a tenth of a GPU are no reason to leave the everyday rules."""
SOFT = 200
"""CPU is not short or plenty at one point, but over a range of so much GPU on either side: what comes varies."""
CPU_WEIGHT = 2
CPU_MARGIN = (11, 10)
"""A core is reckoned to feed a little more than the mix's mean, since what comes can be chosen among."""
NAMED_WEIGHT = 1000
"""Price of a GPU of a type all of which is asked for by name."""
FINE = 1000
FED = 1 << 20
MOST_FED = 1 << 32
"""Products with the CPU of a node stay below 2 ** 62."""
LARGEST = 1 << 40
"""What asks for more of anything fits nowhere; the everyday rules say so without 64-bit arithmetic."""
NOWHERE = 1 << 62
CPU_UNIT, CPU_BITS = 128, 20
MOST_CPU = (1 << CPU_BITS) - 1
MOST_LEFT = (1 << 20) - 1
LEFT_BITS, FULLNESS_BITS = 10, 40
MOST_STEPS = (1 << 12) - 1
"""How growth, what is left of a device and how full the node is are packed into one number of 64 bits."""
MANY = 16
"""Where more than this part of the nodes changed (and more than so many), all are reckoned at once."""
LONG = 4
"""A log of more than so many changes a node is begun anew: a ledger may live for months."""
MOST_KEPT = 1 << 21
"""Answers kept, over all requests."""
MOST_KNOWN = 64


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """What the mix says. `feeds`: thousandths of GPU that a thousandth of a core feeds, times `FED`."""

    unfilled: tuple[int, ...]
    feeds: int
    fractions: bool
    named: dict[tuple[str, ...], int]
    """GPU asked of node types by name, thousandths of all GPU asked."""

    def short(self, gpu: Ints, cpu: Ints) -> Ints:
        """GPU that this much CPU cannot feed, counted softly; arrays of one shape."""
        lack = gpu - cpu * self.feeds // FED
        soft = np.minimum(np.maximum(lack + SOFT, 0), 2 * SOFT)
        return CPU_WEIGHT * np.where(lack > SOFT, lack, soft * soft // (4 * SOFT))

    def short_on_one(self, gpu: int, cpu: int) -> int:
        """The same of one node."""
        lack = gpu - cpu * self.feeds // FED
        if lack > SOFT:
            return CPU_WEIGHT * lack
        if lack < -SOFT:
            return 0
        soft = lack + SOFT
        return CPU_WEIGHT * (soft * soft // (4 * SOFT))


@lru_cache(maxsize=8)
def prices(mix: Mix, gpu_memory_mib: int) -> Prices | None:
    """What the mix says about places; None if it has no GPUs at all.

    `gpu_memory_mib`: of the device that memory requests are reckoned on.
    """
    fractions: dict[int, int] = {}
    named: dict[tuple[str, ...], int] = {}
    gpu = cpu = 0
    for request, types, count in mix.requests:
        millis = _device_millis(request.gpu, gpu_memory_mib)
        if not millis:
            continue
        devices = request.gpu.whole or request.gpu.devices
        gpu += millis * devices * count
        cpu += request.cpu_millis * count
        if types:
            named[types] = named.get(types, 0) + millis * devices * count
        if millis < WHOLE_GPU:
            fractions[millis] = fractions.get(millis, 0) + count
    if not gpu:
        return None
    feeds = min(gpu * CPU_MARGIN[0] * FED // (cpu * CPU_MARGIN[1]), MOST_FED) if cpu else MOST_FED
    return Prices(_unfilled(fractions), feeds, bool(fractions), {types: amount * 1000 // gpu for types, amount in sorted(named.items())})


def _device_millis(gpu: GpuRequest, gpu_memory_mib: int) -> int:
    """What one device gives to it."""
    if gpu.whole:
        return WHOLE_GPU
    return min(WHOLE_GPU, millis_on(gpu, gpu_memory_mib)) if gpu.memory_mib else gpu.millis


def _unfilled(fractions: dict[int, int]) -> tuple[int, ...]:
    """By what is left of a device (0..1000): the mean part that random fractions leave empty. A free device serves a whole request."""
    sizes = sorted(fractions.items())
    mean = [0] * WHOLE_GPU
    for start, end in pairwise((0, *(size for size, _ in sizes), WHOLE_GPU)):
        fitting = [(size, count) for size, count in sizes if size <= start]
        weight = sum(count for _, count in fitting)
        for left in range(start, end):
            mean[left] = sum(count * mean[left - size] for size, count in fitting) // weight if weight else left * FINE
    return (*(amount // FINE for amount in mean), 0)


State = tuple[int, int, int, int, int, int, int]
"""Of a node: free CPU, memory, pods and whole GPUs; thousandths of GPU that can be filled; what its CPU is too short for; and how full
it is: GPU left, then CPU left, as one number, the smallest is the fullest."""
CPU, MEMORY, PODS, FREE, USABLE, SHORT, FULLNESS = range(7)
"""The same as columns of an array."""
NOTHING_FREE: State = (-1, -1, -1, 0, 0, 0, 0)


class Table:
    """All nodes of a ledger for one of the rooms: a state a node, and, made of them when somebody asks, arrays with a row a node."""

    def __init__(self, spots: list[Spot], rooms: int, prices: Prices) -> None:
        count = len(spots)
        self._spots = spots
        self._rooms = rooms
        self._prices = prices
        self._most = max((spot.node.gpus for spot in spots), default=0) or 1
        self._shared: list[list[int]] = [[] for _ in spots]
        self._pending: set[int] = set()
        self._unfilled = np.array(prices.unfilled, dtype=np.int64)
        self._arrays = np.zeros((count, len(NOTHING_FREE)), dtype=np.int64)
        self._left = np.zeros((count, self._most), dtype=np.int64)
        self.states = [NOTHING_FREE] * count
        self.groups: list[list[str]] = [[] for _ in spots]
        self.log: list[int] = []
        """Nodes in the order in which they changed: who keeps something reads on where he stopped."""
        self._pending.update(range(count))
        for spot in spots:
            if spot.node.ready:
                self._copy(spot)

    def refresh(self, rows: Iterable[int]) -> None:
        """Take over what has changed on these nodes."""
        for row in rows:
            self._copy(self._spots[row])
        self.log.extend(rows)
        self._pending.update(rows)

    def _copy(self, spot: Spot) -> None:
        row, later = spot.order, spot.later
        free, cpu, memory, pods = later.free_gpus, later.cpu_millis, later.memory_mib, later.pods
        groups = later.groups
        if self._rooms & NOW:
            now = spot.now
            free = now.free_gpus if now.free_gpus < free else free
            cpu = now.cpu_millis if now.cpu_millis < cpu else cpu
            memory = now.memory_mib if now.memory_mib < memory else memory
            pods = now.pods if now.pods < pods else pods
            groups = {g: max(used, groups[g]) for g, used in now.groups.items() if g in groups} if now.groups else now.groups
        free = free if free > 0 else 0
        left = usable = free * WHOLE_GPU
        if groups:
            found = sorted((WHOLE_GPU - used, g) for g, used in groups.items() if used <= WHOLE_GPU)
            self.groups[row] = [group for _, group in found]
            self._shared[row] = shared = [millis for millis, _ in found]
            unfilled = self._prices.unfilled
            left += sum(shared)
            usable += sum([millis - unfilled[millis] for millis in shared])
        elif self._shared[row]:
            self.groups[row], self._shared[row] = [], []
        short = self._prices.short_on_one(usable, cpu)
        units = cpu // CPU_UNIT if cpu > 0 else 0
        fullness = ((left if left < MOST_LEFT else MOST_LEFT) << CPU_BITS) + (units if units < MOST_CPU else MOST_CPU)
        self.states[row] = (cpu, memory, pods, free, usable, short, fullness)

    def arrays(self) -> tuple[Ints, Ints, Ints]:
        """The columns of a `State`; what is left of each device, and what of that stays unfilled: a column a device."""
        if self._pending:
            rows = sorted(self._pending)
            self._arrays[rows] = [self.states[row] for row in rows]
            padding = [0] * self._most
            lefts = [(self._shared[row] + [WHOLE_GPU] * self.states[row][FREE] + padding)[: self._most] for row in rows]
            self._left[rows] = lefts
            self._pending.clear()
        return self._arrays, self._left, self._unfilled


class Kept:
    """Of equal requests for whole GPUs: how good each node is (the smallest is best), as of a point in the table's log."""

    __slots__ = ("at", "keys")

    def __init__(self, keys: Ints, at: int) -> None:
        self.keys = keys
        self.at = at


class Strands:
    """Answers for one ledger where a pod leaves the least stranded. None is no answer: ask the everyday rules."""

    def __init__(self, prices: Prices, spots: list[Spot], index: Index) -> None:
        self._prices = prices
        self._spots = spots
        self._index = index
        self._touched = index.watch("strands")
        self._tables: dict[int, Table] = {}
        self._kept: dict[tuple[int, int, int, Eligible, int], Kept] = {}
        self._everywhere = np.ones(len(spots), dtype=np.bool_)
        self._allowed: dict[Eligible, Bools] = {}
        self._on_gpus = np.array([spot.node.gpus > 0 for spot in spots], dtype=np.bool_)
        price = _named(prices, spots)
        self._price = [price.get(spot.node.node_type or "", 0) for spot in spots]
        self._prices_of = np.array(self._price, dtype=np.int64)
        self._memory_mib = np.array([spot.node.gpu_memory_mib for spot in spots], dtype=np.int64)

    def find(self, request: PodRequest, stage: Eligible, rooms: int) -> Placement | None:
        """The place for one pod, by growth of what is stranded, then the everyday rules."""
        gpu = request.gpu
        if gpu.whole:
            return self._for_whole(request, stage, NOW if rooms & NOW else LATER)
        if max(request.cpu_millis, request.memory_mib, gpu.memory_mib) > LARGEST:
            return None
        if gpu.is_none:
            return self._for_cpu(self._table(rooms), request, stage)
        return self._for_fraction(self._table(rooms), request, stage, rooms) if gpu.devices == 1 else None

    def _table(self, rooms: int) -> Table:
        if self._touched:
            for table in self._tables.values():
                table.refresh(self._touched)
                if len(table.log) > LONG * len(self._spots):
                    table.log.clear()
                    self._kept.clear()
            self._touched.clear()
        key = NOW if rooms & NOW else LATER
        if key not in self._tables:
            self._tables[key] = Table(self._spots, key, self._prices)
        return self._tables[key]

    def _may(self, stage: Eligible) -> Bools:
        if stage.allowed is None:
            return self._everywhere
        found = self._allowed.get(stage)
        if found is None:
            if len(self._allowed) >= MOST_KNOWN:  # reservations make new ones in every cycle
                self._allowed.clear()
            found = self._allowed[stage] = np.array(stage.allowed, dtype=np.bool_)
        return found

    def _for_cpu(self, table: Table, request: PodRequest, stage: Eligible) -> Placement | None:
        """CPU-only work avoids GPU nodes; where it cannot, it avoids free GPUs."""
        arrays, _, _ = table.arrays()
        may = _beside(arrays, request) & self._may(stage)
        if (may & ~self._on_gpus).any():
            return None
        row = _least(may, arrays[:, FULLNESS])
        return None if row is None else Placement(self._spots[row].node.name)

    def _for_whole(self, request: PodRequest, stage: Eligible, rooms: int) -> Placement | None:
        if not any(self._index.nodes(rooms).upwards(request.gpu.whole)):
            return None
        table, count = self._table(rooms), len(self._spots)
        asked = (request.gpu.whole, request.cpu_millis, request.memory_mib, stage, rooms)
        kept = self._kept.get(asked)
        if kept is None or len(table.log) - kept.at > count // MANY + MANY:
            if len(self._kept) * count > MOST_KEPT:
                self._kept.clear()
            kept = self._kept[asked] = Kept(self._keys(table, request, stage), len(table.log))
        elif kept.at < len(table.log):
            for row in table.log[kept.at :]:
                kept.keys[row] = self._key(table.states[row], request, row) if row in stage else NOWHERE
            kept.at = len(table.log)
        best = int(kept.keys.argmin())
        return None if kept.keys[best] == NOWHERE else Placement(self._spots[best].node.name, request.gpu.whole)

    def _keys(self, table: Table, request: PodRequest, stage: Eligible) -> Ints:
        """How good each node is for whole GPUs."""
        count = request.gpu.whole
        if max(count, request.cpu_millis, request.memory_mib) > LARGEST:
            return np.full(len(self._spots), NOWHERE, dtype=np.int64)
        arrays, _, _ = table.arrays()
        growth = self._prices_of.copy()
        if self._prices.fractions:
            short = self._prices.short(arrays[:, USABLE] - count * WHOLE_GPU, arrays[:, CPU] - request.cpu_millis)
            growth += (short - arrays[:, SHORT]) // count
        may = _beside(arrays, request) & (arrays[:, FREE] >= count) & self._may(stage)
        return np.where(may, (_steps(growth) << FULLNESS_BITS) + arrays[:, FULLNESS], NOWHERE)

    def _key(self, state: State, request: PodRequest, row: int) -> int:
        """The same of one node: at a few nodes, numbers take a tenth of the time of arrays."""
        cpu, memory, pods, free, usable, short, fullness = state
        count = request.gpu.whole
        if free < count or cpu < request.cpu_millis or memory < request.memory_mib or pods <= 0:
            return NOWHERE
        growth = self._price[row]
        if self._prices.fractions:
            growth += (self._prices.short_on_one(usable - count * WHOLE_GPU, cpu - request.cpu_millis) - short) // count
        steps = (2 * growth + STEP) // (2 * STEP)
        if not -MOST_STEPS < steps < MOST_STEPS:
            steps = MOST_STEPS if steps > 0 else -MOST_STEPS
        return (steps << FULLNESS_BITS) + fullness

    def _for_fraction(self, table: Table, request: PodRequest, stage: Eligible, rooms: int) -> Placement | None:
        arrays, left, all_unfilled = table.arrays()
        may = _beside(arrays, request) & self._may(stage)
        asked = self._millis(request.gpu)
        rest = left - asked[:, None]
        fits = (rest >= 0) & may[:, None]
        rest[~fits] = 0
        lost = all_unfilled[rest] - all_unfilled[left]
        usable = (arrays[:, USABLE] - asked)[:, None] - lost
        growth = lost + self._prices.short(usable, (arrays[:, CPU] - request.cpu_millis)[:, None])
        growth += (self._prices_of * asked // WHOLE_GPU - arrays[:, SHORT])[:, None]
        key = (((_steps(growth) << LEFT_BITS) + left) << FULLNESS_BITS) + arrays[:, FULLNESS][:, None]
        place = _least(fits, key)
        if place is None:
            return None
        row, column = divmod(place, left.shape[1])
        spot, groups = self._spots[row], table.groups[row]
        group = groups[column] if column < len(groups) else spot.new_groups(1)[0]
        placement = Placement(spot.node.name, shares=(Share(group, spot.millis_for(request)),))
        return placement if spot.fits(rooms, placement, request) else None

    def _millis(self, gpu: GpuRequest) -> Ints:
        """What it takes of a device, by node; more than a device where it does not fit."""
        if not gpu.memory_mib:
            return np.full(len(self._spots), gpu.millis, dtype=np.int64)
        size = np.maximum(self._memory_mib, 1)
        return np.where(self._memory_mib > 0, -(-WHOLE_GPU * gpu.memory_mib // size), WHOLE_GPU + 1)


def _named(prices: Prices, spots: list[Spot]) -> dict[str, int]:
    """Price of a GPU by node type: the part of the type's GPUs that is asked for by name, were as much asked as there is."""
    gpus: dict[str, int] = {}
    for spot in spots:
        gpus[spot.node.node_type or ""] = gpus.get(spot.node.node_type or "", 0) + spot.node.gpus
    price: dict[str, int] = {}
    for types, asked in prices.named.items():
        there = sum(gpus.get(name, 0) for name in types)
        for name in types:
            if there:
                price[name] = price.get(name, 0) + asked * sum(gpus.values()) // there
    return {name: NAMED_WEIGHT * min(amount, WHOLE_GPU) // WHOLE_GPU for name, amount in price.items()}


def _beside(arrays: Ints, request: PodRequest) -> Bools:
    """Where CPU, memory and the pod limit allow it."""
    return (arrays[:, CPU] >= request.cpu_millis) & (arrays[:, MEMORY] >= request.memory_mib) & (arrays[:, PODS] > 0)


def _steps(growth: Ints) -> Ints:
    return np.minimum(np.maximum((2 * growth + STEP) // (2 * STEP), -MOST_STEPS), MOST_STEPS)


def _least(may: Bools, key: Ints) -> int | None:
    """The flat position of the smallest key where it may be, the first of equals."""
    if not may.any():
        return None
    return int(np.where(may, key, NOWHERE).argmin())
