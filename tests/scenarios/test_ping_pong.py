"""Traces of jobs with nodes kept for who has waited long: nobody is stopped again and again for the same."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from builders import millis, node, q
from hotdesk_scheduler.core.model import GpuRequest, PodRequest, Policy, Project
from hotdesk_scheduler.core.plan import Act, Move, Stop
from hotdesk_scheduler.core.reasons import ReasonCode
from hotdesk_scheduler.whatif.cluster import Cluster
from hotdesk_scheduler.whatif.play import Play, Rules
from hotdesk_scheduler.whatif.trace import Job

NAMES = "abcd"


class Watched(Play):
    """Notes who was stopped for whom."""

    stops: Counter[tuple[str, str | None, ReasonCode]]

    async def _apply(self, acts: Sequence[Act]) -> bool:
        self.stops += Counter(
            {(d.workload_id, d.beneficiary, d.reason.code) for d in acts if isinstance(d, Stop) and not isinstance(d, Move)}
        )
        return await super()._apply(acts)


def a_trace(seed: int, count: int) -> tuple[Cluster, list[Job]]:
    """A busy cluster, quotas of all sizes, jobs from a minute to hours; every tenth is a notebook."""
    chance = random.Random(seed)
    nodes = tuple(node(f"n{i}", chance.choice([2, 4, 8])) for i in range(chance.randint(1, 4)))
    total, largest = sum(one.gpus for one in nodes), max(one.gpus for one in nodes)
    quotas = [q(chance.choice([0, 1, 2, total // 4, total // 2]), chance.choice([None, None, 0, 1, 2])) for _ in NAMES]
    projects = tuple(Project(name, created_at=i, **quota) for i, (name, quota) in enumerate(zip(NAMES, quotas, strict=True)))
    jobs: list[Job] = []
    at_s = 0.0
    for number in range(count):
        at_s += chance.expovariate(1 / chance.choice([20, 100]))
        amount = millis(min(chance.choice([1, 1, 1, 2, 2, 4, 8, 0.5]), largest)) or 0
        gpu = GpuRequest(millis=amount) if amount % 1000 else GpuRequest(whole=amount // 1000)
        fixed = chance.random() < 0.1
        duration_s = chance.choice([60, 300, 900, 3600, 7200]) * chance.uniform(0.5, 1.5)
        jobs.append(
            Job(
                f"j{number}",
                chance.choice(NAMES),
                round(at_s * 1000),
                round(duration_s * 1000),
                PodRequest(gpu, 100, 100),
                pods=chance.choice([1, 1, 1, 1, 1, 2]),
                priority=100 if fixed else chance.choice([40, 50, 50, 60]),
                preemptible=not fixed,
            )
        )
    return Cluster(nodes, projects), jobs


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_nobody_is_stopped_again_and_again_for_the_same(seed: int) -> None:
    cluster, jobs = a_trace(seed, 90)
    play = Watched(cluster, jobs, Rules(Policy(reserve_after_s=600.0)), path=None, progress=lambda done: None)
    play.stops = Counter()
    story = asyncio.run(play.run())
    gave_way = Counter({who: times for who, times in play.stops.items() if who[2] is ReasonCode.GAVE_WAY})
    assert max(gave_way.values(), default=1) == 1
    assert max(Counter(name for name, _, _ in gave_way.elements()).values(), default=0) <= 2
    assert max(play.stops.values(), default=0) <= 3
    assert sum(course.preempted for course in story.courses) <= len(jobs)
