"""Pods of others in the book: each is a workload of one pod, as long as the pod is there. Its controller makes the next one.

Nothing of it is kept but what its pod says: after a restart it is read from the pod again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from hotdesk_scheduler.core.model import HOLDING, PodState
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines import transitions
from hotdesk_scheduler.engines.base import Change
from hotdesk_scheduler.engines.kubernetes import claims, progress
from hotdesk_scheduler.engines.kubernetes.book import Book, Entry
from hotdesk_scheduler.engines.kubernetes.observe import Life, Seen

_ENDED = (Life.SUCCEEDED, Life.FAILED, Life.FADED)


class Claimed:
    """`project_of`: namespaces of projects. `explain(entry)` says on the pod why it waits."""

    def __init__(self, book: Book, *, project_of: Mapping[str, str], explain: Callable[[Entry], None]) -> None:
        self._book = book
        self._project_of = project_of
        self._explain = explain

    def look(self, seen: Seen | None, old: Seen | None) -> None:
        """News of a pod that is ours to place."""
        one = seen or old
        assert one is not None
        entry = self._book.entries.get(one.uid)
        if seen is None or seen.life in _ENDED:
            self._end(one.uid, seen)
        elif entry is None:
            self._begin(seen)
        else:
            self._step(entry, seen)

    def _begin(self, seen: Seen) -> None:
        project = self._project_of.get(seen.namespace)
        if project is None or seen.claim is None or (seen.node is None and (seen.leaving or seen.gated)):
            return
        workload = claims.workload_of(seen, seen.claim, project, time.time())
        entry = Entry(seen.namespace, seen.uid, 0, workload, claims.spec_of(seen, seen.claim, project), is_claimed=True)
        if seen.claim.problem and seen.node is None:
            entry.hold = Reason(ReasonCode.NODES_EXCLUDED, seen.claim.problem)
            self._explain(entry)
            return  # it stays out of the queue: nothing we could decide would be right
        self._book.add(entry)
        self._book.changed(Change("submitted", seen.uid))

    def _step(self, entry: Entry, seen: Seen) -> None:
        pod, now = entry.pod(0), time.time()
        if seen.node is not None and pod.state is PodState.PENDING and seen.claim is not None:  # bound by an earlier leader, or by hand
            workload = claims.workload_of(seen, seen.claim, entry.workload.project, now)
            self._book.put(entry, workload)
            self._book.changed(Change("updated", entry.workload.id, 0))
            return
        after = progress.after(pod, seen, now)
        if after is pod:
            return
        if after.state is PodState.RELEASING and not seen.leaving:
            return  # it cannot start, which is its controller's to mend; it holds its place meanwhile
        self._book.put(entry, transitions.with_pod(entry.workload, after, now))
        self._book.changed(Change("started" if after.state is PodState.RUNNING else "updated", entry.workload.id, 0))

    def _end(self, uid: str, seen: Seen | None) -> None:
        entry = self._book.entries.get(uid)
        if entry is None:
            return
        held = entry.pod(0).state in HOLDING
        self._book.drop(uid)
        if held:
            self._book.tell(Change("exited" if seen else "released", uid, 0))
        self._book.changed(Change("removed", uid))
