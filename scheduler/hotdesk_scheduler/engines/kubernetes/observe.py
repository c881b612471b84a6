"""What a Pod object says, in the engine's words: where it is, whether it runs, how it ended and why. Pure.

Kubelet's and the controllers' reasons (image pulls, OOM, eviction, admission) become our sentences here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hotdesk_scheduler.core.model import Resources
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines.kubernetes.codec import Json, time_in
from hotdesk_scheduler.engines.kubernetes.extras import GPU, Amounts, further
from hotdesk_scheduler.engines.kubernetes.quantity import amount, cpu_millis, memory_mib
from hotdesk_scheduler.engines.kubernetes.reservation import Reservation, Reserved, reserved_in
from hotdesk_scheduler.engines.kubernetes.resources import ID_LABEL

if TYPE_CHECKING:
    from hotdesk_scheduler.engines.kubernetes.claims import Claim

INDEX_LABEL = "hotdesk.io/pod-index"
ATTEMPT_LABEL = "hotdesk.io/attempt"
PLACEMENT = "hotdesk.io/placement"
STARTED_AT = "hotdesk.io/started-at"
RESERVED = "hotdesk.io/reserved-gpus"
SCHEDULER = "hotdesk"
OOM = "OOMKilled"
ID_VARIABLE = "JOB_UUID"
_NEVER_STARTS = frozenset(
    {"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
_PULLING = frozenset({"ErrImagePull", "ImageInspectError", "RegistryUnavailable"}) | _NEVER_STARTS
_MOVED_AWAY = frozenset({"Evicted", "Preempting", "Terminated", "NodeShutdown", "Shutdown", "NodeLost"})


class Life(StrEnum):
    """How far a pod has come. FADED: ended by something that is not its program, so it is tried again without being counted."""

    COMING = "coming"
    RUNNING = "running"
    STUCK = "stuck"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    FADED = "faded"


@dataclass(frozen=True, slots=True)
class Seen:
    """A pod as last seen. `workload_id` is None for pods we did not make; `claim` is what such a pod asks us to place.

    `why`: what is wrong, or how it ended. `reserved`: the shared GPUs it was told of; `reservation`: the one it stands for itself.
    `broken`: devices of its own that its kubelet calls unhealthy. `variable`: the workload that its environment names, which no hand can
    change as labels can. `extras`: what it asks for beside what `uses` counts.
    """

    name: str
    namespace: str
    uid: str
    node: str | None
    life: Life
    leaving: bool
    uses: Resources
    workload_id: str | None = None
    index: int = 0
    attempt: int = 0
    placement: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    why: Reason | None = None
    gated: bool = False
    claim: Claim | None = None
    reserved: tuple[Reserved, ...] = ()
    reservation: Reservation | None = None
    broken: tuple[str, ...] = ()
    variable: str = ""
    extras: Amounts = ()

    @property
    def holds(self) -> bool:
        """Whether it takes room on its node."""
        return self.node is not None and self.life not in (Life.SUCCEEDED, Life.FAILED, Life.FADED)


def read_pod(item: Json) -> Seen:
    """Labels that are not ours or not readable make it a pod of others."""
    meta, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    life, why, exit_code, ended_at = _life(status)
    ours = labels.get(ID_LABEL) if _is_number(labels.get(INDEX_LABEL)) and _is_number(labels.get(ATTEMPT_LABEL)) else None
    return Seen(
        name=meta["name"],
        namespace=meta["namespace"],
        uid=meta["uid"],
        node=spec.get("nodeName"),
        life=life,
        leaving="deletionTimestamp" in meta,
        uses=requested(spec),
        workload_id=ours,
        index=int(labels[INDEX_LABEL]) if ours else 0,
        attempt=int(labels[ATTEMPT_LABEL]) if ours else 0,
        placement=notes.get(PLACEMENT),
        started_at=_time(notes.get(STARTED_AT)),
        ended_at=ended_at,
        exit_code=exit_code,
        why=why,
        gated=bool(spec.get("schedulingGates")),
        reserved=reserved_in(notes.get(RESERVED)),
        broken=_broken(status),
        variable=_variable(spec),
        extras=further(spec),
    )


def _variable(spec: Json) -> str:
    if spec.get("schedulerName") != SCHEDULER:
        return ""
    variables = (one for container in spec["containers"] for one in container.get("env") or [])
    return next((str(one.get("value", "")) for one in variables if one["name"] == ID_VARIABLE), "")


def _broken(status: Json) -> tuple[str, ...]:
    """Kubelets from 1.36 on say how the devices of a container are."""
    told = [found for one in status.get("containerStatuses") or [] for found in one.get("allocatedResourcesStatus") or []]
    gpus = [device for found in told if found.get("name") == GPU for device in found.get("resources") or []]
    return tuple(sorted(device["resourceID"] for device in gpus if device.get("health") == "Unhealthy"))


def _is_number(text: str | None) -> bool:
    return text is not None and text.isdecimal()


def _time(text: str | None) -> float | None:
    try:
        return time_in(text) if text else None
    except ValueError:
        return None


def _life(status: Json) -> tuple[Life, Reason | None, int | None, float | None]:
    phase = status.get("phase")
    containers = status.get("containerStatuses") or []
    if phase in ("Succeeded", "Failed"):
        return _end(phase, status, containers)
    started = [*(status.get("initContainerStatuses") or []), *containers]
    stuck = next((found for one in started if (found := (one.get("state") or {}).get("waiting")) and found.get("reason") in _PULLING), None)
    if stuck is not None:
        life = Life.STUCK if stuck["reason"] in _NEVER_STARTS else Life.COMING
        return life, _cannot_start(stuck), None, None
    return (Life.RUNNING if phase == "Running" else Life.COMING), None, None, None


def _end(phase: str, status: Json, containers: list[Json]) -> tuple[Life, Reason | None, int | None, float | None]:
    ends = [found for one in containers if (found := (one.get("state") or {}).get("terminated"))]
    last = next((end for end in ends if end.get("exitCode")), ends[0] if ends else {})
    exit_code, ended_at = last.get("exitCode"), _time(last.get("finishedAt"))
    if phase == "Succeeded":
        return Life.SUCCEEDED, None, 0 if exit_code is None else exit_code, ended_at
    if (why := _moved_away(status)) is not None:
        return Life.FADED, why, exit_code, ended_at
    if last.get("reason") == OOM:
        why = _told("It used more memory than it was given and was killed (OOMKilled); ask for more with --memory.")
    elif not ends:
        why = _told(f"Its node would not start it: {status.get('message') or status.get('reason') or 'no reason was given'}")
    elif last.get("reason") not in (None, "Error", "Completed"):
        why = _told(f"It could not run: {last.get('message') or last['reason']}")
    return Life.FAILED, why, exit_code, ended_at


def _moved_away(status: Json) -> Reason | None:
    """Evicted, or taken off its node by the cluster."""
    text = status.get("message") or ""
    if status.get("reason") in _MOVED_AWAY:
        return Reason(ReasonCode.PROCESS_LOST, f"Its node evicted it: {text or status['reason']}")
    for condition in status.get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return Reason(
                ReasonCode.PROCESS_LOST, f"The cluster took it off its node: {condition.get('message') or condition.get('reason')}"
            )
    return None


def _cannot_start(waiting: Json) -> Reason:
    text = waiting.get("message") or waiting["reason"]
    what = "Its image cannot be had" if "Image" in waiting["reason"] else "Its container cannot be started"
    return Reason(ReasonCode.IMAGE_OR_VOLUME_ERROR, f"{what} ({waiting['reason']}): {text}"[:500])


def _told(sentence: str) -> Reason:
    return Reason(ReasonCode.ENGINE_ERROR, sentence[:500])


def requested(spec: Json) -> Resources:
    """What a pod asks for, as kube-scheduler counts it: its containers and sidecars together, or the most there is at a moment of its
    start; CPU and memory of the pod as a whole, where it says so, instead; and the runtime's own."""
    running, beside, most = _sum(map(_amounts, spec.get("containers", []))), _NOTHING, _NOTHING
    for container in spec.get("initContainers", []):
        asked = _sum((_amounts(container), beside))
        if container.get("restartPolicy") == "Always":
            beside = asked
        most = _most(most, asked)
    gpus, cpu, memory = _most(_sum((running, beside)), most)
    whole = _asked(spec)
    _, more_cpu, more_memory = _amounts({"resources": {"requests": spec.get("overhead") or {}}})
    cpu = cpu_millis(whole["cpu"]) if "cpu" in whole else cpu
    memory = memory_mib(whole["memory"]) if "memory" in whole else memory
    return Resources(gpu_millis=gpus * 1000, cpu_millis=cpu + more_cpu, memory_mib=memory + more_memory)


_Amounts = tuple[int, int, int]
_NOTHING: _Amounts = (0, 0, 0)


def _sum(amounts: Iterable[_Amounts]) -> _Amounts:
    gpus, cpu, memory = zip(_NOTHING, *amounts, strict=True)
    return sum(gpus), sum(cpu), sum(memory)


def _most(one: _Amounts, other: _Amounts) -> _Amounts:
    return max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2])


def _asked(of: Json) -> Json:
    resources: Json = of.get("resources") or {}
    return {**(resources.get("limits") or {}), **(resources.get("requests") or {})}


def _amounts(container: Json) -> _Amounts:
    """GPUs, thousandths of a core, MiB."""
    asked = _asked(container)
    return int(amount(asked.get(GPU, 0))), cpu_millis(asked.get("cpu", 0)), memory_mib(asked.get("memory", 0))
