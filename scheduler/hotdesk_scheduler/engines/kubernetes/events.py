"""Events of workloads as Kubernetes shows them (`kubectl describe workload`), one after the other; the oldest are dropped in a flood."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections import deque

from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError, until_it_works
from hotdesk_scheduler.engines.kubernetes.book import Entry
from hotdesk_scheduler.engines.kubernetes.codec import Json, micro_time
from hotdesk_scheduler.engines.kubernetes.resources import API_VERSION

log = logging.getLogger(__name__)

MOST_WAITING = 2000
SOURCE = "hotdesk"
UNTOLD = frozenset({"Submitted"})  # that the resource is there says it


class Events:
    """`add` only notes it; a task of its own posts."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._waiting: deque[Json] = deque(maxlen=MOST_WAITING)
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="events")

    def add(self, entry: Entry, kind: str, reason: str, sentence: str) -> None:
        if reason in UNTOLD:
            return
        now, name = micro_time(time.time()), entry.workload.name
        about = {"apiVersion": API_VERSION, "kind": "Workload", "name": name, "namespace": entry.namespace, "uid": entry.uid}
        if entry.is_claimed:  # of its first pod: there is no resource
            first = next(iter(entry.members.values()), None)
            if first is None:
                return
            about = {"apiVersion": "v1", "kind": "Pod", "name": first.name, "namespace": entry.namespace, "uid": first.uid}
        self._waiting.append(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": f"{name[:200]}.{uuid.uuid4().hex[:12]}", "namespace": entry.namespace},
                "involvedObject": about,
                "type": kind,
                "reason": reason,
                "message": sentence[:1024],
                "eventTime": now,
                "action": reason,
                "reportingComponent": SOURCE,
                "reportingInstance": SOURCE,
            }
        )
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
                await self._post(self._waiting.popleft())

    async def _post(self, body: Json) -> None:
        """Again while the API server is away; meanwhile the oldest of those that wait are dropped."""
        path = f"/api/v1/namespaces/{body['metadata']['namespace']}/events"
        try:
            await until_it_works(lambda: self._api.create(path, body), gives_up=lambda: False)
        except ApiError as error:
            if error.status != 409:  # it had arrived
                log.warning("event.not_posted reason=%s error=%s", body["reason"], error)
