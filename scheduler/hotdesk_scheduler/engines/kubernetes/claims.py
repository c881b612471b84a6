"""Pods that others made for us to place (`schedulerName: hotdesk`): what they ask for, read from the pod. Pure.

Understood: our labels and annotations, Run:ai's and KAI's; the table is in docs/pods-of-others.md. What is not (semi-preemptible) is said.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotdesk_api.models import WorkloadSpec
from hotdesk_api.units import WHOLE_GPU

from hotdesk_scheduler.core.model import (
    NODE_NAME,
    GpuRequest,
    Kind,
    Node,
    NodeRule,
    Placement,
    Pod,
    PodRequest,
    PodState,
    Share,
    Toleration,
    Volume,
    Workload,
)
from hotdesk_scheduler.core.quantities import millis_on
from hotdesk_scheduler.engines.kubernetes import manifests
from hotdesk_scheduler.engines.kubernetes.codec import Json, time_in
from hotdesk_scheduler.engines.kubernetes.extras import GPU
from hotdesk_scheduler.engines.kubernetes.groups import Group, read_group
from hotdesk_scheduler.engines.kubernetes.nodes import POOL_LABELS, TYPE_LABELS
from hotdesk_scheduler.engines.kubernetes.observe import SCHEDULER, Life, Seen, requested
from hotdesk_scheduler.engines.kubernetes.quantity import amount, memory_mib

PROJECTS = ("hotdesk.io/project", "kai.scheduler/queue", "runai/queue")
ANY_PROJECT = "project"
"""Run:ai's label, but also many others': it counts only where nothing else says whose the pod is."""
USERS = ("hotdesk.io/user", "user")
CONFIG_MAPS = ("hotdesk.io/shared-gpu-configmap", "runai/shared-gpu-configmap")
_DEVICES = "NVIDIA_VISIBLE_DEVICES"
UNTELLABLE = (
    f"It asks for a share of a GPU and names no ConfigMap to be told which: let its variable {_DEVICES} refer to a key of one "
    f"(configMapKeyRef) that Hotdesk makes, or name it by the annotation {CONFIG_MAPS[0]}."
)
PRIORITY = "hotdesk.io/priority"
PREEMPTIBLE = "hotdesk.io/preemptible"
PREEMPTIBILITY = "kai.scheduler/preemptibility"
DEVICES = "gpu-fraction-num-devices"
"""KAI's: the same share of so many GPUs of one node."""
CLASS = "priorityClassName"
_CLASSES = {
    "train": (50, True, Kind.TRAIN),
    "interactive-preemptible": (75, True, Kind.INTERACTIVE),
    "build": (100, False, Kind.INTERACTIVE),
    "inference": (125, False, Kind.INFERENCE),
    "very-low": (25, True, Kind.TRAIN),
    "low": (40, True, Kind.TRAIN),
    "medium-low": (65, True, Kind.TRAIN),
    "medium": (80, True, Kind.TRAIN),
    "medium-high": (90, True, Kind.TRAIN),
    "high": (125, False, Kind.TRAIN),
    "very-high": (150, False, Kind.TRAIN),
}
"""Run:ai's and KAI's priority classes: priority, preemptible, kind."""
_MOST, _DIGITS = 1000, 6


@dataclass(frozen=True, slots=True)
class Claim:
    """What a pod of others asks for. `problem`: why it cannot be placed by us, in a sentence.

    `project` is the one it names, by label or annotation `project_by`. `maker`: what would make the pod again, as kubectl names it.
    `config_map`: from which its environment reads its share of a GPU. `volumes`: to which its claims tie it, where they were looked at.
    """

    request: PodRequest
    image: str
    created_at: float
    project: str = ""
    project_by: str = ""
    user: str = ""
    kind: Kind = Kind.TRAIN
    priority: int = 50
    preemptible: bool = True
    node_type: str | None = None
    node_pools: tuple[str, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    node_terms: tuple[tuple[NodeRule, ...], ...] = ()
    group: Group | None = None
    maker: str = ""
    maker_uid: str = ""
    config_map: str = ""
    volume_claims: tuple[str, ...] = ()
    volumes: tuple[Volume, ...] = ()
    problem: str = ""


def read_claim(item: Json) -> Claim | None:
    """None if it is somebody else's to schedule."""
    meta, spec = item["metadata"], item["spec"]
    if spec.get("schedulerName") != SCHEDULER:
        return None
    notes = {**(meta.get("labels") or {}), **(meta.get("annotations") or {})}
    selector = spec.get("nodeSelector") or {}
    uses = requested(spec)
    gpu, wrong = _gpu(notes, uses.gpu_millis // 1000)
    group, wrong_group = read_group(meta["namespace"], notes, spec)
    project_by = next((key for key in (*PROJECTS, ANY_PROJECT) if notes.get(key)), "")
    priority, preemptible, kind = _class(notes, spec)
    owner: Json = next((one for one in meta.get("ownerReferences") or [] if one.get("controller")), {})
    return Claim(
        request=PodRequest(gpu, uses.cpu_millis, uses.memory_mib),
        image=spec["containers"][0].get("image", ""),
        created_at=time_in(meta["creationTimestamp"]),
        project=str(notes.get(project_by, "")),
        project_by=project_by,
        user=next((str(notes[key]) for key in USERS if notes.get(key)), ""),
        kind=kind,
        priority=priority,
        preemptible=preemptible,
        node_type=next((selector[name] for name in TYPE_LABELS if name in selector), None),
        node_pools=tuple(wish[name] for wish in (selector, notes) for name in POOL_LABELS if name in wish)[:1],
        tolerations=tuple(_toleration(one) for one in spec.get("tolerations") or []),
        node_terms=_terms(spec, selector),
        group=group,
        maker=f"{owner['kind'].lower()} {owner['name']}" if owner else "",
        maker_uid=str(owner.get("uid", "")),
        config_map=_config_map(notes, spec),
        volume_claims=_volume_claims(meta["name"], spec),
        problem=wrong or wrong_group or _problem(notes, spec),
    )


def _config_map(notes: Json, spec: Json) -> str:
    """The one it names, or its NVIDIA_VISIBLE_DEVICES refers to."""
    if named := next((str(notes[name]) for name in CONFIG_MAPS if notes.get(name)), ""):
        return named
    variables = [one for container in spec["containers"] for one in container.get("env") or [] if one["name"] == _DEVICES]
    refers = [(one.get("valueFrom") or {}).get("configMapKeyRef") or {} for one in variables]
    return next((str(one["name"]) for one in refers if one.get("name")), "")


def _volume_claims(pod: str, spec: Json) -> tuple[str, ...]:
    """Those that its volumes name; the cluster makes that of an ephemeral one, by this name."""
    volumes = spec.get("volumes") or []
    named = [str(one["persistentVolumeClaim"]["claimName"]) for one in volumes if one.get("persistentVolumeClaim")]
    return tuple(dict.fromkeys([*named, *(f"{pod}-{one['name']}" for one in volumes if one.get("ephemeral"))]))


def _class(notes: Json, spec: Json) -> tuple[int, bool, Kind]:
    """Priority, preemptible and kind: ours if said, else KAI's, else those of its priority class."""
    name = str(notes.get(CLASS) or spec.get("priorityClassName") or "")
    other = min(max(int(spec.get("priority") or 0), 0), _MOST) if name else 50
    priority, preemptible, kind = _CLASSES.get(name, (other, True, Kind.TRAIN))
    if (said := str(notes.get(PRIORITY, ""))).isdecimal():
        priority = min(int(said[:20]), _MOST)
    if PREEMPTIBLE in notes:
        preemptible = notes[PREEMPTIBLE] != "false"
    elif PREEMPTIBILITY in notes:
        preemptible = notes[PREEMPTIBILITY] != "non-preemptible"
    return priority, preemptible, kind


def _gpu(notes: Json, whole: int) -> tuple[GpuRequest, str]:
    if whole:
        return GpuRequest(whole=whole), ""
    asked = next((name for name in ("gpu-fraction", "gpu-memory") if name in notes), "")
    text, devices = str(notes.get(asked, "")), str(notes.get(DEVICES, "1"))
    if asked and not (devices.isascii() and devices.isdecimal() and len(devices) <= _DIGITS and 0 < int(devices) <= _MOST):
        return GpuRequest(), f"{devices[:40]!r} is no number of GPUs: {DEVICES} says of how many the pod has its share."
    try:
        if asked == "gpu-fraction":
            share = amount(text)
            if share == 1:
                return GpuRequest(), "gpu-fraction 1 is a whole GPU: let a container ask for nvidia.com/gpu: 1, and leave gpu-fraction out."
            if share * 1000 < 1:
                raise ValueError
            return GpuRequest(millis=int(share * 1000), devices=int(devices)), ""
        if asked == "gpu-memory":  # MiB when it is a bare number
            size = f"{text}Mi" if text.isdecimal() else text
            if amount(size) < 2**20:
                raise ValueError
            return GpuRequest(memory_mib=memory_mib(size), devices=int(devices)), ""
    except ValueError:
        return GpuRequest(), f"{text[:40]!r} is no share of a GPU: gpu-fraction is between 0 and 1, gpu-memory is in MiB."
    return GpuRequest(), ""


def _problem(notes: Json, spec: Json) -> str:
    if notes.get(PREEMPTIBILITY) == "semi-preemptible":
        return f"Hotdesk does not know semi-preemptible; set the label {PREEMPTIBILITY} to preemptible or non-preemptible."
    if claims := spec.get("resourceClaims"):
        return (
            f"It uses a resource claim ({str(claims[0].get('name', ''))[:63]}), and Hotdesk does not allocate devices by claims: let a "
            f"container ask for {GPU} and leave resourceClaims out, or have the pod placed by the default scheduler."
        )
    return ""


def _terms(spec: Json, selector: Json) -> tuple[tuple[NodeRule, ...], ...]:
    """What required node affinity asks for (one of several terms), each with what the nodeSelector asks for.

    To the letter, also where it names a type or a pool: the kubelet refuses a pod whose node lacks a label.
    """
    always = tuple(NodeRule(key, "In", (value,)) for key, value in sorted(selector.items()))
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    asked = terms_in(affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {})
    if asked:
        return tuple((*always, *term) for term in asked)
    return (always,) if always else ()


def terms_in(selector: Json) -> tuple[tuple[NodeRule, ...], ...]:
    """Of Kubernetes' NodeSelector; nothing if it names none."""
    terms = selector.get("nodeSelectorTerms") or []
    rules = [[*(term.get("matchExpressions") or []), *(term.get("matchFields") or [])] for term in terms]
    none = ((NodeRule(NODE_NAME, "In"),),)  # an empty term is for no node
    return (tuple(tuple(_rule(one) for one in term) for term in rules if term) or none) if terms else ()


def _rule(one: Json) -> NodeRule:
    return NodeRule(one["key"], one["operator"], tuple(one.get("values") or ()))


def _toleration(one: Json) -> Toleration:
    return Toleration(one.get("key", ""), one.get("operator", "Equal"), one.get("value", ""), one.get("effect", ""))


def pod_of(seen: Seen, claim: Claim, index: int, now: float, node: Node | None = None) -> Pod:
    """As it stands. `node`: where it is."""
    if seen.life is Life.SUCCEEDED:
        return Pod(index, claim.request, PodState.SUCCEEDED, ended_at=seen.ended_at or now, exit_code=0)
    if seen.node is None:
        return Pod(index, claim.request)
    state = PodState.RELEASING if seen.leaving else PodState.RUNNING if seen.life is Life.RUNNING else PodState.STARTING
    return Pod(index, claim.request, state, _place(seen, seen.node, claim.request.gpu, node), started_at=now)


def _place(seen: Seen, name: str, gpu: GpuRequest, node: Node | None) -> Placement:
    """Which shared GPUs it has, its binding noted; how many and how much of each, and how many whole ones, a hand cannot say."""
    said = manifests.placement_in(seen.placement)
    if said is None or said.node != name or gpu.whole or gpu.is_none:
        return Placement(name, whole=gpu.whole)
    millis = millis_on(gpu, node.gpu_memory_mib) if node is not None and node.gpu_memory_mib else gpu.millis
    return Placement(name, shares=tuple(Share(one.group, min(millis, WHOLE_GPU) or one.millis) for one in said.shares[: gpu.devices]))


def workload_of(workload_id: str, name: str, claim: Claim, project: str) -> Workload:
    """Without its pods."""
    return Workload(
        id=workload_id,
        name=name,
        project=project,
        kind=claim.kind,
        user=claim.user,
        priority=claim.priority,
        preemptible=claim.preemptible,
        created_at=claim.created_at,
        backoff_limit=0,
        node_type=claim.node_type,
        node_pools=claim.node_pools,
        tolerations=claim.tolerations,
        node_terms=claim.node_terms,
    )


def spec_of(name: str, claim: Claim, project: str) -> WorkloadSpec:
    """For people: names of pods need not be names of workloads."""
    gpu = claim.request.gpu
    return WorkloadSpec.model_construct(
        name=name,
        project=project,
        image=claim.image,
        gpu_millis=gpu.whole * 1000 + gpu.millis * gpu.devices,
        gpu_memory_mib=gpu.memory_mib or None,
        owner=claim.user or None,
    )
