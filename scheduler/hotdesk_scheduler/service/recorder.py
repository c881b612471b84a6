"""What happened and who did it: put on record, told to those who listen, shown where the engine shows events."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from hotdesk_api import models

from hotdesk_scheduler.core.model import Workload
from hotdesk_scheduler.engines.base import Engine, Mirror
from hotdesk_scheduler.records import Audit, Event, Records
from hotdesk_scheduler.service.callers import Caller
from hotdesk_scheduler.service.feed import Feed
from hotdesk_scheduler.service.verbs import Clock

log = logging.getLogger(__name__)

REFUSALS_S = 10.0


class Recorder:
    def __init__(self, engine: Engine, records: Records, feed: Feed, mirror: Mirror | None, *, clock: Clock) -> None:
        self._engine = engine
        self._records = records
        self._feed = feed
        self._mirror = mirror
        self._clock = clock
        self._refused: dict[str, float] = {}

    def announce(self, event: Event) -> None:
        self._records.add(event)
        if self._mirror is not None and event.workload_id is not None:
            self._mirror.show_event(event.workload_id, event.type, event.reason, event.message)
        if not len(self._feed):
            return
        workload = self._engine.find(event.workload_id) if event.workload_id else None
        kind = workload.kind.value if workload else None
        self._feed.event(self._engine.snapshot().version, event_out(event), workload_kind=kind)

    def asked(self, workload: Workload, reason: str, message: str, *, user: str) -> None:
        """Somebody asked for this by the API."""
        self.announce(
            Event(
                at=self._clock(),
                reason=reason,
                message=message,
                source="api",
                project=workload.project,
                workload=workload.name,
                workload_id=workload.id,
                user=user,
            )
        )

    def audit(self, caller: Caller, action: str, *, project: str | None = None, subject: str | None = None, message: str = "") -> None:
        log.info("audit user=%s action=%s project=%s subject=%s", caller.name, action, project, subject)
        self._records.add(Audit(self._clock(), caller.name, action, project=project, subject=subject, message=message))

    def refused_login(self, address: str, sentence: str) -> None:
        """Audited at most every ten seconds per address, so that nobody can fill the records with refusals."""
        now = self._clock()
        if now - self._refused.get(address, float("-inf")) < REFUSALS_S:
            return
        if len(self._refused) > 1000:
            self._refused.clear()
        self._refused[address] = now
        log.warning("login.refused address=%s", address)
        self._records.add(Audit(now, "?", "login", outcome="refused", subject=address, message=sentence))


def event_out(event: Event) -> models.EventOut:
    return models.EventOut(
        at=datetime.fromtimestamp(event.at, UTC),
        type="Warning" if event.type == "Warning" else "Normal",
        source=event.source,
        reason=event.reason,
        message=event.message,
        project=event.project,
        workload=event.workload,
        user=event.user,
    )
