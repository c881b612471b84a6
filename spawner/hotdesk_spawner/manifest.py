"""Between KubeSpawner's options and the scheduler: what they ask for, and what a grant makes of the pod. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hotdesk_api.errors import Invalid
from hotdesk_api.models import Grant, NodeRuleSpec, PodGrant, TolerationSpec, WorkloadSpec
from kubernetes_asyncio.client import (
    V1ConfigMapKeySelector,
    V1EnvVar,
    V1EnvVarSource,
    V1NodeSelectorRequirement,
    V1NodeSelectorTerm,
    V1PersistentVolumeClaimVolumeSource,
    V1Toleration,
    V1Volume,
)
from kubespawner.utils import get_k8s_model

GPU = "nvidia.com/gpu"
SCHEDULER = "hotdesk"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
TYPE_LABELS = ("hotdesk.io/type", "run.ai/type")
POOL_LABELS = ("hotdesk.io/pool", "runai/node-pool", "kai.scheduler/node-pool")
UNHEEDED = ("pod_affinity_required", "pod_anti_affinity_required")
MOST_CRASHES = 5
SHORT_RUN_S = 60.0
"""A server that was started again so often, and lived for less than that, will not come up: it would hold its share for nothing."""
_CONTAINER = "notebook"


def options_of(profile: Mapping[str, Any] | None) -> frozenset[str]:
    """Names of user options that are KubeSpawner's to read. A profile's own option called `gpu` is the profile's."""
    if profile is None:
        return frozenset()
    names = profile.get("profile_options", {})
    return frozenset({"profile", *names, *(f"{name}--unlisted-choice" for name in names)})


def with_options(spec: WorkloadSpec, spawner: Any) -> WorkloadSpec:
    """The wish; what it leaves open is as the spawner's options say (its profile applied). Raises Invalid for what cannot be heeded."""
    for name in UNHEEDED:
        if getattr(spawner, name):
            raise Invalid(
                f"Hotdesk does not heed {name}.",
                field=name,
                next_step="An admin chooses nodes by their labels instead: node_selector, node_affinity_required.",
            )
    more: dict[str, Any] = {"image": spawner.image, **_nodes(spawner.node_selector)}
    if terms := _terms(spawner):
        more["node_terms"] = terms
    if spawner.tolerations:
        more["tolerations"] = [_toleration(one) for one in _values(spawner.tolerations)]
    gpus = _gpus({**spawner.extra_resource_guarantees, **spawner.extra_resource_limits})
    if gpus and not spec.gpu_millis and spec.gpu_memory_mib is None:
        more["gpu_millis"] = gpus * 1000
    if spec.cpu_millis is None and spawner.cpu_guarantee:
        more["cpu_millis"] = math.ceil(spawner.cpu_guarantee * 1000)
    if spec.memory_mib is None and spawner.mem_guarantee:
        more["memory_mib"] = math.ceil(spawner.mem_guarantee / 2**20)
    return spec.model_copy(update=more)


def claims_of(volumes: Sequence[Any]) -> list[str]:
    """The claims that these volumes of a pod name; they are as the admin wrote them, in either of Kubernetes' spellings."""
    sources = [get_k8s_model(V1Volume, one).persistent_volume_claim for one in volumes]
    return sorted({get_k8s_model(V1PersistentVolumeClaimVolumeSource, one).claim_name for one in sources if one is not None})


def _values(items: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
    """KubeSpawner takes dictionaries, sorted by key, where lists are meant."""
    return [items[key] for key in sorted(items)] if isinstance(items, Mapping) else list(items)


def _nodes(selector: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if kind := next((selector[name] for name in TYPE_LABELS if name in selector), None):
        found["node_type"] = kind
    if pools := [selector[name] for name in POOL_LABELS if name in selector]:
        found["node_pools"] = pools
    return found


def _terms(spawner: Any) -> list[list[NodeRuleSpec]]:
    """What required node affinity asks for (one of several terms), each with what the selector asks for.

    To the letter, also where it names a type or a pool: the kubelet refuses a pod whose node lacks a label.
    """
    always = [NodeRuleSpec(key=key, values=[value]) for key, value in sorted(spawner.node_selector.items())]
    if not spawner.node_affinity_required:
        return [always] if always else []
    terms = [get_k8s_model(V1NodeSelectorTerm, one) for one in _values(spawner.node_affinity_required)]
    asked = [[*(term.match_expressions or ()), *(term.match_fields or ())] for term in terms]
    if not any(asked):
        raise Invalid(
            "node_affinity_required asks for nothing, and so holds for no node.",
            field="node_affinity_required",
            next_step="An admin leaves it out, or gives it matchExpressions.",
        )
    return [[*always, *map(_rule, rules)] for rules in asked if rules]


def _rule(one: Any) -> NodeRuleSpec:
    rule = get_k8s_model(V1NodeSelectorRequirement, one)
    return NodeRuleSpec(key=rule.key, operator=rule.operator, values=rule.values or [])


def _toleration(one: Mapping[str, Any]) -> TolerationSpec:
    given = {name: one[name] for name in ("key", "operator", "value", "effect") if one.get(name)}
    return TolerationSpec.model_validate(given)


def _gpus(resources: Mapping[str, Any]) -> int:
    text = str(resources.get(GPU, "0"))
    if not text.isdecimal():
        raise Invalid(f"{text} is not a number of GPUs.", field=GPU, value=text, next_step="An admin gives a whole number.")
    return int(text)


@dataclass(frozen=True, slots=True)
class Ended:
    """The server in a pod that goes on without it. `starts_again`: its node does that, and has not done so in vain too often."""

    exit_code: int
    starts_again: bool


def ended_in_running_pod(pod: Mapping[str, Any]) -> Ended | None:
    """None where the pod's own state says all: it runs, or is over as a whole."""
    if pod["status"].get("phase") != "Running" or "deletionTimestamp" in pod["metadata"]:
        return None
    status = next((one for one in pod["status"].get("containerStatuses") or [] if one["name"] == _CONTAINER), None)
    if status is None:
        return None
    waits = (status["state"].get("waiting") or {}).get("reason") == "CrashLoopBackOff"
    last = (status.get("lastState") or {}).get("terminated") if waits else status["state"].get("terminated")
    policy = pod["spec"].get("restartPolicy", "Always")
    if not last or policy == "Never" or (policy == "OnFailure" and not last["exitCode"]):
        return None
    return Ended(last["exitCode"], starts_again=not waits or status["restartCount"] < MOST_CRASHES or not _was_short(last))


def _was_short(run: Mapping[str, Any]) -> bool:
    if not run.get("startedAt") or not run.get("finishedAt"):
        return True  # it never began
    began, ended = (datetime.fromisoformat(run[name]) for name in ("startedAt", "finishedAt"))
    return (ended - began).total_seconds() < SHORT_RUN_S


def place(pod: Any, grant: Grant, *, memory_is_limit: bool) -> None:
    """Make KubeSpawner's V1Pod the one that was granted. `memory_is_limit`: somebody asked for just that much."""
    marks = grant.pod
    assert marks is not None
    pod.spec.node_name = grant.node
    pod.spec.scheduler_name = SCHEDULER
    if grant.gpu_millis:  # as the scheduler took it to do
        pod.spec.tolerations = [*(pod.spec.tolerations or []), V1Toleration(key=GPU, operator="Exists")]
    pod.metadata.namespace = marks.namespace
    pod.metadata.labels = {**(pod.metadata.labels or {}), **marks.labels}
    pod.metadata.annotations = {**(pod.metadata.annotations or {}), **marks.annotations}
    container = next(one for one in pod.spec.containers if one.name == _CONTAINER)
    requests, limits = dict(container.resources.requests or {}), dict(container.resources.limits or {})
    _give(requests, limits, marks, memory_is_limit=memory_is_limit)
    container.resources.requests, container.resources.limits = requests, limits
    container.env = _environment(container.env or [], marks)


def _give(requests: dict[str, Any], limits: dict[str, Any], marks: PodGrant, *, memory_is_limit: bool) -> None:
    """Exactly what was granted; limits that were configured stay, unless they are below it."""
    for given in (requests, limits):
        given.pop(GPU, None)
        if marks.gpus:
            given[GPU] = str(marks.gpus)
    cpu, memory = marks.cpu_millis, marks.memory_mib
    _set(requests, "cpu", f"{cpu}m" if cpu else None)
    _set(requests, "memory", f"{memory}Mi" if memory else None)
    if "cpu" in limits and float(limits["cpu"]) * 1000 < cpu:
        limits["cpu"] = f"{cpu}m"
    if memory and (memory_is_limit or int(limits.get("memory", memory * 2**20)) < memory * 2**20):
        limits["memory"] = f"{memory}Mi"


def _environment(given: Sequence[Any], marks: PodGrant) -> list[Any]:
    """What the ConfigMap of its share says it refers to, whatever was given for it."""
    if marks.config_map is None:
        return list(given)
    told = [V1EnvVar(name=name, value_from=_key(marks.config_map, name)) for name in marks.config_keys]
    return [*(one for one in given if one.name not in marks.config_keys), *told]


def _key(config_map: str, name: str) -> V1EnvVarSource:
    return V1EnvVarSource(config_map_key_ref=V1ConfigMapKeySelector(name=config_map, key=name))


def _set(amounts: dict[str, Any], name: str, value: str | None) -> None:
    amounts.pop(name, None)
    if value is not None:
        amounts[name] = value
