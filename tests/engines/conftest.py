"""Engines for the tests of this folder; whatever a test leaves running is ended."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from engine_world import Local, World, fake_world
from hotdesk_scheduler.core.model import Project
from kube_world import kube_world


@pytest.fixture(params=["fake", "local", pytest.param("kubernetes", marks=pytest.mark.kubernetes)])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """The contract's world: the same tests on every engine. Kubernetes is skipped, with the reason, where there is none."""
    if request.param == "kubernetes":
        cluster = request.getfixturevalue("cluster")
        if cluster.external and "a_command_runs_inside" in request.node.name:
            pytest.skip("played nodes of a cluster of others have no kubelet that its API server could reach")
        async with kube_world(cluster, tmp_path) as kube:
            yield kube
        return
    world = fake_world(tmp_path) if request.param == "fake" else Local(tmp_path)
    await world.engine.open()
    await world.engine.put_project(Project("team-a"))
    yield world
    await world.engine.close()


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Local]:
    world = Local(tmp_path)
    await world.engine.open()
    await world.engine.put_project(Project("team-a"))
    yield world
    await world.engine.close()


@pytest.fixture(autouse=True)
def _nothing_left_running(tmp_path: Path) -> Iterator[None]:
    """Supervisors and programs of this test's own state directory do not outlive it."""
    yield
    for process in psutil.process_iter():
        try:
            ours = str(tmp_path) in " ".join(process.cmdline()) or str(tmp_path) in process.environ().get("HOME", "")
        except psutil.Error:
            continue
        if ours and process.pid != os.getpid():
            process.send_signal(signal.SIGKILL)
