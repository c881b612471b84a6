"""OpenAPI 3.1, generated from the wire models and the table of operations below; a test compares the table with the routes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from hotdesk_api import models
from hotdesk_api.version import VERSION
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

REF = "#/components/schemas/{model}"
W = "/v1/workloads/{project}/{name}"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path; `answer` None: 204, or a stream of `media`."""

    method: str
    path: str
    summary: str
    answer: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    query: tuple[str, ...] = ()
    status: int = 200
    media: str = "application/json"
    public: bool = False


_PAGE = ("project", "kind", "status", "user", "limit", "after")
OPERATIONS = (
    Operation("get", "/v1/version", "Versions and the engine", models.Version),
    Operation("get", "/v1/whoami", "The caller", models.Me),
    Operation("get", "/v1/cluster", "The cluster in a few numbers", models.Cluster),
    Operation("get", "/v1/images", "Images that can be run", models.ImageList),
    Operation("get", "/v1/nodes", "Nodes and their devices", models.NodeList),
    Operation("get", "/v1/projects", "The caller's projects", models.ProjectList),
    Operation("post", "/v1/projects", "Create a project (admins)", models.ProjectOut, models.ProjectSpec, status=201),
    Operation("get", "/v1/projects/{name}", "One project", models.ProjectOut),
    Operation("patch", "/v1/projects/{name}", "Change a project (admins)", models.ProjectOut, models.ProjectSpec),
    Operation("delete", "/v1/projects/{name}", "Delete an empty project (admins)", status=204),
    Operation("get", "/v1/scheduling", "Whether scheduling is paused, and by whom", models.Scheduling),
    Operation("put", "/v1/scheduling", "Pause scheduling, or let it go on (admins)", models.Scheduling, models.SchedulingSpec),
    Operation("get", "/v1/departments", "The departments of the caller's projects", models.DepartmentList),
    Operation("post", "/v1/departments", "Create a department (admins)", models.DepartmentOut, models.DepartmentSpec, status=201),
    Operation("get", "/v1/departments/{name}", "One department", models.DepartmentOut),
    Operation("patch", "/v1/departments/{name}", "Change a department (admins)", models.DepartmentOut, models.DepartmentSpec),
    Operation("delete", "/v1/departments/{name}", "Delete a department without projects (admins)", status=204),
    Operation("get", "/v1/workloads", "Workloads by project, then name", models.WorkloadList, query=_PAGE),
    Operation("post", "/v1/workloads", "Submit", models.WorkloadDetail, models.WorkloadSpec, status=201),
    Operation("post", "/v1/explain", "What would become of a spec", models.Explanation, models.WorkloadSpec),
    Operation("get", W, "One workload", models.WorkloadDetail, query=("touch",)),
    Operation("delete", W, "Delete it", status=204),
    Operation("post", W + "/suspend", "Stop it until resumed", models.WorkloadDetail),
    Operation("post", W + "/resume", "Queue it again", models.WorkloadDetail),
    Operation("get", W + "/events", "What happened to it", models.EventList),
    Operation("get", W + "/explain", "Why it is where it is", models.Explanation),
    Operation("get", W + "/logs", "Its log", query=("tail", "since_s", "follow", "timestamps", "pod"), media="text/plain"),
    Operation("put", W + "/progress", "Report progress (also with HOTDESK_REPORT_TOKEN)", body=models.Progress, status=204),
    Operation("put", W + "/pod", "Report a workspace's process (the hub's spawner)", models.WorkloadDetail, models.PodReport),
    Operation("get", W + "/exec", "Websocket: run a command inside", status=101),
    Operation("get", "/v1/events", "Server-sent StreamEvents", query=("project", "workload"), media="text/event-stream"),
    Operation("get", "/healthz", "The process answers", public=True),
    Operation("get", "/readyz", "Everything works, or 503 and what does not", public=True),
    Operation("get", "/metrics", "Prometheus metrics", media="text/plain", public=True),
    Operation("get", "/openapi.json", "This document", public=True),
)


def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": REF.format(model=model.__name__)}}}


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    in_path = [part.strip("{}") for part in operation.path.split("/") if part.startswith("{")]
    path = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in in_path]
    return path + [{"name": name, "in": "query", "required": False, "schema": {"type": "string"}} for name in operation.query]


def _operation(operation: Operation) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": operation.summary}
    if operation.answer is not None:
        answer["content"] = _schema_of(operation.answer)
    elif operation.status == 200:
        answer["content"] = {operation.media: {"schema": {"type": "object" if operation.media.endswith("json") else "string"}}}
    problem = {"description": "What went wrong", "content": {"application/problem+json": {"schema": {"$ref": REF.format(model="Problem")}}}}
    found: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": f"{operation.method} {operation.path}".replace("/", " ").replace("{", "").replace("}", "").title().replace(" ", ""),
        "responses": {str(operation.status): answer, "default": problem},
    }
    if parameters := _parameters(operation):
        found["parameters"] = parameters
    if operation.body is not None:
        found["requestBody"] = {"required": True, "content": _schema_of(operation.body)}
    if operation.public:
        found["security"] = []
    return found


@cache
def document() -> dict[str, Any]:
    """The whole document."""
    used = {model for operation in OPERATIONS for model in (operation.answer, operation.body) if model is not None} | {models.StreamEvent}
    ordered = sorted(used, key=lambda model: model.__name__)
    _, schemas = models_json_schema([(model, "validation") for model in ordered], ref_template=REF)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Hotdesk", "version": VERSION, "description": "Share GPUs fairly, from Jupyter."},
        "paths": paths,
        "security": [{"token": []}],
        "components": {
            "schemas": schemas["$defs"] | {"Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "A JupyterHub API token"}},
        },
    }


_PROBLEM: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "field": {"type": "string"},
        "limit": {"type": ["string", "integer"]},
        "value": {"type": ["string", "integer"]},
        "next_step": {"type": "string"},
    },
}


def dumps(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()
