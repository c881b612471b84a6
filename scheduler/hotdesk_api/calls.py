"""Every request of REST `/v1` as a value: method, path, query, body, and the model of its answer. The clients only send them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from hotdesk_api import models
from hotdesk_api.errors import NotFound

T = TypeVar("T", bound=BaseModel | None)


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request; `answer` None: the answer has no body (204)."""

    method: str
    path: str
    answer: type[T] | None
    query: Mapping[str, str] = field(default_factory=dict)
    body: BaseModel | None = None


def _query(**values: object) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items() if value is not None}


def _part(name: str) -> str:
    """One part of a path. `.` and `..` are what URLs would swallow, so nothing can have that name."""
    if name in ("", ".", ".."):
        raise NotFound(f"There is nothing named {name!r}.", field="name", value=name)
    return quote(name, safe="")


def _workload(project: str, name: str, rest: str = "") -> str:
    return f"/v1/workloads/{_part(project)}/{_part(name)}{rest}"


def version() -> Call[models.Version]:
    return Call("GET", "/v1/version", models.Version)


def whoami() -> Call[models.Me]:
    return Call("GET", "/v1/whoami", models.Me)


def cluster() -> Call[models.Cluster]:
    return Call("GET", "/v1/cluster", models.Cluster)


def scheduling() -> Call[models.Scheduling]:
    return Call("GET", "/v1/scheduling", models.Scheduling)


def pause(why: str = "") -> Call[models.Scheduling]:
    return Call("PUT", "/v1/scheduling", models.Scheduling, body=models.SchedulingSpec(paused=True, why=why))


def resume_scheduling() -> Call[models.Scheduling]:
    return Call("PUT", "/v1/scheduling", models.Scheduling, body=models.SchedulingSpec(paused=False))


def images() -> Call[models.ImageList]:
    return Call("GET", "/v1/images", models.ImageList)


def nodes() -> Call[models.NodeList]:
    return Call("GET", "/v1/nodes", models.NodeList)


def projects() -> Call[models.ProjectList]:
    return Call("GET", "/v1/projects", models.ProjectList)


def project(name: str) -> Call[models.ProjectOut]:
    return Call("GET", f"/v1/projects/{_part(name)}", models.ProjectOut)


def create_project(spec: models.ProjectSpec) -> Call[models.ProjectOut]:
    return Call("POST", "/v1/projects", models.ProjectOut, body=spec)


def update_project(spec: models.ProjectSpec) -> Call[models.ProjectOut]:
    return Call("PATCH", f"/v1/projects/{_part(spec.name)}", models.ProjectOut, body=spec)


def delete_project(name: str) -> Call[None]:
    return Call("DELETE", f"/v1/projects/{_part(name)}", None)


def departments() -> Call[models.DepartmentList]:
    return Call("GET", "/v1/departments", models.DepartmentList)


def department(name: str) -> Call[models.DepartmentOut]:
    return Call("GET", f"/v1/departments/{_part(name)}", models.DepartmentOut)


def create_department(spec: models.DepartmentSpec) -> Call[models.DepartmentOut]:
    return Call("POST", "/v1/departments", models.DepartmentOut, body=spec)


def update_department(spec: models.DepartmentSpec) -> Call[models.DepartmentOut]:
    return Call("PATCH", f"/v1/departments/{_part(spec.name)}", models.DepartmentOut, body=spec)


def delete_department(name: str) -> Call[None]:
    return Call("DELETE", f"/v1/departments/{_part(name)}", None)


def workloads(
    *,
    project: str | None = None,
    kind: str | None = None,
    status: str | None = None,
    user: str | None = None,
    limit: int | None = None,
    after: str | None = None,
) -> Call[models.WorkloadList]:
    """`after` is the `next` of the page before; without `limit` everything comes at once. Sorted by project, then name."""
    return Call(
        "GET", "/v1/workloads", models.WorkloadList, _query(project=project, kind=kind, status=status, user=user, limit=limit, after=after)
    )


def submit(spec: models.WorkloadSpec) -> Call[models.WorkloadDetail]:
    return Call("POST", "/v1/workloads", models.WorkloadDetail, body=spec)


def workload(project: str, name: str) -> Call[models.WorkloadDetail]:
    return Call("GET", _workload(project, name), models.WorkloadDetail)


def delete(project: str, name: str) -> Call[None]:
    return Call("DELETE", _workload(project, name), None)


def suspend(project: str, name: str) -> Call[models.WorkloadDetail]:
    return Call("POST", _workload(project, name, "/suspend"), models.WorkloadDetail)


def resume(project: str, name: str) -> Call[models.WorkloadDetail]:
    return Call("POST", _workload(project, name, "/resume"), models.WorkloadDetail)


def events(project: str, name: str) -> Call[models.EventList]:
    return Call("GET", _workload(project, name, "/events"), models.EventList)


def why(project: str, name: str) -> Call[models.Explanation]:
    return Call("GET", _workload(project, name, "/explain"), models.Explanation)


def what_if(spec: models.WorkloadSpec) -> Call[models.Explanation]:
    """Plan for a spec that is not submitted (`--dry-run`)."""
    return Call("POST", "/v1/explain", models.Explanation, body=spec)


def report_progress(project: str, name: str, progress: models.Progress) -> Call[None]:
    return Call("PUT", _workload(project, name, "/progress"), None, body=progress)


def report_pod(project: str, name: str, report: models.PodReport) -> Call[models.WorkloadDetail]:
    """For the hub's spawner: a granted workspace was taken up, or has ended."""
    return Call("PUT", _workload(project, name, "/pod"), models.WorkloadDetail, body=report)
