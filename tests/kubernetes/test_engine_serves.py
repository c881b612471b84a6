"""`hotdesk-scheduler serve --engine kubernetes` on a real API server: submitted over REST, seen with kubectl."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cluster.running import ENDS_WITH_TEST, Cluster
from hotdesk_api import calls, models
from hotdesk_api.errors import NotFound
from hotdesk_scheduler.engines.kubernetes import crds
from scheduler_fixture import Scheduler
from seats import Desk

pytestmark = pytest.mark.slow
WITHIN_S = 60.0
Start = Callable[..., Scheduler]


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {WITHIN_S:.0f} s"
        time.sleep(0.05)


def is_ready(one: Scheduler) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{one.url}/readyz", timeout=5).status_code == 200
    return False


@pytest.fixture
def start(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Start]:
    """Starts schedulers of one installation, on nodes of pool `NAMESPACE` of their own."""
    for file in crds.FILES:
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
    cluster.kubectl(
        "wait", "--for=condition=Established", "crd/projects.hotdesk.io", "crd/departments.hotdesk.io", "crd/workloads.hotdesk.io"
    )
    cluster.add_nodes(2, owner=namespace, labels={"hotdesk.io/pool": namespace, "nvidia.com/gpu.memory": "32768"})
    started: list[Scheduler] = []

    def begin(name: str, quotas: str = "team-a=4") -> Scheduler:
        names = ["--namespace", namespace, "--namespace-prefix", f"{namespace}-", "--kubeconfig", str(cluster.kubeconfig)]
        one = Scheduler(tmp_path / name, "", quotas, more=["--engine", "kubernetes", *names, "--grace-s", "1"])
        started.append(one)
        one.start()
        return one

    yield begin
    for one in started:
        one.end()
    for project in ("team-a", "team-b"):
        there = f"{namespace}-{project}"
        with contextlib.suppress(Exception):
            names = cluster.kubectl("get", "workloads", "-n", there, "-o", "name").split()
            for name in names:
                cluster.kubectl("patch", name, "-n", there, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
        cluster.end_test(there)


def job(namespace: str, name: str, **values: object) -> models.WorkloadSpec:
    given = {"name": name, "project": "team-a", "image": "python", "node_pools": [namespace], "gpu_millis": 1000, **values}
    return models.WorkloadSpec.model_validate(given)


def status(one: Scheduler, name: str) -> str:
    return one.client().call(calls.workload("team-a", name)).status


def test_submitted_over_rest_it_runs_in_a_pod_waits_with_its_reason_and_is_deleted(start: Start, cluster: Cluster, namespace: str) -> None:
    one = start("first")
    until(lambda: is_ready(one), "the scheduler being ready")
    client, there = one.client(), f"{namespace}-team-a"
    client.call(calls.submit(job(namespace, "eight", gpu_millis=8000)))
    client.call(calls.submit(job(namespace, "half", gpu_millis=500)))
    until(lambda: status(one, "eight") == status(one, "half") == "Running", "both running")
    client.call(calls.submit(job(namespace, "too-much", gpu_millis=8000)))
    until(lambda: client.call(calls.workload("team-a", "too-much")).reason, "the reason")

    def told() -> bool:
        """The condition is written anew for another reason, not for other numbers in its sentence."""
        said = client.call(calls.workload("team-a", "too-much")).reason
        condition = cluster.get("workload", "too-much", "-n", there).get("status", {}).get("conditions", [{}])[0]
        code = "".join(word.capitalize() for word in said.code.split("_")) if said else ""
        return bool(condition.get("status") == "False" and condition.get("reason") == code and "GPU" in condition.get("message", ""))

    until(told, "the condition saying why")
    until(lambda: "Scheduled" in cluster.kubectl("describe", "workload", "eight", "-n", there), "the event")
    client.call(calls.delete("team-a", "eight"))
    until(lambda: status(one, "too-much") == "Running", "the next one running")
    pods = cluster.get("pods", "-n", there)["items"]
    assert {pod["metadata"]["labels"]["hotdesk.io/workload"] for pod in pods} == {"half", "too-much"}


def test_nodes_kept_for_gpus_by_a_taint_take_who_asks_for_one_and_nobody_else(start: Start, cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("taint", "node", "-l", f"{ENDS_WITH_TEST}={namespace}", "nvidia.com/gpu=present:NoSchedule")
    one = start("first")
    until(lambda: is_ready(one), "the scheduler being ready")
    client = one.client()
    for name, millis in (("whole", 1000), ("half", 500), ("none", 0)):
        client.call(calls.submit(job(namespace, name, gpu_millis=millis)))
    until(lambda: status(one, "whole") == status(one, "half") == "Running", "both running")
    pods = cluster.get("pods", "-n", f"{namespace}-team-a")["items"]
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists"}
    assert [gpu in pod["spec"]["tolerations"] for pod in pods] == [True, True]
    taint = "the taint nvidia.com/gpu=present, which it does not tolerate"
    until(lambda: taint in str(client.call(calls.workload("team-a", "none")).reason), "why the third waits")


def has_gpus(cluster: Cluster, node: str, count: int) -> None:
    room = {"nvidia.com/gpu": str(count)}
    patch = json.dumps({"status": {"allocatable": room, "capacity": room}})
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", patch)


def test_a_node_of_which_a_gpu_broke_under_what_runs_there_holds_up_nobody_else(start: Start, cluster: Cluster, namespace: str) -> None:
    nodes = sorted(node["metadata"]["name"] for node in cluster.get("nodes", "-l", f"{ENDS_WITH_TEST}={namespace}")["items"])
    one = start("first", "team-a=32")
    until(lambda: is_ready(one), "the scheduler being ready")
    client, there = one.client(), f"{namespace}-team-a"
    for name in ("eight", "other"):
        client.call(calls.submit(job(namespace, name, gpu_millis=8000)))
    until(lambda: status(one, "eight") == status(one, "other") == "Running", "both running")
    where = {pod["metadata"]["labels"]["hotdesk.io/workload"]: pod["spec"]["nodeName"] for pod in cluster.get("pods", "-n", there)["items"]}
    assert sorted(where.values()) == nodes
    has_gpus(cluster, where["eight"], 7)
    until(
        lambda: max(node.gpus for node in client.call(calls.nodes()).items if node.name == where["eight"]) == 7, "the scheduler knowing it"
    )
    client.call(calls.submit(job(namespace, "no-gpu", gpu_millis=0)))
    until(lambda: status(one, "no-gpu") == "Running", "what asks for no GPU running")
    client.call(calls.delete("team-a", "other"))
    client.call(calls.submit(job(namespace, "one", gpu_millis=1000)))
    until(lambda: status(one, "one") == "Running", "the next one running on the other node")
    assert status(one, "eight") == "Running"
    assert is_ready(one)


def test_when_the_leader_is_killed_the_other_replica_goes_on(start: Start, namespace: str) -> None:
    one = start("first")
    until(lambda: is_ready(one), "the scheduler being ready")
    two = start("second")
    assert httpx.get(f"{two.url}/healthz").status_code == 200
    assert httpx.get(f"{two.url}/readyz").status_code == 503
    one.client().call(calls.submit(job(namespace, "job")))
    until(lambda: status(one, "job") == "Running", "it running")
    one.kill()
    begun = time.monotonic()
    until(lambda: is_ready(two), "the other one taking over")
    assert time.monotonic() - begun < 20
    assert status(two, "job") == "Running"


def test_a_waiting_replica_ends_when_asked(start: Start) -> None:
    one = start("first")
    until(lambda: is_ready(one), "the scheduler being ready")
    two = start("second")
    assert two.process is not None
    two.process.terminate()
    assert two.process.wait(20) == 0


def trainer(namespace: str, pods: int) -> dict[str, object]:
    """Four pods of four GPUs that start together, which a controller makes again at once; on the nodes of this test."""
    marks = {"hotdesk.io/pod-group": "trainer", "hotdesk.io/pod-group-size": "4", "test.hotdesk.io/stops-in": "1s"}
    container = {"name": "main", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    spec = {"schedulerName": "hotdesk", "nodeSelector": {"hotdesk.io/pool": namespace}, "containers": [container]}
    chosen = {"app": "trainer"}
    template = {"metadata": {"labels": chosen, "annotations": marks}, "spec": spec}
    of_set = {"replicas": pods, "podManagementPolicy": "Parallel", "selector": {"matchLabels": chosen}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "trainer"}, "spec": of_set}


def test_a_gang_of_others_borrows_gives_all_of_it_back_and_goes_on_later(
    start: Start, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    one = start("first", "team-a=8,team-b=0")
    until(lambda: is_ready(one), "the scheduler being ready")
    there, bob = f"{namespace}-team-b", Desk(one, tmp_path, one.bob)

    def pods() -> list[dict[str, Any]]:
        return list(cluster.get("pods", "-n", there)["items"])

    def told() -> set[str]:
        return {c.get("message", "") for pod in pods() for c in pod["status"].get("conditions", []) if c["type"] == "PodScheduled"}

    def gang(*, running: int) -> bool:
        with contextlib.suppress(NotFound):
            found = one.client(one.bob).call(calls.workload("team-b", "trainer"))
            return found.running_pods == running and len(found.pods) == 4
        return False

    until(lambda: cluster.get("serviceaccounts", "-n", there)["items"], "the project's namespace")
    cluster.apply(trainer(namespace, 3), namespace=there)
    sentence = "3 of 4 pods of trainer are there, and they start together or not at all: it waits until the last one is made."
    until(lambda: len(told()) == 1 and sentence in next(iter(told())), f"all three saying so, not {told()}")
    assert sentence in bob.ok("why", "trainer", "-p", "team-b")
    cluster.apply(trainer(namespace, 4), namespace=there)
    until(lambda: gang(running=4), "all four running")
    assert "16" in bob.ok("list", "-p", "team-b")
    described = bob.ok("describe", "job", "trainer", "-p", "team-b")
    assert all(f"trainer-{index}" in described for index in range(4))
    assert re.search(rf"^NAMESPACE: +{there}$", described, re.MULTILINE)
    until(lambda: "starts on" in cluster.kubectl("describe", "pod", "trainer-0", "-n", there), "the event")
    refused = bob.run("delete", "trainer", "-p", "team-b")
    assert "made by statefulset trainer" in refused.err
    assert f"kubectl delete statefulset trainer -n {there}" in refused.err

    before = {pod["metadata"]["uid"] for pod in pods()}
    one.client().call(calls.submit(job(namespace, "mine", gpu_millis=8000)))
    until(lambda: status(one, "mine") == "Running", "the owner's work running")
    until(lambda: gang(running=0), "the gang waiting")
    assert not before & {pod["metadata"]["uid"] for pod in pods()}
    until(lambda: len(told()) == 1 and "8" in next(iter(told())), f"the new ones saying why they wait, not {told()}")
    why = bob.ok("why", "trainer", "-p", "team-b")
    assert "mine" in why
    assert all("nodeName" not in pod["spec"] for pod in pods())

    one.client().call(calls.delete("team-a", "mine"))
    until(lambda: gang(running=4), "all four running again")
    cluster.kubectl("delete", "statefulset", "trainer", "-n", there, "--wait=false")
    until(lambda: "trainer" not in bob.ok("list", "-p", "team-b"), "it being gone from the list")


def disk(namespace: str, node: str) -> list[dict[str, Any]]:
    """A claim of team-a, named by a volume that only this node reaches."""
    there = f"{namespace}-team-a"
    kept = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    volume = {
        "capacity": {"storage": "1Gi"},
        "local": {"path": "/played"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        "claimRef": {"namespace": there, "name": "data"},
    }
    claim = {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": namespace}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": namespace}, "spec": {**kept, **volume}},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data"},
            "spec": {**kept, **claim},
        },
    ]


def test_a_job_of_others_starts_where_its_volume_lies_and_says_that_it_waits_for_that_node(
    start: Start, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    one = start("first")
    until(lambda: is_ready(one), "the scheduler being ready")
    home, there = f"{namespace}-1", f"{namespace}-team-a"
    until(lambda: cluster.get("serviceaccounts", "-n", there)["items"], "the project's namespace")
    limits = {"limits": {"nvidia.com/gpu": "8"}}
    hog = {"nodeName": home, "containers": [{"name": "main", "image": "x", "resources": limits}]}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hog"}, "spec": hog}, namespace=namespace)
    container = {"name": "main", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    chosen = {"schedulerName": "hotdesk", "restartPolicy": "Never", "nodeSelector": {"hotdesk.io/pool": namespace}}
    template = {"spec": {**chosen, "containers": [container], "volumes": volumes}}
    try:
        cluster.apply(*disk(namespace, home), namespace=there)
        cluster.apply(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "theirs"}, "spec": {"template": template}}, namespace=there
        )

        def pod() -> dict[str, Any]:
            return next((item for item in cluster.get("pods", "-n", there)["items"] if item["metadata"]["name"].startswith("theirs")), {})

        def told() -> str:
            return " ".join(one.get("message", "") for one in pod().get("status", {}).get("conditions", []))

        words = f"Its volume data lies on node {home}."
        until(lambda: words in told(), f"the condition saying where it lies, not {told()}")
        assert words in Desk(one, tmp_path, one.alice).ok("why", pod()["metadata"]["name"], "-p", "team-a")
        cluster.kubectl("delete", "pod", "hog", "-n", namespace, "--force", "--grace-period=0")
        until(lambda: pod()["status"].get("phase") == "Running", "it running")
        assert pod()["spec"]["nodeName"] == home
    finally:
        cluster.kubectl("delete", "persistentvolume", namespace, "--ignore-not-found", "--wait=false")


def test_a_pod_that_no_node_can_keep_says_what_to_do_and_those_for_one_port_run_on_a_node_each(
    start: Start, cluster: Cluster, namespace: str
) -> None:
    one = start("first", "team-a=32")
    until(lambda: is_ready(one), "ready")
    space, nodes = f"{namespace}-team-a", cluster.get("nodes", "-l", f"{ENDS_WITH_TEST}={namespace}")["items"]

    def put(name: str, container: dict[str, Any]) -> None:
        spec = {"schedulerName": "hotdesk", "nodeSelector": {"hotdesk.io/pool": namespace}}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": space},
            "spec": {**spec, "containers": [container]},
        }
        cluster.kubectl("apply", "-f", "-", given=json.dumps(body))

    def said(name: str) -> str:
        found = cluster.get("pod", name, "-n", space)["status"].get("conditions", [])
        return next((str(each["message"]) for each in found if each["type"] == "PodScheduled" and each.get("message")), "")

    put("disk", {"name": "c", "image": "x", "resources": {"requests": {"ephemeral-storage": "5Ti"}}})
    put("rdma", {"name": "c", "image": "x", "resources": {"limits": {"test.hotdesk.io/none": "1"}}})
    for index in range(len(nodes) + 1):
        put(f"port{index}", {"name": "c", "image": "x", "ports": [{"containerPort": 8080, "hostPort": 8080}]})
    until(
        lambda: "there is not 5Ti of ephemeral-storage: ask for less of it, or an admin adds a node" in said("disk"),
        "the disk being told of",
    )
    until(
        lambda: "there is not 1 test.hotdesk.io/none: ask for less of it, or an admin adds a node" in said("rdma"),
        "the device being told of",
    )
    until(lambda: any("host port 8080/TCP when pods that hold it end" in said(f"port{i}") for i in range(len(nodes) + 1)), "the last one")
    pods = cluster.get("pods", "-n", space)["items"]
    placed = [pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")]
    assert sorted(placed) == sorted(node["metadata"]["name"] for node in nodes)
    assert all(pod["metadata"]["name"].startswith("port") for pod in pods if pod["spec"].get("nodeName"))
