"""One scheduler on a state directory: the second is refused with the first one's pid; one orphaned by a dead hub gives way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hotdesk_api.errors import Conflict
from hotdesk_scheduler.engines.local.lock import StateLock

HOLDER = """
    import signal, sys, time
    from pathlib import Path
    from hotdesk_scheduler.engines.local.lock import StateLock

    if sys.argv[3] == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    StateLock(Path(sys.argv[1]), parent_pid=int(sys.argv[2]) or None).acquire()
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holders() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "scheduler" / "lock"


def _hold(path: Path, holders: list[subprocess.Popen[bytes]], *, parent: int = 0, manner: str = "") -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", textwrap.dedent(HOLDER), str(path), str(parent), manner]
    holder = subprocess.Popen(argv, stdout=subprocess.PIPE)
    holders.append(holder)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    return holder


def _dead_hub() -> int:
    """The pid of a hub that is no more."""
    hub = subprocess.Popen(["true"])
    hub.wait()
    return hub.pid


def test_a_second_scheduler_is_refused_with_the_first_ones_pid(path: Path, holders: list[subprocess.Popen[bytes]]) -> None:
    holder = _hold(path, holders)
    with pytest.raises(Conflict, match=f"pid {holder.pid}"):
        StateLock(path).acquire()
    assert holder.poll() is None


def test_one_whose_hub_lives_is_refused_too(path: Path, holders: list[subprocess.Popen[bytes]]) -> None:
    _hold(path, holders, parent=os.getpid())
    with pytest.raises(Conflict):
        StateLock(path, parent_pid=os.getpid()).acquire()


def test_a_scheduler_orphaned_by_its_hub_gives_way(path: Path, holders: list[subprocess.Popen[bytes]]) -> None:
    hub = subprocess.Popen(["sleep", "600"])
    holders.append(hub)
    orphan = _hold(path, holders, parent=hub.pid)
    hub.kill()
    hub.wait()
    lock = StateLock(path, parent_pid=os.getpid())
    lock.acquire()
    assert orphan.wait(10) == -signal.SIGTERM
    lock.release()


def test_an_orphan_that_does_not_listen_is_killed(path: Path, holders: list[subprocess.Popen[bytes]]) -> None:
    orphan = _hold(path, holders, parent=_dead_hub(), manner="stubborn")
    lock = StateLock(path, leave_s=0.2)
    lock.acquire()
    assert orphan.wait(10) == -signal.SIGKILL
    lock.release()


def test_a_hub_pid_that_somebody_else_has_by_now_does_not_protect_an_orphan(path: Path, holders: list[subprocess.Popen[bytes]]) -> None:
    hub = subprocess.Popen(["sleep", "600"])
    holders.append(hub)
    orphan = _hold(path, holders, parent=hub.pid)
    record = json.loads(path.read_text())
    record["parent"]["start_ticks"] -= 1
    path.write_text(json.dumps(record))
    lock = StateLock(path)
    lock.acquire()
    assert orphan.wait(10) == -signal.SIGTERM
    assert hub.poll() is None
    lock.release()


def test_the_lock_of_a_killed_scheduler_is_free(path: Path, holders: list[subprocess.Popen[bytes]]) -> None:
    holder = _hold(path, holders)
    holder.kill()
    holder.wait()
    lock = StateLock(path)
    waited: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", waited.append)
        lock.acquire()
    assert waited == []
    lock.release()


def test_the_lock_can_be_taken_again_after_it_was_let_go(path: Path) -> None:
    for _ in range(2):
        lock = StateLock(path)
        lock.acquire()
        lock.release()
