"""Where CPU-only work goes: the fullest node, one without GPUs if there is one, else the one with the fewest left (CPU beside free GPUs
is for those); `spread` takes the emptiest. Made when first asked, then kept up to date, so that a question looks at few nodes.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from hotdesk_scheduler.core.eligible import Eligible
from hotdesk_scheduler.core.model import PodRequest
from hotdesk_scheduler.core.rooms import Index, Spot

Group = tuple[bool, int]
"""With GPUs at all, and how many are free (none where more are held than there are)."""


class Spare:
    """Ready nodes in the order of preference: by group, in it by what CPU they have left (`spread`: most first), then by name."""

    def __init__(self, spots: list[Spot], index: Index, *, spread: bool) -> None:
        self._spots = spots
        self._spread = spread
        self._touched = index.watch("spare")
        self._groups: dict[Group, list[tuple[int, int]]] = {}
        self._place: dict[int, tuple[Group, tuple[int, int]]] = {}
        for spot in spots:
            if spot.node.ready:
                group, key = self._place[spot.order] = self._key(spot)
                self._groups.setdefault(group, []).append(key)
        for keys in self._groups.values():
            keys.sort()

    def _key(self, spot: Spot) -> tuple[Group, tuple[int, int]]:
        later = spot.later
        if self._spread:
            return (spot.node.gpus > 0, 0), (-later.cpu_millis, spot.order)
        return (spot.node.gpus > 0, max(0, later.free_gpus)), (later.cpu_millis, spot.order)

    def find(self, request: PodRequest, stage: Eligible, rooms: int) -> Spot | None:
        """The first node with room for such a pod."""
        self._refresh()
        for group in sorted(self._groups):
            keys = self._groups[group]
            for _, order in keys if self._spread else keys[bisect_left(keys, (request.cpu_millis, -1)) :]:
                if order in stage and self._spots[order].fits_beside_gpu(rooms, request):
                    return self._spots[order]
        return None

    def _refresh(self) -> None:
        for order in self._touched:
            if order in self._place:
                group, key = self._place[order]
                keys = self._groups[group]
                del keys[bisect_left(keys, key)]
                group, key = self._place[order] = self._key(self._spots[order])
                insort(self._groups.setdefault(group, []), key)
        self._touched.clear()
