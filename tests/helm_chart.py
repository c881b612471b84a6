"""The chart as helm renders it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # ships no types
from cluster.programs import path_of, why_not_built

CHART = Path(__file__).parent.parent / "helm" / "hotdesk"
LEAST: dict[str, Any] = {"tokens": {"existingSecret": "tokens"}}
Json = dict[str, Any]


class ChartError(Exception):
    """What helm said."""


def why_no_helm() -> str | None:
    return None if _helm() else f"no helm here: {why_not_built(3)}"


def helm(*arguments: str, values: Json | None = None, timeout_s: float = 120.0) -> str:
    """Its output. `values` go in by standard input. Raises ChartError with what it said."""
    given = ["--values", "-"] if values is not None else []
    done = subprocess.run(
        [_helm(), *arguments, *given],
        input=json.dumps(values) if values is not None else None,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode:
        raise ChartError(f"helm {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


def render(values: Json, *, release: str = "rel", namespace: str = "hotdesk", kube_version: str = "1.37.0") -> list[Json]:
    """Every object of the release, hooks included."""
    text = helm("template", release, str(CHART), "--namespace", namespace, "--kube-version", kube_version, values=values)
    return [item for item in yaml.safe_load_all(text) if item]


def only(items: list[Json], kind: str) -> Json:
    (found,) = (item for item in items if item["kind"] == kind)
    return found


def _helm() -> str:
    own = path_of("helm")
    return str(own) if own.exists() else shutil.which("helm") or ""
