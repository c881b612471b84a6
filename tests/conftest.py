"""What all tests share: the import path (`tests/`, `tests/kubernetes/`), a test cluster, no leftovers of the developer's own set-up."""

from __future__ import annotations

import os
import signal
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
from cluster.report import ClusterReport  # noqa: E402 - as above

if TYPE_CHECKING:
    from cluster.running import Cluster
    from kube_world import Kube

# The same examples every time, and no limit that a busy machine could break; `HYPOTHESIS_PROFILE=night make test` looks for new ones.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", PATIENT, derandomize=True)
settings.register_profile("night", PATIENT, max_examples=1_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background of a shell: what tests start would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

_REAL_NODE = "real-node"
_OURS = ("HOTDESK_", "JUPYTERHUB_", "RUNAI_", "NO_COLOR", "FORCE_COLOR")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(ClusterReport())


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on a cluster are marked and kept together: those of the one real node, which begin, and those of a module."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if {"cluster", "real_cluster"} & fixtures or item.path.parent == TESTS / "helm":  # helm is built with the cluster's programs
            item.add_marker(pytest.mark.kubernetes)
        if item.get_closest_marker("real_node") or "real_cluster" in fixtures:
            item.add_marker(pytest.mark.xdist_group(_REAL_NODE))
        elif item.get_closest_marker("kubernetes"):
            item.add_marker(pytest.mark.xdist_group(_REAL_NODE if os.environ.get("KUBECONFIG") else f"cluster-{item.path.stem}"))
    items.sort(key=_when)


def _when(item: pytest.Item) -> int:
    """What starts and ends real nodes of its own does so before the session's is there; long groups begin before short tests."""
    if item.get_closest_marker("real_node"):
        return 0
    groups = [mark.args[0] for mark in item.iter_markers("xdist_group")]
    return 1 if _REAL_NODE in groups else 2 if groups else 3


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
