"""Workspaces: workloads whose process the hub's spawner starts and ends.

The scheduler owns the place in the queue and the grant; the hub owns the process. So a place is kept for a while without its
spawner (a hub restart), a stop goes through the hub's API, and the end is learned from the spawner and from the hub's list of
servers, so that a lost report cannot leak a share. Nothing is killed behind the hub's back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from weakref import WeakValueDictionary

from hotdesk_api.errors import Conflict, NotFound, Unavailable
from hotdesk_api.models import WorkloadSpec

from hotdesk_scheduler.core.model import HOLDING, Kind, Phase, Pod, PodState, Workload
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines.base import Engine
from hotdesk_scheduler.service.hub import Hub, Server, Servers
from hotdesk_scheduler.service.stops import Stops

log = logging.getLogger(__name__)

MISSES = 2
REPLACE_WAIT_S = 20.0
_NOT_COMPARED = frozenset({"name", "name_prefix", "command_line", "labels", "annotations"})


@dataclass(frozen=True, slots=True)
class Patience:
    """How long each thing may take, in seconds. `submit_s`: from when the hub lists a start until its submission is here."""

    poll_s: float = 12.0
    wait_s: float = 600.0
    grant_s: float = 300.0
    submit_s: float = 3.0


class Workspaces:
    """`hub` None: there is no hub to ask (tests, a tokens file); then only reports and time count."""

    def __init__(self, engine: Engine, hub: Hub | None, *, clock: Callable[[], float], patience: Patience) -> None:
        self._engine = engine
        self._hub = hub
        self._clock = clock
        self._patience = patience
        self._touched: dict[str, float] = {}
        self._missed: dict[str, int] = {}
        self._entering: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._making_way: set[str] = set()
        self._heard_of: set[str] = set()  # since the hub was asked for its list
        self._starts: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        self._granted: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._opened_at = clock()
        self._stops = Stops(hub, on_end=self._wake_soon)
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        return self._problem or self._stops.problem

    async def start(self) -> None:
        self._opened_at = self._clock()
        self._task = asyncio.create_task(self._run(), name="workspaces")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._stops.close()

    def wake(self) -> None:
        """Something was stopped: look at it now rather than at the next poll."""
        if any(pod.state is PodState.RELEASING and workload.id not in self._asked for workload, pod in self._pods()):
            self._wake.set()

    def touch(self, workload_id: str) -> None:
        """Its spawner is alive."""
        self._touched[workload_id] = self._clock()
        self._heard_of.add(workload_id)

    def _pods(self) -> Iterator[tuple[Workload, Pod]]:
        for workload in self._engine.snapshot().workloads:
            if workload.kind is Kind.WORKSPACE and workload.pods:
                yield workload, workload.pods[0]

    def key(self, workload: Workload) -> tuple[str, str]:
        return workload.user, self._engine.spec(workload.id).server_name or ""

    def find(self, user: str, server_name: str) -> Workload | None:
        return next((workload for workload, _ in self._pods() if self.key(workload) == (user, server_name)), None)

    async def enter(self, user: str, spec: WorkloadSpec, submit: Callable[[], Awaitable[Workload]]) -> tuple[Workload, bool]:
        """The workload this submission is already, or a new one after making way for it; whether it is new.

        The same wish again keeps its place. A different one replaces what waits or is granted, and what the hub says has ended.
        One at a time for each server: a start that its hub gave up leaves nothing beside the next one.
        Raises Conflict while the one before is still being stopped.
        """
        server_name = spec.server_name or ""
        turn = self._entering.setdefault((user, server_name), asyncio.Lock())
        async with turn:
            there = self.find(user, server_name)
            if there is not None and self._is_the_same(there, spec):
                self.touch(there.id)
                return there, False
            if there is not None:
                await self._make_way(there, there.pods[0])
            workload = await submit()
            self.touch(workload.id)
            return workload, True

    def _is_the_same(self, there: Workload, spec: WorkloadSpec) -> bool:
        alive = there.phase is Phase.ACTIVE and there.pods[0].state in (PodState.PENDING, PodState.STARTING, PodState.RUNNING)
        return alive and _same(self._engine.spec(there.id), spec)

    async def _make_way(self, there: Workload, pod: Pod) -> None:
        """The hub starts this server anew, so a process of the old one is gone: end it, wait for it, forget it."""
        if pod.state in HOLDING:
            with contextlib.suppress(NotFound):  # it went by itself meanwhile
                await self._end_for_the_next(there, pod)
            self._wake.set()  # a server that runs is asked to stop now
            await self._until_released(there)
        await self._engine.forget(there.id)
        self._drop(there.id)

    async def _end_for_the_next(self, there: Workload, pod: Pod) -> None:
        reason = Reason(ReasonCode.OWNER_STOPPED, f"{there.user} started this workspace anew with other wishes.")
        self._making_way.add(there.id)
        try:
            runs = await self._runs(there)  # first: when the hub cannot be asked, nothing is changed
            await self._engine.stop_pod(there.id, pod.index, reason, 0.0, self._clock())
            if not runs:
                await self._engine.report_pod(there.id, pod.index, PodState.STOPPED, self._clock())
        finally:
            self._making_way.discard(there.id)

    async def _runs(self, workload: Workload) -> bool:
        """Ready in the hub. Pending does not count: the spawn that is asking right now is pending itself."""
        if self._hub is None:
            return False
        key = self.key(workload)
        server = (await self._hub.servers()).get(key)
        return server is not None and server.ready

    async def _until_released(self, workload: Workload) -> None:
        for _ in range(int(REPLACE_WAIT_S / 0.1)):
            current = next((w for w, _ in self._pods() if w.id == workload.id), None)
            if current is None or current.pods[0].state not in HOLDING:
                return
            await asyncio.sleep(0.1)
        raise Conflict(
            f"Workspace {workload.name} is still being stopped.",
            field="server_name",
            value=workload.name,
            next_step="Start it again in a few seconds.",
        )

    async def report(self, workload: Workload, state: PodState, exit_code: int | None) -> None:
        """What the spawner tells. Raises Conflict for taking up a place that is not (any more) granted."""
        pod = workload.pods[0]
        granted = workload.phase is Phase.ACTIVE and pod.state in (PodState.STARTING, PodState.RUNNING)
        if state is PodState.RUNNING and not granted:
            raise Conflict(
                f"Workspace {workload.name} has no granted place (it is {pod.state}), so its server may not start.",
                field="state",
                value=pod.state.value,
                next_step="Start the workspace again.",
            )
        self.touch(workload.id)
        await self._engine.report_pod(workload.id, pod.index, state, self._clock(), exit_code)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self.reconcile()
                self._problem = None
            except Unavailable as error:
                self._complain(error.sentence)
            except Exception as error:  # like the loop, this never ends
                log.exception("workspaces.reconcile_failed")
                self._problem = f"Workspaces could not be compared with the hub: {error}"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience.poll_s):  # wait_for would swallow a stop() in the moment of a wake()
                    await self._wake.wait()

    def _complain(self, sentence: str) -> None:
        if self._problem != sentence:
            log.warning("workspaces.hub_unreachable error=%s", sentence)
        self._problem = sentence

    async def reconcile(self) -> None:
        """Compare every workspace with the hub's list of servers. Raises Unavailable if the hub cannot be asked."""
        pods = list(self._pods())
        for gone in (self._touched.keys() | self._missed.keys() | self._asked.keys() | self._granted.keys() | self._starts.keys()) - {
            workload.id for workload, _ in pods
        }:
            self._drop(gone)
        if not pods:
            return
        self._heard_of.clear()
        servers: Servers = await self._hub.servers() if self._hub is not None else {}
        for workload, pod in pods:
            if self._engine.find(workload.id) != workload or workload.id in self._heard_of:
                self._wake_soon()  # what the hub said is older: the server it lists, or lacks, may be another one already
                continue
            with contextlib.suppress(NotFound):  # it went by itself meanwhile
                await self._compare(workload, pod, servers.get(self.key(workload)))

    async def _compare(self, workload: Workload, pod: Pod, server: Server | None) -> None:
        if pod.state is PodState.PENDING and workload.phase is Phase.ACTIVE:
            await self._compare_waiting(workload, server)
        elif pod.state is PodState.STARTING:
            await self._compare_granted(workload, pod, server)
        elif pod.state is PodState.RUNNING:
            await self._compare_running(workload, pod, server)
        elif pod.state is PodState.RELEASING:
            await self._compare_stopping(workload, pod, server)
        if pod.state is not PodState.RELEASING:
            self._stops.drop(workload.id)

    def _silent_s(self, workload: Workload) -> float:
        seen = self._touched.setdefault(workload.id, max(workload.created_at, self._opened_at))
        return self._clock() - seen

    async def _compare_waiting(self, workload: Workload, server: Server | None) -> None:
        if server is not None and server.pending:
            self.touch(workload.id)
        elif self._silent_s(workload) > self._patience.wait_s:
            minutes = int(self._patience.wait_s // 60)
            reason = Reason(ReasonCode.OWNER_STOPPED, f"Nobody waited for this workspace any more for {minutes} minutes.")
            await self._engine.set_phase(workload.id, Phase.DELETING, reason, self._clock())
            log.info("workspace.abandoned workload=%s", workload.id)

    async def _compare_granted(self, workload: Workload, pod: Pod, server: Server | None) -> None:
        """A grant that nobody takes up goes back (lifecycle does the same where the engine notes the time of the grant)."""
        if not self._engine.details(workload.id, pod.index).is_ready:
            return
        granted_at = self._granted.setdefault(workload.id, self._clock())
        if server is not None or self._clock() - granted_at <= self._patience.grant_s:
            return
        sentence = f"Its place was granted and not taken up within {self._patience.grant_s:.0f} s, so it was given back."
        await self._engine.stop_pod(workload.id, pod.index, Reason(ReasonCode.GRANT_NOT_TAKEN_UP, sentence), 0.0, self._clock())
        await self._ended(workload, pod)

    async def _compare_running(self, workload: Workload, pod: Pod, server: Server | None) -> None:
        if self._hub is None or server is not None:
            self._missed.pop(workload.id, None)
            return
        self._missed[workload.id] = self._missed.get(workload.id, 0) + 1
        if self._missed[workload.id] >= MISSES:
            log.warning("workspace.end_not_reported workload=%s", workload.id)
            await self._ended(workload, pod)

    async def _compare_stopping(self, workload: Workload, pod: Pod, server: Server | None) -> None:
        """Have the hub asked until its list no longer has it. Without a hub, its deadline decides."""
        if workload.id in self._making_way:
            return  # what the hub lists may be the new start, which waits for this
        now = self._clock()
        if self._hub is None or server is None:
            if self._hub is not None or pod.release_deadline is None or now >= pod.release_deadline:
                await self._ended(workload, pod)
        elif server.pending == "spawn" and now - self._starts.setdefault(workload.id, now) < self._patience.submit_s:
            self._wake_soon()  # it may be the next start, whose submission is on its way
        elif now - self._asked.get(workload.id, float("-inf")) >= min(self._patience.poll_s, 10.0) and (
            server.pending == "stop" or self._stops.ask(workload.id, *self.key(workload))
        ):
            self._asked[workload.id] = now
            self._wake_soon()

    def _wake_soon(self) -> None:
        asyncio.get_running_loop().call_later(1.0, self._wake.set)

    async def _ended(self, workload: Workload, pod: Pod) -> None:
        await self._engine.report_pod(workload.id, pod.index, PodState.STOPPED, self._clock())
        self._missed.pop(workload.id, None)

    def _drop(self, workload_id: str) -> None:
        for noted in (self._touched, self._asked, self._granted, self._starts):
            noted.pop(workload_id, None)
        self._missed.pop(workload_id, None)
        self._stops.drop(workload_id)


def _same(before: WorkloadSpec, after: WorkloadSpec) -> bool:
    return before.model_dump(exclude=set(_NOT_COMPARED)) == after.model_dump(exclude=set(_NOT_COMPARED))
