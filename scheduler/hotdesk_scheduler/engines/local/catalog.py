"""The environment catalog: what an image name means on one machine, and the command line a spec comes to.

Names in the documentation's walk-throughs map to small real programs shipped beside this module; an unknown name lists the known.
"""

from __future__ import annotations

import difflib
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hotdesk_api.errors import Invalid
from hotdesk_api.models import WorkloadSpec

from hotdesk_scheduler.engines.base import Image

PROGRAMS = Path(__file__).parent / "programs"
WORKSPACE_IMAGE = "hotdesk/workspace"
_REGISTRIES = ("docker.io/library/", "docker.io/", "quay.io/", "index.docker.io/")


@dataclass(frozen=True, slots=True)
class Entry:
    """One image: `entrypoint` runs when no command is given, `interpreter` runs a submitted program. `ports` are served by default."""

    name: str
    description: str
    entrypoint: tuple[str, ...]
    interpreter: tuple[str, ...] = (sys.executable, "-u")
    kind_hint: str = "train"
    environment: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[int, ...] = ()


_PYTHON = f"Python {platform.python_version()} of this Hotdesk, with numpy"
_QUICKSTART = (sys.executable, str(PROGRAMS / "quickstart.py"))
_NOTEBOOK = ("start-notebook.sh",)
_SHELL = ("bash",)
_ENTRIES = (
    Entry("gcr.io/run-ai-demo/quickstart", "Shipped example: trains a small network with numpy and shows its loss", _QUICKSTART),
    Entry("python", f"{_PYTHON}; ends at once when given no command", ("python3",)),
    Entry("ubuntu", "A bash shell of this machine", _SHELL, _SHELL),
    Entry("debian", "A bash shell of this machine", _SHELL, _SHELL),
    Entry("bash", "A bash shell of this machine", _SHELL, _SHELL),
    Entry("jupyter/base-notebook", "A Jupyter server", _NOTEBOOK, kind_hint="interactive", ports=(8888,)),
    Entry("jupyter/scipy-notebook", "A Jupyter server, with numpy", _NOTEBOOK, kind_hint="interactive", ports=(8888,)),
    Entry(WORKSPACE_IMAGE, "A workspace, started by the hub", (), kind_hint="workspace"),
)
BY_NAME = {entry.name: entry for entry in _ENTRIES}


def images() -> tuple[Image, ...]:
    """What people may name with `-i`."""
    return tuple(Image(entry.name, entry.description, entry.kind_hint) for entry in _ENTRIES if entry.name != WORKSPACE_IMAGE)


def find(spec: WorkloadSpec) -> Entry:
    """The catalog's entry for a spec's image; `Invalid` with the known names, or the version that is here."""
    if spec.kind == "workspace":
        return BY_NAME[WORKSPACE_IMAGE]
    name, _, tag = _short(spec.image).partition(":")
    entry = BY_NAME.get(name)
    if entry is None or name == WORKSPACE_IMAGE:
        raise _unknown(spec.image)
    if name == "python" and not _is_here(tag):
        raise Invalid(
            f"Image {spec.image} asks for Python {tag}; this machine's is {platform.python_version()}.",
            field="image",
            value=spec.image,
            limit=platform.python_version(),
            next_step=f"Use -i python or -i python:{sys.version_info.major}.{sys.version_info.minor}.",
        )
    return entry


def _short(image: str) -> str:
    for registry in _REGISTRIES:
        image = image.removeprefix(registry)
    return image


def _is_here(tag: str) -> bool:
    """`3`, `3.11`, `3.11.7`, each also with a distribution's suffix such as `-slim`."""
    version = tag.partition("-")[0]
    here = platform.python_version().split(".")
    return version in {"", "latest"} or version.split(".") == here[: len(version.split("."))]


def _unknown(image: str) -> Invalid:
    known = [entry.name for entry in _ENTRIES if entry.name != WORKSPACE_IMAGE]
    near = difflib.get_close_matches(_short(image).partition(":")[0], known, n=1)
    said = f"There is no image {image[:200]} on this machine." if image else "No image was named."
    return Invalid(
        said,
        field="image",
        value=image[:200],
        next_step=(f"Did you mean {near[0]}? " if near else "") + f"Known images: {', '.join(known)}.",
    )


def command_line(spec: WorkloadSpec, entry: Entry, program: Path | None) -> list[str]:
    """What is executed: a command replaces the entry point (or a program's interpreter), arguments follow."""
    if program is not None:
        return [*(spec.command or entry.interpreter), str(program), *spec.args]
    return [*(spec.command or entry.entrypoint), *spec.args]
