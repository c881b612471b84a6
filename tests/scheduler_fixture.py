"""The real `hotdesk-scheduler serve` on the local engine, for any test: `with scheduler(tmp_path) as running: running.client()`.

A free loopback port, its own state directory, simulated GPUs, callers from a file of tokens. At the end the scheduler and all
its pods are gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hotdesk_api.client import Client

ADMIN, ALICE, BOB, HOST, READER = "admin-token", "alice-token", "bob-token", "host-token", "reader-token"
CALLERS = {
    ADMIN: {"name": "root", "groups": [], "scopes": ["custom:hotdesk:jobs:admin"]},
    ALICE: {"name": "alice", "groups": ["team-a"], "scopes": ["custom:hotdesk:jobs:submit"]},
    BOB: {"name": "bob", "groups": ["team-b"], "scopes": ["custom:hotdesk:jobs:submit"]},
    READER: {"name": "rita", "groups": ["team-a"], "scopes": ["custom:hotdesk:jobs:read"]},
    HOST: {"name": "hotdesk-spawner", "kind": "service", "groups": [], "scopes": ["custom:hotdesk:workspaces:host"]},
}
START_S = 90.0


@dataclass
class Scheduler:
    """A running scheduler. `start()` and `kill()` are for tests of restarts; the port stays the same."""

    state: Path
    simulate: str
    seed_projects: str
    more: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    admin: str = ADMIN
    alice: str = ALICE
    bob: str = BOB
    host: str = HOST
    reader: str = READER
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.state.parent / f"{self.state.name}.log"

    def client(self, token: str = ALICE) -> Client:
        return Client(self.url, token)

    def command(self) -> list[str]:
        tokens = self.state.parent / f"{self.state.name}-tokens.json"
        if not tokens.exists():
            tokens.touch(mode=0o600)
            tokens.write_text(json.dumps(CALLERS))
        given = ["--state", str(self.state), "--port", str(self.port), "--tokens", str(tokens), "--simulate", self.simulate]
        seeds = ["--seed-projects", self.seed_projects] if self.seed_projects else []
        return [sys.executable, "-m", "hotdesk_scheduler.cli", "serve", *given, *seeds, *self.more]

    def start(self) -> None:
        """Returns when it answers."""
        (self.state / "scheduler" / "port").unlink(missing_ok=True)
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("HOTDESK_", "JUPYTERHUB_"))}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**plain, **self.environment}, start_new_session=True
            )
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self.process is not None
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError, ValueError, urllib.error.URLError):
                self.port = int((self.state / "scheduler" / "port").read_text())
                with urllib.request.urlopen(f"{self.url}/healthz", timeout=5):
                    return
            time.sleep(0.02)
        raise AssertionError(f"the scheduler did not come up:\n{self.log.read_text()[-4000:]}")

    def kill(self) -> None:
        """kill -9 of the scheduler alone; its pods live on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """SIGTERM; its pods live on."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()

    def end_everything(self) -> None:
        self.end()
        subprocess.run(
            [sys.executable, "-m", "hotdesk_scheduler.cli", "stop", "--state", str(self.state)],
            check=False,
            capture_output=True,
            timeout=120,
        )


@contextlib.contextmanager
def scheduler(
    tmp_path: Path,
    *,
    simulate: str = "2x8xV100-SXM2-32GB",
    seed_projects: str = "team-a=4,team-b=2,team-c=2,team-d=8",
    more: Sequence[str] = ("--grace-s", "2"),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Scheduler]:
    """A scheduler that answers; at the end it and all its pods are gone."""
    running = Scheduler(tmp_path / "state", simulate, seed_projects, more=more, environment=environment or {})
    try:
        running.start()
        yield running
    finally:
        running.end_everything()
