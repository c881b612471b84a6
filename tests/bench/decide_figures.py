"""How long one decision takes: `decide()` alone, in CPU time of its one thread, at full, half and quarter size.

Eight clusters, each the worst of its kind: everything starts, everything is taken back, nothing may change. What has to come out is
checked too: a fast wrong answer is no figure.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from figure import Figure
from hotdesk_scheduler import collector
from hotdesk_scheduler.core.decide import decide
from hotdesk_scheduler.core.memory import Memory
from hotdesk_scheduler.core.model import (
    Department,
    GpuRequest,
    Kind,
    Node,
    Placement,
    Pod,
    PodRequest,
    PodState,
    Policy,
    Project,
    Quota,
    Snapshot,
    Workload,
)
from hotdesk_scheduler.core.plan import Hold, Move, Nominate, Plan, Start, Stop

NOW = 2_000_000.0
GPUS = 8
ROUNDS = 3
MOST_GROWTH = 1.5
"""Time per node at full size over time per node at a quarter of it: 1 is linear."""


@dataclass(slots=True)
class Cluster:
    """A snapshot in the making; every workload is younger than the one before."""

    nodes: int
    projects: tuple[Project, ...]
    departments: tuple[Department, ...] = ()
    workloads: list[Workload] | None = None

    def add(self, project: str, *, gpus: int = 1, pods: int = 1, on: int | None = None) -> None:
        """One gang: waiting, or running on the node of this number."""
        self.workloads = self.workloads or []
        number = len(self.workloads)
        request = PodRequest(GpuRequest(whole=gpus), 1000, 1024)
        if on is None:
            made = tuple(Pod(i, request) for i in range(pods))
        else:
            made = tuple(Pod(i, request, PodState.RUNNING, Placement(name(on), gpus), started_at=1.0) for i in range(pods))
        job = f"job-{number:06}"
        self.workloads.append(Workload(job, job, project, Kind.TRAIN, min_pods=pods, pods=made, created_at=1000.0 + number))

    def snapshot(self) -> Snapshot:
        nodes = tuple(Node(name(i), GPUS, 81920, 128_000, 1_000_000) for i in range(self.nodes))
        return Snapshot(1, nodes, self.departments, self.projects, tuple(self.workloads or ()))


def name(number: int) -> str:
    return f"machine-{number:05}"


def project(title: str, gpus: int, *, weight: int | None = None, department: str | None = None) -> Project:
    return Project(title, department, Quota(gpus * 1000), weight=weight, created_at=float(sum(map(ord, title))))


def a_an_empty_morning(nodes: int) -> Cluster:
    """a: an empty cluster, five jobs a node, four projects of two departments."""
    quota = nodes * GPUS // 4
    titles = ["north-1", "north-2", "south-1", "south-2"]
    departments = tuple(Department(d, Quota(2 * quota * 1000), created_at=1.0) for d in ("north", "south"))
    cluster = Cluster(nodes, tuple(project(t, quota, department=t[:5]) for t in titles), departments)
    for i in range(5 * nodes):
        cluster.add(titles[i % 4])
    return cluster


def b_everything_starts(nodes: int) -> Cluster:
    cluster = Cluster(nodes, (project("all", nodes * GPUS),))
    for _ in range(nodes * GPUS):
        cluster.add("all")
    return cluster


def lent(nodes: int, *, quota_of_lender: int, quota_of_owner: int) -> Cluster:
    """Full of one-GPU jobs of a project that has them lent."""
    cluster = Cluster(nodes, (project("lender", quota_of_lender, weight=0), project("owner", quota_of_owner, weight=0)))
    for i in range(nodes * GPUS):
        cluster.add("lender", on=i % nodes)
    return cluster


def c_half_of_it_for_one_gang(nodes: int) -> Cluster:
    cluster = lent(nodes, quota_of_lender=0, quota_of_owner=nodes * GPUS)
    cluster.add("owner", gpus=GPUS, pods=nodes // 2)
    return cluster


def d_all_of_it_job_by_job(nodes: int) -> Cluster:
    cluster = lent(nodes, quota_of_lender=0, quota_of_owner=nodes * GPUS)
    for _ in range(nodes * GPUS):
        cluster.add("owner")
    return cluster


def gangs(nodes: int) -> int:
    """How many gangs of e find their holes if as few as possible move."""
    return 41 * nodes // 500


def e_holes_by_moving(nodes: int) -> Cluster:
    cluster = Cluster(nodes, (project("all", nodes * GPUS),))
    for i in range(3 * nodes):
        cluster.add("all", on=i % nodes)
    for _ in range(gangs(nodes)):
        cluster.add("all", gpus=6, pods=10)
    return cluster


def f_one_gpu_short(nodes: int) -> Cluster:
    cluster = lent(nodes, quota_of_lender=nodes * GPUS - 79, quota_of_owner=80)
    cluster.add("owner", gpus=GPUS, pods=10)
    return cluster


def g_nothing_may_change(nodes: int) -> Cluster:
    titles = [f"team-{i:02}" for i in range(20)]
    cluster = Cluster(nodes, tuple(project(t, nodes * GPUS // 20, weight=1000) for t in titles))
    for i in range(nodes * GPUS):
        cluster.add(titles[i % 20], on=i % nodes)
    for i in range(10 * nodes):
        cluster.add(titles[i % 20])
    return cluster


def count(plan: Plan, *kinds: type) -> int:
    return sum(isinstance(decision, kinds) for decision in plan.decisions)


@dataclass(frozen=True)
class Shape:
    """A kind of cluster, its full size, its bar, and what has to come out of it."""

    build: Callable[[int], Cluster]
    nodes: int
    bar_ms: float
    right: Callable[[Plan, int], bool]
    policy: Policy = field(default_factory=Policy)

    @property
    def title(self) -> str:
        letter, _, words = self.build.__name__.partition("_")
        return f"decide {letter} ({words.replace('_', ' ')})"


KEEPS = Policy(reserve_after_s=600.0)
"""As in the service: everybody in the queue has waited long enough to have nodes kept, could he be helped by it."""
SHAPES = [
    Shape(a_an_empty_morning, 100, 15, lambda plan, nodes: count(plan, Start) == 5 * nodes),
    Shape(b_everything_starts, 500, 150, lambda plan, nodes: count(plan, Start) == GPUS * nodes),
    Shape(c_half_of_it_for_one_gang, 500, 150, lambda plan, nodes: count(plan, Stop) == nodes // 2 * GPUS),
    Shape(d_all_of_it_job_by_job, 500, 1000, lambda plan, nodes: count(plan, Stop) == count(plan, Nominate) == GPUS * nodes),
    Shape(
        e_holes_by_moving, 500, 1000, lambda plan, nodes: count(plan, Start, Nominate) == 10 * gangs(nodes) and not count(plan, Stop),
        Policy(max_moves=None),
    ),
    Shape(f_one_gpu_short, 500, 50, lambda plan, nodes: not count(plan, Start, Stop, Move, Nominate) and count(plan, Hold) == 1),
    Shape(g_nothing_may_change, 1000, 100, lambda plan, nodes: len(plan.decisions) == count(plan, Hold) == 10 * nodes, KEEPS),
]  # fmt: skip


def timed_ms(snapshot: Snapshot, policy: Policy, memory: Memory | None = None) -> tuple[float, Plan]:
    with collector.paused():
        began = time.process_time()
        plan = decide(snapshot, policy, NOW, memory)
        return (time.process_time() - began) * 1000, plan


def median_ms(shape: Shape, nodes: int) -> float:
    snapshot = shape.build(nodes).snapshot()
    times = []
    for _ in range(ROUNDS):
        took_ms, plan = timed_ms(snapshot, shape.policy)
        assert shape.right(plan, nodes), f"{shape.title} at {nodes} nodes does not come out right"
        times.append(took_ms)
    return statistics.median(times)


def decisions() -> Iterator[Figure]:
    """Shapes a to g, each at three sizes."""
    for shape in SHAPES:
        full, half, quarter = (median_ms(shape, shape.nodes // part) for part in (1, 2, 4))
        yield Figure(f"{shape.title}, {shape.nodes} nodes", full, "ms", bar=shape.bar_ms)
        yield Figure(f"{shape.title}, {shape.nodes // 2} nodes", half, "ms")
        yield Figure(f"{shape.title}, {shape.nodes // 4} nodes", quarter, "ms")
        yield Figure(f"{shape.title}, time per node, full over quarter size", full / quarter / 4, "x", bar=MOST_GROWTH)


def one_ended(snapshot: Snapshot) -> Snapshot:
    """Somebody's running job has ended."""
    return replace(snapshot, version=2, workloads=snapshot.workloads[1:])


def one_submitted(snapshot: Snapshot) -> Snapshot:
    *_, last = snapshot.workloads
    return replace(snapshot, workloads=(*snapshot.workloads, replace(last, id="new", name="new", created_at=last.created_at + 1)))


def one_deleted(snapshot: Snapshot) -> Snapshot:
    """From the middle of the queue."""
    middle = len(snapshot.workloads) * 3 // 4
    return replace(snapshot, workloads=snapshot.workloads[:middle] + snapshot.workloads[middle + 1 :])


def one_quota_changed(snapshot: Snapshot) -> Snapshot:
    first, *others = snapshot.projects
    richer = replace(first, gpu=Quota((first.gpu.quota or 0) + 1000))
    return replace(snapshot, projects=(richer, *others))


def decisions_at_ten_thousand_nodes() -> Iterator[Figure]:
    """Shape h: 80,000 running, 100,000 queued, in a process of its own for its memory; and again after one change, at both sizes."""
    for nodes, first_bar, again_bar in ((1_000, None, 10), (10_000, 1_500, 100)):
        command = [sys.executable, str(Path(__file__)), str(nodes)]
        told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        title = f"decide {'g' if nodes == 1_000 else 'h'} (nothing may change), {nodes} nodes"
        yield Figure(f"{title}, first", told["first_ms"], "ms", bar=first_bar)
        for change in CHANGES:
            yield Figure(f"{title}, again after {change.__name__.replace('_', ' ')}", told[change.__name__], "ms", bar=again_bar)
        yield Figure(f"{title}, the first look at the whole queue", told["look_ms"], "ms")
        yield Figure(f"{title}, most memory", told["most_mib"], "MiB", bar=1024)


CHANGES = (one_ended, one_submitted, one_deleted, one_quota_changed)


def main() -> None:
    """In the process of its own: the size is the argument, the figures are the output."""
    snapshot, memory = g_nothing_may_change(int(sys.argv[1])).snapshot(), Memory()
    told: dict[str, float] = {}
    told["first_ms"], plan = timed_ms(snapshot, Policy(), memory)
    began = time.process_time()
    assert len(plan.holds) == len(snapshot.nodes) * 10
    told["look_ms"] = (time.process_time() - began) * 1000
    for change in CHANGES:
        snapshot = change(snapshot)
        told[change.__name__], plan = timed_ms(snapshot, Policy(), memory)
        assert count(plan, Start) == 1
    told["most_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(told))


if __name__ == "__main__":
    main()
