"""Which GPUs of a simulated node a placement gets: lowest free index first, a shared one for all of its group. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hotdesk_api.errors import Conflict

from hotdesk_scheduler.core.model import WHOLE_GPU, Placement
from hotdesk_scheduler.engines.kubernetes.statuses import Held


def assign(placement: Placement, gpus: int, held: Iterable[Held]) -> tuple[Held, ...]:
    """`held`: what others hold on that node now. `Conflict` if the placement does not fit there."""
    used: dict[int, int] = {}
    groups: dict[str, int] = {}
    for one in held:
        used[one.index] = used.get(one.index, 0) + one.millis
        if one.group is not None:
            groups[one.group] = one.index
    free = [index for index in range(gpus) if index not in used]
    given: list[Held] = []
    for share in placement.shares:
        if share.group not in groups and free:
            groups[share.group] = free.pop(0)
        index = groups.get(share.group)
        if index is None or used.get(index, 0) + share.millis > WHOLE_GPU:
            raise _does_not_fit(placement)
        used[index] = used.get(index, 0) + share.millis
        given.append(Held(index, share.millis, share.group))
    if placement.whole > len(free):
        raise _does_not_fit(placement)
    return (*given, *(Held(index, WHOLE_GPU) for index in free[: placement.whole]))


def _does_not_fit(placement: Placement) -> Conflict:
    return Conflict(f"Node {placement.node} has no place for {placement.gpu_millis / WHOLE_GPU:g} GPUs any more.", field="placement")
