"""Who leads: one scheduler of an installation, by a Lease. The others wait, and one takes over when it is given up or runs out.

A holder trusts its own monotonic clock alone: it stops by itself before anybody who watched the Lease that long may take it.
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


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds. A second replica takes over at most `lasts_s + look_s` after the first one's last renewal."""

    lasts_s: float = 12.0
    renew_s: float = 3.0
    look_s: float = 2.0


class Lease:
    """`take()` returns when we lead; `lost` is set when we do not any more (then everything of this process must stop)."""

    def __init__(
        self, api: Api, namespace: str, identity: str, *, terms: Terms | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.lost = asyncio.Event()
        self._api = api
        self._identity = identity
        self._terms = terms or Terms()
        self._monotonic = monotonic
        self._all = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._all}/{NAME}"
        self._namespace = namespace
        self._seen: tuple[str, float] | None = None
        self._task: asyncio.Task[None] | None = None

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
        self._task = asyncio.create_task(self._keep(asked_at), name="lease")

    async def give_up(self) -> None:
        """So that the next one need not wait."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        with contextlib.suppress(ApiError):
            lease = await self._api.get(self._path)
            if lease["spec"].get("holderIdentity") == self._identity:
                await self._api.put(self._path, {**lease, "spec": {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}})

    async def _try(self) -> bool:
        """Take it if it is free, ours, or has not been renewed for as long as it lasts, counted from when we first saw it so."""
        try:
            lease = await self._api.get(self._path)
        except ApiError as error:
            if error.status != 404:
                raise
            return await self._write(self._body(), create=True)
        spec = lease["spec"]
        version, holder = lease["metadata"]["resourceVersion"], spec.get("holderIdentity")
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, self._monotonic())
        lasts_s = max(spec.get("leaseDurationSeconds", 0), self._terms.lasts_s if holder else 0)
        if holder and holder != self._identity and self._monotonic() - self._seen[1] < lasts_s:
            return False
        return await self._write(self._body(lease), create=False)

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
        old = lease["spec"] if lease else {}
        is_new = old.get("holderIdentity") != self._identity
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": lease["metadata"] if lease else {"name": NAME, "namespace": self._namespace},
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": max(1, round(self._terms.lasts_s)),
                "renewTime": now,
                "acquireTime": now if is_new else old.get("acquireTime", now),
                "leaseTransitions": old.get("leaseTransitions", 0) + (1 if is_new and lease else 0),
            },
        }

    async def _keep(self, renewed_at: float) -> None:
        """Renew until we cannot any more, or somebody else has it."""
        while True:
            await asyncio.sleep(self._terms.renew_s)
            asked_at = self._monotonic()
            left_s = renewed_at + self._terms.lasts_s - self._terms.renew_s - asked_at
            if left_s <= 0:
                break
            try:
                async with asyncio.timeout(left_s):
                    lease = await self._api.get(self._path)
                    if lease["spec"].get("holderIdentity") != self._identity:
                        break
                    if await self._write(self._body(lease), create=False):
                        renewed_at = asked_at
            except (ApiError, TimeoutError) as error:
                log.warning("lease.not_renewed error=%s", error)
        log.error("lease.lost identity=%s", self._identity)
        self.lost.set()
