"""/metrics: the cluster as Prometheus gauges, computed when asked; names follow Run:ai's where it has one.

Nothing about people: projects and kinds are labels, users and workload names are not.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hotdesk_scheduler.core.model import HOLDING, PodState, Snapshot

if TYPE_CHECKING:
    from hotdesk_scheduler.service.desk import Desk

_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)


class Metrics:
    """One registry a service."""

    def __init__(self, desk: Desk) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Cluster(desk))
        self._passes = Histogram(
            "hotdesk_scheduling_pass_seconds", "Time of one scheduling pass", buckets=_BUCKETS, registry=self._registry
        )
        self._requests = Counter("hotdesk_requests", "REST requests", ["method", "status"], registry=self._registry)

    def observe_pass(self, seconds: float) -> None:
        self._passes.observe(seconds)

    def observe_request(self, method: str, status: int) -> None:
        self._requests.labels(method, str(status)).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _Cluster(Collector):
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        snapshot = self._desk.engine.snapshot()
        simulated = str(any(node.simulated for node in snapshot.nodes)).lower()
        yield from _nodes(snapshot)
        yield from self._projects(snapshot, simulated)
        queue = GaugeMetricFamily("hotdesk_queue_length", "Workloads that wait", labels=["simulated"])
        queue.add_metric([simulated], len(self._desk.loop.told))
        yield queue
        listeners = GaugeMetricFamily("hotdesk_event_listeners", "Open event streams", value=len(self._desk.feed))
        yield listeners
        yield GaugeMetricFamily("hotdesk_ready", "1 while nothing is wrong", value=0 if self._desk.problems() else 1)

    def _projects(self, snapshot: Snapshot, simulated: str) -> Iterator[GaugeMetricFamily]:
        labels = ["project", "simulated"]
        quota = GaugeMetricFamily("runai_quota_gpus", "GPU quota of a project (absent: unlimited)", labels=labels)
        allocated = GaugeMetricFamily("runai_allocated_gpus", "GPUs that a project holds", labels=labels)
        share = GaugeMetricFamily("hotdesk_fair_share_gpus", "GPUs a project may have now", labels=labels)
        held: Tally[str] = Tally()
        counts: Tally[tuple[str, str, str]] = Tally()
        for workload in snapshot.workloads:
            for pod in workload.pods:
                if pod.placement is not None and pod.state in HOLDING:
                    held[workload.project] += pod.placement.gpu_millis
            running = any(pod.state is PodState.RUNNING for pod in workload.pods)
            state = "running" if running else str(workload.phase)
            counts[workload.project, workload.kind.value, state] += 1
        for project in snapshot.projects:
            values = [project.name, simulated]
            allocated.add_metric(values, held[project.name] / 1000)
            if project.gpu.quota is not None:
                quota.add_metric(values, project.gpu.quota / 1000)
            if project.name in self._desk.loop.fair_shares:
                share.add_metric(values, self._desk.loop.fair_shares[project.name] / 1000)
        workloads = GaugeMetricFamily("hotdesk_workloads", "Workloads", labels=["project", "kind", "state", "simulated"])
        for (name, kind, state), count in sorted(counts.items()):
            workloads.add_metric([name, kind, state, simulated], count)
        yield from (quota, allocated, share, workloads)


def _nodes(snapshot: Snapshot) -> Iterator[GaugeMetricFamily]:
    labels = ["node", "simulated"]
    capacity = GaugeMetricFamily("runai_node_gpu_count", "GPUs of a node", labels=labels)
    allocated = GaugeMetricFamily("runai_node_gpus_allocated", "GPUs of a node that are held", labels=labels)
    ready = GaugeMetricFamily("hotdesk_node_ready", "1 while the node is ready", labels=labels)
    held: Tally[str] = Tally()
    for workload in snapshot.workloads:
        for pod in workload.pods:
            if pod.placement is not None and pod.state in HOLDING:
                held[pod.placement.node] += pod.placement.gpu_millis
    for node in snapshot.nodes:
        values = [node.name, str(node.simulated).lower()]
        capacity.add_metric(values, node.gpus)
        allocated.add_metric(values, held[node.name] / 1000)
        ready.add_metric(values, int(node.ready))
    yield from (capacity, allocated, ready)
