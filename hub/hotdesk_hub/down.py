"""`hotdesk-hub down`: end everything of one state directory, whatever is left of it. By pid and start time, never by name."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hotdesk_api.errors import Unavailable
from hotdesk_spawner import processes

from hotdesk_hub.greeting import Say
from hotdesk_hub.state import State
from hotdesk_hub.up import STOP_TIMEOUT_S

WORKSPACE_GRACE_S = 10.0


def down(state: State, say: Say) -> int:
    """Exit code. Said twice it does no more than said once."""
    if not state.hub.is_dir():
        say(f"Nothing of Hotdesk runs on {state.root}.")
        return 0
    ended = []
    if _stop(state.hub_process, grace_s=STOP_TIMEOUT_S):  # first, so that nobody restarts what is ended next
        ended.append("hub, proxy and scheduler")
    _stop(state.front_process, grace_s=5)
    if _stop(state.proxy_process, grace_s=5):
        ended.append("a left-over proxy")
    workspaces = stop_workspaces(state)
    if workspaces:
        ended.append(f"{workspaces} workspace{'s' if workspaces != 1 else ''}")
    said = _stop_scheduler(state)
    say(f"Stopped on {state.root}: {', '.join(ended)}." if ended else f"No hub, proxy or workspace runs on {state.root}.")
    if said:
        say(said)
    return 0


def _stop(path: Path, *, grace_s: float, with_children: bool = False) -> bool:
    stopped = processes.stop(processes.load(path), grace_s=grace_s, with_children=with_children)
    path.unlink(missing_ok=True)
    return stopped


def stop_workspaces(state: State) -> int:
    """All that were written down, at the same time, with their kernels and terminals. How many there were."""
    paths = sorted(state.workspaces.glob("*.json"))
    if not paths:
        return 0
    with ThreadPoolExecutor(max_workers=len(paths)) as pool:
        return sum(pool.map(lambda path: _stop(path, grace_s=WORKSPACE_GRACE_S, with_children=True), paths))


def _stop_scheduler(state: State) -> str:
    """Jobs and scheduler, by the scheduler's own command. Raises Unavailable with what it said."""
    ended = subprocess.run(
        [sys.executable, "-m", "hotdesk_scheduler.cli", "stop", "--state", str(state.root)], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise Unavailable(
            f"The scheduler of {state.root} could not be stopped: {(ended.stderr or ended.stdout).strip()}",
            next_step=f"Try `hotdesk-scheduler stop --state {state.root}`.",
        )
    return ended.stdout.strip()
