"""A real hub with its scheduler and proxy, one for each test module, and its researchers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import hotdesk_up
import pytest
from hotdesk_up import RunningHotdesk
from people import Person


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state directory; whatever was started on it is ended."""
    folder = tmp_path_factory.mktemp("hotdesk") / "state"
    yield folder
    hotdesk_up.down(folder)


@pytest.fixture(scope="module")
def hub(state: Path) -> RunningHotdesk:
    return hotdesk_up.start(state, simulate="1x4xV100-SXM2-32GB")


@pytest.fixture
def person(hub: RunningHotdesk) -> Iterator[Callable[[str], Person]]:
    """`person("alice")` is logged in; at the end all servers of those who came are stopped."""
    came: list[Person] = []

    def log_in(name: str) -> Person:
        came.append(Person(hub.url, name, hub.password(name)))
        return came[-1]

    yield log_in
    for who in came:
        who.go_home()
