"""What is free on each node, now and after what is being released is gone; and nodes found by how much they have free.

A node has two rooms. `now` is what is physically held: a pod being stopped still holds its place there. `later` leaves out what is
being released and contains what is nominated to wait for it. A pod can start where it fits in both; it can be nominated where it
fits in `later`. Both are kept by `Spot.change` alone, which also keeps the index.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from hotdesk_scheduler.core.model import WHOLE_GPU, Node, Placement, PodRequest
from hotdesk_scheduler.core.quantities import millis_on

NOW, LATER, BOTH = 1, 2, 3


class Room:
    """Free devices, shared GPUs (group -> used thousandths), CPU, memory and pod slots of a node.

    A closed shared GPU counts as one whole GPU fuller than it is, as long as somebody is on it: nothing fits there.
    """

    __slots__ = ("closed", "cpu_millis", "free_gpus", "groups", "memory_mib", "pods")

    def __init__(self, node: Node) -> None:
        self.free_gpus = node.gpus - -(-node.foreign.gpu_millis // WHOLE_GPU)
        self.groups: dict[str, int] = {}
        self.closed = node.closed_groups
        self.cpu_millis = node.cpu_millis - node.foreign.cpu_millis
        self.memory_mib = node.memory_mib - node.foreign.memory_mib
        self.pods = node.max_pods - node.foreign_pods if node.max_pods is not None else 1 << 30

    def copy(self) -> Room:
        """To try something on, apart from the index and the log."""
        room = Room.__new__(Room)
        room.free_gpus, room.groups, room.closed = self.free_gpus, dict(self.groups), self.closed
        room.cpu_millis, room.memory_mib, room.pods = self.cpu_millis, self.memory_mib, self.pods
        return room

    def change(self, placement: Placement, request: PodRequest, sign: int) -> None:
        """Take (sign 1) or give back (-1) what a pod with this request holds at this placement."""
        self.cpu_millis -= sign * request.cpu_millis
        self.memory_mib -= sign * request.memory_mib
        self.pods -= sign
        self.free_gpus -= sign * placement.whole
        for share in placement.shares:
            nobody = WHOLE_GPU if share.group in self.closed else 0
            used = self.groups.get(share.group, nobody)
            left = used + sign * share.millis
            if used == nobody:
                self.free_gpus -= 1
            if left != nobody:
                self.groups[share.group] = left
            else:
                del self.groups[share.group]
                self.free_gpus += 1

    def fits_beside_gpu(self, request: PodRequest) -> bool:
        """Whether CPU, memory and the pod limit allow it."""
        return self.cpu_millis >= request.cpu_millis and self.memory_mib >= request.memory_mib and self.pods > 0

    def has_free(self, gpus: int) -> bool:
        """Whether so many devices are free. None always are, though more be held than there are."""
        return not gpus or self.free_gpus >= gpus

    def fits(self, placement: Placement, request: PodRequest) -> bool:
        """Whether exactly this placement is possible here."""
        if not self.fits_beside_gpu(request):
            return False
        opened = 0
        for share in placement.shares:
            used = self.groups.get(share.group, 0)
            opened += not used
            if used + share.millis > WHOLE_GPU:
                return False
        return self.has_free(placement.whole + opened)


class Spot:
    """A node with its two rooms. `order` is its place among the nodes by name. It is found by the index once that has been filled."""

    __slots__ = ("index", "later", "node", "now", "order")

    def __init__(self, node: Node, order: int) -> None:
        self.node = node
        self.order = order
        self.now = Room(node)
        self.later = Room(node)
        self.index: Index | None = None

    def change(self, rooms: int, placement: Placement, request: PodRequest, sign: int) -> None:
        """Take (1) or give back (-1) in NOW, LATER or BOTH, keeping the index."""
        index = self.index
        if index is None:
            self._change_rooms(rooms, placement, request, sign)
            return
        now, later = self.now, self.later
        startable_before, later_before = min(now.free_gpus, later.free_gpus), later.free_gpus
        groups = placement.shares
        old = [(self.startable_millis(s.group), self.later_millis(s.group)) for s in groups] if groups else ()
        self._change_rooms(rooms, placement, request, sign)
        startable_after, later_after = min(now.free_gpus, later.free_gpus), later.free_gpus
        for touched in index.watchers.values():
            touched.add(self.order)
        if startable_before != startable_after:
            index.startable.move(self.order, startable_before, startable_after)
        if later_before != later_after:
            index.later.move(self.order, later_before, later_after)
        for share, (startable_millis, later_millis) in zip(groups, old, strict=True):
            key = (self.order, share.group)
            index.startable_groups.move(key, startable_millis, self.startable_millis(share.group))
            index.later_groups.move(key, later_millis, self.later_millis(share.group))

    def _change_rooms(self, rooms: int, placement: Placement, request: PodRequest, sign: int) -> None:
        if rooms & NOW:
            self.now.change(placement, request, sign)
        if rooms & LATER:
            self.later.change(placement, request, sign)

    @property
    def startable_gpus(self) -> int:
        return min(self.now.free_gpus, self.later.free_gpus)

    def startable_millis(self, group: str) -> int:
        """What may still join this shared GPU and start; less than 0 if nothing may, or it is not one (any more)."""
        now, later = self.now.groups.get(group, 0), self.later.groups.get(group, 0)
        return WHOLE_GPU - max(now, later) if now or later else -1

    def later_millis(self, group: str) -> int:
        used = self.later.groups.get(group, 0)
        return WHOLE_GPU - used if used else -1

    def free_gpus(self, rooms: int) -> int:
        return self.startable_gpus if rooms & NOW else self.later.free_gpus

    def fits(self, rooms: int, placement: Placement, request: PodRequest) -> bool:
        return self.later.fits(placement, request) and (not rooms & NOW or self.now.fits(placement, request))

    def fits_beside_gpu(self, rooms: int, request: PodRequest) -> bool:
        return self.later.fits_beside_gpu(request) and (not rooms & NOW or self.now.fits_beside_gpu(request))

    def new_groups(self, count: int) -> list[str]:
        """Names for shared GPUs to be opened, unlike any in use here."""
        names: list[str] = []
        number = 0
        while len(names) < count:
            name = f"g{number}"
            if name not in self.now.groups and name not in self.later.groups and name not in self.node.closed_groups:
                names.append(name)
            number += 1
        return names

    def millis_for(self, request: PodRequest) -> int:
        return millis_on(request.gpu, self.node.gpu_memory_mib)


class GpuBuckets:
    """Nodes by how many whole GPUs they have free, each bucket in order of the nodes. Where more are held than there are, none is free."""

    __slots__ = ("buckets",)

    def __init__(self) -> None:
        self.buckets: list[list[int]] = []

    def add(self, order: int, free: int) -> None:
        free = max(0, free)
        while len(self.buckets) <= free:
            self.buckets.append([])
        insort(self.buckets[free], order)

    def move(self, order: int, before: int, after: int) -> None:
        bucket = self.buckets[max(0, before)]
        del bucket[bisect_left(bucket, order)]
        self.add(order, after)

    def upwards(self, least: int) -> Iterator[list[int]]:
        """Buckets with at least so many free, fullest nodes first."""
        return iter(self.buckets[least:])

    def downwards(self, least: int) -> Iterator[list[int]]:
        return reversed(self.buckets[least:])


class GroupBuckets:
    """Shared GPUs by how many thousandths they have free; a group is (order of its node, name)."""

    __slots__ = ("amounts", "buckets")

    def __init__(self) -> None:
        self.buckets: dict[int, list[tuple[int, str]]] = {}
        self.amounts: list[int] = []

    def move(self, group: tuple[int, str], before: int, after: int) -> None:
        """From one amount to another; -1 stands for not being a shared GPU."""
        if before == after:
            return
        if before >= 0:
            bucket = self.buckets[before]
            del bucket[bisect_left(bucket, group)]
            if not bucket:
                del self.buckets[before]
                del self.amounts[bisect_left(self.amounts, before)]
        if after >= 0:
            if after not in self.buckets:
                self.buckets[after] = []
                insort(self.amounts, after)
            insort(self.buckets[after], group)

    def upwards(self, least: int) -> Iterator[tuple[int, tuple[int, str]]]:
        """(free, group) with at least so much free, fullest first."""
        for amount in self.amounts[bisect_left(self.amounts, least) :]:
            for group in self.buckets[amount]:
                yield amount, group


class Index:
    """Nodes and shared GPUs found by what they have free, now and later."""

    __slots__ = ("later", "later_groups", "startable", "startable_groups", "watchers")

    def __init__(self) -> None:
        self.startable = GpuBuckets()
        self.later = GpuBuckets()
        self.startable_groups = GroupBuckets()
        self.later_groups = GroupBuckets()
        self.watchers: dict[str, set[int]] = {}
        """Nodes (by order) that changed since each that keeps a picture of them looked."""

    def watch(self, name: str) -> set[int]:
        """A set for the one of this name, to which every node that changes from now on is added."""
        self.watchers[name] = set()
        return self.watchers[name]

    def fill(self, spots: Iterable[Spot]) -> None:
        """Take in the ready ones, in order, as they stand; from here on they keep the index themselves."""
        for spot in spots:
            if not spot.node.ready:
                continue
            spot.index = self
            self.startable.add(spot.order, spot.startable_gpus)
            self.later.add(spot.order, spot.later.free_gpus)
            for group in sorted({*spot.now.groups, *spot.later.groups}):
                key = (spot.order, group)
                self.startable_groups.move(key, -1, spot.startable_millis(group))
                self.later_groups.move(key, -1, spot.later_millis(group))

    def nodes(self, rooms: int) -> GpuBuckets:
        return self.startable if rooms & NOW else self.later

    def groups(self, rooms: int) -> GroupBuckets:
        return self.startable_groups if rooms & NOW else self.later_groups
