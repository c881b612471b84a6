"""Which place strands the least GPU, for the mix of requests seen (scheduling.md 5, fragmentation).

What a node has lost, in thousandths of a GPU:
- on each device, `unfilled[left]`: the part of what is left that stays empty after requests of the mix, drawn at random, were packed
  into it for as long as one fits;
- what its CPU is too short for: the GPU still to be filled beyond what the CPU left can feed, at the CPU that the mix asks a GPU with.
The place where this grows least is taken; growth is compared in steps of `STEP`, so that the everyday rules (fullest shared GPU,
fullest node, name) decide wherever it makes no real difference. A node type that others ask for by name has its price.

    mix: halves and 0.7s. On a shared GPU with 0.7 left, 0.5 would leave 0.2, which nobody fills: lost 200.
    On another with 0.5 left it leaves nothing: lost 0. So 0.5 goes there, and 0.7 finds its place later.
"""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """What the mix says. `feeds`: thousandths of GPU that a thousandth of a core feeds, times `FED`."""

    unfilled: Ints
    feeds: int
    named: dict[tuple[str, ...], int]
    """GPU asked of node types by name, thousandths of all GPU asked."""

    def short(self, gpu: Ints, cpu: Ints) -> Ints:
        """GPU that this much CPU cannot feed, counted softly; arrays of one shape."""
        lack = gpu - cpu * self.feeds // FED
        soft = np.clip(lack + SOFT, 0, 2 * SOFT)
        return CPU_WEIGHT * np.where(lack > SOFT, lack, soft * soft // (4 * SOFT))


@lru_cache(maxsize=8)
def prices(mix: Mix, gpu_memory_mib: int) -> Prices | None:
    """What the mix says about places; None if it has no fractions: then the everyday rules leave nothing stranded on a device.

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
    if not fractions:
        return None
    feeds = min(gpu * CPU_MARGIN[0] * FED // (cpu * CPU_MARGIN[1]), MOST_FED) if cpu else MOST_FED
    return Prices(_unfilled(fractions), feeds, {types: amount * 1000 // gpu for types, amount in sorted(named.items())})


def _device_millis(gpu: GpuRequest, gpu_memory_mib: int) -> int:
    """What one device gives to it."""
    if gpu.whole:
        return WHOLE_GPU
    return min(WHOLE_GPU, millis_on(gpu, gpu_memory_mib)) if gpu.memory_mib else gpu.millis


def _unfilled(fractions: dict[int, int]) -> Ints:
    """By what is left of a device (0..1000): the mean part that random fractions leave empty. A free device serves a whole request."""
    sizes = sorted(fractions.items())
    mean = [0] * WHOLE_GPU
    for start, end in pairwise((0, *(size for size, _ in sizes), WHOLE_GPU)):
        fitting = [(size, count) for size, count in sizes if size <= start]
        weight = sum(count for _, count in fitting)
        for left in range(start, end):
            mean[left] = sum(count * mean[left - size] for size, count in fitting) // weight if weight else left * FINE
    return np.array([amount // FINE for amount in mean] + [0], dtype=np.int64)


class Table:
    """All nodes of a ledger as arrays, for one of the rooms: a row a node, a column a device."""

    def __init__(self, spots: list[Spot], rooms: int, prices: Prices) -> None:
        count = len(spots)
        self.rooms = rooms
        self.prices = prices
        self.left = np.zeros((count, max((spot.node.gpus for spot in spots), default=0) or 1), dtype=np.int64)
        self.cpu, self.memory, self.pods = (np.full(count, -1, dtype=np.int64) for _ in range(3))
        self.free, self.usable, self.short = (np.zeros(count, dtype=np.int64) for _ in range(3))
        self.unfilled = np.zeros_like(self.left)
        self.groups: list[list[str]] = [[] for _ in spots]
        ready = [spot for spot in spots if spot.node.ready]
        for spot in ready:
            self._copy(spot)
        self._sum(np.array([spot.order for spot in ready], dtype=np.int64))

    def refresh(self, spots: list[Spot]) -> None:
        """Take over what has changed on these nodes."""
        for spot in spots:
            self._copy(spot)
        self._sum(np.array([spot.order for spot in spots], dtype=np.int64))

    def _copy(self, spot: Spot) -> None:
        row, later = spot.order, spot.later
        if self.rooms & NOW:
            now = spot.now
            found = [(WHOLE_GPU - max(used, later.groups[g]), g) for g, used in now.groups.items() if g in later.groups]
            free = min(now.free_gpus, later.free_gpus)
            beside = min(now.cpu_millis, later.cpu_millis), min(now.memory_mib, later.memory_mib), min(now.pods, later.pods)
        else:
            found = [(WHOLE_GPU - used, g) for g, used in later.groups.items()]
            free = later.free_gpus
            beside = later.cpu_millis, later.memory_mib, later.pods
        found.sort()
        left = [millis for millis, _ in found] + [WHOLE_GPU] * free
        self.left[row] = 0
        self.left[row, : len(left)] = left[: self.left.shape[1]]
        self.groups[row] = [group for _, group in found]
        self.free[row] = max(0, free)
        self.cpu[row], self.memory[row], self.pods[row] = beside

    def _sum(self, rows: Ints) -> None:
        left = self.left[rows]
        unfilled = self.prices.unfilled[left]
        self.unfilled[rows] = unfilled
        self.usable[rows] = (left - unfilled).sum(axis=1)
        self.short[rows] = self.prices.short(self.usable[rows], self.cpu[rows])

    def beside(self, request: PodRequest) -> Bools:
        """Where CPU, memory and the pod limit allow it."""
        return (self.cpu >= request.cpu_millis) & (self.memory >= request.memory_mib) & (self.pods > 0)


class Strands:
    """Answers for one ledger where a pod leaves the least stranded. None is no answer: ask the everyday rules."""

    def __init__(self, prices: Prices, spots: list[Spot], index: Index) -> None:
        self._prices = prices
        self._spots = spots
        self._touched = index.watch("strands")
        self._tables: dict[int, Table] = {}
        self._allowed: dict[Eligible, Bools] = {}
        self._on_gpus = np.array([spot.node.gpus > 0 for spot in spots], dtype=np.bool_)
        price = _named(prices, spots)
        self._price = np.array([price.get(spot.node.node_type or "", 0) for spot in spots], dtype=np.int64)
        self._memory_mib = np.array([spot.node.gpu_memory_mib for spot in spots], dtype=np.int64)

    def find(self, request: PodRequest, stage: Eligible, rooms: int) -> Placement | None:
        """The place for one pod, by growth of what is stranded, then the everyday rules."""
        gpu = request.gpu
        if max(request.cpu_millis, request.memory_mib, gpu.memory_mib, gpu.whole) > LARGEST:
            return None
        table = self._table(rooms)
        may = table.beside(request) & self._may(stage)
        if gpu.is_none:
            return self._for_cpu(table, request, may)
        if gpu.whole:
            return self._for_whole(table, request, may)
        return self._for_fraction(table, request, may, rooms) if gpu.devices == 1 else None

    def _table(self, rooms: int) -> Table:
        if self._touched:
            changed = [self._spots[order] for order in sorted(self._touched)]
            for table in self._tables.values():
                table.refresh(changed)
            self._touched.clear()
        key = NOW if rooms & NOW else LATER
        if key not in self._tables:
            self._tables[key] = Table(self._spots, key, self._prices)
        return self._tables[key]

    def _may(self, stage: Eligible) -> Bools:
        found = self._allowed.get(stage)
        if found is None:
            allowed = stage.allowed
            found = np.ones(len(self._spots), dtype=np.bool_) if allowed is None else np.array(allowed, dtype=np.bool_)
            self._allowed[stage] = found
        return found

    def _for_cpu(self, table: Table, request: PodRequest, may: Bools) -> Placement | None:
        """CPU-only work avoids GPU nodes; where it cannot, it takes CPU that no GPU will miss."""
        if (may & ~self._on_gpus).any():
            return None
        growth = self._prices.short(table.usable, table.cpu - request.cpu_millis) - table.short
        row = _least(may, (_steps(growth) << 16) + table.free)
        return None if row is None else Placement(self._spots[row].node.name)

    def _for_whole(self, table: Table, request: PodRequest, may: Bools) -> Placement | None:
        count = request.gpu.whole
        may &= table.free >= count
        growth = self._prices.short(table.usable - count * WHOLE_GPU, table.cpu - request.cpu_millis) - table.short
        row = _least(may, (_steps(growth + count * self._price) << 16) + table.free)
        return None if row is None else Placement(self._spots[row].node.name, count)

    def _for_fraction(self, table: Table, request: PodRequest, may: Bools, rooms: int) -> Placement | None:
        millis = self._millis(request.gpu)[:, None]
        rest = table.left - millis
        fits = (rest >= 0) & may[:, None]
        rest[~fits] = 0
        lost = self._prices.unfilled[rest] - table.unfilled
        usable = table.usable[:, None] - millis - lost
        growth = lost + self._prices.short(usable, (table.cpu - request.cpu_millis)[:, None]) - table.short[:, None]
        growth += (self._price * self._millis(request.gpu) // WHOLE_GPU)[:, None]
        key = (_steps(growth) << 32) + (table.left << 16) + table.free[:, None]
        place = _least(fits, key)
        if place is None:
            return None
        row, column = divmod(place, table.left.shape[1])
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


def _steps(growth: Ints) -> Ints:
    return (2 * growth + STEP) // (2 * STEP)


def _least(may: Bools, key: Ints) -> int | None:
    """The flat position of the smallest key where it may be, the first of equals."""
    if not may.any():
        return None
    return int(np.where(may, key, NOWHERE).argmin())
