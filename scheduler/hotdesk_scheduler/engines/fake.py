"""An engine in memory: what `simulate` runs on, and the service's tests. A product, not a mock: it keeps the whole engine contract.

Time is what callers pass as `now`. Pods move only when told: `settle()` lets starting pods run and stopping pods be gone, and the
world's own doings (`exit_pod`, `lose_node`, `return_node`) are methods. With `automatic=True` pods settle by themselves at once.
A workspace's process belongs to somebody else, so it runs and ends when `report_pod` says so, unless `runs_workspaces`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from hotdesk_api.errors import Conflict, Invalid, NotFound
from hotdesk_api.models import WorkloadSpec

from hotdesk_scheduler.core.model import (
    HOLDING,
    Department,
    Kind,
    Node,
    Phase,
    Placement,
    Pod,
    PodState,
    Project,
    Snapshot,
    Workload,
)
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines import transitions
from hotdesk_scheduler.engines.base import Change, Device, ExecSession, Image, PodDetails

LOST_WITH_NODE = Reason(ReasonCode.NODE_LOST, "Its node was lost.")


class FakeEngine:
    """All state in dictionaries of frozen values; a snapshot is built when somebody looks."""

    name = "fake"

    def __init__(
        self,
        nodes: Iterable[Node] = (),
        *,
        departments: Iterable[Department] = (),
        projects: Iterable[Project] = (),
        images: Iterable[Image] = (),
        automatic: bool = False,
        runs_workspaces: bool = False,
    ) -> None:
        self.automatic = automatic
        self.runs_workspaces = runs_workspaces
        self.pod_environment: Callable[[Workload], Mapping[str, str]] = lambda workload: {}
        self.now = 0.0
        self._version = 1
        self._nodes = {node.name: node for node in nodes}
        self._departments = {department.name: department for department in departments}
        self._projects = {project.name: project for project in projects}
        self._workloads: dict[str, Workload] = {}
        self._specs: dict[str, WorkloadSpec] = {}
        self._images = list(images)
        self._logs: dict[tuple[str, int], list[bytes]] = {}
        self._errors: dict[tuple[str, int], str] = {}
        self._snapshot: Snapshot | None = None
        self._listeners: list[asyncio.Queue[Change]] = []

    # --- contract: reading ---------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Nothing to take: memory is ours."""

    async def close(self) -> None:
        """Pods stay as they are."""

    def snapshot(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = Snapshot(
                version=self._version,
                nodes=tuple(self._nodes.values()),
                departments=tuple(self._departments.values()),
                projects=tuple(self._projects.values()),
                workloads=tuple(self._workloads.values()),
            )
        return self._snapshot

    def find(self, workload_id: str) -> Workload | None:
        return self._workloads.get(workload_id)

    async def changes(self) -> AsyncIterator[Change]:
        queue: asyncio.Queue[Change] = asyncio.Queue()
        self._listeners.append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.remove(queue)

    def spec(self, workload_id: str) -> WorkloadSpec:
        if workload_id not in self._specs:
            raise NotFound(f"There is no workload {workload_id}.")
        return self._specs[workload_id]

    def details(self, workload_id: str, index: int) -> PodDetails:
        workload = self._workload(workload_id)
        placement = _pod(workload, index).placement
        error = self._errors.get((workload_id, index), "")
        if placement is None:
            return PodDetails(error=error)
        count = placement.whole or len(placement.shares)
        return PodDetails(
            devices=tuple(self.devices(placement.node)[:count]),
            environment=dict(self.pod_environment(workload)),
            tier="simulated",
            error=error,
        )

    def devices(self, node: str) -> Sequence[Device]:
        found = self._nodes[node]
        model = found.gpu_model or "Fake GPU"
        return [Device(i, f"GPU-SIM-{node}-{i}", model, found.gpu_memory_mib, simulated=True) for i in range(found.gpus)]

    def would_give(self, placement: Placement) -> Sequence[Device]:
        return self.devices(placement.node)[: placement.whole or len(placement.shares)]

    def images(self) -> Sequence[Image]:
        return list(self._images)

    async def check(self, spec: WorkloadSpec) -> None:
        known = [image.name for image in self._images]
        if known and spec.image and spec.image not in known:
            raise Invalid(f"There is no image {spec.image}.", field="image", value=spec.image, next_step=f"Known: {', '.join(known)}.")
        types = sorted({node.node_type for node in self._nodes.values() if node.node_type})
        if spec.node_type and spec.node_type not in types:
            sentence = f"There is no node of type {spec.node_type}."
            raise Invalid(sentence, field="node_type", value=spec.node_type, next_step=f"Known: {', '.join(types) or 'none'}.")

    # --- contract: desired state ---------------------------------------------------------------------------------------------------

    async def put_project(self, project: Project) -> None:
        self._projects[project.name] = project
        self._changed("project")

    async def seed_projects(self, projects: Sequence[Project]) -> list[str]:
        if self._projects:
            return []
        for project in projects:
            await self.put_project(project)
        return [project.name for project in projects]

    async def delete_project(self, name: str) -> None:
        if self._projects.pop(name, None):
            self._changed("project")

    async def put_department(self, department: Department) -> None:
        self._departments[department.name] = department
        self._changed("project")

    async def delete_department(self, name: str) -> None:
        if self._departments.pop(name, None):
            self._changed("project")

    async def submit(self, workload: Workload, spec: WorkloadSpec) -> None:
        for other in self._workloads.values():
            if (other.project, other.name) == (workload.project, workload.name) and other.id != workload.id:
                raise Conflict(
                    f"Project {workload.project} already has a workload {workload.name}.",
                    field="name",
                    value=workload.name,
                    next_step="Choose another name, or delete the old one first.",
                )
        self._workloads[workload.id] = workload
        self._specs[workload.id] = spec
        self._changed("submitted", workload.id)

    async def set_phase(self, workload_id: str, phase: Phase, reason: Reason | None, now: float) -> None:
        workload = self._workload(workload_id)
        if workload.phase is not phase:
            self.now = max(self.now, now)
            self._put(transitions.in_phase(workload, phase, reason, now), "updated")

    async def forget(self, workload_id: str) -> None:
        if self._workloads.pop(workload_id, None):
            self._specs.pop(workload_id, None)
            for key in [key for key in self._logs if key[0] == workload_id]:
                del self._logs[key]
            self._changed("removed", workload_id)

    # --- contract: pods ------------------------------------------------------------------------------------------------------------

    async def start_pod(self, workload_id: str, index: int, placement: Placement, now: float) -> None:
        self.now = max(self.now, now)
        workload = self._workload(workload_id)
        if _pod(workload, index).state is not PodState.PENDING:
            return
        self._replace_pod(workload_id, transitions.started(_pod(workload, index), placement, now), "started")
        if self.automatic:
            self._settle_pod(workload_id, index)

    async def stop_pod(self, workload_id: str, index: int, reason: Reason, grace_s: float, now: float) -> None:
        self.now = max(self.now, now)
        pod = _pod(self._workload(workload_id), index)
        if pod.state not in (PodState.STARTING, PodState.RUNNING):
            return
        self._set_pod(
            workload_id, index, "updated", state=PodState.RELEASING, stop_reason=reason, release_deadline=now + grace_s
        )  # fmt: skip
        if self.automatic:
            self._settle_pod(workload_id, index)

    async def nominate(self, workload_id: str, index: int, placement: Placement | None) -> None:
        if _pod(self._workload(workload_id), index).nominated != placement:
            self._set_pod(workload_id, index, "updated", nominated=placement)

    async def requeue_pod(self, workload_id: str, index: int) -> None:
        pod = _pod(self._workload(workload_id), index)
        if transitions.has_ended(pod):
            self._replace_pod(workload_id, transitions.again(pod), "updated")

    async def report_pod(self, workload_id: str, index: int, state: PodState, now: float, exit_code: int | None = None) -> None:
        self.now = max(self.now, now)
        pod = _pod(self._workload(workload_id), index)
        if state is PodState.RUNNING:
            if pod.state is PodState.STARTING:
                self._set_pod(workload_id, index, "started", state=state)
        elif pod.state in HOLDING:
            self._end_pod(workload_id, index, PodState.STOPPED if pod.state is PodState.RELEASING else state, exit_code)

    # --- contract: inside a pod ----------------------------------------------------------------------------------------------------

    async def logs(
        self,
        workload_id: str,
        index: int,
        *,
        tail: int | None = None,
        since: float | None = None,
        follow: bool = False,
        timestamps: bool = False,
    ) -> AsyncIterator[bytes]:
        lines = self._logs.get((workload_id, index), [])
        for line in lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]:
            yield line

    async def exec(self, workload_id: str, index: int, argv: Sequence[str], *, tty: bool, rows: int = 24, columns: int = 80) -> ExecSession:
        if _pod(self._workload(workload_id), index).state is not PodState.RUNNING:
            raise Conflict(f"Pod {index} is not running.", next_step="Wait until it runs: `runai list`.")
        return EchoSession(argv)

    # --- the world -----------------------------------------------------------------------------------------------------------------

    def settle(self) -> bool:
        """Starting pods run, stopping pods are gone; whether anything moved."""
        moved = False
        for workload in list(self._workloads.values()):
            for pod in workload.pods:
                moved |= self._settle_pod(workload.id, pod.index)
        return moved

    def exit_pod(self, workload_id: str, index: int, exit_code: int = 0) -> None:
        """The pod's process ends by itself."""
        if _pod(self._workload(workload_id), index).state in HOLDING:
            self._end_pod(workload_id, index, PodState.SUCCEEDED if exit_code == 0 else PodState.FAILED, exit_code)

    def lose_pod(self, workload_id: str, index: int) -> None:
        """The pod's process vanishes without an exit record."""
        if _pod(self._workload(workload_id), index).state in HOLDING:
            self._end_pod(workload_id, index, PodState.LOST, None)

    def put_node(self, node: Node) -> None:
        self._nodes[node.name] = node
        self._changed("node")

    def lose_node(self, name: str) -> None:
        """The node and all pods on it are gone."""
        self._nodes[name] = replace(self._nodes[name], ready=False)
        for workload in list(self._workloads.values()):
            on_it = [p.index for p in workload.pods if p.state in HOLDING and p.placement and p.placement.node == name]
            if on_it:
                self._workloads[workload.id] = replace(workload, lost_node=True)
            for index in on_it:
                self._set_pod(
                    workload.id, index, "lost", state=PodState.LOST, stop_reason=LOST_WITH_NODE, ended_at=self.now
                )  # fmt: skip
        self._changed("node")

    def return_node(self, name: str) -> None:
        self._nodes[name] = replace(self._nodes[name], ready=True)
        self._changed("node")

    def write_log(self, workload_id: str, index: int, line: bytes) -> None:
        self._logs.setdefault((workload_id, index), []).append(line)

    def say(self, workload_id: str, index: int, error: str) -> None:
        """What is wrong with a pod; "" when it is over."""
        self._errors[workload_id, index] = error
        self._put(replace(self._workloads[workload_id]), "failed_verb" if error else "updated", index)

    def put_workload(self, workload: Workload, spec: WorkloadSpec | None = None) -> None:
        """Set a workload as it is, pods and all (worlds of tests and scenarios)."""
        self._workloads[workload.id] = transitions.with_pod(workload, workload.pods[0], self.now) if workload.pods else workload
        self._specs[workload.id] = spec or WorkloadSpec(name=None, project="p", kind="train")
        self._changed("submitted", workload.id)

    # --- inner ---------------------------------------------------------------------------------------------------------------------

    def _workload(self, workload_id: str) -> Workload:
        if workload_id not in self._workloads:
            raise NotFound(f"There is no workload {workload_id}.")
        return self._workloads[workload_id]

    def _settle_pod(self, workload_id: str, index: int) -> bool:
        workload = self._workloads[workload_id]
        pod = _pod(workload, index)
        if workload.kind is Kind.WORKSPACE and not self.runs_workspaces:
            return False
        if pod.state is PodState.STARTING:
            self._set_pod(workload_id, index, "started", state=PodState.RUNNING)
            return True
        if pod.state is PodState.RELEASING:
            self._end_pod(workload_id, index, PodState.STOPPED, None)
            return True
        return False

    def _end_pod(self, workload_id: str, index: int, state: PodState, exit_code: int | None) -> None:
        workload = self._workloads[workload_id]
        pod = replace(_pod(workload, index), state=state, ended_at=self.now, exit_code=exit_code, release_deadline=None)
        kind = {PodState.STOPPED: "released", PodState.LOST: "lost"}.get(state, "exited")
        self._put(transitions.ended(workload, pod, self.now), kind, index)

    def _set_pod(self, workload_id: str, index: int, change: str, **values: object) -> None:
        pod = replace(_pod(self._workloads[workload_id], index), **values)  # type: ignore[arg-type]  # fields of Pod, named by our own callers
        self._replace_pod(workload_id, pod, change)

    def _replace_pod(self, workload_id: str, pod: Pod, change: str) -> None:
        workload = self._workloads[workload_id]
        if pod.state is PodState.STARTING and workload.lost_node:
            workload = replace(workload, lost_node=False)
        self._put(transitions.with_pod(workload, pod, self.now), change, pod.index)

    def _put(self, workload: Workload, change: str, index: int | None = None) -> None:
        self._workloads[workload.id] = workload
        self._changed(change, workload.id, index)

    def _changed(self, kind: str, workload_id: str | None = None, index: int | None = None) -> None:
        self._version += 1
        self._snapshot = None
        for queue in self._listeners:
            queue.put_nowait(Change(kind, workload_id, index))


class EchoSession:
    """`exec` of the fake: says its command, then what it is told, until the input ends."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._out: asyncio.Queue[bytes] = asyncio.Queue()
        self._out.put_nowait(" ".join(argv).encode() + b"\n")
        self._closed = asyncio.Event()

    async def read(self) -> tuple[int, bytes] | None:
        if self._closed.is_set() and self._out.empty():
            return None
        data = await self._out.get()
        return (1, data) if data else None

    async def write(self, data: bytes) -> None:
        if not data:
            self._closed.set()
        self._out.put_nowait(data)

    async def resize(self, rows: int, columns: int) -> None:
        """The fake has no screen."""

    async def wait(self) -> int:
        await self._closed.wait()
        return 0

    async def close(self) -> None:
        await self.write(b"")


def _pod(workload: Workload, index: int) -> Pod:
    pods = workload.pods
    if index < len(pods) and pods[index].index == index:
        return pods[index]
    for pod in pods:
        if pod.index == index:
            return pod
    raise NotFound(f"Workload {workload.name} has no pod {index}.")
