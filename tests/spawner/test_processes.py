"""A process is a pid and its start time; only both together are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hotdesk_spawner import processes
from hotdesk_spawner.processes import Identity


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_a_process_is_found_again_from_its_file(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    identity = processes.identify(sleeper.pid)
    assert identity
    processes.save(tmp_path / "deep" / "it.json", identity)
    assert processes.load(tmp_path / "deep" / "it.json") == identity
    assert processes.is_alive(identity)
    assert processes.load(tmp_path / "nothing.json") is None


def test_a_pid_with_another_start_time_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    stranger = Identity(sleeper.pid, started_at=1.0)
    assert not processes.is_alive(stranger)
    assert not processes.stop(stranger, grace_s=0)
    assert sleeper.poll() is None


def test_what_only_left_its_exit_status_is_dead(sleeper: subprocess.Popen[bytes]) -> None:
    identity = processes.identify(sleeper.pid)
    os.kill(sleeper.pid, signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.is_alive(identity)


@pytest.mark.parametrize("with_children", [True, False])
def test_what_does_not_listen_is_killed_and_its_children_only_when_asked(with_children: bool) -> None:
    code = (
        "import signal, subprocess, sys, time; signal.signal(15, signal.SIG_IGN);"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True);"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert parent.stdout
    child = processes.identify(int(parent.stdout.readline()))
    try:
        identity = processes.identify(parent.pid)
        assert processes.stop(identity, grace_s=0.2, with_children=with_children)
        assert not processes.is_alive(identity)
        assert processes.is_alive(child) is not with_children
    finally:
        processes.stop(child, grace_s=0)
        parent.wait(timeout=10)
        parent.stdout.close()
