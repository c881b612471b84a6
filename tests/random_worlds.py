"""Random worlds for properties of the core, the same for the same seed: clusters, what runs there, what is asked, what happens next.

`a_state(seed)` is a cluster with work running and waiting, as no history need have led to it; `a_history(seed)` lives through changes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from builders import World, at_once, gpu_request, millis, node, q
from hotdesk_scheduler.core import invariants
from hotdesk_scheduler.core.decide import cycle
from hotdesk_scheduler.core.model import Node, Phase, Placement, PodState, Policy, Quota, Share, Snapshot
from hotdesk_scheduler.core.plan import Hold, Plan
from hypothesis import settings
from hypothesis import strategies as st

NAMES = "abcd"
SIZES = (1, 1, 1, 1, 2, 2, 3, 4, 0.5, 0.5, 0.3, 0.7, 0.25)
SHARED_GPUS = ("s0", "s1")
SEEDS = st.integers(0, 2**32 - 1)
MANY = settings(max_examples=20 * settings().max_examples)
"""2,000 examples, at night ten times as many."""
CYCLES_AT_REST = 5


class QuickWorld(World):
    """A world whose plans are checked against every invariant but the holds, which take most of the time and have tests of their own."""

    def decide(self) -> Plan:
        snapshot = self.snapshot()
        ledger, _ = cycle(snapshot, self.policy, self.now)
        self.plan = Plan(snapshot.version, tuple(ledger.decisions.values()))
        broken = invariants.check(snapshot, self.plan, told=False)
        assert not broken, "; ".join(broken)
        return self.plan

    def decides(self) -> bool:
        """One cycle; whether its plan decides anything."""
        self.cycle()
        return any(not isinstance(decision, Hold) for decision in self.plan.decisions)

    def rest(self, *, within: int = 6) -> None:
        """A cycle that decides nothing comes within so many, and five more decide nothing either."""
        assert not all(self.decides() for _ in range(within)), f"does not come to rest within {within} cycles"
        assert not any(self.decides() for _ in range(CYCLES_AT_REST)), "was at rest and moves again"


def a_cluster(chance: random.Random, kind: type[QuickWorld] = QuickWorld, **policy: Any) -> QuickWorld:
    """Up to three nodes of up to four GPUs, four projects, two departments; quotas may exceed what the department, or the cluster, has."""
    scarce = chance.random() < 0.25
    nodes = [
        node(f"n{i}", chance.randint(1, 4), **({"cpu_millis": chance.choice([2000, 4000]), "memory_mib": 4000} if scarce else {}))
        for i in range(chance.randint(1, 3))
    ]
    few_cpus = {"cpu": Quota(chance.choice([1000, 2000]), chance.choice([None, 3000]))}
    projects = {
        name: {
            **q(
                chance.choice([0, 1, 1, 2, 3, 4, 0.5, None]), chance.choice([None, None, 0, 1, 3]), chance.choice([None, None, None, 2, 4])
            ),
            "priority": chance.choice([0, 0, 0, 1]),
            "department": chance.choice([None, "x", "x", "y"]),
            "over_quota": chance.random() < 0.9,
            **(few_cpus if scarce and chance.random() < 0.3 else {}),
        }
        for name in NAMES
    }
    departments = {
        "x": q(chance.choice([1, 2, 3, 4]), chance.choice([None, 0, 1])),
        "y": q(chance.choice([0, 1, 2]), 1, chance.choice([None, 3, 6])),
    }
    return kind(*nodes, departments=departments, policy=Policy(grace_s=0, **policy), **projects)


def an_ask(chance: random.Random, project: str | None = None) -> tuple[str, float, dict[str, Any]]:
    """Project, GPUs, and the rest of what `World.asks` takes."""
    pods = chance.choice([1, 1, 1, 1, 2, 3])
    fixed = chance.random() < 0.2
    elastic = pods > 1 and chance.random() < 0.5
    scarce = chance.random() < 0.2
    more: dict[str, Any] = {
        "pods": pods,
        "fixed": fixed,
        "min_pods": chance.randint(1, pods - 1) if elastic else pods,
        "priority": None if fixed else chance.choice([None, None, 40, 60]),
        "cpu_millis": chance.choice([500, 1000, 2000]) if scarce else 100,
        "memory_mib": chance.choice([100, 2000]) if scarce else 100,
    }
    return project or chance.choice(NAMES), chance.choice(SIZES if not scarce else (0, *SIZES)), more


# --- states ----------------------------------------------------------------------------------------------------------------------------


def a_state(seed: int, *, running: int = 12, waiting: int = 3, kind: type[QuickWorld] = QuickWorld) -> QuickWorld:
    """Work that runs wherever there was room when it came, then work that waits. One in five clusters had its quotas changed since."""
    chance = random.Random(seed)
    policy = {"min_runtime_s": 600.0} if chance.random() < 0.1 else {}
    world = a_cluster(chance, kind, **policy)
    changed = chance.random() < 0.2
    for _ in range(chance.randint(3, running)):
        project, gpus, more = an_ask(chance)
        _run(world, chance, project, gpus, more, anything_goes=changed)
    for _ in range(chance.randint(1, waiting)):
        project, gpus, more = an_ask(chance)
        uneven(world, world.asks(project, gpus, **more), chance)
    return world


def uneven(world: World, name: str, chance: random.Random) -> None:
    """Some gangs have one pod that asks for something else than the others."""
    workload = world.get(name)
    if len(workload.pods) > 1 and chance.random() < 0.25:
        first = replace(workload.pods[0], request=replace(workload.pods[0].request, gpu=gpu_request(chance.choice(SIZES))))
        world.engine.put_workload(replace(workload, pods=(first, *workload.pods[1:])))


def _run(world: World, chance: random.Random, project: str, gpus: float, more: dict[str, Any], *, anything_goes: bool) -> None:
    """Put it on nodes with room, pod by pod, the surplus as far as it goes; nothing if its minimum finds no room or it may not run."""
    workload = world.workload(project, gpus, **more)
    started = world.now - chance.choice([100.0, 5000.0])
    pods = list(workload.pods)
    for i, pod in enumerate(pods):
        for place in _places(world, chance, gpus):
            running = replace(pod, state=PodState.RUNNING, placement=place, started_at=started)
            tried = replace(workload, pods=(*pods[:i], running, *pods[i + 1 :]))
            if _is_possible(world, tried, anything_goes=anything_goes):
                pods[i], workload = running, tried
                break
    if sum(pod.state is PodState.RUNNING for pod in pods) >= workload.min_pods:
        world.engine.put_workload(workload)


def _places(world: World, chance: random.Random, gpus: float) -> list[Placement]:
    amount = millis(gpus) or 0
    names = [n.name for n in world.snapshot().nodes]
    chance.shuffle(names)
    if amount % 1000 == 0:
        return [Placement(name, amount // 1000) for name in names]
    return [Placement(name, shares=(Share(group, amount),)) for name in names for group in SHARED_GPUS]


def _is_possible(world: World, workload: Any, *, anything_goes: bool) -> bool:
    """Whether nodes, and (mostly) limits and quotas, allow what runs already and this."""
    snapshot = world.snapshot()
    snapshot = replace(snapshot, workloads=(*snapshot.workloads, workload))
    return not invariants.state(snapshot, entitlements=not anything_goes)


# --- histories -------------------------------------------------------------------------------------------------------------------------


def a_history(seed: int, *, batches: int = 5, most: int = 6, kind: type[QuickWorld] = QuickWorld, breaks: bool = True) -> QuickWorld:
    """Changes, and a cycle or three after each batch of them, at rest or not; then time for everything to be due.

    Without `breaks` only what people do with their workloads: nothing fails, no node is lost, no quota changes.
    """
    chance = random.Random(seed)
    policies: list[dict[str, Any]] = [{"min_runtime_s": 1000.0}, {"preemption_delay_s": 500.0}, {"placement": "spread"}]
    policy = chance.choice(policies) if chance.random() < 0.2 else {}
    happenings, weights = (HAPPENINGS, WEIGHTS) if breaks else (HAPPENINGS[:2], WEIGHTS[:2])
    world = a_cluster(chance, kind, **policy)
    for _ in range(chance.randint(1, batches)):
        for _ in range(chance.randint(2, most)):
            chance.choices(happenings, weights)[0](world, chance)
        for _ in range(chance.randint(1, 3)):
            world.cycle()
    world.now += 5000
    return world


def _submits(world: World, chance: random.Random) -> None:
    project, gpus, more = an_ask(chance)
    uneven(world, world.asks(project, gpus, **more), chance)


def _deletes(world: World, chance: random.Random) -> None:
    active = [w.name for w in world.snapshot().workloads if w.phase is Phase.ACTIVE]
    if active:
        world.delete(chance.choice(active))


def _finishes(world: World, chance: random.Random) -> None:
    pods = [(w.name, p.index) for w in world.snapshot().workloads for p in w.pods if p.state is PodState.RUNNING]
    if pods:
        world.finish(*chance.choice(pods), exit_code=chance.choice([0, 0, 1]))


def _loses_a_node(world: World, chance: random.Random) -> None:
    chosen = chance.choice(world.snapshot().nodes)
    world.engine.now = world.now
    if chosen.ready:
        world.engine.lose_node(chosen.name)
    else:
        world.engine.return_node(chosen.name)


def _changes_a_quota(world: World, chance: random.Random) -> None:
    project = chance.choice(world.snapshot().projects)
    at_once(world.engine.put_project(replace(project, gpu=Quota(chance.choice([0, 1000, 2000, 3000]), project.gpu.limit))))


def a_smaller(node: Node, chance: random.Random) -> Node:
    """The same node with less of anything, or as it is."""
    return replace(
        node,
        gpus=chance.randint(0, node.gpus) if chance.random() < 0.5 else node.gpus,
        cpu_millis=chance.choice([node.cpu_millis, node.cpu_millis, node.cpu_millis // 2, 300]),
        memory_mib=chance.choice([node.memory_mib, node.memory_mib, node.memory_mib // 2, 300]),
        max_pods=chance.choice([None, None, 2, 4]),
        foreign_pods=chance.choice([0, 0, 1]),
    )


HAPPENINGS: tuple[Callable[[World, random.Random], None], ...] = (_submits, _deletes, _finishes, _loses_a_node, _changes_a_quota)
WEIGHTS = (14, 2, 2, 1, 1)


def shuffled(snapshot: Snapshot, seed: int) -> Snapshot:
    """The same snapshot with everything in another order."""
    chance = random.Random(seed)

    def mix(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(chance.sample(items, len(items)))

    return replace(
        snapshot,
        nodes=mix(snapshot.nodes),
        departments=mix(snapshot.departments),
        projects=mix(snapshot.projects),
        workloads=mix(snapshot.workloads),
    )
