"""Who leads: one scheduler of an installation, by a Lease. The others wait, and one takes over when it is given up or runs out.

Nobody trusts the time that stands in it: a holder goes by its own clock and stops before anybody who watched the Lease that long may take
it. That clock runs on while the process, or the machine, is asleep: who wakes up too late may not write (`holds()`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError, Json
from hotdesk_scheduler.engines.kubernetes.codec import micro_time

log = logging.getLogger(__name__)

NAME = "hotdesk-scheduler"
NOTE = "hotdesk.io/kept"
LONGEST_S = 300.0  # whatever somebody wrote into it: a holder that is gone is waited for no longer


def awake_or_not() -> float:
    """Seconds since the machine was started, its sleep included where the system counts it (Linux)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds. A second replica takes over at most `lasts_s + look_s` after the first one's last renewal."""

    lasts_s: float = 12.0
    renew_s: float = 3.0
    look_s: float = 2.0

    @classmethod
    def lasting(cls, lasts_s: float) -> Terms:
        return cls(lasts_s, renew_s=lasts_s / 4, look_s=lasts_s / 6)


@dataclass(frozen=True, slots=True)
class _Sight:
    """The Lease as it was seen first in this version, by our clock; whether another one held it, and for how long."""

    version: str
    at: float
    lasts_s: float
    is_held: bool


class Lease:
    """`take()` returns when we lead; `lost` is set when we do not any more (then everything of this process must stop).

    `api` is for it alone: others' requests may not delay it, and it is asked while nothing else may be written. A text of the service that
    outlives its process is an annotation of the Lease, which every leader has and may write anyway; one that is made again after somebody
    deleted it has it again.
    """

    def __init__(
        self, api: Api, namespace: str, identity: str, *, terms: Terms | None = None, monotonic: Callable[[], float] = awake_or_not
    ) -> None:
        self.lost = asyncio.Event()
        self._api = api
        self._identity = identity
        self._terms = terms or Terms()
        self._monotonic = monotonic
        self._all = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._all}/{NAME}"
        self._namespace = namespace
        self._seen: _Sight | None = None
        self._until = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._annotations: dict[str, str] = {}

    def holds(self) -> bool:
        """Whether anything may be written now. Sooner over than the Lease itself: what is under way is to arrive in time."""
        return not self.lost.is_set() and self._monotonic() < self._until

    async def take(self) -> None:
        while True:
            asked_at = self._monotonic()
            try:
                if await self._try():
                    break
            except ApiError as error:
                log.warning("lease.failed error=%s", error)
                if error.status in (401, 403):
                    raise
            await asyncio.sleep(self._terms.look_s)
        log.info("lease.taken identity=%s", self._identity)
        self._renewed(asked_at)
        self._task = asyncio.create_task(self._keep(), name="lease")

    async def give_up(self) -> None:
        """So that the next one need not wait."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        with contextlib.suppress(ApiError):
            lease = await self._api.get(self._path)
            if _holder(lease) == self._identity:
                await self._api.put(self._path, {**lease, "spec": {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}})

    async def keep(self, text: str) -> None:
        """For whoever leads next; the text before is forgotten. Raises ApiError."""
        while True:
            lease = await self._look()
            if lease is None or _holder(lease) != self._identity:
                raise ApiError(0, "NotLeading", "its Lease was deleted, or another scheduler leads")
            notes = {name: value for name, value in self._annotations.items() if name != NOTE} | ({NOTE: text} if text else {})
            if await self._write({**lease, "metadata": {**lease["metadata"], "annotations": notes}}, create=False):
                self._annotations = notes
                return

    async def kept(self) -> str:
        """Empty if there is none. Raises ApiError."""
        await self._look()
        return self._annotations.get(NOTE, "")

    async def _try(self) -> bool:
        """Take it if it is free, ours, or has not been renewed for as long as it lasts, counted from when we first saw it so."""
        lease = await self._look()
        if lease is None:
            return not self._is_awaited() and await self._write(self._body(), create=True)
        version, holder = lease["metadata"]["resourceVersion"], _holder(lease)
        lasts_s = max(min(_spec(lease).get("leaseDurationSeconds") or 0, LONGEST_S), self._terms.lasts_s)
        if self._seen is None or self._seen.version != version:
            self._seen = _Sight(version, self._monotonic(), lasts_s, holder not in ("", self._identity))
        return not self._is_awaited() and await self._write(self._body(lease), create=False)

    async def _look(self) -> Json | None:
        """None if there is none. Raises ApiError."""
        try:
            lease = await self._api.get(self._path)
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        self._annotations = dict(lease["metadata"].get("annotations") or {})
        return lease

    def _is_awaited(self) -> bool:
        """Whether somebody we saw holding it may still think so, also if the Lease was deleted since."""
        seen = self._seen
        return seen is not None and seen.is_held and self._monotonic() - seen.at < seen.lasts_s

    async def _write(self, body: Json, *, create: bool) -> bool:
        try:
            if create:
                await self._api.create(self._all, body)
            else:
                await self._api.put(self._path, body)
        except ApiError as error:
            if error.status == 409:
                return False
            raise
        return True

    def _body(self, lease: Json | None = None) -> Json:
        now = micro_time(time.time())
        old = _spec(lease) if lease else {}
        is_new = old.get("holderIdentity") != self._identity
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": lease["metadata"] if lease else {"name": NAME, "namespace": self._namespace, "annotations": self._annotations},
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": max(1, round(self._terms.lasts_s)),
                "renewTime": now,
                "acquireTime": now if is_new else old.get("acquireTime", now),
                "leaseTransitions": (old.get("leaseTransitions") or 0) + (1 if is_new and lease else 0),
            },
        }

    def _renewed(self, asked_at: float) -> None:
        self._until = asked_at + self._terms.lasts_s - self._terms.renew_s

    async def _keep(self) -> None:
        """Renew until we cannot any more, or somebody else has it."""
        while True:
            await asyncio.sleep(self._terms.renew_s)
            asked_at = self._monotonic()
            if (left_s := self._until - asked_at) <= 0:
                break
            try:
                async with asyncio.timeout(left_s):
                    if not await self._renew():
                        break
                    self._renewed(asked_at)
            except (ApiError, TimeoutError) as error:
                log.warning("lease.not_renewed error=%s", error)
        log.error("lease.lost identity=%s", self._identity)
        self.lost.set()

    async def _renew(self) -> bool:
        """False: somebody else has it. One that was deleted is made again. Raises ApiError."""
        lease = await self._look()
        if lease is None:
            return await self._write(self._body(), create=True)
        if _holder(lease) != self._identity:
            return False
        if not await self._write(self._body(lease), create=False):
            raise ApiError(409, "Conflict", "somebody wrote to the Lease at the same moment")
        return True


def _spec(lease: Json) -> Json:
    found: Json = lease.get("spec") or {}
    return found


def _holder(lease: Json) -> str:
    return str(_spec(lease).get("holderIdentity") or "")
