"""Which process is meant: a pid alone may be somebody else's by now, so a process is its pid, start time and boot.

Signals go through a pidfd that was checked after it was opened, so they can never reach a stranger that inherited the number.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

PROC = Path("/proc")
TOKEN_VARIABLE = "HOTDESK_RUN_TOKEN"  # noqa: S105  # the name of a variable; its value only marks the processes of one run


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process of one boot. `start_ticks` is field 22 of /proc/PID/stat: clock ticks since that boot."""

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/PID/stat that are used here."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start_ticks: int


@lru_cache(maxsize=1)
def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def stat(pid: int) -> Stat | None:
    """None if there is no such process (any more)."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return Stat(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def every() -> Iterator[Stat]:
    """All processes that are there now, zombies included."""
    for entry in os.listdir(PROC):
        if entry.isdigit() and (found := stat(int(entry))):
            yield found


def identify(pid: int) -> ProcessId | None:
    """The process that has this pid now; None if there is none or it is dead already (a zombie)."""
    found = stat(pid)
    return None if found is None or found.state in "ZX" else ProcessId(pid, found.start_ticks, boot_id())


def is_alive(process: ProcessId) -> bool:
    return identify(process.pid) == process


def open_pidfd(process: ProcessId) -> int | None:
    """A pidfd of exactly this process; None if it is gone. The caller closes it."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    if is_alive(process):
        return descriptor
    os.close(descriptor)
    return None


def send(process: ProcessId, number: int) -> bool:
    """Signal exactly this process; False if it is gone."""
    try:
        descriptor = open_pidfd(process)
    except OSError:
        return _send_by_number(process, number)
    if descriptor is None:
        return False
    try:
        signal.pidfd_send_signal(descriptor, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)


def _send_by_number(process: ProcessId, number: int) -> bool:
    """Where there are no pidfds (old kernels, out of descriptors): look, then signal at once."""
    if not is_alive(process):
        return False
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def _has(pid: int, file: str, word: bytes) -> bool:
    try:
        return word in (PROC / str(pid) / file).read_bytes().split(b"\0")
    except OSError:
        return False


def with_token(token: str) -> list[ProcessId]:
    """Processes of one run, wherever they went: those that carry its token in their environment."""
    word = f"{TOKEN_VARIABLE}={token}".encode()
    return [ProcessId(one.pid, one.start_ticks, boot_id()) for one in every() if one.state not in "ZX" and _has(one.pid, "environ", word)]


def supervisors() -> dict[str, ProcessId]:
    """Every shim there is on this machine, by its run's token (its last argument)."""
    found = {}
    for one in every():
        if one.state in "ZX":
            continue
        try:
            words = (PROC / str(one.pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        except OSError:
            continue
        if len(words) >= 3 and words[-3].endswith(b"/shim.py"):
            found[words[-1].decode(errors="replace")] = ProcessId(one.pid, one.start_ticks, boot_id())
    return found


def in_session_of(leader: ProcessId) -> list[ProcessId]:
    """What is left of the session `leader` led, also when the leader itself is gone."""
    now = stat(leader.pid)
    if leader.boot_id != boot_id() or (now is not None and now.start_ticks != leader.start_ticks):
        return []  # another boot, or the number was given away: then that session had ended
    return [
        ProcessId(one.pid, one.start_ticks, boot_id())
        for one in every()
        if one.session == leader.pid and one.state not in "ZX" and one.start_ticks >= leader.start_ticks
    ]


def remains(token: str, leader: ProcessId | None) -> list[ProcessId]:
    """Everything still alive of a run, found by its token and by its session."""
    return sorted({*with_token(token), *(in_session_of(leader) if leader else ())}, key=lambda one: one.pid)
