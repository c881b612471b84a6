"""A real Hotdesk for tests and benchmarks: `hotdesk-hub up` as its own process on a free port, ended with everything it started."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hotdesk_hub.state import some_free_port

BIN = Path(sys.executable).parent
START_TIMEOUT_S = 120.0


def clean_environment() -> dict[str, str]:
    """The caller's environment without what would change how Hotdesk behaves."""
    ours = ("HOTDESK_", "JUPYTERHUB_", "RUNAI_", "NO_COLOR", "FORCE_COLOR")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"PATH": f"{BIN}:{os.environ['PATH']}"}


@dataclass
class RunningHotdesk:
    """One `hotdesk-hub up`. `printed` is what it has said in the terminal so far."""

    url: str
    state: Path
    port: int
    process: subprocess.Popen[str]
    printed: list[str] = field(default_factory=list)
    passwords: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "".join(self.printed)

    def password(self, user: str) -> str:
        return self.passwords["admin" if user == "admin" else "researchers"]

    def press_ctrl_c(self, timeout_s: float = 60) -> int:
        """Ctrl-C in its terminal: hub, proxy and scheduler end; jobs and workspaces go on."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(timeout=timeout_s)

    def kill_9(self) -> None:
        """The process of `hotdesk-hub up` dies without a word."""
        self.process.kill()
        self.process.wait(timeout=30)


def _read(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)


def _wait_until_ready(running: RunningHotdesk) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while "Hotdesk is ready at" not in running.text:
        if running.process.poll() is not None or time.monotonic() > deadline:
            running.process.kill()
            log = running.state / "hub" / "hub.log"
            tail = log.read_text(errors="replace")[-4000:] if log.exists() else "(no hub.log)"
            raise AssertionError(f"hotdesk-hub up did not become ready:\n{running.text}\n--- hub.log\n{tail}")
        time.sleep(0.05)


def stored_passwords(state: Path) -> dict[str, str]:
    """What `hotdesk-hub passwords` tells: {"admin": …, "researchers": …}."""
    shown = subprocess.run(
        [BIN / "hotdesk-hub", "passwords", "--state", str(state)],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=60,
        check=True,
    ).stdout
    found = dict(re.findall(r"^\s*(admin|researchers)\b.*?(\S+)\s*$", shown, flags=re.MULTILINE))
    assert set(found) == {"admin", "researchers"}, shown
    return found


def start(
    state: Path, *, port: int | None = None, simulate: str = "2x8xV100-SXM2-32GB", environment: dict[str, str] | None = None
) -> RunningHotdesk:
    """`hotdesk-hub up`, returned when it has said that it is ready."""
    port = port or some_free_port()
    process = subprocess.Popen(
        [BIN / "hotdesk-hub", "up", "--port", str(port), "--state", str(state), "--simulate", simulate],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=clean_environment() | (environment or {}),
        start_new_session=True,
    )
    running = RunningHotdesk(url=f"http://127.0.0.1:{port}", state=state, port=port, process=process)
    threading.Thread(target=_read, args=(process, running.printed), daemon=True).start()
    _wait_until_ready(running)
    running.passwords = stored_passwords(state)
    return running


def down(state: Path) -> str:
    """`hotdesk-hub down`: ends everything of this state directory, whatever is left of it."""
    ended = subprocess.run(
        [BIN / "hotdesk-hub", "down", "--state", str(state)],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=180,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@contextmanager
def hotdesk(state: Path, *, simulate: str = "2x8xV100-SXM2-32GB") -> Iterator[RunningHotdesk]:
    """Up, and down again at the end whatever happened."""
    running = start(state, simulate=simulate)
    try:
        yield running
    finally:
        down(state)
        if running.process.poll() is None:
            running.process.wait(timeout=60)
