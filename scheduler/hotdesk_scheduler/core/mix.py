"""The mix of requests seen, as a value, and how it is learnt: counted as they come, older ones fading (scheduling.md 5).

A `Learner` hands out the same `Mix` until it has seen half as much again, so that placement does not change its mind with every
request. Before `ENOUGH` requests there is no mix, and the everyday rules decide alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from hotdesk_scheduler.core.model import Mix, PodRequest, Workload

ENOUGH = 50
MOST = 8192
"""Beyond so many, all counts are halved: what was asked long ago fades."""

Kind = tuple[PodRequest, tuple[str, ...]]


class Learner:
    """What has been requested so far, by request and by the node types it named (none: any)."""

    def __init__(self) -> None:
        self._counts: dict[Kind, int] = {}
        self._seen = 0
        self._next = ENOUGH
        self._known: frozenset[str] = frozenset()
        self.mix: Mix | None = None

    def note(self, request: PodRequest, types: tuple[str, ...] = (), count: int = 1) -> None:
        """Count a request that arrived."""
        key = (request, types)
        self._counts[key] = self._counts.get(key, 0) + count
        self._seen += count
        if self._seen >= self._next:
            self._learn()

    def look(self, workloads: Iterable[Workload]) -> Mix | None:
        """Count the pods of workloads not seen at the last look; the mix as it stands now."""
        workloads = tuple(workloads)
        new = [w for w in workloads if w.id not in self._known]
        if new or len(workloads) != len(self._known):
            self._known = frozenset(w.id for w in workloads)
        for workload in sorted(new, key=lambda w: (w.created_at, w.id)):
            types = (workload.node_type,) if workload.node_type else ()
            for pod in workload.pods:
                self.note(pod.request, types)
        return self.mix

    def _learn(self) -> None:
        if self._seen > MOST:
            self._counts = {kind: count // 2 for kind, count in self._counts.items() if count > 1}
            self._seen = sum(self._counts.values())
        self._next = self._seen * 3 // 2
        kinds = sorted(self._counts.items(), key=lambda kind: (_key(kind[0][0]), kind[0][1]))
        self.mix = Mix(tuple((request, types, count) for (request, types), count in kinds))


def _key(request: PodRequest) -> tuple[int, ...]:
    gpu = request.gpu
    return (gpu.whole, gpu.millis, gpu.memory_mib, gpu.devices, request.cpu_millis, request.memory_mib)
