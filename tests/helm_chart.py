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
Json = dict[str, Any]
LEAST: Json = {"tokens": {"existingSecret": "tokens"}}
_HUB = {"apiUrl": "http://hub.jhub.svc:8081/hub/api", "serviceToken": {"existingSecret": "hub"}, "namespace": "jhub"}
# Values of all sorts: whatever is said of the chart holds for each of them.
MATRIX: dict[str, Json] = {
    "least": LEAST,
    "hub": {"hub": _HUB, "records": {"existingSecret": "database"}, "seedProjects": {"team-a": "4", "team-b": 2.5}},
    "one-replica": {**LEAST, "replicas": 1, "podDisruptionBudget": {"enabled": False}, "networkPolicy": {"enabled": False}},
    "of-others": {**LEAST, "crds": {"install": False}, "rbac": {"create": False}, "serviceAccount": {"create": False, "name": "theirs"}},
    "ingress": {
        **LEAST,
        "ingress": {"enabled": True, "className": "nginx", "host": "gpu.example.org", "tlsSecret": "tls", "annotations": {"a/b": "c"}},
    },
    "anywhere": {**LEAST, "ingress": {"enabled": True}, "service": {"type": "NodePort", "port": 8080}},
    "placed": {
        **LEAST,
        "image": {
            "repository": "registry.example.org/hotdesk/scheduler",
            "tag": "2",
            "pullPolicy": "Always",
            "pullSecrets": ["one", "two"],
        },
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "schedulerName": "other",
        "priorityClassName": "system-cluster-critical",
        "podAnnotations": {"a": "b"},
        "podLabels": {"team": "platform"},
        "settings": {"HOTDESK_GRACE_S": "60"},
        "networkPolicy": {"ingressFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]},
    },
}
ROUTE: Json = {**LEAST, "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["gpu.example.org"]}}


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
