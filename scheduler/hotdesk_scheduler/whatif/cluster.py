"""The cluster that a trace is played on: nodes, projects and departments, as they are and as somebody asks "what if"."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from hotdesk_api import units
from hotdesk_api.errors import Invalid

from hotdesk_scheduler.core.model import WHOLE_GPU, Department, Node, Project, Quota
from hotdesk_scheduler.engines.local.devices import SimulatedDevices
from hotdesk_scheduler.whatif.sheet import Column, read_rows, read_text
from hotdesk_scheduler.whatif.trace import Job

PLENTY = 1 << 40
NODE_COLUMNS = (
    Column("name", ("node", "hostname", "sn")),
    Column("gpus", ("gpu", "num_gpu", "num_gpus", "gpu_count")),
    Column("gpu_model", ("model", "gpu_type")),
    Column("cpu_millis", ("cpu_milli",)),
    Column("memory_mib", ()),
)
PROJECT_COLUMNS = (
    Column("name", ("project", "team")),
    Column("quota", ("gpu_quota", "gpus", "deserved")),
    Column("limit", ("gpu_limit",)),
    Column("weight", ("over_quota_weight", "gpu_over_quota_weight")),
    Column("priority", ()),
    Column("department", ("parent",)),
)
_MILLIS = {"gpu_quota_millis": "quota", "gpu_limit_millis": "limit"}
"""As `hotdesk list projects -o json` writes them; its weights are thousandths too."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes and who shares them. A node's type is its GPU model, which jobs may ask for. `notes` say what was assumed."""

    nodes: tuple[Node, ...]
    projects: tuple[Project, ...] = ()
    departments: tuple[Department, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def gpu_millis(self) -> int:
        return sum(node.gpus for node in self.nodes) * WHOLE_GPU


@dataclass(frozen=True, slots=True)
class Change:
    """One "what if": `field` (quota, limit, weight) of a project becomes so many thousandths; None: none, unlimited."""

    field: str
    project: str
    millis: int | None

    @property
    def words(self) -> str:
        amount = "none" if self.millis is None and self.field == "limit" else units.format_gpus(self.millis)
        return f"{self.project} {self.field} {amount}"


def simulated(shape: str, *, taken: Iterable[str] = ()) -> tuple[Node, ...]:
    """Nodes of `2x8xV100-SXM2-32GB`; with names that are not taken. Raises Invalid."""
    names = set(taken)
    nodes = []
    for node in SimulatedDevices(shape).nodes():
        name = node.name
        while name in names:
            name = f"{node.name.rpartition('-')[0]}-{int(name.rpartition('-')[2]) + 1}"
        names.add(name)
        nodes.append(replace(node, name=name, node_type=node.gpu_model))
    return tuple(nodes)


def read_nodes(path: Path) -> tuple[Node, ...]:
    """`name, gpus` and, where they matter, `gpu_model, cpu_millis, memory_mib` (else: plenty). Raises Invalid."""
    nodes: dict[str, Node] = {}
    for row in read_rows(path, NODE_COLUMNS, need=("gpus",)):
        name = row.texts.get("name", f"node-{len(nodes) + 1}")
        if name in nodes:
            raise row.wrong("name", f"there are two nodes {name}")
        model = row.texts.get("gpu_model", "")
        cpu = row.read("cpu_millis", int, "thousandths of a core")
        memory = row.read("memory_mib", int, "a number of MiB")
        gpus = row.need("gpus", _whole, "a whole number of GPUs")
        nodes[name] = Node(
            name,
            gpus,
            cpu_millis=PLENTY if cpu is None else cpu,
            memory_mib=PLENTY if memory is None else memory,
            gpu_model=model,
            node_type=model or None,
            simulated=True,
        )
    if not nodes:
        raise Invalid(f"{path} has no nodes, only a line of columns.")
    return tuple(nodes.values())


def read_projects(path: Path) -> tuple[tuple[Project, ...], tuple[Department, ...]]:
    """From CSV, JSON or YAML: a list of `name, quota, limit, weight, priority, department`, or `NAME: QUOTA`. Raises Invalid."""
    if path.suffix.lower() in (".json", ".yaml", ".yml"):
        body = _parsed(path)
        body = body["items"] if isinstance(body, dict) and "items" in body else body
        body = body if isinstance(body, dict) and "projects" in body else {"projects": body}
        projects = _entries(path, body["projects"], "project")
        departments = _entries(path, body.get("departments") or [], "department")
    else:
        departments = []
        projects = [
            {**row.texts, "of": f"{path}, line {row.line}, project {row.need('name', str, 'a name')}"}
            for row in read_rows(path, PROJECT_COLUMNS, need=("name", "quota"))
        ]
    made = [Project(entry["name"], department=entry.get("department"), created_at=i, **_levels(entry)) for i, entry in enumerate(projects)]
    parents = {
        entry["name"]: Department(
            entry["name"], created_at=i, **{**_levels(entry), "gpu": _gpu(entry, None)}, quota_is_sum="quota" not in entry
        )
        for i, entry in enumerate(departments)
    }
    for project in made:
        if project.department and project.department not in parents:
            parents[project.department] = Department(project.department, created_at=len(parents))
    if len({project.name for project in made}) < len(made):
        raise Invalid(f"{path} has two projects of one name.")
    return tuple(made), tuple(parents.values())


def _parsed(path: Path) -> Any:
    text = read_text(path)
    try:
        if path.suffix.lower() == ".json":
            return json.loads(text)
        import yaml  # type: ignore[import-untyped]  # ships no types; JupyterHub brings it; without a hub JSON and CSV do as well

        return yaml.safe_load(text)
    except ImportError as error:
        raise Invalid(f"{path} cannot be read: PyYAML is not installed.", next_step="Write it as JSON or CSV.") from error
    except Exception as error:  # whatever the parser raises: the file is not what its name says
        raise Invalid(f"{path} is not {path.suffix[1:].upper()}: {error}.") from error


def _entries(path: Path, body: Any, what: str) -> list[dict[str, Any]]:
    """Every entry with its columns' names (`_entry`)."""
    if isinstance(body, dict):
        body = [{"name": name, **(value if isinstance(value, dict) else {"quota": value})} for name, value in body.items()]
    if not isinstance(body, list) or not all(isinstance(entry, dict) and entry.get("name") for entry in body):
        raise Invalid(f"{path}: expected is a list of {what}s with a name each, or NAME: QUOTA.")
    return [_entry(path, entry, what) for entry in body]


def _entry(path: Path, body: Mapping[str, Any], what: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"of": f"{path}, {what} {body['name']}"}
    in_millis = any(name in body for name in _MILLIS)
    for key, value in body.items():
        if key in _MILLIS:
            entry[_MILLIS[key]] = None if value is None else Decimal(value) / WHOLE_GPU
            continue
        name = next((column.name for column in PROJECT_COLUMNS if key in (column.name, *column.also)), None)
        if name == "weight" and in_millis and value is not None:
            value = Decimal(value) / WHOLE_GPU
        if name and value is not None:
            entry[name] = value
    return entry


def _levels(entry: Mapping[str, Any]) -> dict[str, Any]:
    try:
        priority = int(entry.get("priority") or 0)
    except ValueError as error:
        raise Invalid(f"{entry['of']}: priority {entry['priority']!r} is not a whole number.") from error
    weight = None if entry.get("weight") is None else _amount(entry, "weight")
    return {"gpu": _gpu(entry, 0), "weight": weight, "priority": priority}


def _gpu(entry: Mapping[str, Any], absent: int | None) -> Quota:
    limit = _amount(entry, "limit") if "limit" in entry else None
    return Quota(_amount(entry, "quota") if "quota" in entry else absent, limit)


def _amount(entry: Mapping[str, Any], name: str) -> int | None:
    value = entry[name]
    return None if value is None else units.parse_quota(str(value), field=f"{entry['of']}: {name}")


def _whole(text: str) -> int:
    if not text.isdigit():
        raise ValueError(text)
    return int(text)


# --- what is missing, and what if ------------------------------------------------------------------------------------------------------


def with_projects_of(cluster: Cluster, jobs: Sequence[Job]) -> Cluster:
    """Projects that jobs name and nobody described, with equal quotas: whole GPUs that add up to what the others leave; it is noted."""
    known = {project.name for project in cluster.projects}
    missing = sorted({job.project for job in jobs} - known)
    if not missing:
        return cluster
    left = max(0, cluster.gpu_millis - sum(project.gpu.quota or 0 for project in cluster.projects)) // WHOLE_GPU
    each, more = divmod(left, len(missing))
    made = [Project(name, gpu=Quota((each + (i < more)) * WHOLE_GPU), created_at=float(len(known) + i)) for i, name in enumerate(missing)]
    quotas = ", ".join(f"{project.name} {units.format_gpus(project.gpu.quota)}" for project in made)
    note = f"No quotas were given for {len(made)} project{'s' if len(made) > 1 else ''}; equal ones were assumed: {quotas}."
    return replace(cluster, projects=(*cluster.projects, *made), notes=(*cluster.notes, note))


def changed(cluster: Cluster, changes: Sequence[Change]) -> Cluster:
    """The cluster as it would be. Raises Invalid for a project that nobody knows."""
    projects = {project.name: project for project in cluster.projects}
    for change in changes:
        if change.project not in projects:
            known = ", ".join(sorted(projects))
            raise Invalid(f"--{change.field} {change.project}: no job and no file names such a project.", next_step=f"Known: {known}.")
        project = projects[change.project]
        if change.field == "weight":
            projects[project.name] = replace(project, weight=change.millis)
        elif change.field == "quota":
            projects[project.name] = replace(project, gpu=replace(project.gpu, quota=change.millis))
        else:
            projects[project.name] = replace(project, gpu=replace(project.gpu, limit=change.millis))
    return replace(cluster, projects=tuple(projects.values()))


def model_of(cluster: Cluster, asked: str) -> str | None:
    """The GPU model of the cluster that a trace means by `V100`; None for any. Raises ValueError with the sentence."""
    if not asked:
        return None
    models = sorted({node.gpu_model for node in cluster.nodes if node.gpu_model})
    word = asked.lower()
    exact = [model for model in models if model.lower() == word]
    found = exact or [model for model in models if word in model.lower().split("-") or model.lower().startswith(word + "-")]
    if len(found) == 1:
        return found[0]
    some = f"could be {' or '.join(found)}" if found else f"is on no node; the nodes have {', '.join(models) or 'no models'}"
    raise ValueError(f"GPU model {asked} {some}")
