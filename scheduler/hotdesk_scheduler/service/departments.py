"""Creating, changing and deleting departments: admins only; a member of a project sees the department it is in."""

from __future__ import annotations

from dataclasses import replace

from hotdesk_api.errors import Conflict, Invalid, NotFound
from hotdesk_api.models import DepartmentOut, DepartmentSpec
from hotdesk_api.units import format_gpus

from hotdesk_scheduler.core.model import Department
from hotdesk_scheduler.service import entitlements
from hotdesk_scheduler.service.callers import Caller
from hotdesk_scheduler.service.desk import Desk
from hotdesk_scheduler.service.summaries import departments_out

NONE = "none"
"""What stands for no department on a command line; none may be called so."""
_CHANGE = "create, change or delete departments"


def _no_such_department(name: str) -> NotFound:
    return NotFound(
        f"There is no department {name} with a project that you are a member of.",
        field="department",
        value=name,
        next_step="`runai list departments` shows yours.",
    )


def _changed(department: Department, spec: DepartmentSpec) -> Department:
    """The department with the members of `spec` that are set."""
    changed = replace(department, **entitlements.changes(department, spec))  # type: ignore[arg-type]  # names and types are those of the fields
    if "gpu_quota_millis" not in spec.model_fields_set:
        return changed
    is_sum = spec.gpu_quota_millis is None
    return replace(changed, quota_is_sum=is_sum, gpu=replace(changed.gpu, quota=None) if is_sum else changed.gpu)


def _find(desk: Desk, name: str) -> Department | None:
    return next((department for department in desk.engine.snapshot().departments if department.name == name), None)


def show(desk: Desk, caller: Caller, name: str) -> DepartmentOut:
    found = next((department for department in listing(desk, caller) if department.name == name), None)
    if found is None:
        raise _no_such_department(name)
    return found


def listing(desk: Desk, caller: Caller) -> list[DepartmentOut]:
    """All of them for admins, else those of the caller's projects."""
    visible = desk.visible_projects(caller)
    found = departments_out(desk.engine.snapshot(), desk.loop.fair_shares, visible=visible)
    return [department for department in found if caller.admin or department.projects]


async def create(desk: Desk, caller: Caller, spec: DepartmentSpec) -> DepartmentOut:
    caller.require_admin(_CHANGE)
    entitlements.check(spec)
    if spec.name == NONE:
        raise Invalid(
            f"A department cannot be called {NONE}: that is written for no department.",
            field="name",
            value=NONE,
            next_step="Choose another name.",
        )
    if _find(desk, spec.name) is not None:
        raise Conflict(
            f"There is a department {spec.name} already.",
            field="name",
            value=spec.name,
            next_step=f"Change it with `runai department update {spec.name}`.",
        )
    return await _put(desk, caller, "create department", _changed(Department(name=spec.name, created_at=desk.clock()), spec))


async def update(desk: Desk, caller: Caller, name: str, spec: DepartmentSpec) -> DepartmentOut:
    caller.require_admin(_CHANGE)
    entitlements.check(spec)
    department = _find(desk, name)
    if department is None:
        raise _no_such_department(name)
    if spec.name != name:
        raise Conflict(
            f"Department {name} cannot be renamed to {spec.name}.",
            field="name",
            value=spec.name,
            next_step=f"Create {spec.name}, put the projects there, then delete {name}.",
        )
    return await _put(desk, caller, "update department", _changed(department, spec))


async def _put(desk: Desk, caller: Caller, action: str, department: Department) -> DepartmentOut:
    entitlements.check_limit(department)
    await desk.engine.put_department(department)
    quota = "the sum of its projects'" if department.quota_is_sum else format_gpus(department.gpu.quota)
    desk.recorder.audit(caller, action, subject=department.name, message=f"GPU quota {quota}")
    desk.loop.wake()
    return show(desk, caller, department.name)


async def delete(desk: Desk, caller: Caller, name: str) -> None:
    caller.require_admin(_CHANGE)
    if _find(desk, name) is None:
        raise _no_such_department(name)
    there = sorted(project.name for project in desk.engine.snapshot().projects if project.department == name)
    if there:
        raise Conflict(
            f"Department {name} still has {len(there)} project{'s' if len(there) > 1 else ''}, such as {there[0]}.",
            field="name",
            value=name,
            limit=0,
            next_step=f"Take them out first: `runai project update {there[0]} --department {NONE}`.",
        )
    await desk.engine.delete_department(name)
    desk.recorder.audit(caller, "delete department", subject=name)
    desk.loop.wake()
