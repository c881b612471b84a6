"""Projects, departments, nodes, images, people and versions as views."""

from __future__ import annotations

from collections.abc import Sequence

from hotdesk_api.models import DepartmentOut, ImageOut, Me, NodeOut, ProjectOut, Version
from hotdesk_api.units import WHOLE_GPU, format_age, format_gpus

from hotdesk.render.jobs import cores, mib
from hotdesk.render.view import SIMULATED, Cell, Facts, Table, View

PROJECT_COLUMNS = (
    "PROJECT",
    "DEPARTMENT",
    "DESERVED GPUs",
    "ALLOCATED GPUs",
    "INT LIMIT",
    "INT AFFINITY",
    "TRAIN AFFINITY",
)
PROJECT_COLUMNS_WIDE = (*PROJECT_COLUMNS, "LIMIT", "OVER QUOTA", "WEIGHT", "FAIR SHARE", "RUNNING", "PENDING")
DEPARTMENT_COLUMNS = ("DEPARTMENT", "PROJECTS", "DESERVED GPUs", "ALLOCATED GPUs", "FAIR SHARE", "LIMIT")
DEPARTMENT_COLUMNS_WIDE = (*DEPARTMENT_COLUMNS, "OVER QUOTA", "WEIGHT", "PRIORITY", "RUNNING", "PENDING")
NODE_COLUMNS = (
    "NAME",
    "STATUS",
    "IP ADDRESS",
    "ROLE",
    "GPU TYPE",
    "GPUs",
    "ALLOCATED GPUs",
    "FREE GPUs",
    "CPUs",
    "ALLOCATED CPUs",
    "MEMORY",
    "ALLOCATED MEMORY",
)
DEVICE_COLUMNS = ("GPU", "UUID", "MODEL", "MEMORY", "ALLOCATED", "UTILISATION", "MEMORY USED")
TOP_NODE_COLUMNS = ("NAME", "STATUS", "GPUs", "GPU UTILISATION", "ALLOCATED GPUs", "CPUs", "ALLOCATED CPUs", "MEMORY", "ALLOCATED MEMORY")


def _held_of_quota(entitled: ProjectOut | DepartmentOut) -> Cell:
    """Allocated/quota, as the guides write it, with a bar."""
    quota = entitled.gpu_quota_millis
    share = entitled.gpu_millis_allocated / quota if quota else None
    return Cell(f"{format_gpus(entitled.gpu_millis_allocated)}/{format_gpus(quota)}", bar=share)


def weight(project: ProjectOut) -> str:
    """As written, and what it is now where past use has changed it."""
    written, now = project.gpu_over_quota_weight, project.gpu_over_quota_weight_now
    if written is None and now is not None:  # the rule book's default
        written = WHOLE_GPU if project.gpu_quota_millis is None else project.gpu_quota_millis
    if written is None:
        return "-"
    return format_gpus(written) if now in (None, written) else f"{format_gpus(written)}, now {format_gpus(now)} because of past use"


def _project_row(project: ProjectOut, *, current: str | None, wide: bool) -> tuple[Cell, ...]:
    limit_s = project.interactive_time_limit_s
    row = (
        Cell(project.name + (" (default)" if project.name == current else ""), "strong"),
        Cell(project.department or "-"),
        Cell(format_gpus(project.gpu_quota_millis)),
        _held_of_quota(project),
        Cell(format_age(limit_s) if limit_s else "-"),
        Cell(", ".join(project.interactive_node_types)),
        Cell(", ".join(project.train_node_types)),
    )
    if not wide:
        return row
    return (
        *row,
        Cell("-" if project.gpu_limit_millis is None else format_gpus(project.gpu_limit_millis)),
        Cell("on" if project.over_quota else "off"),
        Cell(weight(project)),
        Cell("-" if project.fair_share_millis is None else format_gpus(project.fair_share_millis)),
        Cell(str(project.running)),
        Cell(str(project.pending), "wait" if project.pending else ""),
    )


def project_list(projects: Sequence[ProjectOut], *, current: str | None, wide: bool = False) -> View:
    ordered = sorted(projects, key=lambda project: project.name)
    columns = PROJECT_COLUMNS_WIDE if wide else PROJECT_COLUMNS
    return View((Table(columns, tuple(_project_row(project, current=current, wide=wide) for project in ordered)),))


def _department_row(department: DepartmentOut, *, wide: bool) -> tuple[Cell, ...]:
    weight_millis = department.gpu_over_quota_weight
    row = (
        Cell(department.name, "strong"),
        Cell(", ".join(department.projects) or "-"),
        Cell(format_gpus(department.gpu_quota_millis)),
        _held_of_quota(department),
        Cell("-" if department.fair_share_millis is None else format_gpus(department.fair_share_millis)),
        Cell("-" if department.gpu_limit_millis is None else format_gpus(department.gpu_limit_millis)),
    )
    if not wide:
        return row
    return (
        *row,
        Cell("on" if department.over_quota else "off"),
        Cell("-" if weight_millis is None else format_gpus(weight_millis)),
        Cell(str(department.priority)),
        Cell(str(department.running)),
        Cell(str(department.pending), "wait" if department.pending else ""),
    )


def department_list(departments: Sequence[DepartmentOut], *, wide: bool = False) -> View:
    ordered = sorted(departments, key=lambda department: department.name)
    columns = DEPARTMENT_COLUMNS_WIDE if wide else DEPARTMENT_COLUMNS
    return View((Table(columns, tuple(_department_row(department, wide=wide) for department in ordered)),))


def _status(node: NodeOut) -> Cell:
    return Cell(node.status, "good" if node.status == "Ready" else "bad")


def _gpu_share(node: NodeOut) -> Cell:
    whole = node.gpus * WHOLE_GPU
    return Cell(format_gpus(node.gpu_millis_allocated), bar=node.gpu_millis_allocated / whole if whole else None)


def _node_row(node: NodeOut) -> tuple[Cell, ...]:
    return (
        Cell(node.name, "strong"),
        _status(node),
        Cell(node.address or "-"),
        Cell(node.role),
        Cell(node.gpu_model or "-", badge=SIMULATED if node.simulated else ""),
        Cell(str(node.gpus)),
        _gpu_share(node),
        Cell(str(node.gpus_free)),
        Cell(cores(node.cpu_millis)),
        Cell(cores(node.cpu_millis_allocated)),
        Cell(mib(node.memory_mib)),
        Cell(mib(node.memory_mib_allocated)),
    )


def node_list(nodes: Sequence[NodeOut], *, wide: bool = False) -> View:
    table = Table(
        (*NODE_COLUMNS, "TYPE", "POOL") if wide else NODE_COLUMNS,
        tuple((*_node_row(node), *((Cell(node.node_type or "-"), Cell(node.pool)) if wide else ())) for node in nodes),
    )
    return View((table,))


def _devices(node: NodeOut, *, heading: str) -> Table:
    rows = tuple(
        (
            Cell(str(device.index)),
            Cell(device.uuid),
            Cell(device.model, badge=SIMULATED if device.simulated else ""),
            Cell(mib(device.memory_mib)),
            Cell(
                format_gpus(device.allocated_millis) + (" (shared)" if device.shared else ""),
                bar=device.allocated_millis / WHOLE_GPU,
            ),
            Cell("-" if device.utilisation_percent is None else f"{device.utilisation_percent:.0f}%"),
            Cell(mib(device.memory_used_mib)),
        )
        for device in node.devices
    )
    return Table(DEVICE_COLUMNS, rows, heading=heading)


def node_details(nodes: Sequence[NodeOut]) -> View:
    """`describe node`: the row of `list nodes` as facts, then each GPU."""
    blocks: list[Facts | Table] = []
    for node in nodes:
        names = (*NODE_COLUMNS, "TYPE", "POOL")
        blocks.append(Facts(tuple(zip(names, (*_node_row(node), Cell(node.node_type or "-"), Cell(node.pool)), strict=True))))
        blocks.append(_devices(node, heading="NODE GPUs INFO"))
    return View(tuple(blocks))


def top_node(nodes: Sequence[NodeOut], *, details: bool) -> View:
    rows = []
    for node in nodes:
        busy = [device.utilisation_percent for device in node.devices if device.utilisation_percent is not None]
        used = f"{sum(busy) / len(busy):.0f}%" if busy else "-"
        rows.append(
            (
                Cell(node.name, "strong"),
                _status(node),
                Cell(str(node.gpus), badge=SIMULATED if node.simulated else ""),
                Cell(used),
                _gpu_share(node),
                Cell(cores(node.cpu_millis)),
                Cell(cores(node.cpu_millis_allocated)),
                Cell(mib(node.memory_mib)),
                Cell(mib(node.memory_mib_allocated)),
            )
        )
    tables = [Table(TOP_NODE_COLUMNS, tuple(rows))]
    return View((*tables, *(_devices(node, heading=node.name) for node in nodes if details)))


def image_list(images: Sequence[ImageOut]) -> View:
    rows = tuple((Cell(image.name, "strong"), Cell(image.description)) for image in images)
    none = (Cell("This cluster keeps no list: any image that its nodes can pull will do, by its full name (-i).", "dim"),)
    return View((Table(("IMAGE", "DESCRIPTION"), rows),), footer=() if rows else none)


def _ours(scopes: Sequence[str]) -> Sequence[str]:
    """The hub's many other scopes say nothing about jobs; `-o json` has them all."""
    return [scope for scope in scopes if scope.startswith("custom:")] or scopes


def me(person: Me, *, url: str, project: str | None, project_from: str) -> View:
    return View(
        (
            Facts(
                (
                    ("USER", Cell(person.name, "strong")),
                    ("ADMINISTRATOR", Cell("yes" if person.admin else "no")),
                    ("PROJECTS", Cell(", ".join(person.projects))),
                    ("CURRENT PROJECT", Cell(f"{project} ({project_from})" if project else "-")),
                    ("RIGHTS", Cell(", ".join(_ours(person.scopes)))),
                    ("SCHEDULER", Cell(f"{url} ")),
                )
            ),
        )
    )


def versions(here: str, there: Version | None, problem: str) -> View:
    scheduler = (
        Cell(f"{there.hotdesk} (API {there.api}, engine {there.engine})", badge=SIMULATED if there.simulated else "")
        if there
        else Cell(problem)
    )
    return View((Facts((("Version", Cell(here)), ("Scheduler", scheduler))),))
