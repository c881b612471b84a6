"""Who may do what at the hub, as data: custom scopes, roles, and what a notebook's token holds. Nothing more than is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SERVICE = "hotdesk"
SPAWNER_SERVICE = "hotdesk-spawner"
ADMINS = "hotdesk-admin"
ACCESS = f"access:services!service={SERVICE}"
READ, SUBMIT, ADMIN = "custom:hotdesk:jobs:read", "custom:hotdesk:jobs:submit", "custom:hotdesk:jobs:admin"
HOST = "custom:hotdesk:workspaces:host"

CUSTOM_SCOPES: dict[str, dict[str, Any]] = {
    READ: {"description": "See the projects, nodes and workloads one may see"},
    SUBMIT: {"description": "Submit workloads to one's projects, and manage one's own", "subscopes": [READ]},
    ADMIN: {"description": "Manage all projects and workloads", "subscopes": [SUBMIT]},
    HOST: {"description": "Queue workspaces for their owners and report what became of them (the hub's spawner)"},
}

USER_SCOPES = ["self", ACCESS, SUBMIT]

# list:users and read:servers: which workspaces run, so that a lost report leaks no share. read:users:groups: whose projects.
# delete:servers: a workspace is preempted through the hub, never behind its back.
SCHEDULER_SCOPES = ["list:users", "read:servers", "read:users:groups", "delete:servers"]

# What a notebook's token may do at most; the hub gives each user only the part that user holds.
NOTEBOOK_SCOPES = ["users:activity!user", "access:servers!server", ACCESS, SUBMIT, ADMIN]


def roles(admins: list[str]) -> list[dict[str, Any]]:
    """For `c.JupyterHub.load_roles`. The built-in admin role cannot hold custom scopes, so admins get one of ours."""
    return [
        {"name": "user", "description": "Own workspaces, and workloads in one's projects", "scopes": USER_SCOPES},
        {"name": ADMINS, "description": "Manage all projects and workloads", "scopes": [ACCESS, ADMIN], "users": admins},
        {"name": "hotdesk-scheduler", "description": "The scheduler", "scopes": SCHEDULER_SCOPES, "services": [SERVICE]},
        {"name": "hotdesk-spawner", "description": "The hub's spawner", "scopes": [ACCESS, HOST], "services": [SPAWNER_SERVICE]},
    ]


def added(there: Sequence[dict[str, Any]], ours: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One role of each name, which JupyterHub insists on: to one that is there already, scopes and members are added."""
    found = {role["name"]: dict(role) for role in there}
    for role in ours:
        known = found.setdefault(role["name"], {})
        for field, value in role.items():
            known[field] = _union(known.get(field, ()), value) if isinstance(value, list) else known.get(field, value)
    return list(found.values())


def _union(there: Sequence[str], ours: Sequence[str]) -> list[str]:
    return [*there, *(item for item in ours if item not in there)]
