"""What is held where and by whom in a snapshot. Kept from one look to the next, so that only workloads that are other values are counted.

It is a second bookkeeping beside the ledger's, on purpose: plans are judged by it (`invariants`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hotdesk_scheduler.core import accounts
from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.memory import changed
from hotdesk_scheduler.core.model import HOLDING, WHOLE_GPU, Node, Phase, Placement, Pod, PodState, Snapshot, Workload
from hotdesk_scheduler.core.quantities import held

RUNS = frozenset({PodState.STARTING, PodState.RUNNING})

Key = tuple[str, int]
"""Workload id and pod index."""
Holder = tuple[Workload, Pod, Placement]


class Books:
    """By node: who physically holds a place `now`, who does `later`, once everything that is being released is gone (kept places included).

    By project: accounts charged with what is `running`, and with who holds later. `waiting` are ids of those of whom no pod runs and
    all wait.
    """

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self.nodes: dict[str, Node] = {}
        self._empty()

    def _empty(self) -> None:
        self.workloads: dict[str, Workload] = {}
        self.now: dict[str, dict[Key, Holder]] = {}
        self.later: dict[str, dict[Key, Holder]] = {}
        self.running: dict[str, Account] = {}
        self.later_accounts: dict[str, Account] = {}
        self.waiting: set[str] = set()

    def catch_up(self, snapshot: Snapshot) -> None:
        """Become the books of this snapshot."""
        before, self._snapshot = self._snapshot, None  # whatever happens in between: next time from nothing
        if before is None or (before.projects, before.departments) != (snapshot.projects, snapshot.departments):
            self._empty()
            self.running, _ = accounts.build(snapshot.departments, snapshot.projects)
            self.later_accounts, _ = accounts.build(snapshot.departments, snapshot.projects)
        if before is None or before.nodes != snapshot.nodes:
            self.nodes = {node.name: node for node in snapshot.nodes}
        gone, new = changed(before.workloads if before and self.workloads else (), snapshot.workloads)
        for workload in gone:
            self._take_out(workload)
        for workload in new:
            self._take_in(workload)
        self._snapshot = snapshot

    def _take_in(self, workload: Workload) -> None:
        self.workloads[workload.id] = workload
        if is_waiting(workload):
            self.waiting.add(workload.id)
            if not any(pod.nominated for pod in workload.pods):
                return
        self._post(workload, 1)

    def _take_out(self, workload: Workload) -> None:
        del self.workloads[workload.id]
        self.waiting.discard(workload.id)
        self._post(workload, -1)

    def _post(self, workload: Workload, sign: int) -> None:
        for pod in workload.pods:
            key, now, later = (workload.id, pod.index), holder_now(workload, pod), holder_later(workload, pod)
            for table, holder in ((self.now, now), (self.later, later)):
                if holder and sign > 0:
                    table.setdefault(holder[2].node, {})[key] = holder
                elif holder:
                    del table[holder[2].node][key]
            if now and workload.phase is Phase.ACTIVE and pod.state in RUNS:
                charge(self.running, [now], sign)
            if later:
                charge(self.later_accounts, [later], sign)


def holder_later(workload: Workload, pod: Pod) -> Holder | None:
    """As things stand without a plan."""
    place = place_later(workload, pod, pod.nominated)
    return (workload, pod, place) if place else None


def holder_now(workload: Workload, pod: Pod) -> Holder | None:
    return (workload, pod, pod.placement) if pod.placement and pod.state in HOLDING else None


def place_later(workload: Workload, pod: Pod, nominated: Placement | None) -> Placement | None:
    """Where a pod is once everything that is being released is gone, with this place kept for it."""
    if workload.phase is not Phase.ACTIVE:
        return None
    if pod.state in RUNS:
        return pod.placement
    return nominated if pod.state in (PodState.PENDING, PodState.RELEASING) else None


def is_waiting(workload: Workload) -> bool:
    """Whether all of it waits."""
    return workload.phase is Phase.ACTIVE and bool(workload.pods) and all(pod.state is PodState.PENDING for pod in workload.pods)


def charge(projects: Mapping[str, Account], holders: Iterable[Holder], sign: int) -> None:
    """Add what they hold to their projects and departments, or take it back."""
    for workload, pod, placement in holders:
        if workload.project in projects:
            projects[workload.project].charge(held(pod.request, placement), not workload.preemptible, sign)


def overfull(node: Node, holders: Collection[Holder], before: Collection[Holder] = ()) -> list[str]:
    """Sentences for each thing of which more is held than the node has, and than was held `before`: nodes may become smaller."""
    beyond = _beyond(node, holders)
    was = _beyond(node, before) if beyond else {}
    return [sentence for what, (amount, sentence) in beyond.items() if what not in was or amount > was[what][0]]


def _beyond(node: Node, holders: Collection[Holder]) -> dict[str, tuple[int, str]]:
    """Each thing of which more is held than the node has: how much, and a sentence."""
    name = node.name
    whole = cpu = memory = 0
    groups: dict[str, int] = {}
    for _, pod, placement in holders:
        whole += placement.whole
        cpu += pod.request.cpu_millis
        memory += pod.request.memory_mib
        for share in placement.shares:
            groups[share.group] = groups.get(share.group, 0) + share.millis
    found = {
        f"shared GPU {group}": (used, f"shared GPU {group} on {name} holds {used} thousandths")
        for group, used in groups.items()
        if used > WHOLE_GPU
    }
    gpus, pods = whole + len(groups), len(holders)
    if gpus > node.gpus:
        found["GPUs"] = gpus, f"{name} has {node.gpus} GPUs, {whole} are held whole and {len(groups)} shared"
    if cpu > node.cpu_millis - node.foreign.cpu_millis:
        found["CPU"] = cpu, f"{name} has {node.cpu_millis} CPU millis, {cpu} are held"
    if memory > node.memory_mib - node.foreign.memory_mib:
        found["memory"] = memory, f"{name} has {node.memory_mib} MiB, {memory} are held"
    if node.max_pods is not None and pods > node.max_pods - node.foreign_pods:
        found["pods"] = pods, f"{name} takes {node.max_pods} pods, {pods} are there and {node.foreign_pods} of others"
    return found
