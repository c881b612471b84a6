"""Whether what a hold says would help does help: every advice of a plan at rest is applied, and the workload has to start."""

from __future__ import annotations

from dataclasses import replace

from hotdesk_scheduler.core.advice import Advice, HelpKind, applied, sentence
from hotdesk_scheduler.core.decide import decide
from hotdesk_scheduler.core.model import Phase, PodState, Policy, Snapshot, Workload
from hotdesk_scheduler.core.plan import Hold, Plan, Start


def useless_advice(snapshot: Snapshot, policy: Policy, now: float, plan: Plan) -> list[str]:
    """Sentences that promise too much. Plans that still change something are not judged: their advice is about what comes next."""
    if any(not isinstance(decision, Hold) for decision in plan.decisions):
        return []
    return [
        f"{hold.workload_id}: {hold.reason.sentence} ({sentence((advice,), in_turn=False)})"
        for hold in plan.decisions
        if isinstance(hold, Hold)
        for advice in hold.helps
        if not helps(snapshot, policy, now, hold.workload_id, advice)
    ]


def helps(snapshot: Snapshot, policy: Policy, now: float, workload_id: str, advice: Advice) -> bool:
    """Whether it starts in the next cycle once the advice is followed and it is its turn."""
    after = in_its_turn(applied(snapshot, workload_id, advice), workload_id)
    later = now + sum(help_.amount for help_ in advice if help_.kind is HelpKind.WAIT)
    started = {d.workload_id for d in decide(after, policy, later).decisions if isinstance(d, Start)}
    waits_for_victims = any(help_.kind is HelpKind.WAIT for help_ in advice)
    held = {d.workload_id for d in decide(after, policy, later).decisions if isinstance(d, Hold) and not d.reason.code.endswith("release")}
    return workload_id in started or (waits_for_victims and workload_id not in held)


def in_its_turn(snapshot: Snapshot, workload_id: str) -> Snapshot:
    """Nobody else waits."""
    return replace(snapshot, workloads=tuple(w if w.id == workload_id else _content(w) for w in snapshot.workloads))


def _content(workload: Workload) -> Workload:
    if all(pod.state is PodState.PENDING for pod in workload.pods) and workload.phase is Phase.ACTIVE:
        return replace(workload, phase=Phase.SUSPENDED)
    return replace(workload, pods=tuple(pod for pod in workload.pods if pod.state is not PodState.PENDING))
