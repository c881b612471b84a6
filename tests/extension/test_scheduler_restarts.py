"""Whoever waits or watches survives a scheduler that is killed and comes back."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest
import scheduler_fixture
from seats import RUNAI, Desk

pytestmark = pytest.mark.slow


def _read_until(process: subprocess.Popen[bytes], sign: bytes) -> None:
    assert process.stdout is not None
    seen = b""
    while sign not in seen:
        piece = os.read(process.stdout.fileno(), 65536)
        assert piece, f"ended before it said {sign!r}: {seen!r}"
        seen += piece


def _kill(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        process.kill()


def test_waiting_and_watching_go_on_over_a_restart_of_the_scheduler(tmp_path: Path) -> None:
    with scheduler_fixture.scheduler(tmp_path) as running:
        desk = Desk(running, tmp_path, running.alice)
        done = tmp_path / "done"
        program = f"while [ ! -e {done} ]; do sleep 0.1; done; echo finished"
        words = ["submit", "patient", "-i", "python", "--wait", "--timeout", "5m", "--command", "--", "sh", "-c", program]
        waiting = subprocess.Popen([*RUNAI, *words], env=desk.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        watching = subprocess.Popen([*RUNAI, "list", "-w"], env=desk.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        watchdog = threading.Timer(120, _kill, (waiting, watching))
        watchdog.start()
        try:
            _read_until(waiting, b"patient")
            desk.until("patient", "Running")
            _read_until(watching, b"Running")
            running.kill()
            _read_until(watching, b"Not up to date")
            running.start()
            desk.until("patient", "Running")
            done.touch()
            _, err = waiting.communicate(timeout=90)
            assert waiting.returncode == 0, err
            assert b"patient is Succeeded" in err
            _read_until(watching, b"Succeeded")
        finally:
            watchdog.cancel()
            for process in (waiting, watching):
                process.kill()
                process.communicate()
