"""Pods as processes: started under a supervisor, watched by pidfd, stopped through it, adopted after a restart, ended for certain.

The order that makes `kill -9` harmless at every point: the run with its token is committed (STARTING) before a supervisor is started;
the supervisor writes `process.json` before the program exists and `exit.json` after everything of it is gone. So after a restart:
an exit record -> it ended so · `process.json` and that process alive -> adopt it · `process.json` and no process -> kill what is left
of it, then LOST · neither -> start it: should a supervisor of before be on its way, both ask for the run's `claim` and one gets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotdesk_scheduler.core.model import HOLDING, Kind, Pod, PodState, Workload
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines import transitions
from hotdesk_scheduler.engines.base import Change
from hotdesk_scheduler.engines.local import processes, runs
from hotdesk_scheduler.engines.local.journal import Journal
from hotdesk_scheduler.engines.local.processes import ProcessId
from hotdesk_scheduler.engines.local.runs import Exit, Processes, Run
from hotdesk_scheduler.engines.local.state import Batch, Key

STARTS_AT_ONCE = 4
SUPERVISOR_OVERDUE_S = 10.0
POLL_S = 0.5
RELAUNCH_AFTER_S = 0.5
KILL_WITHIN_S = 60.0
PlanOf = Callable[[Workload, Pod, Run], dict[str, Any]]


class Pods:
    """Everything between a committed STARTING and a committed end, for pods whose process this engine runs."""

    def __init__(
        self, journal: Journal, *, state_dir: Path, plan_of: PlanOf, before_end: Callable[[Key], Coroutine[Any, Any, None]]
    ) -> None:
        self.journal = journal
        self.state = journal.state
        self.state_dir = state_dir
        self._plan_of = plan_of
        self._before_end = before_end
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._launches: dict[str, asyncio.Task[None]] = {}
        self._pidfds: dict[str, int] = {}

    def run_dir(self, key: Key, pod: Pod) -> Path:
        return runs.directory(self.state_dir, key[0], key[1], pod.attempt)

    def current(self, key: Key, token: str) -> tuple[Workload, Pod, Run] | None:
        """The pod with its run, if it still holds its place in this very run."""
        workload, run = self.state.workloads.get(key[0]), self.state.runs.get(key)
        pod = next((one for one in workload.pods if one.index == key[1]), None) if workload else None
        if workload is None or pod is None or run is None or run.token != token or pod.state not in HOLDING:
            return None
        return workload, pod, run

    async def close(self) -> None:
        """Let go of every pod. Starts under way are waited for: they take milliseconds and are then on record."""
        if self._starting:
            await asyncio.wait(self._starting, timeout=10)
        for task in self._tasks | self._starting:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._starting, return_exceptions=True)
        loop = asyncio.get_running_loop()
        for descriptor in self._pidfds.values():
            loop.remove_reader(descriptor)
            os.close(descriptor)
        self._pidfds.clear()

    def _do(self, work: Coroutine[Any, Any, None], among: set[asyncio.Task[None]] | None = None) -> asyncio.Task[None]:
        among = self._tasks if among is None else among
        task = asyncio.get_running_loop().create_task(work)
        among.add(task)
        task.add_done_callback(among.discard)
        return task

    # start

    def launch(self, key: Key, token: str) -> None:
        """Start the committed run in the background."""
        self._launches[token] = self._do(self._launch(key, token), self._starting)
        self._launches[token].add_done_callback(lambda _: self._launches.pop(token, None))

    async def _launch(self, key: Key, token: str) -> None:
        async with self._starts:
            now = self.current(key, token)
            if now is None:
                return
            workload, pod, run = now
            if pod.state is not PodState.STARTING:
                await self._never_start(key, token, self.run_dir(key, pod))
                return
            try:
                answer = await asyncio.to_thread(self._spawn, self.run_dir(key, pod), workload, pod, run)
            except runs.Taken:
                await self._adopt_late(key, token, self.run_dir(key, pod))
                return
            except runs.Vanished:
                await self._vanished(key, token, self.run_dir(key, pod))
                return
            except (OSError, ValueError) as error:
                answer = f"its directory could not be prepared ({error.strerror if isinstance(error, OSError) else error})"
        if isinstance(answer, str):
            await self._failed_to_start(key, token, answer)
            return
        self._watch(key, token, answer.shim)
        await self._started(key, token, answer)

    def _spawn(self, run_dir: Path, workload: Workload, pod: Pod, run: Run) -> Processes | str:
        plan = self._plan_of(workload, pod, run)
        runs.prepare(run_dir, plan)
        return runs.spawn(run_dir, run.token)

    async def _failed_to_start(self, key: Key, token: str, error: str) -> None:
        """No supervisor of it is left, so nothing of it runs."""
        sentence = f"Pod {key[1]} could not be started: {error}."
        if found := self.current(key, token):
            await asyncio.to_thread(runs.bar, self.run_dir(key, found[1]))
        await asyncio.to_thread(self._kill_supervisors, token)
        await asyncio.to_thread(self._clear, token, None)
        about = Change("failed_verb", *key, sentence)
        await self.journal.write_surely(lambda: self._ended(key, token, None, error=sentence), what="A failed start", about=about)

    async def _vanished(self, key: Key, token: str, run_dir: Path) -> None:
        """Killed while it was starting, however far it got: lost like any other that is killed, and no failure of its program."""
        await asyncio.to_thread(runs.bar, run_dir)
        await asyncio.to_thread(self._kill_supervisors, token)
        await self._settle(key, token)

    def _kill_supervisors(self, token: str) -> None:
        """However far they got: the starter, or the supervisor it left."""
        give_up = time.monotonic() + SUPERVISOR_OVERDUE_S
        while (shim := processes.supervisors().get(token)) and time.monotonic() < give_up:
            processes.send(shim, signal.SIGKILL)
            time.sleep(0.01)

    async def _never_start(self, key: Key, token: str, run_dir: Path) -> None:
        """A run that is to be stopped before it began; one that began after all is adopted, and then stopped."""
        if await asyncio.to_thread(runs.bar, run_dir):
            await self._end(key, token, None)
        else:
            await self._adopt_late(key, token, run_dir)

    async def _started(self, key: Key, token: str, now: Processes) -> None:
        """STARTING -> RUNNING, with its processes on record; a stop that came meanwhile is passed on."""

        def build() -> Batch | None:
            if (found := self.current(key, token)) is None:
                return None
            workload, pod, run = found
            if pod.state is not PodState.STARTING and (run.shim, run.child) == (now.shim, now.child):
                return None  # adopted as it was
            batch = Batch(runs={key: replace(run, shim=now.shim, child=now.child)})
            if pod.state is PodState.STARTING and not now.error:
                batch.workloads[key[0]] = transitions.with_pod(workload, replace(pod, state=PodState.RUNNING), time.time())
                sentence = f"Pod {key[1]} runs on {run.node}{f' as process {now.child.pid}' if now.child else ''}."
                batch.changes.append(Change("started", *key, sentence))
            return batch

        about = Change("started", *key)
        await self.journal.write_surely(build, what="The start of a pod", about=about)
        if (found := self.current(key, token)) and found[1].state is PodState.RELEASING:
            self.stop(key, token)

    # watch

    def _watch(self, key: Key, token: str, shim: ProcessId) -> None:
        """Settle the pod as soon as its supervisor is gone. Works for any process of this user, not only children."""
        try:
            descriptor = processes.open_pidfd(shim)
        except OSError:  # out of descriptors: look now and then
            self._do(self._poll(key, token, shim))
            return
        if descriptor is None:
            self._do(self._settle(key, token))
            return
        self._pidfds[token] = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._gone, key, token)

    def _gone(self, key: Key, token: str) -> None:
        descriptor = self._pidfds.pop(token)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        self._do(self._settle(key, token))

    async def _poll(self, key: Key, token: str, shim: ProcessId) -> None:
        while processes.is_alive(shim):  # noqa: ASYNC110  # a stranger's death is no event without a pidfd
            await asyncio.sleep(POLL_S)
        await self._settle(key, token)

    # end

    async def _settle(self, key: Key, token: str) -> None:
        """The supervisor is gone: read how it ended; without a record kill what is left of the run, and only then say so."""
        if (found := self.current(key, token)) is None:
            return
        _, pod, run = found
        run_dir = self.run_dir(key, pod)
        record = runs.read_exit(run_dir, token)
        known = runs.read_processes(run_dir, token)
        await self._before_end(key)
        if left := await asyncio.to_thread(self._clear, token, run.child or (known.child if known else None)):
            pids = ", ".join(str(one.pid) for one in left)
            self.journal.tell(Change("failed_verb", *key, f"Processes of pod {key[1]} cannot be killed and are left: {pids}."))
        await self._end(key, token, record)

    def _clear(self, token: str, leader: ProcessId | None) -> list[ProcessId]:
        """SIGKILL everything that is left of a run until there is nothing; what is there after a minute is returned."""
        give_up = time.monotonic() + KILL_WITHIN_S
        while (left := processes.remains(token, leader)) and time.monotonic() < give_up:
            for process in left:
                processes.send(process, signal.SIGKILL)
            time.sleep(0.02)
        return left

    async def _end(self, key: Key, token: str, record: Exit | None) -> None:
        about = Change("exited", *key)
        await self.journal.write_surely(lambda: self._ended(key, token, record), what="The end of a pod", about=about)

    def _ended(self, key: Key, token: str, record: Exit | None, error: str = "") -> Batch | None:
        if (found := self.current(key, token)) is None:
            return None
        workload, pod, run = found
        said = error or (f"Pod {key[1]} could not be started: {record.error}." if record and record.error else "")
        state, reason = outcome(pod, record, error=said)
        if record and record.lost_log_bytes:
            said = f"{said} {record.lost_log_bytes} bytes of its log are lost: the disk was full.".strip()
        ended = replace(
            pod,
            state=state,
            started_at=pod.started_at or (record.started_at if record else None),
            ended_at=record.ended_at if record else time.time(),
            exit_code=record.exit_code if record else None,
            release_deadline=None,
            stop_reason=reason,
        )
        kind = {PodState.LOST: "lost", PodState.STOPPED: "released"}.get(state, "exited")
        change = Change("failed_verb" if state is PodState.FAILED and said else kind, *key, _told(ended, said))
        return Batch(
            workloads={key[0]: transitions.ended(workload, ended, time.time())}, runs={key: replace(run, error=said)}, changes=[change]
        )

    # stop

    def stop(self, key: Key, token: str, grace_s: float | None = None) -> None:
        """Pass the stop on to the supervisor, which owns grace and kill from here on; look after it when it is overdue."""
        if (found := self.current(key, token)) is None:
            return
        _, pod, run = found
        shim = run.shim
        if shim is None:
            return  # still being started: `_started` comes back here
        if grace_s is None:  # a stop from before a restart: what is left of its grace
            grace_s = max(0.0, (pod.release_deadline or 0.0) - time.time())
        try:
            runs.write_grace(self.run_dir(key, pod), grace_s)
        except OSError as error:
            self.journal.tell(
                Change("failed_verb", *key, f"The grace of a stop could not be written ({error.strerror}); the default holds.")
            )
        processes.send(shim, signal.SIGTERM)
        self._do(self._kill_if_overdue(key, token, shim, grace_s + SUPERVISOR_OVERDUE_S))

    async def _kill_if_overdue(self, key: Key, token: str, shim: ProcessId, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if self.current(key, token):
            await asyncio.to_thread(processes.send, shim, signal.SIGKILL)

    async def discard(self, run_dir: Path, run: Run) -> None:
        """Kill all of a run whose pod is forgotten, however far it got, and wait until it is gone."""
        if launch := self._launches.get(run.token):
            await asyncio.wait({launch})
        await asyncio.to_thread(self._end_at_once, run_dir, run)

    def _end_at_once(self, run_dir: Path, run: Run) -> None:
        runs.bar(run_dir)
        known = runs.read_processes(run_dir, run.token)
        shim, child = (known.shim, known.child) if known else (run.shim, run.child)
        if shim is not None:
            with contextlib.suppress(OSError):
                runs.write_grace(run_dir, 0.0)
            processes.send(shim, signal.SIGTERM)
            give_up = time.monotonic() + SUPERVISOR_OVERDUE_S
            while processes.is_alive(shim) and time.monotonic() < give_up:
                time.sleep(0.01)
        self._kill_supervisors(run.token)
        self._clear(run.token, child)

    async def discard_strangers(self) -> None:
        """Runs of workloads nobody knows: a scheduler was killed after it forgot them and before their processes and files were gone."""
        directory = self.state_dir / "pods"
        unknown = [path for path in directory.iterdir() if path.name not in self.state.workloads] if directory.is_dir() else []
        for path in unknown:
            for run_dir in path.glob("[0-9]*/[0-9]*"):
                token = str((runs.read_plan(run_dir) or {}).get("environment", {}).get(processes.TOKEN_VARIABLE, ""))
                await self.discard(run_dir, Run(token=token or "none", node="", boot_id=processes.boot_id()))
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)

    # adopt

    async def adopt(self, *, starts: bool = True) -> None:
        """After a restart: bring every pod that held a place to where it really is."""
        for workload, pod, run in list(self.state.holding()):
            if workload.kind is not Kind.WORKSPACE:
                await self._adopt((workload.id, pod.index), pod, run, starts=starts)

    async def _adopt(self, key: Key, pod: Pod, run: Run, *, starts: bool) -> None:
        run_dir = self.run_dir(key, pod)
        known = runs.read_processes(run_dir, run.token)
        if known is None and run.shim is not None:
            known = Processes(run.shim, run.child, pod.started_at)  # somebody removed its file
        if known is not None:
            await self._take_over(key, run.token, run_dir, known)
        elif run.boot_id != processes.boot_id():
            await self._end(key, run.token, None)  # the machine went down before the files reached its disk: it may have run
        elif starts and pod.state is PodState.STARTING:
            self._do(self._launch_later(key, run.token))
        else:
            await self._never_start(key, run.token, run_dir)

    async def _launch_later(self, key: Key, token: str) -> None:
        """The service knows where it answers only a moment after `open()`, and jobs are to be told."""
        await asyncio.sleep(RELAUNCH_AFTER_S)
        self.launch(key, token)

    async def _take_over(self, key: Key, token: str, run_dir: Path, known: Processes) -> None:
        if known.child is None:
            known = await self._with_child(run_dir, token, known)
        if processes.is_alive(known.shim):
            self._watch(key, token, known.shim)
            await self._started(key, token, known)
        else:
            self._do(self._settle(key, token))

    async def _with_child(self, run_dir: Path, token: str, known: Processes) -> Processes:
        """A supervisor that is about to start its program says so in a moment (a full disk may keep it from saying it)."""
        give_up = time.monotonic() + SUPERVISOR_OVERDUE_S
        while known.child is None and processes.is_alive(known.shim) and time.monotonic() < give_up:
            await asyncio.sleep(0.02)
            known = runs.read_processes(run_dir, token) or known
        return known

    async def _adopt_late(self, key: Key, token: str, run_dir: Path) -> None:
        """A supervisor has the run and has not said who it is yet."""
        known, give_up = None, time.monotonic() + SUPERVISOR_OVERDUE_S
        while known is None and time.monotonic() < give_up:
            await asyncio.sleep(0.02)
            known = runs.read_processes(run_dir, token)
        if known is not None:
            await self._take_over(key, token, run_dir, known)
        else:
            await self._failed_to_start(key, token, "its supervisor does not answer")


def outcome(pod: Pod, record: Exit | None, *, error: str = "") -> tuple[PodState, Reason | None]:
    """The state of a pod that has ended, and the reason it carries from then on."""
    if error and pod.state is not PodState.RELEASING:
        missing = record is not None and bool(record.error)  # the program or the working directory is not there
        return PodState.FAILED, Reason(ReasonCode.IMAGE_OR_VOLUME_ERROR if missing else ReasonCode.ENGINE_ERROR, error)
    if pod.state is PodState.RELEASING:
        done = record is not None and not record.stopped and record.exit_code == 0  # it was done before it heard of the stop
        return (PodState.SUCCEEDED if done else PodState.STOPPED), pod.stop_reason
    if record is None:
        sentence = f"The processes of pod {pod.index} vanished without an exit record (killed from outside, or the machine restarted)."
        return PodState.LOST, Reason(ReasonCode.PROCESS_LOST, sentence)
    return (PodState.SUCCEEDED if record.exit_code == 0 else PodState.FAILED), transitions.of_before(pod)


def _told(pod: Pod, said: str) -> str:
    """The end of a pod in one sentence."""
    if pod.state is PodState.LOST and pod.stop_reason:
        return pod.stop_reason.sentence
    if pod.state is PodState.STOPPED:
        return f"Pod {pod.index} was stopped; its place is free again. {said}".strip()
    return (
        said if pod.exit_code is None or pod.exit_code == 127 else f"Pod {pod.index} ended with exit code {pod.exit_code}. {said}".strip()
    )
