"""The form for opening a workspace, as HTML; it works without JavaScript and says more with it. No I/O but its template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from hotdesk_api.errors import HotdeskError
from hotdesk_api.models import Explanation, NodeOut, ProjectOut
from hotdesk_api.units import WHOLE_GPU, format_gpus, parse_gpus

from hotdesk_spawner import options

_templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def numbers(project: ProjectOut) -> dict[str, Any]:
    """Quota, used and free of one project, in words and in per cent of the quota."""
    quota, used = project.gpu_quota_millis, project.gpu_millis_allocated
    free = None if quota is None else max(0, quota - used)
    return {
        "name": project.name,
        "quota": format_gpus(quota),
        "used": format_gpus(used),
        "free": format_gpus(free),
        "percent": min(100, round(100 * used / quota)) if quota else 0,
    }


def plan_in_words(plan: Explanation) -> str:
    """One text; what would help only where the sentence does not say it already."""
    start = "Will wait: " if plan.starts_now is False else ""
    helps = plan.what_would_help if plan.starts_now is False and plan.what_would_help not in (None, "") else ""
    return start + plan.sentence + ("" if not helps or helps in plan.sentence else f" {helps}")


def _chosen(last: Mapping[str, Any]) -> dict[str, Any]:
    """The form's fields for JSON options, so that the last choice comes up again, or as they were sent and refused."""
    fields = {"gpu_mode": "none", "gpu_fraction": "0.5", "gpus": "1", "gpu_memory": "", "cpu": "", "memory": "", "project": ""}
    if "gpu_mode" in last:
        return fields | {name: last[name] for name in fields if name in last} | {"preemptible": "preemptible" in last}
    fields |= {name: str(last[name]) for name in ("project", "cpu", "memory", "gpu_memory") if last.get(name)}
    if fields["gpu_memory"]:
        fields["gpu_mode"] = "memory"
    elif last.get("gpu"):
        fields |= _gpu_fields(str(last["gpu"]))
    elif "gpu" not in last:
        fields["gpu_mode"] = "fraction"
    return fields | {"preemptible": bool(last.get("preemptible"))}


def _gpu_fields(text: str) -> dict[str, str]:
    try:
        millis = parse_gpus(text)
    except HotdeskError:
        return {}
    if millis == 0:
        return {"gpu_mode": "none"}
    kind = "whole" if millis >= WHOLE_GPU else "fraction"
    return {"gpu_mode": kind, options.GPU_AMOUNT[kind]: format_gpus(millis)}


def _model(node: NodeOut) -> str:
    """Model and memory of its GPUs, as far as the cluster tells them."""
    memory = f"{node.gpu_memory_mib} MiB" if node.gpu_memory_mib else ""
    return ", ".join(filter(None, (node.gpu_model, memory)))


def render(
    projects: Sequence[ProjectOut],
    *,
    user: str,
    last: Mapping[str, Any],
    names: Sequence[str] = (),
    nodes: Sequence[NodeOut] = (),
    simulated: bool = False,
    problem: str = "",
) -> str:
    """`names` are the projects when the scheduler could not be asked (`problem` says why)."""
    return _templates.get_template("form.html").render(
        projects=[numbers(project) for project in projects] or [{"name": name} for name in names],
        chosen=_chosen(last),
        user=user,
        simulated=simulated,
        problem=problem,
        most_gpus=max((node.gpus for node in nodes), default=8),
        gpu_model="; ".join(sorted({_model(node) for node in nodes if node.gpus} - {""})),
        smallest=options.SMALLEST_FRACTION,
        largest=options.LARGEST_FRACTION,
        step=options.FRACTION_STEP,
    )
