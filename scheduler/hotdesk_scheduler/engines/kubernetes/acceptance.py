"""Whether a resource of ours can be taken as it stands, said on itself: its condition `Accepted`, for who wrote it by hand.

A Workload that is taken says so by being queued; only that it cannot be is written here. What is not accepted changes nothing: of a
resource that was readable before, the last readable form counts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from hotdesk_api.errors import HotdeskError
from pydantic import ValidationError

from hotdesk_scheduler.engines.kubernetes import resources
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError, until_it_works
from hotdesk_scheduler.engines.kubernetes.codec import Json, time_out

log = logging.getLogger(__name__)

ACCEPTED = "Accepted"
_MOST = 3  # problems named in one sentence


@dataclass(frozen=True, slots=True)
class _Wanted:
    status: str
    reason: str
    message: str
    generation: int


class Acceptance:
    """`is_over()` ends all trying."""

    def __init__(self, api: Api, is_over: Callable[[], bool]) -> None:
        self._api = api
        self._is_over = is_over
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked: dict[str, _Wanted] = {}

    def say(self, kind: str, item: Json, problem: str) -> None:
        """`problem`: a sentence with what to do about it, empty if there is none. Said once."""
        wanted = _Wanted("False" if problem else "True", "NotAccepted" if problem else ACCEPTED, problem[:1024], _generation(item))
        uid = item["metadata"]["uid"]
        if self._asked.get(uid, _there(item)) == wanted:
            return
        if problem:
            log.warning("resource.not_accepted kind=%s name=%s problem=%s", kind, item["metadata"]["name"], problem)
        self._asked[uid] = wanted
        task = asyncio.create_task(self._write(kind, item, wanted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self, kind: str, item: Json, wanted: _Wanted) -> None:
        """What changed meanwhile is looked at again when the stream brings it."""
        meta = {name: item["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}
        path = resources.path(kind, meta["namespace"], meta["name"])
        body = {"apiVersion": resources.API_VERSION, "kind": kind, "metadata": meta, "spec": {}, "status": _status(kind, item, wanted)}
        try:
            await until_it_works(lambda: self._api.put(f"{path}/status", body), gives_up=self._is_over)
        except ApiError as error:
            if error.status not in (404, 409):
                log.error("condition.refused kind=%s name=%s error=%s", kind, meta["name"], error)
        finally:
            if self._asked.get(meta["uid"]) is wanted:
                del self._asked[meta["uid"]]


def is_accepted(item: Json) -> bool:
    """As its condition says."""
    there = _there(item)
    return there is not None and there.status == "True"


def _generation(item: Json) -> int:
    return int(item["metadata"].get("generation", 0))


def _there(item: Json) -> _Wanted | None:
    for one in _conditions(item):
        if one.get("type") == ACCEPTED:
            return _Wanted(one.get("status", ""), one.get("reason", ""), one.get("message", ""), one.get("observedGeneration", 0))
    return None


def _conditions(item: Json) -> list[Json]:
    found: list[Json] = (item.get("status") or {}).get("conditions") or []
    return found


def _status(kind: str, item: Json, wanted: _Wanted) -> Json:
    condition = {
        "type": ACCEPTED,
        "status": wanted.status,
        "reason": wanted.reason,
        "message": wanted.message,
        "observedGeneration": wanted.generation,
        "lastTransitionTime": time_out(int(time.time())),
    }
    others = [one for one in _conditions(item) if one.get("type") != ACCEPTED]
    said: Json = {**(item.get("status") or {}), "conditions": [*others, condition]}
    if kind == "Workload" and wanted.message:
        said |= {"status": "NotAccepted", "message": wanted.message}
    return said


def sentence(error: Exception, kind: str, item: Json) -> str:
    """Why it could not be read, and the next step."""
    if isinstance(error, HotdeskError):
        why = str(error)
    elif isinstance(error, ValidationError):
        parts = [f"{'.'.join(map(str, one['loc'])) or 'spec'}: {one['msg']}" for one in error.errors(include_url=False)]
        why = "It cannot be read: " + "; ".join(parts[:_MOST]) + (f"; and {len(parts) - _MOST} more." if len(parts) > _MOST else ".")
    else:
        why = f"It cannot be read: {type(error).__name__}: {error}."
    name, namespace = item["metadata"]["name"], item["metadata"]["namespace"]
    return f"{why} Correct it, or delete it: kubectl delete {kind.lower()} {name} -n {namespace}"
