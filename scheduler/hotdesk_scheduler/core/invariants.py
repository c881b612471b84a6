"""What must hold after every plan (scheduling.md 7). Empty list: all well. A plan is judged by what it does, not by what it found."""

from __future__ import annotations

from hotdesk_scheduler.core import accounts
from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.model import HOLDING, WHOLE_GPU, Node, Phase, Placement, Pod, PodState, Snapshot, Workload
from hotdesk_scheduler.core.plan import Hold, Move, Nominate, Plan, Start, Stop
from hotdesk_scheduler.core.quantities import RESOURCES, held
from hotdesk_scheduler.core.reasons import ReasonCode

RUNS = frozenset({PodState.STARTING, PodState.RUNNING})
OWN_LIMITS = frozenset({ReasonCode.STALE_GANG, ReasonCode.NODE_LOST, ReasonCode.TIME_LIMIT, ReasonCode.IDLE_LIMIT})

Holder = tuple[Workload, Pod, Placement]


def check(snapshot: Snapshot, plan: Plan, *, told: bool = True) -> list[str]:
    """Sentences, one for each broken invariant; with `told` also whether everybody who waits is told why."""
    world = _World(snapshot, plan)
    found = [*world.references(), *world.nodes(), *world.quotas(), *world.stops(), *world.gangs()]
    return [*found, *world.holds()] if told else found


def state(snapshot: Snapshot, *, entitlements: bool = True) -> list[str]:
    """What is wrong with a snapshot by itself: nodes that hold more than they have and, with `entitlements`, limits and quotas exceeded.

    Quotas and limits may be lowered under what runs, so they hold for a snapshot only as long as nobody changes them.
    """
    holders: list[Holder] = [(w, p, p.placement) for w in snapshot.workloads for p in w.pods if p.placement and p.state in HOLDING]
    by_node: dict[str, list[Holder]] = {node.name: [] for node in snapshot.nodes}
    for holder in holders:
        by_node.setdefault(holder[2].node, []).append(holder)
    found = [problem for node in snapshot.nodes for problem in _overfull(node, by_node[node.name])]
    if entitlements:
        active = [holder for holder in holders if holder[0].phase is Phase.ACTIVE and holder[1].state in RUNS]
        for name, account in _charged(snapshot, active).items():
            for r in RESOURCES:
                found += _over(name, account, r)
    return found


def _over(name: str, account: Account, r: int, *, allocated_before: int = 0, fixed_before: int = 0) -> list[str]:
    """An amount above a limit or quota counts only if it was not as high before."""
    found = []
    if account.allocated[r] > max(account.limit[r], allocated_before):
        found.append(f"{name} holds {account.allocated[r]} of resource {r}, its limit is {account.limit[r]}")
    if account.fixed[r] > max(account.quota[r], fixed_before):
        found.append(f"{name} holds {account.fixed[r]} of resource {r} non-preemptibly, its quota is {account.quota[r]}")
    return found


class _World:
    """The snapshot, and where every pod is after the plan."""

    def __init__(self, snapshot: Snapshot, plan: Plan) -> None:
        self.snapshot = snapshot
        self.plan = plan
        self.workloads = {w.id: w for w in snapshot.workloads}
        acts = [d for d in plan.decisions if not isinstance(d, Hold)]
        self.starts = {(d.workload_id, d.index): d for d in acts if isinstance(d, Start)}
        self.stopped = {(d.workload_id, d.index): d for d in acts if isinstance(d, Stop | Move)}
        self.nominations = {(d.workload_id, d.index): d.placement for d in acts if isinstance(d, Nominate)}
        touched = {d.workload_id: None for d in acts}
        self.pods = {(w.id, p.index): (w, p) for name in touched if (w := self.workloads.get(name)) for p in w.pods}
        """Pods of the workloads that the plan does something with."""
        self.later = self._later() if acts else []

    def references(self) -> list[str]:
        """Decisions are about pods that are there, in a state that allows them, and each at most once."""
        found = []
        for key in self.starts:
            if key not in self.pods or self.pods[key][1].state is not PodState.PENDING:
                found.append(f"pod {key} is started and was not pending")
        for key in self.stopped:
            if key not in self.pods or self.pods[key][1].state not in RUNS:
                found.append(f"pod {key} is stopped and did not run")
        starts = sum(isinstance(d, Start) for d in self.plan.decisions)
        if starts != len(self.starts):
            found.append("a pod is started twice")
        return found

    def _now(self) -> list[Holder]:
        """Who physically holds a place when the plan is carried out: what runs, what is stopping, what starts."""
        holding = [(w, p, p.placement) for w in self.snapshot.workloads for p in w.pods if p.placement and p.state in HOLDING]
        starting = [(*self.pods[key], d.placement) for key, d in self.starts.items() if key in self.pods]
        return holding + starting

    def _later(self) -> list[Holder]:
        """Who holds a place once everything that is being released is gone, nominated ones included."""
        touched = {key[0] for key in (*self.starts, *self.stopped, *self.nominations)}
        return [
            (w, p, place) for w in self.snapshot.workloads for p in w.pods if (place := self._place_later(w, p, touched=w.id in touched))
        ]

    def _place_later(self, workload: Workload, pod: Pod, *, touched: bool) -> Placement | None:
        nominated = pod.nominated
        if touched:
            key = (workload.id, pod.index)
            start, stop = self.starts.get(key), self.stopped.get(key)
            if start:
                return start.placement
            if isinstance(stop, Move):
                return stop.placement
            if stop and pod.state in RUNS:
                return None
            nominated = self.nominations.get(key, nominated)
        if workload.phase is not Phase.ACTIVE:
            return None
        if pod.state in RUNS:
            return pod.placement
        return nominated if pod.state in (PodState.PENDING, PodState.RELEASING) else None

    def nodes(self) -> list[str]:
        """No device above 1000, none both whole and shared, CPU and memory within the node, on every node the plan touches."""
        touched = {d.placement.node for d in (*self.starts.values(), *self.stopped.values()) if isinstance(d, Start | Move)}
        touched |= {place.node for place in self.nominations.values() if place}
        if not touched:
            return []
        found = []
        for name, holders in (("now", self._now()), ("later", self.later)):
            by_node: dict[str, list[Holder]] = {node: [] for node in touched}
            for holder in holders:
                if holder[2].node in by_node:
                    by_node[holder[2].node].append(holder)
            for node in self.snapshot.nodes:
                if node.name in by_node:
                    found += [f"{problem} ({name})" for problem in _overfull(node, by_node[node.name])]
        return found + [f"there is no node {name}" for name in touched - {n.name for n in self.snapshot.nodes}]

    def quotas(self) -> list[str]:
        """Allocated <= limit and non-preemptible <= quota at every level, for whoever got more by this plan."""
        if not self.starts:
            return []
        running = [(w, p, p.placement) for w in self.snapshot.workloads if w.phase is Phase.ACTIVE for p in w.pods if p.state in RUNS]
        before = _charged(self.snapshot, [(w, p, placement) for w, p, placement in running if placement])
        found = []
        for name, account in _charged(self.snapshot, self.later).items():
            old = before[name]
            for r in RESOURCES:
                over = _over(name, account, r, allocated_before=old.allocated[r], fixed_before=old.fixed[r])
                if over and self._gained(account):
                    found += over
        return found

    def _gained(self, account: Account) -> bool:
        names = {account.name} if not account.is_department else {child.name for child in account.children}
        return any(self.workloads[key[0]].project in names for key in self.starts if key[0] in self.workloads)

    def stops(self) -> list[str]:
        """Nothing non-preemptible is stopped but by its own limits or as a broken gang; no stop without a beneficiary that gains."""
        gains = {key[0] for key in self.starts} | {key[0] for key, place in self.nominations.items() if place}
        found = []
        for key, stop in self.stopped.items():
            if key not in self.pods or stop.reason.code in OWN_LIMITS:
                continue
            workload = self.pods[key][0]
            if not workload.preemptible:
                found.append(f"{workload.name} is non-preemptible and is stopped")
            if stop.beneficiary is None:
                found.append(f"{workload.name} is stopped for nobody")
            elif stop.beneficiary not in gains:
                found.append(f"{workload.name} is stopped for {stop.beneficiary}, which neither starts nor keeps a place")
        return found

    def gangs(self) -> list[str]:
        """No gang is partly started, none loses its minimum and keeps a part."""
        touched = {key[0] for key in (*self.starts, *self.stopped)}
        places = {(w.id, p.index) for w, p, _ in self.later if w.id in touched}
        found = []
        for workload_id in touched:
            workload = self.workloads.get(workload_id)
            if workload is None:
                continue
            done = sum(p.state is PodState.SUCCEEDED for p in workload.pods)
            runs = sum((workload_id, p.index) in places for p in workload.pods)
            before = sum(p.state in RUNS for p in workload.pods)
            was_short = before + done < workload.min_pods
            if runs > 0 and runs + done < workload.min_pods and not (was_short and runs <= before):
                found.append(f"{workload.name} has {runs} of at least {workload.min_pods} pods after the plan")
        return found

    def holds(self) -> list[str]:
        """Who waits with less than his minimum has exactly one Hold; who starts has none."""
        counted: dict[str, int] = {}
        for decision in self.plan.decisions:
            if isinstance(decision, Hold):
                counted[decision.workload_id] = counted.get(decision.workload_id, 0) + 1
        found = [f"{workload_id} has {count} holds" for workload_id, count in counted.items() if count > 1]
        starts = {key[0] for key in self.starts}
        found += [f"{workload_id} starts and holds" for workload_id in counted if workload_id in starts]
        for workload in self.snapshot.workloads:
            if workload.id in counted or workload.phase is not Phase.ACTIVE or workload.id in starts:
                continue
            if workload.pods and all(p.state is PodState.PENDING for p in workload.pods):
                found.append(f"{workload.name} waits without a reason")
        return found


def _charged(snapshot: Snapshot, holders: list[Holder]) -> dict[str, Account]:
    """What every project and department holds, by name."""
    projects, top = accounts.build(snapshot.departments, snapshot.projects)
    for workload, pod, placement in holders:
        if workload.project in projects:
            projects[workload.project].charge(held(pod.request, placement), not workload.preemptible, 1)
    return {**{f"department {a.name}": a for a in top if a.is_department}, **{f"project {n}": a for n, a in projects.items()}}


def _overfull(node: Node, holders: list[Holder]) -> list[str]:
    name = node.name
    whole = cpu = memory = 0
    groups: dict[str, int] = {}
    for _, pod, placement in holders:
        whole += placement.whole
        cpu += pod.request.cpu_millis
        memory += pod.request.memory_mib
        for share in placement.shares:
            groups[share.group] = groups.get(share.group, 0) + share.millis
    found = [f"shared GPU {group} on {name} holds {used} thousandths" for group, used in groups.items() if used > WHOLE_GPU]
    if whole + len(groups) > node.gpus:
        found.append(f"{name} has {node.gpus} GPUs, {whole} are held whole and {len(groups)} shared")
    if cpu > node.cpu_millis - node.foreign.cpu_millis:
        found.append(f"{name} has {node.cpu_millis} CPU millis, {cpu} are held")
    if memory > node.memory_mib - node.foreign.memory_mib:
        found.append(f"{name} has {node.memory_mib} MiB, {memory} are held")
    if node.max_pods is not None and len(holders) > node.max_pods:
        found.append(f"{name} takes {node.max_pods} pods, {len(holders)} are there")
    return found
