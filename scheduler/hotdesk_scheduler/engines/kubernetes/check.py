"""Whether this cluster can ever run a spec, refused with a sentence before anything is queued; and what a bare spec comes to."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from hotdesk_api.errors import Invalid
from hotdesk_api.models import WorkloadSpec

from hotdesk_scheduler.core.model import GpuRequest, Kind, Node, Pod, PodRequest, Workload
from hotdesk_scheduler.engines.kubernetes import objects
from hotdesk_scheduler.engines.kubernetes.manifests import RESERVED


def check(spec: WorkloadSpec, nodes: Iterable[Node]) -> None:
    """Raises Invalid or TooLarge."""
    check_alone(spec)
    nodes = list(nodes)
    types = {node.node_type for node in nodes if node.node_type}
    if spec.node_type and spec.node_type not in types:
        raise _unknown("node type", spec.node_type, types, field="node_type")
    pools = {node.pool for node in nodes}
    for pool in spec.node_pools:
        if pool not in pools:
            raise _unknown("node pool", pool, pools, field="node_pools")


def check_alone(spec: WorkloadSpec) -> None:
    """What is wrong whatever nodes there are."""
    if spec.kind != "workspace" and not spec.image:
        raise Invalid("No image was named.", field="image", next_step="Name one: -i python:3.12.")
    objects.check_program(spec)
    for name in RESERVED & spec.environment.keys():
        raise Invalid(f"{name} is set by Hotdesk and cannot be chosen.", field="environment", value=name, next_step=f"Leave out -e {name}.")


def _unknown(what: str, value: str, known: set[str], *, field: str) -> Invalid:
    near = difflib.get_close_matches(value, known, n=1)
    valid = f"Valid ones: {', '.join(sorted(known))}." if known else f"The nodes here have no {what}."
    next_step = (f"Did you mean {near[0]}? " if near else "") + valid
    return Invalid(f"There is no {what} {value[:100]}.", field=field, value=value[:100], next_step=next_step)


def plainly_resolved(spec: WorkloadSpec, workload_id: str, user: str, now: float) -> Workload:
    """One pod that asks for what the spec says: for use without the service, which knows the kinds' defaults."""
    whole = spec.gpu_millis // 1000
    millis = spec.gpu_millis % 1000 if not whole else 0
    gpu = GpuRequest(memory_mib=spec.gpu_memory_mib) if spec.gpu_memory_mib else GpuRequest(whole=whole, millis=millis)
    request = PodRequest(gpu, spec.cpu_millis or 0, spec.memory_mib or 0)
    name = spec.name or workload_id
    return Workload(workload_id, name, spec.project, Kind(spec.kind), user, pods=(Pod(0, request),), created_at=now)
