"""What the hub's progress page is told while a workspace waits: events as values, and a board that replays them to every viewer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from hotdesk_api.explained import numbers
from hotdesk_api.models import Explanation, Grant, WorkloadOut

Event = dict[str, Any]
ASKED, QUEUED, GRANTED, STARTED = 5, 10, 50, 70  # per cent on the bar

_PLAINLY = {
    "FailedMount": "Its home or another volume is not there yet, and the cluster tries again:",
    "FailedAttachVolume": "Its home or another volume is not there yet, and the cluster tries again:",
    "Failed": "Its image or its container cannot be had, and the cluster tries again:",
    "BackOff": "Its image or its container cannot be had, and the cluster tries again after a pause:",
}


def asked(what: str) -> Event:
    return {"progress": ASKED, "message": f"Asking for {what} …", "hotdesk": {"state": "asked"}}


def waiting(workload: WorkloadOut, answer: Explanation | None = None) -> Event:
    """Place and reason, the way `runai why` says it; `numbers` are the ones it shows below."""
    place = f"Number {workload.queue_position} in the queue" if workload.queue_position else "Waiting"
    reason = workload.reason.sentence if workload.reason else ""
    details = {
        "state": "waiting",
        "position": workload.queue_position,
        "reason": reason,
        "code": workload.reason.code if workload.reason else "",
        "project": workload.project,
        "workload": workload.name,
        "numbers": [[_label(name), text] for name, text in numbers(answer).items()] if answer else [],
    }
    return {"progress": QUEUED, "message": f"{place}. {reason}".strip() if reason else f"{place}.", "hotdesk": details}


def _label(name: str) -> str:
    """`GPUs HELD BY` -> `GPUs held by`."""
    words = [word if word == "GPUs" else word.lower() for word in name.split()]
    return " ".join([words[0][0].upper() + words[0][1:], *words[1:]])


def granted(grant: Grant) -> Event:
    mark = " (SIMULATED GPUs)" if grant.simulated and grant.gpu_millis else ""
    return {"progress": GRANTED, "message": f"Placed on {grant.node}{mark}. Starting the workspace …", "hotdesk": {"state": "granted"}}


def started() -> Event:
    return {"progress": STARTED, "message": "The workspace's server is starting up …", "hotdesk": {"state": "started"}}


def from_cluster(event: Event) -> Event:
    """KubeSpawner's event of a pod that has its place: in plain words where the cluster's are not, and never back on the bar."""
    told = dict(event)
    if "progress" in event:
        told["progress"] = max(GRANTED, int(event["progress"]))
    raw = event.get("raw_event")
    if raw:
        told["message"] = f"{_PLAINLY.get(raw.get('reason'), '')} {raw['message']}".strip()
    return told


def out_of_touch(sentence: str) -> Event:
    return {
        "progress": QUEUED,
        "message": f"{sentence} Trying again; the place in the queue is kept.",
        "hotdesk": {"state": "out of touch"},
    }


class Board:
    """Events of one spawn. Every `follow` gets all from the beginning (the page reconnects as it likes), then what comes."""

    def __init__(self) -> None:
        self._events: list[tuple[int, Event]] = []
        self._serial = 0
        self._closed = False
        self._change = asyncio.Event()

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(event for _, event in self._events)

    def clear(self) -> None:
        self._events.clear()
        self._closed = False
        self._wake()

    def put(self, event: Event) -> None:
        """Add it, unless it says what the last one said; with the same message and other numbers it takes that one's place."""
        last = self._events[-1][1] if self._events else None
        if last == event:
            return
        if last and last["message"] == event["message"]:
            self._events.pop()
        self._serial += 1
        self._events.append((self._serial, event))
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
            while left := [entry for entry in self._events if entry[0] > sent]:
                sent, event = left[0]
                yield dict(event)
            if self._closed:
                return
            await change.wait()
