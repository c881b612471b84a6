"""`spawner/traps.md` names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent


def test_every_trap_names_tests_that_there_are() -> None:
    rows = [line for line in (TESTS.parent / "spawner" / "traps.md").read_text().splitlines() if line.startswith("| ")][1:]
    there = {
        name for file in TESTS.rglob("test_*.py") for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    assert len(rows) > 11
    for row in rows:
        named = set(re.findall(r"`(test_\w+)`", row))
        assert named, row
        assert named <= there
