"""The real node: what tests of running pods and shared GPUs lean on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster.real_node import NODE
from cluster.running import Cluster


def _pod(name: str, command: str, *, gpus: int = 0) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    container = {"name": "main", "image": "localhost/busybox:1", "command": ["sh", "-c", command], "resources": {"limits": limits}}
    spec = {"nodeName": NODE, "restartPolicy": "Never", "terminationGracePeriodSeconds": 10, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def own_node(real_cluster: Cluster) -> Cluster:
    if real_cluster.external:
        pytest.skip("KUBECONFIG names another cluster: its nodes have no pretended GPUs")
    return real_cluster


def _phase(cluster: Cluster, namespace: str, name: str) -> str:
    return str(cluster.get("pod", name, "-n", namespace)["status"]["phase"])


def test_pod_runs_talks_and_hears_its_end(own_node: Cluster, real_namespace: str) -> None:
    own_node.apply(
        _pod("hello", "trap 'echo bye; exit 3' TERM; echo hello from $HOSTNAME; while :; do sleep 0.1; done"), namespace=real_namespace
    )
    own_node.wait_until(
        "it talks", lambda: "hello from hello" in own_node.kubectl("logs", "hello", "-n", real_namespace, "--ignore-errors")
    )
    assert own_node.kubectl("exec", "hello", "-n", real_namespace, "--", "hostname").strip() == "hello"
    own_node.kubectl(
        "patch", "pod", "hello", "-n", real_namespace, "--type=merge", "-p", '{"metadata": {"finalizers": ["test.hotdesk.io/look"]}}'
    )
    own_node.kubectl("delete", "pod", "hello", "-n", real_namespace, "--wait=false")
    own_node.wait_until("it failed", lambda: _phase(own_node, real_namespace, "hello") == "Failed")
    status = own_node.get("pod", "hello", "-n", real_namespace)["status"]
    own_node.kubectl("patch", "pod", "hello", "-n", real_namespace, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


def test_pod_reaches_services_by_name(own_node: Cluster, real_namespace: str) -> None:
    asks = "nc -w 5 kubernetes.default.svc 443 </dev/null && echo reached; nslookup no-such-service.default.svc.cluster.local"
    own_node.apply(_pod("asking", asks), namespace=real_namespace)
    own_node.wait_until("it ended", lambda: _phase(own_node, real_namespace, "asking") in ("Succeeded", "Failed"))
    said = own_node.kubectl("logs", "asking", "-n", real_namespace)
    assert "reached" in said
    assert "NXDOMAIN" in said


def test_pod_of_an_ordinary_user_runs(own_node: Cluster, real_namespace: str) -> None:
    pod = _pod("somebody", "id -u")
    pod["spec"]["securityContext"] = {"runAsUser": 1000, "runAsNonRoot": True}
    own_node.apply(pod, namespace=real_namespace)
    own_node.wait_until("it ended", lambda: _phase(own_node, real_namespace, "somebody") == "Succeeded")
    assert own_node.kubectl("logs", "somebody", "-n", real_namespace).strip() == "1000"


def test_pod_is_given_the_gpus_it_asked_for(own_node: Cluster, real_namespace: str) -> None:
    own_node.apply(_pod("two", "echo $NVIDIA_VISIBLE_DEVICES", gpus=2), namespace=real_namespace)
    own_node.wait_until("it ended", lambda: _phase(own_node, real_namespace, "two") == "Succeeded")
    given = own_node.kubectl("logs", "two", "-n", real_namespace).strip().split(",")
    assert len(set(given)) == 2
    assert all(name.startswith("GPU-fake-") for name in given)


def test_broken_gpu_is_no_longer_offered(own_node: Cluster, real_namespace: str) -> None:
    broken = Path(own_node.folder / "gpu-unhealthy")
    broken.write_text("GPU-fake-0\n")
    try:
        own_node.wait_until("three are left", lambda: own_node.get("node", NODE)["status"]["allocatable"]["nvidia.com/gpu"] == "3")
    finally:
        broken.unlink()
    own_node.wait_until("all are back", lambda: own_node.get("node", NODE)["status"]["allocatable"]["nvidia.com/gpu"] == "4")
