"""What projects have used of late, as the service sees it: looked at now and then, fading, kept over restarts (scheduling.md 3.3)."""

from __future__ import annotations

from collections.abc import Callable

from hotdesk_scheduler.core import history
from hotdesk_scheduler.core.model import Snapshot

STEP_S = 60.0
"""How often it is looked at; shares follow the past no faster."""

Keep = Callable[[float, history.Usage], None]


class Past:
    """`usage` goes into every snapshot. What is held at one look is taken to have been held since the look before.

    After a restart too: pods outlive the service, so what is still there has run meanwhile. Nothing is kept before it is known what was
    kept before (`restore`, `nothing_before`): what cannot be read is not overwritten.
    """

    def __init__(self, *, half_life_s: float, keep: Keep = lambda at, usage: None) -> None:
        self._half_life_ms = max(1, round(half_life_s * 1000))
        self._keep = keep
        self._at: float | None = None
        self._known = False
        self.usage: history.Usage = ()

    def restore(self, at: float, usage: history.Usage) -> None:
        """As it was kept at that time; what was seen since the service started, while that could not be read, is added."""
        if self._at is None:
            self._at, self.usage = at, usage
        else:
            faded = history.faded(usage, {}, elapsed_ms=round((self._at - at) * 1000), half_life_ms=self._half_life_ms)
            self.usage = history.together(faded, self.usage)
        self._known = True

    def nothing_before(self) -> None:
        """Nothing was ever kept."""
        self._known = True

    def look(self, snapshot: Snapshot, now: float) -> history.Usage:
        """The past as it stands now. A clock that went back starts a new step and changes nothing."""
        if self._at is None or now < self._at:
            self._at = now
        elif now - self._at >= STEP_S:
            held = {name: millis * history.NANOS for name, millis in history.allocation(snapshot).items()}
            elapsed_ms = round((now - self._at) * 1000)
            self.usage = history.faded(self.usage, held, elapsed_ms=elapsed_ms, half_life_ms=self._half_life_ms)
            self._at = now
            if self._known:
                self._keep(now, self.usage)
        return self.usage
