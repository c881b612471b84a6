"""Reservations: who has waited long within his fair share gets nodes kept for him, so that big jobs do not starve behind small ones.

The theory: the nodes that free up soonest (`soonest`) are kept. Smaller preemptible work may start there, behind the reservation, and
gives way as soon as that is enough (`give_way`); everything else that comes after it stays off. What ran there before is left alone,
and who gave way once fills in no more: many that wait long would stop it one after the other.
Nothing is remembered between cycles: who waits, since when, what started since then and why it stopped before say it all.

    8 GPUs; A waits with T8 for an hour; small trains of one GPU come and go  ->  nobody who came later is in the way for ever:
    once all that runs started behind the reservation, it gives way together and T8 starts

The bound: from the moment it has waited `reserve_after_s` (and its project may have so much), a workload within quota starts within the
longest time that what is in its way then still runs, plus the notice. Work of its own project that comes before it counts as in its
way; work of its project that comes after it either gives way or, where it cannot, does not start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.allocate import fit
from hotdesk_scheduler.core.eligible import Eligible
from hotdesk_scheduler.core.ledger import Ledger, Seat
from hotdesk_scheduler.core.lifecycle import waited_long_at
from hotdesk_scheduler.core.model import WHOLE_GPU, Workload
from hotdesk_scheduler.core.quantities import GPU, NOTHING, Vector, plus, total
from hotdesk_scheduler.core.reasons import ReasonCode
from hotdesk_scheduler.core.requests import Kept, Request, Requests, Walk, is_placed
from hotdesk_scheduler.core.rooms import NOW
from hotdesk_scheduler.core.soonest import Outlook, apart, behind, seats_since, size_of

MOST_RESERVATIONS = 16
MOST_OF_A_PROJECT = 4


@dataclass(slots=True, eq=False)
class Reservation:
    """`nodes` (by order) are kept for the request; what started after `since` behind it gives way.

    Quota yields only to quota: beyond it, only work that is beyond its quota too is kept out, and nobody is pushed below quota.
    """

    request: Request
    since: float
    size: int
    within_quota: bool
    spare: list[int]
    """What its project may still have beside it, by resource: for work that comes after it and would not give way."""
    nodes: frozenset[int] = frozenset()
    blockers: tuple[Workload, ...] = ()
    """Who has to end first on those nodes."""

    def gives_way(self, workload: Workload, size: int, *, surplus: bool) -> bool:
        """Whether it may fill in behind: surplus pods, and what is smaller (of equals, the younger) and not before it in its project.

        Smaller gives way to larger, so two that are both kept places never stop each other in turns; and once is enough.
        """
        mine = self.request.workload
        if not workload.preemptible or workload.id == mine.id:
            return False
        if surplus:
            return not gave_way(workload)
        if size > self.size or comes_before(workload, mine):
            return False
        smaller = size < self.size or (workload.created_at, workload.name) > (mine.created_at, mine.name)
        return smaller and not gave_way(workload)

    def keeps_out(self, other: Request, size: int) -> bool:
        """Whether other work may not start on these nodes: what would not give way, and has no better right."""
        mine, theirs = self.request.workload, other.workload
        if theirs.id == mine.id or self.gives_way(theirs, size, surplus=other.surplus):
            return False
        if comes_before(theirs, mine) and not other.surplus:
            return False
        return self.within_quota or theirs.project == mine.project or not _within_quota(other)


def gave_way(workload: Workload) -> bool:
    """Whether it filled in and gave way before: it does neither again, or it would be stopped for each of many that wait long."""
    if len(workload.pods) > 1:
        return any(pod.stop_reason is not None and pod.stop_reason.code is ReasonCode.GAVE_WAY for pod in workload.pods)
    reason = workload.pods[0].stop_reason  # mostly; asked of all that waits or runs, for each that has waited long
    return reason is not None and reason.code is ReasonCode.GAVE_WAY


def comes_before(first: Workload, second: Workload) -> bool:
    """Whether the first is before the second in the queue of their project: priority, then age. No for two projects."""
    if first.project != second.project:
        return False
    return (-first.priority, first.created_at, first.name) < (-second.priority, second.created_at, second.name)


def reserve(ledger: Ledger, requests: Requests) -> list[Reservation]:
    """Choose nodes for those who have waited longest, the largest first, and keep other work off them that would not give way."""
    due = sorted(_due(ledger, requests), key=lambda one: (one.since, one.request.workload.name, one.request.workload.id))
    due = due[:MOST_RESERVATIONS]
    if not due:
        return []
    young = seats_since(ledger, min(one.since for one in due))
    outlook = Outlook(ledger, young)
    found: list[Reservation] = []
    for one in sorted(due, key=lambda one: (-one.size, one.request.workload.created_at, one.request.workload.name)):
        gone = [seat for unit in behind(ledger, young, one) for seat in unit.seats]
        one.within_quota = one.within_quota and _ends_within_quota(one.request, gone)
        leaving = frozenset(id(seat) for seat in gone)
        taken = frozenset[int]().union(*(larger.nodes for larger in found if larger.keeps_out(one.request, one.size)))
        kept = outlook.soonest(one.request, one.since, leaving, taken)
        if kept:
            one.nodes, one.blockers = kept
            found.append(one)
    if found:
        _keep_out(ledger, requests, found)
    return found


def _due(ledger: Ledger, requests: Requests) -> Iterator[Reservation]:
    """Who has waited long enough, and would be within his share if what comes after him in his project were gone."""
    policy, now = ledger.policy, ledger.now
    if policy.reserve_after_s is None:
        return
    after = _After(ledger)
    for queue in requests.by_project.values():
        walk, count, charged = Walk(queue), 0, NOTHING
        while count < MOST_OF_A_PROJECT and (request := walk.head):
            workload = request.workload
            if request.surplus or not request.ask[GPU] or workload.created_at + policy.reserve_after_s > now:
                walk.pass_group()
                continue
            since = waited_long_at(workload, policy)
            if since is None or since > now:
                walk.advance()
                continue
            found = None if _just_starts(ledger, request) else _within_share(request, since, after, charged)
            if found is None:
                walk.pass_group()
                continue
            walk.advance()
            charged = plus(charged, request.ask)
            count += 1
            yield found


def _just_starts(ledger: Ledger, request: Request) -> bool:
    """What needs no more than a GPU and finds it now needs nothing kept: whose turn it is, the order says."""
    if request.ask[GPU] > WHOLE_GPU:
        return False
    checkpoint = ledger.checkpoint()
    found = fit(ledger, request)
    ledger.rollback(checkpoint)
    return found


def _within_share(request: Request, since: float, after: _After, charged: Vector) -> Reservation | None:
    """Within limits, quota and share of its project and department, counting that what comes after it in its project is not there."""
    ask = plus(request.ask, charged)
    path = request.account.path
    later, fixed_later, leaving = after.of(request)
    within = all(a.allocated[GPU] - later[GPU] + ask[GPU] <= a.quota[GPU] + _lent(a, request.account, GPU, quota=True) for a in path)
    spare = [1 << 60] * len(ask)
    for account in path:
        for r in request.asked:
            most = min(account.limit[r], account.share[r]) + _lent(account, request.account, r, quota=False)
            if account.allocated[r] - later[r] + ask[r] > most:
                return None
            if within and r == GPU:
                most = min(most, account.quota[GPU] + _lent(account, request.account, GPU, quota=True))
            spare[r] = min(spare[r], most - account.allocated[r] + leaving[r] - ask[r])
            if request.fixed:
                if account.fixed[r] - fixed_later[r] + ask[r] > account.quota[r]:
                    return None
                spare[r] = min(spare[r], account.quota[r] - account.fixed[r] - ask[r])
    return Reservation(request, since, size_of(request.workload, after.smallest_gpu_mib), within, spare)


def _ends_within_quota(request: Request, gone: list[Seat]) -> bool:
    """Counting what its project runs and would not give way: that is quota used, and others have a better right to theirs."""
    left = sum(seat.amount[GPU] for seat in gone if seat.workload.project == request.workload.project)
    path = request.account.path
    return all(a.allocated[GPU] - left + request.ask[GPU] <= a.quota[GPU] + _lent(a, request.account, GPU, quota=True) for a in path)


def _lent(department: Account, project: Account, resource: int, *, quota: bool) -> int:
    """What the department's other projects hold preemptibly beyond their shares (or their quotas)."""
    lent = 0
    for other in department.children:
        if other is not project:
            own = other.quota[resource] if quota else other.share[resource]
            lent += max(0, other.allocated[resource] - max(own, other.fixed[resource]))
    return lent


_Held = tuple[Workload, Vector, Vector, int, bool]
"""Of one workload: what all of it holds, what its surplus does, its size, and whether it would give way."""


class _After:
    """What projects run that comes after one of their requests. Mostly nothing does, which is told by who is youngest and least."""

    def __init__(self, ledger: Ledger) -> None:
        self.smallest_gpu_mib = ledger.smallest_gpu_mib
        self._ledger = ledger
        self._seats: dict[str, dict[str, list[Seat]]] | None = None
        self._held: dict[str, list[_Held]] = {}

    def _of_project(self, project: str) -> list[_Held]:
        """What it runs, or keeps a place for."""
        if self._seats is None:
            self._seats = {}
            self._ledger.tighten_bounds()
            for table in (self._ledger.seats, self._ledger.nominated):
                for seat in table.values():
                    if seat.rooms != NOW:
                        self._seats.setdefault(seat.workload.project, {}).setdefault(seat.workload.id, []).append(seat)
        if project not in self._held:
            self._held[project] = [self._held_by(seats) for seats in self._seats.get(project, {}).values()]
        return self._held[project]

    def _held_by(self, seats: list[Seat]) -> _Held:
        workload, surplus = seats[0].workload, apart(seats)[1]
        leaves = workload.preemptible and not gave_way(workload)
        return workload, _sum(seats), _sum(surplus) if surplus else NOTHING, size_of(workload, self.smallest_gpu_mib), leaves

    def _is_last(self, mine: Workload) -> bool:
        """Whether the project runs nothing younger, nothing of lower priority, and nothing elastic."""
        youngest, least = self._ledger.last.get(mine.project, (0.0, mine.priority))
        return youngest < mine.created_at and least >= mine.priority

    def of(self, request: Request) -> tuple[Vector, Vector, Vector]:
        """Amounts: all of it, the non-preemptible part, and the part that would give way."""
        mine = request.workload
        if self._is_last(mine):
            return NOTHING, NOTHING, NOTHING
        every, fixed, leaving = NOTHING, NOTHING, NOTHING
        size = size_of(mine, self.smallest_gpu_mib)
        for other, whole, surplus, theirs, leaves in self._of_project(mine.project):
            after = surplus if comes_before(other, mine) else whole
            if after is NOTHING or other.id == mine.id:
                continue
            every = plus(every, after)
            if not other.preemptible:
                fixed = plus(fixed, after)
            elif leaves:
                leaving = plus(leaving, after if theirs <= size else surplus)
        return every, fixed, leaving


def _sum(seats: list[Seat]) -> Vector:
    return seats[0].amount if len(seats) == 1 else total([seat.amount for seat in seats])


def _within_quota(request: Request) -> bool:
    return all(a.allocated[GPU] + request.ask[GPU] <= a.quota[GPU] for a in request.account.path)


# --- keeping others out ----------------------------------------------------------------------------------------------------------------


def _keep_out(ledger: Ledger, requests: Requests, reservations: list[Reservation]) -> None:
    """Nobody who would not give way starts on kept nodes, nor takes what the project may have from one of its own before him.

    Of two who have waited long, the larger goes first, so that they never wait for each other.
    """
    everywhere = frozenset(range(len(ledger.spots)))
    narrowed: dict[tuple[int, frozenset[int]], Eligible] = {}
    least = min(one.size for one in reservations)
    place = {one.request.workload.id: i for i, one in enumerate(reservations)}
    for queue in requests.by_project.values():
        for request in queue:
            size = size_of(request.workload, ledger.smallest_gpu_mib)
            if request.workload.preemptible and (request.surplus or size < least) and not gave_way(request.workload):
                continue
            larger = reservations[: place.get(request.workload.id)]
            keeping, nodes = _kept_from(request, size, larger, everywhere)
            if keeping is None or not nodes:
                continue
            key = (id(request.eligible), nodes)
            if key not in narrowed:
                narrowed[key] = _without(request.eligible, nodes, len(ledger.spots))
            requests.narrow(request, narrowed[key], kept_for=keeping.request.workload)
    requests.regroup()
    for one in reservations:
        one.request = requests.current(one.request)


def _kept_from(
    request: Request, size: int, reservations: list[Reservation], everywhere: frozenset[int]
) -> tuple[Reservation | None, frozenset[int]]:
    """The nodes it may not use, and for whom first of all."""
    keeping = [one for one in reservations if one.keeps_out(request, size)]
    for one in keeping:
        if one.request.account is not request.account:
            continue
        if any(request.ask[r] > one.spare[r] for r in request.asked):
            return one, everywhere
        for r in request.asked:
            one.spare[r] -= request.ask[r]
    return (keeping[0] if keeping else None), frozenset[int]().union(*(one.nodes for one in keeping))


def hold_back(requests: Requests, reservations: list[Reservation]) -> None:
    """Who fills in takes what is free (that is done by now), but nobody is stopped or moved to make room for him on kept nodes.

    In the project of one who has waited long, those behind him have nobody stopped or moved at all: its share is for him.
    """
    count = len(requests.ledger.spots)
    everywhere = frozenset(range(count))
    own = {one.request.workload.id for one in reservations}
    reservations = [one for one in reservations if not is_placed(requests.ledger, one.request)]
    narrowed: dict[tuple[int, frozenset[int]], Eligible] = {}
    for name, queue in requests.by_project.items():
        first = next((one.request for one in sorted(reservations, key=_place) if one.request.account.name == name), None)
        others = [one for one in reservations if one.request.account.name != name and one.within_quota]
        kept = frozenset[int]().union(*(one.nodes for one in others))
        for request in chain.from_iterable(queue.groups.values()) if first or kept else ():
            after = first is not None and (request.surplus or comes_before(first.workload, request.workload))
            nodes, owner = (everywhere, first) if first and after else (kept, others[0].request if others else None)
            if owner is None or request.workload.id in own:
                continue
            key = (id(request.eligible), nodes)
            if key not in narrowed:
                narrowed[key] = _without(request.eligible, nodes, count)
            requests.narrow(request, narrowed[key], kept_for=owner.workload)
    requests.regroup()


def _place(one: Reservation) -> tuple[int, float, str]:
    """In the queue of its project."""
    workload = one.request.workload
    return (-workload.priority, workload.created_at, workload.name)


def _without(eligible: Eligible, nodes: frozenset[int], count: int) -> Eligible:
    def mask(part: Eligible) -> tuple[bool, ...]:
        return tuple(order in part and order not in nodes for order in range(count))

    return Eligible(mask(eligible), tuple(Eligible(mask(stage)) for stage in eligible.stages))


def kept_nodes(reservations: list[Reservation], ledger: Ledger) -> dict[str, Kept]:
    """What is kept for each workload, by its id."""
    found: dict[str, Kept] = {}
    for one in reservations:
        nodes = tuple(ledger.spots[order].node.name for order in sorted(one.nodes))
        blockers = tuple(sorted((workload.name, workload.project) for workload in one.blockers))
        found[one.request.workload.id] = Kept(nodes, one.since, blockers)
    return found
