"""Fixtures for tests on Kubernetes, for all folders (`tests/conftest.py`). They are skipped, with the reason, without a cluster."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from cluster.running import CannotRunError, Cluster, shared_cluster

# The same in all processes of one test session: its workers inherit it.
SESSION = os.environ.setdefault("HOTDESK_TEST_SESSION", uuid.uuid4().hex)
NO_KUBERNETES = "no Kubernetes here"
NO_REAL_NODE = "no real node here"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Level 1 with kwok: one for each process of this test session, so that no test meets another's nodes and definitions."""
    try:
        with shared_cluster(SESSION, worker=os.environ.get("PYTEST_XDIST_WORKER", "")) as running:
            yield running
    except CannotRunError as reason:
        pytest.skip(f"{NO_KUBERNETES}: {reason}")


@pytest.fixture(scope="session")
def real_cluster() -> Iterator[Cluster]:
    """Level 2: a real node with pretended GPUs, and kwok. One for all processes of this test session, one a machine."""
    try:
        with shared_cluster(SESSION, level=2) as running:
            yield running
    except CannotRunError as reason:
        pytest.skip(f"{NO_REAL_NODE}: {reason}")


@pytest.fixture
def real_namespace(real_cluster: Cluster) -> Iterator[str]:
    """A namespace of this test alone on the cluster with the real node."""
    yield from _namespace(real_cluster)


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of this test alone."""
    yield from _namespace(cluster)


def _namespace(cluster: Cluster) -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.add_namespace(name)
    yield name
    cluster.end_test(name)
