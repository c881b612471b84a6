"""Writes chosen victims into the plan: they leave, the request takes their place, and each stop says by whom and why."""

from __future__ import annotations

from collections import Counter

from hotdesk_scheduler.core.choice import Search, Units
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.model import PodState, Workload
from hotdesk_scheduler.core.plan import Stop
from hotdesk_scheduler.core.quantities import GPU, MEMORY, RESOURCE_NAMES, UNLIMITED, amount_words, gpus
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.core.requests import Request
from hotdesk_scheduler.core.victims import Unit

WHOLE = "It is queued again and keeps its place by age."
ONE_POD = "Only this pod stops and is queued again; the rest goes on."


def _carry_out(search: Search, units: Units) -> None:
    """Vacate, place, and remember that stops stand behind this workload, so that nothing takes it back in this plan."""
    search.vacate(units)
    if not search.fits():
        raise AssertionError(f"victims for {search.request.workload.name} do not make room")
    if search.moves or any(not unit.started_now for unit in units):
        search.ledger.beneficiaries.add(search.request.workload.id)


def commit_reclaim(search: Search, units: Units) -> None:
    """Stop them for another project's request; the sentence has both shares before and after."""
    ledger, request = search.ledger, search.request
    r = GPU if request.ask[GPU] else request.asked[0]
    mine = request.account
    before = {unit.account.name: unit.account.allocated[r] for unit in units}
    mine_before = mine.allocated[r]
    _carry_out(search, units)
    pods = _surplus_pods(units)
    for unit in units:
        theirs = unit.account
        numbers: dict[str, int | str] = {
            "by": mine.name,
            "for": request.workload.name,
            "resource": RESOURCE_NAMES[r],
            "before": before[theirs.name],
            "after": theirs.allocated[r],
            "share": _finite(theirs.share[r]),
            "by_before": mine_before,
            "by_after": mine.allocated[r],
            "by_share": _finite(mine.share[r]),
            **pods.get(unit.workload.id, {}),
        }
        sentence = (
            f"Reclaimed by project {mine.name} for {request.workload.name}: {theirs.name} held {amount_words(before[theirs.name], r)}, "
            f"may have {_bare(theirs.share[r], r)} and goes back to {_bare(theirs.allocated[r], r)}; {mine.name} goes from "
            f"{_bare(mine_before, r)} to {_bare(mine.allocated[r], r)} of the {_bare(mine.share[r], r)} it may have. "
            f"{ONE_POD if 'pods' in numbers else WHOLE}"
        )
        _record(ledger, unit, Reason(ReasonCode.RECLAIMED, sentence, tuple(sorted(numbers.items()))), request)


def commit_preempt(search: Search, units: Units) -> None:
    """Stop them for more important work of their own project."""
    ledger, request = search.ledger, search.request
    _carry_out(search, units)
    pods = _surplus_pods(units)
    for unit in units:
        sentence = (
            f"Preempted by {request.workload.name} of the same project, which has priority {request.workload.priority} "
            f"(this has {unit.workload.priority}). {ONE_POD if unit.workload.id in pods else WHOLE}"
        )
        numbers: dict[str, int | str] = {
            "by": request.workload.name,
            "by_priority": request.workload.priority,
            "priority": unit.workload.priority,
            **pods.get(unit.workload.id, {}),
        }
        _record(ledger, unit, Reason(ReasonCode.PREEMPTED, sentence, tuple(sorted(numbers.items()))), request)


def _surplus_pods(units: Units) -> dict[str, dict[str, int]]:
    """How many pods go of the workloads that go on with the others."""
    whole = {unit.workload.id for unit in units if not unit.surplus}
    found = Counter(unit.workload.id for unit in units for _ in unit.seats if unit.workload.id not in whole)
    return {workload_id: {"pods": count} for workload_id, count in found.items()}


def _record(ledger: Ledger, unit: Unit, reason: Reason, request: Request) -> None:
    for seat in unit.seats:
        ledger.record_stop(seat, reason, request.workload.id)


def _finite(amount: int) -> int | str:
    return "unlimited" if amount >= UNLIMITED else amount


def _bare(amount: int, r: int) -> str:
    """The amount without its unit."""
    return str(amount) if r == MEMORY and amount < UNLIMITED else gpus(amount)


def note_protection(ledger: Ledger, request: Request, units: Units | None) -> None:
    """Remember for the hold that only the minimum run time of these stands in the way."""
    if units:
        until = max((unit.protected_until(ledger) or 0.0) for unit in units)
        names = tuple(sorted(f"{unit.workload.name} of {unit.workload.project}" for unit in units))
        ledger.protected[request.account.name, request.shape] = (until, names)


def stop_stale_gangs(ledger: Ledger) -> None:
    """Fewer than the minimum alive for longer than the grace: the rest is stopped and queued again, non-preemptible too."""
    for workload in sorted(ledger.short_gangs.values(), key=lambda w: (w.created_at, w.name, w.id)):
        if _is_stale(ledger, workload):
            _stop_stale(ledger, workload)


def _is_stale(ledger: Ledger, workload: Workload) -> bool:
    since = workload.short_of_gang_since
    if since is None:
        return False
    staying = sum(ledger.stays(workload, pod) for pod in workload.pods)
    kept = sum((workload.id, pod.index) in ledger.nominated for pod in workload.pods)
    done = sum(pod.state is PodState.SUCCEEDED for pod in workload.pods)
    return staying > 0 and staying + kept + done < workload.min_pods and ledger.now >= since + ledger.policy.stale_grace_s


def _stop_stale(ledger: Ledger, workload: Workload) -> None:
    alive = [ledger.seats[workload.id, pod.index] for pod in workload.pods if ledger.stays(workload, pod)]
    sentence = (
        f"{len(alive)} of at least {workload.min_pods} pods have been alive for more than {ledger.policy.stale_grace_s:.0f} s and the rest "
        "found no place; all of it is stopped and queued again to start together."
    )
    reason = Reason(ReasonCode.STALE_GANG, sentence, (("alive", len(alive)), ("min_pods", workload.min_pods)))
    for seat in alive:
        ledger.vacate(seat)
        if not seat.started_now:
            stop = Stop(workload.id, seat.pod.index, reason, ledger.policy.grace_s, None)
            ledger.decide((workload.id, seat.pod.index, "stop"), stop)
