"""Very many workloads on a cluster: what each costs the API server, and a long queue that is answered for all the while."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from cluster.running import Cluster
from hotdesk_scheduler.engines.kubernetes import crds
from hotdesk_scheduler.engines.kubernetes.api import Api
from large_cluster import Large, job, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
STARTED = 40
QUEUED = 2000
LIST_S = 15.0


async def test_a_started_workload_costs_at_most_six_requests_as_the_audit_log_has_it(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    if cluster.external:
        pytest.skip("KUBECONFIG names another cluster, whose audit log is not ours")
    api = await Api.connect(cluster.kubeconfig)
    await crds.install(api)
    world = Large(cluster, api, namespace, tmp_path)
    world.nodes = cluster.add_nodes(STARTED // 8, owner=namespace, labels={"hotdesk.io/pool": namespace})
    kubeconfig = _service_account(cluster, namespace, tmp_path)
    async with world.installed("load", f"team-a={STARTED}", kubeconfig) as (_, caller):
        await caller.submit([job(f"job-{number}", "team-a", node_pools=[namespace]) for number in range(STARTED)])

        async def all_run() -> bool:
            items = (await caller.call("GET", "/v1/workloads"))["items"]
            return [item["status"] for item in items].count("Running") == STARTED

        await until(all_run, "all running")
        await world.until_told()
        asked = _asked(cluster, namespace)
    await _clean_up(world, "team-a")
    of_workloads = [one for one in asked if one["objectRef"].get("namespace") == world.namespace("team-a") and _is_of_a_job(one)]
    pods = [one for one in of_workloads if one["objectRef"]["resource"] == "pods" and one["verb"] == "create"]
    assert len(pods) == STARTED  # the log is whole, and nothing was made twice
    assert len(of_workloads) <= 6 * STARTED


def _service_account(cluster: Cluster, namespace: str, folder: Path) -> Path:
    """Who may do everything and is in the audit log, which administrators are not."""
    subject = {"kind": "ServiceAccount", "name": "load", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "load", "namespace": namespace}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"{namespace}-load"},
            "roleRef": role,
            "subjects": [subject],
        },
        namespace=namespace,
    )
    token = cluster.kubectl("create", "token", "load", "-n", namespace).strip()
    config = json.loads(cluster.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path = folder / "load.kubeconfig"
    path.write_text(json.dumps(config))
    return path


def _asked(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    user = f"system:serviceaccount:{namespace}:load"
    lines = (cluster.folder / "audit.log").read_text().splitlines()
    return [one for one in map(json.loads, lines) if one["user"]["username"] == user and "objectRef" in one]


def _is_of_a_job(one: dict[str, Any]) -> bool:
    return one["verb"] not in ("list", "watch") and one["objectRef"]["resource"] in ("workloads", "pods", "events", "configmaps")


async def test_two_thousand_that_wait_are_answered_for_and_the_next_ones_start(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    api = await Api.connect(cluster.kubeconfig)
    await crds.install(api)
    world = Large(cluster, api, namespace, tmp_path)
    world.nodes = cluster.add_nodes(1, owner=namespace, labels={"hotdesk.io/pool": namespace})
    async with world.installed("queue", "team-a=8") as (_, caller):
        await caller.submit([job(f"first-{number}", "team-a", node_pools=[namespace]) for number in range(8)])
        await world.write_workloads([job(f"job-{number}", "team-a", node_pools=[namespace]) for number in range(QUEUED)])

        async def all_wait_and_say_why() -> bool:
            begun = time.monotonic()
            items = (await caller.call("GET", "/v1/workloads"))["items"]
            assert time.monotonic() - begun < LIST_S
            waits = [item for item in items if item["status"] == "Pending" and item["reason"]["code"] != "queued"]
            return len(waits) == QUEUED and [item["status"] for item in items].count("Running") == 8

        await until(all_wait_and_say_why, "all in the queue with a reason", pause_s=1.0)
        begun = time.monotonic()
        await caller.submit([job("one-more", "team-a", node_pools=[namespace])])
        assert time.monotonic() - begun < LIST_S
        for number in range(4):
            await caller.call("DELETE", f"/v1/workloads/team-a/first-{number}")

        async def next_ones_run() -> bool:
            running = (await caller.call("GET", "/v1/workloads?status=Running"))["items"]
            return len([item for item in running if item["name"].startswith("job-")]) == 4

        await until(next_ones_run, "the next four running", pause_s=0.5)
        assert await world.count(world.pods_path("team-a")) == 8
    await _clean_up(world, "team-a")


async def _clean_up(world: Large, project: str) -> None:
    """Everything of the installation goes; nothing is waited for but what would hold a namespace up."""
    await world.forget_workloads(project)
    for name in (world.namespace(project), world.name):
        world.cluster.end_test(name)
    world.cluster.kubectl("delete", "clusterrolebinding", f"{world.owner}-load", "--ignore-not-found", "--wait=false")
    await world.api.close()
