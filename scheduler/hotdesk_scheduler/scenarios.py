"""Reads `hotdesk-scenario/1` into the core's values: nodes, departments, projects, workloads, policy. Absent parts take the defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

from hotdesk_api.models import WorkloadSpec

from hotdesk_scheduler.core.model import (
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
    Workload,
)
from hotdesk_scheduler.core.quantities import millis_on
from hotdesk_scheduler.engines.fake import FakeEngine

EPOCH = 1_000_000_000.0
"""When scenarios begin; ages are counted back from here."""

Json = dict[str, Any]
Named = TypeVar("Named", Node, Department, Project)

CLASSES: dict[Kind, tuple[int, bool]] = {
    Kind.INTERACTIVE: (100, False),
    Kind.WORKSPACE: (100, False),
    Kind.INFERENCE: (125, False),
}
"""Default priority and preemptibility where they are not those of training (50, preemptible)."""

STATES = {"pending": PodState.PENDING, "running": PodState.RUNNING, "releasing": PodState.RELEASING}


@contextmanager
def reading(scenario: Json, what: str, body: Any = None) -> Iterator[None]:
    """Whatever is wrong inside ends the program with a sentence that says where."""
    name = f" {body['name']}" if isinstance(body, dict) and "name" in body else ""
    place = f"Scenario {scenario.get('name', 'unnamed')}{what and f', {what}'}{name}"
    try:
        if what and not isinstance(body, dict):
            raise ValueError(f"{body!r} is not an object")
        yield
    except KeyError as error:
        raise SystemExit(f"{place}: {error.args[0]!r} is missing.") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise SystemExit(f"{place}: {error}.") from error


def _number(body: Json, key: str, absent: int, scale: int = 1) -> int:
    """What is written there, times `scale`, exactly."""
    value = body.get(key)
    try:
        amount = Decimal(str(absent if value is None else value))
    except InvalidOperation:
        raise ValueError(f"{key} {value!r} is not a {'whole ' if scale == 1 else ''}number") from None
    if not amount.is_finite() or amount * scale != int(amount * scale):
        raise ValueError(f"{key} {value} has more than three decimals" if scale > 1 else f"{key} {value!r} is not a whole number")
    return int(amount * scale)


def _unlimited_or(body: Json, key: str, absent: int | None, scale: int) -> int | None:
    """null and -1 are unlimited, or nothing in particular."""
    if key not in body:
        return absent
    return None if body[key] in (None, -1) else _number(body, key, 0, scale)


def _weight(body: Json) -> int | None:
    return _unlimited_or(body, "gpu_over_quota_weight", None, 1000)


def _quota(body: Json, *, quota: str, limit: str, default: int | None, scale: int) -> Quota:
    return Quota(_unlimited_or(body, quota, default, scale), _unlimited_or(body, limit, None, scale))


def _levels(body: Json, *, gpu_default: int | None) -> tuple[Quota, Quota, Quota]:
    """CPU is written in millis, memory in MiB, GPUs in GPUs."""
    return (
        _quota(body, quota="gpu_quota", limit="gpu_limit", default=gpu_default, scale=1000),
        _quota(body, quota="cpu_quota", limit="cpu_limit", default=None, scale=1),
        _quota(body, quota="memory_quota", limit="memory_limit", default=None, scale=1),
    )


def read_project(body: Json, created_at: float) -> Project:
    gpu, cpu, memory = _levels(body, gpu_default=0)
    return Project(
        name=body["name"],
        department=body.get("department"),
        gpu=gpu,
        cpu=cpu,
        memory=memory,
        weight=_weight(body),
        priority=int(body.get("priority") or 0),
        over_quota=bool(body.get("over_quota", True)),
        created_at=created_at,
        node_pools=tuple(body.get("node_pools") or ()),
        train_node_types=tuple(body.get("train_node_types") or ()),
        interactive_node_types=tuple(body.get("interactive_node_types") or ()),
    )


def read_department(body: Json, created_at: float) -> Department:
    gpu, cpu, memory = _levels(body, gpu_default=None)
    return Department(
        name=body["name"],
        gpu=gpu,
        cpu=cpu,
        memory=memory,
        quota_is_sum="gpu_quota" not in body,
        weight=_weight(body),
        priority=int(body.get("priority") or 0),
        over_quota=bool(body.get("over_quota", True)),
        created_at=created_at,
    )


def read_node(body: Json, _: float = 0.0) -> Node:
    labels = dict(body.get("labels") or {})
    return Node(
        name=body["name"],
        gpus=_number(body, "gpus", 0),
        gpu_memory_mib=_number(body, "gpu_memory_mib", 0),
        cpu_millis=_number(body, "cpu_millis", 1 << 40),
        memory_mib=_number(body, "memory_mib", 1 << 40),
        labels=labels,
        node_type=body.get("node_type") or labels.get("run.ai/type"),
        pool=body.get("pool") or "default",
        max_pods=body.get("max_pods"),
        simulated=True,
    )


def read_policy(body: Json) -> Policy:
    """Scenarios differ from the service's defaults: a stopping pod is gone after one cycle."""
    policy = Policy(grace_s=0.0)
    known = {name: value for name, value in body.items() if name in Policy.__dataclass_fields__}
    unknown = sorted(set(body) - set(known))
    if unknown:
        raise ValueError(f"there is no policy setting {unknown[0]!r}; known: {', '.join(Policy.__dataclass_fields__)}")
    return replace(policy, **known)


def read_gpu(body: Json) -> GpuRequest:
    if body.get("gpu_memory_mib"):
        return GpuRequest(memory_mib=int(body["gpu_memory_mib"]), devices=int(body.get("devices", 1)))
    millis = _number(body, "gpu", 0, 1000)
    if millis < 0:
        raise ValueError(f"gpu {body['gpu']} is less than nothing")
    if millis % 1000 == 0:
        return GpuRequest(whole=millis // 1000)
    if millis < 1000:
        return GpuRequest(millis=millis, devices=int(body.get("devices", 1)))
    raise ValueError(f"gpu {body['gpu']}: above one only whole numbers can be asked for")


def _pod(body: Json, index: int, *, now: float, started_s_ago: float, gpu_memory_mib: dict[str, int]) -> Pod:
    request = PodRequest(read_gpu(body), _number(body, "cpu_millis", 0), _number(body, "memory_mib", 0))
    state = STATES.get(body.get("state", "pending"))
    if state is None:
        raise ValueError(f"there is no state {body['state']!r}; known: {', '.join(STATES)}")
    if state is PodState.PENDING:
        return Pod(index, request)
    node = body["node"]
    gpu = request.gpu
    shares: tuple[Share, ...] = ()
    if gpu.millis or gpu.memory_mib:
        groups = body.get("shared_gpus") or [f"alone-{index}"]
        shares = tuple(Share(str(group), millis_on(gpu, gpu_memory_mib.get(node, 0))) for group in groups[: gpu.devices])
    return Pod(index, request, state, Placement(node, gpu.whole, shares), started_at=now - started_s_ago)


def read_workload(body: Json, *, now: float, age_s: float | None = None, gpu_memory_mib: dict[str, int] | None = None) -> Workload:
    """A workload of a scenario. `age_s` overrides the written one (a submitted workload is new)."""
    kind = Kind(body.get("kind", "train"))
    priority, preemptible = CLASSES.get(kind, (50, True))
    age = float(body.get("age_s") or 0.0) if age_s is None else age_s
    started = float(body.get("started_s_ago", age))
    completions, parallelism = body.get("completions"), body.get("parallelism")
    pods = list(body.get("pods") or [{}])
    if kind is Kind.HPO and len(pods) == 1:
        pods *= min(parallelism or 1, completions or parallelism or 1)
    deleted = bool(body.get("deleted"))
    read = [_pod(pod, i, now=now, started_s_ago=started, gpu_memory_mib=gpu_memory_mib or {}) for i, pod in enumerate(pods)]
    if deleted:
        read = [replace(pod, state=PodState.RELEASING) if pod.state is PodState.RUNNING else pod for pod in read]
    return Workload(
        id=body["name"],
        name=body["name"],
        project=body["project"],
        kind=kind,
        priority=int(body.get("priority", priority)),
        preemptible=bool(body.get("preemptible", preemptible)),
        min_pods=int(body.get("min_pods") or (1 if kind is Kind.HPO else len(pods))),
        pods=tuple(read),
        created_at=now - age,
        phase=Phase.DELETING if deleted else Phase.ACTIVE,
        parallelism=parallelism,
        completions=(completions or len(pods)) if kind is Kind.HPO else None,
        node_type=body.get("node_type"),
        node_pools=tuple(body.get("node_pools") or ()),
    )


class World:
    """The engine a scenario plays on, and everything that was ever submitted to it, by name."""

    def __init__(self, scenario: Json) -> None:
        self._scenario = scenario
        nodes = self._read("node", read_node)
        departments = self._read("department", read_department)
        projects = self._read("project", read_project)
        known = {department.name for department in departments}
        for project in projects:
            if project.department is not None and project.department not in known:
                raise SystemExit(
                    f"Scenario {scenario.get('name', 'unnamed')}, project {project.name}: there is no department {project.department}."
                )
        self.engine = FakeEngine(nodes, departments=departments, projects=projects, runs_workspaces=True)
        self.engine.now = EPOCH
        self.spec = WorkloadSpec(project="scenario")
        self._seen: dict[str, Workload] = {}
        self._memory = {node.name: node.gpu_memory_mib for node in nodes}
        self._projects = [project.name for project in projects]
        for body in scenario.get("workloads") or []:
            self.engine.put_workload(self.read(body, now=EPOCH), self.spec)

    def _read(self, what: str, read: Callable[[Json, float], Named]) -> list[Named]:
        """The nodes, departments or projects of the scenario; each a little younger than the one before."""
        found: dict[str, Named] = {}
        for i, body in enumerate(self._scenario.get(f"{what}s") or []):
            with reading(self._scenario, what, body):
                one = read(body, EPOCH - 1e6 + i)
            if one.name in found:
                raise SystemExit(f"Scenario {self._scenario.get('name', 'unnamed')}: there are two {what}s {one.name}.")
            found[one.name] = one
        return list(found.values())

    def read(self, body: Json, *, now: float, age_s: float | None = None) -> Workload:
        """A workload of the scenario, taken note of."""
        with reading(self._scenario, "workload", body):
            workload = read_workload(body, now=now, age_s=age_s, gpu_memory_mib=self._memory)
            if workload.project not in self._projects:
                raise ValueError(f"there is no project {workload.project}; known: {', '.join(self._projects) or 'none'}")
            for pod in workload.pods:
                if pod.placement and pod.placement.node not in self._memory:
                    raise ValueError(f"there is no node {pod.placement.node}; known: {', '.join(self._memory) or 'none'}")
        return self.adopt(workload)

    def adopt(self, workload: Workload) -> Workload:
        """Take note of a workload; a name used again gets an id of its own."""
        if workload.name in self._seen:
            workload = replace(workload, id=f"{workload.name}/{len(self._seen)}")
        self._seen[workload.name] = workload
        return workload

    def workload(self, workload_id: str) -> Workload:
        """As it stands; as it was submitted if it is gone."""
        found = self.engine.find(workload_id)
        return found or next(w for w in self._seen.values() if w.id == workload_id)

    def named(self, name: str) -> Workload:
        if name not in self._seen:
            raise SystemExit(f"There is no workload {name} in the scenario.")
        return self.workload(self._seen[name].id)

    def is_present(self, workload: Workload) -> bool:
        return self.engine.find(workload.id) is not None

    def all(self) -> list[Workload]:
        """Everything ever submitted, in that order, as it stands."""
        return [self.workload(workload.id) for workload in self._seen.values()]
