"""Scheduling held and let go by an admin: nothing is started and nothing stopped for others meanwhile; what runs goes on.

Kept by the engine where it can (so that the next leader finds it), else in a file beside the records.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hotdesk_api.models import Scheduling, SchedulingSpec

from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines.base import Engine, Keeper
from hotdesk_scheduler.service.callers import Caller

if TYPE_CHECKING:
    from hotdesk_scheduler.service.desk import Desk

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pause:
    """Who has held scheduling, since when, and why."""

    by: str
    at: float
    why: str = ""

    @property
    def reason(self) -> Reason:
        since = f"{datetime.fromtimestamp(self.at, UTC):%Y-%m-%d %H:%M} UTC"
        why = f" ({self.why})" if self.why else ""
        return Reason(ReasonCode.PAUSED, f"Scheduling is paused by {self.by} since {since}{why}; it goes on when an admin resumes it.")


class Pausing:
    """The pause that holds now, if any; read back at the start."""

    def __init__(self, engine: Engine, file: Path | None) -> None:
        self.now: Pause | None = None
        self._keeper = engine if isinstance(engine, Keeper) else None
        self._file = file

    async def recall(self) -> Reason | None:
        """What is not readable is no pause: an admin who wants one says it again."""
        try:
            pause = Pause(**json.loads(text)) if (text := await self._kept()) else None
            reason = pause.reason if pause else None
        except (ValueError, TypeError, OSError, OverflowError) as error:
            log.error("pause.not_readable error=%s", error)
            return None
        self.now = pause
        return reason

    async def set(self, pause: Pause | None) -> None:
        text = json.dumps({"by": pause.by, "at": pause.at, "why": pause.why}) if pause else ""
        if self._keeper is not None:
            await self._keeper.keep(text)
        elif self._file is not None and text:
            self._file.write_text(text)
        elif self._file is not None:
            self._file.unlink(missing_ok=True)
        self.now = pause

    async def _kept(self) -> str:
        if self._keeper is not None:
            return await self._keeper.kept()
        return self._file.read_text() if self._file is not None and self._file.exists() else ""


def show(desk: Desk, caller: Caller) -> Scheduling:
    caller.require_read()
    pause = desk.pausing.now
    if pause is None:
        return Scheduling(paused=False)
    return Scheduling(paused=True, by=pause.by, since=datetime.fromtimestamp(pause.at, UTC), why=pause.why, sentence=pause.reason.sentence)


async def put(desk: Desk, caller: Caller, spec: SchedulingSpec) -> Scheduling:
    """Said twice it stays with the first who said it."""
    caller.require_admin("pause or resume scheduling")
    if spec.paused != (desk.pausing.now is not None):
        await desk.pausing.set(Pause(caller.name, desk.clock(), spec.why) if spec.paused else None)
        now = desk.pausing.now
        desk.loop.policy = replace(desk.loop.policy, paused=now.reason if now else None)
        desk.recorder.audit(caller, "pause scheduling" if spec.paused else "resume scheduling", message=spec.why)
        desk.loop.wake()
    return show(desk, caller)
