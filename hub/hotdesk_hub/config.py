"""JupyterHub's configuration for Hotdesk on one machine. `configure(c)` first, the operator's own files after it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotdesk_api.errors import Invalid
from hotdesk_spawner import HotdeskSpawner
from hotdesk_spawner.shared import why_stopped

from hotdesk_hub import handlers, roles
from hotdesk_hub.proxy import LocalProxy, find_proxy
from hotdesk_hub.services import look_after_services_often, scheduler_command, services
from hotdesk_hub.state import State, default_root, ports_of, secrets_of

ADMIN = "admin"
PROJECTS: dict[str, tuple[str, tuple[str, ...]]] = {  # project: quota in GPUs, members
    "team-a": ("4", ("alice", "demo")),
    "team-b": ("2", ("bob", "demo")),
    "team-c": ("2", ("carol", "demo")),
    "team-d": ("8", ("dave", "demo")),
}
RESEARCHERS = sorted({user for _, members in PROJECTS.values() for user in members})
PAGES = Path(__file__).parent / "pages"
LAB = Path(__file__).parent / "lab"  # Jupyter configuration for workspaces alone
QUIET_LAB = ("--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate")  # asks nobody outside
AT_ONCE_S = 0.5  # a wish that is refused within this is answered with the sentence; others go to the page that shows the place in the queue
POLL_INTERVAL_S = 5  # a workspace that died is noticed within this


@dataclass(frozen=True, slots=True)
class Local:
    """What `hotdesk-hub up` was told; it reaches the hub's process in the environment."""

    state: State
    address: str
    port: int
    simulate: str


def local_settings() -> Local:
    return Local(
        state=State(default_root()),
        address=os.environ.get("HOTDESK_HUB_ADDRESS") or "127.0.0.1",
        port=int(os.environ.get("HOTDESK_HUB_PORT") or "8000"),
        simulate=os.environ.get("HOTDESK_SIMULATE") or "",
    )


def configure(c: Any) -> None:
    """Fill `c`, then run the operator's own files over it: STATE/jupyterhub_config.d/*.py, then $HOTDESK_HUB_CONFIG."""
    local = local_settings()
    local.state.prepare()
    secrets = secrets_of(local.state)
    ports = ports_of(local.state)
    _hub(c, local, ports)
    _proxy(c, local, ports["proxy_api"], secrets["proxy_token"])
    _log_in(c, local, secrets)
    _access(c)
    _scheduler(c, local, ports["scheduler"], secrets)
    _workspaces(c, local, ports["scheduler"], secrets["spawner_token"])
    _pages(c, local)
    for path in own_files(local.state):
        run_own_file(path, c)


def _hub(c: Any, local: Local, ports: dict[str, int]) -> None:
    c.JupyterHub.bind_url = f"http://{local.address}:{local.port}"
    c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{ports['hub']}"
    c.JupyterHub.db_url = f"sqlite:///{local.state.database}"
    c.JupyterHub.cookie_secret_file = str(local.state.hub / "cookie_secret")
    c.JupyterHub.cleanup_servers = False  # Ctrl-C leaves workspaces running; the next start finds them
    c.JupyterHub.allow_named_servers = True
    c.JupyterHub.concurrent_spawn_limit = 0  # a queued workspace is a pending spawn; the queue has no such limit
    c.JupyterHub.tornado_settings = {"slow_spawn_timeout": AT_ONCE_S}


def _proxy(c: Any, local: Local, api_port: int, token: str) -> None:
    c.JupyterHub.proxy_class = LocalProxy
    c.ConfigurableHTTPProxy.command = find_proxy()
    c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{api_port}"
    c.ConfigurableHTTPProxy.pid_file = str(local.state.proxy_pid)
    c.ConfigurableHTTPProxy.auth_token = token


def _log_in(c: Any, local: Local, secrets: dict[str, str]) -> None:
    """One password for the admin, one for all researchers: for one machine and people who trust each other."""
    c.JupyterHub.authenticator_class = "shared-password"
    c.Authenticator.admin_users = {ADMIN}
    c.Authenticator.allowed_users = set(RESEARCHERS)
    c.SharedPasswordAuthenticator.admin_password = secrets["admin_password"]
    c.SharedPasswordAuthenticator.user_password = secrets["researcher_password"]
    if not local.state.passwords_shown.exists():  # until a first start was complete; later changes of the members are the admin's
        c.JupyterHub.load_groups = {project: {"users": list(members)} for project, (_, members) in PROJECTS.items()}


def _access(c: Any) -> None:
    c.JupyterHub.custom_scopes = roles.CUSTOM_SCOPES
    c.JupyterHub.load_roles = roles.roles(admins=[ADMIN])
    c.Spawner.server_token_scopes = roles.NOTEBOOK_SCOPES


def _scheduler(c: Any, local: Local, port: int, secrets: dict[str, str]) -> None:
    look_after_services_often()
    seed = ",".join(f"{project}={quota}" for project, (quota, _) in PROJECTS.items())
    c.JupyterHub.services = services(
        port=port,
        command=scheduler_command(state=local.state.root, simulate=local.simulate, seed_projects=seed),
        scheduler_token=secrets["scheduler_token"],
        spawner_token=secrets["spawner_token"],
    )


def _workspaces(c: Any, local: Local, scheduler_port: int, token: str) -> None:
    c.JupyterHub.spawner_class = HotdeskSpawner
    c.QueuedSpawner.scheduler_url = f"http://127.0.0.1:{scheduler_port}"
    c.QueuedSpawner.scheduler_token = token
    c.LocalWorkspaces.state_dir = str(local.state.root)
    c.Spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
    c.Spawner.default_url = "/lab"
    c.Spawner.poll_interval = POLL_INTERVAL_S
    c.Spawner.args = list(QUIET_LAB)
    c.Spawner.environment = {"JUPYTER_CONFIG_PATH": os.pathsep.join(filter(None, (str(LAB), os.environ.get("JUPYTER_CONFIG_PATH"))))}
    if os.geteuid() == 0:
        c.Spawner.args += ["--allow-root"]  # whoever starts Hotdesk as root wants its workspaces too
    c.Spawner.start_timeout = 120  # starting alone; the queue comes before it and has no end
    c.Spawner.http_timeout = 120


def _pages(c: Any, local: Local) -> None:
    c.JupyterHub.template_paths = [str(PAGES)]
    c.JupyterHub.template_vars = {"hotdesk_simulated": local.simulate, "hotdesk_why_stopped": why_stopped}
    c.JupyterHub.extra_handlers = handlers.HANDLERS


def own_files(state: State) -> list[Path]:
    """The operator's configuration, in the order it is run: anything JupyterHub knows may be set again there."""
    found = sorted(state.extra_configuration.glob("*.py"))
    one_more = os.environ.get("HOTDESK_HUB_CONFIG")
    return [*found, Path(one_more).expanduser()] if one_more else found


def run_own_file(path: Path, c: Any) -> None:
    """Run one file as JupyterHub runs its own, with `c`. Raises Invalid naming the file."""
    try:
        text = path.read_text()
    except OSError as error:
        raise _failed(str(path), error) from error
    run_own_text(text, c, name=str(path))


def run_own_text(text: str, c: Any, *, name: str) -> None:
    """Raises Invalid with the name."""
    try:
        exec(compile(text, name, "exec"), {"c": c, "get_config": lambda: c, "__file__": name})  # noqa: S102  it is the operator's configuration
    except Exception as error:
        raise _failed(name, error) from error


def _failed(name: str, error: Exception) -> Invalid:
    return Invalid(
        f"The configuration {name} failed: {type(error).__name__}: {error}.", field=name, next_step="Correct it, or take it away."
    )
