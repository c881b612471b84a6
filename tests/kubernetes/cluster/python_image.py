"""An image of what a Dockerfile of ours installs, made of this virtual environment: the same packages, variables, user and entry.

Everything lies at the paths it has on this machine, so that interpreter, libraries and compiled files are found without a word.
"""

from __future__ import annotations

import json
import re
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from cluster.images import Image, busybox, libraries

REPOSITORY = Path(__file__).parents[3]
_NOT_NEEDED = {"test", "tests", "idlelib", "tkinter", "lib2to3", "ensurepip", "turtledemo", "site-packages", "dist-packages"}


def image_of(dockerfile: Path, name: str) -> Image:
    text = dockerfile.read_text()
    extras = _found(r'"\.\[([a-z,]+)\]"', text).split(",")
    packages = _packages("hotdesk", extras)
    files, links = busybox()
    programs = [path for path in (*_standard_library(), *_files_of(packages), *_sources()) if path.is_file()]
    interpreter = Path(sys.executable).resolve()
    files.update({str(path): path for path in (*programs, interpreter)})
    compiled = [path for path in programs if ".so" in path.suffixes]
    files.update({str(path): path.resolve() for path in libraries([interpreter, *compiled]) if str(path) not in files})
    links |= {"/usr/local/bin/python3": str(interpreter)}
    entry = json.loads(_found(r"^ENTRYPOINT (\[.*\])$", text))
    files[f"/usr/local/bin/{entry[0]}"] = _script(entry[0])
    environment = dict(pair.split("=", 1) for pair in _found(r"^ENV (.*)$", text).split())
    environment["PYTHONPATH"] = ":".join([sysconfig.get_path("purelib"), *map(str, _folders())])
    return Image(name, tuple(entry), files, links, environment, user=_found(r"^USER (\S+)$", text))


def _found(pattern: str, text: str) -> str:
    (found,) = re.findall(pattern, text, re.MULTILINE)
    return str(found)


def _packages(name: str, extras: list[str]) -> dict[str, set[str]]:
    """What it needs, and what that needs: names with the extras asked for."""
    needed: dict[str, set[str]] = {}
    todo = [(name, {"", *extras})]
    while todo:
        package, wanted = todo.pop()
        key = package.lower().replace("_", "-")
        if key in needed and wanted <= needed[key]:
            continue
        needed.setdefault(key, set()).update(wanted)
        for line in metadata.distribution(package).requires or []:
            needs = Requirement(line)
            if needs.marker is None or any(needs.marker.evaluate({"extra": extra}) for extra in wanted):
                todo.append((needs.name, {"", *needs.extras}))
    return needed


def _files_of(packages: dict[str, set[str]]) -> Iterator[Path]:
    for package in packages:
        for file in metadata.distribution(package).files or []:
            path = Path(str(file.locate()))
            if ".." not in file.parts and not {"test", "tests"} & set(file.parts):
                yield path
                yield from path.parent.glob(f"__pycache__/{path.stem}.cpython-*.pyc")


def _standard_library() -> Iterator[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in root.rglob("*"):
        if not _NOT_NEEDED & set(path.relative_to(root).parts) and not path.relative_to(root).parts[0].startswith("config-"):
            yield path


def _folders() -> list[Path]:
    return [REPOSITORY / name for name in ("extension", "scheduler")]


def _sources() -> Iterator[Path]:
    for folder in _folders():
        yield from (path for path in folder.rglob("*") if "node_modules" not in path.parts)


def _script(name: str) -> bytes:
    (found,) = (one for one in metadata.entry_points(group="console_scripts") if one.name == name)
    return f"#!/usr/local/bin/python3\nimport sys\nfrom {found.module} import {found.attr}\nsys.exit({found.attr}())\n".encode()
