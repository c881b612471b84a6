"""What a test cluster leaves on the machine: nothing, however its users and its keeper end; and who looks finds what was left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from cluster import machine
from cluster.fixtures import NO_KUBERNETES, NO_REAL_NODE
from cluster.leftovers import files_of, folder_of, keeper_of, remove_abandoned
from cluster.programs import why_cannot_build, why_not_built
from cluster.real_node import NODE, why_no_node
from cluster.report import left_by, wrongly_skipped
from cluster.running import Cluster

pytestmark = pytest.mark.kubernetes
HERE = Path(__file__).parent

_USER = """
import sys
from cluster.running import shared_cluster
with shared_cluster(sys.argv[1], int(sys.argv[2])) as cluster:
    print(cluster.folder, flush=True)
    sys.stdin.read()
"""

User = subprocess.Popen[str]


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], tuple[User, Cluster]]]:
    """Starts another test process that uses a cluster of this level."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    users: list[User] = []

    def start(level: int) -> tuple[User, Cluster]:
        if level > 1:
            _wait_for_the_node()
        command = [sys.executable, "-c", _USER, str(tmp_path), str(level)]
        user = subprocess.Popen(
            command, env=os.environ | {"PYTHONPATH": str(HERE)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        users.append(user)
        assert user.stdout
        folder = Path(user.stdout.readline().strip())
        assert folder == folder_of(str(tmp_path), level)
        return user, Cluster(Path((folder / "ready").read_text()), folder)

    try:
        yield start
    finally:
        for user in users:
            user.kill()
            user.communicate()


def _kill(number: int) -> None:
    os.kill(number, signal.SIGKILL)
    if psutil.pid_exists(number):
        psutil.wait_procs([psutil.Process(number)], timeout=10)


def _busy(name: str) -> list[dict[str, Any]]:
    """A pod with a GPU and a port of the node, and a service: containers, mounts, networks, rules."""
    container = {
        "name": "main",
        "image": "localhost/busybox:1",
        "command": ["sleep", "3600"],
        "ports": [{"containerPort": 80, "hostPort": 18080}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
        "volumeMounts": [{"name": "memory", "mountPath": "/memory"}],
    }
    volumes = [{"name": "memory", "emptyDir": {"medium": "Memory"}}]
    spec = {"nodeName": NODE, "containers": [container], "volumes": volumes}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}
    ports = {"type": "NodePort", "selector": {"app": name}, "ports": [{"port": 80}]}
    return [pod, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": ports}]


def _run_busy(cluster: Cluster) -> None:
    cluster.wait_until("pods may be made", lambda: bool(cluster.kubectl("get", "serviceaccount", "default", "--ignore-not-found")))
    cluster.apply(*_busy("busy"))
    cluster.wait_until("it runs", lambda: cluster.get("pod", "busy")["status"]["phase"] == "Running")
    cluster.wait_until("its service has rules", lambda: any("default/busy" in line for line in machine.traces()))


def _wait_for_the_node() -> None:
    """Longer than a session itself would, until no other one has it."""
    with machine.take(600) or pytest.fail("other sessions have the real node"):
        pass


def _left_on_machine(before: set[str]) -> set[str]:
    """Looked at when no session has a node here, this one included."""
    with machine.take(600) or pytest.fail("other sessions have the real node"):
        return machine.left_since(before)


@pytest.mark.slow
@pytest.mark.real_node
@pytest.mark.timeout(1500)  # other sessions may have the node between its parts
def test_a_real_node_leaves_nothing_when_its_users_are_killed_nor_when_its_keeper_was(
    use: Callable[[int], tuple[User, Cluster]], tmp_path: Path
) -> None:
    if reason := why_not_built(2) or why_no_node():
        pytest.skip(f"{NO_REAL_NODE}: {reason}")
    user, cluster = use(2)
    before = set(json.loads(machine.RECORD.read_text())["traces"])
    _run_busy(cluster)
    assert any("network interface veth" in line for line in machine.left_since(before))
    _kill(keeper_of(cluster.folder))
    _kill(user.pid)
    remove_abandoned()
    assert _left_on_machine(before) == set()
    assert left_by(str(tmp_path)) == []

    user, cluster = use(2)
    _run_busy(cluster)
    _kill(user.pid)
    assert left_by(str(tmp_path)) == []


def test_what_outlives_a_cluster_is_named(use: Callable[[int], tuple[User, Cluster]], tmp_path: Path) -> None:
    """A program that a test forgot to end, as `hotdesk-scheduler serve --kubeconfig …` would be."""
    if reason := why_not_built(1):
        pytest.skip(f"{NO_KUBERNETES}: {reason}")
    user, cluster = use(1)
    forgotten = subprocess.Popen(["sh", "-c", "sleep 600; :", f"{cluster.kubeconfig}"], start_new_session=True)
    try:
        user.communicate("")
        (found,) = left_by(str(tmp_path))
        assert found.startswith("left by the test cluster: process ")
        assert str(cluster.kubeconfig) in found
        assert files_of(str(tmp_path)) == []
    finally:
        os.killpg(forgotten.pid, signal.SIGKILL)
        forgotten.wait()


def test_in_ci_a_skipped_cluster_is_a_fault_where_it_could_have_run() -> None:
    skipped = {f"{NO_KUBERNETES}: not built yet: etcd": 12, "no chromium here": 3}
    assert wrongly_skipped(skipped, {}) == []
    if why_cannot_build():
        assert wrongly_skipped(skipped, {"CI": "true"}) == []
    else:
        (fault,) = wrongly_skipped(skipped, {"CI": "true"})
        assert fault.startswith("12 tests were skipped, and this machine could run them: no Kubernetes here: not built yet")
