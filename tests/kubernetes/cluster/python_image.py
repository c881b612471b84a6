"""An image of what a Dockerfile of ours installs, made of this virtual environment: the same packages, files, variables, user and entry.

Everything lies at the paths it has on this machine, so that interpreter, libraries and compiled files are found without a word; only
what is in this checkout lies below /opt: pods mount their own folders over some, such as /tmp.
What a Dockerfile installs and this environment has not (drivers of databases, log-ins of others) is left out.
"""

from __future__ import annotations

import functools
import json
import os
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
_WEIGHTY = re.compile(r"\.map$|/babel/locale-data/(?!root\.|en[._])|/jedi/third_party/|/share/man/")  # nothing here asks for them
_SOURCES = {"hotdesk": "extension", "hotdesk_api": "scheduler", "hotdesk_hub": "hub", "hotdesk_scheduler": "scheduler"}
_SOURCES |= {"hotdesk_spawner": "spawner"}


def image_of(dockerfile: Path, name: str) -> Image:
    text = dockerfile.read_text()
    packages = _packages("hotdesk", _found(r'"\.\[([a-z,]+)\]"', text).split(","))
    for more in re.findall(r'"([a-z-]+)(?:\[[a-z]+\])?[<>=]', text):
        packages |= _packages(more, []) if _is_installed(more) else {}
    programs = {path for path in (*_files_of(packages), *_sources()) if path.is_file() and not _WEIGHTY.search(str(path))}
    files: dict[str, bytes | Path] = {_there(path): _linked(path) if path.suffix == ".pth" else path for path in programs}
    files.update({_there(path): path.resolve() for path in libraries(path for path in programs if ".so" in path.suffixes)})
    files.update(_copied(text))
    entry = json.loads((re.findall(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE) or ["[]"])[0])
    files |= _scripts(packages)
    environment = dict(pair.split("=", 1) for pair in _found(r"^ENV (.*)$", text).split())
    return Image(name, tuple(entry), files, {}, environment, user=_found(r"^USER (\S+)$", text), base=_python())


@functools.cache
def _python() -> Image:
    """The interpreter with its library, at home in this virtual environment; below all images."""
    files, links = busybox()
    interpreter, own = Path(sys.executable).resolve(), Path(sys.prefix)
    programs = [path for path in _standard_library() if path.is_file()]
    files.update({_there(path): path for path in (*programs, interpreter, own / "pyvenv.cfg")})
    compiled = [path for path in programs if ".so" in path.suffixes]
    files.update({str(path): path.resolve() for path in libraries([interpreter, *compiled]) if str(path) not in files})
    links |= {_there(own / "bin" / "python"): str(interpreter), "/usr/local/bin/python3": str(interpreter)}
    return Image("python", (), files, links)


def _there(path: Path) -> str:
    """Where it lies in the image."""
    own = os.path.realpath(REPOSITORY)
    for root in (str(REPOSITORY), own):
        if str(path).startswith(f"{root}/"):
            return f"/opt/hotdesk{str(path)[len(root) :]}"
    return str(path)


def _linked(path: Path) -> bytes:
    """Where Hotdesk's sources are, for who is installed as a link to them."""
    lines = path.read_text().splitlines()
    return "".join(f"{_there(Path(line)) if line.startswith('/') else line}\n" for line in lines).encode()


def _found(pattern: str, text: str) -> str:
    (found,) = re.findall(pattern, text, re.MULTILINE)
    return str(found)


def _is_installed(package: str) -> bool:
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True


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
    """Their modules, compiled ones too, and what they put beside: data and settings below `share` and `etc`."""
    root = os.path.realpath(sys.prefix)
    for package in packages:
        for file in metadata.distribution(package).files or []:
            path = os.path.normpath(str(file.locate()))
            if path.startswith(f"{root}/") and not path.startswith(f"{root}/bin/") and not {"test", "tests"} & set(file.parts):
                yield Path(path)


def _standard_library() -> Iterator[Path]:
    for folder, below, names in os.walk(sysconfig.get_path("stdlib")):
        below[:] = [name for name in below if name not in _NOT_NEEDED and not name.startswith("config-")]
        yield from (Path(folder, name) for name in names)


def _sources() -> Iterator[Path]:
    """Hotdesk itself: it is installed as a link to where it lies."""
    for package, folder in _SOURCES.items():
        yield from (REPOSITORY / folder / package).rglob("*")


def _copied(text: str) -> dict[str, bytes | Path]:
    """Files that the last stage copies from the repository."""
    files: dict[str, bytes | Path] = {}
    last = text[text.rindex("\nFROM ") :]
    for source, target in re.findall(r"^COPY (?!--)(\S+) (\S+)$", last, re.MULTILINE):
        root = REPOSITORY / source
        files.update({f"{target}/{path.relative_to(root)}": path for path in root.rglob("*") if path.is_file()})
    return files


def _scripts(packages: dict[str, set[str]]) -> dict[str, bytes | Path]:
    """The commands of the packages."""
    own = _there(Path(sys.prefix) / "bin" / "python")
    found: dict[str, bytes | Path] = {}
    for package in packages:
        for one in metadata.distribution(package).entry_points.select(group="console_scripts"):
            text = f"#!{own}\nimport sys\nfrom {one.module} import {one.attr}\nsys.exit({one.attr}())\n"
            found[f"/usr/local/bin/{one.name}"] = text.encode()
    return found
