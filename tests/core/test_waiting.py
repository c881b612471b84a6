"""Bounded waiting: under any stream of small work, a big job within its quota starts by the bound that `core/reserve` states."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from builders import World, node, q
from hotdesk_scheduler.core.model import PodState, Policy
from hypothesis import given, settings
from hypothesis import strategies as st
from random_worlds import QuickWorld, a_history

AFTER_S = 8
LONGEST_S = 6
TO_START_S = 3
"""The cycle that gives way, the one after which the places are free, and the one that starts."""
BOUND_S = AFTER_S + LONGEST_S + TO_START_S
BIG = "a0"
SMALL = (1, 1, 1, 2, 0.5, 0.3)


@dataclass
class Stream:
    """Small work that comes every second and runs for at most LONGEST_S each time it starts."""

    world: World
    chance: random.Random
    projects: str
    fixed: float
    gangs: bool = False
    own_fixed: bool = False
    ends_at: dict[tuple[str, int, int], float] = field(default_factory=dict)

    def second(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            project = self.chance.choice(self.projects)
            fixed = self.chance.random() < self.fixed and (project != "a" or self.own_fixed)
            pods = self.chance.choice([1, 1, 1, 2, 3]) if self.gangs else 1
            elastic = self.chance.random() < 0.5
            self.world.asks(
                project,
                self.chance.choice(SMALL),
                fixed=fixed, priority=50, pods=pods, min_pods=1 if elastic else pods, age_s=0,
            )  # fmt: skip
        for workload in self.world.snapshot().workloads:
            for pod in workload.pods:
                key = (workload.id, pod.index, pod.attempt)
                if pod.state is PodState.RUNNING and workload.name != BIG:
                    ends = self.ends_at.setdefault(key, (pod.started_at or 0) + self.chance.randint(1, LONGEST_S))
                    if ends <= self.world.now:
                        self.world.finish(workload.name, pod.index)
        self.world.cycle()


def waited(seed: int, reserve_after_s: float | None, most: int = BOUND_S) -> int | None:
    """Seconds until the big job of a random world runs; None if it does not within `most`.

    Its own project's later non-preemptible work comes only where it is non-preemptible too: quota is that work's first (scheduling.md 2).
    """
    chance = random.Random(seed)
    gpus = chance.choice([4, 4, 8])
    count = chance.choice([1, 2, 3])
    pods = chance.choice([1, 1, 2]) if count > 1 else 1
    ask = chance.choice([gpus, gpus, gpus - 1])
    rest = max(0, gpus * count - ask * pods)
    nodes = [node(f"n{i}", gpus) for i in range(count)]
    departments = {"x": q(ask * pods + rest // 2), "y": q(rest - rest // 2)} if chance.random() < 0.3 else {}
    parent = {"department": "x"} if departments else {}
    quotas = {
        "a": q(ask * pods, limit=chance.choice([None, ask * pods]), **parent),
        "b": q(rest // 2, **parent),
        "c": q(rest - rest // 2, **({"department": "y"} if departments else {})),
    }
    world = QuickWorld(*nodes, policy=Policy(grace_s=0, reserve_after_s=reserve_after_s), departments=departments, **quotas)
    stream = Stream(world, chance, chance.choice(["b", "bc", "bcc"]), chance.choice([0, 0.5, 1]), gangs=chance.random() < 0.5)
    for _ in range(4):
        stream.second()
    stream.own_fixed = chance.random() < 0.4
    world.asks("a", ask, name=BIG, pods=pods, fixed=stream.own_fixed, priority=50, age_s=0)
    stream.projects += chance.choice(["", "a", "aa"])
    for second in range(most + 1):
        stream.second()
        if world.pods_running(BIG) == pods:
            return second
    return None


@settings(max_examples=300)
@given(seed=st.integers(0, 1 << 32))
def test_a_big_job_within_quota_starts_by_the_bound_whatever_small_work_comes(seed: int) -> None:
    assert waited(seed, AFTER_S) is not None


def test_the_streams_are_hard_enough_to_starve_it_without() -> None:
    assert sum(waited(seed, None) is None for seed in range(60)) >= 6


@settings(max_examples=300)
@given(seed=st.integers(0, 1 << 32))
def test_also_with_nodes_kept_it_comes_to_rest(seed: int) -> None:
    world = a_history(seed)
    world.policy = replace(world.policy, reserve_after_s=50.0)
    world.rest()
