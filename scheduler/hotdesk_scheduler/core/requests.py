"""What waits, as requests: the pods of a workload that must start together, or one surplus pod of an elastic one.

Equal requests have the same `shape`, so that a question about one of them is asked once for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter

from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.eligible import Eligible
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.model import HOLDING, Phase, Pod, PodRequest, PodState, Workload
from hotdesk_scheduler.core.quantities import Vector, asked, asked_resources, total

ALIVE = frozenset({PodState.STARTING, PodState.RUNNING, PodState.SUCCEEDED})


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
    run_ends_at: int = 0
    """Where in its project's queue the run of requests equal to it (shape and priority) ends."""
    kept_for: Workload | None = None
    """For whom some of its nodes are kept: it may not use those (core/reserve)."""
    wished: Eligible | None = None
    """Its nodes with those."""

    @property
    def fixed(self) -> bool:
        return not self.workload.preemptible


Form = tuple[Vector, tuple[int, ...], int, Eligible]
"""What equal requests share: amounts, the resources asked for, shape, eligible nodes."""


def _amounts(request: PodRequest) -> tuple[int, ...]:
    gpu = request.gpu
    return (gpu.whole, gpu.millis, gpu.memory_mib, gpu.devices, request.cpu_millis, request.memory_mib)


def is_placed(ledger: Ledger, request: Request) -> bool:
    """Whether this plan has started it, or keeps a place for it."""
    if not ledger.seats and not ledger.nominated:
        return False
    key = (request.workload.id, request.pods[0].index)
    return key in ledger.seats or key in ledger.nominated


class Requests:
    """All requests of a snapshot, by project, each project's in its own order."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.by_project: dict[str, list[Request]] = {}
        self.kept: dict[str, tuple[str, ...]] = {}
        """Nodes kept for workloads that have waited long, by workload."""
        self._narrowed: set[str] = set()
        self._shapes: dict[object, int] = {}
        self._forms: dict[object, Form] = {}
        keyed: dict[str, list[tuple[tuple[int, bool, float, str, int], Request]]] = {name: [] for name in ledger.projects}
        for workload in ledger.snapshot.workloads:
            account = ledger.projects.get(workload.project)
            if account is None or workload.phase is not Phase.ACTIVE:
                continue
            pods = workload.pods
            if len(pods) == 1 and pods[0].state is not PodState.PENDING:
                continue
            for several, surplus in waiting(workload, ledger):
                request = self.request(workload, account, several, surplus=surplus)
                key = (-workload.priority, surplus, workload.created_at, workload.name, several[0].index)
                keyed[workload.project].append((key, request))
        for name, entries in keyed.items():
            if entries:
                entries.sort(key=itemgetter(0))
                self.by_project[name] = queue = [request for _, request in entries]
                _mark_runs(queue)

    def narrow(self, request: Request, eligible: Eligible, *, kept_for: Workload) -> None:
        """Let it use fewer nodes; equal requests so narrowed are equal again."""
        request.wished = request.wished or request.eligible
        request.eligible, request.kept_for = eligible, kept_for
        request.shape = self._shapes.setdefault((request.shape, id(eligible)), len(self._shapes))
        self._narrowed.add(request.account.name)

    def mark_runs(self) -> None:
        """Again, after some were narrowed."""
        for name in self._narrowed:
            _mark_runs(self.by_project[name])

    def request(self, workload: Workload, account: Account, pods: tuple[Pod, ...], *, surplus: bool) -> Request:
        """One request; equal ones share shape, amounts and eligible nodes."""
        first = pods[0].request
        gpu = first.gpu
        amounts = (gpu.whole, gpu.millis, gpu.memory_mib, gpu.devices, first.cpu_millis, first.memory_mib)
        more = tuple(_amounts(pod.request) for pod in pods[1:]) if len(pods) > 1 else len(workload.pods) > 1
        wishes = (workload.node_type, workload.node_pools, workload.tolerations, workload.preemptible, surplus)
        bound = self.ledger.eligible_of.bound_by(workload)
        key = (amounts, more, wishes, bound)
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = self._form(workload, pods, surplus=surplus)
        ask, resources, shape, eligible = form
        return Request(workload, account, pods, ask, resources, surplus, shape, eligible, ask[0])

    def _form(self, workload: Workload, pods: tuple[Pod, ...], *, surplus: bool) -> Form:
        eligible = self.ledger.eligible_of(workload)
        key = (tuple(_amounts(pod.request) for pod in pods), id(eligible), workload.preemptible, surplus)
        shape = self._shapes.setdefault(key, len(self._shapes))
        ask = total([asked(pod.request, self.ledger.smallest_gpu_mib) for pod in pods])
        return ask, asked_resources(ask), shape, eligible


def _mark_runs(queue: list[Request]) -> None:
    end, shape, priority = len(queue), -1, 0
    for at in range(len(queue) - 1, -1, -1):
        request = queue[at]
        if request.shape != shape or request.workload.priority != priority:
            end, shape, priority = at + 1, request.shape, request.workload.priority
        request.run_ends_at = end


def waiting(workload: Workload, ledger: Ledger) -> list[tuple[tuple[Pod, ...], bool]]:
    """(pods, surplus) of each request: the missing part of the minimum together, then every other pod by itself.

    A gang of which pods are still being stopped is no request: it starts whole or not at all.
    """
    pods = workload.pods
    if len(pods) == 1:
        pod = pods[0]
        free = pod.state is PodState.PENDING and (not ledger.nominated or (workload.id, pod.index) not in ledger.nominated)
        return [(pods, False)] if free else []
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
