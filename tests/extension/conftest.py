"""The extension's world: a real scheduler for all of its tests, seats of alice and of an administrator, names for jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import scheduler_fixture
from seats import Desk


@pytest.fixture(scope="session")
def _scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[scheduler_fixture.Scheduler]:
    with scheduler_fixture.scheduler(tmp_path_factory.mktemp("extension")) as running:
        yield running


@pytest.fixture
def desk(_scheduler: scheduler_fixture.Scheduler, tmp_path: Path) -> Desk:
    """alice, who is in team-a alone."""
    return Desk(_scheduler, tmp_path, _scheduler.alice)


@pytest.fixture
def admin(_scheduler: scheduler_fixture.Scheduler, tmp_path: Path) -> Desk:
    return Desk(_scheduler, tmp_path, _scheduler.admin)


@pytest.fixture
def job(desk: Desk, request: pytest.FixtureRequest) -> Iterator[str]:
    """A name for the test's job, which is gone afterwards."""
    name = "j-" + request.node.name.replace("_", "-").replace("[", "-").replace("]", "")[-48:].strip("-")
    yield name
    desk.run("delete", name)
