"""Where pods go: filter, then the fullest place that fits (scheduling.md 5).

Whole GPUs go to the node with the fewest free ones that suffice; fractions join the fullest shared GPU, else open one on the fullest
node; CPU-only work avoids GPU nodes. `spread` turns fullest into emptiest. Ties go by node name. A gang prefers few nodes, one pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hotdesk_scheduler.core.eligible import Eligible
from hotdesk_scheduler.core.ledger import Ledger, Seat
from hotdesk_scheduler.core.model import WHOLE_GPU, Placement, Pod, PodRequest, Share
from hotdesk_scheduler.core.packing import pack
from hotdesk_scheduler.core.requests import Request
from hotdesk_scheduler.core.rooms import LATER, NOW, Room, Spot

ANYWHERE = Eligible(None)


def place(ledger: Ledger, request: Request, rooms: int) -> int:
    """Put all pods of the request on the ledger (started in BOTH, nominated in LATER), or none; returns how many pods fit at best."""
    best = 0
    for stage in request.eligible.stages:
        checkpoint = ledger.checkpoint()
        placed = _place_in(ledger, request, stage, rooms)
        if placed == len(request.pods):
            return placed
        ledger.rollback(checkpoint)
        if _pack_in(ledger, request, stage, rooms):
            return len(request.pods)
        best = max(best, placed)
    return best


def _pack_in(ledger: Ledger, request: Request, stage: Eligible, rooms: int) -> bool:
    """Unequal pods for which largest first finds no place: any other way. For equal ones every order comes to the same."""
    groups = alike(request.pods) if len(request.pods) > 1 else ()
    if len(groups) < 2:
        return False
    spots = [spot for spot in ledger.spots if spot.node.ready and spot.order in stage]
    found = pack([pod for equal in groups for pod in equal], spots, rooms)
    for pod, place in found or ():
        _put(ledger, request, pod, place, rooms)
    return found is not None


def _place_in(ledger: Ledger, request: Request, stage: Eligible, rooms: int) -> int:
    if len(request.pods) == 1:
        spot = find(ledger, request.pods[0].request, stage, rooms)
        if spot is None:
            return 0
        _put(ledger, request, request.pods[0], spot, rooms)
        return 1
    placed = 0
    used: dict[int, None] = {}
    for equal in alike(request.pods):
        waiting, open_to = equal[::-1], dict(used)
        while waiting:
            chosen = _place_for_many(ledger, waiting, stage, rooms, open_to)
            if chosen is None:
                break
            _put(ledger, request, waiting.pop(), chosen, rooms)
            order = ledger.spot_of[chosen.node].order
            used[order] = open_to[order] = None
            placed += 1
        if waiting:
            break
    return placed


def alike(pods: tuple[Pod, ...]) -> list[list[Pod]]:
    """Pods with equal requests together, the largest first: what is hard to place goes first."""
    groups: dict[PodRequest, list[Pod]] = {}
    for pod in pods:
        groups.setdefault(pod.request, []).append(pod)

    def size(request: PodRequest) -> tuple[int, int, int, int, int]:
        gpu = request.gpu
        return (-gpu.whole, -gpu.millis * gpu.devices, -gpu.memory_mib, -request.cpu_millis, -request.memory_mib)

    return [groups[request] for request in sorted(groups, key=size)]


def _put(ledger: Ledger, request: Request, pod: Pod, placement: Placement, rooms: int) -> None:
    if rooms & NOW:
        ledger.start(request.workload, pod, placement)
    else:
        ledger.nominate(request.workload, pod, placement)


def _place_for_many(ledger: Ledger, waiting: list[Pod], stage: Eligible, rooms: int, open_to: dict[int, None]) -> Placement | None:
    """A place for the next of several equal pods: a node in use already, else one that takes all, else the one that takes most.

    A node in use that is full by now is not asked again (dropped from `open_to`).
    """
    request = waiting[0].request
    for order in list(open_to):
        placement = on_spot(ledger.spots[order], request, rooms)
        if placement and order in stage:
            return placement
        del open_to[order]
    whole = request.gpu.whole
    if not whole:
        return find(ledger, request, stage, rooms)
    for spot in _whole_spots(ledger, whole * len(waiting), stage, rooms):
        if _takes(spot, request, len(waiting), rooms):
            return Placement(spot.node.name, whole)
    best: Spot | None = None
    best_count = 0
    for bucket in ledger.index.nodes(rooms).downwards(whole):
        for order in bucket:
            spot = ledger.spots[order]
            if order in stage and (count := _capacity(spot, request, rooms)) > best_count:
                best, best_count = spot, count
                if count == spot.free_gpus(rooms) // whole:
                    return Placement(spot.node.name, whole)
    return Placement(best.node.name, whole) if best else None


def _capacity(spot: Spot, request: PodRequest, rooms: int) -> int:
    """How many pods asking for whole GPUs fit there."""
    counts = [spot.free_gpus(rooms) // request.gpu.whole]
    for room in (spot.later, spot.now) if rooms & NOW else (spot.later,):
        counts.append(room.pods)
        if request.cpu_millis:
            counts.append(room.cpu_millis // request.cpu_millis)
        if request.memory_mib:
            counts.append(room.memory_mib // request.memory_mib)
    return max(0, min(counts))


def _takes(spot: Spot, request: PodRequest, count: int, rooms: int) -> bool:
    return _capacity(spot, request, rooms) >= count


def find(ledger: Ledger, request: PodRequest, stage: Eligible, rooms: int) -> Placement | None:
    """The place for one pod, or None: where it strands least for the mix of requests seen, if there is one, else by the everyday rules."""
    gpu = request.gpu
    if ledger.strands and (least := ledger.strands.find(request, stage, rooms)):
        return least
    if gpu.whole:
        for spot in _whole_spots(ledger, gpu.whole, stage, rooms):
            if spot.fits_beside_gpu(rooms, request):
                return Placement(spot.node.name, gpu.whole)
        return None
    if gpu.is_none:
        found = ledger.spare.find(request, stage, rooms)
        return Placement(found.node.name) if found else None
    return _find_shared(ledger, request, stage, rooms)


def _whole_spots(ledger: Ledger, free: int, stage: Eligible, rooms: int) -> Iterator[Spot]:
    nodes = ledger.index.nodes(rooms)
    spread = ledger.policy.placement == "spread"
    spots = ledger.spots
    for bucket in nodes.downwards(free) if spread else nodes.upwards(free):
        for order in bucket:
            if order in stage:
                yield spots[order]


def _find_shared(ledger: Ledger, request: PodRequest, stage: Eligible, rooms: int) -> Placement | None:
    spread = ledger.policy.placement == "spread"
    joined = None
    if request.gpu.devices == 1:
        joined = _join(ledger, request, stage, rooms)
        if joined and not spread:
            return joined
    for spot in _whole_spots(ledger, 0 if request.gpu.devices > 1 else 1, stage, rooms):
        placement = on_spot(spot, request, rooms)
        if placement:
            return placement
    return joined


def _join(ledger: Ledger, request: PodRequest, stage: Eligible, rooms: int) -> Placement | None:
    """The fullest shared GPU that takes it."""
    gpu = request.gpu
    for _, (order, group) in ledger.index.groups(rooms).upwards(gpu.millis or 1):
        if order not in stage:
            continue
        spot = ledger.spots[order]
        millis = spot.millis_for(request)
        placement = Placement(spot.node.name, shares=(Share(group, millis),))
        if millis <= WHOLE_GPU and spot.fits(rooms, placement, request):
            return placement
    return None


def on_spot(spot: Spot, request: PodRequest, rooms: int) -> Placement | None:
    """The best place for one pod on this very node, or None."""
    gpu = request.gpu
    name = spot.node.name
    if not spot.node.ready or not spot.fits_beside_gpu(rooms, request):
        return None
    if gpu.whole:
        return Placement(name, gpu.whole) if spot.free_gpus(rooms) >= gpu.whole else None
    if gpu.is_none:
        return Placement(name)
    millis = spot.millis_for(request)
    if millis > WHOLE_GPU:
        return None
    groups = _groups_with(spot, millis, rooms)[: gpu.devices]
    if len(groups) < gpu.devices and gpu.devices - len(groups) > spot.free_gpus(rooms):
        return None  # before names are made for what is to be opened
    opened = spot.new_groups(gpu.devices - len(groups)) if len(groups) < gpu.devices else []
    placement = Placement(name, shares=tuple(Share(group, millis) for group in (*groups, *opened)))
    return placement if spot.fits(rooms, placement, request) else None


def fits_in(room: Room, spot: Spot, request: PodRequest) -> bool:
    """Whether one such pod finds its place on this node if this were its room (`on_spot` on a copy that some have left)."""
    gpu = request.gpu
    if not spot.node.ready or not room.fits_beside_gpu(request):
        return False
    if gpu.whole or gpu.is_none:
        return room.has_free(gpu.whole)
    millis = spot.millis_for(request)
    if millis > WHOLE_GPU:
        return False
    joined = sum(used + millis <= WHOLE_GPU for used in room.groups.values())
    return room.has_free(gpu.devices - min(joined, gpu.devices))


def _groups_with(spot: Spot, millis: int, rooms: int) -> list[str]:
    """Shared GPUs of the node with so much free, fullest first."""
    free = spot.startable_millis if rooms & NOW else spot.later_millis
    groups = {*spot.now.groups, *spot.later.groups} if rooms & NOW else set(spot.later.groups)
    return sorted((g for g in groups if free(g) >= millis), key=lambda g: (free(g), g))


def could_open(whole: int, leaving: Iterable[Seat], ledger: Ledger) -> bool:
    """Whether a block of so many GPUs could come free on one node if these left: a bound, asked before anything is tried."""
    freed: dict[int, int] = {}
    for seat in leaving:
        freed[seat.spot.order] = freed.get(seat.spot.order, 0) + seat.placement.whole + len(seat.placement.shares)
    if any(ledger.spots[order].later.free_gpus + count >= whole for order, count in freed.items()):
        return True
    return next(_whole_spots(ledger, whole, ANYWHERE, LATER), None) is not None
