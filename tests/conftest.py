"""What all tests share: the import path (`tests/`, `tests/kubernetes/`), a test cluster, no leftovers of the developer's own set-up."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
for folder in (TESTS / "kubernetes", TESTS):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from cluster.fixtures import cluster, namespace, real_cluster, real_namespace  # noqa: E402, F401 - found through the lines above; fixtures for every folder

if TYPE_CHECKING:
    from cluster.running import Cluster
    from kube_world import Kube

# The same examples every time, and no limit that a busy machine could break; `HYPOTHESIS_PROFILE=night make test` looks for new ones.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", PATIENT, derandomize=True)
settings.register_profile("night", PATIENT, max_examples=1_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

_OURS = ("HOTDESK_", "JUPYTERHUB_", "RUNAI_", "NO_COLOR", "FORCE_COLOR")


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one cluster share its nodes and definitions: marked, and kept on one process."""
    for item in items:
        if {"cluster", "real_cluster"} & set(getattr(item, "fixturenames", ())) or item.get_closest_marker("kubernetes"):
            item.add_marker(pytest.mark.kubernetes)
            item.add_marker(pytest.mark.xdist_group("kubernetes"))


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads the settings or tokens of whoever runs it."""
    for name in list(os.environ):
        if name.startswith(_OURS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))


@pytest.fixture
async def kube(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Kube]:  # noqa: F811  # the fixture
    """An installation of the Kubernetes engine on the test cluster, for this test alone."""
    from kube_world import kube_world  # its libraries are slow to load, and most tests need none of them

    async with kube_world(cluster, tmp_path) as world:
        yield world


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with scenario files beside the checkout; tests that need it are skipped where it is not there."""
    folder = TESTS.parent.parent / "shared"
    if not (folder / "scenarios").is_dir():
        pytest.skip("no ../shared/scenarios beside this checkout")
    return folder
