"""One real scheduler for each test that asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import scheduler_fixture


@pytest.fixture
def real(tmp_path: Path) -> Iterator[scheduler_fixture.Scheduler]:
    with scheduler_fixture.scheduler(tmp_path) as running:
        yield running
