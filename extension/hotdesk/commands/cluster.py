"""Projects, nodes and images: list, describe, top; create, update and delete projects."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

from hotdesk_api import calls
from hotdesk_api.errors import HotdeskError, Invalid
from hotdesk_api.models import NodeList, NodeOut, ProjectOut, ProjectSpec
from hotdesk_api.units import parse_cpu_millis, parse_duration_s, parse_memory_mib, parse_quota

from hotdesk.answers import Answer
from hotdesk.commands.checked import checked
from hotdesk.commands.jobs import confirm
from hotdesk.commands.parse import Typed, unknown
from hotdesk.render import cluster as views
from hotdesk.session import Session

UNLIMITED = frozenset({"unlimited", "none", "-1"})
NO_DEPARTMENT = frozenset({"none", ""})


def _current_project(session: Session) -> str | None:
    """The project commands would use, or None while that is open."""
    try:
        return session.project()
    except HotdeskError:
        return None


def list_projects(session: Session, typed: Typed) -> Answer:
    found = session.client.call(calls.projects())
    view = views.project_list(found.items, current=_current_project(session), wide=typed.text("output") == "wide")
    return Answer(view, found, names=tuple(project.name for project in found.items), changes=(None, None))


def _nodes(session: Session, names: Sequence[str]) -> list[NodeOut]:
    nodes = session.client.call(calls.nodes()).items
    known = [node.name for node in nodes]
    for name in names:
        if name not in known:
            raise unknown("a node", name, known)
    return [node for node in nodes if not names or node.name in names]


def list_nodes(session: Session, typed: Typed) -> Answer:
    nodes = _nodes(session, typed.words)
    view = views.node_list(nodes, wide=typed.text("output") == "wide")
    return Answer(view, NodeList(items=nodes), names=tuple(node.name for node in nodes), changes=(None, None))


def describe_node(session: Session, typed: Typed) -> Answer:
    nodes = _nodes(session, typed.words)
    return Answer(views.node_details(nodes), NodeList(items=nodes), names=tuple(node.name for node in nodes))


def top_node(session: Session, typed: Typed) -> Answer:
    nodes = _nodes(session, typed.words)
    view = views.top_node(nodes, details=typed.on("details"))
    return Answer(view, NodeList(items=nodes), names=tuple(node.name for node in nodes), changes=(None, None))


def list_images(session: Session, typed: Typed) -> Answer:
    found = session.client.call(calls.images())
    return Answer(views.image_list(found.items), found, names=tuple(image.name for image in found.items))


def entitlement(typed: Typed) -> dict[str, object]:
    """What projects and departments may both be given, but for the GPU quota; None where nothing was typed."""
    return {
        "name": typed.words[0],
        "gpu_limit_millis": gpus(typed, "limit"),
        "over_quota": {"on": True, "off": False, None: None}[typed.text("over-quota")],
        "gpu_over_quota_weight": _weight(typed.text("over-quota-weight")),
        "priority": _whole(typed.text("priority")),
        "cpu_quota_millis": _cores(typed.text("cpu-quota")),
        "memory_quota_mib": _memory(typed.text("memory-quota")),
    }


def _project_spec(typed: Typed) -> ProjectSpec:
    """Only what was typed is set, so that an update leaves the rest alone."""
    department = typed.text("department")
    readers = {
        "gpu_quota_millis": gpus(typed, "gpu-quota"),
        "department": None if department in NO_DEPARTMENT else department,
        "interactive_time_limit_s": _time(typed.text("interactive-time-limit")),
        "train_node_types": list(typed.every("train-node-type")) or None,
        "interactive_node_types": list(typed.every("interactive-node-type")) or None,
    }
    spec = checked(ProjectSpec, entitlement(typed) | readers)
    return spec.model_copy(update={"department": None}) if department in NO_DEPARTMENT else spec


def gpus(typed: Typed, flag: str) -> int | None:
    text = typed.text(flag)
    if text is None:
        return None
    millis = parse_quota(text, field=f"--{flag}")
    return -1 if millis is None else millis


def _cores(text: str | None) -> int | None:
    return None if text is None else -1 if text in UNLIMITED else parse_cpu_millis(text, field="--cpu-quota")


def _memory(text: str | None) -> int | None:
    return None if text is None else -1 if text in UNLIMITED else parse_memory_mib(text, field="--memory-quota")


def _time(text: str | None) -> int | None:
    return None if text is None else parse_duration_s(text, field="--interactive-time-limit")


def _weight(text: str | None) -> int | None:
    """Thousandths; 0 = may use only what nobody else wants."""
    if text is None:
        return None
    try:
        millis = Decimal(text) * 1000
    except InvalidOperation:
        millis = Decimal("nan")
    if not millis.is_finite() or millis < 0 or millis != millis.to_integral_value() or millis > 1_000_000_000:
        raise Invalid(
            f"--over-quota-weight {text} is not a weight: a number from 0 with at most three decimals.",
            field="over-quota-weight",
            value=text,
            next_step="Write for example 2 or 0.5.",
        )
    return int(millis)


def _whole(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.lstrip("-").isdigit() or not text.isascii():
        raise Invalid(
            f"--priority {text} is not a whole number.", field="priority", value=text, next_step="Write for example --priority 10."
        )
    return int(text)


def _answer(project: ProjectOut, done: str) -> Answer:
    return Answer(
        views.project_list([project], current=None, wide=True), project, (project.name,), talk=(f"Project {project.name} {done}.",)
    )


def create_project(session: Session, typed: Typed) -> Answer:
    return _answer(session.client.call(calls.create_project(_project_spec(typed))), "has been created")


def update_project(session: Session, typed: Typed) -> Answer:
    spec = _project_spec(typed)
    if spec.model_fields_set == {"name"}:
        raise Invalid("project update needs something to change.", next_step=f"For example `project update {spec.name} --gpu-quota 4`.")
    return _answer(session.client.call(calls.update_project(spec)), "has been changed")


def delete_project(session: Session, typed: Typed) -> Answer:
    name = typed.words[0]
    session.client.call(calls.project(name))  # an unknown name is told before anybody is asked
    confirm(session, f"Delete project {name}?", sure=typed.on("yes"))
    session.client.call(calls.delete_project(name))
    return Answer(names=(name,), talk=(f"Project {name} has been deleted.",))
