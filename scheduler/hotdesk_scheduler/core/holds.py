"""Why what waits is waiting: one Hold for each workload that has not its minimum, with its place in the queue (scheduling.md 6).

A sentence says first what stands in the way, naming who holds what, then what would help. Equal requests of one project get the same
sentence, so it is made once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from operator import itemgetter

from hotdesk_scheduler.core import advice, lack, limits, sentences, unsuitable
from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.advice import Advice, Help, HelpKind
from hotdesk_scheduler.core.allocate import fit, minimum_runs
from hotdesk_scheduler.core.lack import Cluster
from hotdesk_scheduler.core.ledger import Ledger, Seat
from hotdesk_scheduler.core.line import Asked, Holds, Told, frozen
from hotdesk_scheduler.core.model import Phase, PodState, Workload
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.core.remedies import Remedies
from hotdesk_scheduler.core.requests import Kept, Key, Request, Requests
from hotdesk_scheduler.core.rooms import NOW
from hotdesk_scheduler.core.turns import may_evict, old_enough


class Advisor:
    """Finds the reason of a request, then what would help; what would make room is looked for once for equal requests."""

    def __init__(self, ledger: Ledger, *, others_wait: bool) -> None:
        self.cluster = Cluster(ledger)
        self.others_wait = others_wait
        self._remedies = Remedies(ledger)
        self._for_shape: dict[int, tuple[Advice, ...]] = {}

    def told(self, request: Request) -> Told:
        why = reason_for(self.cluster, request)
        helps = self._helps(why, request)
        text = advice.sentence(helps, in_turn=self.others_wait) or sentences.only_wait(why)
        return Told(replace(why, sentence=f"{why.sentence} {text}"), helps)

    def _helps(self, why: Reason, request: Request) -> tuple[Advice, ...]:
        protected = self.cluster.ledger.protected.get((request.account.name, request.shape))
        if why.code is ReasonCode.VICTIMS_PROTECTED and protected:
            return ((Help(HelpKind.WAIT, int(dict(why.numbers)["left_s"])),),)
        if why.code is ReasonCode.NODES_EXCLUDED:
            return tuple(self._remedies.on_any_node(request))
        if not limits.may_start(request):
            return self._remedies.of(request)
        if request.shape not in self._for_shape:
            self._for_shape[request.shape] = self._remedies.of(request)
        return self._for_shape[request.shape]


def _with_kept(told: Told, kept: Kept, after_s: float) -> Told:
    """With the nodes that are kept for it, since when, and who has to end there."""
    sentence = f"{told.reason.sentence} {sentences.kept_for_it(kept, after_s)}"
    numbers = tuple(sorted((*told.reason.numbers, ("kept_since", int(kept.since)), ("kept_nodes", len(kept.nodes)))))
    return replace(told, reason=replace(told.reason, sentence=sentence, numbers=numbers))


def fits(ledger: Ledger, request: Request) -> bool:
    """Whether it would start at once, were it allowed there."""
    checkpoint = ledger.checkpoint()
    found = limits.may_start(request) and fit(ledger, request)
    ledger.rollback(checkpoint)
    return found


def _names(seats: list[Seat]) -> tuple[tuple[str, str, str], ...]:
    return tuple(sorted({(s.workload.id, s.workload.name, s.workload.project) for s in seats}, key=lambda entry: entry[1:]))


def holds(ledger: Ledger, requests: Requests) -> Holds:
    """Who waits and why: what waits for a release first, then the line, then what is in no line."""
    absent = _absent(ledger, requests)
    outside = [(w, reason) for w in ledger.irregular.values() if (reason := _outside(ledger, w))]
    outside.sort(key=lambda entry: (entry[0].created_at, entry[0].name, entry[0].id))
    return Holds(
        first=tuple(_for_release(ledger)) if ledger.policy.paused is None else (),
        queues=frozen(requests.by_project),
        absent=absent,
        told=_told(ledger, requests, absent),
        may_evict=old_enough(ledger),
        more={
            workload_id: partial(_with_kept, kept=kept, after_s=ledger.policy.reserve_after_s or 0)
            for workload_id, kept in requests.kept.items()
        },
        last=tuple((workload.id, Told(reason)) for workload, reason in outside),
        started=frozenset(key[0] for key in ledger.decisions if key[2] == "start"),
    )


def _for_release(ledger: Ledger) -> Iterator[tuple[str, Told]]:
    leaving: dict[int, list[Seat]] = {}
    for seat in ledger.seats.values() if ledger.nominated else ():
        if seat.rooms == NOW:
            leaving.setdefault(seat.spot.order, []).append(seat)
    seen: set[str] = set()
    for seat in sorted(ledger.nominated.values(), key=lambda s: (s.workload.created_at, s.workload.name, s.pod.index)):
        if seat.pod.state is PodState.PENDING and seat.workload.id not in seen and not _has_minimum(ledger, seat.workload):
            seen.add(seat.workload.id)
            others = [s for s in leaving.get(seat.spot.order, ()) if s.workload.id != seat.workload.id]
            release = Help(HelpKind.RELEASE, workloads=_names(others))
            yield seat.workload.id, Told(sentences.waiting_for_release(seat, others, ledger), ((release,),) if others else ())


def _absent(ledger: Ledger, requests: Requests) -> frozenset[tuple[str, int]]:
    """Requests (by workload and first pod) that do not wait: they have their place by now, or are more than a minimum that runs.

    More pods than the minimum wait only if the place that was kept for the minimum went to others in this cycle.
    """
    found = {(key[0], key[1]) for key in ledger.decisions if key[2] == "start"}
    if ledger.policy.paused is None:
        found.update(ledger.nominated)
    runs: dict[str, bool] = {}
    for queue in requests.by_project.values():
        for group in queue.groups.values():
            for request in group if group[0].surplus else ():
                workload = request.workload
                if workload.id not in runs:
                    runs[workload.id] = request.beside_minimum or minimum_runs(ledger, request)
                if runs[workload.id]:
                    found.add((workload.id, request.pods[0].index))
    return frozenset(found)


def _told(ledger: Ledger, requests: Requests, absent: frozenset[tuple[str, int]]) -> dict[Asked, Told]:
    """The reason of all that wait, made once for equal requests of a project: that of the first of them."""
    may = old_enough(ledger)
    firsts: list[tuple[tuple[float, str, Key], Request]] = []
    waiting = 0
    for queue in requests.by_project.values():
        for group in queue.groups.values():
            first = _next(group, 0, absent)
            waiting += (first < len(group)) + (_next(group, first + 1, absent) < len(group))
            young = bisect_left(group, True, key=lambda request: not may(request))
            for at in {first, _next(group, max(first, young), absent)}:
                if at < len(group):
                    firsts.append(((queue.account.created_at, queue.account.name, group[at].key), group[at]))
    paused = ledger.policy.paused
    advisor = Advisor(ledger, others_wait=waiting > 1)
    told: dict[Asked, Told] = {}
    for _, request in sorted(firsts, key=itemgetter(0)):
        key = (request.account.name, request.shape, may(request))
        if key not in told:
            told[key] = Told(paused) if paused is not None else advisor.told(request)
    return told


def _next(group: list[Request], at: int, absent: frozenset[tuple[str, int]]) -> int:
    """Where the next one that waits is, from here on."""
    while absent and at < len(group) and (group[at].workload.id, group[at].pods[0].index) in absent:
        at += 1
    return at


_OF_ITS_NODES = frozenset(
    {
        ReasonCode.NODES_EXCLUDED,
        ReasonCode.NO_NODE_LARGE_ENOUGH,
        ReasonCode.NO_FREE_BLOCK,
        ReasonCode.FRAGMENTED,
        ReasonCode.NO_CPU_OR_MEMORY,
    }
)


def reason_for(cluster: Cluster, request: Request) -> Reason:
    """The main reason a request does not start, as the ledger stands after the cycle; and where else it is kept by what it uses."""
    found = _main_reason(cluster, request)
    if (request.workload.volumes or request.workload.scarce) and found.code in _OF_ITS_NODES:
        spots, otherwise = cluster.ledger.spots, cluster.ledger.eligible_of(replace(request.workload, scarce=()))
        lie = unsuitable.where_volumes_lie(request.workload.volumes, [spot.node for spot in spots])
        free = unsuitable.where_it_is_free(request.workload.scarce, [spot.node for spot in spots if spot.order in otherwise])
        return replace(found, sentence=" ".join(filter(None, (found.sentence, lie, free))))
    return found


def _main_reason(cluster: Cluster, request: Request) -> Reason:
    if request.kept_for:
        wished = replace(request, eligible=request.wished or request.eligible, kept_for=None, shape=-request.shape)
        return sentences.kept(request, request.kept_for, cluster.ledger) if fits(cluster.ledger, wished) else _main_reason(cluster, wished)
    if request.shape not in cluster.possible:
        excluded = unsuitable.no_node(cluster.ledger.spots, cluster.eligible(request), request)
        if excluded:
            return excluded
        cluster.possible.add(request.shape)
    broken = limits.over_limit(request)
    if broken:
        return sentences.over_limit(broken[0], broken[1], request)
    broken = limits.over_fixed_quota(request)
    if broken:
        return sentences.over_fixed_quota(broken[0], broken[1], request)
    protected = cluster.ledger.protected.get((request.account.name, request.shape))
    if protected and protected[0] > cluster.ledger.now:
        return sentences.protected(*protected, cluster.ledger)
    lacks = lack.no_room(cluster, request)
    if lacks.code is not ReasonCode.FAIR_SHARE_REACHED and not may_evict(cluster.ledger, request):
        return sentences.too_young(request, cluster.ledger)
    return lacks


def _outside(ledger: Ledger, workload: Workload) -> Reason | None:
    """Reasons of workloads that are in no line: unknown project, own pods still stopping or to be made, waiting to be tried again."""
    if workload.phase is not Phase.ACTIVE or (len(workload.pods) == 1 and workload.pods[0].state is PodState.RUNNING):
        return None
    states = {pod.state for pod in workload.pods}
    if not states & {PodState.PENDING, PodState.FAILED}:
        return None
    account: Account | None = ledger.projects.get(workload.project)
    if account is None:
        return sentences.unknown_project(workload)
    if PodState.RELEASING in states and PodState.PENDING in states and not _has_minimum(ledger, workload):
        return sentences.own_pods_stopping()
    if PodState.FAILED in states and not _has_minimum(ledger, workload):
        return sentences.backing_off(workload)
    if len(workload.pods) < workload.min_pods and PodState.PENDING in states:
        return sentences.to_be_made(workload)
    return None


def _has_minimum(ledger: Ledger, workload: Workload) -> bool:
    count = sum(ledger.stays(workload, pod) or pod.state is PodState.SUCCEEDED for pod in workload.pods)
    return count >= workload.min_pods
