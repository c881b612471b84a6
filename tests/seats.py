"""A person's seat for tests: types `runai …` lines as real processes against a real scheduler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scheduler_fixture

RUNAI = [sys.executable, "-m", "hotdesk.cli"]
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Shown:
    """What a process printed, and how it ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Desk:
    """A person's seat: types `runai …` lines as real processes. `home` holds the settings."""

    scheduler: scheduler_fixture.Scheduler
    home: Path
    token: str

    def environment(self, **more: str) -> dict[str, str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("HOTDESK_", "JUPYTERHUB_", "RUNAI_"))}
        ours = {
            "HOTDESK_API_URL": self.scheduler.url,
            "HOTDESK_TOKEN": self.token,
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
        }
        return {name: value for name, value in (plain | ours | more).items() if value}

    def run(self, *words: str, stdin: str | None = None, environment: Mapping[str, str] | None = None) -> Shown:
        """`runai WORDS` in a pipe."""
        done = subprocess.run(
            [*RUNAI, *words],
            env=self.environment(**(environment or {})),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S * 2,
        )
        return Shown(done.returncode, done.stdout, done.stderr)

    def ok(self, *words: str) -> str:
        shown = self.run(*words)
        assert shown.code == 0, f"runai {' '.join(words)} exited {shown.code}: {shown.err}{shown.out}"
        return shown.out

    def data(self, *words: str) -> Any:
        return json.loads(self.ok(*words, "-o", "json"))

    def until(self, name: str, *statuses: str) -> Any:
        """The job once it has one of these statuses."""
        found: Any = None

        def there() -> bool:
            nonlocal found
            found = self.data("describe", "job", name)
            return found["status"] in statuses

        wait_until(there, f"{name} {' or '.join(statuses)}")
        return found


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.05)
