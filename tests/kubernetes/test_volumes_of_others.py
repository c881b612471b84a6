"""Pods of others that use claims: placed where their volumes lie; bound when a volume is made on their node; what is missing is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from engine_world import eventually, heard
from hotdesk_scheduler.core.model import NodeRule, Placement, PodState, Volume
from hotdesk_scheduler.engines.kubernetes import tries
from hotdesk_scheduler.engines.kubernetes.volumes import SELECTED_NODE
from kube_world import Json, Kube
from others import Others

CLASSES, VOLUMES = "/apis/storage.k8s.io/v1/storageclasses", "/api/v1/persistentvolumes"
PLAYED, LATE = "test.hotdesk.io/played", "WaitForFirstConsumer"
HOST = "kubernetes.io/hostname"
FIRST, SECOND = Placement("dgx1-1"), Placement("dgx1-2")


def on(node: str) -> Json:
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": HOST, "operator": "In", "values": [node]}]}]}}


def lies(claim: str, node: str) -> tuple[Volume, ...]:
    return (Volume(claim, ((NodeRule(HOST, "In", (node,)),),)),)


class Storage:
    """Somebody who makes claims and classes in the namespace of team-a, and plays their provisioner."""

    def __init__(self, kube: Kube, others: Others) -> None:
        self.kube = kube
        self.others = others
        self.claims = f"/api/v1/namespaces/{others.space}/persistentvolumeclaims"

    def called(self, name: str) -> str:
        """Classes and volumes are the cluster's."""
        return f"{self.kube.namespace}-{name}"

    async def add_class(self, name: str = "late", *, mode: str = LATE, provisioner: str = PLAYED, **more: object) -> None:
        meta = {"name": self.called(name), "labels": {"test.hotdesk.io/namespace": self.kube.namespace}}
        kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": meta}
        await self.kube.api.create(CLASSES, {**kind, "provisioner": provisioner, "volumeBindingMode": mode, **more})

    def claim_spec(self, kind: str = "late") -> Json:
        return {"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteOnce"], "storageClassName": self.called(kind)}

    async def add_claim(self, name: str, kind: str = "late", **meta: Json) -> None:
        body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, **meta}, "spec": self.claim_spec(kind)}
        await self.kube.api.create(self.claims, body)

    async def remove_claim(self, name: str) -> None:
        """Gone when it returns: that is so where no pod with a node uses it."""
        for _ in range(300):
            if not await self.kube.api.delete(f"{self.claims}/{name}"):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"the claim is {await self.claim(name)}")

    async def claim(self, name: str) -> Json:
        return await self.kube.api.get(f"{self.claims}/{name}")

    async def until_told(self, name: str, node: str | None) -> None:
        """To make its volume on this node."""
        for _ in range(300):
            if (await self.claim(name))["metadata"].get("annotations", {}).get(SELECTED_NODE) == node:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"the claim is {await self.claim(name)}")

    async def provide(self, name: str, node: str) -> None:
        """A volume that only this node reaches, bound to the claim."""
        found = await self.claim(name)
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": found["spec"]["storageClassName"],
            "claimRef": {"namespace": self.others.space, "name": name, "uid": found["metadata"]["uid"]},
            "nodeAffinity": on(node),
            "local": {"path": "/played"},
        }
        meta = {"name": self.called(name), "labels": {"test.hotdesk.io/namespace": self.kube.namespace}}
        await self.kube.api.create(VOLUMES, {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": meta, "spec": spec})
        for _ in range(300):
            if (await self.claim(name))["spec"].get("volumeName"):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"the claim is {await self.claim(name)}")

    async def node_of(self, pod: str) -> str | None:
        spec: Json = (await self.kube.api.get(f"{self.others.path}/{pod}"))["spec"]
        return spec.get("nodeName")


def uses(*claims: str) -> list[Json]:
    return [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]


@pytest.fixture
def others(kube: Kube) -> Others:
    return Others(kube)


@pytest.fixture
async def storage(kube: Kube, others: Others) -> AsyncIterator[Storage]:
    yield Storage(kube, others)
    for path in (CLASSES, VOLUMES):
        await kube.api.request("DELETE", path, params={"labelSelector": f"test.hotdesk.io/namespace={kube.namespace}"})


async def until(holds: Callable[[], object], what: str) -> None:
    await eventually(holds, what)


async def test_a_claim_that_waits_for_its_first_pod_is_told_the_node_and_the_pod_is_bound_with_its_volume(
    kube: Kube, others: Others, storage: Storage
) -> None:
    await storage.add_class()
    await storage.add_claim("data")
    uid = await others.make("stores", gpus=1, volumes=uses("data"))
    await kube.start(uid, placement=Placement("dgx1-2", whole=1))
    await storage.until_told("data", "dgx1-2")
    assert await storage.node_of("stores") is None
    await storage.provide("data", "dgx1-2")
    await kube.until(uid, PodState.RUNNING)
    assert await storage.node_of("stores") == "dgx1-2"


async def test_a_claim_whose_class_serves_some_nodes_only_ties_its_pod_to_them(kube: Kube, others: Others, storage: Storage) -> None:
    await storage.add_class(allowedTopologies=[{"matchLabelExpressions": [{"key": HOST, "values": ["dgx1-2"]}]}])
    await storage.add_claim("data")
    found = kube.find(await others.make("stores", volumes=uses("data")))
    assert found is not None
    assert found.volumes == lies("data", "dgx1-2")


async def test_an_ephemeral_volume_is_made_on_its_pods_node(kube: Kube, others: Others, storage: Storage) -> None:
    await storage.add_class()
    template = {"volumeClaimTemplate": {"spec": storage.claim_spec()}}
    uid = await others.make("sorts", volumes=[{"name": "scratch", "ephemeral": template}])
    await kube.start(uid, placement=SECOND)
    await storage.until_told("sorts-scratch", "dgx1-2")
    await storage.provide("sorts-scratch", "dgx1-2")
    await kube.until(uid, PodState.RUNNING)


async def test_a_scheduler_killed_before_it_bound_the_pod_leaves_nothing_in_the_way(kube: Kube, others: Others, storage: Storage) -> None:
    await storage.add_class()
    await storage.add_claim("data")
    uid = await others.make("stores", volumes=uses("data"))
    await kube.start(uid, placement=SECOND)
    await storage.until_told("data", "dgx1-2")
    await kube.kill()
    await kube.take_over()
    await until(lambda: kube.find(uid), "it being queued again")
    await kube.start(uid, placement=FIRST)
    await storage.until_told("data", "dgx1-1")
    await storage.provide("data", "dgx1-1")
    await kube.until(uid, PodState.RUNNING)
    assert await storage.node_of("stores") == "dgx1-1"


async def test_a_pod_is_tied_to_where_its_volume_lies_also_after_a_restart(kube: Kube, others: Others, storage: Storage) -> None:
    await storage.add_class()
    await storage.add_claim("data")
    await storage.provide("data", "dgx1-2")
    uid = await others.make("stores", volumes=uses("data"))
    for _ in range(2):
        found = kube.find(uid)
        assert found is not None
        assert found.volumes == lies("data", "dgx1-2")
        await kube.restart()
        await until(lambda: kube.find(uid), "it being queued again")


async def test_a_volume_that_another_pod_had_made_elsewhere_ties_this_one_to_it(kube: Kube, others: Others, storage: Storage) -> None:
    await storage.add_class()
    await storage.add_claim("data")
    first, second = [await others.make(name, volumes=uses("data")) for name in ("one", "two")]
    await kube.start(first, placement=FIRST)
    await storage.until_told("data", "dgx1-1")
    await kube.start(second, placement=SECOND)
    await storage.provide("data", "dgx1-1")
    await kube.until(first, PodState.RUNNING)
    await until(lambda: (found := kube.find(second)) and found.volumes == lies("data", "dgx1-1"), "the second one being tied")
    assert kube.pod(second).state is PodState.PENDING
    await storage.until_told("data", "dgx1-1")
    await kube.run(second, placement=FIRST)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (None, "There is no claim data in namespace"),
        ({"mode": "Immediate"}, "Its claim data has no volume yet: kubectl describe pvc data -n"),
        ({"provisioner": "kubernetes.io/no-provisioner"}, "makes none: an admin names the claim in a volume (spec.claimRef)"),
    ],
)
async def test_a_pod_whose_claim_cannot_be_had_says_so_and_goes_on_when_it_can(
    kube: Kube, others: Others, storage: Storage, made: dict[str, str] | None, words: str
) -> None:
    await storage.add_class(**made or {})
    if made is not None:
        await storage.add_claim("data")
    uid = await others.put("stores", volumes=uses("data"))
    await others.until_told("stores", words)
    assert kube.find(uid) is None
    if made is None:
        await storage.add_claim("data")
    else:
        await storage.provide("data", "dgx1-2")
    await until(lambda: kube.find(uid), "it being queued")


async def test_one_whose_claim_went_while_it_waited_gives_its_place_back_and_says_so(kube: Kube, others: Others, storage: Storage) -> None:
    await storage.add_class()
    await storage.add_claim("data")
    uid = await others.make("stores", volumes=uses("data"))
    await storage.remove_claim("data")
    await kube.start(uid, placement=FIRST)
    await others.until_told("stores", "There is no claim data")
    assert kube.find(uid) is None
    await storage.add_claim("data")
    await until(lambda: kube.find(uid), "it being queued")
    assert kube.pod(uid).state is PodState.PENDING


async def test_a_volume_that_cannot_be_made_there_gives_the_place_back(
    kube: Kube, others: Others, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotdesk_scheduler.engines.kubernetes.others.PAUSE_S", 0.1)
    await storage.add_class()
    await storage.add_claim("data")
    uid = await others.make("stores", volumes=uses("data"))
    changes = await heard(kube.engine)
    await kube.start(uid, placement=FIRST)
    await storage.until_told("data", "dgx1-1")
    await kube.api.merge(f"{storage.claims}/data", {"metadata": {"annotations": {SELECTED_NODE: None}}})  # as csi-provisioner does
    await kube.until(uid, PodState.PENDING)
    await until(lambda: any("got no volume on node dgx1-1: kubectl" in one.sentence for one in changes), "why")
    monkeypatch.setattr(tries, "GIVEN_UP_AFTER_S", 0.5)
    await kube.start(uid, placement=SECOND)
    await kube.until(uid, PodState.PENDING)
    await until(lambda: any("no volume on node dgx1-2 for a long time" in one.sentence for one in changes), "why")


async def test_one_that_is_taken_away_while_its_volume_is_made_goes(kube: Kube, others: Others, storage: Storage) -> None:
    await storage.add_class()
    await storage.add_claim("data")
    uid = await others.make("stores", volumes=uses("data"))
    await kube.start(uid, placement=FIRST)
    await storage.until_told("data", "dgx1-1")
    await kube.stop(uid, grace_s=0)
    await until(lambda: kube.find(uid) is None, "it being gone")


async def test_the_volumes_of_a_gangs_pods_count_for_all_of_them_as_long_as_they_are_there(
    kube: Kube, others: Others, storage: Storage
) -> None:
    await storage.add_class()
    for name in ("left", "right"):
        await storage.add_claim(name)
        await storage.provide(name, "dgx1-2")
        await others.put(name, annotations={"hotdesk.io/pod-group": "g", "hotdesk.io/pod-group-size": "2"}, volumes=uses(name))

    def tied() -> set[str]:
        found = others.called("g")
        return {volume.name for volume in found.volumes} if found is not None else set()

    await until(lambda: tied() == {"left", "right"}, "both counting")
    await kube.api.delete(f"{others.path}/left")
    await until(lambda: tied() == {"right"}, "one being left")
