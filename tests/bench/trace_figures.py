"""How fast `simulate --jobs` plays a trace: as it comes in a normal week, and at twice what the cluster takes."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from figure import Figure
from hotdesk_scheduler.core.model import Policy
from hotdesk_scheduler.whatif import cluster, trace
from hotdesk_scheduler.whatif.cluster import Cluster
from hotdesk_scheduler.whatif.play import Rules, play

SHAPE = "20x8xV100-SXM2-32GB"
GPUS = 160
MEAN_S = 3600
SIZES = [1] * 50 + [2] * 15 + [4] * 12 + [8] * 8 + [0.5] * 10 + [0.25] * 5
"""GPUs of a job; besides, three in a hundred are gangs of two pods with eight each."""


def jobs_csv(count: int, load: float) -> str:
    """A trace of so many jobs that asks for `load` times the GPU time that is there while they come."""
    chance = random.Random(1)
    mean_gpus = sum(SIZES) / len(SIZES) * 0.97 + 16 * 0.03
    at, lines = 0.0, ["submit,duration,gpus,pods,project,kind"]
    for _ in range(count):
        at += chance.expovariate(load * GPUS / (mean_gpus * MEAN_S))
        duration = max(30, int(chance.lognormvariate(0, 1.2) * MEAN_S / 2.05))
        gpus, pods = (8, 2) if chance.random() < 0.03 else (chance.choice(SIZES), 1)
        kind = chance.choices(["train", "interactive", "interactive-preemptible"], [8, 1, 1])[0]
        if pods > 1:
            kind = "train"
        lines.append(f"{int(at)},{duration},{gpus},{pods},{chance.choices('abcd', [4, 3, 2, 1])[0]},{kind}")
    return "\n".join(lines) + "\n"


def traces() -> Iterator[Figure]:
    """CPU time of the whole, with nodes kept for who has waited long, as the service decides."""
    for count, load, words, bar_s in ((10_000, 0.8, "80 % of what the cluster takes", 60), (2_000, 2.0, "twice what it takes", None)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "jobs.csv"
            path.write_text(jobs_csv(count, load))
            jobs = trace.read_jobs(path)
        on = cluster.with_projects_of(Cluster(cluster.simulated(SHAPE), ()), jobs)
        began = time.process_time()
        story = play(on, jobs, Rules(Policy(reserve_after_s=600.0)))
        took_s = time.process_time() - began
        assert all(course.end_ms is not None for course in story.courses), "not all jobs came to their end"
        title = f"simulate --jobs, {count} jobs on {GPUS} GPUs, {words}"
        yield Figure(f"{title}: CPU time", took_s, "s", bar=bar_s)
        yield Figure(f"{title}: jobs in a second of CPU time", count / took_s, "jobs")
        yield Figure(f"{title}: CPU time of a cycle", took_s * 1000 / story.cycles, "ms")
