"""What the hub's progress page is told while a workspace waits: events as values, and a board that replays them to every viewer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from hotdesk_api.models import Grant, WorkloadOut

Event = dict[str, Any]
ASKED, QUEUED, GRANTED, STARTED = 5, 10, 50, 70  # per cent on the bar


def asked(what: str) -> Event:
    return {"progress": ASKED, "message": f"Asking for {what} …", "hotdesk": {"state": "asked"}}


def waiting(workload: WorkloadOut) -> Event:
    """Place and reason, the way `runai why` says it."""
    place = f"Number {workload.queue_position} in the queue of {workload.project}" if workload.queue_position else "Waiting"
    reason = workload.reason.sentence if workload.reason else ""
    details = {
        "state": "waiting",
        "position": workload.queue_position,
        "reason": reason,
        "code": workload.reason.code if workload.reason else "",
        "project": workload.project,
        "workload": workload.name,
    }
    return {"progress": QUEUED, "message": f"{place}. {reason}".strip() if reason else f"{place}.", "hotdesk": details}


def granted(grant: Grant) -> Event:
    mark = " (SIMULATED GPUs)" if grant.simulated and grant.gpu_millis else ""
    return {"progress": GRANTED, "message": f"Placed on {grant.node}{mark}. Starting the workspace …", "hotdesk": {"state": "granted"}}


def started() -> Event:
    return {"progress": STARTED, "message": "The workspace's server is starting up …", "hotdesk": {"state": "started"}}


def out_of_touch(sentence: str) -> Event:
    return {
        "progress": QUEUED,
        "message": f"{sentence} Trying again; the place in the queue is kept.",
        "hotdesk": {"state": "out of touch"},
    }


class Board:
    """Events of one spawn. Every `follow` gets all from the beginning (the page reconnects as it likes), then what comes."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._closed = False
        self._change = asyncio.Event()

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(self._events)

    def clear(self) -> None:
        self._events.clear()
        self._closed = False
        self._wake()

    def put(self, event: Event) -> None:
        """Add it, unless it says what the last one said."""
        if not self._events or self._events[-1] != event:
            self._events.append(event)
            self._wake()

    def close(self) -> None:
        """Nothing more will come; followers end."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    async def follow(self) -> AsyncIterator[Event]:
        sent = 0
        while True:
            change = self._change
            while sent < len(self._events):
                event = self._events[sent]
                sent += 1
                yield dict(event)
            if self._closed:
                return
            await change.wait()
