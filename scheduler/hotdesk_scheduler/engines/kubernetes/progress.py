"""From what is seen of a pod to the next value of the core's: the engine's transitions in one place. Pure."""

from __future__ import annotations

from dataclasses import replace

from hotdesk_scheduler.core.model import HOLDING, Pod, PodState, Workload
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines import transitions
from hotdesk_scheduler.engines.kubernetes.observe import Life, Seen

NODE_LOST = Reason(ReasonCode.NODE_LOST, "Its node was lost.")
_DELETED = Reason(ReasonCode.PROCESS_LOST, "Its pod was deleted by somebody else.")
_BEING_DELETED = Reason(ReasonCode.PROCESS_LOST, "Its pod is being deleted by somebody else.")


def after(pod: Pod, seen: Seen | None, now: float) -> Pod:
    """The pod when it was last seen so (None: it is gone), or the same object if that is no news. `seen` is of this attempt."""
    if pod.state not in HOLDING:
        return pod
    if seen is None:
        return _gone(pod, now)
    if seen.life in (Life.SUCCEEDED, Life.FAILED, Life.FADED):
        return _ended(pod, seen, now)
    if pod.state is PodState.RELEASING:
        return pod
    if seen.leaving:
        return replace(pod, state=PodState.RELEASING, stop_reason=seen.why or _BEING_DELETED, release_deadline=now)
    if seen.life is Life.STUCK and pod.state is PodState.STARTING:
        return replace(pod, state=PodState.RELEASING, stop_reason=seen.why, release_deadline=now)
    if seen.life is Life.RUNNING and pod.state is PodState.STARTING:
        return replace(pod, state=PodState.RUNNING)
    return pod


def lost_with_node(pod: Pod, now: float) -> Pod:
    return _end(pod, PodState.LOST, now, NODE_LOST)


def refused(pod: Pod, sentence: str, now: float) -> Pod:
    """The API server would not have it."""
    return _end(pod, PodState.FAILED, now, Reason(ReasonCode.ENGINE_ERROR, sentence))


def is_stuck(pod: Pod) -> bool:
    """It is taken down because it could not start, which counts as a failure and not as a stop of ours."""
    return pod.state is PodState.RELEASING and pod.stop_reason is not None and pod.stop_reason.code is ReasonCode.IMAGE_OR_VOLUME_ERROR


def kind_of(pod: Pod) -> str:
    """What the change to this pod is called."""
    kinds = {PodState.RUNNING: "started", PodState.STOPPED: "released", PodState.LOST: "lost"}
    ended = pod.state in (PodState.SUCCEEDED, PodState.FAILED)
    return kinds.get(pod.state, "exited" if ended else "updated")


def changed_workload(workload: Workload, pod: Pod, now: float) -> Workload:
    """Ends are counted (transitions.ended); everything else only changes the pod."""
    return transitions.ended(workload, pod, now) if transitions.has_ended(pod) else transitions.with_pod(workload, pod, now)


def _released(pod: Pod) -> PodState:
    """FAILED, which is tried again after a pause, if it could not start."""
    refused = pod.stop_reason is not None and pod.stop_reason.code is ReasonCode.START_REFUSED
    return PodState.FAILED if is_stuck(pod) or refused else PodState.STOPPED


def _gone(pod: Pod, now: float) -> Pod:
    if pod.state is PodState.RELEASING:
        return _end(pod, _released(pod), now, pod.stop_reason)
    return _end(pod, PodState.LOST, now, _DELETED)


def _ended(pod: Pod, seen: Seen, now: float) -> Pod:
    at = seen.ended_at or now
    if pod.state is PodState.RELEASING:
        return _end(pod, _released(pod), at, pod.stop_reason, exit_code=seen.exit_code)
    if seen.life is Life.FADED:
        return _end(pod, PodState.LOST, at, seen.why, exit_code=seen.exit_code)
    state = PodState.SUCCEEDED if seen.life is Life.SUCCEEDED else PodState.FAILED
    return _end(pod, state, at, seen.why or transitions.of_before(pod), exit_code=seen.exit_code)


def _end(pod: Pod, state: PodState, at: float, reason: Reason | None, *, exit_code: int | None = None) -> Pod:
    return replace(pod, state=state, ended_at=at, exit_code=exit_code, release_deadline=None, stop_reason=reason)
