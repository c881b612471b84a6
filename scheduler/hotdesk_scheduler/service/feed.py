"""Who listens to changes (`/v1/events`), and what each still has to be told.

A listener that is slow gets only the newest view of each workload, so what waits for it is bounded by what there is; one
that lets events pile up is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from hotdesk_api.models import EventOut, StreamEvent, WorkloadOut

from hotdesk_scheduler.service.callers import Caller

MAX_EVENTS_WAITING = 1000


class Listener:
    """One open stream. `project` and `workload` narrow what it gets."""

    def __init__(self, caller: Caller, project: str | None, workload: str | None) -> None:
        self.caller = caller
        self.project = project
        self.workload = workload
        self.dropped = False
        self._waiting: dict[str, bytes] = {}
        self._events = 0
        self._wake = asyncio.Event()

    def wants(self, project: str | None, workload: str | None, *, kind: str | None) -> bool:
        if project is None:
            return self.project is None and self.workload is None
        visible = self.caller.is_member(project) or (self.caller.hosts_workspaces and kind == "workspace")
        return visible and self.project in (None, project) and self.workload in (None, workload)

    def put(self, key: str, data: bytes, *, is_event: bool) -> None:
        if is_event:
            self._events += 1
            if self._events > MAX_EVENTS_WAITING:
                self.dropped = True
        self._waiting.pop(key, None)
        self._waiting[key] = data
        self._wake.set()

    def close(self) -> None:
        self.dropped = True
        self._wake.set()

    async def take(self, timeout_s: float) -> list[bytes]:
        """What waits, oldest first; [] when nothing came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return []
        self._wake.clear()
        waiting, self._waiting, self._events = list(self._waiting.values()), {}, 0
        return waiting


class Feed:
    """Fans changes out. Everything is turned into bytes once."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._number = 0

    def __len__(self) -> int:
        return len(self._listeners)

    def join(self, caller: Caller, *, project: str | None, workload: str | None) -> Listener:
        listener = Listener(caller, project, workload)
        self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()

    def workloads(self, version: int, changed: Iterable[WorkloadOut], removed: Iterable[WorkloadOut]) -> None:
        if not self._listeners:
            return
        for view in changed:
            if not any(listener.wants(view.project, view.name, kind=view.kind) for listener in self._listeners):
                continue
            event = StreamEvent(kind="workload", version=version, workload=view, name=view.name, project=view.project)
            self._send(event, key=view.id, workload_kind=view.kind)
        for view in removed:
            event = StreamEvent(kind="removed", version=version, name=view.name, project=view.project)
            self._send(event, key=view.id, workload_kind=view.kind)

    def event(self, version: int, event: EventOut, *, workload_kind: str | None) -> None:
        if self._listeners:
            self._number += 1
            out = StreamEvent(kind="event", version=version, event=event, name=event.workload, project=event.project)
            self._send(out, key=f"event {self._number}", workload_kind=workload_kind)

    def _send(self, event: StreamEvent, *, key: str, workload_kind: str | None) -> None:
        data: bytes | None = None
        for listener in self._listeners:
            if listener.wants(event.project, event.name, kind=workload_kind):
                data = data or frame(event)
                listener.put(key, data, is_event=event.kind == "event")


def frame(event: StreamEvent) -> bytes:
    """One server-sent event."""
    return b"event: " + event.kind.encode() + b"\ndata: " + event.model_dump_json(exclude_none=True).encode() + b"\n\n"
