"""Why what waits is waiting: one Hold for each workload that has not its minimum, with its place in the queue (scheduling.md 6).

A sentence says first what stands in the way, naming who holds what, then what would help. Equal requests of one project get the same
sentence, so it is made once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hotdesk_scheduler.core import advice, lack, limits, sentences, unsuitable
from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.advice import Advice, Help, HelpKind
from hotdesk_scheduler.core.allocate import fit, minimum_runs
from hotdesk_scheduler.core.lack import Cluster
from hotdesk_scheduler.core.ledger import Ledger, Seat
from hotdesk_scheduler.core.model import Phase, PodState, Workload
from hotdesk_scheduler.core.order import Line
from hotdesk_scheduler.core.plan import Hold
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.core.remedies import Remedies
from hotdesk_scheduler.core.requests import Request, Requests, is_placed
from hotdesk_scheduler.core.rooms import NOW
from hotdesk_scheduler.core.turns import may_evict


@dataclass(frozen=True, slots=True)
class Told:
    """A reason whose sentence has the advice in it, and that advice."""

    reason: Reason
    helps: tuple[Advice, ...] = ()


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


def _with_kept(told: Told, nodes: tuple[str, ...]) -> Told:
    """With the nodes that are kept for it."""
    return replace(told, reason=replace(told.reason, sentence=f"{told.reason.sentence} {sentences.kept_for_it(nodes)}"))


def fits(ledger: Ledger, request: Request) -> bool:
    """Whether it would start at once, were it allowed there."""
    checkpoint = ledger.checkpoint()
    found = limits.may_start(request) and fit(ledger, request)
    ledger.rollback(checkpoint)
    return found


def _names(seats: list[Seat]) -> tuple[tuple[str, str, str], ...]:
    return tuple(sorted({(s.workload.id, s.workload.name, s.workload.project) for s in seats}, key=lambda entry: entry[1:]))


def holds(ledger: Ledger, requests: Requests) -> list[Hold]:
    """Holds in the order of the queue: what waits for a release first, then the line, then what is in no line."""
    found: list[Hold] = []
    seen: set[str] = set()
    started = {key[0] for key in ledger.decisions if key[2] == "start"}

    def hold(workload_id: str, told: Told) -> None:
        if workload_id not in seen and workload_id not in started:
            seen.add(workload_id)
            found.append(Hold(workload_id, told.reason, len(found) + 1, told.helps))

    leaving: dict[int, list[Seat]] = {}
    for seat in ledger.seats.values() if ledger.nominated else ():
        if seat.rooms == NOW:
            leaving.setdefault(seat.spot.order, []).append(seat)
    for seat in sorted(ledger.nominated.values(), key=lambda s: (s.workload.created_at, s.workload.name, s.pod.index)):
        if seat.pod.state is PodState.PENDING and seat.workload.id not in seen and not _has_minimum(ledger, seat.workload):
            others = [s for s in leaving.get(seat.spot.order, ()) if s.workload.id != seat.workload.id]
            release = Help(HelpKind.RELEASE, workloads=_names(others))
            hold(seat.workload.id, Told(sentences.waiting_for_release(seat, others), ((release,),) if others else ()))
    why: dict[tuple[str, int, bool], Told] = {}
    line = waiting_line(ledger, requests)
    advisor = Advisor(ledger, others_wait=len(line) > 1)
    for request in line:
        if request.workload.id in seen:
            continue
        key = (request.account.name, request.shape, may_evict(ledger, request))
        if key not in why:
            why[key] = advisor.told(request)
        kept = requests.kept.get(request.workload.id)
        hold(request.workload.id, _with_kept(why[key], kept) if kept else why[key])
    outside = [(w, reason) for w in ledger.snapshot.workloads if w.id not in seen and (reason := _outside(ledger, w))]
    for workload, reason in sorted(outside, key=lambda entry: (entry[0].created_at, entry[0].name, entry[0].id)):
        hold(workload.id, Told(reason))
    return found


def waiting_line(ledger: Ledger, requests: Requests) -> list[Request]:
    """What still lacks its minimum, in the order in which it would start if room came: each is charged as if it had started."""

    surplus = {request.workload.id for waiting in requests.by_project.values() for request in waiting if request.surplus}
    every = (request for waiting in requests.by_project.values() for request in waiting) if surplus else ()
    whole = {request.workload.id for request in every if not request.surplus}

    placed = bool(ledger.decisions or ledger.nominated)

    def not_waiting(request: Request) -> bool:
        """More pods than the minimum do not wait, unless the place that was kept for the minimum went to others in this cycle."""
        spare = request.surplus and (request.workload.id in whole or minimum_runs(ledger, request))
        return spare or (placed and is_placed(ledger, request))

    sums = [(account, list(account.allocated)) for account in {id(a): a for p in ledger.projects.values() for a in p.path}.values()]
    line: list[Request] = []
    for request in Line(requests.by_project, None, not_waiting if placed or surplus else None):
        line.append(request)
        request.account.charge(request.ask, False, 1)
    for account, allocated in sums:
        account.allocated[:] = allocated
    return line


def reason_for(cluster: Cluster, request: Request) -> Reason:
    """The main reason a request does not start, as the ledger stands after the cycle."""
    if request.kept_for:
        wished = replace(request, eligible=request.wished or request.eligible, kept_for=None, shape=-request.shape)
        return sentences.kept(request, request.kept_for, cluster.ledger) if fits(cluster.ledger, wished) else reason_for(cluster, wished)
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
    if not may_evict(cluster.ledger, request):
        return sentences.too_young(request, cluster.ledger)
    return lack.no_room(cluster, request)


def _outside(ledger: Ledger, workload: Workload) -> Reason | None:
    """Reasons of workloads that are in no line: unknown project, own pods still stopping, waiting to be tried again."""
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
    return None


def _has_minimum(ledger: Ledger, workload: Workload) -> bool:
    count = sum(ledger.stays(workload, pod) or pod.state is PodState.SUCCEEDED for pod in workload.pods)
    return count >= workload.min_pods
