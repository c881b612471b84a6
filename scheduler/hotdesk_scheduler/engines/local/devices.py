"""Which GPUs there are: NVML's, or simulated ones that say so. Everything above works with `Node` and `Device` alone."""

from __future__ import annotations

import hashlib
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import psutil
import pynvml
from hotdesk_api.errors import Invalid

from hotdesk_scheduler.core.model import Node
from hotdesk_scheduler.engines.base import Device

_GROUP = re.compile(r"^(\d+)\s*[xX\u00d7]\s*(\d+)\s*[xX\u00d7]\s*([A-Za-z0-9][A-Za-z0-9._-]*)$")
_MEMORY = re.compile(r"(?:^|-)(\d+)GB(?:$|-)", re.IGNORECASE)
_LIVE_FOR_S = 1.0
_ADDRESS = "127.0.0.1"  # all nodes are this machine


@dataclass(frozen=True, slots=True)
class Shape:
    """What a machine with these GPUs is called and has besides, as its maker sells it."""

    node_type: str
    cpu_millis: int
    memory_mib: int


# (GPUs, beginning of the model) -> the machine people know by that; anything else is a plain "node"
_SHAPES: dict[tuple[int, str], Shape] = {
    (8, "V100-SXM2-16GB"): Shape("dgx1", 80_000, 512 * 1024),
    (8, "V100-SXM2-32GB"): Shape("dgx1", 80_000, 512 * 1024),
    (16, "V100-SXM3-32GB"): Shape("dgx2", 96_000, 1536 * 1024),
    (8, "A100-SXM4-40GB"): Shape("dgxa100", 256_000, 1024 * 1024),
    (8, "A100-SXM4-80GB"): Shape("dgxa100", 256_000, 2048 * 1024),
    (8, "H100-SXM5-80GB"): Shape("dgxh100", 224_000, 2048 * 1024),
}
_MEMORY_GB_OF = {"H200": 141, "B200": 192, "L40S": 48, "L40": 48, "L4": 24, "T4": 16, "A10": 24, "A30": 24, "P100": 16, "K80": 12}
_PLAIN_CPU_MILLIS_PER_GPU, _PLAIN_MEMORY_MIB_PER_GPU = 16_000, 64 * 1024


class DeviceBackend(Protocol):
    """Nodes and their devices. `devices` may ask the driver (milliseconds, cached); `nodes` was read at the start."""

    simulated: bool

    def nodes(self) -> tuple[Node, ...]: ...

    def devices(self, node: str) -> Sequence[Device]: ...


def parse_simulation(text: str) -> tuple[tuple[int, int, str, int], ...]:
    """(nodes, GPUs of each, model, MiB of each GPU) for `2x8xV100-SXM2-32GB`; several groups are separated by commas."""
    groups = []
    for part in text.split(","):
        match = _GROUP.match(part.strip())
        if not match:
            raise _not_a_simulation(part.strip() or text)
        nodes, gpus, model = int(match[1]), int(match[2]), match[3]
        if not (1 <= nodes <= 10_000 and 1 <= gpus <= 64):
            raise Invalid(
                f"--simulate {part.strip()}: there can be 1 to 10000 nodes with 1 to 64 GPUs each.",
                field="simulate",
                value=part.strip(),
                next_step="Write for example 2x8xV100-SXM2-32GB: two nodes with eight GPUs each.",
            )
        groups.append((nodes, gpus, model, _memory_mib(model)))
    return tuple(groups)


def _not_a_simulation(text: str) -> Invalid:
    return Invalid(
        f"--simulate {text} is not a cluster: it takes NODESxGPUSxMODEL.",
        field="simulate",
        value=text,
        next_step="Write for example 2x8xV100-SXM2-32GB, or several such groups separated by commas.",
    )


def _memory_mib(model: str) -> int:
    match = _MEMORY.search(model)
    size_gb = int(match[1]) if match else next((gb for name, gb in _MEMORY_GB_OF.items() if name in model.upper().split("-")), 0)
    if not size_gb:
        raise Invalid(
            f"--simulate: how much memory a {model} has is not known here.",
            field="simulate",
            value=model,
            next_step=f"End the model with its memory, for example {model}-32GB.",
        )
    return size_gb * 1024


class SimulatedDevices:
    """GPUs that are only counted. Marked at every place they can be seen: `simulated`, the UUID's prefix, the model's label."""

    simulated = True

    def __init__(self, simulation: str) -> None:
        self._nodes: dict[str, Node] = {}
        self._devices: dict[str, tuple[Device, ...]] = {}
        numbers: dict[str, int] = {}
        for count, gpus, model, memory_mib in parse_simulation(simulation):
            shape = _SHAPES.get((gpus, model.upper()))
            stem = shape.node_type if shape else "node"
            for _ in range(count):
                numbers[stem] = numbers.get(stem, 0) + 1
                self._add(f"{stem}-{numbers[stem]}", gpus=gpus, model=model, memory_mib=memory_mib, shape=shape)

    def _add(self, name: str, *, gpus: int, model: str, memory_mib: int, shape: Shape | None) -> None:
        labels = {"hotdesk.io/simulated": "true", "nvidia.com/gpu.product": model}
        if shape:
            labels["run.ai/type"] = shape.node_type
        self._nodes[name] = Node(
            name=name,
            gpus=gpus,
            gpu_memory_mib=memory_mib,
            cpu_millis=shape.cpu_millis if shape else gpus * _PLAIN_CPU_MILLIS_PER_GPU,
            memory_mib=shape.memory_mib if shape else gpus * _PLAIN_MEMORY_MIB_PER_GPU,
            gpu_model=model,
            node_type=shape.node_type if shape else None,
            labels=labels,
            simulated=True,
            address=_ADDRESS,
        )
        self._devices[name] = tuple(
            Device(index=index, uuid=_simulated_uuid(name, index), model=model, memory_mib=memory_mib, simulated=True)
            for index in range(gpus)
        )

    def nodes(self) -> tuple[Node, ...]:
        return tuple(self._nodes.values())

    def devices(self, node: str) -> Sequence[Device]:
        return self._devices.get(node, ())


def _simulated_uuid(node: str, index: int) -> str:
    digits = hashlib.sha256(f"{node}/{index}".encode()).hexdigest()
    return f"GPU-SIM-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"


class NvmlDevices:
    """The GPUs of this machine. Different models make different nodes: a node's devices are identical (core/model, Node)."""

    simulated = False

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        self._by_node: dict[str, list[Device]] = {}
        names: dict[tuple[str, int], str] = {}
        host = _host_name()
        for index, handle in enumerate(self._handles):
            device = _device(index, handle)
            name = names.setdefault((device.model, device.memory_mib), host if not names else f"{host}-{len(names) + 1}")
            self._by_node.setdefault(name, []).append(device)
        self._live: tuple[float, Mapping[str, Sequence[Device]]] = (0.0, {})

    def nodes(self) -> tuple[Node, ...]:
        share = max(1, len(self._by_node))
        return tuple(
            Node(
                name=name,
                gpus=len(devices),
                gpu_memory_mib=devices[0].memory_mib,
                cpu_millis=(psutil.cpu_count() or 1) * 1000 // share,
                memory_mib=psutil.virtual_memory().total // 2**20 // share,
                gpu_model=devices[0].model,
                labels={"nvidia.com/gpu.product": devices[0].model},
                address=_ADDRESS,
            )
            for name, devices in self._by_node.items()
        )

    def devices(self, node: str) -> Sequence[Device]:
        """With utilisation and memory in use, at most a second old."""
        if time.monotonic() - self._live[0] > _LIVE_FOR_S:
            self._live = (time.monotonic(), {name: [self._measured(one) for one in devices] for name, devices in self._by_node.items()})
        return self._live[1].get(node, ())

    def _measured(self, device: Device) -> Device:
        handle = self._handles[device.index]
        try:
            used = pynvml.nvmlDeviceGetMemoryInfo(handle).used // 2**20
            busy = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        except pynvml.NVMLError:
            return device  # unknown is not idle: no figure at all
        return replace(device, utilisation_percent=busy, memory_used_mib=used)


def _device(index: int, handle: object) -> Device:
    return Device(
        index=index,
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        model=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_mib=pynvml.nvmlDeviceGetMemoryInfo(handle).total // 2**20,
        simulated=False,
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _host_name() -> str:
    return re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().split(".")[0].lower()).strip("-") or "node-1"


class NoDevices:
    """A machine without GPUs, used without simulation: one node that runs CPU jobs."""

    simulated = False

    def nodes(self) -> tuple[Node, ...]:
        cpu_millis, memory_mib = (psutil.cpu_count() or 1) * 1000, psutil.virtual_memory().total // 2**20
        return (Node(name=_host_name(), cpu_millis=cpu_millis, memory_mib=memory_mib, address=_ADDRESS),)

    def devices(self, node: str) -> Sequence[Device]:
        return ()


def find_devices(simulation: str | None) -> DeviceBackend:
    """The simulation asked for, else the GPUs NVML finds, else none."""
    if simulation:
        return SimulatedDevices(simulation)
    try:
        real = NvmlDevices()
    except pynvml.NVMLError:
        return NoDevices()
    return real if real.nodes() else NoDevices()
