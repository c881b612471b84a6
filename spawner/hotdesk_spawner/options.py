"""What a person may ask for when opening a workspace: read from the form or from JSON, checked once, said in sentences. No I/O."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotdesk_api import units
from hotdesk_api.errors import Invalid, Refused
from hotdesk_api.models import WorkloadSpec

KEYS = ("project", "gpu", "gpu_memory", "cpu", "memory", "preemptible")
GPU_AMOUNT = {"none": "", "fraction": "gpu_fraction", "whole": "gpus", "memory": "gpu_memory"}  # gpu_mode -> the field beside it
SMALLEST_FRACTION, LARGEST_FRACTION, FRACTION_STEP = 0.05, 0.95, 0.05
TRUE_WORDS, FALSE_WORDS = {"true", "yes", "on", "1"}, {"false", "no", "off", "0", ""}
_PLAIN = re.compile(r"^[a-z0-9]+$")
_PLAIN_SERVER = re.compile(r"^[a-z0-9-]*$")


@dataclass(frozen=True, slots=True)
class Wish:
    """A checked wish. `gpu_memory_mib` stands instead of `gpu_millis`; None leaves the amount to the scheduler's default."""

    project: str
    gpu_millis: int = 0
    gpu_memory_mib: int | None = None
    cpu_millis: int | None = None
    memory_mib: int | None = None
    preemptible: bool = False


def typed(form: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The form's fields as they were sent."""
    return {name: str(values[0]).strip() for name, values in form.items() if values and name != "_xsrf"}


def from_form(form: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The form's fields as JSON user options. Raises Invalid for a choice the form does not have."""
    fields = typed(form)
    kind = fields.get("gpu_mode")
    if kind is None:  # not our form (a link with ?opt-gpu=…): the same names as in JSON
        return {name: value for name, value in fields.items() if value}
    if kind not in GPU_AMOUNT:
        raise Invalid(
            f"gpu_mode {kind} is not a way to ask for a GPU.", field="gpu_mode", value=kind, next_step=f"One of {', '.join(GPU_AMOUNT)}."
        )
    options: dict[str, Any] = {name: fields[name] for name in ("project", "cpu", "memory") if fields.get(name)}
    options["gpu_memory" if kind == "memory" else "gpu"] = _gpu_amount(fields, kind)
    return options | {"preemptible": _truth(fields.get("preemptible", ""))}


def _gpu_amount(fields: Mapping[str, str], kind: str) -> str:
    if kind == "none":
        return "0"
    field = GPU_AMOUNT[kind]
    if not fields.get(field):
        raise Invalid("How much GPU is not said.", field=field, next_step=f"For example {_GPU_EXAMPLES[kind]}; or choose None.")
    return fields[field]


def _truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text not in TRUE_WORDS | FALSE_WORDS:
        raise Invalid(
            f"preemptible {value} is neither true nor false.", field="preemptible", value=str(value), next_step="Say true or false."
        )
    return text in TRUE_WORDS


def _text(options: Mapping[str, Any], name: str) -> str:
    value = options.get(name)
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if value is None or value == "":
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Invalid(
            f"{name} must be a text or a number, not {type(value).__name__}.", field=name, next_step=f"For example {_EXAMPLES[name]}."
        )
    return str(value).strip()


_GPU_EXAMPLES = {"fraction": "0.5", "whole": "1", "memory": "8G"}
_EXAMPLES = {"project": '"team-a"', "gpu": '"0.5"', "gpu_memory": '"8G"', "cpu": '"2"', "memory": '"4G"'}


def unwrapped(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """JupyterHub 5.x leaves 6.x's `{"user_options": {...}}` one level too deep."""
    inner = options.get("user_options")
    return inner if isinstance(inner, Mapping) and len(options) == 1 else options


def _project(options: Mapping[str, Any], projects: Sequence[str]) -> str:
    name = _text(options, "project")
    if not projects:
        raise Refused(
            "You are in no project, so no workspace can be opened for you.",
            field="project",
            next_step="Ask an admin to add you to a project's group.",
        )
    if not name and len(projects) == 1:
        return projects[0]
    if name not in projects:
        said = f"{name} is not a project of yours." if name else "The project is missing."
        raise Invalid(said, field="project", value=name or None, next_step=f"Choose one of {', '.join(projects)}.")
    return name


def read(options: Mapping[str, Any], *, projects: Sequence[str]) -> Wish:
    """The wish that JSON user options stand for; `projects` are those the person may use. Raises Invalid or Refused."""
    options = unwrapped(options)
    unknown = sorted(set(map(str, options)) - set(KEYS))
    if unknown:
        raise Invalid(f"A workspace has no option {unknown[0]}.", field=unknown[0], next_step=f"The options are {', '.join(KEYS)}.")
    gpu, gpu_memory = _text(options, "gpu"), _text(options, "gpu_memory")
    if gpu_memory and gpu not in {"", "0"}:
        raise Invalid("gpu and gpu_memory were both given.", field="gpu_memory", value=gpu_memory, next_step="Give one of them.")
    cpu, memory = _text(options, "cpu"), _text(options, "memory")
    return Wish(
        project=_project(options, projects),
        gpu_millis=units.parse_gpus(gpu, field="GPU") if gpu else 0,
        gpu_memory_mib=units.parse_memory_mib(gpu_memory, field="GPU memory") if gpu_memory else None,
        cpu_millis=units.parse_cpu_millis(cpu, field="CPU") if cpu else None,
        memory_mib=units.parse_memory_mib(memory, field="Memory") if memory else None,
        preemptible=_truth(options.get("preemptible") or False),
    )


def workspace_name(user: str, server: str) -> str:
    """The workload's name, DNS-1035, one for each (user, server): `workspace-alice`, `workspace-alice-exp1`, else with a short hash."""
    name = "-".join(filter(None, ("workspace", user, server)))
    if _PLAIN.match(user) and _PLAIN_SERVER.match(server) and len(name) <= units.NAME_MAX and not name.endswith("-"):
        return name
    digest = hashlib.sha256(f"{user}\0{server}".encode()).hexdigest()[:8]
    readable = re.sub(r"[^a-z0-9]+", "-", name.lower())[: units.NAME_MAX - 9].strip("-")
    return f"{readable}-{digest}"


def spec_of(wish: Wish, *, user: str, server: str) -> WorkloadSpec:
    """What the spawner submits. Only what was said is set, so that the scheduler's defaults hold for the rest."""
    said: dict[str, Any] = {"gpu_memory_mib": wish.gpu_memory_mib, "cpu_millis": wish.cpu_millis, "memory_mib": wish.memory_mib}
    amounts = {name: value for name, value in said.items() if value is not None}
    if wish.gpu_memory_mib is None:
        amounts["gpu_millis"] = wish.gpu_millis
    if wish.preemptible:
        amounts["preemptible"] = True
    return WorkloadSpec(
        name=workspace_name(user, server), project=wish.project, kind="workspace", owner=user, server_name=server, **amounts
    )


def in_words(wish: Wish) -> str:
    """`0.5 GPU of team-a`."""
    if wish.gpu_memory_mib is not None:
        return f"{wish.gpu_memory_mib} MiB of a GPU of {wish.project}"
    if not wish.gpu_millis:
        return f"no GPU, in {wish.project}"
    return f"{units.format_gpus(wish.gpu_millis)} GPU{'s' if wish.gpu_millis > units.WHOLE_GPU else ''} of {wish.project}"
