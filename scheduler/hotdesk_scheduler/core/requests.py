"""What waits, as requests: the pods of a workload that must start together, or one surplus pod of an elastic one.

Equal requests have the same `shape`, so that a question about one of them is asked once for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.model import HOLDING, Kind, Node, Phase, Pod, PodState, Project, Taint, Toleration, Workload
from hotdesk_scheduler.core.quantities import Vector, asked

ALIVE = frozenset({PodState.STARTING, PodState.RUNNING, PodState.SUCCEEDED})
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


@dataclass(slots=True, eq=False)
class Request:
    """Pods that start together. `shape` is equal for requests that ask the same of the same nodes in the same way."""

    workload: Workload
    account: Account
    pods: tuple[Pod, ...]
    ask: Vector
    asked: tuple[int, ...]
    surplus: bool
    shape: int
    eligible: Eligible
    gpu_millis: int = 0

    @property
    def fixed(self) -> bool:
        return not self.workload.preemptible


class Requests:
    """All requests of a snapshot, by project, each project's in its own order."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.by_project: dict[str, list[Request]] = {}
        self.all_ready = all(spot.node.ready and not spot.node.taints for spot in ledger.spots)
        self.pools = sorted({spot.node.pool for spot in ledger.spots})
        self._shapes: dict[object, int] = {}
        self._asks: dict[int, tuple[Vector, tuple[int, ...]]] = {}
        self._eligible: dict[object, Eligible] = {}
        keyed: dict[str, list[tuple[tuple[int, bool, float, str, int], Request]]] = {name: [] for name in ledger.projects}
        for workload in ledger.snapshot.workloads:
            account = ledger.projects.get(workload.project)
            if account is None or workload.phase is not Phase.ACTIVE:
                continue
            for pods, surplus in waiting(workload, ledger):
                request = self.request(workload, account, pods, surplus=surplus)
                key = (-workload.priority, surplus, workload.created_at, workload.name, pods[0].index)
                keyed[workload.project].append((key, request))
        for name, entries in keyed.items():
            if entries:
                entries.sort(key=lambda entry: entry[0])
                self.by_project[name] = [request for _, request in entries]

    def request(self, workload: Workload, account: Account, pods: tuple[Pod, ...], *, surplus: bool) -> Request:
        """One request; equal ones share shape, amounts and eligible nodes."""
        where = (
            workload.node_type,
            workload.node_pools,
            workload.tolerations,
            workload.kind in INTERACTIVE_KINDS,
            workload.project if account.project and _has_affinity(account.project) else "",
        )
        asks = tuple(
            (r.gpu.whole, r.gpu.millis, r.gpu.memory_mib, r.gpu.devices, r.cpu_millis, r.memory_mib) for r in (p.request for p in pods)
        )
        key = (asks, where, workload.preemptible, surplus)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = len(self._shapes)
            amounts = [asked(pod.request, self.ledger.smallest_gpu_mib) for pod in pods]
            ask = (sum(a[0] for a in amounts), sum(a[1] for a in amounts), sum(a[2] for a in amounts))
            self._asks[shape] = (ask, tuple(r for r in (0, 1, 2) if ask[r]))
        ask, resources = self._asks[shape]
        eligible = self._eligible.get(where)
        if eligible is None:
            eligible = self._eligible[where] = self._find_eligible(workload, account.project)
        return Request(workload, account, pods, ask, resources, surplus, shape, eligible, ask[0])

    def _find_eligible(self, workload: Workload, project: Project | None) -> Eligible:
        types = wanted_types(workload, project)
        pools = workload.node_pools or (project.node_pools if project else ())
        nodes = [spot.node for spot in self.ledger.spots]
        usable = [node.ready and may_use(node, types=types, pools=pools, tolerations=workload.tolerations) for node in nodes]
        stages: list[Eligible] = []
        for pool in pools or (self.pools if len(self.pools) > 1 and len(workload.pods) > 1 else ()):
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


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value


def waiting(workload: Workload, ledger: Ledger) -> list[tuple[tuple[Pod, ...], bool]]:
    """(pods, surplus) of each request: the missing part of the minimum together, then every other pod by itself.

    A gang of which pods are still being stopped is no request: it starts whole or not at all.
    """
    pods = workload.pods
    if len(pods) == 1:
        pod = pods[0]
        free = pod.state is PodState.PENDING and (workload.id, pod.index) not in ledger.nominated
        return [((pod,), False)] if free else []
    pending = [pod for pod in pods if pod.state is PodState.PENDING and (workload.id, pod.index) not in ledger.nominated]
    if not pending:
        return []
    pending.sort(key=lambda pod: pod.index)
    lacking = workload.min_pods - alive(workload) - sum((workload.id, pod.index) in ledger.nominated for pod in pods)
    if lacking <= 0:
        return [((pod,), True) for pod in pending]
    if len(pending) < lacking or any(pod.state is PodState.RELEASING for pod in pods):
        return []
    return [(tuple(pending[:lacking]), False), *(((pod,), True) for pod in pending[lacking:])]


def alive(workload: Workload) -> int:
    """Pods that count towards the gang: running, starting, or done."""
    return sum(pod.state in ALIVE for pod in workload.pods)


def holding(workload: Workload) -> bool:
    return any(pod.state in HOLDING for pod in workload.pods)
