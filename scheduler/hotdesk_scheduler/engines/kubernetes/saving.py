"""Statuses of workloads, written: the newest value only, one write a workload at a time, again until it is there.

A write says which version it follows. If somebody else was there first (a hand, an older leader), what he left is looked at once and
overwritten: `status` is the leader's alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from hotdesk_api.errors import Unavailable

from hotdesk_scheduler.core.model import PodState
from hotdesk_scheduler.engines.kubernetes import resources, statuses, turns
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError, Json
from hotdesk_scheduler.engines.kubernetes.codec import fingerprint
from hotdesk_scheduler.engines.kubernetes.entry import Entry, Member
from hotdesk_scheduler.engines.kubernetes.tries import REFUSED_PAUSE_S
from hotdesk_scheduler.engines.kubernetes.turns import MOST, Rank
from hotdesk_scheduler.engines.kubernetes.watch import Key

log = logging.getLogger(__name__)

PATIENCE_S = 20.0
FIRST_PAUSE_S, MOST_PAUSE_S = 0.2, 5.0
STARTING_S = 5  # so long a start is not told: that it runs comes at once, and its pods are there for who takes over


class Saving:
    """`note(key, version)` hears of versions written here, `see(item)` of what others wrote; `is_over()` ends all trying."""

    def __init__(self, api: Api, *, note: Callable[[Key, int], None], see: Callable[[Json], None], is_over: Callable[[], bool]) -> None:
        self._api = api
        self._note = note
        self._see = see
        self._is_over = is_over
        self._waiting: deque[tuple[float, Entry]] = deque()
        self._later: dict[Entry, asyncio.TimerHandle] = {}
        self._pauses: dict[Entry, float] = {}
        self._writers: set[asyncio.Task[None]] = set()
        self._is_closing = False

    def soon(self, entry: Entry) -> None:
        if entry.is_saving:
            return
        if not self._is_closing and _is_only_starting(entry):
            if entry not in self._later:
                self._in(STARTING_S, entry)
            return
        self._begin(entry)

    def _in(self, seconds: float, entry: Entry) -> None:
        self._later[entry] = asyncio.get_running_loop().call_later(seconds, self._begin, entry)

    def _begin(self, entry: Entry) -> None:
        if (timer := self._later.pop(entry, None)) is not None:
            timer.cancel()
        entry.is_saving = True
        self._waiting.append((turns.now(), entry))
        if len(self._writers) < MOST[Rank.STATUS]:
            task = asyncio.create_task(self._write_all(), name="save statuses")
            self._writers.add(task)

    async def now(self, entry: Entry) -> None:
        """`Unavailable` if the API server does not take it in time; it is then written later."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._again_and_again(entry, Rank.ANSWER)
        except (TimeoutError, ApiError) as error:
            self.soon(entry)
            raise Unavailable(
                f"The cluster's API server did not take the change of {entry.workload.name}; it is tried again: {error}",
                next_step="Look again in a moment.",
            ) from error

    async def until_written(self, entry: Entry) -> None:
        """However long that takes, because a pod waits for it; but not while the server refuses it: then it is written later."""
        try:
            await self._again_and_again(entry, Rank.POD)
        except ApiError:
            self.soon(entry)

    async def close(self, within_s: float = 5.0) -> None:
        """Let what is being written be written."""
        self._is_closing = True
        self._api.turns.end()
        for entry in tuple(self._later):
            self._begin(entry)
        if self._writers:
            await asyncio.wait(self._writers, timeout=within_s)
        for task in self._writers:
            task.cancel()
        await asyncio.gather(*self._writers, return_exceptions=True)

    async def _write_all(self) -> None:
        """One of few writers: as long as there is something to write."""
        while self._waiting and not self._is_over():
            since, entry = self._waiting.popleft()
            try:
                await self._save(entry, Rank.STATUS, since)
            except ApiError as error:
                if not error.is_passing:
                    log.error("status.refused workload=%s error=%s", entry.workload.id, error)
                if not self._is_closing:
                    self._in(self._pause_s(entry, error), entry)
                    continue
            except Exception:  # the others' are written all the same
                log.exception("status.not_written workload=%s", entry.workload.id)
            entry.is_saving = False
            self._pauses.pop(entry, None)
        if (this := asyncio.current_task()) is not None:  # at once: who comes before its end is told would have no writer
            self._writers.discard(this)

    def _pause_s(self, entry: Entry, error: ApiError) -> float:
        """A rule that refuses it may be lifted."""
        if not error.is_passing:
            return REFUSED_PAUSE_S
        pause_s = self._pauses.get(entry, FIRST_PAUSE_S)
        self._pauses[entry] = min(MOST_PAUSE_S, pause_s * 2)
        return pause_s

    async def _again_and_again(self, entry: Entry, rank: Rank) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._is_over():
            try:
                return await self._save(entry, rank)
            except ApiError as error:
                if not error.is_passing:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(MOST_PAUSE_S, pause_s * 2)

    async def _save(self, entry: Entry, rank: Rank, since: float | None = None) -> None:
        """Whoever's turn comes first writes it; the other one finds it written."""
        while entry.written != entry.worth_writing():
            async with self._api.turns.take(rank, since), entry.saving:
                if entry.written == (worth := entry.worth_writing()):
                    return
                if not await (self._explain if entry.is_claimed else self._write)(entry):
                    return
                entry.written = worth

    async def _explain(self, entry: Entry) -> bool:
        """Pods of others: why they wait, as their condition PodScheduled. That one is placed, its binding says."""
        for pod in entry.workload.pods:
            member, hold = entry.members.get(pod.index), entry.hold
            if hold is None or member is None or pod.state is not PodState.PENDING or member.told == hold.sentence:
                continue
            await self._tell(entry.namespace, member, hold.sentence)
            member.told = hold.sentence
        return True

    async def _tell(self, namespace: str, member: Member, sentence: str) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": sentence[:1024]}
        path = f"/api/v1/namespaces/{namespace}/pods/{member.name}/status"
        patch = {"metadata": {"uid": member.uid}, "status": {"conditions": [condition]}}
        try:
            await self._api.request("PATCH", path, patch, content_type="application/strategic-merge-patch+json")
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def _write(self, entry: Entry) -> bool:
        """False if the resource is gone. A conflict is settled by looking at what version there is now."""
        path = resources.path("Workload", entry.namespace, entry.workload.name)
        while True:
            status = statuses.status_object(entry.workload, entry.grants, hold=entry.hold, error=next(iter(entry.errors.values()), ""))
            try:
                answer = await self._api.put(f"{path}/status", _body(entry, status))
            except ApiError as error:
                if error.status not in (404, 409):
                    raise
                there = await self._look(path)
                if there is None or there["metadata"]["uid"] != entry.uid:
                    return False
                if error.status == 404:  # it has no status now: a hand was at the definitions
                    raise
                entry.version = int(there["metadata"]["resourceVersion"])
                self._see(there)
                continue
            version = int(answer["metadata"]["resourceVersion"])
            entry.said = fingerprint(answer.get("status"))
            self._note(entry.key, version)
            if version >= entry.version:  # else somebody wrote after it, and may have written the status
                entry.version = version
                return True

    async def _look(self, path: str) -> Json | None:
        try:
            return await self._api.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise


def _is_only_starting(entry: Entry) -> bool:
    """There is nothing to tell but that its pods were made a moment ago."""
    pods = entry.workload.pods
    return not (entry.errors or entry.is_claimed or entry.deleting) and bool(pods) and all(pod.state is PodState.STARTING for pod in pods)


def _body(entry: Entry, status: Json) -> Json:
    meta = {"name": entry.workload.name, "namespace": entry.namespace, "uid": entry.uid, "resourceVersion": str(entry.version)}
    return {"apiVersion": resources.API_VERSION, "kind": "Workload", "metadata": meta, "spec": {}, "status": status}
