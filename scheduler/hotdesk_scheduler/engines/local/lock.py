"""One scheduler on a state directory. The lock is an flock, so the kernel lets it go however its holder dies.

Beside it stands who holds it and for whom: a scheduler that a hub started names the hub as its parent. When that hub is gone the
scheduler is an orphan, and the one its successor starts asks it to leave (SIGTERM, then SIGKILL) and takes over. A scheduler
started by hand names no parent and is never an orphan.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from pathlib import Path

from hotdesk_api.errors import Conflict

from hotdesk_scheduler.engines.local.processes import ProcessId, boot_id, identify, is_alive, send

UNKNOWN_HOLDER_WAIT_S = 3.0


class StateLock:
    """`acquire()` blocks (seconds at most); the engine calls it in a thread."""

    def __init__(self, path: Path, *, parent_pid: int | None = None, leave_s: float = 10.0) -> None:
        self.path = path
        self.parent_pid = parent_pid
        self.leave_s = leave_s
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock, from an orphan if need be; `Conflict` names the pid of a rightful holder."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not self._try():
                self._ask_for_it()
            self._write()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _try(self) -> bool:
        assert self._file is not None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _try_for(self, seconds: float) -> bool:
        give_up = time.monotonic() + seconds
        while not self._try():
            if time.monotonic() > give_up:
                return False
            time.sleep(0.02)
        return True

    def _ask_for_it(self) -> None:
        holder, parent = self._holder()
        if holder is None:
            # just starting and not written down yet, or dead and its last fork not yet a program of its own: both pass at once
            if self._try_for(UNKNOWN_HOLDER_WAIT_S):
                return
            holder, parent = self._holder()
        if holder is None or parent is None or is_alive(parent):
            raise self._refusal(holder)
        for number, patience_s in ((signal.SIGTERM, self.leave_s), (signal.SIGKILL, 5.0)):
            send(holder, number)
            if self._try_for(patience_s):
                return
        raise self._refusal(holder)

    def _refusal(self, holder: ProcessId | None) -> Conflict:
        who = f"(pid {holder.pid}) " if holder else ""
        return Conflict(
            f"Another scheduler {who}already works on the state directory {self.path.parent.parent}.",
            field="state_dir",
            value=str(self.path.parent.parent),
            next_step="Stop that one first (`make down`, or end its process), or give this one another state directory.",
        )

    def _holder(self) -> tuple[ProcessId | None, ProcessId | None]:
        """Who holds the lock, and the parent it works for; a record of the dead counts as none."""
        try:
            record = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return None, None
        holder = _process(record.get("holder"))
        if holder is None or not is_alive(holder):
            return None, None
        return holder, _process(record.get("parent"))

    def _write(self) -> None:
        assert self._file is not None
        parent = None
        if self.parent_pid:
            # a parent that died before we got here makes us an orphan from the start: its pid with no start time is nobody
            parent = identify(self.parent_pid) or ProcessId(self.parent_pid, -1, boot_id())
        record = {"holder": _plain(identify(os.getpid())), "parent": _plain(parent)}
        text = json.dumps(record).encode().ljust(os.fstat(self._file).st_size)  # in place: a full disk cannot keep a scheduler out
        os.pwrite(self._file, text, 0)


def _plain(process: ProcessId | None) -> dict[str, object] | None:
    return None if process is None else {"pid": process.pid, "start_ticks": process.start_ticks, "boot_id": process.boot_id}


def _process(record: object) -> ProcessId | None:
    try:
        return ProcessId(int(record["pid"]), int(record["start_ticks"]), str(record["boot_id"]))  # type: ignore[index]  # any JSON; wrong shapes are caught
    except (TypeError, KeyError, ValueError):
        return None
