"""What must hold after every plan (scheduling.md 7). Empty list: all well. A plan is judged by what it does, not by what it found."""

from __future__ import annotations

from collections import Counter

from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.books import RUNS, Books, Holder, Key, charge, holder_later, overfull, place_later
from hotdesk_scheduler.core.line import Holds, told_of
from hotdesk_scheduler.core.model import Node, Placement, Pod, PodState, Snapshot, Workload
from hotdesk_scheduler.core.plan import Move, Nominate, Plan, Start, Stop
from hotdesk_scheduler.core.quantities import RESOURCES
from hotdesk_scheduler.core.reasons import ReasonCode

OWN_LIMITS = frozenset({ReasonCode.STALE_GANG, ReasonCode.NODE_LOST, ReasonCode.TIME_LIMIT, ReasonCode.IDLE_LIMIT})


def check(snapshot: Snapshot, plan: Plan, books: Books | None = None, *, told: bool = True) -> list[str]:
    """Sentences, one for each broken invariant; with `told` also whether everybody who waits is told why.

    Only what the plan touches is looked at. `books` kept from one check to the next make it cost what has changed since.
    """
    books = books or Books()
    books.catch_up(snapshot)
    world = _World(snapshot, plan, books)
    found = [*world.references(), *world.nodes(), *world.quotas(), *world.stops(), *world.gangs()]
    return [*found, *world.holds()] if told else found


def state(snapshot: Snapshot, *, entitlements: bool = True) -> list[str]:
    """What is wrong with a snapshot by itself: nodes that hold more than they have and, with `entitlements`, limits and quotas exceeded.

    Quotas and limits may be lowered under what runs, so they hold for a snapshot only as long as nobody changes them.
    """
    books = Books()
    books.catch_up(snapshot)
    found = [problem for node in snapshot.nodes for problem in overfull(node, books.now.get(node.name, {}).values())]
    if entitlements:
        both = {id(account): account for project in books.running.values() for account in project.path}
        for account in both.values():
            name = f"{'department' if account.is_department else 'project'} {account.name}"
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
    """The books of a snapshot, and what the plan makes of them."""

    def __init__(self, snapshot: Snapshot, plan: Plan, books: Books) -> None:
        self.snapshot = snapshot
        self.plan = plan
        self.books = books
        self.workloads = books.workloads
        acts = plan.acts
        self.starts = {(d.workload_id, d.index): d for d in acts if isinstance(d, Start)}
        self.stopped = {(d.workload_id, d.index): d for d in acts if isinstance(d, Stop | Move)}
        self.nominations = {(d.workload_id, d.index): d.placement for d in acts if isinstance(d, Nominate)}
        self.touched = [w for name in dict.fromkeys(d.workload_id for d in acts) if (w := self.workloads.get(name))]
        self.pods = {(w.id, p.index): (w, p) for w in self.touched for p in w.pods}
        """Pods of the workloads that the plan does something with."""
        self.later = {key: (w, p, place) for key, (w, p) in self.pods.items() if (place := self._place_later(w, p))}
        """Those of them that hold a place once everything that is being released is gone."""

    def references(self) -> list[str]:
        """Decisions are about pods that are there, in a state that allows them, and each at most once."""
        found = []
        for key in self.starts:
            if key not in self.pods or self.pods[key][1].state is not PodState.PENDING:
                found.append(f"pod {key} is started and was not pending")
        for key in self.stopped:
            if key not in self.pods or self.pods[key][1].state not in RUNS:
                found.append(f"pod {key} is stopped and did not run")
        starts = sum(isinstance(d, Start) for d in self.plan.acts)
        if starts != len(self.starts):
            found.append("a pod is started twice")
        return found

    def _place_later(self, workload: Workload, pod: Pod) -> Placement | None:
        key = (workload.id, pod.index)
        start, stop = self.starts.get(key), self.stopped.get(key)
        if start:
            return start.placement
        if isinstance(stop, Move):
            return stop.placement
        if stop and pod.state in RUNS:
            return None
        return place_later(workload, pod, self.nominations.get(key, pod.nominated))

    def nodes(self) -> list[str]:
        """No device above 1000, none both whole and shared, CPU and memory within the node, on every node the plan touches.

        Where more is held already than the node has, the plan does not make it more.
        """
        touched = {d.placement.node for d in (*self.starts.values(), *self.stopped.values()) if isinstance(d, Start | Move)}
        touched |= {place.node for place in self.nominations.values() if place}
        starting: dict[str, dict[Key, Holder]] = {name: {} for name in touched}
        for key, start in self.starts.items():
            if key in self.pods:
                starting[start.placement.node][key] = (*self.pods[key], start.placement)
        coming: dict[str, dict[Key, Holder]] = {name: {} for name in touched}
        for key, holder in self.later.items():
            if holder[2].node in touched:
                coming[holder[2].node][key] = holder
        found = []
        for name in sorted(touched):
            node = self.books.nodes.get(name)
            if node is None:
                found.append(f"there is no node {name}")
                continue
            found += [f"pod {key} is put on shared GPU {group} on {name}, which is closed" for key, group in self._joins(node)]
            now, later = self.books.now.get(name, {}), self.books.later.get(name, {})
            stays = [holder for key, holder in later.items() if key not in self.pods]
            found += [f"{problem} (now)" for problem in overfull(node, [*now.values(), *starting[name].values()], now.values())]
            found += [f"{problem} (later)" for problem in overfull(node, [*stays, *coming[name].values()], later.values())]
        return found

    def _joins(self, node: Node) -> list[tuple[Key, str]]:
        """Who is put on a closed shared GPU of this node."""
        moves = {key: move.placement for key, move in self.stopped.items() if isinstance(move, Move)}
        places = {**moves, **self.nominations, **{key: start.placement for key, start in self.starts.items()}}
        on_it = [(key, place) for key, place in places.items() if place and place.node == node.name] if node.closed_groups else []
        return [(key, share.group) for key, place in on_it for share in place.shares if share.group in node.closed_groups]

    def quotas(self) -> list[str]:
        """Allocated <= limit and non-preemptible <= quota at every level, for whoever got more by this plan."""
        names = dict.fromkeys(self.workloads[key[0]].project for key in self.starts if key[0] in self.workloads)
        gained = {id(a): (a, b) for n in names if n in self.books.later_accounts
                  for a, b in zip(self.books.later_accounts[n].path, self.books.running[n].path, strict=True)}  # fmt: skip
        if not gained:
            return []
        before = [holder for w in self.touched for p in w.pods if (holder := holder_later(w, p))]
        charge(self.books.later_accounts, before, -1)
        charge(self.books.later_accounts, self.later.values(), 1)
        found = []
        for account, old in gained.values():
            name = f"{'department' if account.is_department else 'project'} {account.name}"
            for r in RESOURCES:
                found += _over(name, account, r, allocated_before=old.allocated[r], fixed_before=old.fixed[r])
        charge(self.books.later_accounts, self.later.values(), -1)
        charge(self.books.later_accounts, before, 1)
        return found

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
        changed_ones = {key[0] for key in (*self.starts, *self.stopped)}
        found = []
        for workload in self.touched:
            if workload.id not in changed_ones:
                continue
            done = sum(p.state is PodState.SUCCEEDED for p in workload.pods)
            runs = sum((workload.id, p.index) in self.later for p in workload.pods)
            before = sum(p.state in RUNS for p in workload.pods)
            was_short = before + done < workload.min_pods
            if runs > 0 and runs + done < workload.min_pods and not (was_short and runs <= before):
                found.append(f"{workload.name} has {runs} of at least {workload.min_pods} pods after the plan")
        return found

    def holds(self) -> list[str]:
        """Who waits with less than his minimum has exactly one Hold; who starts has none."""
        found = []
        told = told_of(self.plan)
        if not isinstance(self.plan.holds, Holds) and len(told) < len(self.plan.holds):
            counts = Counter(hold.workload_id for hold in self.plan.holds)
            found += [f"{workload_id} has {count} holds" for workload_id, count in counts.items() if count > 1]
        starts = {key[0] for key in self.starts}
        found += [f"{workload_id} starts and holds" for workload_id in starts & told.keys()]
        untold = self.books.waiting - told.keys() - starts
        return found + [f"{self.workloads[workload_id].name} waits without a reason" for workload_id in sorted(untold)]
