"""The chart as helm renders it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # ships no types
from cluster.programs import path_of, why_not_built
from cluster.running import Cluster

CHART = Path(__file__).parent.parent / "helm" / "hotdesk"
Json = dict[str, Any]
Rights = set[tuple[str, str, str]]  # API group, resource, verb
LEAST: Json = {"hub": {"enabled": False}, "tokens": {"existingSecret": "tokens"}}  # the scheduler alone
ELSEWHERE = {"apiUrl": "http://hub.jhub.svc:8081/jhub/hub/api", "serviceToken": {"existingSecret": "hub"}, "namespace": "jhub"}
PLACED: Json = {
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "schedulerName": "other",
    "priorityClassName": "system-cluster-critical",
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "platform"},
}
# Values of all sorts: whatever is said of the chart holds for each of them.
MATRIX: dict[str, Json] = {
    "whole": {},
    "whole-own": {
        **PLACED,
        "hub": {
            "baseUrl": "/gpu/",
            "admins": ["carla"],
            "members": {"team-a": ["alice", "bob"]},
            "config": {"JupyterHub": {"authenticator_class": "generic-oauth"}, "GenericOAuthenticator": {"client_id": "hotdesk"}},
            "extraConfig": {"quotes": "c.JupyterHub.template_vars = {'motto': \"it's {{ here }}\"}\n"},
            "extraEnv": [{"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "oauth", "key": "secret"}}}],
            "existingSecret": "kept-elsewhere",
            "database": {"type": "url", "existingSecret": "database"},
            "serviceAccount": {"name": "hub"},
            "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
        },
        "reports": {"existingSecret": "kept-elsewhere"},
        "proxy": {"service": {"type": "LoadBalancer", "port": 8080, "annotations": {"a/b": "c"}}},
        "workspaces": {
            "home": {"type": "temporary"},
            "memory": {"limit": "8G"},
            "nodeSelector": {"hotdesk.io/pool": "people"},
            "tolerations": [{"operator": "Exists"}],
            "environment": {"HTTPS_PROXY": "http://proxy:3128"},
            "profiles": [{"display_name": "PyTorch", "kubespawner_override": {"image": "pytorch:1"}}],
        },
    },
    "whole-temporary": {"hub": {"database": {"type": "temporary"}}, "networkPolicy": {"enabled": False}, "ingress": {"enabled": True}},
    "least": LEAST,
    "hub": {
        "hub": {"enabled": False, **ELSEWHERE},
        "records": {"existingSecret": "database"},
        "seedProjects": {"team-a": "4", "team-b": 2.5},
    },
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
        **PLACED,
        "settings": {"HOTDESK_GRACE_S": "60"},
        "networkPolicy": {
            "ingressFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
            "egress": [{"ports": [{"port": 6432, "protocol": "TCP"}]}],
        },
    },
}
ROUTE: Json = {"httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["gpu.example.org"]}}


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


def only(items: list[Json], kind: str, part: str = "") -> Json:
    """The only one of its kind; `part`: the scheduler's, the hub's, the proxy's."""
    (found,) = (item for item in items if item["kind"] == kind and part in ("", _part(item)))
    return found


def asked_by(cluster: Cluster, namespace: str, account: str) -> tuple[Rights, set[str]]:
    """What a service account asked for, as the audit log has it, and what of it was refused for want of a right."""
    asked: Rights = set()
    refused = set()
    for line in (cluster.folder / "audit.log").read_text().splitlines():
        event: Json = json.loads(line)
        if event["user"]["username"] != f"system:serviceaccount:{namespace}:{account}" or "objectRef" not in event:
            continue
        what = event["objectRef"]
        if "resource" not in what:
            continue  # what the server has to offer: everybody may ask
        resource = "/".join(filter(None, (what["resource"], what.get("subresource"))))
        asked.add((what.get("apiGroup", ""), resource, event["verb"]))
        if event["responseStatus"]["code"] == 403:
            refused.add(f"{event['verb']} {event['requestURI']}")
    return asked, refused


def granted_to(items: list[Json], part: str = "scheduler") -> Rights:
    """By all roles of the hub or the scheduler."""
    rules = [rule for item in items if item["kind"] in ("ClusterRole", "Role") and _part(item) == part for rule in item["rules"]]
    return {
        (group, resource, verb) for rule in rules for group in rule["apiGroups"] for resource in rule["resources"] for verb in rule["verbs"]
    }


def _part(item: Json) -> str:
    return str(item["metadata"].get("labels", {}).get("app.kubernetes.io/component", ""))


def _helm() -> str:
    own = path_of("helm")
    return str(own) if own.exists() else shutil.which("helm") or ""
