"""What becomes of workloads apart from placement: retries, completions, time limits, ends, clean-up. Decided here once, for every engine.

`review` looks at a snapshot and says what is due; applying it and reviewing again comes to rest. `failures` of a workload counts its
pods that ended FAILED and `succeeded` its completions; the engine counts both when it happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hotdesk_scheduler.core.model import HOLDING, Kind, Phase, Pod, PodState, Policy, Project, Snapshot, Workload
from hotdesk_scheduler.core.plan import Finish, LifecycleDecision, Remove, Requeue, Stop
from hotdesk_scheduler.core.reasons import Reason, ReasonCode

BACKOFF_FIRST_S = 10.0
BACKOFF_MOST_S = 300.0
RUNS = frozenset({PodState.STARTING, PodState.RUNNING})
ENDED = frozenset({PodState.SUCCEEDED, PodState.FAILED, PodState.STOPPED, PodState.LOST})
STARTED_NEVER = frozenset({ReasonCode.ENGINE_ERROR, ReasonCode.IMAGE_OR_VOLUME_ERROR, ReasonCode.START_REFUSED})
FINAL = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.TIMED_OUT, Phase.STOPPED})


def review(snapshot: Snapshot, policy: Policy, now: float) -> tuple[LifecycleDecision, ...]:
    """What is due now, workload by workload (oldest first)."""
    projects = {project.name: project for project in snapshot.projects}
    ready = frozenset(node.name for node in snapshot.nodes if node.ready)
    decisions: list[LifecycleDecision] = []
    stirring = [w for w in snapshot.workloads if not is_quiet(w, projects.get(w.project))]
    for workload in sorted(stirring, key=lambda w: (w.created_at, w.name, w.id)):
        if workload.phase is Phase.ACTIVE:
            decisions.extend(_active(workload, projects.get(workload.project), ready, policy=policy, now=now))
        else:
            decisions.extend(_inactive(workload, policy=policy, now=now))
    return tuple(decisions)


def is_quiet(workload: Workload, project: Project | None) -> bool:
    """Most workloads most of the time: waiting, or started with no limit in time; nothing can be due for them, whatever the time."""
    if workload.phase is not Phase.ACTIVE or workload.completions is not None or workload.kind is Kind.WORKSPACE:
        return False
    pods = workload.pods
    if not pods or workload.min_pods > len(pods):
        return False
    if all(pod.state is PodState.PENDING for pod in pods):
        return True
    return all(pod.state in RUNS for pod in pods) and _time_limit(workload, project) is None and workload.idle_s is None


# --- workloads that are no longer scheduled --------------------------------------------------------------------------------------------


def _inactive(workload: Workload, *, policy: Policy, now: float) -> Iterator[LifecycleDecision]:
    """Whatever still runs of it is stopped; a deleted one is forgotten when nothing holds, a finished one when its time is over."""
    if any(pod.state in HOLDING for pod in workload.pods):
        reason = workload.phase_reason or _reason_of(workload.phase)
        yield from _stops(workload, reason, policy)
    elif workload.phase is Phase.DELETING or _expires_at(workload, now) <= now:
        yield Remove(workload.id)


def _expires_at(workload: Workload, now: float) -> float:
    if workload.phase not in FINAL or workload.ttl_after_finish_s is None:
        return float("inf")
    return (now if workload.finished_at is None else workload.finished_at) + workload.ttl_after_finish_s


def _reason_of(phase: Phase) -> Reason:
    if phase is Phase.SUSPENDED:
        return Reason(ReasonCode.SUSPENDED, "It was suspended by its owner; resume it to queue it again.")
    if phase is Phase.DELETING:
        return Reason(ReasonCode.OWNER_DELETED, "It was deleted by its owner.")
    return Reason(ReasonCode.OWNER_STOPPED, "The workload has ended; what was left of it is stopped.")


def _stops(workload: Workload, reason: Reason, policy: Policy) -> Iterator[Stop]:
    for pod in workload.pods:
        if pod.state in RUNS:
            yield Stop(workload.id, pod.index, reason, policy.grace_s)


# --- workloads that are scheduled ------------------------------------------------------------------------------------------------------


def _active(
    workload: Workload, project: Project | None, ready: frozenset[str], *, policy: Policy, now: float
) -> Iterator[LifecycleDecision]:
    limit = _time_is_up(workload, project, policy=policy, now=now)
    if limit:
        phase, reason = limit
        yield from _stops(workload, reason, policy)
        yield Finish(workload.id, phase, reason)
        return
    end = _ended(workload)
    if end:
        yield from _stops(workload, end.reason or _reason_of(Phase.STOPPED), policy)
        yield end
        return
    broken = _broken_by_lost_node(workload, ready)
    if broken:
        yield from _stops(workload, broken, policy)
    yield from _requeues(workload, now)


def _ended(workload: Workload) -> Finish | None:
    """Whether the workload as a whole has come to its end."""
    pods = workload.pods
    states = [pod.state for pod in pods]
    if workload.completions is not None:
        if workload.succeeded >= workload.completions:
            return Finish(workload.id, Phase.SUCCEEDED, None)
    elif pods and all(state is PodState.SUCCEEDED for state in states):
        return Finish(workload.id, Phase.SUCCEEDED, None)
    if workload.kind is Kind.WORKSPACE:
        return _workspace_ended(workload)
    if PodState.FAILED in states and workload.failures > retries(workload):
        return Finish(workload.id, Phase.FAILED, _failed(workload))
    return None


def _workspace_ended(workload: Workload) -> Finish | None:
    """A workspace is started again by its owner, never by us."""
    for pod in workload.pods:
        if pod.state is PodState.FAILED:
            return Finish(workload.id, Phase.FAILED, _failed(workload))
        if pod.state in (PodState.STOPPED, PodState.LOST):
            lost = Reason(ReasonCode.PROCESS_LOST, "Its server vanished without a word; start it again from the hub.")
            stopped = Reason(ReasonCode.OWNER_STOPPED, "Its server was stopped.")
            return Finish(workload.id, Phase.STOPPED, pod.stop_reason or (lost if pod.state is PodState.LOST else stopped))
    return None


def retries(workload: Workload) -> int:
    """How many failed pods a workload may have before it fails; interactive work is not tried again."""
    return 0 if workload.kind in (Kind.INTERACTIVE, Kind.WORKSPACE) else workload.backoff_limit


def _failed(workload: Workload) -> Reason:
    failed = [pod for pod in workload.pods if pod.state is PodState.FAILED]
    codes = sorted({pod.exit_code for pod in failed if pod.exit_code is not None})
    words, limit = failure(failed), retries(workload)
    if not limit:
        return Reason(ReasonCode.EXITED, f"{words} Its logs say why.", tuple(("exit_code", code) for code in codes[:1]))
    times = {1: "once", 2: "twice"}.get(workload.failures, f"{workload.failures} times")
    allowed = "retry is" if limit == 1 else "retries are"
    tried = f"{words} It failed {times}, and {limit} {allowed} allowed (--backoff-limit). Its logs say why."
    return Reason(ReasonCode.RETRIES_SPENT, tried, (("failures", workload.failures), ("limit", limit)))


def failure(failed: Iterable[Pod]) -> str:
    """How failed pods ended, in a sentence: what the engine says, else the exit code."""
    failed = tuple(failed)
    if told := next((pod.stop_reason for pod in failed if pod.stop_reason and pod.stop_reason.code in STARTED_NEVER), None):
        return told.sentence if told.sentence.endswith((".", "!", "?")) else f"{told.sentence}."
    codes = sorted({pod.exit_code for pod in failed if pod.exit_code is not None})
    return f"It ended with exit code {codes[0]}." if codes else "It failed."


def _requeues(workload: Workload, now: float) -> Iterator[Requeue]:
    open_pods = sum(pod.state is not PodState.SUCCEEDED for pod in workload.pods)
    for pod in workload.pods:
        if pod.state in (PodState.STOPPED, PodState.LOST):
            yield Requeue(workload.id, pod.index)
        elif pod.state is PodState.FAILED:
            if retry_at(workload, pod) <= now:
                yield Requeue(workload.id, pod.index)
        elif pod.state is PodState.SUCCEEDED and (workload.completions or 0) - workload.succeeded > open_pods:
            open_pods += 1
            yield Requeue(workload.id, pod.index)


def retry_at(workload: Workload, pod: Pod) -> float:
    """When a failed pod is tried again."""
    return (pod.ended_at or 0.0) + pause_s(workload, pod)


def pause_s(workload: Workload, pod: Pod) -> float:
    """Between a failure, or a start that was refused, and the next try: 10 s after the first, doubling to at most 300 s."""
    times = times_refused(pod) or workload.failures
    return min(BACKOFF_MOST_S, BACKOFF_FIRST_S * (1 << min(10, max(0, times - 1))))


def times_refused(pod: Pod) -> int:
    """How often in a row the cluster would not make it, which is no failure of its own."""
    if pod.stop_reason is None or pod.stop_reason.code is not ReasonCode.START_REFUSED:
        return 0
    times = dict(pod.stop_reason.numbers).get("times")
    return times if isinstance(times, int) else 1


def _broken_by_lost_node(workload: Workload, ready: frozenset[str]) -> Reason | None:
    """A gang one of whose nodes was lost stops at once: what is left of it cannot go on (scheduling.md 2)."""
    left = sum(pod.state in RUNS or pod.state is PodState.SUCCEEDED for pod in workload.pods)
    if left >= workload.min_pods or not any(pod.state in RUNS for pod in workload.pods):
        return None
    if not workload.lost_node and not any(_lost_with_node(pod, ready) for pod in workload.pods):
        return None
    sentence = f"A node of this gang was lost and {left} of at least {workload.min_pods} pods are left; all of it starts again together."
    return Reason(ReasonCode.NODE_LOST, sentence, (("left", left), ("min_pods", workload.min_pods)))


def _lost_with_node(pod: Pod, ready: frozenset[str]) -> bool:
    if pod.state is not PodState.LOST:
        return False
    if pod.stop_reason and pod.stop_reason.code is ReasonCode.NODE_LOST:
        return True
    return pod.placement is not None and pod.placement.node not in ready


# --- limits in time --------------------------------------------------------------------------------------------------------------------


def _time_is_up(workload: Workload, project: Project | None, *, policy: Policy, now: float) -> tuple[Phase, Reason] | None:
    running_since = min((p.started_at for p in workload.pods if p.state in RUNS and p.started_at is not None), default=None)
    if running_since is None:
        return None
    untaken = _not_taken_up_at(workload, policy)
    if untaken is not None and untaken <= now:
        sentence = f"Its place was granted and not taken up within {policy.grant_take_up_s:.0f} s, so it was given back."
        return Phase.STOPPED, Reason(ReasonCode.GRANT_NOT_TAKEN_UP, sentence)
    limit = _time_limit(workload, project)
    if limit is not None and running_since + limit <= now:
        sentence = f"Project {workload.project} stops interactive work after {limit:.0f} s; resume it to start it again."
        return Phase.TIMED_OUT, Reason(ReasonCode.TIME_LIMIT, sentence, (("limit_s", int(limit)),))
    idle = _idle_limit(workload, project)
    if idle is not None and workload.idle_s is not None and workload.idle_s >= idle:
        allowed = f"project {workload.project} allows {idle:.0f} s"
        sentence = f"It did not use its GPU for {workload.idle_s:.0f} s; {allowed}. Resume it to start it again."
        return Phase.STOPPED, Reason(ReasonCode.IDLE_LIMIT, sentence, (("limit_s", int(idle)),))
    return None


def _not_taken_up_at(workload: Workload, policy: Policy) -> float | None:
    if workload.kind is not Kind.WORKSPACE:
        return None
    since = [p.started_at for p in workload.pods if p.state is PodState.STARTING and p.started_at is not None]
    return min(since) + policy.grant_take_up_s if since else None


def _time_limit(workload: Workload, project: Project | None) -> float | None:
    interactive = workload.kind in (Kind.INTERACTIVE, Kind.WORKSPACE)
    return project.interactive_time_limit_s if project and interactive else None


def _idle_limit(workload: Workload, project: Project | None) -> float | None:
    """None while there are no samples: missing activity is unknown, never idle."""
    if project is None or workload.idle_s is None:
        return None
    if workload.kind not in (Kind.INTERACTIVE, Kind.WORKSPACE):
        return project.idle_limit_train_s
    return project.idle_limit_preemptible_s if workload.preemptible else project.idle_limit_interactive_s


def waited_long_at(workload: Workload, policy: Policy) -> float | None:
    """When it has waited for so long that nodes are kept for it (since it was submitted, or since it ran last); None: they never are."""
    if policy.reserve_after_s is None:
        return None
    waits_since = max((pod.ended_at for pod in workload.pods if pod.ended_at is not None), default=workload.created_at)
    return max(waits_since + policy.reserve_after_s, workload.created_at + policy.preemption_delay_s)


def times(workload: Workload, project: Project | None, policy: Policy) -> Iterator[float]:
    """When something is due for it although nothing changes: ends and limits in time, retries, and when nodes are kept for it."""
    if workload.phase is not Phase.ACTIVE:
        if workload.finished_at is not None and (expires := _expires_at(workload, workload.finished_at)) != float("inf"):
            yield expires
        return
    if any(pod.state is PodState.PENDING for pod in workload.pods) and (at := waited_long_at(workload, policy)) is not None:
        yield at
    for pod in workload.pods:
        if pod.state is PodState.FAILED:
            yield retry_at(workload, pod)
        elif pod.state in RUNS and pod.started_at is not None:
            if (limit := _time_limit(workload, project)) is not None:
                yield pod.started_at + limit
            if policy.min_runtime_s:
                yield pod.started_at + policy.min_runtime_s
        elif pod.state is PodState.PENDING and policy.preemption_delay_s:
            yield workload.created_at + policy.preemption_delay_s
    if (untaken := _not_taken_up_at(workload, policy)) is not None:
        yield untaken
    if (since := short_of_gang_since(workload)) is not None:
        yield since + policy.stale_grace_s


def short_of_gang_since(workload: Workload) -> float | None:
    """Since when a partly running gang lacks its minimum; None if it does not, or runs not at all."""
    runs = sum(pod.state in RUNS for pod in workload.pods)
    done = sum(pod.state is PodState.SUCCEEDED for pod in workload.pods)
    if not runs or runs + done >= workload.min_pods:
        return None
    if workload.short_of_gang_since is not None:
        return workload.short_of_gang_since
    return max((p.ended_at for p in workload.pods if p.state not in RUNS and p.ended_at is not None), default=None)


# --- what people see -------------------------------------------------------------------------------------------------------------------

_FINAL_WORDS = {
    Phase.SUCCEEDED: "Succeeded",
    Phase.FAILED: "Failed",
    Phase.TIMED_OUT: "TimedOut",
    Phase.STOPPED: "Stopped",
    Phase.SUSPENDED: "Suspended",
}


def status(workload: Workload) -> str:
    """The word people see (`hotdesk_api.models.Status`)."""
    states = {pod.state for pod in workload.pods}
    if workload.phase is Phase.DELETING:
        return "Deleting"
    if workload.phase is not Phase.ACTIVE:
        return "Terminating" if states & HOLDING else _FINAL_WORDS[workload.phase]
    if PodState.RUNNING in states:
        return "Running"
    if PodState.STARTING in states:
        return "ContainerCreating"
    if PodState.RELEASING in states:
        return "Terminating"
    return "Pending"
