"""What `hotdesk-hub up` says when all is up: the address, the passwords once, projects, and what is simulated."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from hotdesk_api import calls
from hotdesk_api.client import Client
from hotdesk_api.errors import HotdeskError
from hotdesk_api.models import Cluster

from hotdesk_hub.config import ADMIN, PROJECTS, RESEARCHERS, own_files
from hotdesk_hub.state import State, ports_of, secrets_of

Say = Callable[[str], None]


def greet(url: str, state: State, say: Say) -> None:
    say(f"\nHotdesk is ready at {url}\n")
    if not state.passwords_shown.exists():
        say(f"Passwords, generated now and shown only this once (again with `{make('passwords', state)}`):")
        say(passwords_in_words(secrets_of(state)))
        state.passwords_shown.touch(mode=0o600)
    elif not own_files(state):
        say(f"Log in as {ADMIN} or as {', '.join(RESEARCHERS)}; `{make('passwords', state)}` shows the passwords.")
    say("Projects: " + ", ".join(f"{name} {quota} GPUs ({', '.join(who)})" for name, (quota, who) in PROJECTS.items()))
    say(_hardware_in_words(state))
    say(f"\nCtrl-C stops the hub and leaves jobs and workspaces running; `{make('down', state)}` stops everything.")


def make(target: str, state: State) -> str:
    """The command for this state directory, as one types it in Hotdesk's folder."""
    usual = Path.home() / ".local" / "state" / "hotdesk"
    return f"make {target}" + ("" if state.root == usual else f" {shlex.quote(f'STATE={state.root}')}")


def passwords_in_words(secrets: dict[str, str]) -> str:
    who = {ADMIN: secrets["admin_password"], f"researchers ({', '.join(RESEARCHERS)})": secrets["researcher_password"]}
    width = max(map(len, who))
    return "\n".join(f"  {name:<{width}}  {password}" for name, password in who.items())


def _hardware_in_words(state: State) -> str:
    try:
        client = Client(f"http://127.0.0.1:{ports_of(state)['scheduler']}", secrets_of(state)["spawner_token"])
        try:
            cluster: Cluster = client.call(calls.cluster())
            models = sorted({node.gpu_model for node in client.call(calls.nodes()).items if node.gpus})
        finally:
            client.close()
    except HotdeskError as error:
        return f"The scheduler does not tell its hardware yet: {error}"
    gpus = f"{cluster.gpus} GPUs ({', '.join(models)}) on {cluster.nodes} node{'s' if cluster.nodes != 1 else ''}"
    if cluster.simulated:
        return f"SIMULATED: {gpus}. Workspaces and jobs really run, on this machine's CPU; no GPU is used."
    return f"Hardware: {gpus}." if cluster.gpus else "Hardware: no GPU. `SIMULATE=2x8xV100-SXM2-32GB` simulates some."
