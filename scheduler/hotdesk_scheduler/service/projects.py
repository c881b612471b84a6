"""Creating, changing and deleting projects: admins only; a change is checked as a whole before it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hotdesk_api.errors import Conflict, Invalid
from hotdesk_api.models import ProjectOut, ProjectSpec
from hotdesk_api.units import format_gpus

from hotdesk_scheduler.core.model import Project
from hotdesk_scheduler.service import entitlements
from hotdesk_scheduler.service.callers import Caller, no_such_project
from hotdesk_scheduler.service.desk import Desk
from hotdesk_scheduler.service.summaries import projects_out


def _changed(project: Project, spec: ProjectSpec) -> Project:
    """The project with the members of `spec` that are set."""
    given = spec.model_fields_set
    changes = entitlements.changes(project, spec)
    if "department" in given:
        changes["department"] = spec.department
    if "interactive_time_limit_s" in given:
        changes["interactive_time_limit_s"] = float(spec.interactive_time_limit_s) if spec.interactive_time_limit_s else None
    for name in ("train_node_types", "interactive_node_types", "node_pools"):
        if name in given:
            changes[name] = tuple(getattr(spec, name) or ())
    return replace(project, **changes)  # type: ignore[arg-type]  # names and types are those of the fields above


def _find(desk: Desk, name: str) -> Project | None:
    return next((project for project in desk.engine.snapshot().projects if project.name == name), None)


def _check_parents(desk: Desk, project: Project) -> None:
    snapshot = desk.engine.snapshot()
    departments = sorted(department.name for department in snapshot.departments)
    if project.department is not None and project.department not in departments:
        raise Invalid(
            f"There is no department {project.department}.",
            field="department",
            value=project.department,
            next_step=f"Departments: {', '.join(departments) or 'none'}. `runai department create {project.department}` makes it.",
        )
    types = {node.node_type for node in snapshot.nodes}
    for node_type in (*project.train_node_types, *project.interactive_node_types):
        if node_type not in types:
            known = ", ".join(sorted(filter(None, types)))
            raise Invalid(
                f"There is no node of type {node_type}.", field="node_types", value=node_type, next_step=f"Types here: {known or 'none'}."
            )
    entitlements.check_limit(project)


def show(desk: Desk, caller: Caller, name: str) -> ProjectOut:
    if name not in desk.visible_projects(caller):
        raise no_such_project(name)
    return listing(desk, caller, only=name)[0]


def listing(desk: Desk, caller: Caller, *, only: str | None = None) -> list[ProjectOut]:
    visible = [name for name in desk.visible_projects(caller) if only in (None, name)]
    return projects_out(desk.engine.snapshot(), desk.loop.fair_shares, visible=visible, groups=caller.groups, weights=desk.loop.weights)


async def create(desk: Desk, caller: Caller, spec: ProjectSpec) -> ProjectOut:
    caller.require_admin()
    entitlements.check(spec)
    if _find(desk, spec.name) is not None:
        raise Conflict(
            f"There is a project {spec.name} already.",
            field="name",
            value=spec.name,
            next_step=f"Change it with `runai project update {spec.name}`.",
        )
    return await _put(desk, caller, "create project", _changed(Project(name=spec.name, created_at=desk.clock()), spec))


async def update(desk: Desk, caller: Caller, name: str, spec: ProjectSpec) -> ProjectOut:
    caller.require_admin()
    entitlements.check(spec)
    project = _find(desk, name)
    if project is None:
        raise no_such_project(name)
    if spec.name != name:
        raise Conflict(
            f"Project {name} cannot be renamed to {spec.name}.",
            field="name",
            value=spec.name,
            next_step=f"Create {spec.name}, submit there from now on, and delete {name} once its workloads have ended.",
        )
    return await _put(desk, caller, "update project", _changed(project, spec))


async def _put(desk: Desk, caller: Caller, action: str, project: Project) -> ProjectOut:
    _check_parents(desk, project)
    await desk.engine.put_project(project)
    desk.recorder.audit(caller, action, project=project.name, message=f"GPU quota {format_gpus(project.gpu.quota)}")
    desk.loop.wake()
    return show(desk, caller, project.name)


async def delete(desk: Desk, caller: Caller, name: str) -> None:
    caller.require_admin()
    if _find(desk, name) is None:
        raise no_such_project(name)
    there = [workload.name for workload in desk.engine.snapshot().workloads if workload.project == name]
    if there:
        raise Conflict(
            f"Project {name} still has {len(there)} workload{'s' if len(there) > 1 else ''}, such as {there[0]}.",
            field="name",
            value=name,
            limit=0,
            next_step=f"Delete them first: `runai list -p {name}` shows them.",
        )
    await desk.engine.delete_project(name)
    desk.recorder.audit(caller, "delete project", project=name)
    desk.loop.wake()


async def seed(desk: Desk, wanted: Sequence[tuple[str, int | None]]) -> list[str]:
    """Make the projects of the very first start; does nothing once they all, or others, are or ever were there."""
    marker = desk.seed_marker
    if marker is not None and marker.exists():
        return []
    specs = [ProjectSpec(name=name, gpu_quota_millis=-1 if quota_millis is None else quota_millis) for name, quota_millis in wanted]
    made = await desk.engine.seed_projects([_changed(Project(name=spec.name, created_at=desk.clock()), spec) for spec in specs])
    if marker is not None and made:
        marker.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # nothing else may have been written there yet
        marker.touch(mode=0o600)
    return made
