"""Gangs of unequal pods: is there any way to place all of them? Largest first on the fullest node may miss the only one.

    free 6 and 7 GPUs; pods of 4, 3, 3, 3  ->  the 4 goes to the 7, not to the fullest node; then all have a place

Ways are tried depth first, largest pods first, equal nodes once, up to a number of looks at nodes: exact for small gangs on few kinds of
nodes; beyond, what largest first finds stands. Pods that want the same fraction of several devices always take the fullest shared GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hotdesk_scheduler.core.model import WHOLE_GPU, Placement, Pod, PodRequest, Share
from hotdesk_scheduler.core.rooms import NOW, Spot

MOST_LOOKS = 2_000


@dataclass(frozen=True, slots=True)
class Board:
    """What a node has left: free GPUs, and used thousandths by shared GPU; `spot` names it."""

    spot: Spot
    gpus: int
    cpu_millis: int
    memory_mib: int
    pods: int
    shared: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, spot: Spot, rooms: int) -> Board:
        """Where a pod has to fit in both rooms, what both have left; a shared GPU that one of them knows is no place then."""
        now, later = spot.now, spot.later
        if not rooms & NOW:
            return cls(spot, later.free_gpus, later.cpu_millis, later.memory_mib, later.pods, tuple(sorted(later.groups.items())))
        shared = tuple(sorted((g, max(used, later.groups[g])) for g, used in now.groups.items() if g in later.groups))
        cpu, memory = min(now.cpu_millis, later.cpu_millis), min(now.memory_mib, later.memory_mib)
        return cls(spot, spot.startable_gpus, cpu, memory, min(now.pods, later.pods), shared)

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for nodes that are the same to every pod."""
        used = tuple(sorted(used for _, used in self.shared))
        return (self.gpus, self.cpu_millis, self.memory_mib, self.pods, used, self.spot.node.gpu_memory_mib)

    def options(self, request: PodRequest) -> Iterator[tuple[Board, Placement]]:
        """Every way to put such a pod here, the fullest shared GPU first, and what is left then."""
        gpu, name = request.gpu, self.spot.node.name
        cpu, memory, pods = self.cpu_millis - request.cpu_millis, self.memory_mib - request.memory_mib, self.pods - 1
        if min(cpu, memory, pods) < 0:
            return
        if gpu.whole or gpu.is_none:
            if not gpu.whole or self.gpus >= gpu.whole:
                yield Board(self.spot, self.gpus - gpu.whole, cpu, memory, pods, self.shared), Placement(name, gpu.whole)
            return
        millis = self.spot.millis_for(request)
        joinable = sorted(((used, group) for group, used in self.shared if used + millis <= WHOLE_GPU), reverse=True)
        ways = [(group,) for _, group in joinable] + [()] if gpu.devices == 1 else [tuple(group for _, group in joinable[: gpu.devices])]
        for groups in ways if millis <= WHOLE_GPU else ():
            more = gpu.devices - len(groups)
            if not more or more <= self.gpus:
                opened = self._new_groups(more)
                taken = {**dict(self.shared), **dict.fromkeys(opened, 0)}
                for group in (*groups, *opened):
                    taken[group] += millis
                left = Board(self.spot, self.gpus - len(opened), cpu, memory, pods, tuple(sorted(taken.items())))
                yield left, Placement(name, shares=tuple(Share(group, millis) for group in (*groups, *opened)))

    def _new_groups(self, count: int) -> list[str]:
        mine = {group for group, _ in self.shared}
        names = self.spot.new_groups(count + len(mine)) if count > 0 else []
        return [name for name in names if name not in mine][:count]


def pack(pods: Sequence[Pod], spots: Iterable[Spot], rooms: int) -> list[tuple[Pod, Placement]] | None:
    """A place for each of these, given largest first, or None if none is found."""
    boards = [Board.of(spot, rooms) for spot in spots]
    if sum(pod.request.gpu.whole for pod in pods) > sum(max(0, board.gpus) for board in boards):
        return None
    looks = 0

    def rest(at: int) -> list[tuple[Pod, Placement]] | None:
        nonlocal looks
        if at == len(pods):
            return []
        seen: set[object] = set()
        for i, board in enumerate(boards):
            looks += 1
            if looks > MOST_LOOKS:
                return None
            if board.kind in seen:
                continue
            seen.add(board.kind)
            for left, place in board.options(pods[at].request):
                boards[i] = left
                found = rest(at + 1)
                boards[i] = board
                if found is not None:
                    return [(pods[at], place), *found]
        return None

    return rest(0)
