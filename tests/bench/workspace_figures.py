"""How long a workspace takes to be ready, beside JupyterHub's own SimpleLocalProcessSpawner: two real hubs, taking turns."""

from __future__ import annotations

import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hotdesk_up
import httpx
import workspaces
from figure import Figure
from hotdesk_hub.state import some_free_port

ROOT = Path(__file__).parents[2]
ROUNDS = 7
USER = "alice"
PLAIN_HUB = """
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_port = {hub_port}
c.ConfigurableHTTPProxy.command = ["{proxy}"]
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api_port}"
c.ConfigurableHTTPProxy.pid_file = "{folder}/proxy.pid"
c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = "{password}"
c.Authenticator.allowed_users = {{"alice"}}
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = "{folder}/homes/{{username}}"
c.Spawner.default_url = "/lab"
c.Spawner.args = ["--allow-root"]
c.JupyterHub.db_url = "sqlite:///{folder}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{folder}/cookie_secret"
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 0}}
"""


@contextmanager
def plain_hub(folder: Path) -> Iterator[tuple[str, str]]:
    """JupyterHub as it comes, on the same proxy and authenticator; (URL, password)."""
    port, password = some_free_port(), secrets.token_hex(8)
    proxy = ROOT / "hub" / "proxy" / "node_modules" / ".bin" / "configurable-http-proxy"
    config = folder / "jupyterhub_config.py"
    config.write_text(
        PLAIN_HUB.format(port=port, hub_port=some_free_port(), api_port=some_free_port(), proxy=proxy, folder=folder, password=password)
    )
    with (folder / "log").open("wb") as log:
        hub = subprocess.Popen(
            [sys.executable, "-m", "jupyterhub", "-f", str(config)],
            cwd=folder,
            env=hotdesk_up.clean_environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                if httpx.get(f"{url}/hub/health", trust_env=False).status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.1)
        yield url, password
    finally:
        os.killpg(hub.pid, signal.SIGTERM)
        hub.wait(timeout=60)


def seconds_to_ready(researcher: workspaces.Researcher, **options: object) -> float:
    """From the POST to the hub's own word that the server is ready; the workspace is closed again."""
    began = time.perf_counter()
    researcher.open_workspace(wait=False, **options)
    last = researcher.progress()[-1]
    took = time.perf_counter() - began
    assert last.get("ready"), last
    researcher.close_workspace()
    return took


def workspace_ready() -> Iterator[Figure]:
    """Both hubs are up all the time; each round opens one workspace on either, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        plain_folder, state = Path(folder) / "plain", Path(folder) / "state"
        plain_folder.mkdir()
        with plain_hub(plain_folder) as (url, password), hotdesk_up.hotdesk(state) as running:
            plain = workspaces.Researcher(url, USER, password)
            ours = workspaces.Researcher(running.url, USER, running.password(USER))
            pairs = [(seconds_to_ready(ours, project="team-a", gpu="0.5"), seconds_to_ready(plain)) for _ in range(ROUNDS + 1)]
    ours_s = statistics.median(a for a, _ in pairs[1:])
    plain_s = statistics.median(b for _, b in pairs[1:])
    yield Figure("workspace ready, Hotdesk, median", ours_s, "s")
    yield Figure("workspace ready, SimpleLocalProcessSpawner, median", plain_s, "s")
    yield Figure("workspace ready, ratio of the medians", ours_s / plain_s, "x", bar=1.15)
