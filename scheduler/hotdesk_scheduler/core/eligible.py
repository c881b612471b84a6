"""Which nodes a workload may use at all: readiness, type, pool, labels, taints, its project's affinities (scheduling.md 5, filter)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotdesk_scheduler.core.model import NODE_NAME, Kind, Node, NodeRule, Project, Taint, Toleration, Workload

INTERACTIVE_KINDS = frozenset({Kind.INTERACTIVE, Kind.WORKSPACE})


@dataclass(frozen=True, slots=True, eq=False)
class Eligible:
    """Which nodes (by order) a request may use: `allowed` None means all. `stages` are tried one after the other, each a subset."""

    allowed: tuple[bool, ...] | None
    stages: tuple[Eligible, ...] = ()

    def __contains__(self, order: int) -> bool:
        return self.allowed is None or self.allowed[order]

    @property
    def count(self) -> int | None:
        return None if self.allowed is None else sum(self.allowed)


class Eligibility:
    """Asked once for all workloads that wish the same; `nodes` in the order of the ledger's."""

    def __init__(self, nodes: Sequence[Node], projects: Sequence[Project]) -> None:
        self._nodes = nodes
        self._pools = sorted({node.pool for node in nodes})
        self._projects = {project.name: project for project in projects}
        self._bound = {project.name for project in projects if _has_affinity(project)}
        self._found: dict[object, Eligible] = {}

    def __call__(self, workload: Workload) -> Eligible:
        several = len(workload.pods) > 1
        wishes = (workload.node_type, workload.node_pools, workload.tolerations, workload.node_terms, workload.volumes, workload.scarce)
        key = (*wishes, several, self.bound_by(workload))
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._find(workload, self._projects.get(workload.project))
        return found

    def bound_by(self, workload: Workload) -> tuple[str, bool] | None:
        """Which project's affinities count for it, and as which kind; None where there are none."""
        return (workload.project, workload.kind in INTERACTIVE_KINDS) if workload.project in self._bound else None

    def _find(self, workload: Workload, project: Project | None) -> Eligible:
        types = wanted_types(workload, project)
        pools = workload.node_pools or (project.node_pools if project else ())
        lacking = {name for one in workload.scarce for name in one.lacking}
        nodes = self._nodes
        usable = [
            node.ready
            and may_use(node, types=types, pools=pools, tolerations=workload.tolerations)
            and (not workload.node_terms or is_wished(node, workload.node_terms))
            and all(is_wished(node, volume.terms) for volume in workload.volumes)
            and node.name not in lacking
            for node in nodes
        ]
        stages: list[Eligible] = []
        for pool in pools or (self._pools if len(self._pools) > 1 and len(workload.pods) > 1 else ()):
            stages.append(Eligible(tuple(ok and node.pool == pool for ok, node in zip(usable, nodes, strict=True))))
        allowed = None if all(usable) else tuple(usable)
        if not pools or len(workload.pods) > 1 or not stages:
            stages.append(Eligible(allowed))
        return Eligible(allowed, tuple(stages))


def _has_affinity(project: Project) -> bool:
    return bool(project.train_node_types or project.interactive_node_types or project.node_pools)


def wanted_types(workload: Workload, project: Project | None) -> tuple[str, ...]:
    """Node types the workload may use: its own wish, else its project's affinity for its kind; empty means any."""
    if workload.node_type:
        return (workload.node_type,)
    if project is None:
        return ()
    return project.interactive_node_types if workload.kind in INTERACTIVE_KINDS else project.train_node_types


def may_use(node: Node, *, types: Sequence[str], pools: Sequence[str], tolerations: Sequence[Toleration]) -> bool:
    """Whether type, pool and taints of the node allow it (readiness and room apart)."""
    if types and node.node_type not in types:
        return False
    if pools and node.pool not in pools:
        return False
    return all(any(_tolerates(t, taint) for t in tolerations) for taint in node.taints if taint.effect in ("NoSchedule", "NoExecute"))


def is_wished(node: Node, terms: Sequence[Sequence[NodeRule]]) -> bool:
    """Whether one of the terms holds for it, with all of its rules."""
    return any(all(_holds(rule, node) for rule in term) for term in terms)


def _holds(rule: NodeRule, node: Node) -> bool:
    value = node.name if rule.key == NODE_NAME else node.labels.get(rule.key)
    match rule.operator:
        case "In":
            return value in rule.values
        case "NotIn":
            return value not in rule.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:  # Gt, Lt: of whole numbers, else it holds for no node
            limit = rule.values[0] if rule.values else ""
            if value is None or not _is_number(value) or not _is_number(limit):
                return False
            return int(value) > int(limit) if rule.operator == "Gt" else int(value) < int(limit)


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isascii() and text.removeprefix("-").isdecimal()


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value
