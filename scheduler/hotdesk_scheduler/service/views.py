"""The core's values as wire models. One view a workload is kept and reused for as long as nothing it shows has changed.

Core values are frozen, so "unchanged" is identity: a list of a thousand workloads costs a thousand comparisons, one workload costs one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from hotdesk_api.models import DeviceOut, Grant, PodOut, Progress, ReasonOut, Status, WorkloadDetail, WorkloadOut, WorkloadSpec

from hotdesk_scheduler.core import lifecycle
from hotdesk_scheduler.core.memory import changed
from hotdesk_scheduler.core.model import HOLDING, Kind, Phase, Pod, PodState, Snapshot, Workload
from hotdesk_scheduler.core.plan import Hold
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines.base import Engine, PodDetails

_QUEUED = Reason(ReasonCode.QUEUED, "It was just submitted and is looked at next.")
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|KEY|CREDENTIAL|AUTH", re.IGNORECASE)
_POD_STATUS: dict[PodState, str] = {
    PodState.PENDING: "Pending",
    PodState.STARTING: "ContainerCreating",
    PodState.RUNNING: "Running",
    PodState.RELEASING: "Terminating",
    PodState.SUCCEEDED: "Succeeded",
    PodState.FAILED: "Failed",
    PodState.STOPPED: "Stopped",
    PodState.LOST: "Lost",
}


STEP = 100
"""So many views are made in one go; between them requests are answered."""
HoldOf = Callable[[str], Hold | None]


def when(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def reason_of(reason: Reason) -> ReasonOut:
    return ReasonOut(code=reason.code.value, sentence=reason.sentence, numbers=dict(reason.numbers))


def reason_out(reason: Reason | None) -> ReasonOut | None:
    return None if reason is None else reason_of(reason)


def type_name(workload: Workload) -> str:
    """Run:ai's words for tables."""
    if workload.kind in (Kind.INTERACTIVE, Kind.WORKSPACE):
        return "Interactive-Preemptible" if workload.preemptible else "Interactive"
    return "Inference" if workload.kind is Kind.INFERENCE else "Train"


def held_gpu_millis(workload: Workload) -> int:
    return sum(pod.placement.gpu_millis for pod in workload.pods if pod.placement is not None and pod.state in HOLDING)


def asked_gpu_millis(workload: Workload, smallest_gpu_mib: int) -> int:
    """What it asks for in all; a memory request counts with the cluster's smallest GPU until it is placed (scheduling.md 1)."""
    total = 0
    for pod in workload.pods:
        gpu = pod.request.gpu
        if gpu.memory_mib and pod.placement is not None:
            total += pod.placement.gpu_millis
        elif gpu.memory_mib and smallest_gpu_mib:
            total += min(1000, -(-1000 * gpu.memory_mib // smallest_gpu_mib)) * gpu.devices
        else:
            total += gpu.whole * 1000 + gpu.millis * gpu.devices
    return total


@dataclass(slots=True)
class Entry:
    """A view and what it was made of."""

    workload: Workload
    hold: Hold | None
    progress: Progress | None
    view: WorkloadOut
    _json: bytes = b""

    @property
    def json(self) -> bytes:
        """The view as a list shows it, made when somebody looks."""
        self._json = self._json or self.view.model_dump_json().encode()
        return self._json


class Views:
    """Keeps the current view of every workload that somebody looked at, and what has changed since changes were last told."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._entries: dict[str, Entry] = {}
        self._workloads: dict[str, Workload] = {}
        self._by_name: dict[tuple[str, str], str] = {}
        self._snapshot: Snapshot | None = None
        self._changed: dict[str, None] = {}
        self._removed: list[WorkloadOut] = []
        self._smallest_gpu_mib = 0
        self._simulated: frozenset[str] = frozenset()
        self._all_simulated = False

    def catch_up(self, snapshot: Snapshot) -> None:
        """Know who is there. No view is made."""
        before = self._snapshot
        if before is None or before.nodes != snapshot.nodes:
            self._smallest_gpu_mib = min((n.gpu_memory_mib for n in snapshot.nodes if n.gpus), default=0)
            self._simulated = frozenset(node.name for node in snapshot.nodes if node.simulated)
            self._all_simulated = bool(self._simulated) and all(node.simulated for node in snapshot.nodes if node.gpus)
        gone, new = changed(before.workloads if before else (), snapshot.workloads)
        self._snapshot = snapshot
        for workload in gone:
            del self._workloads[workload.id]
            if self._by_name.get((workload.project, workload.name)) == workload.id:
                del self._by_name[workload.project, workload.name]
        for workload in new:
            self._workloads[workload.id] = workload
            self._by_name[workload.project, workload.name] = workload.id
        for workload in gone:
            if workload.id not in self._workloads and (old := self._entries.pop(workload.id, None)):
                self._changed.pop(workload.id, None)
                self._removed.append(old.view)

    def look(self, workload_id: str, hold: HoldOf, progress: Mapping[str, Progress]) -> Entry | None:
        """The view of one workload as it is now; None if it is not there."""
        workload = self._workloads.get(workload_id)
        if workload is None:
            return None
        self._renew(workload, hold(workload_id), progress.get(workload_id), {})
        return self._entries[workload_id]

    def renewing(self, snapshot: Snapshot, holds: Mapping[str, Hold], progress: Mapping[str, Progress]) -> Iterator[None]:
        """Bring all views up to date, in steps of some milliseconds: other things may be done between them."""
        self.catch_up(snapshot)
        told: dict[int, ReasonOut | None] = {}
        for number, workload in enumerate(snapshot.workloads, 1):
            if self._workloads.get(workload.id) is workload:  # or it changed between two steps
                self._renew(workload, holds.get(workload.id), progress.get(workload.id), told)
            if number % STEP == 0:
                yield

    def refresh(
        self, snapshot: Snapshot, holds: Mapping[str, Hold], progress: Mapping[str, Progress]
    ) -> tuple[list[WorkloadOut], list[WorkloadOut]]:
        """All in one step; (changed or new, removed) since the news before."""
        for _ in self.renewing(snapshot, holds, progress):
            pass
        return self.news()

    def news(self) -> tuple[list[WorkloadOut], list[WorkloadOut]]:
        """(changed or new, removed) since the call before."""
        found = [self._entries[workload_id].view for workload_id in self._changed], self._removed
        self._changed, self._removed = {}, []
        return found

    def _renew(self, workload: Workload, hold: Hold | None, report: Progress | None, told: dict[int, ReasonOut | None]) -> None:
        old = self._entries.get(workload.id)
        if old is not None and old.workload is workload and old.hold == hold and old.progress is report:
            return
        if old is not None and old.workload is workload and old.progress is report and old.hold and hold:
            view = _moved_up(old, hold, told)
            is_same = view is old.view
        else:
            view = self._view(workload, hold, report)
            is_same = old is not None and old.view == view
        if old is not None and is_same:
            self._entries[workload.id] = Entry(workload, hold, report, old.view, old._json)
            return
        self._entries[workload.id] = Entry(workload, hold, report, view)
        self._changed[workload.id] = None

    def id_of(self, project: str, name: str) -> str | None:
        return self._by_name.get((project, name))

    def __iter__(self) -> Iterator[Entry]:
        """Those that were looked at, by project, then name."""
        return iter(sorted(self._entries.values(), key=lambda entry: (entry.view.project, entry.view.name)))

    def _view(self, workload: Workload, hold: Hold | None, progress: Progress | None) -> WorkloadOut:
        spec = self._engine.spec(workload.id)
        status: Status = lifecycle.status(workload)  # type: ignore[assignment]  # the core has no wire types; tests compare the words
        placed = [pod for pod in workload.pods if pod.placement is not None and pod.state in HOLDING]
        request = workload.pods[0].request if workload.pods else None
        details = self._engine.details(workload.id, placed[0].index) if placed else None
        started = [pod.started_at for pod in workload.pods if pod.started_at is not None]
        return WorkloadOut(
            id=workload.id,
            name=workload.name,
            project=workload.project,
            user=workload.user,
            kind=spec.kind,
            type=type_name(workload),
            status=status,
            created_at=datetime.fromtimestamp(workload.created_at, UTC),
            started_at=when(min(started, default=None)),
            finished_at=when(workload.finished_at),
            image=spec.image,
            priority=workload.priority,
            preemptible=workload.preemptible,
            gpu_millis_requested=asked_gpu_millis(workload, self._smallest_gpu_mib),
            gpu_memory_mib_requested=(request.gpu.memory_mib or None) if request else None,
            gpu_millis_allocated=held_gpu_millis(workload),
            cpu_millis=sum(pod.request.cpu_millis for pod in workload.pods),
            memory_mib=sum(pod.request.memory_mib for pod in workload.pods),
            nodes=sorted({pod.placement.node for pod in placed if pod.placement is not None}),
            running_pods=sum(pod.state is PodState.RUNNING for pod in workload.pods),
            pending_pods=sum(pod.state in (PodState.PENDING, PodState.STARTING) for pod in workload.pods),
            reason=reason_out(main_reason(workload, status, hold, error=details.error if details else "")),
            queue_position=hold.position if hold is not None and status == "Pending" else None,
            progress=progress.progress if progress else None,
            message=progress.message if progress else "",
            simulated=self._is_simulated(placed),
            created_by_cli=bool(spec.command_line),
            tier_requested=_tier_requested(workload),
            tier_verified=details.tier if details else "",
        )

    def _is_simulated(self, placed: Sequence[Pod]) -> bool:
        """Whether it is where GPUs are not real; of what is nowhere yet, whether it can be nowhere else."""
        nodes = {pod.placement.node for pod in placed if pod.placement is not None}
        return bool(nodes & self._simulated) if nodes else self._all_simulated

    def trouble(self, workload_id: str) -> str:
        """What is wrong with the pods that have a place, the first one's."""
        workload = self._engine.find(workload_id)
        placed = [pod for pod in workload.pods if pod.state in HOLDING] if workload else []
        errors = (self._engine.details(workload_id, pod.index).error for pod in placed)
        return next((error for error in errors if error), "")

    def detail(self, entry: Entry, *, grant: bool, secrets: bool) -> WorkloadDetail:
        """`grant`: for the hub's spawner; `secrets` False: values of variables that look secret are hidden."""
        workload = entry.workload
        spec = self._engine.spec(workload.id)
        details = [self._engine.details(workload.id, pod.index) for pod in workload.pods]
        return WorkloadDetail(
            **dict(entry.view),
            spec=spec if secrets else without_secrets(spec),
            pods=[pod_out(workload, pod, known) for pod, known in zip(workload.pods, details, strict=True)],
            namespace=next((known.namespace for known in details), ""),
            grant=self._grant(workload) if grant else None,
        )

    def _grant(self, workload: Workload) -> Grant | None:
        pod = next((pod for pod in workload.pods if pod.placement is not None), None)
        if workload.kind is not Kind.WORKSPACE or pod is None or pod.placement is None:
            return None
        if pod.state not in (PodState.STARTING, PodState.RUNNING) or workload.phase is not Phase.ACTIVE:
            return None
        details = self._engine.details(workload.id, pod.index)
        if not details.is_ready:
            return None
        return Grant(
            node=pod.placement.node,
            environment=dict(details.environment),
            gpu_millis=pod.placement.gpu_millis,
            simulated=pod.placement.node in self._simulated,
            tier=details.tier,
            pod=details.grant,
        )


def _moved_up(old: Entry, hold: Hold, told: dict[int, ReasonOut | None]) -> WorkloadOut:
    """The view of what waits as before, at another place in the queue or for another reason: most of a long queue after every start.

    `told` keeps reasons that many share, by identity.
    """
    assert old.hold is not None
    if old.view.status != "Pending":
        return old.view
    reason = old.view.reason
    if old.hold.reason != hold.reason:
        if id(hold.reason) not in told:
            told[id(hold.reason)] = reason_out(hold.reason)
        reason = told[id(hold.reason)]
    if old.hold.reason == hold.reason and hold.position == old.view.queue_position:
        return old.view
    return old.view.model_copy(update={"reason": reason, "queue_position": hold.position})


def main_reason(workload: Workload, status: str, hold: Hold | None, *, error: str = "") -> Reason | None:
    """Why it is not running; None while it runs. `error`: what keeps its pod from starting, or from going."""
    if status == "Pending":
        return hold.reason if hold is not None else _QUEUED
    if status == "Running":
        return None
    if status == "ContainerCreating":
        return Reason(ReasonCode.ENGINE_ERROR, error) if error else None
    stops = (pod.stop_reason for pod in workload.pods if pod.stop_reason is not None)
    why = workload.phase_reason or next(stops, None)
    return replace(why, sentence=with_trouble(why.sentence, error)) if why else None


def with_trouble(sentence: str, error: str) -> str:
    """What is wrong with a pod may be why it stops: then it is said already."""
    return sentence if error in sentence else f"{sentence} {error}"


def _tier_requested(workload: Workload) -> str:
    gpu = workload.pods[0].request.gpu if workload.pods else None
    if gpu is None or gpu.is_none:
        return ""
    return "exclusive" if gpu.whole else "shared"


def pod_out(workload: Workload, pod: Pod, details: PodDetails) -> PodOut:
    placement = pod.placement if pod.state in HOLDING else None
    shares = placement.shares if placement else ()
    devices = [
        DeviceOut(
            index=device.index,
            uuid=device.uuid,
            model=device.model,
            memory_mib=device.memory_mib,
            simulated=device.simulated,
            shared=bool(shares),
            allocated_millis=shares[0].millis if shares else 1000,
            utilisation_percent=device.utilisation_percent,
            memory_used_mib=device.memory_used_mib,
        )
        for device in (details.devices if placement is not None else ())
    ]
    return PodOut(
        name=details.name or f"{workload.name}-{pod.index}",
        index=pod.index,
        status=_POD_STATUS[pod.state],
        node=placement.node if placement else None,
        gpu_millis=placement.gpu_millis if placement else 0,
        devices=devices,
        started_at=when(pod.started_at),
        ended_at=when(pod.ended_at),
        exit_code=pod.exit_code,
        attempt=pod.attempt,
        error=details.error,
    )


def without_secrets(spec: WorkloadSpec) -> WorkloadSpec:
    """For other members of the project: what the owner passed in secret-looking variables is not theirs to read."""
    hidden = {name: value for name, value in spec.environment.items() if _SECRET.search(name) and value}
    if not hidden:
        return spec
    line = spec.command_line
    for value in sorted(hidden.values(), key=len, reverse=True):
        line = line.replace(value, "***")
    return spec.model_copy(update={"environment": spec.environment | dict.fromkeys(hidden, "***"), "command_line": line})
