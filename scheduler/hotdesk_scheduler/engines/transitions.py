"""What happens to a workload's values when its pods start, end and wait again: counted here once, so that engines agree. Pure."""

from __future__ import annotations

from dataclasses import replace

from hotdesk_scheduler.core.lifecycle import STARTED_NEVER, times_refused
from hotdesk_scheduler.core.model import HOLDING, Phase, Placement, Pod, PodState, Workload
from hotdesk_scheduler.core.reasons import Reason, ReasonCode

FINAL = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.TIMED_OUT, Phase.STOPPED})


def has_ended(pod: Pod) -> bool:
    return pod.state not in HOLDING and pod.state is not PodState.PENDING


def with_pod(workload: Workload, pod: Pod, now: float) -> Workload:
    """The workload with this pod in place of the one of its index; since when it is short of its gang is kept up to date."""
    pods = tuple(pod if one.index == pod.index else one for one in workload.pods)
    return _watched(replace(workload, pods=pods), now)


def with_another(workload: Workload, pod: Pod, now: float) -> Workload:
    """With one pod more, where others make the pods."""
    return _watched(replace(workload, pods=(*workload.pods, pod)), now)


def without(workload: Workload, index: int, now: float) -> Workload:
    """Without a pod that is gone for good."""
    return _watched(replace(workload, pods=tuple(pod for pod in workload.pods if pod.index != index)), now)


def started(pod: Pod, placement: Placement, now: float) -> Pod:
    return replace(pod, state=PodState.STARTING, placement=placement, nominated=None, started_at=now)


def of_before(pod: Pod) -> Reason | None:
    """What a pod that ends by itself still says of earlier stops: who took its place, but not why another attempt never started."""
    why = pod.stop_reason
    return None if why is not None and why.code in STARTED_NEVER else why


def ended(workload: Workload, pod: Pod, now: float) -> Workload:
    """With a pod that has just ended: failures and completions are counted when they happen (core/lifecycle).

    One that the cluster would not make for long did not fail by itself.
    """
    if pod.state is PodState.FAILED and (pod.stop_reason is None or pod.stop_reason.code is not ReasonCode.START_REFUSED):
        workload = replace(workload, failures=workload.failures + 1)
    elif pod.state is PodState.SUCCEEDED and workload.completions is not None:
        workload = replace(workload, succeeded=workload.succeeded + 1)
    return with_pod(workload, pod, now)


def again(pod: Pod) -> Pod:
    """Pending once more, under the next attempt; when and why it stopped stays on record: since then it waits."""
    return Pod(pod.index, pod.request, attempt=pod.attempt + 1, ended_at=pod.ended_at, stop_reason=pod.stop_reason, nominated=pod.nominated)


def start_refused(pod: Pod, sentence: str) -> Reason:
    """The cluster would not make it for long; how often in a row says when it is tried again (core/lifecycle)."""
    return Reason(ReasonCode.START_REFUSED, sentence, (("times", times_refused(pod) + 1),))


def in_phase(workload: Workload, phase: Phase, reason: Reason | None, now: float) -> Workload:
    """ACTIVE makes ended pods pending, which wait from now on, and forgets old failures; every other phase gives up kept places."""
    workload = replace(workload, phase=phase, phase_reason=reason, finished_at=now if phase in FINAL else None)
    if phase is Phase.ACTIVE:
        pods = (again(pod) if has_ended(pod) else pod for pod in workload.pods)
        return replace(workload, failures=0, pods=tuple(replace(p, ended_at=now) if p.state is PodState.PENDING else p for p in pods))
    return replace(workload, pods=tuple(replace(pod, nominated=None) for pod in workload.pods))


def _watched(workload: Workload, now: float) -> Workload:
    if len(workload.pods) == 1 and workload.min_pods <= 1:
        return workload
    runs = sum(pod.state in (PodState.STARTING, PodState.RUNNING) for pod in workload.pods)
    done = sum(pod.state is PodState.SUCCEEDED for pod in workload.pods)
    short = bool(runs) and runs + done < workload.min_pods
    if short == (workload.short_of_gang_since is not None):
        return workload
    return replace(workload, short_of_gang_since=now if short else None)
