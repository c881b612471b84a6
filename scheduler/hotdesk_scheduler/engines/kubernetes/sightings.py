"""What becomes of our pods as they are seen: the next state, adopting what runs after a restart, taking away what nobody counts.

Whose a pod is, its name says: it follows from workload, index and attempt and cannot be edited, as labels can. Pods of workspaces, which
the hub names, are known by their variable JOB_UUID, or by their labels.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeGuard

from hotdesk_api.errors import Conflict

from hotdesk_scheduler.core.model import HOLDING, Kind, Phase, Placement, Pod, PodState
from hotdesk_scheduler.engines import transitions
from hotdesk_scheduler.engines.base import Change
from hotdesk_scheduler.engines.kubernetes import manifests, progress
from hotdesk_scheduler.engines.kubernetes.book import Book
from hotdesk_scheduler.engines.kubernetes.entry import Entry
from hotdesk_scheduler.engines.kubernetes.observe import Life, Seen
from hotdesk_scheduler.engines.kubernetes.pods import LATE_GRACE_S, Pods
from hotdesk_scheduler.engines.kubernetes.saving import Saving

log = logging.getLogger(__name__)

_ALIVE = (Life.COMING, Life.RUNNING, Life.STUCK)


class Sightings:
    """Works on the book; what has to be done about a pod, `pods` does."""

    def __init__(self, book: Book, pods: Pods, saving: Saving) -> None:
        self._book = book
        self._pods = pods
        self._saving = saving

    def named(self, seen: Seen) -> Seen:
        """With the workload, index and attempt that its name or its variable says, whatever its labels say."""
        entry, index = self._entry_of(seen)
        if entry is not None:
            for attempt in dict.fromkeys((seen.attempt, *_attempts(entry, index))):
                if manifests.pod_name(entry.workload, entry.uid, _at(entry, index, attempt)) == seen.name:
                    return replace(seen, workload_id=entry.workload.id, index=index, attempt=attempt)
        own, said = (self._book.entries.get(one or "") for one in (seen.variable, seen.workload_id))
        if own is not said and _may_be(own, seen):
            return replace(seen, workload_id=seen.variable, index=0, attempt=own.pod(0).attempt)
        if said is None or _may_be(said, seen):
            return seen
        return replace(seen, workload_id=None, index=0, attempt=0)  # a copy, labels and all

    def _entry_of(self, seen: Seen) -> tuple[Entry | None, int]:
        head, _, _ = seen.name.rpartition("-")
        name, _, index = head.rpartition("-")
        entry = self._book.entries.get(self._book.keys.get((seen.namespace, name), ""))
        if entry is None or not index.isdecimal() or entry.workload.kind is Kind.WORKSPACE:
            return None, 0
        return entry, int(index)

    def look(self, new: Seen | None, old: Seen | None) -> None:
        """News of a pod of ours."""
        one = new or old
        assert one is not None
        if new is not None and new.reserved and old is None:
            self._pods.reservations.look_at(manifests.placement_in(new.placement))
        entry = self._book.entries.get(one.workload_id or "")
        if entry is None or entry.namespace != one.namespace or entry.workload.kind is Kind.WORKSPACE:
            return  # of a workspace's pod the hub tells; here it only counts as the workspace's
        pod = _pod(entry, one.index)
        if pod is not None and pod.attempt == one.attempt and pod.state in HOLDING:
            self.step(entry, pod, new)
        elif new is not None:
            self._stray(entry, pod, new)

    def step(self, entry: Entry, pod: Pod, seen: Seen | None) -> None:
        now = time.time()
        pod = self._in_its_place(entry, pod, seen)
        after = progress.after(pod, seen, now)
        error = seen.why.sentence if seen and seen.why else ""
        if after is pod:
            if error and entry.errors.get(pod.index) != error:
                entry.errors[pod.index] = error
                self._book.put(entry, replace(entry.workload))  # for whoever looks at it only when it is another one
                self._saving.soon(entry)
                self._book.changed(Change("failed_verb", entry.workload.id, pod.index, error))
            return
        if after.state is PodState.RUNNING:
            entry.errors.pop(pod.index, None)
        elif error:
            entry.errors[pod.index] = error
        self._book.put(entry, progress.changed_workload(entry.workload, after, now))
        self._told(entry, after, error)
        if progress.is_stuck(after):
            self._pods.take_down(entry, pod.index, 0)

    def _in_its_place(self, entry: Entry, pod: Pod, seen: Seen | None) -> Pod:
        """A pod that another leader made is where that one sent it; what a hand wrote there about a pod on its node moves nothing."""
        if pod.state not in HOLDING or pod.placement is None or seen is None or seen.placement == manifests.placement_out(pod.placement):
            return pod
        if pod.state is not PodState.STARTING and seen.node == pod.placement.node:
            return pod
        placement = manifests.placement_in(seen.placement)
        if placement is None or placement == pod.placement or not _is_true(placement, seen):
            return pod
        moved = replace(pod, placement=placement)
        self._book.put(entry, transitions.with_pod(entry.workload, moved, time.time()))
        self._book.changed(Change("updated", entry.workload.id, pod.index))
        return moved

    def _told(self, entry: Entry, pod: Pod, sentence: str) -> None:
        self._saving.soon(entry)
        kind = "failed_verb" if progress.is_stuck(pod) else progress.kind_of(pod)
        self._book.changed(Change(kind, entry.workload.id, pod.index, sentence))

    # a node that is gone

    def lose(self, node: str) -> None:
        """Its pods of ours are given up; their objects go as well, so that a node that comes back ends what it still runs."""
        now = time.time()
        for entry in tuple(self._book.entries.values()):
            for pod in [pod for pod in entry.workload.pods if not entry.is_claimed and _is_on(pod, node)]:
                seen = self._book.seen_of(entry, pod)
                lost = progress.lost_with_node(pod, now)
                self._book.put(entry, transitions.ended(replace(entry.workload, lost_node=True), lost, now))
                self._told(entry, lost, f"Node {node} was lost, and pod {pod.index} with it.")
                if seen is not None:
                    self._pods.discard(seen)

    # pods that nobody counts

    def _stray(self, entry: Entry, pod: Pod | None, seen: Seen) -> None:
        """Made by a leader that did not know yet that it was none any more, or of an attempt that is over. One pod of an index may run."""
        if seen.life not in _ALIVE or seen.leaving:
            return
        if pod is not None and self._may_have(entry, pod, seen) and self._record(entry, pod, seen) is not pod:
            log.warning("pod.adopted pod=%s/%s", seen.namespace, seen.name)
            self.step(entry, entry.pod(pod.index), seen)
            self._go_on(entry, entry.pod(pod.index), seen)
            return
        log.warning("pod.discarded pod=%s/%s", seen.namespace, seen.name)
        self._pods.discard(seen)

    def _may_have(self, entry: Entry, pod: Pod, seen: Seen) -> bool:
        """It waits for a place, and this pod has one that nobody was given meanwhile."""
        if entry.workload.phase is not Phase.ACTIVE or pod.state in HOLDING or not _is_unrecorded(pod, seen):
            return False
        placement = manifests.placement_in(seen.placement)
        return placement is not None and _is_true(placement, seen) and self._is_free(placement, seen)

    def _is_free(self, placement: Placement, seen: Seen) -> bool:
        """One that is on its node already is among what others hold there, as long as it is nobody's."""
        node = next((node for node in self._book.snapshot().nodes if node.name == placement.node), None)
        if node is None or not node.ready:
            return False
        pods = (pod for entry in self._book.entries.values() for pod in entry.workload.pods if _is_on(pod, node.name))
        places = [pod.placement for pod in pods if pod.placement]
        shared = [*placement.shares, *(share for place in places for share in place.shares)]
        if any(sum(one.millis for one in shared if one.group == share.group) > 1000 for share in placement.shares):
            return False
        asked = placement.gpu_millis if seen.node is None else 0
        return sum(place.gpu_millis for place in places) + node.foreign.gpu_millis + asked <= node.gpus * 1000

    # after a restart

    def adopt(self, entry: Entry, pods: Iterable[Seen]) -> None:
        """A pod that is there was started, whatever is recorded; one that is recorded as running and is not there has ended."""
        if entry.workload.kind is Kind.WORKSPACE:
            for pod in entry.workload.pods:
                if pod.state in (PodState.STARTING, PodState.RUNNING):
                    self._pods.prepare(entry, pod.index)
            return
        latest: dict[int, Seen] = {}
        for seen in sorted((seen for seen in pods if seen.namespace == entry.namespace), key=lambda seen: seen.attempt):
            if (earlier := latest.get(seen.index)) is not None and earlier.life in _ALIVE and not earlier.leaving:
                self._pods.discard(earlier)
            latest[seen.index] = seen
        for pod in entry.workload.pods:
            found = latest.get(pod.index)
            if found is not None and _is_unrecorded(pod, found):
                pod = self._record(entry, pod, found)
            if pod.state not in HOLDING:
                continue
            current = found if found is not None and found.attempt == pod.attempt else None
            if current is None and pod.state is PodState.STARTING:
                self._pods.bring_up(entry, pod.index)
                continue
            self.step(entry, pod, current)
            self._go_on(entry, entry.pod(pod.index), current)

    def _go_on(self, entry: Entry, pod: Pod, seen: Seen | None) -> None:
        """What was under way when the last scheduler ended."""
        if pod.state is PodState.STARTING and seen is not None and seen.node is None:
            self._pods.bring_up(entry, pod.index)
        elif pod.state is PodState.RELEASING and seen is not None and not seen.leaving:
            now = time.time()
            told = replace(pod, release_deadline=max(pod.release_deadline or 0.0, now + LATE_GRACE_S))
            self._book.put(entry, transitions.with_pod(entry.workload, told, now))
            self._saving.soon(entry)
            self._pods.take_down(entry, pod.index, (told.release_deadline or 0.0) - now)

    def _record(self, entry: Entry, pod: Pod, seen: Seen) -> Pod:
        placement = manifests.placement_in(seen.placement)
        if placement is None:
            return pod
        again = Pod(index=pod.index, request=pod.request, attempt=seen.attempt, stop_reason=pod.stop_reason)
        started = transitions.started(again, placement, seen.started_at or time.time())
        with contextlib.suppress(Conflict):  # it runs; which simulated GPU is shown for it does not matter then
            self._book.grant(entry, pod.index, placement.node, self._book.would_give(placement))
        self._book.put(entry, transitions.with_pod(entry.workload, started, time.time()))
        self._book.changed(Change("updated", entry.workload.id, pod.index))
        return started


def _may_be(entry: Entry | None, seen: Seen) -> TypeGuard[Entry]:
    """Whether it is a workspace's pod if it says so."""
    return entry is not None and entry.workload.kind is Kind.WORKSPACE and entry.namespace == seen.namespace


def _pod(entry: Entry, index: int) -> Pod | None:
    return next((pod for pod in entry.workload.pods if pod.index == index), None)


def _at(entry: Entry, index: int, attempt: int) -> Pod:
    return Pod(index, entry.workload.pods[0].request, attempt=attempt)


def _attempts(entry: Entry, index: int) -> Iterable[int]:
    """Those of which there may be pods: the one that is recorded, the next, which a killed scheduler may have begun, and the last ones."""
    pod = _pod(entry, index)
    recorded = pod.attempt if pod else 0
    return (attempt for attempt in (recorded, recorded + 1, recorded - 1, recorded - 2, 0) if attempt >= 0)


def _is_on(pod: Pod, node: str) -> bool:
    return pod.state in HOLDING and pod.placement is not None and pod.placement.node == node


def _is_true(placement: Placement, seen: Seen) -> bool:
    """Whether it is what the pod really has: its node, and the GPUs it asks for."""
    return seen.node in (None, placement.node) and seen.uses.gpu_millis in (0, placement.whole * 1000)


def _is_unrecorded(pod: Pod, seen: Seen) -> bool:
    return seen.attempt > pod.attempt or (seen.attempt == pod.attempt and pod.state is PodState.PENDING)
