"""The `status` of a Workload: what the engine reads back, and what people read. Pure; what the fields mean is said in `crds/`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from hotdesk_api.units import format_gpus
from pydantic import TypeAdapter

from hotdesk_scheduler.core import lifecycle
from hotdesk_scheduler.core.model import HOLDING, Phase, Pod, PodState, Workload
from hotdesk_scheduler.core.reasons import Reason
from hotdesk_scheduler.engines.kubernetes.codec import Json, camel, encode, members, time_out


@dataclass(frozen=True, slots=True)
class Held:
    """One device of a node that a pod holds: wholly (`group` None) or a share of it."""

    index: int
    millis: int
    group: str | None = None


Grants = Mapping[int, tuple[Held, ...]]


@dataclass(frozen=True, slots=True)
class Facts:
    """The part of `status` that the engine reads back; the rest is for people."""

    phase: Phase = Phase.ACTIVE
    phase_reason: Reason | None = None
    finished_at: float | None = None
    succeeded: int = 0
    failures: int = 0
    short_of_gang_since: float | None = None
    lost_node: bool = False
    pods: tuple[Any, ...] = ()


_pod = TypeAdapter(Pod)
_held = TypeAdapter(tuple[Held, ...])
_facts = TypeAdapter(Facts)
_FACTS = [item.name for item in fields(Facts) if item.name != "pods"]


def with_status(workload: Workload, status: Json) -> tuple[Workload, dict[int, tuple[Held, ...]]]:
    """The workload as its status says, and the devices that its pods hold. Raises what a hand's nonsense makes."""
    if not status:
        return workload, {}
    data = members(status)
    known = {item.name for item in fields(Facts)}
    facts = _facts.validate_python({name: value for name, value in data.items() if name in known})
    grants: dict[int, tuple[Held, ...]] = {}
    pods = {pod.index: pod for pod in workload.pods}
    for record in facts.pods:
        record = dict(record)
        devices = record.pop("devices", ())
        if record["index"] not in pods:
            continue
        pods[record["index"]] = _pod.validate_python({**record, "request": pods[record["index"]].request})
        if devices:
            grants[record["index"]] = _held.validate_python(devices)
    found = replace(workload, pods=tuple(pods.values()), **{name: getattr(facts, name) for name in _FACTS})
    return found, grants


def status_object(workload: Workload, grants: Grants, *, hold: Reason | None = None, error: str = "") -> Json:
    """All of `status`: what the engine reads back, and what people read."""
    facts = {camel(name): value for name in _FACTS if (value := _fact(name, getattr(workload, name))) is not None}
    pods = [record for pod in workload.pods if (record := _record(pod, grants.get(pod.index, ())))]
    word = lifecycle.status(workload)
    running = sum(pod.state is PodState.RUNNING for pod in workload.pods)
    nodes = sorted({pod.placement.node for pod in workload.pods if pod.placement and pod.state in HOLDING})
    said = workload.phase_reason or hold
    return {
        **facts,
        "status": word,
        "pods": pods,
        "running": f"{running}/{len(workload.pods)}",
        "node": nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes" if nodes else "",
        "gpus": format_gpus(sum(pod.placement.gpu_millis for pod in workload.pods if pod.placement and pod.state in HOLDING)),
        "message": error or (said.sentence if said else ""),
        "conditions": _conditions(workload, hold, error),
    }


def _fact(name: str, value: Any) -> Any:
    if value is None or value is False:
        return None
    return time_out(value) if name.endswith(("_at", "_since")) else encode(value)


def _record(pod: Pod, devices: tuple[Held, ...]) -> Json | None:
    said: Json = encode(pod, leave_out=("request",))
    if len(said) == 1 and not devices:  # its index alone
        return None
    return {**said, "devices": [encode(one) for one in devices]} if devices else said


def _conditions(workload: Workload, hold: Reason | None, error: str) -> list[Json]:
    """`Scheduled`: has it its place, and if not, why not. `Finished`: has it come to its end."""
    placed = [pod for pod in workload.pods if pod.state in HOLDING]
    since = max((pod.started_at or workload.created_at for pod in placed), default=workload.created_at)
    if placed:
        first = placed[0].placement
        where = f" on {first.node}" if first else ""
        scheduled = ("True", "Placed", error or f"{len(placed)} of {len(workload.pods)} pods have their place{where}.")
    else:
        reason = workload.phase_reason or hold
        code = "".join(word.capitalize() for word in reason.code.value.split("_")) if reason else "Queued"
        scheduled = ("False", code, error or (reason.sentence if reason else "It waits for its turn."))
    found = [_condition("Scheduled", *scheduled, at=since)]
    if workload.phase in lifecycle.FINAL:
        word = lifecycle.status(workload)
        text = workload.phase_reason.sentence if workload.phase_reason else "It has done all of its work."
        found.append(_condition("Finished", "True", word, text, at=workload.finished_at or 0.0))
    return found


def _condition(kind: str, status: str, reason: str, message: str, *, at: float) -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message[:1024], "lastTransitionTime": time_out(int(at))}
