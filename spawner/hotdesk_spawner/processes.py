"""Who a process is: pid and start time together, so that a pid which the system gave to somebody else is never taken for ours."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

CLOCK_TOLERANCE_S = 2.0  # psutil derives start times from the boot time, which moves when the clock is set


@dataclass(frozen=True, slots=True)
class Identity:
    """One process on this machine. `started_at` is in seconds since the epoch."""

    pid: int
    started_at: float


def identify(pid: int) -> Identity | None:
    """Identity of a living process; None if there is none, or only its exit status is left."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return Identity(pid, process.create_time())
    except psutil.Error:
        return None


def is_alive(identity: Identity | None) -> bool:
    now = identify(identity.pid) if identity else None
    return now is not None and identity is not None and abs(now.started_at - identity.started_at) < CLOCK_TOLERANCE_S


def save(path: Path, identity: Identity) -> None:
    """Whole or not at all, readable by the owner only."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(asdict(identity)))
    part.chmod(0o600)
    part.replace(path)


def load(path: Path) -> Identity | None:
    """None if the file is missing or is not one of ours."""
    try:
        found = json.loads(path.read_text())
        return Identity(int(found["pid"]), float(found["started_at"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _family(identity: Identity) -> list[psutil.Process]:
    """The process and everything it started, as far as the system still knows."""
    try:
        process = psutil.Process(identity.pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def stop(identity: Identity | None, *, grace_s: float, with_children: bool = False) -> bool:
    """SIGTERM, wait at most `grace_s`, then SIGKILL; `with_children` also ends all it had started. False if there was nothing to stop."""
    if identity is None or not is_alive(identity):
        return False
    family = _family(identity)[: None if with_children else 1]
    try:
        os.kill(identity.pid, signal.SIGTERM)
    except ProcessLookupError:
        return False
    deadline = time.monotonic() + grace_s
    while is_alive(identity) and time.monotonic() < deadline:
        time.sleep(0.05)  # not our child, so there is no event to wait for
    for process in family:
        try:
            process.kill()  # psutil compares the start time before it sends anything
        except psutil.Error:
            pass  # gone already, which is what was asked
    psutil.wait_procs(family, timeout=5)
    return True
