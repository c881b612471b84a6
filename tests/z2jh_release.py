"""A Zero-to-JupyterHub release for tests: Python as in its hub's image, its mounted files, and our overlay's packages beside them.

Two sources of its configuration: `documented`, written for these tests after that chart's documentation; and `chart`, the chart itself,
where a developer has a checkout of its repository (`Z2JH=FOLDER`, or ../shared/zero-to-jupyterhub-k8s): nothing is downloaded for it.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # ships no types
from helm_chart import CHART, Json, helm
from kube_hub import TOKEN

HERE = Path(__file__).parent / "helm" / "z2jh"
OVERLAY = CHART.parent / "overlay-z2jh"
SOURCES = ("documented", "chart")
MOUNTED = "/usr/local/etc/jupyterhub"
ROOT = CHART.parent.parent
# What counts of that chart's images/hub/requirements.txt; and what our packages need that is not in it.
IMAGE = ["jupyterhub==5.5.*", "jupyterhub-kubespawner==7.1.*", "pycurl", "hatchling>=1.27"]
NEEDS = ["httpx", "httpcore", "h11", "anyio", "psutil"]


class CannotInstallError(Exception):
    """What pip said."""


def python_of_hub() -> Path:
    """Of an environment like that image's, kept in the cache with the wheels of NEEDS beside it. Raises CannotInstallError."""
    key = hashlib.sha256("\n".join([sys.version, *IMAGE, *NEEDS]).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hotdesk" / f"k8s-hub-{key}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            _pip(folder, "install", *IMAGE)
            _pip(folder, "download", "--no-deps", "--dest", str(folder / "needs"), *NEEDS)
            (folder / "complete").touch()
    return folder / "bin" / "python"


def _pip(environment: Path, *arguments: str) -> None:
    command = [str(environment / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotInstallError(done.stderr.strip()[-300:])


def add_packages(python: Path, folder: Path) -> Path:
    """What the init container of `without-image.yaml` makes of the wheels in the two ConfigMaps: its own command, with folders of ours."""
    wheels, made = folder / "wheels", folder / "hotdesk"
    _pip(python.parent.parent, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(ROOT))
    assert sum(path.stat().st_size for path in wheels.iterdir()) < 2**20, "a ConfigMap has 1 MiB"
    needs = sorted((python.parent.parent / "needs").iterdir())
    assert sum(path.stat().st_size for path in needs) < 2**20
    for wheel in needs:
        shutil.copy(wheel, wheels)
    (container,) = yaml.safe_load((OVERLAY / "without-image.yaml").read_text())["hub"]["initContainers"]
    shell, flag, script = container["command"]
    script = script.replace("/wheels", str(wheels)).replace("/hotdesk", str(made))
    search = f"{python.parent}:{os.environ['PATH']}"
    subprocess.run([shell, flag, script], check=True, capture_output=True, env={**os.environ, "PATH": search})
    return made


# --- the release's files ------------------------------------------------------------------------------------------------------------------


def values_files(namespace: str) -> list[Json]:
    """In the order in which Helm is given them."""
    existing = (HERE / "existing.yaml").read_text().replace("NAMESPACE", namespace).replace("TOKEN", TOKEN)
    ours = [OVERLAY / "values.yaml", OVERLAY / "without-image.yaml", HERE / "tests.yaml"]
    return [yaml.safe_load(text) for text in (existing, *(path.read_text() for path in ours))]


def merged(over: Json, value: Json) -> Json:
    """As Helm does it: mappings are merged, all else is replaced, null takes away."""
    found = dict(over)
    for name, one in value.items():
        if one is None:
            found.pop(name, None)
        elif isinstance(one, dict) and isinstance(found.get(name), dict):
            found[name] = merged(found[name], one)
        else:
            found[name] = one
    return found


def documented_files(folder: Path, namespace: str, *, scheduler_url: str) -> None:
    values: Json = {}
    for one in [*values_files(namespace), {"custom": {"hotdesk": {"schedulerUrl": scheduler_url}}}]:
        values = merged(values, one)
    secret = {"values.yaml": yaml.safe_dump(values), "hub.config.JupyterHub.cookie_secret": "ab" * 32}
    for name, service in values["hub"]["services"].items():
        secret[f"hub.services.{name}.apiToken"] = service.get("apiToken") or hashlib.sha256(name.encode()).hexdigest()
    _write(folder / "secret", secret)
    _write(folder / "config", {"hub": "hub", "user-scheduler": "user-scheduler"})
    for path in (HERE / "documented").glob("*.py"):
        shutil.copy(path, folder)


def checkout() -> Path | None:
    """Of that chart's repository, if there is one here."""
    candidates = [os.environ.get("Z2JH"), ROOT.parent / "shared" / "zero-to-jupyterhub-k8s"]
    return next((Path(one) for one in candidates if one and (Path(one) / "jupyterhub" / "Chart.yaml").exists()), None)


def chart_objects(folder: Path, namespace: str, **more: Any) -> list[Json]:
    """What that chart makes of the values, which its schema has taken. Its repository has the schema as YAML."""
    source = checkout()
    assert source is not None
    chart = folder / "chart"
    shutil.copytree(source / "jupyterhub", chart)
    schema = yaml.safe_load((chart / "values.schema.yaml").read_text())
    (chart / "values.schema.json").write_text(json.dumps(schema))
    arguments = []
    for number, one in enumerate([*values_files(namespace), more]):
        path = folder / f"values-{number}.yaml"
        path.write_text(yaml.safe_dump(one))
        arguments += ["--values", str(path)]
    text = helm("template", "jhub", str(chart), "--namespace", namespace, "--kube-version", "1.37.0", *arguments)
    return [item for item in yaml.safe_load_all(text) if item]


def chart_files(folder: Path, objects: list[Json]) -> None:
    """As mounted in its hub; where they lie is written in them."""
    (secret,) = (item for item in objects if (item["kind"], item["metadata"]["name"]) == ("Secret", "hub"))
    (config,) = (item for item in objects if (item["kind"], item["metadata"]["name"]) == ("ConfigMap", "hub"))
    _write(folder / "secret", {name: base64.b64decode(text).decode() for name, text in secret["data"].items()})
    _write(folder / "config", config["data"])
    for name in ("jupyterhub_config.py", "z2jh.py"):
        (folder / name).write_text(config["data"][name].replace(MOUNTED, str(folder)))


def _write(folder: Path, texts: dict[str, str]) -> None:
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
