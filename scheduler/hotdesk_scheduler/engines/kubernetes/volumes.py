"""Where the claims that pods use lie: which nodes reach their volumes, and which are made only where their first pod goes.

A workspace's are read when it is submitted, and its hub has them made. For pods of others both is done here, as kube-scheduler would:
read when a pod is taken in (`Looks`), and again before it is bound (`Making`), for others may have been quicker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from hotdesk_scheduler.core.eligible import is_wished
from hotdesk_scheduler.core.model import NodeRule, Pod, Volume
from hotdesk_scheduler.engines.kubernetes import tries
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError
from hotdesk_scheduler.engines.kubernetes.book import Book
from hotdesk_scheduler.engines.kubernetes.claims import terms_in
from hotdesk_scheduler.engines.kubernetes.codec import Json
from hotdesk_scheduler.engines.kubernetes.entry import Entry
from hotdesk_scheduler.engines.kubernetes.tries import GivenUpError, Tries
from hotdesk_scheduler.engines.kubernetes.turns import Rank, now
from hotdesk_scheduler.engines.kubernetes.watch import Key

log = logging.getLogger(__name__)
T = TypeVar("T")

SELECTED_NODE = "volume.kubernetes.io/selected-node"
FIRST_PAUSE_S, MOST_MAKING_PAUSE_S, MOST_PAUSE_S = 0.5, 5.0, 20.0
KEEP_S = 10.0
NEWS_S = 0.1
"""A flood of pods with claims of their own is taken in some at a time."""
_WAITS, _NONE_MADE = "WaitForFirstConsumer", "kubernetes.io/no-provisioner"


async def tied(api: Api, namespace: str, claims: Sequence[str]) -> tuple[Volume, ...]:
    """Those of these claims that are bound to a volume with a required nodeAffinity. Raises ApiError."""
    found: list[Volume] = []
    for name in claims:
        claim = await _read(api, _path(namespace, name)) or {}
        if bound := (claim.get("spec") or {}).get("volumeName"):
            found.extend(_lies(name, await _read(api, _volume_path(bound)) or {}))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Found:
    """Of claims of a pod: to which volumes they tie it. `problem`: why it cannot have one of them now, in a sentence."""

    tied: tuple[Volume, ...] = ()
    problem: str = ""


async def look(api: Api, namespace: str, name: str, claim: Json | None = None) -> Found:
    """One claim, read already or not. Raises ApiError."""
    claim = claim or await _read(api, _path(namespace, name))
    if claim is None or "deletionTimestamp" in claim.get("metadata", {}):
        return Found(problem=f"There is no claim {name} in namespace {namespace}, which it uses: make it, and the pod goes on.")
    spec = claim.get("spec") or {}
    if bound := spec.get("volumeName"):
        volume = await _read(api, _volume_path(bound))
        if volume is None:
            return Found(problem=f"Its claim {name} is bound to volume {bound}, which is not there: delete the claim and make it again.")
        return Found(_lies(name, volume))
    return await _unmade(api, namespace, name, spec) if spec else Found()


async def _unmade(api: Api, namespace: str, name: str, spec: Json) -> Found:
    """Its volume is made once its first pod has a node, of those that its class allows; or there is nothing to be had now."""
    kind = spec.get("storageClassName")
    storage = await _read(api, f"/apis/storage.k8s.io/v1/storageclasses/{kind}") if kind else None
    if storage is not None and storage.get("provisioner") == _NONE_MADE:
        return Found(
            problem=f"Its claim {name} has no volume, and its storage class {kind} makes none: an admin names the claim in a volume "
            "(spec.claimRef), or use a class that has a provisioner."
        )
    if storage is None or storage.get("volumeBindingMode", _WAITS) != _WAITS:
        return Found(problem=f"Its claim {name} has no volume yet: {_see((namespace, name))}; the pod goes on when it has one.")
    allowed = [term.get("matchLabelExpressions") or [] for term in storage.get("allowedTopologies") or []]
    terms = tuple(tuple(NodeRule(one["key"], "In", tuple(one["values"])) for one in term) for term in allowed)
    return Found((Volume(name, terms),) if terms else ())


def _lies(name: str, volume: Json) -> tuple[Volume, ...]:
    affinity = (volume.get("spec") or {}).get("nodeAffinity") or {}
    terms = terms_in(affinity.get("required") or {})
    return (Volume(name, terms),) if terms else ()


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"


def _volume_path(name: str) -> str:
    return f"/api/v1/persistentvolumes/{name}"


async def _read(api: Api, path: str) -> Json | None:
    """None if it is not there. Empty if it is not ours to see: where the role is not the chart's, that must not stop every workspace."""
    try:
        return await api.get(path)
    except ApiError as error:
        if error.status == 403:
            log.warning("volume.not_readable path=%s error=%s", path, error)
            return {}
        if error.status != 404:
            raise
    return None


class Looks:
    """At claims that pods of others name; once for those that come together, again and again while one cannot be had.

    `heard()` a moment after an answer that is news; `is_wanted(namespace, name)` ends the looking.
    """

    def __init__(self, api: Api, *, heard: Callable[[], None], is_wanted: Callable[[str, str], bool]) -> None:
        self._api = api
        self._heard = heard
        self._is_wanted = is_wanted
        self._known: dict[Key, Found] = {}
        self._looking: dict[Key, asyncio.Task[None]] = {}
        self._news: asyncio.TimerHandle | None = None

    def of(self, namespace: str, names: Sequence[str]) -> Found | None:
        """All of them together; None while one is just being looked at."""
        found = [one for name in names if (one := self._one((namespace, name))) is not None]
        if len(found) < len(names):
            return None
        return Found(tuple(volume for one in found for volume in one.tied), next((one.problem for one in found if one.problem), ""))

    def _one(self, key: Key) -> Found | None:
        if key not in self._looking:
            self._looking[key] = asyncio.create_task(self._look(key), name=f"claim {key}")
        return self._known.get(key)

    def forget(self, namespace: str, names: Sequence[str]) -> None:
        """They are not what they were."""
        for name in names:
            self._known.pop((namespace, name), None)
            if (task := self._looking.pop((namespace, name), None)) is not None:
                task.cancel()

    async def stop(self) -> None:
        if self._news is not None:
            self._news.cancel()
        tasks = tuple(self._looking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self, key: Key) -> None:
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                found = await self._answer(key)
                if not found.problem or pause_s > FIRST_PAUSE_S:  # what is just being made is there in a moment
                    self._note(key, found)
                if found.problem and not self._is_wanted(*key):
                    return
                await asyncio.sleep(pause_s if found.problem else KEEP_S)
                if not found.problem:
                    return
                pause_s = min(MOST_PAUSE_S, pause_s * 2)
        finally:
            if self._looking.get(key) is asyncio.current_task():
                del self._looking[key]
                self._known.pop(key, None)

    async def _answer(self, key: Key) -> Found:
        try:
            return await _in_turn(self._api, look, *key)
        except ApiError as error:
            log.warning("claim.not_readable claim=%s/%s error=%s", *key, error)
            return Found(problem=f"Its claim {key[1]} cannot be read: {tries.said(error)} It is tried again.")

    def _note(self, key: Key, found: Found) -> None:
        if found == self._known.get(key):
            return
        self._known[key] = found
        if self._news is None:
            self._news = asyncio.get_running_loop().call_later(NEWS_S, self._tell)

    def _tell(self) -> None:
        self._news = None
        self._heard()


class NotToBeHadError(Exception):
    """A claim is not what it was when its pod was taken in: it is gone, or its volume was made elsewhere."""


class Making:
    """Volumes of pods of others that are about to be bound, where their claims have none yet.

    The claim is told its node, and the pod is bound once it has its volume. Bound before, it could go nowhere else when none can be made
    there, or when another pod had it made on another node.
    """

    def __init__(self, api: Api, book: Book) -> None:
        self._api = api
        self._book = book
        self._nodes: dict[Key, str] = {}

    async def ready(self, entry: Entry, pod: Pod, tried: Tries, gives_up: Callable[[], bool]) -> None:
        """Its node reaches the volumes of all its claims. Raises NotToBeHadError, GivenUpError, ApiError."""
        seen = self._book.seen_of(entry, pod)
        node = self._book.nodes.get(pod.placement.node) if pod.placement is not None else None
        if seen is None or seen.claim is None or node is None:
            return
        for name in seen.claim.volume_claims:
            key = (seen.namespace, name)
            claim = await self._until_made(key, node.name, tried, gives_up)
            found = await tried.until_it_works(partial(_in_turn, self._api, look, *key, claim), gives_up=gives_up)
            if found is None:
                return
            if found.problem or not all(is_wished(node, volume.terms) for volume in found.tied):
                raise NotToBeHadError(found.problem or f"Its volume {name} lies where node {node.name} does not reach it.")

    async def _until_made(self, key: Key, node: str, tried: Tries, gives_up: Callable[[], bool]) -> Json | None:
        """The claim, once it has a volume, or is gone; None if it is not wanted any more."""
        since, pause_s, is_asked = now(), FIRST_PAUSE_S, False
        read, ask = partial(_in_turn, self._api, _read, _path(*key)), partial(_in_turn, self._api, _ask, _path(*key), node)
        claim: Json | None
        try:
            while _is_unmade(claim := await tried.until_it_works(read, gives_up=gives_up)):
                if self._nodes.setdefault(key, node) == node:  # else who needs it elsewhere was first
                    told = _told(claim)
                    if is_asked and not told:  # a provisioner that failed takes it off
                        raise GivenUpError(f"Its claim {key[1]} got no volume on node {node}: {_see(key)}.")
                    if told != node:
                        await tried.until_it_works(ask, gives_up=gives_up)
                    is_asked = True
                if now() - since >= tries.GIVEN_UP_AFTER_S:
                    raise GivenUpError(f"Its claim {key[1]} got no volume on node {node} for a long time: {_see(key)}.")
                if now() - since >= tries.TOLD_AFTER_S:
                    tried.tell(f"It waits until its claim {key[1]} has a volume, to be made on node {node}: {_see(key)}.")
                await asyncio.sleep(pause_s)
                pause_s = min(MOST_MAKING_PAUSE_S, pause_s * 2)
            return claim
        finally:
            if self._nodes.get(key) == node:
                del self._nodes[key]


def _is_unmade(claim: Json | None) -> bool:
    if not claim:
        return False
    return not claim["spec"].get("volumeName") and "deletionTimestamp" not in claim["metadata"]


def _told(claim: Json) -> str:
    """The node on which its volume is to be made."""
    return str((claim["metadata"].get("annotations") or {}).get(SELECTED_NODE, ""))


async def _ask(api: Api, path: str, node: str) -> None:
    try:
        await api.merge(path, {"metadata": {"annotations": {SELECTED_NODE: node}}})
    except ApiError as error:
        if error.status != 404:  # seen when it is read next
            raise


def _see(key: Key) -> str:
    return f"kubectl describe pvc {key[1]} -n {key[0]} says why"


async def _in_turn(api: Api, ask: Callable[..., Awaitable[T]], *about: Any) -> T:
    """One question or answer of a pod."""
    async with api.turns.take(Rank.POD):
        return await ask(api, *about)
