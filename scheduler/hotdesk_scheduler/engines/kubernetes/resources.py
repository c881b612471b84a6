"""The custom resources of `hotdesk.io/v1alpha1` and the core's values, both ways. Pure; what the fields mean is said in `crds/`.

A Workload's `spec` is what was asked for, its `spec.scheduling` what that came to when it was submitted; `status` is the engine's alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from hotdesk_api.models import WorkloadSpec
from pydantic import TypeAdapter

from hotdesk_scheduler.core.model import (
    HOLDING,
    Department,
    Kind,
    NodeRule,
    Pod,
    PodRequest,
    Project,
    Toleration,
    Volume,
    Workload,
)
from hotdesk_scheduler.engines.kubernetes.codec import NOTHING, Json, camel, encode, fingerprint, members, time_in
from hotdesk_scheduler.engines.kubernetes.statuses import Grants, with_status

GROUP, VERSION = "hotdesk.io", "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
ROOT = f"/apis/{API_VERSION}"
FINALIZER = f"{GROUP}/workload"
ID_LABEL = f"{GROUP}/workload-id"
PROJECT_LABEL = f"{GROUP}/project"
MANAGED = {"app.kubernetes.io/managed-by": "hotdesk"}


@dataclass(frozen=True, slots=True)
class Scheduling:
    """`spec.scheduling`: what the core counts with, as it stood when the workload was submitted."""

    kind: Kind
    user: str = ""
    priority: int = 50
    preemptible: bool = True
    min_pods: int = 1
    pod_requests: tuple[PodRequest, ...] = ()
    created_at: float = 0.0
    parallelism: int | None = None
    completions: int | None = None
    backoff_limit: int = 6
    ttl_after_finish_s: float | None = None
    node_type: str | None = None
    node_pools: tuple[str, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    node_terms: tuple[tuple[NodeRule, ...], ...] = ()
    volumes: tuple[Volume, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """A Workload resource as it stands, read: what was asked for, and what became of it. `workload.pods` are as recorded.

    `status_problem`: why its status is not readable and left out. `is_refused`: the status says that it is not accepted. `finalizers` and
    `labels` as they are; `is_packed`: has it `scheduling`; `said`: what its status says, told apart from others.
    """

    namespace: str
    name: str
    uid: str
    version: int
    workload: Workload
    spec: WorkloadSpec
    grants: Grants = field(default_factory=dict)
    deleting: bool = False
    suspended: bool = False
    status_problem: str = ""
    is_refused: bool = False
    finalizers: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    is_packed: bool = True
    said: int = NOTHING


_scheduling = TypeAdapter(Scheduling)
_project = TypeAdapter(Project)
_department = TypeAdapter(Department)
_SCHEDULING = [item.name for item in fields(Scheduling) if item.name != "pod_requests"]


# --- workloads -------------------------------------------------------------------------------------------------------------------------


def workload_object(workload: Workload, spec: WorkloadSpec, namespace: str) -> Json:
    """The resource that `submit` creates."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Workload",
        "metadata": {
            "name": workload.name,
            "namespace": namespace,
            "labels": _labels(workload),
            "finalizers": [FINALIZER],
        },
        "spec": {**spec_object(spec), "scheduling": _scheduling_of(workload)},
    }


def _labels(workload: Workload) -> dict[str, str]:
    return {**MANAGED, ID_LABEL: workload.id, PROJECT_LABEL: workload.project}


def _scheduling_of(workload: Workload) -> Json:
    requests = tuple(pod.request for pod in workload.pods)
    return _packed(encode(Scheduling(pod_requests=requests, **{name: getattr(workload, name) for name in _SCHEDULING})))


def missing_marks(asked: Asked, workload: Workload) -> Json:
    """The merge patch that gives it what `submit` would have given it; empty if it has that."""
    metadata: Json = {}
    if FINALIZER not in asked.finalizers:
        metadata["finalizers"] = [*asked.finalizers, FINALIZER]
    if lacking := {name: value for name, value in _labels(workload).items() if dict(asked.labels).get(name) != value}:
        metadata["labels"] = lacking
    spec = {} if asked.is_packed else {"scheduling": _scheduling_of(workload)}
    if not metadata and not spec:
        return {}
    return {"metadata": {**metadata, "resourceVersion": str(asked.version)}, **({"spec": spec} if spec else {})}


def spec_object(spec: WorkloadSpec) -> Json:
    """Name and project are where it lies, so they are not said again."""
    data = spec.model_dump(exclude_defaults=True, exclude={"name", "name_prefix", "project"})
    return {camel(name): _camelled(value) for name, value in data.items()}


def _camelled(value: Any) -> Any:
    return [encode(one) if not isinstance(one, dict) else one for one in value] if isinstance(value, list) else value


def _packed(scheduling: Json) -> Json:
    """Pods that ask for the same are said once: `pods` and `request`."""
    requests = scheduling.pop("podRequests", [])
    if requests and all(one == requests[0] for one in requests):
        return {**scheduling, "pods": len(requests), "request": requests[0]}
    return {**scheduling, "podRequests": requests}


def _unpacked(scheduling: Json) -> Json:
    count, request = scheduling.get("pods"), scheduling.get("request", {})
    kept = {name: value for name, value in scheduling.items() if name not in ("pods", "request")}
    return kept if count is None else {**kept, "podRequests": [request] * count}


def read_spec(item: Json, project: str) -> WorkloadSpec:
    """Raises pydantic's ValidationError."""
    data = {name: value for name, value in item["spec"].items() if name not in ("scheduling", "suspended", "user")}
    return WorkloadSpec.model_validate({**members(data), "name": item["metadata"]["name"], "project": project})


def read_workload(item: Json, project: str, resolved: Workload | None = None) -> Asked:
    """A Workload resource. Without `spec.scheduling` (written by hand) it is `resolved`. Raises pydantic's ValidationError."""
    meta = item["metadata"]
    spec = read_spec(item, project)
    if "scheduling" in item["spec"]:
        asked = _scheduling.validate_python(members(_unpacked(item["spec"]["scheduling"])))
        workload = Workload(
            id=id_of(item),
            name=meta["name"],
            project=project,
            pods=tuple(Pod(index, request) for index, request in enumerate(asked.pod_requests)),
            **{name: getattr(asked, name) for name in _SCHEDULING},
        )
    else:
        assert resolved is not None
        workload = resolved
    problem = ""
    try:
        workload, grants = with_status(workload, item.get("status") or {})
    except Exception as error:  # written by a hand: then it counts as not written, and what runs is seen again
        grants, problem = {}, f"{type(error).__name__}: {error}"[:500]
    return Asked(
        meta["namespace"],
        meta["name"],
        meta["uid"],
        int(meta["resourceVersion"]),
        workload,
        spec,
        grants,
        deleting="deletionTimestamp" in meta,
        suspended=bool(item["spec"].get("suspended")),
        status_problem=problem,
        is_refused=any(one.get("type") == "Accepted" for one in (item.get("status") or {}).get("conditions") or []),
        said=fingerprint(item.get("status")),
        **marks(item),
    )


def believable(asked: Asked) -> Asked:
    """Pods that are said to hold a place which is not said wait instead; one that runs is found by its name."""
    nowhere = [pod for pod in asked.workload.pods if pod.state in HOLDING and pod.placement is None]
    if not nowhere:
        return asked
    pods = tuple(Pod(pod.index, pod.request, attempt=pod.attempt) if pod in nowhere else pod for pod in asked.workload.pods)
    said = f"pod {nowhere[0].index} is {nowhere[0].state.value} nowhere"
    return replace(asked, workload=replace(asked.workload, pods=pods), status_problem=said)


def marks(item: Json) -> Json:
    """Of a Workload resource, as members of Asked."""
    meta, ours = item["metadata"], (*MANAGED, ID_LABEL, PROJECT_LABEL)
    return {
        "finalizers": tuple(meta.get("finalizers") or ()),
        "labels": tuple(sorted((name, value) for name, value in (meta.get("labels") or {}).items() if name in ours)),
        "is_packed": "scheduling" in item["spec"],
    }


def id_of(item: Json) -> str:
    return str((item["metadata"].get("labels") or {}).get(ID_LABEL) or item["metadata"]["uid"])


# --- projects and departments ----------------------------------------------------------------------------------------------------------


def project_object(project: Project, namespace: str, of_project: str | None) -> Json:
    """`namespace` is the installation's; `of_project` where its workloads live, None = the usual one."""
    spec = encode(project, leave_out=("name",))
    return _named("Project", project.name, namespace, {**spec, **({"namespace": of_project} if of_project else {})})


def department_object(department: Department, namespace: str) -> Json:
    return _named("Department", department.name, namespace, encode(department, leave_out=("name",)))


def _named(kind: str, name: str, namespace: str, spec: Json) -> Json:
    meta = {"name": name, "namespace": namespace, "labels": dict(MANAGED)}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": meta, "spec": spec}


def spec_problem(item: Json) -> bool:
    """Whether a Project is not readable."""
    try:
        read_project(item)
    except Exception:  # whatever it is
        return True
    return False


def read_project(item: Json) -> tuple[Project, str | None]:
    """The project, and the namespace it names. Raises pydantic's ValidationError, ValueError."""
    data = _spec(item)
    namespace = data.pop("namespace", None)
    project = _project.validate_python(data)
    _check_amounts(project)
    return project, namespace


def read_department(item: Json) -> Department:
    """Raises pydantic's ValidationError, ValueError."""
    department = _department.validate_python(_spec(item))
    _check_amounts(department)
    return department


def _check_amounts(one: Project | Department) -> None:
    """The schema says so too, as long as nobody takes it away."""
    for name, amount in (("gpu", one.gpu), ("cpu", one.cpu), ("memory", one.memory)):
        if min(amount.quota or 0, amount.limit or 0) < 0 or (one.weight or 0) < 0:
            raise ValueError(f"an amount of {name} or the weight is below 0")


def _spec(item: Json) -> Json:
    """When nobody said when it was made, the API server knows."""
    data: Json = members(item.get("spec") or {})
    return {"created_at": time_in(item["metadata"]["creationTimestamp"]), **data, "name": item["metadata"]["name"]}


def plural(kind: str) -> str:
    return kind.lower() + "s"


def path(kind: str, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
    parts: Sequence[str] = [ROOT, *(["namespaces", namespace] if namespace else []), plural(kind), *filter(None, (name, sub))]
    return "/".join(parts)
