"""Pods of others that ask for disk, other devices or ports of their host: placed where those are free, and never two for one."""

from __future__ import annotations

import pytest
from engine_world import eventually, heard
from hotdesk_scheduler.core.model import Placement, PodState, Scarce
from hotdesk_scheduler.core.reasons import ReasonCode, reason
from hotdesk_scheduler.engines.kubernetes import engine
from kube_world import Json, Kube
from others import Others

FIRST, SECOND = Placement("dgx1-1"), Placement("dgx1-2")


@pytest.fixture
def others(kube: Kube) -> Others:
    return Others(kube)


def listens(port: int = 8080) -> list[Json]:
    return [{"name": "theirs", "image": "serve:1", "ports": [{"containerPort": port, "hostPort": port}]}]


async def node_of(kube: Kube, others: Others, name: str) -> str | None:
    spec: Json = (await kube.api.get(f"{others.path}/{name}"))["spec"]
    return spec.get("nodeName")


async def test_of_two_pods_sent_to_one_node_that_ask_for_its_port_one_is_bound_and_the_other_waits_for_another_place(
    kube: Kube, others: Others
) -> None:
    changes = await heard(kube.engine)
    uids = [await others.make(name, containers=listens()) for name in ("one", "two")]
    for uid in uids:
        await kube.start(uid, placement=FIRST)
    await kube.until(uids[0], PodState.RUNNING)
    await eventually(lambda: kube.pod(uids[1]).state is PodState.PENDING, "the second one waiting again")
    said = "Node dgx1-1 does not have host port 8080/TCP for every pod that was sent there. It waits for another place."
    assert [change.sentence for change in changes if change.kind == "failed_verb"] == [said]
    found = next(one for one in kube.engine.snapshot().workloads if one.id == uids[1])
    assert [(one.what, "dgx1-1" in one.lacking, "dgx1-2" in one.lacking) for one in found.scarce] == [("host port 8080/TCP", True, False)]
    await kube.start(uids[1], placement=SECOND)
    await kube.until(uids[1], PodState.RUNNING)
    assert await node_of(kube, others, "two") == "dgx1-2"


async def test_what_others_hold_there_is_not_free_also_after_a_restart_and_free_when_they_are_gone(kube: Kube, others: Others) -> None:
    uid = await others.make("holds", containers=listens())
    await kube.start(uid, placement=FIRST)
    await kube.until(uid, PodState.RUNNING)
    await kube.restart()
    waits = await others.make("waits", containers=listens())

    def lacking() -> bool:
        found = next(one for one in kube.engine.snapshot().workloads if one.id == waits)
        return any("dgx1-1" in one.lacking for one in found.scarce)

    assert lacking()
    await others.delete("holds")
    await eventually(lambda: not lacking(), "its port being free")


async def test_a_device_that_comes_to_a_node_is_told_to_who_waits_for_it(kube: Kube, others: Others) -> None:
    name = await kube.add_node(f"{kube.namespace}-n", owner=kube.namespace)
    limits = {"limits": {"test.hotdesk.io/nic": "1"}}
    uid = await others.make("asks", containers=[{"name": "theirs", "image": "train:1", "resources": limits}])

    def scarce() -> tuple[Scarce, ...]:
        return next(one for one in kube.engine.snapshot().workloads if one.id == uid).scarce

    assert (scarce()[0].what, scarce()[0].could, name in scarce()[0].lacking) == ("1 test.hotdesk.io/nic", False, True)
    room = {"test.hotdesk.io/nic": "1"}
    await kube.api.merge(f"/api/v1/nodes/{name}/status", {"status": {"allocatable": room, "capacity": room}})
    await eventually(lambda: name not in scarce()[0].lacking, "its node")
    await kube.start(uid, placement=Placement(name))
    await kube.until(uid, PodState.RUNNING)


async def test_where_it_is_free_is_told_anew_when_it_is_elsewhere(kube: Kube, others: Others, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "EXPLAINED_EVERY_S", 0.0)
    uid = await others.make("asks", containers=[{"name": "theirs", "image": "x", "resources": {"limits": {"test.hotdesk.io/nic": "1"}}}])
    for sentence in ("Only n1 has it.", "Only n2 has it."):
        kube.engine.show_holds({uid: reason(ReasonCode.NODES_EXCLUDED, sentence)})

        await others.until_told("asks", sentence)
