"""Waiting for change: the scheduler's events wake us, the state itself is always asked for. Survives a restarting scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from hotdesk_api import calls
from hotdesk_api.client import AsyncClient, Client
from hotdesk_api.errors import HotdeskError, Unavailable, WaitTimeout
from hotdesk_api.models import FINAL_STATUSES

from hotdesk.answers import Answer
from hotdesk.render.view import Cell, View

if TYPE_CHECKING:
    from hotdesk_api.models import WorkloadDetail

ASK_AGAIN_S = 10.0
RECONNECT_S = 1.0
UNREACHABLE_LIMIT_S = 60.0


class Changes:
    """Wakes its owner when something of a project or job changed. A thread reads the events; missed ones cost `ASK_AGAIN_S` at most."""

    def __init__(self, url: str, token: str | None, *, project: str | None = None, workload: str | None = None) -> None:
        self._client = Client(url, token)
        self._project, self._workload = project, workload
        self._changed = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="hotdesk-changes", daemon=True)
        self._thread.start()

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _read(self) -> None:
        while not self._closed.is_set():
            try:
                for _event in self._client.events(project=self._project, workload=self._workload):
                    self._changed.set()
                    if self._closed.is_set():
                        return
            except (HotdeskError, RuntimeError):
                pass  # not reachable (or closed under us): ask again below, the owner sees the real error when it asks for the state
            self._closed.wait(RECONNECT_S)

    def wait(self, timeout_s: float) -> bool:
        """True as soon as something changed, False after the time."""
        changed = self._changed.wait(timeout_s)
        self._changed.clear()
        return changed

    def wake(self) -> None:
        self._changed.set()

    def close(self) -> None:
        """Ends the thread with the stream it reads; does not wait for it (a silent stream may hold it until the next event)."""
        self._closed.set()
        self._client.close()


def renewed(again: Callable[[], Answer], before: Answer) -> Answer:
    """The answer anew; while the scheduler cannot be reached the one before, with a line that says so."""
    try:
        return again()
    except Unavailable as error:
        seen = before.view or View(())
        return replace(before, view=replace(seen, footer=(Cell(f"Not up to date: {error.sentence}", "bad"),)))


def reached(job: WorkloadDetail, until: str) -> bool:
    return job.status in FINAL_STATUSES or (until == "running" and job.status == "Running")


def wait_for(client: Client, project: str, name: str, *, until: str = "finished", timeout_s: float | None = None) -> WorkloadDetail:
    """The job once it is `running` (or over) or `finished`. Raises WaitTimeout; NotFound if it is deleted meanwhile."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    answered_at = time.monotonic()
    with Changes(client.url, client.token, project=project, workload=name) as changes:
        while True:
            job = None
            try:
                job = client.call(calls.workload(project, name))
                answered_at = time.monotonic()
            except Unavailable:
                if time.monotonic() - answered_at > UNREACHABLE_LIMIT_S:
                    raise
            if job is not None and reached(job, until):
                return job
            left = ASK_AGAIN_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise _timed_out(project, name, until, timeout_s, job)
            changes.wait(min(left, ASK_AGAIN_S if job is not None else RECONNECT_S))


async def wait_for_async(url: str, token: str, project: str, name: str) -> WorkloadDetail:
    """As `wait_for` its end, without a thread: the events are read in the caller's loop, and a cancelled wait leaves nothing behind."""
    client = AsyncClient(url, token)
    unreachable_since: float | None = None
    try:
        while True:
            try:
                job = await client.call(calls.workload(project, name))
                unreachable_since = None
                if reached(job, "finished"):
                    return job
                async with asyncio.timeout(ASK_AGAIN_S):
                    await _next_change(client, project, name, job)
            except TimeoutError:
                continue
            except Unavailable:
                unreachable_since = unreachable_since or time.monotonic()
                if time.monotonic() - unreachable_since > UNREACHABLE_LIMIT_S:
                    raise
                await asyncio.sleep(RECONNECT_S)
    finally:
        await client.close()


async def _next_change(client: AsyncClient, project: str, name: str, seen: WorkloadDetail) -> None:
    """Returns when its state is no longer the one seen."""
    async with contextlib.aclosing(client.events(project=project, workload=name)) as events:  # type: ignore[type-var]  # an async generator
        async for event in events:
            if event.kind == "removed" or (event.workload is not None and event.workload.status != seen.status):
                return


def _timed_out(project: str, name: str, until: str, timeout_s: float | None, job: WorkloadDetail | None) -> WaitTimeout:
    state = f"it is {job.status}" + (f": {job.reason.sentence}" if job.reason else "") if job else "the scheduler cannot be reached"
    return WaitTimeout(
        f"{name} was not {until} after {timeout_s:g} s; {state.rstrip('.')}.",
        field="timeout",
        limit=None if timeout_s is None else int(timeout_s),
        next_step=f"It goes on; `why {name} -p {project}` says what it waits for.",
    )
