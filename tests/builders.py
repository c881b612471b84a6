"""Worlds for tests of the scheduler, in few words: `World(node("n1", 2), a=1, b=2)`, then `world.runs("a", gpu=1, on="n1")`.

Names are given in the order of submission (a1, a2, b1 …) unless said; who comes first is older. Amounts are in GPUs, decimals allowed.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, TypeVar

from hotdesk_scheduler.core import invariants, lifecycle
from hotdesk_scheduler.core.decide import decide
from hotdesk_scheduler.core.model import (
    HOLDING,
    Department,
    GpuRequest,
    Kind,
    Node,
    Phase,
    Placement,
    Pod,
    PodRequest,
    PodState,
    Policy,
    Project,
    Quota,
    Share,
    Snapshot,
    Workload,
)
from hotdesk_scheduler.core.plan import Finish, Hold, Move, Nominate, Plan, Remove, Requeue, Start, Stop
from hotdesk_scheduler.core.reasons import Reason
from hotdesk_scheduler.engines.fake import FakeEngine

START = 1_000_000.0
Amount = int | float | str | None
Result = TypeVar("Result")


def millis(amount: Amount) -> int | None:
    """GPUs as written, in thousandths; None stays None (unlimited)."""
    return None if amount is None else int(Decimal(str(amount)) * 1000)


def node(name: str = "n1", gpus: int = 2, **more: Any) -> Node:
    """A node with plenty of CPU and memory unless said otherwise."""
    values: dict[str, Any] = {"gpu_memory_mib": 32768, "cpu_millis": 80_000, "memory_mib": 512_000, **more}
    return Node(name, gpus, **values)


def q(quota: Amount = 0, weight: Amount = None, limit: Amount = None, **more: Any) -> dict[str, Any]:
    """A project's or department's entitlement: q(quota, weight)."""
    return {"gpu": Quota(millis(quota), millis(limit)), "weight": millis(weight), **more}


def gpu_request(gpu: Amount = 1, memory_mib: int = 0, devices: int = 1) -> GpuRequest:
    if memory_mib:
        return GpuRequest(memory_mib=memory_mib, devices=devices)
    amount = millis(gpu) or 0
    return GpuRequest(whole=amount // 1000) if amount % 1000 == 0 else GpuRequest(millis=amount, devices=devices)


def at_once(call: Coroutine[Any, Any, Result]) -> Result:
    """The result of a call to the fake engine, which never waits for anything: no event loop is needed for it."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # what a coroutine returns
    raise AssertionError("the fake engine waited for something")


class World:
    """A cluster on the fake engine with a virtual clock. Every cycle's plan is checked against the invariants."""

    def __init__(
        self,
        *nodes: Node,
        departments: dict[str, dict[str, Any]] | None = None,
        policy: Policy | None = None,
        **projects: dict[str, Any] | Amount,
    ) -> None:
        self.now = START
        self.policy = policy or Policy(grace_s=0)
        made = [Project(name, created_at=i, **(e if isinstance(e, dict) else q(e))) for i, (name, e) in enumerate(projects.items())]
        parents = [Department(name, created_at=i, quota_is_sum=False, **e) for i, (name, e) in enumerate((departments or {}).items())]
        self.engine = FakeEngine(nodes, projects=made, departments=parents, runs_workspaces=True)
        self.engine.now = self.now
        self.plan = Plan(0, ())
        self.plans: list[Plan] = []
        self.stopped: list[str] = []
        self._count: dict[str, int] = {}
        self._age = 0

    # --- building ----------------------------------------------------------------------------------------------------------------

    def workload(
        self,
        project: str,
        gpu: Amount = 1,
        *,
        name: str | None = None,
        pods: int = 1,
        kind: Kind = Kind.TRAIN,
        fixed: bool = False,
        priority: int | None = None,
        min_pods: int | None = None,
        gpu_memory_mib: int = 0,
        cpu_millis: int = 100,
        memory_mib: int = 100,
        age_s: float | None = None,
        **more: Any,
    ) -> Workload:
        """A workload that waits; each is younger than the ones built before."""
        self._count[project] = self._count.get(project, 0) + 1
        self._age += 1
        request = PodRequest(gpu_request(gpu, gpu_memory_mib), cpu_millis, memory_mib)
        name = name or f"{project}{self._count[project]}"
        return Workload(
            id=name,
            name=name,
            project=project,
            kind=Kind.INTERACTIVE if fixed else kind,
            priority=priority if priority is not None else 100 if fixed else 50,
            preemptible=not fixed,
            min_pods=min_pods or pods,
            pods=tuple(Pod(i, request) for i in range(pods)),
            created_at=START - 10_000 + self._age if age_s is None else self.now - age_s,
            **more,
        )

    def asks(self, project: str, gpu: Amount = 1, **more: Any) -> str:
        """Submit a workload; its name."""
        workload = self.workload(project, gpu, **more)
        self.engine.put_workload(workload)
        return workload.name

    def runs(self, project: str, gpu: Amount = 1, *, on: str | Sequence[str] = "n1", group: str | None = None, **more: Any) -> str:
        """A workload that runs already; `on` names a node for each pod (one name: all there)."""
        started = more.pop("started_s_ago", 5_000.0)
        workload = self.workload(project, gpu, **more)
        where = [on] * len(workload.pods) if isinstance(on, str) else list(on)
        pods = []
        for pod, name in zip(workload.pods, where, strict=False):
            asked = pod.request.gpu
            shares = (Share(group or f"of-{workload.name}-{pod.index}", asked.millis),) if asked.millis else ()
            place = Placement(name, asked.whole, shares)
            pods.append(replace(pod, state=PodState.RUNNING, placement=place, started_at=self.now - started))
        self.engine.put_workload(replace(workload, pods=(*pods, *workload.pods[len(pods) :])))
        return workload.name

    # --- time --------------------------------------------------------------------------------------------------------------------

    def decide(self) -> Plan:
        """One decision, checked, not applied."""
        snapshot = self.snapshot()
        self.plan = decide(snapshot, self.policy, self.now)
        broken = invariants.check(snapshot, self.plan)
        assert not broken, "; ".join(broken)
        self.plans.append(self.plan)
        return self.plan

    def cycle(self) -> bool:
        """Stopping pods are gone, starting ones run; review, decide, apply. Whether anything moved."""
        self.engine.now = self.now
        moved = self.engine.settle()
        moved |= at_once(self._review())
        moved |= at_once(self._apply(self.decide()))
        self.now += 1
        return moved

    def settle(self, most: int = 10) -> World:
        """Cycles until nothing changes; fails if that takes more than `most`. Five more must change nothing."""
        for _ in range(most):
            if not self.cycle():
                break
        else:
            raise AssertionError(f"does not come to rest within {most} cycles")
        assert not any(self.cycle() for _ in range(2))
        return self

    async def _review(self) -> bool:
        moved = False
        for _ in range(50):
            due = lifecycle.review(self.snapshot(), self.policy, self.now)
            if not due:
                return moved
            moved = True
            for decision in due:
                if isinstance(decision, Requeue):
                    await self.engine.requeue_pod(decision.workload_id, decision.index)
                elif isinstance(decision, Finish):
                    await self.engine.set_phase(decision.workload_id, Phase(decision.phase), decision.reason, self.now)
                elif isinstance(decision, Remove):
                    await self.engine.forget(decision.workload_id)
                else:
                    await self.engine.stop_pod(decision.workload_id, decision.index, decision.reason, decision.grace_s, self.now)
        raise AssertionError("lifecycle.review does not come to rest")

    async def _apply(self, plan: Plan) -> bool:
        for d in plan.decisions:
            if isinstance(d, Start):
                await self.engine.start_pod(d.workload_id, d.index, d.placement, self.now)
            elif isinstance(d, Nominate):
                await self.engine.nominate(d.workload_id, d.index, d.placement)
            elif isinstance(d, Move):
                await self.engine.nominate(d.workload_id, d.index, d.placement)
                await self.engine.stop_pod(d.workload_id, d.index, d.reason, d.grace_s, self.now)
            elif isinstance(d, Stop):
                self.stopped.append(d.workload_id)
                await self.engine.stop_pod(d.workload_id, d.index, d.reason, d.grace_s, self.now)
        return any(not isinstance(d, Hold) for d in plan.decisions)

    def delete(self, *names: str) -> None:
        for name in names:
            at_once(self.engine.set_phase(name, Phase.DELETING, None, self.now))

    def finish(self, name: str, index: int = 0, exit_code: int = 0) -> None:
        """A pod's process ends by itself."""
        self.engine.now = self.now
        self.engine.exit_pod(name, index, exit_code)

    # --- looking -----------------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        return self.engine.snapshot()

    def get(self, name: str) -> Workload:
        found = self.engine.find(name)
        assert found is not None, f"there is no {name}"
        return found

    def running(self, project: str | None = None) -> list[str]:
        """Names of workloads of which something runs (or starts), in order of name."""
        here = [w for w in self.snapshot().workloads if project in (None, w.project)]
        return sorted(w.name for w in here if any(p.state in (PodState.STARTING, PodState.RUNNING) for p in w.pods))

    def pending(self, project: str | None = None) -> list[str]:
        here = [w for w in self.snapshot().workloads if project in (None, w.project) and w.phase is Phase.ACTIVE]
        return sorted(w.name for w in here if not any(p.state in HOLDING for p in w.pods))

    def pods_running(self, name: str) -> int:
        return sum(p.state in (PodState.STARTING, PodState.RUNNING) for p in self.get(name).pods)

    def node_of(self, name: str, index: int = 0) -> str | None:
        place = self.get(name).pods[index].placement
        return place.node if place else None

    def group_of(self, name: str) -> str | None:
        place = self.get(name).pods[0].placement
        return place.shares[0].group if place and place.shares else None

    def used(self, project: str) -> float:
        """GPUs a project holds."""
        pods = [p for w in self.snapshot().workloads if w.project == project for p in w.pods]
        states = (PodState.STARTING, PodState.RUNNING)
        return sum(p.placement.gpu_millis for p in pods if p.placement and p.state in states) / 1000

    def hold(self, name: str) -> Reason:
        """Why it waits, in the last plan."""
        holds = [d for d in self.plan.decisions if isinstance(d, Hold) and d.workload_id == name]
        assert len(holds) == 1, f"{name} has {len(holds)} holds"
        return holds[0].reason

    def stop_reasons(self) -> dict[str, Reason]:
        """The reason of every stop and move so far, by workload."""
        return {d.workload_id: d.reason for plan in self.plans for d in plan.decisions if isinstance(d, Stop | Move)}
