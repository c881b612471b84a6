"""GPUs of real nodes set aside for sharing: who needs one waits for its reservation pod, the last one out removes it.

Level-triggered: whatever happens, one shared GPU is looked at again, and the book says whether somebody uses it. So a scheduler may end
at any step: the next one finds the reservation pods, the pods that were told of them, and looks at all of them once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from hotdesk_scheduler.core.model import HOLDING, Kind, Placement, Pod, PodState
from hotdesk_scheduler.engines.kubernetes import manifests, objects, reservation, tries
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError, Json, until_it_works
from hotdesk_scheduler.engines.kubernetes.book import Book
from hotdesk_scheduler.engines.kubernetes.entry import Entry
from hotdesk_scheduler.engines.kubernetes.observe import RESERVED, Life, Seen
from hotdesk_scheduler.engines.kubernetes.reservation import Key, Reservation, Reserved, Told
from hotdesk_scheduler.engines.kubernetes.resources import MANAGED
from hotdesk_scheduler.engines.kubernetes.tries import GivenUpError, said

log = logging.getLogger(__name__)

TRIES = 3
LOOK_EVERY_S = 0.5
_ENDED = (Life.SUCCEEDED, Life.FAILED, Life.FADED)
_REMOVED = "its reservation pod was removed as often as it was made"


class NotReservedError(Exception):
    """No GPU could be set aside: a sentence for people."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Where reservation pods live, what they run, and how long their node may take to give them a GPU (its image's pull included).

    `installation`: the namespace of the scheduler that makes them.
    """

    namespace: str
    image: str = reservation.DEFAULT_IMAGE
    patience_s: float = 120.0
    installation: str = ""


class Reservations:
    """`give_up(entry, index, sentence)` ends a pod whose shared GPU is not held for it any more. `see` puts what was made into the book."""

    def __init__(
        self,
        api: Api,
        book: Book,
        terms: Terms,
        *,
        give_up: Callable[[Entry, int, str], None],
        see: Callable[[Json], None],
        is_over: Callable[[], bool],
    ) -> None:
        self.terms = terms
        self._give_up = give_up
        self._api = api
        self._book = book
        self._see = see
        self._is_over = is_over
        self._has_begun = False
        self._has_namespace = False
        self._due: set[Key] = set()
        self._removing: set[str] = set()
        self._refused: set[str] = set()
        self._waiting: dict[Key, set[asyncio.Event]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        book.left = self._left

    def read(self, item: Json) -> Reservation | None:
        """None for other pods. Those that were made in another namespace, before the setting changed, are ours as well."""
        found = reservation.read(item)
        if found is None or item["metadata"]["namespace"] == self.terms.namespace:
            return found
        return replace(found, is_elsewhere=True) if reservation.installation_of(item) == self.terms.installation else None

    def begin(self) -> None:
        """Everything that runs is known: from now on what nobody uses is removed."""
        self._has_begun = True
        for key in {*self._book.reservations, *self._book.sharers}:
            self.look(key)

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # setting aside

    async def hold(self, placement: Placement | None, gives_up: Callable[[], bool]) -> tuple[Reserved, ...] | None:
        """A device for each share, in order; () if none is needed, None if it was given up. Raises NotReservedError, GivenUpError."""
        if placement is None or not self._book.is_reserved(placement):
            return ()
        held: list[Reserved] = []
        for share in placement.shares:
            one = await self._hold((placement.node, share.group), gives_up)
            if one is None:
                return None
            held.append(one)
        return tuple(held)

    async def _hold(self, key: Key, gives_up: Callable[[], bool]) -> Reserved | None:
        loop = asyncio.get_running_loop()
        give_up_at, tries, trouble, is_failing = loop.time() + self.terms.patience_s, 0, "", False
        while not gives_up():
            seen = self._book.reservations.get(key)
            if (held := self._held(seen)) is not None:
                return held
            trouble = _trouble(seen) or trouble
            has_ended = seen is not None and seen.life in _ENDED
            if loop.time() > give_up_at or (tries >= TRIES and (has_ended or seen is None)):
                why = self._not_reserved(key, trouble or (_REMOVED if seen is None and tries else ""))
                raise GivenUpError(str(why)) if is_failing else why
            if seen is None:
                try:
                    tries += await self._make(key)
                    is_failing = False
                except ApiError as error:
                    trouble, is_failing = said(error), True
            elif has_ended:
                await self._remove(seen)
            await self._news_of(key)
        return None

    def _held(self, seen: Seen | None) -> Reserved | None:
        if seen is None or seen.reservation is None or seen.leaving or seen.life is not Life.RUNNING or seen.uid in self._removing:
            return None
        return Reserved(seen.uid, seen.reservation.device) if seen.reservation.device else None

    async def _make(self, key: Key) -> bool:
        """Whether it was made: then the book knows it, unless it is gone again.

        Raises NotReservedError if the API server will not have it, ApiError if it fails inside.
        """
        space = self.terms.namespace
        try:
            if not self._has_namespace:
                await objects.add_namespace(self._api, space, {**MANAGED, **reservation.RESTRICTED})
                self._has_namespace = True
            body = reservation.pod_object(*key, namespace=space, image=self.terms.image, installation=self.terms.installation)
            self._see(await self._api.create(f"/api/v1/namespaces/{space}/pods", body))
        except ApiError as error:
            if error.is_passing:
                raise
            if error.reason == "AlreadyExists":
                return False
            if error.status == 404:  # somebody removed the namespace
                self._has_namespace = False
                return False
            raise self._not_reserved(key, f"the API server refused its reservation pod: {error.message}") from error
        return True

    async def _news_of(self, key: Key) -> None:
        event = asyncio.Event()
        self._waiting.setdefault(key, set()).add(event)
        try:
            async with asyncio.timeout(LOOK_EVERY_S):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting[key].discard(event)

    def _not_reserved(self, key: Key, trouble: str) -> NotReservedError:
        said = trouble or "it did not say which GPU it was given"
        where = f"kubectl get events -n {self.terms.namespace}"
        return NotReservedError(
            f"No GPU of {key[0]} could be set aside for sharing: {said.rstrip('.')}. "
            f"An admin sees more with `{where}`; whole GPUs need no reservation."
        )

    # telling

    async def tell(self, entry: Entry, told: Told, owner: Json) -> None:
        """The ConfigMap that the pod's environment refers to; one of an earlier scheduler gives way. Raises ApiError, NotReservedError."""
        path = f"/api/v1/namespaces/{entry.namespace}/configmaps"
        body = reservation.config_map(told, entry.namespace, owner)
        try:
            await self._api.create(path, body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            await self._make_way(f"{path}/{told.config_map}", owner)
            await self._api.create(path, body)

    async def _make_way(self, path: str, owner: Json) -> None:
        """Pods of others name their ConfigMap themselves: what is not of Hotdesk, or tells somebody who is there, is not taken away."""
        there = await self._api.get(path)
        meta = there["metadata"]
        owners = {one["uid"] for one in meta.get("ownerReferences") or []} - {owner["uid"]}
        alive = {seen.uid for seen in self._book.pods.values() if seen.life not in _ENDED}
        alive |= {entry.uid for entry in self._book.entries.values()}
        if not MANAGED.items() <= (meta.get("labels") or {}).items() or owners & alive:
            whose = "another's" if owners & alive else "not made by Hotdesk"
            raise NotReservedError(
                f"The ConfigMap {meta['name']}, which is to tell it its share of a GPU, is {whose}: name one for this pod alone."
            )
        await self._api.delete(path, {"preconditions": {"uid": meta["uid"]}})

    async def _untell(self, entry: Entry, pod: Pod) -> None:
        """However long it is refused, unless the same attempt is told again."""
        name = manifests.config_map_name(entry.workload, entry.uid, pod)
        path = f"/api/v1/namespaces/{entry.namespace}/configmaps/{name}"

        def is_over() -> bool:
            now = self._as_it_is(entry, pod)
            return self._is_over() or (now is not None and now.state in HOLDING and self._book.is_reserved(now.placement))

        while not is_over():
            try:
                await until_it_works(lambda: self._api.delete(path), gives_up=is_over)
                return
            except ApiError as error:
                log.error("configmap.not_deleted name=%s/%s error=%s", entry.namespace, name, error)
            await asyncio.sleep(tries.REFUSED_PAUSE_S)

    def _as_it_is(self, entry: Entry, pod: Pod) -> Pod | None:
        """None if that attempt is over, or its workload gone."""
        pods = entry.workload.pods if self._book.entries.get(entry.workload.id) is entry else ()
        return next((one for one in pods if (one.index, one.attempt) == (pod.index, pod.attempt)), None)

    # letting go

    def news(self, new: Seen | None, old: Seen | None) -> None:
        """Of a reservation pod."""
        for seen in (old, new):
            if seen is not None and seen.reservation is not None and seen.node:
                key = seen.node, seen.reservation.group
                for event in self._waiting.get(key, ()):
                    event.set()
                self.look(key)
        if new is None and old is not None:
            self._removing.discard(old.uid)

    def look(self, key: Key) -> None:
        if self._has_begun and key not in self._due and not self._is_over():
            self._due.add(key)
            self._later(self._look(key))

    def look_at(self, placement: Placement | None) -> None:
        for share in placement.shares if placement else ():
            self.look((placement.node, share.group))  # type: ignore[union-attr]  # it has shares

    def _left(self, entry: Entry, pod: Pod) -> None:
        """A pod of ours does not share any more."""
        if self._book.is_reserved(pod.placement) and not entry.is_claimed and not self._is_over():
            entry.told.discard(pod.index)
            self._later(self._untell(entry, pod))
        self.look_at(pod.placement)

    async def _look(self, key: Key) -> None:
        self._due.discard(key)
        seen = self._book.reservations.get(key)
        if self._book.sharers.get(key):
            self._check(key, self._held(seen))
        elif seen is not None and not seen.leaving:
            await self._remove(seen)

    async def _remove(self, seen: Seen) -> None:
        """Marked before it is asked for, so that nobody counts on it meanwhile. A dead node would never say that it is gone."""
        if seen.uid in self._removing:
            return
        self._removing.add(seen.uid)
        node = self._book.nodes.get(seen.node or "")
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": seen.uid}}
        if node is None or not node.ready:
            body["gracePeriodSeconds"] = 0
        path = f"/api/v1/namespaces/{seen.namespace}/pods/{seen.name}"
        try:
            await until_it_works(lambda: self._api.delete(path, body), gives_up=self._is_over)
        except ApiError as error:
            self._removing.discard(seen.uid)
            if error.status != 409:  # 409: another one of that name by now
                log.error("reservation.not_deleted pod=%s/%s error=%s", seen.namespace, seen.name, error)
                self._look_later(seen)

    def _look_later(self, seen: Seen) -> None:
        """What was refused may be allowed then, or wanted again."""

        async def work() -> None:
            await asyncio.sleep(tries.REFUSED_PAUSE_S)
            self._refused.discard(seen.uid)
            if seen.reservation is not None and seen.node:
                self.look((seen.node, seen.reservation.group))

        if seen.uid not in self._refused:
            self._refused.add(seen.uid)
            self._later(work())

    def _check(self, key: Key, held: Reserved | None) -> None:
        """Pods that were told of this GPU, and for which it is not held any more: their device may be given to others."""
        node = self._book.nodes.get(key[0])
        if node is None or node.simulated:
            return
        for workload_id, index in tuple(self._book.sharers[key]):
            entry = self._book.entries[workload_id]
            pod = entry.pod(index)
            seen = self._book.seen_of(entry, pod)
            if pod.state is PodState.RELEASING or pod.placement is None or seen is None or seen.leaving or not seen.node:
                continue
            told = dict(zip((share.group for share in pod.placement.shares), seen.reserved, strict=False)).get(key[1])
            if told is None and held is not None:
                self._later(self._note_again(entry, pod, seen, key))
            elif told is None or told != held:
                self._give_up(entry, index, self._taken_away(entry, key, told))

    async def _note_again(self, entry: Entry, pod: Pod, seen: Seen, key: Key) -> None:
        """What it was told, which a hand took off it: its ConfigMap says it too, and what its placement says holds if that is gone."""
        shares = pod.placement.shares if pod.placement else ()
        now = [self._held(self._book.reservations.get((key[0], share.group))) for share in shares]
        name = seen.claim.config_map if seen.claim else manifests.config_map_name(entry.workload, entry.uid, pod)
        space = f"/api/v1/namespaces/{entry.namespace}"
        try:
            devices = await self._devices_told(f"{space}/configmaps/{name}")
            if self._as_it_is(entry, pod) is None:
                return
            for share, one, device in zip(shares, now, devices or (), strict=False):
                if share.group == key[1] and one is not None and one.device != device:
                    self._give_up(entry, pod.index, self._taken_away(entry, key, Reserved("", device)))
                    return
            held = [one for one in now if one is not None]
            if len(held) == len(now):  # else its end is under way
                body = {"metadata": {"uid": seen.uid, "annotations": {RESERVED: reservation.reserved_out(held)}}}
                await until_it_works(lambda: self._api.merge(f"{space}/pods/{seen.name}/status", body), gives_up=self._is_over)
        except ApiError as error:
            log.error("pod.not_noted pod=%s/%s error=%s", seen.namespace, seen.name, error)

    async def _devices_told(self, path: str) -> list[str]:
        """[] if the ConfigMap is gone."""
        try:
            found = await until_it_works(lambda: self._api.get(path), gives_up=self._is_over)
        except ApiError as error:
            if error.status != 404:
                raise
            return []
        said = str((found or {}).get("data", {}).get("NVIDIA_VISIBLE_DEVICES", ""))
        return said.split(",") if said else []

    def _taken_away(self, entry: Entry, key: Key, told: Reserved | None) -> str:
        name = reservation.pod_name(*key)
        which = f"GPU {told.device}" if told else "the GPU"
        again = "start it again from the hub" if entry.workload.kind is Kind.WORKSPACE else "it starts again when there is room"
        return f"{which} of {key[0]} that it shared is not held for it any more (pod {self.terms.namespace}/{name}); {again}."


def _trouble(seen: Seen | None) -> str:
    if seen is None or seen.reservation is None:
        return ""
    return seen.why.sentence if seen.why else seen.reservation.trouble
