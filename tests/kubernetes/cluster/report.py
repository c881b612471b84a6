"""How a test session ends: what was skipped and why; nothing of its clusters is left; none was missing where it could have run (in CI).

A plugin of pytest for the process that reports, not for its workers.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from cluster.fixtures import NO_KUBERNETES, NO_REAL_NODE, SESSION
from cluster.leftovers import files_of
from cluster.programs import why_cannot_build

ENDED_WITHIN_S = 120.0
_NO_HELM = "no helm here"
_NO_SCHEMAS = "the schemas are not fetched"


class ClusterReport:
    """`faults` make the session fail."""

    def __init__(self) -> None:
        self.skipped: Counter[str] = Counter()
        self.faults: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):  # not an expected failure
            self.skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1

    @pytest.hookimpl(trylast=True)  # when the workers have ended
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.faults = [*left_by(SESSION), *wrongly_skipped(self.skipped, os.environ)]
        if self.faults and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for reason, count in self.skipped.most_common():
            terminalreporter.write_line(f"SKIPPED {count} test{'s' * (count > 1)}: {reason}", yellow=True)
        for fault in self.faults:
            terminalreporter.write_line(f"ERROR {fault}", red=True)


def left_by(session: str, *, ended_within_s: float = ENDED_WITHIN_S) -> list[str]:
    """What outlived the clusters of `session`, in sentences. Waits for their keepers."""
    end = time.monotonic() + ended_within_s
    while any(not _is_a_note(path) for path in files_of(session)) and time.monotonic() < end:
        time.sleep(0.1)
    found = []
    for path in files_of(session):
        if not _is_a_note(path):
            found.append(f"{path} is still there {ended_within_s:.0f} s after the tests: its keeper did not end (its log: keeper.log)")
            continue
        found += [f"left by the test cluster: {line}" for line in path.read_text().splitlines()]
        path.unlink()
    return found


def _is_a_note(path: Path) -> bool:
    return path.suffix == ".left"


def wrongly_skipped(skipped: Mapping[str, int], environment: Mapping[str, str]) -> list[str]:
    """In CI, where this machine could have had what they wanted. `skipped`: reason -> number of tests."""
    if not environment.get("CI") or why_cannot_build():
        return []
    reasons = [NO_KUBERNETES, _NO_HELM, _NO_SCHEMAS]
    if os.getuid() == 0 and shutil.which("apt-get") and not environment.get("HOTDESK_NO_APT"):
        reasons.append(NO_REAL_NODE)
    return [
        f"{count} tests were skipped, and this machine could run them: {reason}"
        for reason, count in skipped.items()
        if reason.startswith(tuple(reasons))
    ]
