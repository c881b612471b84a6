"""`simulate --trace`: every decision with its reason, the same bytes in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRACE = Path(__file__).with_name("trace")


@pytest.mark.parametrize("hash_seed", ["0", "1", "4711"])
def test_the_trace_of_a_busy_day_is_the_golden_one_byte_for_byte_in_every_process(hash_seed: str) -> None:
    """After a change of a sentence, in `tests/scenarios/trace`: `hotdesk-scheduler simulate --trace busy.jsonl > busy.txt`."""
    done = subprocess.run(
        [sys.executable, "-m", "hotdesk_scheduler.cli", "simulate", "--trace", str(TRACE / "busy.jsonl")],
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONUTF8": "1"},
        timeout=120,
        check=True,
    )
    assert done.stdout.decode() == (TRACE / "busy.txt").read_text(encoding="utf-8")


def test_the_golden_trace_has_every_kind_of_decision() -> None:
    """So that it is worth comparing with."""
    words = {" ".join(line.split()[2:4]) for line in (TRACE / "busy.txt").read_text(encoding="utf-8").splitlines() if "cycle" in line}
    for kind in ("start", "stop", "move", "hold", "keep a", "requeue", "remove", "finish"):
        assert any(word.startswith(kind) for word in words), kind
