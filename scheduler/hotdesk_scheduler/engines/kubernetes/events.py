"""Events of workloads as Kubernetes shows them (`kubectl describe workload`), one after the other, after what they tell of.

While pods and statuses are written they wait; in a flood the oldest are dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections import deque
from dataclasses import dataclass

from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError, until_it_works
from hotdesk_scheduler.engines.kubernetes.book import Entry
from hotdesk_scheduler.engines.kubernetes.codec import Json, micro_time
from hotdesk_scheduler.engines.kubernetes.resources import API_VERSION

log = logging.getLogger(__name__)

MOST_WAITING = 10_000
GIVES_WAY_S = 0.25
SOURCE = "hotdesk"
UNTOLD = frozenset({"Submitted"})  # that the resource is there says it


@dataclass(frozen=True, slots=True)
class _Told:
    """`about`: kind, name and uid."""

    at: float
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
        self._waiting.append(_Told(time.time(), entry.namespace, about, kind, reason, sentence[:1024]))
        self._wake.set()

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._api.turns.quiet(GIVES_WAY_S)
                await self._post(self._waiting.popleft())

    async def _post(self, told: _Told) -> None:
        """Again while the API server is away; meanwhile the oldest of those that wait are dropped."""
        path, body = f"/api/v1/namespaces/{told.namespace}/events", told.body()
        try:
            await until_it_works(lambda: self._api.create(path, body), gives_up=lambda: False)
        except ApiError as error:
            if error.status != 409:  # it had arrived
                log.warning("event.not_posted reason=%s error=%s", told.reason, error)
