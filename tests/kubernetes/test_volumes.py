"""Where the volumes of a workspace lie, as the engine reads it when it is submitted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from hotdesk_scheduler.core.model import Kind, NodeRule, Volume
from hotdesk_scheduler.engines.kubernetes import volumes
from hotdesk_scheduler.engines.kubernetes.api import Api
from kube_world import Json, Kube

ZONE = "topology.kubernetes.io/zone"


@pytest.fixture
async def space(kube: Kube) -> AsyncIterator[str]:
    """The namespace of project team-a; volumes of it are gone at the end."""
    yield f"{kube.namespace}-team-a"
    for item in (await kube.api.get("/api/v1/persistentvolumes"))["items"]:
        if item["metadata"]["name"].startswith(kube.namespace):
            await kube.api.delete(f"/api/v1/persistentvolumes/{item['metadata']['name']}")


async def add_claim(kube: Kube, space: str, name: str, *, volume: Json | None = None) -> None:
    """Bound to a volume that says this of its nodes; None: without one."""
    size, modes = {"storage": "1Gi"}, ["ReadWriteOnce"]
    bound = f"{kube.namespace}-{name}"
    if volume is not None:
        spec = {
            "capacity": size,
            "accessModes": modes,
            "storageClassName": name,
            "csi": {"driver": "x", "volumeHandle": name},
            **volume,
        }
        await kube.api.create(
            "/api/v1/persistentvolumes", {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": bound}, "spec": spec}
        )
    spec = {"resources": {"requests": size}, "accessModes": modes, "storageClassName": name}
    if volume is not None:
        spec["volumeName"] = bound
    meta = {"name": name, "namespace": space}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}
    await kube.api.create(f"/api/v1/namespaces/{space}/persistentvolumeclaims", claim)


async def test_a_workspace_is_tied_to_the_nodes_that_reach_its_volumes_also_after_a_restart(kube: Kube, space: str) -> None:
    zones = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a", "b"]}, {"key": "old", "operator": "DoesNotExist"}]}]
    await add_claim(kube, space, "home", volume={"nodeAffinity": {"required": {"nodeSelectorTerms": zones}}})
    await add_claim(kube, space, "everywhere", volume={})
    await add_claim(kube, space, "not-yet")
    claims = ["home", "everywhere", "not-yet", "to-be-made"]
    workload_id = await kube.submit("desk", kind=Kind.WORKSPACE, image="", volume_claims=claims)
    tied = (Volume("home", ((NodeRule(ZONE, "In", ("a", "b")), NodeRule("old", "DoesNotExist")),)),)
    for _ in range(2):
        found = kube.find(workload_id)
        assert found is not None
        assert found.volumes == tied
        assert kube.engine.spec(workload_id).volume_claims == claims
        await kube.restart()


async def test_where_it_may_not_look_a_workspace_is_tied_to_nothing(kube: Kube, space: str) -> None:
    if kube.cluster.external:
        pytest.skip("KUBECONFIG names another cluster, whose people are not ours")
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a"]}]}
    await add_claim(kube, space, "home", volume={"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}})
    nobody = kube.directory / "nobody"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody"}}
    kube.cluster.apply(account, namespace=kube.namespace)
    token = kube.cluster.kubectl("create", "token", "nobody", "-n", kube.namespace).strip()
    config = json.loads(kube.cluster.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    nobody.write_text(json.dumps(config))
    api = await Api.connect(nobody)
    try:
        assert await volumes.tied(api, space, ["home"]) == ()
    finally:
        await api.close()
    assert await volumes.tied(kube.api, space, ["home"]) == (Volume("home", ((NodeRule(ZONE, "In", ("a",)),),)),)
