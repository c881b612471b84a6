"""Pods of others, which are there already: bound where they are placed, and evicted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from hotdesk_scheduler.core.model import Pod, PodState
from hotdesk_scheduler.engines import transitions
from hotdesk_scheduler.engines.base import Change
from hotdesk_scheduler.engines.kubernetes import groups, manifests
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError, Json
from hotdesk_scheduler.engines.kubernetes.book import Book
from hotdesk_scheduler.engines.kubernetes.claims import UNTELLABLE
from hotdesk_scheduler.engines.kubernetes.entry import Entry, Member
from hotdesk_scheduler.engines.kubernetes.observe import PLACEMENT
from hotdesk_scheduler.engines.kubernetes.reserving import NotReservedError, Reservations
from hotdesk_scheduler.engines.kubernetes.shares import Shares
from hotdesk_scheduler.engines.kubernetes.tries import GivenUpError, Tries
from hotdesk_scheduler.engines.kubernetes.troubles import Troubles
from hotdesk_scheduler.engines.kubernetes.turns import Rank
from hotdesk_scheduler.engines.kubernetes.volumes import Making, NotToBeHadError

PAUSE_S = 10.0


class TakenError(Exception):
    """What it asks for, and the core does not count, is somebody else's by now."""


class Others:
    """`take_in_again(entry, index)`: the claims of such a pod are not what they were when it was taken in."""

    def __init__(
        self,
        api: Api,
        book: Book,
        troubles: Troubles,
        *,
        shares: Shares,
        reservations: Reservations,
        take_in_again: Callable[[Entry, int], None],
        is_over: Callable[[], bool],
    ) -> None:
        self._api = api
        self._book = book
        self._troubles = troubles
        self._shares = shares
        self._reservations = reservations
        self._take_in_again = take_in_again
        self._is_over = is_over
        self._making = Making(api, book)

    async def bind(self, entry: Entry, index: int) -> None:
        """Where it goes is noted on it by its binding. One that cannot be bound waits again."""
        with self._troubles.of(entry, index) as tell:
            await self._bind(entry, index, Tries("It cannot be bound", tell))

    async def _bind(self, entry: Entry, index: int, tried: Tries) -> None:
        member, pod = entry.members.get(index), entry.pod(index)
        if member is None or pod.placement is None:
            return

        def is_over() -> bool:
            return self._is_over() or entry.members.get(index) is not member or entry.pod(index).state is not PodState.STARTING

        seen = self._book.seen_of(entry, pod)
        group = seen.claim.group if seen is not None and seen.claim is not None else None
        notes = {PLACEMENT: manifests.placement_out(pod.placement), **groups.note(group, entry.workload.min_pods)}
        path = f"/api/v1/namespaces/{entry.namespace}/pods/{member.name}/binding"
        try:
            async with entry.turn(index):
                self._take(member, pod.placement.node)
                self._check_tellable(entry, pod)
                reserved = await self._reservations.hold(pod.placement, is_over)
                if reserved is None:
                    return
                if (told := self._shares.told(entry, pod, reserved)) is not None:
                    notes |= manifests.reserved_note(told)
                    owner = {"apiVersion": "v1", "kind": "Pod", "name": member.name, "uid": member.uid}
                    await tried.until_it_works(lambda: self._reservations.tell(entry, told, owner), gives_up=is_over)
                await self._making.ready(entry, pod, tried, is_over)
                self._take(member, pod.placement.node)  # others may have come there meanwhile
                body = {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": member.name, "uid": member.uid, "annotations": notes},
                    "target": {"apiVersion": "v1", "kind": "Node", "name": pod.placement.node},
                }
                await tried.until_it_works(partial(self._in_turn, self._api.create, path, body), gives_up=is_over)
        except TakenError as error:
            self._wait_again(entry, index, str(error), is_over)
        except NotToBeHadError:
            self._book.extras.give_back(member.uid)
            if not is_over():
                self._take_in_again(entry, index)
        except (GivenUpError, NotReservedError) as error:
            await self._waits_again(entry, index, str(error), is_over)
        except ApiError as error:
            if error.status not in (404, 409):
                await self._waits_again(entry, index, f"It could not be bound: {error.message}", is_over)

    async def _in_turn(self, ask: Callable[[str, Json], Awaitable[Any]], path: str, body: Json) -> Any:
        """One try. Who waits for the next one holds up nobody."""
        async with self._api.turns.take(Rank.POD):
            return await ask(path, body)

    async def _waits_again(self, entry: Entry, index: int, sentence: str, is_over: Callable[[], bool]) -> None:
        """After a pause: nothing counts its failures, and it would be tried again at once."""
        await asyncio.sleep(PAUSE_S)
        if (member := entry.members.get(index)) is not None and not is_over():
            self._book.extras.give_back(member.uid)
        self._wait_again(entry, index, sentence, is_over)

    def _wait_again(self, entry: Entry, index: int, sentence: str, is_over: Callable[[], bool]) -> None:
        if is_over():
            return
        waits = Pod(index, entry.pod(index).request)
        self._book.put(entry, transitions.with_pod(entry.workload, waits, time.time()))
        self._book.changed(Change("failed_verb", entry.workload.id, index, sentence))

    def _check_tellable(self, entry: Entry, pod: Pod) -> None:
        if self._book.is_reserved(pod.placement) and not self._shares.config_map(entry, pod):
            raise NotReservedError(UNTELLABLE)

    def _take(self, member: Member, node: str) -> None:
        if short := self._book.extras.take(member.uid, node, member.extras):
            raise TakenError(f"Node {node} does not have {short} for every pod that was sent there. It waits for another place.")

    async def evict(self, entry: Entry, index: int, seconds: int) -> None:
        """With grace; a PodDisruptionBudget may make us wait (429), as for everybody."""
        member = entry.members.get(index)
        if member is None:
            return

        def is_over() -> bool:
            return self._is_over() or entry.members.get(index) is not member

        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": member.name, "namespace": entry.namespace},
            "deleteOptions": {"gracePeriodSeconds": seconds, "preconditions": {"uid": member.uid}},
        }
        path = f"/api/v1/namespaces/{entry.namespace}/pods/{member.name}/eviction"

        async def evict() -> None:
            try:
                await self._api.create(path, body)
            except ApiError as error:
                if error.status not in (404, 409):
                    raise

        what = "It cannot be evicted, so its place stays taken"
        by_hand = f"deletes it: kubectl delete pod {member.name} -n {entry.namespace}"
        await self._troubles.until_taken(entry, index, evict, what=what, otherwise=by_hand, is_over=is_over)
