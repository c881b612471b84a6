"""Our pods made (on their node, unless they have to be told of a share first), bound and taken down; `others` does it for those of others.

Names say which attempt a pod is, so what is done twice is done once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from hotdesk_scheduler.core.model import HOLDING, Kind, Pod, PodState
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines import transitions
from hotdesk_scheduler.engines.base import Change
from hotdesk_scheduler.engines.kubernetes import manifests, progress, reservation, tries
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError, Json, until_it_works
from hotdesk_scheduler.engines.kubernetes.book import Book
from hotdesk_scheduler.engines.kubernetes.entry import Entry
from hotdesk_scheduler.engines.kubernetes.manifests import pod_name
from hotdesk_scheduler.engines.kubernetes.observe import Seen, read_pod
from hotdesk_scheduler.engines.kubernetes.others import Others
from hotdesk_scheduler.engines.kubernetes.reservation import Told
from hotdesk_scheduler.engines.kubernetes.reserving import NotReservedError, Reservations
from hotdesk_scheduler.engines.kubernetes.saving import Saving
from hotdesk_scheduler.engines.kubernetes.shares import Shares
from hotdesk_scheduler.engines.kubernetes.tries import GivenUpError, Tries
from hotdesk_scheduler.engines.kubernetes.troubles import Troubles
from hotdesk_scheduler.engines.kubernetes.turns import Rank

log = logging.getLogger(__name__)

TAKEN_AWAY_GRACE_S = 2.0
LATE_GRACE_S = 30.0
"""At least, for a stop that was decided by an earlier leader and of which the pod has not heard: nobody knows how long it was to be."""


class Pods:
    """Works in the background, pod by pod in order; `book` is ahead of the API server by what is under way here."""

    def __init__(
        self,
        api: Api,
        book: Book,
        saving: Saving,
        *,
        shares: Shares,
        reservations: Reservations,
        take_in_again: Callable[[Entry, int], None],
        is_over: Callable[[], bool],
    ) -> None:
        self.reservations = reservations
        self._api = api
        self._book = book
        self._saving = saving
        self._shares = shares
        self._is_over = is_over
        self._tasks: set[asyncio.Task[None]] = set()
        self._troubles = Troubles(book, saving)
        self._others = Others(
            api, book, self._troubles, shares=shares, reservations=reservations, take_in_again=take_in_again, is_over=is_over
        )

    async def close(self, within_s: float = 5.0) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def bring_up(self, entry: Entry, index: int) -> None:
        self._later(self._bring_up(entry, index, entry.pod(index).attempt))

    def take_down(self, entry: Entry, index: int, grace_s: float) -> None:
        self._later(self._take_down(entry, index, entry.pod(index).attempt, grace_s))

    def discard(self, seen: Seen) -> None:
        """A pod nobody counts any more: of a lost node, or of an attempt long ago."""
        self._later(self._discard(seen))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # up

    async def _bring_up(self, entry: Entry, index: int, attempt: int) -> None:
        def is_over() -> bool:
            pod = entry.pod(index)
            return self._is_over() or pod.attempt != attempt or pod.state is not PodState.STARTING

        if entry.is_claimed:
            await self._others.bind(entry, index)
            return
        async with entry.turn(index):
            with self._troubles.of(entry, index) as tell:
                if not await self._made_and_bound(entry, index, Tries("Its pod cannot be made", tell), is_over):
                    return
        if attempt >= 2:
            self._discard_attempt(entry, index, attempt - 2)

    async def _made_and_bound(self, entry: Entry, index: int, tried: Tries, is_over: Callable[[], bool]) -> bool:
        """False if it is not wanted any more, or came to its end here."""
        attempt = entry.pod(index).attempt
        try:
            reserved = await self.reservations.hold(entry.pod(index).placement, is_over)
            if reserved is None:
                return False
            told = self._shares.told(entry, entry.pod(index), reserved)
            if attempt:  # how the last one ended is counted nowhere else
                await self._saving.until_written(entry)
            made = await tried.until_it_works(lambda: self._make(entry, index, told), gives_up=is_over)
            if made is None or not await self._tell(entry, index, made, told, tried=tried, is_over=is_over):
                return False
            await tried.until_it_works(lambda: self._bind(entry, index, made), gives_up=is_over)
            return True
        except GivenUpError as error:
            self._give_up(entry, index, transitions.start_refused(entry.pod(index), str(error)))
        except NotReservedError as error:
            self._failed(entry, index, attempt, str(error))
        except ApiError as error:
            self._failed(entry, index, attempt, f"The API server refused its pod: {error.message}")
        return False

    async def _tell(self, entry: Entry, index: int, made: Json, told: Told | None, *, tried: Tries, is_over: Callable[[], bool]) -> bool:
        """Its share, before it is bound. False if it was made for a GPU that is not held any more, or is not wanted."""
        if told is None:
            return True
        if read_pod(made).reserved != told.reserved:
            self.give_up(entry, index, "Its pod was made for a shared GPU that is not held for it any more; it starts again.")
            return False
        owner = reservation.pod_owner(made)
        await tried.until_it_works(lambda: self.reservations.tell(entry, told, owner), gives_up=is_over)
        return not is_over()

    async def _make(self, entry: Entry, index: int, told: Told | None) -> Json:
        """The pod, made now or before. What is there already says where it is."""
        pod = entry.pod(index)
        program = f"{entry.workload.name}-program" if entry.spec.program is not None else None
        body = manifests.pod_object(
            entry.workload,
            entry.spec,
            pod,
            uid=entry.uid,
            namespace=entry.namespace,
            variables=self._shares.variables(entry, pod),
            program=program,
            told=told,
        )
        path = f"/api/v1/namespaces/{entry.namespace}/pods"
        async with self._api.turns.take(Rank.POD):
            try:
                return await self._api.create(path, body)
            except ApiError as error:
                if error.reason != "AlreadyExists":
                    raise
            return await self._api.get(f"{path}/{body['metadata']['name']}")

    async def _bind(self, entry: Entry, index: int, made: Json) -> bool:
        """To where the pod itself says, so that two leaders cannot send it to two places. Most were made there already."""
        name, placement = made["metadata"]["name"], manifests.placement_in(read_pod(made).placement)
        if placement is None:
            raise ApiError(422, "Invalid", f"pod {name} is not one of Hotdesk's, or its annotations were changed")
        pod = entry.pod(index)
        if pod.placement != placement and pod.state in HOLDING:
            changed = transitions.started(pod, placement, pod.started_at or time.time())
            self._book.put(entry, transitions.with_pod(entry.workload, changed, time.time()))
            self._book.changed(Change("updated", entry.workload.id, index))
        if made["spec"].get("nodeName"):
            return True
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "uid": made["metadata"]["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": placement.node},
        }
        async with self._api.turns.take(Rank.POD):
            try:
                await self._api.create(f"/api/v1/namespaces/{entry.namespace}/pods/{name}/binding", body)
            except ApiError as error:
                if error.status != 409:
                    raise
        return True

    def _failed(self, entry: Entry, index: int, attempt: int, sentence: str) -> None:
        pod, now = entry.pod(index), time.time()
        if pod.attempt != attempt or pod.state is not PodState.STARTING:
            return
        self._book.put(entry, transitions.ended(entry.workload, progress.refused(pod, sentence, now), now))
        self._saving.soon(entry)
        self._book.changed(Change("failed_verb", entry.workload.id, index, sentence))

    # a workspace's pod, which the hub makes

    def prepare(self, entry: Entry, index: int) -> None:
        """What it needs before its grant is shown, when its time begins (`started_at`). Said again after a restart."""
        entry.told.discard(index)  # of an earlier attempt
        if self._book.is_reserved(entry.pod(index).placement):
            self._later(self._prepare_share(entry, index, entry.pod(index).attempt))
        else:
            entry.told.add(index)

    async def _prepare_share(self, entry: Entry, index: int, attempt: int) -> None:
        with self._troubles.of(entry, index) as tell:
            await self._prepare(entry, index, attempt, Tries("The ConfigMap of its share cannot be made", tell))

    async def _prepare(self, entry: Entry, index: int, attempt: int, tried: Tries) -> None:
        def is_over() -> bool:
            pod = entry.pod(index)
            return self._is_over() or pod.attempt != attempt or pod.state not in (PodState.STARTING, PodState.RUNNING)

        try:
            reserved = await self.reservations.hold(entry.pod(index).placement, is_over)
            if reserved is None or (told := self._shares.told(entry, entry.pod(index), reserved)) is None:
                return
            owner = manifests.owner(entry.workload, entry.uid)
            await tried.until_it_works(lambda: self.reservations.tell(entry, told, owner), gives_up=is_over)
        except GivenUpError as error:
            self._give_up(entry, index, transitions.start_refused(entry.pod(index), str(error)))
            return
        except NotReservedError as error:
            self._failed(entry, index, attempt, str(error))
            return
        except ApiError as error:
            self._failed(entry, index, attempt, f"The API server refused the ConfigMap of its share: {error.message}")
            return
        if not is_over():
            entry.told.add(index)
            pod, now = entry.pod(index), time.time()
            shown = replace(pod, started_at=now if pod.started_at is None else pod.started_at)
            self._book.put(entry, transitions.with_pod(entry.workload, shown, now))
            self._saving.soon(entry)
            self._book.changed(Change("updated", entry.workload.id, index))

    def give_up(self, entry: Entry, index: int, sentence: str) -> None:
        """It has not what it needs any more. It waits again, uncounted; a workspace's end is asked for at the hub."""
        self._give_up(entry, index, Reason(ReasonCode.PROCESS_LOST, sentence))

    def _give_up(self, entry: Entry, index: int, why: Reason) -> None:
        pod, now = entry.pod(index), time.time()
        if pod.state not in (PodState.STARTING, PodState.RUNNING):
            return
        stopped = replace(pod, state=PodState.RELEASING, release_deadline=now + TAKEN_AWAY_GRACE_S, stop_reason=why)
        self._book.put(entry, transitions.with_pod(entry.workload, stopped, now))
        self._saving.soon(entry)
        self._book.changed(Change("failed_verb", entry.workload.id, index, why.sentence))
        if entry.workload.kind is not Kind.WORKSPACE:
            self.take_down(entry, index, TAKEN_AWAY_GRACE_S)

    # down

    async def _take_down(self, entry: Entry, index: int, attempt: int, grace_s: float) -> None:
        """First why, then the end: a pod that is found gone was stopped by us."""
        if entry.is_claimed:
            await self._others.evict(entry, index, _seconds(grace_s))
            return
        await self._saving.until_written(entry)

        def is_over() -> bool:
            pod = entry.pod(index)
            is_known = self._book.entries.get(entry.workload.id) is entry
            return self._is_over() or not is_known or pod.attempt != attempt or pod.state is not PodState.RELEASING

        name = pod_name(entry.workload, entry.uid, entry.pod(index))
        was_there = await self._troubles.until_taken(
            entry,
            index,
            partial(self._delete, entry.namespace, name, _seconds(grace_s)),
            what="Its pod cannot be deleted, so its place stays taken",
            otherwise=f"deletes the pod itself: kubectl delete pod {name} -n {entry.namespace}",
            is_over=is_over,
        )
        if was_there is False and not is_over():
            self.gone(entry, entry.pod(index))

    def gone(self, entry: Entry, pod: Pod) -> None:
        now = time.time()
        ended = progress.after(pod, None, now)
        self._book.put(entry, transitions.ended(entry.workload, ended, now))
        self._saving.soon(entry)
        self._book.changed(Change(progress.kind_of(ended), entry.workload.id, pod.index))

    async def _delete(self, namespace: str, name: str, seconds: int) -> bool:
        """Whether it was there. Raises ApiError."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": seconds}
        async with self._api.turns.take(Rank.POD):
            return await self._api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", body)

    async def _discard(self, seen: Seen) -> None:
        """Until it is gone, or another one has its name. With grace where somebody is there to give it."""

        def is_over() -> bool:
            there = self._book.pods.get((seen.namespace, seen.name))
            return self._is_over() or there is None or there.uid != seen.uid

        while True:
            node = self._book.nodes.get(seen.node or "")
            seconds = _seconds(TAKEN_AWAY_GRACE_S) if node is not None and node.ready else 0
            try:
                await until_it_works(partial(self._delete, seen.namespace, seen.name, seconds), gives_up=self._is_over)
                return
            except ApiError as error:
                log.error("pod.not_deleted pod=%s/%s error=%s", seen.namespace, seen.name, error)
            await asyncio.sleep(tries.REFUSED_PAUSE_S)
            if is_over():
                return

    def _discard_attempt(self, entry: Entry, index: int, attempt: int) -> None:
        """A pod's objects of the last two attempts stay, for their logs."""
        old = pod_name(entry.workload, entry.uid, Pod(index, entry.pod(index).request, attempt=attempt))
        if (seen := self._book.pods.get((entry.namespace, old))) is not None:
            self.discard(seen)


def _seconds(grace_s: float) -> int:
    """Without any the API server forgets a pod at once, and its GPUs count as free while it still runs on its node."""
    return max(1, math.ceil(grace_s))
