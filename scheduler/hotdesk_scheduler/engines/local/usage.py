"""What simulated GPUs show as used: figures that follow from who runs there, the same at every look, and marked as simulated."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hotdesk_scheduler.core.model import WHOLE_GPU, Kind, Pod, PodState, Workload
from hotdesk_scheduler.engines.base import Device
from hotdesk_scheduler.engines.local.runs import Run, limit_mib

_BUSY_PERCENT = {Kind.INTERACTIVE: 40, Kind.WORKSPACE: 20}  # notebooks have bursts, training a plateau
_MEMORY_PERCENT = {Kind.INTERACTIVE: 60, Kind.WORKSPACE: 30}


def simulated(node: str, devices: Sequence[Device], holding: Iterable[tuple[Workload, Pod, Run]]) -> Sequence[Device]:
    """Devices with utilisation and memory in use, from the pods that run on this node now."""
    busy: dict[int, int] = {}
    used: dict[int, int] = {}
    by_index = {device.index: device for device in devices}
    for workload, pod, run in holding:
        if run.node != node or pod.state is not PodState.RUNNING:
            continue
        wobble = zlib.crc32(workload.id.encode()) % 10
        for held in run.devices:
            percent = _BUSY_PERCENT.get(workload.kind, 85) + wobble
            memory_percent = _MEMORY_PERCENT.get(workload.kind, 85) + wobble
            busy[held.index] = busy.get(held.index, 0) + percent * held.millis // WHOLE_GPU
            used[held.index] = used.get(held.index, 0) + limit_mib(run, by_index[held.index]) * memory_percent // 100
    return [
        replace(one, utilisation_percent=float(min(100, busy.get(one.index, 0))), memory_used_mib=used.get(one.index, 0)) for one in devices
    ]
