"""Decisions as `--trace` and `--json` show them, of `simulate` and of `replay` alike: one line each, with its reason.

cycle 3 stop b2-0 on n1 {"whole": 1} for a4: reclaimed: Team a takes back …
"""

from __future__ import annotations

import json
from collections.abc import Callable

from hotdesk_scheduler.core.model import Placement, Workload
from hotdesk_scheduler.core.plan import Decision, Finish, Hold, LifecycleDecision, Move, Nominate, Remove, Requeue, Start, Stop
from hotdesk_scheduler.core.reasons import Reason
from hotdesk_scheduler.expectations import Json, gpu_out, reason_out

Find = Callable[[str], Workload | None]

QUIET = frozenset({"nominate", "requeue", "finish", "remove"})
"""Kinds that `simulate --json` leaves out: its form is fixed (start, stop, move, hold)."""


def described(cycle: int, decision: Decision | LifecycleDecision, find: Find) -> Json:
    """A decision in the words of `simulate --json`; `find` gives workloads by id as they were when it was taken."""
    match decision:
        case Start():
            return _entry(cycle, "start", decision, find, place=decision.placement)
        case Stop():
            pod = _pod_place(decision, find)
            return _entry(cycle, "stop", decision, find, place=pod, reason=decision.reason, beneficiary=decision.beneficiary)
        case Move():
            return _entry(cycle, "move", decision, find, place=decision.placement, reason=decision.reason, beneficiary=decision.beneficiary)
        case Nominate():
            return _entry(cycle, "nominate", decision, find, place=decision.placement)
        case Hold():
            return _entry(cycle, "hold", decision, find, reason=decision.reason)
        case Requeue():
            return _entry(cycle, "requeue", decision, find)
        case Finish():
            return {**_entry(cycle, "finish", decision, find, reason=decision.reason), "phase": decision.phase}
        case Remove():
            return _entry(cycle, "remove", decision, find)


def _entry(
    cycle: int,
    kind: str,
    decision: Decision | LifecycleDecision,
    find: Find,
    *,
    place: Placement | None = None,
    reason: Reason | None = None,
    beneficiary: str | None = None,
) -> Json:
    name = _name(decision.workload_id, find)
    index = getattr(decision, "index", None)
    return {
        "cycle": cycle,
        "kind": kind,
        "workload": name,
        "pod": f"{name}-{index}" if index is not None else None,
        "node": place.node if place else None,
        "gpu": gpu_out(place),
        "reason": reason_out(reason),
        "for": _name(beneficiary, find) if beneficiary else None,
    }


def _name(workload_id: str, find: Find) -> str:
    workload = find(workload_id)
    return workload.name if workload else workload_id


def _pod_place(decision: Stop, find: Find) -> Placement | None:
    workload = find(decision.workload_id)
    return next((pod.placement for pod in workload.pods if pod.index == decision.index), None) if workload else None


def line(decision: Json) -> str:
    """One line for people."""
    where = f" on {decision['node']} {json.dumps(decision['gpu'])}" if decision["node"] else ""
    why = f": {decision['reason']['code']}: {decision['reason']['sentence']}" if decision["reason"] else ""
    beneficiary = f" for {decision['for']}" if decision["for"] else ""
    phase = f" as {decision['phase']}" if "phase" in decision else ""
    kind = (
        "give up the place of"
        if decision["kind"] == "nominate" and not decision["node"]
        else _VERBS.get(decision["kind"], decision["kind"])
    )
    return f"  cycle {decision['cycle']} {kind} {decision['pod'] or decision['workload']}{where}{phase}{beneficiary}{why}"


_VERBS = {"nominate": "keep a place for"}
