"""The engine of one machine: projects and workloads in SQLite, pods as processes under supervisors, GPUs real or simulated.

This module is the contract (`engines/base.py`) and nothing else: `journal` writes, `pods` runs, `devices` counts, `catalog` names.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hotdesk_api.errors import Conflict, Invalid, NotFound, Unavailable
from hotdesk_api.models import WorkloadSpec

from hotdesk_scheduler.core.model import (
    HOLDING,
    Department,
    Kind,
    Phase,
    Placement,
    Pod,
    PodState,
    Project,
    Snapshot,
    Workload,
)
from hotdesk_scheduler.core.reasons import Reason
from hotdesk_scheduler.engines import transitions
from hotdesk_scheduler.engines.base import Change, Device, ExecSession, Image, PodDetails
from hotdesk_scheduler.engines.local import catalog, check, logs, runs, tools
from hotdesk_scheduler.engines.local.devices import DeviceBackend, find_devices
from hotdesk_scheduler.engines.local.exec import LocalExec
from hotdesk_scheduler.engines.local.grants import Grants
from hotdesk_scheduler.engines.local.journal import Journal
from hotdesk_scheduler.engines.local.lock import StateLock
from hotdesk_scheduler.engines.local.pods import Pods
from hotdesk_scheduler.engines.local.runs import Run
from hotdesk_scheduler.engines.local.state import Batch, Key, State

_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")


@dataclass(frozen=True, slots=True)
class LocalConfig:
    """`simulate`: None = the GPUs that NVML finds. `parent_pid`: the hub this scheduler works for, None when started by hand."""

    state_dir: Path
    simulate: str | None = None
    parent_pid: int | None = None
    log_bytes: int = 16 * 2**20
    log_files: int = 3


class LocalEngine:
    """See `engines.base.Engine`. With `starts` off nothing that was about to start is started (shutdown)."""

    name = "local"

    def __init__(self, config: LocalConfig, *, backend: DeviceBackend | None = None, starts: bool = True) -> None:
        self.config = config
        self.pod_environment: Callable[[Workload], Mapping[str, str]] = lambda workload: {}
        self.state_dir = config.state_dir.absolute()
        self._backend = backend
        self._starts = starts
        self._lock = StateLock(self.state_dir / "scheduler" / "lock", parent_pid=config.parent_pid)
        self._state = State(self.state_dir / "scheduler" / "state.db")
        self._snapshot: Snapshot | None = None
        self._sessions: dict[Key, set[LocalExec]] = {}
        self._chores: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        runs.make_private(self.state_dir)
        await asyncio.to_thread(self._lock.acquire)
        try:
            backend = self._backend or find_devices(self.config.simulate)
            logs_kept = {"log_bytes": self.config.log_bytes, "log_files": self.config.log_files}
            self._grants = Grants(self._state, backend, state_dir=self.state_dir, **logs_kept)
            self._grants.added = lambda workload: self.pod_environment(workload)  # noqa: PLW0108  the service sets it later
            await asyncio.to_thread(self._state.open)
            tools.install(self.state_dir)
            self._journal = Journal(self._state)
            self._pods = Pods(self._journal, state_dir=self.state_dir, plan_of=self._grants.plan, before_end=self._close_sessions)
            await self._pods.adopt(starts=self._starts)
            self._later(self._pods.discard_strangers())
        except OSError as error:
            self._lock.release()
            raise Unavailable(
                f"The state directory {self.state_dir} cannot be used: {error.strerror or error}.",
                next_step="Free space or give the scheduler another state directory.",
            ) from error
        except BaseException:
            self._lock.release()
            raise

    async def close(self) -> None:
        for key in list(self._sessions):
            await self._close_sessions(key)
        if self._chores:
            await asyncio.gather(*self._chores, return_exceptions=True)
        await self._pods.close()
        await self._journal.close()
        await asyncio.to_thread(self._state.close)
        self._lock.release()

    # what is

    def snapshot(self) -> Snapshot:
        if self._snapshot is None or self._snapshot.version != self._state.version:
            state = self._state
            self._snapshot = Snapshot(
                version=state.version,
                nodes=self._grants.nodes,
                departments=tuple(state.departments.values()),
                projects=tuple(state.projects.values()),
                workloads=tuple(state.workloads.values()),
            )
        return self._snapshot

    def find(self, workload_id: str) -> Workload | None:
        return self._state.workloads.get(workload_id)

    def changes(self) -> AsyncIterator[Change]:
        return self._journal.listen()

    def spec(self, workload_id: str) -> WorkloadSpec:
        self._workload(workload_id)
        return self._state.specs[workload_id]

    def details(self, workload_id: str, index: int) -> PodDetails:
        workload, pod = self._pod(workload_id, index)
        run = self._state.runs.get((workload_id, index))
        if run is None:
            return PodDetails()
        if pod.state not in HOLDING:
            return PodDetails(error=run.error)
        details = self._grants.details(workload, pod, run)
        added = self.pod_environment(workload)
        return replace(details, environment={**details.environment, **added}) if added else details

    def devices(self, node: str) -> Sequence[Device]:
        return self._grants.devices(node)

    def would_give(self, placement: Placement) -> Sequence[Device]:
        return self._grants.would_give(placement)

    def images(self) -> Sequence[Image]:
        return catalog.images()

    async def check(self, spec: WorkloadSpec) -> None:
        check.check(spec, self._grants.nodes)

    # desired state

    async def put_project(self, project: Project) -> None:
        def build() -> Batch | None:
            same = self._state.projects.get(project.name) == project
            return None if same else Batch(projects={project.name: project}, changes=[Change("project", sentence=project.name)])

        await self._journal.write(build)

    async def seed_projects(self, projects: Sequence[Project]) -> list[str]:
        made: list[str] = []

        def build() -> Batch | None:
            if self._state.projects:
                return None
            made[:] = [project.name for project in projects]
            changes = [Change("project", sentence=name) for name in made]
            return Batch(projects={project.name: project for project in projects}, changes=changes) if made else None

        await self._journal.write(build)
        return made

    async def delete_project(self, name: str) -> None:
        def build() -> Batch | None:
            if name not in self._state.projects:
                return None
            left = sum(1 for workload in self._state.workloads.values() if workload.project == name)
            if left:
                raise Conflict(
                    f"Project {name} still has {left} workload{'s' if left > 1 else ''}.",
                    field="name",
                    value=name,
                    next_step=f"Delete them first: `runai list -p {name}` shows them.",
                )
            return Batch(projects={name: None}, changes=[Change("project", sentence=name)])

        await self._journal.write(build, frees=True)

    async def put_department(self, department: Department) -> None:
        def build() -> Batch | None:
            same = self._state.departments.get(department.name) == department
            return None if same else Batch(departments={department.name: department}, changes=[Change("project", sentence=department.name)])

        await self._journal.write(build)

    async def delete_department(self, name: str) -> None:
        def build() -> Batch | None:
            known = name in self._state.departments
            return Batch(departments={name: None}, changes=[Change("project", sentence=name)]) if known else None

        await self._journal.write(build)

    async def submit(self, workload: Workload, spec: WorkloadSpec) -> None:
        if not _ID.match(workload.id):
            raise Invalid(f"{workload.id[:100]!r} cannot be the id of a workload.", field="id", value=workload.id[:100])

        def build() -> Batch | None:
            if workload.id in self._state.workloads:
                return None
            if (workload.project, workload.name) in self._state.names:
                raise Conflict(
                    f"Project {workload.project} already has a workload named {workload.name}.",
                    field="name",
                    value=workload.name,
                    next_step=f"Choose another name, or delete the old one: `runai delete {workload.name} -p {workload.project}`.",
                )
            return Batch(
                workloads={workload.id: workload}, specs={workload.id: spec}, changes=[Change("submitted", workload_id=workload.id)]
            )

        await self._journal.write(build)

    async def set_phase(self, workload_id: str, phase: Phase, reason: Reason | None, now: float) -> None:
        def build() -> Batch | None:
            workload = self._workload(workload_id)
            if workload.phase is phase:
                return None
            new = transitions.in_phase(workload, phase, reason, now)
            return Batch(workloads={workload_id: new}, changes=[Change("updated", workload_id=workload_id)])

        await self._journal.write(build, frees=True)

    async def forget(self, workload_id: str) -> None:
        left: list[tuple[Key, Path, Run]] = []

        def build() -> Batch | None:
            if workload_id not in self._state.workloads:
                return None
            for one, pod, run in self._state.holding():
                if one.id == workload_id:
                    key = (workload_id, pod.index)
                    left.append((key, self._pods.run_dir(key, pod), run))
            return Batch(workloads={workload_id: None}, changes=[Change("removed", workload_id=workload_id)])

        if await self._journal.write(build, frees=True):
            self._grants.drop(workload_id)
            self._later(self._clean_up(workload_id, left))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """In the background; `close()` waits for it."""
        chore = asyncio.get_running_loop().create_task(work)
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)

    async def _clean_up(self, workload_id: str, left: list[tuple[Key, Path, Run]]) -> None:
        for key, run_dir, run in left:
            await self._close_sessions(key)
            await self._pods.discard(run_dir, run)
        await asyncio.to_thread(shutil.rmtree, self.state_dir / "pods" / workload_id, ignore_errors=True)

    # pods

    async def start_pod(self, workload_id: str, index: int, placement: Placement, now: float) -> None:
        token = secrets.token_hex(16)

        def build() -> Batch | None:
            workload, pod = self._pod(workload_id, index)
            if pod.state is not PodState.PENDING:
                return None
            run = self._grants.new_run(workload, pod, placement, token)
            started = transitions.started(pod, placement, now)
            changes = [Change("updated", workload_id, index)]
            return Batch(
                workloads={workload_id: transitions.with_pod(workload, started, now)}, runs={(workload_id, index): run}, changes=changes
            )

        if not await self._journal.write(build):
            return
        workload = self._workload(workload_id)
        if workload.kind is not Kind.WORKSPACE:
            self._pods.launch((workload_id, index), token)
            return
        with contextlib.suppress(OSError):  # a full disk: the hub's spawner will say so when it starts the process
            await asyncio.to_thread(self._grants.home, workload.user)

    async def stop_pod(self, workload_id: str, index: int, reason: Reason, grace_s: float, now: float) -> None:
        def build() -> Batch | None:
            workload, pod = self._pod(workload_id, index)
            deadline = now + grace_s
            if pod.state not in HOLDING or (pod.release_deadline is not None and pod.release_deadline <= deadline):
                return None
            said = pod.stop_reason if pod.state is PodState.RELEASING else reason
            stopped = replace(pod, state=PodState.RELEASING, release_deadline=deadline, stop_reason=said)
            return Batch(
                workloads={workload_id: transitions.with_pod(workload, stopped, now)}, changes=[Change("updated", workload_id, index)]
            )

        changed = await self._journal.write(build, frees=True)
        run = self._state.runs.get((workload_id, index))
        if changed and run and self._workload(workload_id).kind is not Kind.WORKSPACE:
            self._pods.stop((workload_id, index), run.token, grace_s)

    async def nominate(self, workload_id: str, index: int, placement: Placement | None) -> None:
        def build() -> Batch | None:
            workload, pod = self._pod(workload_id, index)
            if pod.nominated == placement:
                return None
            new = replace(workload, pods=tuple(replace(one, nominated=placement) if one is pod else one for one in workload.pods))
            return Batch(workloads={workload_id: new}, changes=[Change("updated", workload_id, index)])

        await self._journal.write(build)

    async def requeue_pod(self, workload_id: str, index: int) -> None:
        def build() -> Batch | None:
            workload, pod = self._pod(workload_id, index)
            if not transitions.has_ended(pod):
                return None
            new = transitions.with_pod(workload, transitions.again(pod), time.time())
            return Batch(workloads={workload_id: new}, changes=[Change("updated", workload_id, index)])

        await self._journal.write(build, frees=True)

    async def report_pod(self, workload_id: str, index: int, state: PodState, now: float, exit_code: int | None = None) -> None:
        def build() -> Batch | None:
            workload, pod = self._pod(workload_id, index)
            if workload.kind is not Kind.WORKSPACE:
                raise Conflict(f"{workload.name} is run by the scheduler itself; nobody else reports on it.", field="state", value=state)
            if pod.state not in HOLDING or (state is PodState.RUNNING and pod.state is not PodState.STARTING):
                return None
            if state is PodState.RUNNING:
                new = transitions.with_pod(workload, replace(pod, state=state), now)
                return Batch(workloads={workload_id: new}, changes=[Change("started", workload_id, index)])
            ended = PodState.STOPPED if pod.state is PodState.RELEASING else state
            pod = replace(pod, state=ended, ended_at=now, exit_code=exit_code, release_deadline=None)
            kind = "released" if ended is PodState.STOPPED else "exited"
            return Batch(workloads={workload_id: transitions.ended(workload, pod, now)}, changes=[Change(kind, workload_id, index)])

        if await self._journal.write(build, frees=True) and state is not PodState.RUNNING:
            await self._close_sessions((workload_id, index))

    # inside a pod

    def logs(
        self,
        workload_id: str,
        index: int,
        *,
        tail: int | None = None,
        since: float | None = None,
        follow: bool = False,
        timestamps: bool = False,
    ) -> AsyncIterator[bytes]:
        _, pod = self._pod(workload_id, index)
        attempt = pod.attempt
        if pod.state is PodState.PENDING and attempt and not follow:
            attempt -= 1  # it waits again: what its last attempt said is all there is

        def ended() -> bool:
            workload = self._state.workloads.get(workload_id)
            now = next((one for one in workload.pods if one.index == index), None) if workload else None
            if now is None or now.attempt != attempt:
                return True
            return transitions.has_ended(now) or (
                now.state is PodState.PENDING and workload is not None and workload.phase is not Phase.ACTIVE
            )

        run_dir = runs.directory(self.state_dir, workload_id, index, attempt)
        return logs.read(run_dir, ended=ended, tail=tail, since=since, follow=follow, timestamps=timestamps)

    async def exec(self, workload_id: str, index: int, argv: Sequence[str], *, tty: bool, rows: int = 24, columns: int = 80) -> ExecSession:
        workload, pod = self._pod(workload_id, index)
        key = (workload_id, index)
        run = self._state.runs.get(key)
        if pod.state is not PodState.RUNNING or run is None:
            raise Conflict(
                f"{workload.name} is not running now (it is {pod.state}).",
                field="state",
                value=pod.state,
                next_step=f"`runai why {workload.name} -p {workload.project}` says why.",
            )
        if not argv or not argv[0]:
            raise Invalid("No command was given.", field="argv", next_step=f"For example: runai exec {workload.name} nvidia-smi.")
        variables, directory = await asyncio.to_thread(self._grants.inside, workload, pod, run)
        sessions = self._sessions.setdefault(key, set())
        session = LocalExec(on_end=sessions.discard)
        await session.start(argv, environment=variables, directory=directory, tty=tty, rows=rows, columns=columns)
        sessions.add(session)
        return session

    async def _close_sessions(self, key: Key) -> None:
        for session in self._sessions.pop(key, set()):
            await session.close()

    # look-ups

    def _workload(self, workload_id: str) -> Workload:
        try:
            return self._state.workloads[workload_id]
        except KeyError:
            raise NotFound(f"There is no workload {workload_id}.", field="id", value=workload_id) from None

    def _pod(self, workload_id: str, index: int) -> tuple[Workload, Pod]:
        workload = self._workload(workload_id)
        for pod in workload.pods:
            if pod.index == index:
                return workload, pod
        raise NotFound(f"{workload.name} has no pod {index}.", field="pod", value=index)
