"""Random worlds at rest for what people are told, by seed: something of everything that a sentence may be about.

Two node types, a tainted node, a pool, departments, limits, fractions, gangs, elastic and GPU memory requests, non-preemptible work,
minimum run times, preemption delays and reservations.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from builders import World, node, q
from hotdesk_scheduler.core.model import Kind, Policy, Taint

SIZES = (1, 1, 1, 2, 2, 2, 3, 4, 0.5, 0.3, 0.7)
POLICIES = (
    Policy(grace_s=0),
    Policy(grace_s=0),
    Policy(grace_s=0, max_moves=0),
    Policy(grace_s=0, min_runtime_s=60),
    Policy(grace_s=0, preemption_delay_s=60),
    Policy(grace_s=0, reserve_after_s=5_000),
)


def _entitled(chance: random.Random) -> dict[str, Any]:
    quota = chance.choice([0, 1, 2, 3, None])
    return q(
        quota,
        chance.choice([None, 0, 1]),
        chance.choice([None, None, 2, 4]) if quota is not None else None,
        department=chance.choice([None, None, "x", "y"]),
        over_quota=chance.random() < 0.85,
        node_pools=("lab",) if chance.random() < 0.1 else (),
    )


def world_of(chance: random.Random) -> World:
    nodes = [
        node(
            f"n{i}",
            chance.randint(1, 4),
            node_type=chance.choice(["v100", "h200"]),
            pool=chance.choice(["default", "default", "lab"]),
            taints=(Taint("own", "lab"),) if i and chance.random() < 0.15 else (),
            ready=i == 0 or chance.random() < 0.95,
            max_pods=3 if chance.random() < 0.1 else None,
        )
        for i in range(chance.randint(1, 4))
    ]
    projects = {name: _entitled(chance) for name in "abc"}
    return World(*nodes, departments={"x": q(3), "y": q(2, 1, 5)}, policy=chance.choice(POLICIES), **projects)


def ask(chance: random.Random) -> dict[str, Any]:
    """The arguments of one `World.asks` or `World.workload`."""
    pods = chance.choice([1, 1, 1, 1, 2, 3])
    fixed = chance.random() < 0.3
    by_memory = chance.random() < 0.06
    return {
        "project": chance.choice("abc"),
        "gpu": 0 if by_memory else chance.choice(SIZES) if chance.random() < 0.95 else chance.choice([0, 5]),
        "gpu_memory_mib": chance.choice([8_000, 16_384, 40_000]) if by_memory else 0,
        "pods": pods,
        "fixed": fixed,
        "min_pods": chance.choice([1, pods]),
        "kind": Kind.HPO if pods > 1 and chance.random() < 0.2 else Kind.TRAIN,
        "priority": None if fixed else chance.choice([None, 40, 60]),
        "node_type": chance.choice([*[None] * 12, "v100", "v100", "a100"]),
        "node_pools": chance.choice([*[()] * 8, ("lab",), ("lab", "default")]),
        "cpu_millis": chance.choice([*[100] * 8, 30_000, 50_000]),
        "age_s": chance.choice([None, None, None, 20.0]),
    }


def worlds(seed: int, count: int) -> Iterator[World]:
    """Each at rest several times: after every batch of requests, and sometimes after one that runs was deleted."""
    chance = random.Random(seed)
    for _ in range(count):
        world = world_of(chance)
        for _ in range(chance.randint(2, 3)):
            for _ in range(chance.randint(2, 6)):
                world.asks(**ask(chance))
            world.settle()
            yield world
            if world.running() and chance.random() < 0.4:
                world.delete(chance.choice(world.running()))
                world.settle()
                yield world
