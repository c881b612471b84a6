"""The services of the hub: the scheduler, started by command line, and the spawner's own entry (a token, no process)."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from hotdesk_hub.roles import SERVICE, SPAWNER_SERVICE

SERVICE_LOOK_S = 2


def scheduler_command(*, state: Path, simulate: str, seed_projects: str) -> list[str]:
    """What the hub runs; the address and the token come in the environment that the hub gives a managed service."""
    command = [sys.executable, "-m", "hotdesk_scheduler.cli", "serve", "--state", str(state)]
    if simulate:
        command += ["--simulate", simulate]
    return [*command, "--seed-projects", seed_projects] if seed_projects else command


def scheduler_environment() -> dict[str, str]:
    """The operator's HOTDESK_… settings reach the scheduler; the hub gives a service nothing else of its own environment."""
    ours = {name: value for name, value in os.environ.items() if name.startswith("HOTDESK_")}
    return {name: value for name, value in ours.items() if not name.startswith("HOTDESK_HUB_") and "TOKEN" not in name}


def look_after_services_often() -> None:
    """JupyterHub looks every 30 s whether a service of its own still runs, and has no setting for that; this brings it back sooner."""
    with contextlib.suppress(ImportError):  # a private class: without it things only take longer
        from jupyterhub.services.service import _ServiceSpawner

        _ServiceSpawner.poll_interval = SERVICE_LOOK_S


def services(*, port: int, command: list[str], scheduler_token: str, spawner_token: str) -> list[dict[str, Any]]:
    """For `c.JupyterHub.services`. Tokens are kept over restarts, so that what they guard stays reachable."""
    return [
        {
            "name": SERVICE,
            "url": f"http://127.0.0.1:{port}",
            "command": command,
            "api_token": scheduler_token,
            "environment": scheduler_environment() | {"HOTDESK_HUB_PID": str(os.getpid())},
            "oauth_no_confirm": True,
            "display": False,  # in the hub's menu once it has pages
        },
        {"name": SPAWNER_SERVICE, "api_token": spawner_token, "display": False},
    ]
