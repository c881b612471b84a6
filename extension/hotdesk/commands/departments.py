"""Departments: list, create, update and delete."""

from __future__ import annotations

from hotdesk_api import calls
from hotdesk_api.errors import Invalid
from hotdesk_api.models import DepartmentOut, DepartmentSpec

from hotdesk.answers import Answer
from hotdesk.commands.checked import checked
from hotdesk.commands.cluster import entitlement, gpus
from hotdesk.commands.jobs import confirm
from hotdesk.commands.parse import Typed
from hotdesk.render import cluster as views
from hotdesk.session import Session

SUM = "sum"


def listed(session: Session, typed: Typed) -> Answer:
    found = session.client.call(calls.departments())
    view = views.department_list(found.items, wide=typed.text("output") == "wide")
    return Answer(view, found, names=tuple(department.name for department in found.items), changes=(None, None))


def _spec(typed: Typed) -> DepartmentSpec:
    """Only what was typed is set, so that an update leaves the rest alone; `--gpu-quota sum` is None on the wire."""
    if typed.text("gpu-quota") == SUM:
        return checked(DepartmentSpec, entitlement(typed)).model_copy(update={"gpu_quota_millis": None})
    return checked(DepartmentSpec, entitlement(typed) | {"gpu_quota_millis": gpus(typed, "gpu-quota")})


def _answer(department: DepartmentOut, done: str) -> Answer:
    view = views.department_list([department], wide=True)
    return Answer(view, department, (department.name,), talk=(f"Department {department.name} {done}.",))


def create(session: Session, typed: Typed) -> Answer:
    return _answer(session.client.call(calls.create_department(_spec(typed))), "has been created")


def update(session: Session, typed: Typed) -> Answer:
    spec = _spec(typed)
    if spec.model_fields_set == {"name"}:
        raise Invalid("department update needs something to change.", next_step=f"For example `department update {spec.name} --limit 8`.")
    return _answer(session.client.call(calls.update_department(spec)), "has been changed")


def delete(session: Session, typed: Typed) -> Answer:
    name = typed.words[0]
    session.client.call(calls.department(name))  # an unknown name is told before anybody is asked
    confirm(session, f"Delete department {name}?", sure=typed.on("yes"))
    session.client.call(calls.delete_department(name))
    return Answer(names=(name,), talk=(f"Department {name} has been deleted.",))
