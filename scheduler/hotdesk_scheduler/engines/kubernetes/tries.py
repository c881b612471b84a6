"""What is asked of the API server again and again: told after some tries, given up after a long time; and what it refuses, in words.

A server that fails inside (a webhook that does not answer, etcd) is worth trying again, but not for ever: a GPU waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from hotdesk_scheduler.engines.kubernetes.api import ApiError, until_it_works

TOLD_AFTER_S = 10.0
GIVEN_UP_AFTER_S = 300.0
REFUSED_PAUSE_S = 30.0


class GivenUpError(Exception):
    """The API server has failed for too long: a sentence for people."""


class Tries:
    """`tell(sentence)` hears of it once it lasts. `what`: `Its pod cannot be made`. `ends`: give up some time."""

    def __init__(self, what: str, tell: Callable[[str], None], *, ends: bool = True) -> None:
        self._what = what
        self.tell = tell
        self._ends = ends
        self._since: tuple[float, float] | None = None

    async def until_it_works(self, call: Callable[[], Awaitable[Any]], *, gives_up: Callable[[], bool]) -> Any:
        """As `api.until_it_works`. Raises GivenUpError too."""
        found = await until_it_works(partial(self._try, call), gives_up=gives_up)
        self._since = None
        return found

    async def _try(self, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await call()
        except ApiError as error:
            if error.is_passing and was_reached(error):
                self._note(error)
            raise

    def _note(self, error: ApiError) -> None:
        now = asyncio.get_running_loop().time()
        began, since = self._since = self._since or (now, time.time())
        if self._ends and now - began >= GIVEN_UP_AFTER_S:
            raise GivenUpError(f"{self._what} for {_minutes(now - began)}: {said(error)}")
        if now - began >= TOLD_AFTER_S:
            at = datetime.fromtimestamp(since, UTC).strftime("%H:%M UTC")
            self.tell(f"{self._what}; it has been tried again and again since {at}: {said(error)}")


def was_reached(error: ApiError) -> bool:
    """A server that is away is no news about one pod: whoever leads without it does not lead for long."""
    return error.status != 0 or error.reason == "TimeoutError"


def said(error: ApiError) -> str:
    """In the middle of a sentence, and to its end."""
    return f"the API server answers {f'{error.status} ' if error.status else ''}{error.message[:500].rstrip('.') or error.reason}."


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} s"


def refused(what: str, error: ApiError, otherwise: str) -> str:
    """Who will not have it, and the next step. `what`: `It cannot be evicted`; `otherwise`: what an admin may do by hand."""
    people = error.for_people()
    if error.status == 403 and people.sentence.startswith("Hotdesk has no right"):
        why = f"{people.sentence} {people.next_step}"
    else:
        why = f"a rule of the cluster refuses it: {error.message[:500].rstrip('.')}. An admin changes that rule, or {otherwise}."
    return f"{what}: {why} It is tried again every {REFUSED_PAUSE_S:.0f} s."
