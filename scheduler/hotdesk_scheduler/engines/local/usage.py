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
    for workload, pod, run in holding:
        if run.node != node:
            continue
        for one in of_pod(workload, pod, run, devices):
            busy[one.index] = busy.get(one.index, 0) + int(one.utilisation_percent or 0) * run.millis_of(one.index) // WHOLE_GPU
            used[one.index] = used.get(one.index, 0) + (one.memory_used_mib or 0)
    return [
        replace(one, utilisation_percent=float(min(100, busy.get(one.index, 0))), memory_used_mib=used.get(one.index, 0)) for one in devices
    ]


def of_pod(workload: Workload, pod: Pod, run: Run, devices: Iterable[Device]) -> tuple[Device, ...]:
    """Those of the devices that the pod holds: how busy it keeps its share of each, and the memory it uses there."""
    held = {one.index for one in run.devices}
    mine = tuple(one for one in devices if one.index in held)
    if pod.state is not PodState.RUNNING:
        return mine
    wobble = zlib.crc32(workload.id.encode()) % 10
    percent = _BUSY_PERCENT.get(workload.kind, 85) + wobble
    memory_percent = _MEMORY_PERCENT.get(workload.kind, 85) + wobble
    return tuple(
        replace(one, utilisation_percent=float(percent), memory_used_mib=limit_mib(run, one) * memory_percent // 100) for one in mine
    )
