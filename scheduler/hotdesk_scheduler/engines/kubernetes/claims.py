"""Pods that others made for us to place (`schedulerName: hotdesk` in a project's namespace): what they ask for, read from the pod. Pure.

Understood: our labels and annotations, Run:ai's and KAI's `gpu-fraction` and `gpu-memory`. What is not (node affinity, gangs) is said.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotdesk_api.models import WorkloadSpec

from hotdesk_scheduler.core.model import GpuRequest, Kind, Placement, Pod, PodRequest, PodState, Toleration, Workload
from hotdesk_scheduler.engines.kubernetes import manifests
from hotdesk_scheduler.engines.kubernetes.codec import Json, time_in
from hotdesk_scheduler.engines.kubernetes.nodes import POOL_LABELS, TYPE_LABELS
from hotdesk_scheduler.engines.kubernetes.observe import SCHEDULER, Life, Seen, requested
from hotdesk_scheduler.engines.kubernetes.quantity import amount, memory_mib

USER_LABEL = "hotdesk.io/user"
PRIORITY = "hotdesk.io/priority"
PREEMPTIBLE = "hotdesk.io/preemptible"
GROUPS = ("hotdesk.io/pod-group", "pod-group-name", "scheduling.k8s.io/group-name", "scheduling.x-k8s.io/pod-group")


@dataclass(frozen=True, slots=True)
class Claim:
    """What a pod of others asks for. `problem`: why it cannot be placed by us, in a sentence."""

    request: PodRequest
    image: str
    created_at: float
    user: str = ""
    priority: int = 50
    preemptible: bool = True
    node_type: str | None = None
    node_pools: tuple[str, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    problem: str = ""


def read_claim(item: Json) -> Claim | None:
    """None if it is somebody else's to schedule."""
    meta, spec = item["metadata"], item["spec"]
    if spec.get("schedulerName") != SCHEDULER:
        return None
    notes = {**(meta.get("labels") or {}), **(meta.get("annotations") or {})}
    selector = spec.get("nodeSelector") or {}
    gpu, wrong = _gpu(notes, requested(spec).gpu_millis // 1000)
    uses = requested(spec)
    return Claim(
        request=PodRequest(gpu, uses.cpu_millis, uses.memory_mib),
        image=spec["containers"][0].get("image", ""),
        created_at=time_in(meta["creationTimestamp"]),
        user=str(notes.get(USER_LABEL, "")),
        priority=int(notes[PRIORITY]) if str(notes.get(PRIORITY, "")).isdecimal() else 50,
        preemptible=notes.get(PREEMPTIBLE) != "false",
        node_type=next((selector[name] for name in TYPE_LABELS if name in selector), None),
        node_pools=tuple(selector[name] for name in POOL_LABELS if name in selector),
        tolerations=tuple(_toleration(one) for one in spec.get("tolerations") or []),
        problem=wrong or _problem(spec, notes, selector),
    )


def _gpu(notes: Json, whole: int) -> tuple[GpuRequest, str]:
    if whole:
        return GpuRequest(whole=whole), ""
    try:
        if "gpu-fraction" in notes:
            millis = int(amount(notes["gpu-fraction"]) * 1000)
            return (GpuRequest(whole=1) if millis == 1000 else GpuRequest(millis=millis)), ""
        if "gpu-memory" in notes:  # MiB when it is a bare number
            text = str(notes["gpu-memory"])
            return GpuRequest(memory_mib=int(text) if text.isdecimal() else memory_mib(text)), ""
    except ValueError:
        said = notes.get("gpu-fraction") or notes.get("gpu-memory")
        return GpuRequest(), f"{said!r} is no share of a GPU: gpu-fraction is between 0 and 1, gpu-memory is in MiB."
    return GpuRequest(), ""


def _problem(spec: Json, notes: Json, selector: Json) -> str:
    other = sorted(set(selector) - set(TYPE_LABELS) - set(POOL_LABELS))
    if other:
        known = ", ".join((*TYPE_LABELS, *POOL_LABELS))
        return f"Hotdesk does not choose nodes by the label {other[0]}; it knows {known}."
    if ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution"):
        return "Hotdesk does not know node affinity; name a node type or pool by nodeSelector instead."
    if any(name in notes for name in GROUPS):
        return "Hotdesk does not start pods of others as a gang yet; leave out its pod group, or submit it through Hotdesk."
    return ""


def _toleration(one: Json) -> Toleration:
    return Toleration(one.get("key", ""), one.get("operator", "Equal"), one.get("value", ""), one.get("effect", ""))


def workload_of(seen: Seen, claim: Claim, project: str, now: float) -> Workload:
    """A workload of one pod, as it stands."""
    state = PodState.PENDING
    if seen.node is not None:
        state = PodState.RELEASING if seen.leaving else PodState.RUNNING if seen.life is Life.RUNNING else PodState.STARTING
    placement = None
    if seen.node is not None:
        said = manifests.placement_in(seen.placement)
        placement = said if said is not None and said.node == seen.node else Placement(seen.node, whole=claim.request.gpu.whole)
    pod = Pod(0, claim.request, state, placement, started_at=now if placement else None)
    return Workload(
        id=seen.uid,
        name=seen.name,
        project=project,
        kind=Kind.TRAIN,
        user=claim.user,
        priority=claim.priority,
        preemptible=claim.preemptible,
        pods=(pod,),
        created_at=claim.created_at,
        backoff_limit=0,
        node_type=claim.node_type,
        node_pools=claim.node_pools,
        tolerations=claim.tolerations,
    )


def spec_of(seen: Seen, claim: Claim, project: str) -> WorkloadSpec:
    """For people: names of pods need not be names of workloads."""
    gpu = claim.request.gpu
    return WorkloadSpec.model_construct(
        name=seen.name,
        project=project,
        image=claim.image,
        gpu_millis=gpu.whole * 1000 + gpu.millis,
        gpu_memory_mib=gpu.memory_mib or None,
        owner=claim.user or None,
    )
