"""Events of workloads as Kubernetes shows them (`kubectl describe workload`), one after the other, after what they tell of.

They wait while pods move (`turns.py`); in a flood the oldest are dropped, and so is one that the API server cannot take.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from dataclasses import dataclass

from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError
from hotdesk_scheduler.engines.kubernetes.codec import Json, micro_time
from hotdesk_scheduler.engines.kubernetes.entry import Entry
from hotdesk_scheduler.engines.kubernetes.resources import API_VERSION
from hotdesk_scheduler.engines.kubernetes.turns import Rank, now

log = logging.getLogger(__name__)

MOST_WAITING = 10_000
TRIES = 5
FIRST_PAUSE_S, MOST_PAUSE_S = 0.2, 5.0
SOURCE = "hotdesk"
UNTOLD = frozenset({"Submitted"})  # that the resource is there says it


@dataclass(frozen=True, slots=True)
class _Told:
    """`about`: kind, name and uid. `since`: the same moment as `at`, by the event loop's clock."""

    at: float
    since: float
    namespace: str
    about: tuple[str, str, str]
    kind: str
    reason: str
    sentence: str

    def body(self) -> Json:
        kind, name, uid = self.about
        version = "v1" if kind == "Pod" else API_VERSION
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name[:200]}.{uuid.uuid4().hex[:12]}", "namespace": self.namespace},
            "involvedObject": {"apiVersion": version, "kind": kind, "name": name, "namespace": self.namespace, "uid": uid},
            "type": self.kind,
            "reason": self.reason,
            "message": self.sentence,
            "eventTime": micro_time(self.at),
            "action": self.reason,
            "reportingComponent": SOURCE,
            "reportingInstance": SOURCE,
        }


class Events:
    """`add` only notes it; a task of its own posts."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._waiting: deque[_Told] = deque(maxlen=MOST_WAITING)
        self._wake = asyncio.Event()
        self._is_closing = False
        self._task = asyncio.create_task(self._run(), name="events")

    def add(self, entry: Entry, kind: str, reason: str, sentence: str) -> None:
        if reason in UNTOLD:
            return
        about = "Workload", entry.workload.name, entry.uid
        if entry.is_claimed:  # of its first pod: there is no resource
            first = next(iter(entry.members.values()), None)
            if first is None:
                return
            about = "Pod", first.name, first.uid
        self._waiting.append(_Told(time.time(), now(), entry.namespace, about, kind, reason, sentence[:1024]))
        self._wake.set()

    async def close(self, within_s: float = 0.0) -> None:
        """What waits is posted, as far as there is time."""
        self._is_closing = True
        self._wake.set()
        self._api.turns.end()
        await asyncio.wait([self._task], timeout=within_s)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._post(self._waiting.popleft())
            if self._is_closing:
                return

    async def _post(self, told: _Told) -> None:
        """Again while the API server is away (meanwhile the oldest of those that wait are dropped), and a few times if it fails."""
        path, body = f"/api/v1/namespaces/{told.namespace}/events", told.body()
        pause_s, tries = FIRST_PAUSE_S, 0
        while True:
            try:
                async with self._api.turns.take(Rank.EVENT, told.since):
                    await self._api.create(path, body)
                return
            except ApiError as error:
                tries += bool(error.status)
                if not error.is_passing or tries >= TRIES:
                    if error.status != 409:  # it had arrived
                        log.warning("event.not_posted reason=%s error=%s", told.reason, error)
                    return
            await asyncio.sleep(pause_s)
            pause_s = min(MOST_PAUSE_S, pause_s * 2)
