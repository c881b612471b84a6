"""From a placement to devices: which of a node's GPUs a pod gets, and which free port of this machine.

A device is either whole in one pod, or shared by pods of one group (core Share.group), never both. The lowest free index is taken.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable, Sequence

from hotdesk_api.errors import Conflict

from hotdesk_scheduler.core.model import WHOLE_GPU, Placement
from hotdesk_scheduler.engines.local.runs import Held, Run


def devices(placement: Placement, indexes: Sequence[int], running: Iterable[Run]) -> tuple[Held, ...]:
    """Devices for this placement on a node that has `indexes` and those runs. `Conflict` if the placement does not fit there (any more)."""
    used: dict[int, int] = {}
    groups: dict[str, int] = {}
    for run in running:
        for held in run.devices:
            used[held.index] = used.get(held.index, 0) + held.millis
            if held.group:
                groups[held.group] = held.index
    free = [index for index in indexes if index not in used]
    given: list[Held] = []
    for share in placement.shares:
        if share.group not in groups:
            if not free:
                raise _does_not_fit(placement)
            groups[share.group] = free.pop(0)
        index = groups[share.group]
        used[index] = used.get(index, 0) + share.millis
        if used[index] > WHOLE_GPU:
            raise _does_not_fit(placement)
        given.append(Held(index, share.millis, share.group))
    if placement.whole > len(free):
        raise _does_not_fit(placement)
    return (*given, *(Held(index, WHOLE_GPU) for index in free[: placement.whole]))


def _does_not_fit(placement: Placement) -> Conflict:
    asked = f"{placement.whole} whole GPUs" if placement.whole else f"{placement.gpu_millis / WHOLE_GPU:g} of a GPU"
    return Conflict(f"Node {placement.node} has no place for {asked} any more.", field="placement", value=placement.node)


def ports(wanted: Sequence[tuple[int, int | None]], taken: Collection[int]) -> tuple[tuple[int, int], ...]:
    """(container port, port of this machine) for (container port, asked-for port or None): the asked one if it is free, else any."""
    given: dict[int, int] = {}
    for container, asked in wanted:
        if container not in given:
            given[container] = _port(asked, {*taken, *given.values()})
    return tuple(given.items())


def _port(asked: int | None, taken: Collection[int]) -> int:
    if asked and asked not in taken and (free := _bind(asked)):
        return free
    for _ in range(100):
        if (free := _bind(0)) and free not in taken:
            return free
    raise OSError("no free port on 127.0.0.1")


def _bind(port: int) -> int | None:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return None
        return int(probe.getsockname()[1])
