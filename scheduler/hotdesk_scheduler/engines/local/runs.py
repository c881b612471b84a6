"""One attempt to run a pod: what it was given (devices, ports, token), which processes it is, and the files of its directory."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotdesk_scheduler.core.model import WHOLE_GPU
from hotdesk_scheduler.engines.base import Device
from hotdesk_scheduler.engines.local.processes import ProcessId

SHIM = Path(__file__).parent / "shim.py"
READY_WITHIN_S = 60.0
STOP_BYTES = 64


@dataclass(frozen=True, slots=True)
class Held:
    """One device of a run: `millis` 1000 = the whole of it; `group` as in the core's Share."""

    index: int
    millis: int
    group: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """What the engine remembers of a pod's current attempt. Written before its supervisor is started: the intent."""

    token: str
    node: str
    boot_id: str
    tier: str = ""
    devices: tuple[Held, ...] = ()
    memory_mib: int = 0
    ports: tuple[tuple[int, int], ...] = ()
    shim: ProcessId | None = None
    child: ProcessId | None = None
    error: str = ""

    def millis_of(self, index: int) -> int:
        return next((held.millis for held in self.devices if held.index == index), 0)


def limit_mib(run: Run, device: Device) -> int:
    """Memory of this device that the run may use: what was asked for by memory, else its part of the whole."""
    millis = run.millis_of(device.index)
    if run.memory_mib and millis < WHOLE_GPU:
        return min(run.memory_mib, device.memory_mib)
    return device.memory_mib * millis // WHOLE_GPU


@dataclass(frozen=True, slots=True)
class Processes:
    """`process.json`: who supervises, and (once it runs) who is supervised."""

    shim: ProcessId
    child: ProcessId | None
    started_at: float | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Exit:
    """`exit.json`: how it ended. `stopped`: it had been asked to stop before it ended."""

    exit_code: int
    ended_at: float
    started_at: float
    stopped: bool
    error: str = ""
    lost_log_bytes: int = 0


def directory(state_dir: Path, workload_id: str, index: int, attempt: int) -> Path:
    return state_dir / "pods" / workload_id / str(index) / str(attempt)


def prepare(run_dir: Path, plan: Mapping[str, Any]) -> None:
    """Write what the supervisor reads. Raises OSError when the disk is full: then nothing has been started."""
    make_private(run_dir)
    write_private(run_dir / "stop", b" " * STOP_BYTES)
    write_private(run_dir / "run.json", json.dumps(plan).encode(errors="surrogateescape"))


def bar(run_dir: Path) -> bool:
    """Forbid this run for good. False if a supervisor has it: then it runs, and is to be adopted."""
    with contextlib.suppress(OSError):  # on a full disk the claim alone must do
        make_private(run_dir)
        write_private(run_dir / "barred", b"")
    try:
        descriptor = os.open(run_dir / "claim", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return not (run_dir / "process.json").exists()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return not (run_dir / "process.json").exists()


def make_private(path: Path) -> None:
    """A directory for its owner alone, and every one above it that is missing."""
    if not path.is_dir():
        make_private(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def write_private(path: Path, data: bytes, mode: int = 0o600) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


class Taken(Exception):
    """Another supervisor has this run already: the one a scheduler started just before it was killed."""


class Vanished(Exception):
    """The supervisor was killed from outside before it answered: it ended without a word, and without one of trouble."""


def spawn(run_dir: Path, token: str) -> Processes | str:
    """Start the supervisor and wait for its word; a sentence if it could not start. Blocks for some tens of milliseconds.

    Raises Taken when the run is in another supervisor's hands; it is never started a second time. Raises Vanished.
    """
    argv: Sequence[str] = [sys.executable, "-I", "-S", "-E", str(SHIM), str(run_dir), token]
    write_private(run_dir / "shim.err", b"")
    with open(run_dir / "shim.err", "ab") as errors:
        starter = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, cwd="/", env={}, start_new_session=True
        )
    try:
        answer, _ = starter.communicate(timeout=READY_WITHIN_S)
    except subprocess.TimeoutExpired:
        return f"its supervisor did not answer within {READY_WITHIN_S:.0f} s"
    try:
        record = json.loads(answer)
    except ValueError:
        if (run_dir / "shim.err").stat().st_size == 0:
            raise Vanished from None
        return "its supervisor could not run (see shim.err in the pod's directory)"
    if record.get("taken"):
        raise Taken
    if not record.get("shim"):
        return str(record.get("error") or "its supervisor could not start")
    return _processes(record)


def _processes(record: Mapping[str, Any]) -> Processes:
    def process(name: str) -> ProcessId | None:
        one = record.get(name)
        return ProcessId(int(one["pid"]), int(one["start_ticks"]), str(record["boot_id"])) if one else None

    shim = process("shim")
    assert shim is not None
    return Processes(shim, process("child"), record.get("started_at"), record.get("error") or "")


def read_processes(run_dir: Path, token: str) -> Processes | None:
    record = _read(run_dir / "process.json", token)
    return _processes(record) if record else None


def read_exit(run_dir: Path, token: str) -> Exit | None:
    record = _read(run_dir / "exit.json", token)
    if record is None:
        return None
    return Exit(
        exit_code=int(record["exit_code"]),
        ended_at=float(record["ended_at"]),
        started_at=float(record["started_at"]),
        stopped=bool(record["stopped"]),
        error=str(record.get("error") or ""),
        lost_log_bytes=int(record.get("lost_log_bytes") or 0),
    )


def _read(path: Path, token: str) -> dict[str, Any] | None:
    """A record of this very run; a missing or foreign one is none."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("token") == token else None


def read_plan(run_dir: Path) -> dict[str, Any] | None:
    try:
        plan = json.loads((run_dir / "run.json").read_text())
    except (OSError, ValueError):
        return None
    return plan if isinstance(plan, dict) else None


def write_grace(run_dir: Path, grace_s: float) -> None:
    """Overwrite the `stop` file in place: it has its block already, so a full disk cannot keep a pod from being stopped."""
    try:
        descriptor = os.open(run_dir / "stop", os.O_WRONLY)
    except FileNotFoundError:
        return  # the supervisor then uses its own default
    try:
        os.pwrite(descriptor, f"{grace_s:.3f}".encode().ljust(STOP_BYTES), 0)
    finally:
        os.close(descriptor)
