"""Which pods of others start together: the group that a pod names, in the words of whoever made it, and how many it needs. Pure.

A group is pods of one namespace that name the same one. How many start together stands on the pods, or in a resource PodGroup.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hotdesk_scheduler.engines.kubernetes.codec import Json

GROUP = "hotdesk.io/pod-group"
SIZE = "hotdesk.io/pod-group-size"
_SIZES = (
    SIZE,
    "pod-group.scheduling.sigs.k8s.io/min-available",
    "scheduling.volcano.sh/group-min-member",
    "kai.scheduler/batch-min-member",
)
_NAMES: Mapping[str, str | None] = {
    GROUP: None,
    "pod-group-name": "scheduling.run.ai/v2alpha2",
    "scheduling.x-k8s.io/pod-group": "scheduling.x-k8s.io/v1alpha1",
    "pod-group.scheduling.sigs.k8s.io/name": None,
    "scheduling.k8s.io/group-name": "scheduling.volcano.sh/v1beta1",
    "scheduling.volcano.sh/group-name": "scheduling.volcano.sh/v1beta1",
}
"""Labels and annotations that name a group: ours, Run:ai's and KAI's, coscheduling's new and old one, Volcano's. And its PodGroup's API."""
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")
_KUBERNETES = "scheduling.k8s.io/v1beta1"


@dataclass(frozen=True, slots=True)
class Group:
    """`size`: how many pods start together, if the pod says so. `said_at`: the path of the resource that says it otherwise."""

    name: str
    size: int | None = None
    said_at: str | None = None


def read_group(namespace: str, notes: Json, spec: Json) -> tuple[Group | None, str]:
    """The group that a pod's labels and annotations name, or None; and what is wrong with them, in a sentence."""
    name, kind = _named(notes, spec)
    if not name:
        return None, ""
    if not _NAME.fullmatch(name):
        return None, f"{name[:40]!r} is no name of a pod group: letters, digits and -_. within make one, 253 at most."
    said = next(((key, str(notes[key])) for key in _SIZES if key in notes), None)
    if said is not None and not (said[1].isascii() and said[1].isdecimal() and len(said[1]) < 7 and 0 < int(said[1]) <= 100_000):
        return None, f"{said[1][:40]!r} is no size of a pod group: {said[0]} says how many pods start together, such as 4."
    path = f"/apis/{kind}/namespaces/{namespace}/podgroups/{name}" if kind else None
    return Group(name, int(said[1]) if said else None, path), ""


def _named(notes: Json, spec: Json) -> tuple[str, str | None]:
    for key, kind in _NAMES.items():
        if notes.get(key):
            return str(notes[key]), kind
    return str((spec.get("schedulingGroup") or {}).get("podGroupName") or ""), _KUBERNETES


def size_in(item: Json) -> int | None:
    """How many pods start together, as a PodGroup says: of KAI, coscheduling or Volcano, or Kubernetes' own."""
    spec = item.get("spec") or {}
    policy = spec.get("schedulingPolicy") or {}
    said = spec.get("minMember", (policy.get("gang") or {}).get("minCount", 1 if "basic" in policy else None))
    return said if isinstance(said, int) and said > 0 else None


def note(group: Group | None, size: int) -> dict[str, str]:
    """How many it started with, for a pod that is bound: its PodGroup may say something else when a scheduler comes upon it."""
    return {SIZE: str(size)} if group is not None and not group.size else {}


def unknown_size(group: Group) -> str:
    """Why a pod of it waits."""
    or_else = f", or make the PodGroup {group.name} that it names" if group.said_at else ""
    return f"Nothing says how many pods of group {group.name} start together: annotate its pods with {SIZE}{or_else}."
