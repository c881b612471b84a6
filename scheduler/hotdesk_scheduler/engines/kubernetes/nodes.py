"""What a Node object says: GPUs, room, labels, taints, whether it is there. Pure.

Nodes that kwok plays run nothing: they are shown as simulated, unless their annotation `hotdesk.io/simulated` says something else.
GPU names and sizes are the labels of NVIDIA's feature discovery.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hotdesk_scheduler.core.model import Node, Taint
from hotdesk_scheduler.engines.base import Device
from hotdesk_scheduler.engines.kubernetes.codec import Json
from hotdesk_scheduler.engines.kubernetes.extras import GPU
from hotdesk_scheduler.engines.kubernetes.quantity import amount, cpu_millis

TYPE_LABELS = ("hotdesk.io/type", "run.ai/type")
POOL_LABELS = ("hotdesk.io/pool", "runai/node-pool", "kai.scheduler/node-pool")
_MODEL, _MEMORY = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
_PLAYED = "kwok.x-k8s.io/node"
_SIMULATED = "hotdesk.io/simulated"
_CORDONED = "node.kubernetes.io/unschedulable"


def read_node(item: Json) -> Node:
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    labels, there = meta.get("labels") or {}, status.get("allocatable") or {}
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or []}
    return Node(
        name=meta["name"],
        gpus=int(amount(there.get(GPU, 0))),
        gpu_memory_mib=_number(labels.get(_MEMORY)),
        cpu_millis=cpu_millis(there.get("cpu", 0)),
        memory_mib=int(amount(there.get("memory", 0)) // 2**20),
        gpu_model=labels.get(_MODEL, ""),
        node_type=_first(labels, TYPE_LABELS),
        pool=_first(labels, POOL_LABELS) or "default",
        labels=labels,
        taints=_taints(spec),
        max_pods=int(amount(there["pods"])) if "pods" in there else None,
        ready=conditions.get("Ready") == "True",
        simulated=_is_simulated(meta.get("annotations") or {}),
        address=next((one["address"] for one in status.get("addresses") or [] if one["type"] == "InternalIP"), ""),
    )


def _is_simulated(notes: Json) -> bool:
    return bool(notes[_SIMULATED] == "true" if _SIMULATED in notes else _PLAYED in notes)


def _taints(spec: Json) -> tuple[Taint, ...]:
    """A cordoned node takes nothing new; the controller says so by a taint, a moment later."""
    found = {(one["key"], one.get("value", ""), one["effect"]) for one in spec.get("taints") or []}
    if spec.get("unschedulable"):
        found.add((_CORDONED, "", "NoSchedule"))
    return tuple(Taint(key, value, effect) for key, value, effect in sorted(found))


def _first(labels: Json, names: Sequence[str]) -> str | None:
    return next((labels[name] for name in names if labels.get(name)), None)


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


def devices(node: Node, indexes: Iterable[int] | None = None) -> tuple[Device, ...]:
    """The GPUs of a simulated node, all or these. Of a real one only the number is known: its device plugin hands them out."""
    if not node.simulated:
        return ()
    model = node.gpu_model or "Simulated GPU"
    numbers = range(node.gpus) if indexes is None else [index for index in indexes if 0 <= index < node.gpus]
    return tuple(Device(i, f"GPU-SIM-{node.name}-{i}", model, node.gpu_memory_mib, simulated=True) for i in numbers)
