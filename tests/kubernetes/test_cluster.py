"""The test cluster itself: what tests of Kubernetes lean on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from cluster.control_plane import ControlPlane
from cluster.leftovers import processes, users_file
from cluster.programs import version_of, why_not_built
from cluster.running import CannotRunError, Cluster, shared_cluster

pytestmark = pytest.mark.kubernetes


def _pod(name: str, node: str, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    spec = {"nodeName": node, "containers": [{"name": "main", "image": "example.invalid/image:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations or {}}, "spec": spec}


def _pods(cluster: Cluster, namespace: str) -> list[str]:
    return cluster.kubectl("get", "pods", "-n", namespace, "-o", "name").split()


def _phase(cluster: Cluster, namespace: str, name: str) -> str:
    return str(cluster.get("pod", name, "-n", namespace)["status"]["phase"])


def _container_state(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    statuses = cluster.get("pod", name, "-n", namespace)["status"].get("containerStatuses") or [{"state": {}}]
    state: dict[str, Any] = statuses[0]["state"]
    return state


def test_api_server_is_of_the_pinned_version(cluster: Cluster) -> None:
    if cluster.external:
        pytest.skip("KUBECONFIG names another cluster")
    assert json.loads(cluster.kubectl("get", "--raw", "/version"))["gitVersion"] == version_of("k8s.io/kubernetes")


def test_pretended_nodes_offer_their_gpus_and_run_pods(cluster: Cluster, namespace: str) -> None:
    nodes = cluster.add_nodes(2, owner=namespace, gpus=8)
    assert [cluster.get("node", node)["status"]["allocatable"]["nvidia.com/gpu"] for node in nodes] == ["8", "8"]
    cluster.apply(_pod("hello", nodes[0]), namespace=namespace)
    cluster.wait_until("the pod runs", lambda: _phase(cluster, namespace, "hello") == "Running")


def test_pretended_pod_ends_as_its_annotations_say(cluster: Cluster, namespace: str) -> None:
    (node,) = cluster.add_nodes(1, owner=namespace)
    dies = {"test.hotdesk.io/runs-for": "100ms", "test.hotdesk.io/exit-code": "137", "test.hotdesk.io/reason": "OOMKilled"}
    cluster.apply(
        _pod("dies", node, dies),
        _pod("finishes", node, {"test.hotdesk.io/runs-for": "100ms"}),
        _pod("waits", node, {"test.hotdesk.io/waits": "ImagePullBackOff"}),
        namespace=namespace,
    )
    cluster.wait_until("one failed", lambda: _phase(cluster, namespace, "dies") == "Failed")
    cluster.wait_until("one succeeded", lambda: _phase(cluster, namespace, "finishes") == "Succeeded")
    ended = _container_state(cluster, namespace, "dies")["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")
    cluster.wait_until("one waits", lambda: "waiting" in _container_state(cluster, namespace, "waits"))
    assert _container_state(cluster, namespace, "waits")["waiting"]["reason"] == "ImagePullBackOff"
    assert _phase(cluster, namespace, "waits") == "Pending"


def test_pretended_pod_takes_its_time_to_stop(cluster: Cluster, namespace: str) -> None:
    (node,) = cluster.add_nodes(1, owner=namespace)
    how_long = {"stays": "1h", "slow": "1s", "quick": "0s"}
    cluster.apply(*(_pod(name, node, {"test.hotdesk.io/stops-in": long}) for name, long in how_long.items()), namespace=namespace)
    cluster.wait_until("all run", lambda: {_phase(cluster, namespace, name) for name in how_long} == {"Running"})
    cluster.kubectl("delete", "pod", *how_long, "-n", namespace, "--wait=false")
    cluster.wait_until("one is left", lambda: _pods(cluster, namespace) == ["pod/stays"])


@pytest.fixture
def control_plane(tmp_path: Path) -> Iterator[ControlPlane]:
    if reason := why_not_built(1):
        pytest.skip(f"no Kubernetes here: {reason}")
    plane = ControlPlane(tmp_path)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


def test_killed_api_server_comes_back_with_what_it_knew(control_plane: ControlPlane) -> None:
    cluster = Cluster(control_plane.kubeconfig, control_plane.state)
    cluster.kubectl("create", "configmap", "kept", "-n", "default")
    control_plane.processes.send("kube-apiserver", signal.SIGKILL)
    assert not control_plane.is_ready()
    control_plane.processes.start_again("kube-apiserver")
    control_plane.processes.wait_for("kube-apiserver", "ready again", control_plane.is_ready)
    assert cluster.get("configmap", "kept", "-n", "default")["metadata"]["name"] == "kept"


_USER = """
import sys
from cluster.running import shared_cluster
with shared_cluster(sys.argv[1]) as cluster:
    print(cluster.folder, flush=True)
    sys.stdin.read()
"""


def _use(session: str) -> subprocess.Popen[str]:
    here = str(Path(__file__).parent)
    environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    return subprocess.Popen(
        [sys.executable, "-c", _USER, session],
        env=environment | {"PYTHONPATH": here},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _programs_in(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in " ".join(process.cmdline()):
                found.append(process.name())
        except psutil.Error:
            continue
    return found


def test_processes_share_one_cluster_and_the_last_one_killed_ends_it(tmp_path: Path) -> None:
    if reason := why_not_built(1):
        pytest.skip(f"no Kubernetes here: {reason}")
    first, second = _use(str(tmp_path)), _use(str(tmp_path))
    try:
        assert first.stdout
        assert second.stdout
        folders = {first.stdout.readline().strip(), second.stdout.readline().strip()}
        folder = Path(folders.pop())
        assert not folders
        first.kill()
        first.wait()
        assert (folder / "ready").exists()
        assert "kube-apiserver" in _programs_in(folder)
        second.kill()
        second.wait()
        end = time.monotonic() + 60
        while (users_file(folder).exists() or _programs_in(folder)) and time.monotonic() < end:
            time.sleep(0.1)
        assert not folder.exists()
        assert not _programs_in(folder)
    finally:
        for user in (first, second):
            user.kill()
            user.communicate()


def test_cluster_whose_keeper_was_killed_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if reason := why_not_built(1):
        pytest.skip(f"no Kubernetes here: {reason}")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with shared_cluster(str(tmp_path)) as first:
        (keeper,) = (number for number, command in processes() if f"cluster.keeper {first.folder} " in command)
        os.kill(keeper, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(keeper)] if psutil.pid_exists(keeper) else [], timeout=10)
        with shared_cluster(str(tmp_path)) as second:
            assert second.folder == first.folder
            assert second.get("namespace", "default")["kind"] == "Namespace"


def test_cluster_of_somebody_is_skipped_with_the_reason_where_no_kwok_can_play_nodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "theirs"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(CannotRunError, match="no kwok here to play nodes: `make kube LEVEL=1`"), shared_cluster(str(tmp_path)):
        pass


def test_cluster_with_the_work_of_others_is_refused(
    cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.delenv("KUBECONFIG_IS_DISPOSABLE", raising=False)
    one, other = shared_cluster(f"{tmp_path} fine", worker="gw0"), shared_cluster(f"{tmp_path} fine", level=2, worker="gw1")
    with one as first, other as second:
        assert first.folder == second.folder, "two keepers would each have a kwok play the same nodes"
    cluster.kubectl("create", "namespace", "payroll")
    try:
        with pytest.raises(Exception, match=r"namespaces of others \(payroll\)"), shared_cluster(f"{tmp_path} refused"):
            pass
    finally:
        cluster.kubectl("delete", "namespace", "payroll", "--wait=false")
