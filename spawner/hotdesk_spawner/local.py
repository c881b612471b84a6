"""Workspaces as processes of this machine, for people without system accounts: own home below the state directory, own session."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

from hotdesk_api.errors import Unavailable
from jupyterhub.spawner import SimpleLocalProcessSpawner
from traitlets import Unicode, default

from hotdesk_spawner import processes
from hotdesk_spawner.options import workspace_name
from hotdesk_spawner.refusal import refusal
from hotdesk_spawner.spawner import QueuedSpawner

STOP_GRACE_S = 10
LOOK_EVERY_S = 0.03
LONGEST_LOG_BYTES = 10 * 1024 * 1024
COMPLETES = 'declare -F _hotdesk_complete >/dev/null || eval "$(runai completion bash 2>/dev/null)"'  # at a bash's first prompt


class LocalWorkspaces(SimpleLocalProcessSpawner):  # type: ignore[misc]  # JupyterHub ships no types
    """Starts `jupyterhub-singleuser` in a session of its own, so that it outlives the hub, and writes down who the process is."""

    popen_kwargs: dict[str, Any]

    state_dir = Unicode(help="Hotdesk's state directory: homes/USER and hub/workspaces/ lie there.").tag(config=True)

    @property
    def _folder(self) -> Path:
        return Path(self.state_dir) / "hub" / "workspaces"

    @property
    def _identity_file(self) -> Path:
        return self._folder / f"{workspace_name(self.user.name, self.name)}.json"

    @default("home_dir")
    def _home_below_the_state_dir(self) -> str:
        return str(Path(self.state_dir) / "homes" / self.user.escaped_name)

    def make_preexec_fn(self, name: str) -> None:
        return None  # nothing to do between fork and exec, so that Python may start the process the fast way

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        env = super().user_env(env)
        env["PATH"] = f"{Path(sys.executable).parent}:{env.get('PATH') or os.defpath}"  # `hotdesk` and `runai` in its terminals
        env.setdefault("PROMPT_COMMAND", COMPLETES)
        return env

    def get_args(self) -> list[str]:
        """As root, the server has to be told that this is meant. A login shell would forget the PATH with `runai` and `nvidia-smi`."""
        shell = self.get_env().get("SHELL") or shutil.which("bash") or "sh"
        as_root = [] if os.geteuid() else ["--allow-root"]
        return [*as_root, f"--ServerApp.terminado_settings=shell_command={shlex.quote(shell)}", *super().get_args()]

    def __init__(self, *arguments: Any, **traits: Any) -> None:
        super().__init__(*arguments, **traits)
        self._popen_config = dict(self.popen_kwargs)

    def _log_file(self) -> BinaryIO:
        """What the server says; begun anew when it has grown long."""
        path = self._identity_file.with_suffix(".log")
        if path.exists() and path.stat().st_size > LONGEST_LOG_BYTES:
            path.unlink()
        return open(path, "ab")

    async def start(self) -> Any:
        """Raises OSError if the home cannot be made. One left over by a hub that was killed while starting it is stopped first."""
        home = Path(self.get_env()["HOME"])
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        left_over = processes.load(self._identity_file)
        if processes.is_alive(left_over):
            await asyncio.to_thread(processes.stop, left_over, grace_s=STOP_GRACE_S, with_children=True)
        with self._log_file() as log:
            self.popen_kwargs = self._popen_config | {
                "cwd": str(home),
                "stdin": subprocess.DEVNULL,
                "stdout": log,
                "stderr": log,
                "umask": 0o077,
            }
            address = await super().start()
        identity = processes.identify(self.pid)
        if identity:
            processes.save(self._identity_file, identity)
        await self._until_it_listens(*address)
        return address

    async def _until_it_listens(self, ip: str, port: int) -> None:
        """Until one can connect, so that the hub's own growing pauses are not waited out. Raises a refusal if the server ends before."""
        while self.proc and self.proc.poll() is None:
            try:
                _, writer = await asyncio.open_connection(ip, port)
            except OSError:
                await asyncio.sleep(LOOK_EVERY_S)
            else:
                writer.close()
                return
        raise refusal(self._ended_early())

    def _ended_early(self) -> Unavailable:
        path = self._identity_file.with_suffix(".log")
        lines = path.read_text(errors="replace").strip().splitlines()[-1:] or ["(nothing)"]
        code = self.proc.returncode if self.proc else None
        return Unavailable(
            f"The workspace's server ended while starting (exit code {code}); the last it said: {lines[0]}",
            next_step=f"An admin finds its whole log in {path}.",
        )

    async def poll(self) -> int | None:
        if self.proc is None and self.pid and not processes.is_alive(processes.load(self._identity_file)):
            self.clear_state()  # started by an earlier hub; a pid alone could be somebody else's by now
            return 0
        status: int | None = await super().poll()
        return status

    async def stop(self, now: bool = False) -> None:
        identity = processes.load(self._identity_file)
        await super().stop(now)
        if not processes.is_alive(identity):
            self._identity_file.unlink(missing_ok=True)


class HotdeskSpawner(QueuedSpawner, LocalWorkspaces):
    """Local workspaces that wait in the scheduler's queue. The scheduler says which home is whose, so that workspaces and jobs share it."""

    own_variables = frozenset()
