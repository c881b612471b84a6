"""When something is due next although nothing changes. Kept from one question to the next: only who changed is looked at anew."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from hotdesk_scheduler.core import lifecycle
from hotdesk_scheduler.core.memory import changed
from hotdesk_scheduler.core.model import Policy, Project, Snapshot, Workload

MOST_STALE = 4
"""If the heap has so many times more entries than there are workloads, it is made anew."""


class Deadlines:
    """A heap of the times of all workloads. Entries of values that are gone are passed over when they come up."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._policy: Policy | None = None
        self._asked_at = 0.0
        self._current: dict[str, Workload] = {}
        self._heap: list[tuple[float, int, Workload]] = []
        self._number = count()

    def next(self, snapshot: Snapshot, policy: Policy, now: float) -> float | None:
        """The earliest time after now at which something is due although nothing changes; None if there is no such time."""
        before, self._snapshot = self._snapshot, None
        is_alike = before is not None and before.projects == snapshot.projects and self._policy == policy and now >= self._asked_at
        if before is None or not is_alike or len(self._heap) > MOST_STALE * len(snapshot.workloads) + 1000:
            self._current, self._heap = {}, []
            self._fill(snapshot, policy, now)
        else:
            gone, new = changed(before.workloads, snapshot.workloads)
            for workload in gone:
                self._current.pop(workload.id, None)
            projects = {project.name: project for project in snapshot.projects} if new else {}
            for workload in new:
                self._current[workload.id] = workload
                for entry in self._entries(workload, projects.get(workload.project), policy, now):
                    heappush(self._heap, entry)
        self._snapshot, self._policy, self._asked_at = snapshot, policy, now
        return self._first_after(now)

    def _fill(self, snapshot: Snapshot, policy: Policy, now: float) -> None:
        projects = {project.name: project for project in snapshot.projects}
        self._current = {workload.id: workload for workload in snapshot.workloads}
        self._heap = [entry for w in snapshot.workloads for entry in self._entries(w, projects.get(w.project), policy, now)]
        heapify(self._heap)

    def _entries(self, workload: Workload, project: Project | None, policy: Policy, now: float) -> Iterator[tuple[float, int, Workload]]:
        return ((at, next(self._number), workload) for at in lifecycle.times(workload, project, policy) if at > now)

    def _first_after(self, now: float) -> float | None:
        heap = self._heap
        while heap:
            at, _, workload = heap[0]
            if at > now and self._current.get(workload.id) is workload:
                return at
            heappop(heap)
        return None
