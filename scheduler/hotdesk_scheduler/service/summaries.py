"""Nodes, projects, departments and the whole cluster as wire models: sums over the snapshot, made when somebody asks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType

from hotdesk_api.models import Cluster, DepartmentOut, DeviceOut, NodeOut, ProjectOut

from hotdesk_scheduler.core import lifecycle
from hotdesk_scheduler.core.model import HOLDING, Department, Node, Project, Snapshot, Workload
from hotdesk_scheduler.engines.base import Engine
from hotdesk_scheduler.service.specs import free_gpus
from hotdesk_scheduler.service.views import asked_gpu_millis, held_gpu_millis


@dataclass(slots=True)
class _NodeUse:
    gpu_millis: int = 0
    cpu_millis: int = 0
    memory_mib: int = 0
    by_device: dict[str, int] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)


def _use_by_node(engine: Engine, snapshot: Snapshot) -> dict[str, _NodeUse]:
    uses = {node.name: _NodeUse() for node in snapshot.nodes}
    for workload in snapshot.workloads:
        for pod in workload.pods:
            if pod.placement is None or pod.state not in HOLDING or pod.placement.node not in uses:
                continue
            use = uses[pod.placement.node]
            use.gpu_millis += pod.placement.gpu_millis
            use.cpu_millis += pod.request.cpu_millis
            use.memory_mib += pod.request.memory_mib
            shares = [share.millis for share in pod.placement.shares] or [1000] * pod.placement.whole
            for device, millis in zip(engine.details(workload.id, pod.index).devices, shares, strict=False):
                use.by_device[device.uuid] = use.by_device.get(device.uuid, 0) + millis
                if pod.placement.shares:
                    use.shared.add(device.uuid)
    return uses


def nodes_out(engine: Engine, snapshot: Snapshot) -> list[NodeOut]:
    uses, free = _use_by_node(engine, snapshot), free_gpus(snapshot)
    return [_node_out(engine, node, uses[node.name], free[node.name]) for node in sorted(snapshot.nodes, key=lambda node: node.name)]


def _node_out(engine: Engine, node: Node, use: _NodeUse, free: int) -> NodeOut:
    devices = [
        DeviceOut(
            index=device.index,
            uuid=device.uuid,
            model=device.model,
            memory_mib=device.memory_mib,
            simulated=device.simulated,
            allocated_millis=use.by_device.get(device.uuid, 0),
            shared=device.uuid in use.shared,
            utilisation_percent=device.utilisation_percent,
            memory_used_mib=device.memory_used_mib,
        )
        for device in engine.devices(node.name)
    ]
    return NodeOut(
        name=node.name,
        status="Ready" if node.ready else "NotReady",
        address=node.address,
        gpus=node.gpus,
        gpu_model=node.gpu_model,
        gpu_memory_mib=node.gpu_memory_mib,
        gpu_millis_allocated=use.gpu_millis,
        gpus_free=free,
        cpu_millis=node.cpu_millis,
        cpu_millis_allocated=use.cpu_millis,
        memory_mib=node.memory_mib,
        memory_mib_allocated=use.memory_mib,
        node_type=node.node_type,
        pool=node.pool,
        simulated=node.simulated,
        devices=devices,
    )


def projects_out(
    snapshot: Snapshot,
    fair_shares: Mapping[str, int],
    *,
    visible: Collection[str],
    groups: Collection[str],
    weights: Mapping[str, int] = MappingProxyType({}),
) -> list[ProjectOut]:
    """Those of `visible`, by name; `groups` are the caller's own; `weights` are those that past use has corrected."""
    mine: dict[str, list[Workload]] = {name: [] for name in visible}
    for workload in snapshot.workloads:
        if workload.project in mine:
            mine[workload.project].append(workload)
    smallest = min((node.gpu_memory_mib for node in snapshot.nodes if node.gpus), default=0)
    return [
        _project_out(
            project,
            mine[project.name],
            fair_shares.get(project.name),
            smallest,
            member=project.name in groups,
            weight_now=weights.get(project.name),
        )
        for project in sorted(snapshot.projects, key=lambda project: project.name)
        if project.name in mine
    ]


def _project_out(
    project: Project, workloads: list[Workload], fair_share: int | None, smallest_gpu_mib: int, *, member: bool, weight_now: int | None
) -> ProjectOut:
    statuses = [(workload, lifecycle.status(workload)) for workload in workloads]
    pending = [workload for workload, status in statuses if status == "Pending"]
    allocated = sum(held_gpu_millis(workload) for workload in workloads)
    return ProjectOut(
        name=project.name,
        department=project.department,
        gpu_quota_millis=project.gpu.quota,
        gpu_limit_millis=project.gpu.limit,
        gpu_over_quota_weight=project.weight,
        gpu_over_quota_weight_now=weight_now,
        over_quota=project.over_quota,
        priority=project.priority,
        cpu_quota_millis=project.cpu.quota,
        memory_quota_mib=project.memory.quota,
        gpu_millis_allocated=allocated,
        gpu_millis_requested=allocated + sum(asked_gpu_millis(workload, smallest_gpu_mib) for workload in pending),
        fair_share_millis=fair_share,
        running=sum(status in ("Running", "ContainerCreating", "Terminating") for _, status in statuses),
        pending=len(pending),
        interactive_time_limit_s=None if project.interactive_time_limit_s is None else int(project.interactive_time_limit_s),
        train_node_types=list(project.train_node_types),
        interactive_node_types=list(project.interactive_node_types),
        created_at=datetime.fromtimestamp(project.created_at, UTC),
        member=member,
    )


def departments_out(snapshot: Snapshot, fair_shares: Mapping[str, int], *, visible: Collection[str]) -> list[DepartmentOut]:
    """All of them, by name, with the names of those of their projects that are in `visible`."""
    named = {project.name for project in snapshot.projects if project.department is not None}
    parts: dict[str | None, list[ProjectOut]] = {}
    for project in projects_out(snapshot, fair_shares, visible=named, groups=()):
        parts.setdefault(project.department, []).append(project)
    ordered = sorted(snapshot.departments, key=lambda department: department.name)
    return [_department_out(department, parts.get(department.name, []), visible) for department in ordered]


def _department_out(department: Department, parts: list[ProjectOut], visible: Collection[str]) -> DepartmentOut:
    quota = department.gpu.quota
    if department.quota_is_sum:
        quotas = [part.gpu_quota_millis for part in parts]
        quota = None if None in quotas else sum(one or 0 for one in quotas)
    shares = [part.fair_share_millis for part in parts if part.fair_share_millis is not None]
    return DepartmentOut(
        name=department.name,
        projects=[part.name for part in parts if part.name in visible],
        gpu_quota_millis=quota,
        gpu_quota_is_sum=department.quota_is_sum,
        gpu_limit_millis=department.gpu.limit,
        gpu_over_quota_weight=department.weight,
        over_quota=department.over_quota,
        priority=department.priority,
        cpu_quota_millis=department.cpu.quota,
        cpu_limit_millis=department.cpu.limit,
        memory_quota_mib=department.memory.quota,
        memory_limit_mib=department.memory.limit,
        gpu_millis_allocated=sum(part.gpu_millis_allocated for part in parts),
        gpu_millis_requested=sum(part.gpu_millis_requested for part in parts),
        fair_share_millis=sum(shares) if shares else None,
        running=sum(part.running for part in parts),
        pending=sum(part.pending for part in parts),
        created_at=datetime.fromtimestamp(department.created_at, UTC),
    )


def cluster_out(engine: Engine, snapshot: Snapshot) -> Cluster:
    statuses = [lifecycle.status(workload) for workload in snapshot.workloads]
    free = free_gpus(snapshot)
    gpus = sum(node.gpus for node in snapshot.nodes)
    return Cluster(
        engine=engine.name,
        simulated=any(node.simulated for node in snapshot.nodes),
        nodes=len(snapshot.nodes),
        nodes_ready=sum(node.ready for node in snapshot.nodes),
        gpus=gpus,
        gpus_in_use=gpus - sum(free.values()),
        gpu_millis_allocated=sum(held_gpu_millis(workload) for workload in snapshot.workloads),
        largest_free_block=max((free[node.name] for node in snapshot.nodes if node.ready), default=0),
        running=sum(status in ("Running", "ContainerCreating", "Terminating") for status in statuses),
        pending=sum(status == "Pending" for status in statuses),
        version=snapshot.version,
    )
