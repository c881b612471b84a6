"""Shares of GPUs of nodes that have a device plugin: a reservation pod takes the GPU, pods are told of it, the last one out removes it.

The nodes are played; what only a kubelet can show is in test_shares_on_a_real_node.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster.running import Cluster
from engine_world import eventually, heard
from hotdesk_scheduler.core import lifecycle
from hotdesk_scheduler.core.decide import decide
from hotdesk_scheduler.core.model import GpuRequest, Kind, PodState, Policy, Project, Quota
from hotdesk_scheduler.core.plan import Start
from hotdesk_scheduler.engines.kubernetes import claims, reservation
from hotdesk_scheduler.engines.kubernetes.observe import RESERVED
from hotdesk_scheduler.engines.kubernetes.reserving import LOOK_EVERY_S
from kube_world import Kube
from shares_world import HALF, foreign, half, items, node, nothing_is_left, reservations, shares_world, start, told, until, written


@pytest.fixture
async def kube(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Kube]:
    async with shares_world(cluster, tmp_path) as world:
        yield world


async def test_pods_that_share_are_told_the_one_device_that_their_reservation_holds_and_the_last_one_out_removes_it(kube: Kube) -> None:
    first, second, other = [await start(kube, name, group) for name, group in (("a", "g0"), ("b", "g0"), ("c", "g1"))]
    for one in (first, second, other):
        await kube.until(one, PodState.RUNNING)
    held = {one["metadata"]["annotations"][reservation.GROUP]: f"GPU-played-{one['metadata']['uid']}" for one in await reservations(kube)}
    assert set(held) == {"g0", "g1"}
    pods = [await kube.until_pod(one) for one in (first, second, other)]
    devices = await told(kube)
    assert [devices[f"{pod['metadata']['name']}-gpu"] for pod in pods] == [held["g0"], held["g0"], held["g1"]]
    details = kube.engine.details(first, 0)
    assert ([one.uuid for one in details.devices], details.tier) == ([held["g0"]], "cooperative")
    assert (details.environment["GPU_PORTION"], details.environment["HOTDESK_GPU_MEMORY_MIB"]) == ("0.5", "16384")
    assert details.environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.50"
    assert foreign(kube).gpu_millis == 0, "the core counts the shared GPUs itself"
    await kube.stop(first, grace_s=0)
    await kube.until(first, PodState.STOPPED)
    await kube.stop(other, grace_s=0)
    await until(kube, lambda: _only(kube, "g0"), "the reservation nobody uses being gone")
    await kube.stop(second, grace_s=0)
    await until(kube, lambda: nothing_is_left(kube), "everything being gone")


async def _only(kube: Kube, group: str) -> bool:
    return [one["metadata"]["annotations"][reservation.GROUP] for one in await reservations(kube)] == [group]


async def test_a_pod_refers_to_its_config_map_and_what_the_user_chose_stays(kube: Kube) -> None:
    workload_id = await start(kube, "a", "g0", environment={"TF_FORCE_GPU_ALLOW_GROWTH": "false", "LR": "0.1"})
    pod = await kube.until_pod(workload_id)
    variables = {one["name"]: one for one in pod["spec"]["containers"][0]["env"]}
    refers = {"name": f"{pod['metadata']['name']}-gpu", "key": "NVIDIA_VISIBLE_DEVICES"}
    assert variables["NVIDIA_VISIBLE_DEVICES"]["valueFrom"]["configMapKeyRef"] == refers
    assert variables["TF_FORCE_GPU_ALLOW_GROWTH"]["value"] == "false"
    assert "nvidia.com/gpu" not in pod["spec"]["containers"][0]["resources"].get("limits", {})
    (there,) = [one for one in await items(kube, "configmaps", "team-a") if one["metadata"]["name"] == refers["name"]]
    assert there["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    ]


async def test_half_of_two_gpus_each_is_two_reservations_and_one_pod(kube: Kube) -> None:
    workload_id = await start(kube, "a", "g0", "g1")
    await kube.until(workload_id, PodState.RUNNING)
    uuids = [one.uuid for one in kube.engine.details(workload_id, 0).devices]
    assert sorted(uuids) == sorted(f"GPU-played-{one['metadata']['uid']}" for one in await reservations(kube))
    assert list((await told(kube)).values()) == [",".join(uuids)]
    assert kube.engine.details(workload_id, 0).environment["HOTDESK_GPU_MEMORY_MIB"] == "32768"


async def test_a_reservation_pod_may_do_nothing_and_its_namespace_demands_that(kube: Kube) -> None:
    await kube.until(await start(kube, "a", "g0"), PodState.RUNNING)
    (pod,) = await reservations(kube)
    spec = pod["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    for one in (*spec["initContainers"], *spec["containers"]):
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    space = await kube.api.get(f"/api/v1/namespaces/{kube.namespace}-reservations")
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


async def test_a_gpu_is_nobodys_until_its_reservation_is_gone_and_the_next_one_who_shares_waits_for_a_new_one(kube: Kube) -> None:
    first = await start(kube, "a", "g0")
    await kube.until(first, PodState.RUNNING)
    (pod,) = await reservations(kube)
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
    await kube.api.merge(path, {"metadata": {"finalizers": ["test.hotdesk.io/look"]}})
    await kube.stop(first, grace_s=0)
    await kube.until(first, PodState.STOPPED)
    assert foreign(kube).gpu_millis == 1000
    await until(kube, lambda: _is_leaving(kube, path), "its end being asked for")
    second = await start(kube, "b", "g0")
    assert foreign(kube).gpu_millis == 0, "it is counted once: as the next one's"
    await asyncio.sleep(0.5)
    assert kube.pod(second).state is PodState.STARTING
    assert not await told(kube)
    await kube.api.merge(path, {"metadata": {"finalizers": None}})
    await kube.until(second, PodState.RUNNING)
    (again,) = await reservations(kube)
    assert again["metadata"]["uid"] != pod["metadata"]["uid"]
    assert list((await told(kube)).values()) == [f"GPU-played-{again['metadata']['uid']}"]


async def _is_leaving(kube: Kube, path: str) -> bool:
    return "deletionTimestamp" in (await kube.api.get(path))["metadata"]


async def test_who_shares_a_gpu_that_is_not_held_any_more_ends_with_a_sentence_and_waits_again(kube: Kube) -> None:
    changes = await heard(kube.engine)
    first, second = await start(kube, "a", "g0"), await start(kube, "b", "g1")
    for one in (first, second):
        await kube.until(one, PodState.RUNNING)
    pod = next(one for one in await reservations(kube) if one["metadata"]["annotations"][reservation.GROUP] == "g0")
    await kube.api.delete(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}")
    stopped = await kube.until(first, PodState.STOPPED)
    assert stopped.stop_reason is not None
    assert "is not held for it any more" in stopped.stop_reason.sentence
    assert any("is not held for it any more" in change.sentence for change in changes)
    assert kube.pod(second).state is PodState.RUNNING
    await kube.engine.requeue_pod(first, 0)
    await kube.start(first, placement=half(kube, "g0"))
    await kube.until(first, PodState.RUNNING)


async def test_a_gpu_that_broke_is_told_by_whoever_comes_later_as_well_and_no_plan_puts_anybody_on_it(kube: Kube) -> None:
    await kube.engine.put_project(Project("team-a", gpu=Quota(2000)))
    first = await start(kube, "a", "g0")
    await kube.until(first, PodState.RUNNING)
    await _breaks(kube)
    later = await start(kube, "b", "g0")  # planned a moment before it broke
    await kube.until(later, PodState.RUNNING)
    await eventually(lambda: "is reported broken" in _said(kube, later), "its saying so")
    await kube.stop(first, grace_s=0)
    await kube.until(first, PodState.STOPPED)
    await kube.engine.requeue_pod(first, 0)
    (begun,) = [one for one in _planned(kube) if isinstance(one, Start)]
    assert (begun.workload_id, [share.group for share in begun.placement.shares]) == (first, ["g1"])
    await kube.start(first, placement=begun.placement)
    await kube.until(first, PodState.RUNNING)
    assert _said(kube, first) == ""


async def _breaks(kube: Kube) -> None:
    """As the kubelet says it of the reservation's GPU."""
    (pod,) = await reservations(kube)
    (container,) = pod["status"]["containerStatuses"]
    device = {"resourceID": f"GPU-played-{pod['metadata']['uid']}", "health": "Unhealthy"}
    told = {**container, "allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": [device]}]}
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/status"
    await kube.api.merge(path, {"status": {"containerStatuses": [told]}})
    await eventually(lambda: next(one for one in kube.engine.snapshot().nodes if one.name == node(kube)).closed_groups, "its being closed")


def _said(kube: Kube, workload_id: str) -> str:
    return kube.engine.details(workload_id, 0).error


def _planned(kube: Kube) -> Sequence[object]:
    """What the core would do now with this node alone."""
    snapshot = kube.engine.snapshot()
    here = tuple(one for one in snapshot.nodes if one.name == node(kube))
    return decide(replace(snapshot, nodes=here), Policy(), time.time()).decisions


async def test_a_reservation_whose_mark_a_hand_took_off_is_kept_as_long_as_somebody_shares_it_and_goes_then(kube: Kube) -> None:
    shares = await start(kube, "a", "g0")
    await kube.until(shares, PodState.RUNNING)
    (pod,) = await reservations(kube)
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
    await kube.api.merge(path, {"metadata": {"annotations": None, "labels": None}})
    await kube.restart()
    assert foreign(kube).gpu_millis == 0
    assert kube.pod(shares).state is PodState.RUNNING
    await kube.stop(shares, grace_s=0)
    await until(kube, lambda: nothing_is_left(kube), "everything being gone")


async def test_reservations_made_in_another_namespace_before_it_was_changed_hold_for_those_who_share_and_go_then(kube: Kube) -> None:
    await kube.engine.put_project(Project("team-a", gpu=Quota(2000)))
    first = await start(kube, "a", "g0")
    await kube.until(first, PodState.RUNNING)
    (held,) = await reservations(kube)
    await kube.engine.close()
    kube.config = replace(kube.config, reservations=f"{kube.namespace}-elsewhere")
    await kube.restart_after_close()
    second = await kube.submit("b", gpu=HALF)
    (begun,) = [one for one in _planned(kube) if isinstance(one, Start)]
    await kube.start(second, placement=begun.placement)
    await kube.until(second, PodState.RUNNING)
    assert [one["metadata"]["annotations"][reservation.GROUP] for one in await items(kube, "pods", "elsewhere")] == ["g1"]
    assert kube.pod(first).state is PodState.RUNNING
    assert [one["metadata"]["uid"] for one in await reservations(kube)] == [held["metadata"]["uid"]]
    assert foreign(kube).gpu_millis == 0
    await kube.stop(first, grace_s=0)
    await until(kube, lambda: _has_none(kube, "reservations"), "the old one being gone")
    await kube.stop(second, grace_s=0)
    await until(kube, lambda: _has_none(kube, "elsewhere"), "the new one being gone")
    await until(kube, lambda: nothing_is_left(kube), "everything being gone")


async def _has_none(kube: Kube, space: str) -> bool:
    return not await items(kube, "pods", space)


async def test_what_looks_like_a_reservation_in_a_projects_namespace_is_none(kube: Kube) -> None:
    body = reservation.pod_object(node(kube), "g0", namespace=f"{kube.namespace}-team-a", image="x", installation=kube.namespace)
    await kube.api.create(f"/api/v1/namespaces/{kube.namespace}-team-a/pods", body)
    await eventually(lambda: foreign(kube).gpu_millis == 1000, "its being seen as others'")
    await kube.until(await start(kube, "a", "g0"), PodState.RUNNING)
    assert foreign(kube).gpu_millis == 1000


@pytest.mark.parametrize("keeps_config_map", [True, False])
async def test_a_pod_whose_notes_a_hand_took_off_goes_on_and_is_noted_again(kube: Kube, keeps_config_map: bool) -> None:
    shares = await start(kube, "a", "g0")
    await kube.until(shares, PodState.RUNNING)
    path = kube.pod_path(shares)
    before = (await kube.api.get(path))["metadata"]["annotations"][RESERVED]
    await kube.api.merge(path, {"metadata": {"annotations": None, "labels": None}})
    if not keeps_config_map:
        await kube.api.delete(f"{path.replace('/pods/', '/configmaps/')}-gpu")
    await kube.restart()

    async def is_noted() -> bool:
        return bool(((await kube.api.get(path))["metadata"].get("annotations") or {}).get(RESERVED) == before)

    await until(kube, is_noted, "its note being there again")
    assert kube.pod(shares).state is PodState.RUNNING
    await kube.stop(shares, grace_s=0)
    await until(kube, lambda: nothing_is_left(kube), "everything being gone")


async def test_a_pod_without_its_notes_ends_if_its_config_map_names_another_gpu_than_is_held_now(kube: Kube) -> None:
    shares = await start(kube, "a", "g0")
    await kube.until(shares, PodState.RUNNING)
    (pod,) = await reservations(kube)
    there = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
    await kube.engine.close()
    await kube.api.merge(kube.pod_path(shares), {"metadata": {"annotations": None}})
    await kube.api.delete(f"{there}/{pod['metadata']['name']}", {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})
    terms = kube.config.reserving
    await kube.api.create(there, reservation.pod_object(node(kube), "g0", namespace=terms.namespace, image=terms.image))

    async def says_its_device() -> bool:
        found = reservation.read((await reservations(kube))[0])
        return bool(found and found.device)

    await until(kube, says_its_device, "the other GPU being held")
    await kube.restart_after_close()
    stopped = await kube.until(shares, PodState.STOPPED)
    assert stopped.stop_reason is not None
    assert f"GPU GPU-played-{pod['metadata']['uid']} of {node(kube)} that it shared is not held" in stopped.stop_reason.sentence


@pytest.mark.parametrize(
    ("image", "words", "tries"),
    [("missing", "Its image cannot be had (ImagePullBackOff): no such image", 1), ("refused", "no GPU is left", 3)],
)
async def test_a_gpu_that_cannot_be_set_aside_is_said_after_some_tries_and_nothing_stays_held(
    cluster: Cluster, tmp_path: Path, image: str, words: str, tries: int
) -> None:
    terms = {"reservation_image": f"test.hotdesk.io/{image}", "reservation_patience_s": 3.0 if tries == 1 else 60.0}
    async with shares_world(cluster, tmp_path, **terms) as kube:
        asked = written(kube)
        failed = await kube.until(await start(kube, "a", "g0"), PodState.FAILED)
        assert failed.stop_reason is not None
        sentence = failed.stop_reason.sentence
        assert sentence.startswith(f"No GPU of {node(kube)} could be set aside for sharing: ")
        assert words in sentence
        assert f"kubectl get events -n {kube.namespace}-reservations" in sentence
        assert asked.count(f"POST /api/v1/namespaces/{kube.namespace}-reservations/pods") == tries
        await until(kube, lambda: nothing_is_left(kube), "everything being gone")
        assert not await items(kube, "pods", "team-a")


async def test_a_reservation_pod_that_is_taken_away_as_often_as_it_is_made_is_said_and_not_waited_for(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with shares_world(cluster, tmp_path, reservation_image="test.hotdesk.io/missing", reservation_patience_s=600.0) as kube:
        asked = written(kube)
        workload_id = await start(kube, "a", "g0")
        taken: set[str] = set()

        async def is_over() -> bool:
            for one in await reservations(kube):
                options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
                await kube.api.delete(f"/api/v1/namespaces/{kube.namespace}-reservations/pods/{one['metadata']['name']}", options)
                taken.add(one["metadata"]["uid"])
            return kube.pod(workload_id).state is PodState.FAILED

        await until(kube, is_over, "its end")
        assert len(taken) == asked.count(f"POST /api/v1/namespaces/{kube.namespace}-reservations/pods") == 3
        reason = kube.pod(workload_id).stop_reason
        assert reason is not None
        assert reason.sentence.startswith(f"No GPU of {node(kube)} could be set aside for sharing: ")
        await until(kube, lambda: nothing_is_left(kube), "everything being gone")


async def test_a_reservation_pod_is_made_once_however_late_the_news_of_it_comes(kube: Kube) -> None:
    await kube.engine._intake.pods.stop()
    asked = written(kube)
    workload_id = await start(kube, "a", "g0")
    posted = f"POST /api/v1/namespaces/{kube.namespace}-reservations/pods"
    await eventually(lambda: posted in asked, "its reservation")
    await asyncio.sleep(3 * LOOK_EVERY_S)
    assert asked.count(posted) == 1
    kube.engine._intake.pods.start()
    await kube.until(workload_id, PodState.RUNNING)


async def test_after_a_restart_devices_and_grants_are_read_from_what_exists(kube: Kube) -> None:
    first, second = await start(kube, "a", "g0"), await start(kube, "b", "g0")
    for one in (first, second):
        await kube.until(one, PodState.RUNNING)
    before, held = kube.engine.details(first, 0), await reservations(kube)
    await kube.restart()
    assert kube.engine.details(first, 0) == before
    assert kube.pod(second).state is PodState.RUNNING
    assert foreign(kube).gpu_millis == 0
    await kube.stop(first, grace_s=0)
    await kube.until(first, PodState.STOPPED)
    assert [one["metadata"]["uid"] for one in await reservations(kube)] == [one["metadata"]["uid"] for one in held]


async def test_a_workspace_is_granted_when_its_gpu_is_set_aside_and_its_config_map_goes_with_its_end(kube: Kube) -> None:
    workload_id = await kube.submit("workspace-ann", kind=Kind.WORKSPACE, gpu=HALF)
    await kube.start(workload_id, placement=half(kube, "g0"))
    assert not kube.engine.details(workload_id, 0).is_ready
    await eventually(lambda: kube.engine.details(workload_id, 0).is_ready, "its grant")
    (pod,) = await reservations(kube)
    grant = kube.engine.details(workload_id, 0).grant
    assert grant is not None
    assert await told(kube) == {grant.config_map: f"GPU-played-{pod['metadata']['uid']}"}
    assert {"NVIDIA_VISIBLE_DEVICES", "GPU_PORTION", "HOTDESK_TIER"} <= set(grant.config_keys)
    await kube.restart()
    await eventually(lambda: kube.engine.details(workload_id, 0).is_ready, "its grant again")
    assert kube.engine.details(workload_id, 0).grant == grant
    await kube.engine.report_pod(workload_id, 0, PodState.RUNNING, 1.0)
    await kube.engine.report_pod(workload_id, 0, PodState.STOPPED, 2.0)
    await until(kube, lambda: nothing_is_left(kube), "everything being gone")


async def test_a_workspaces_time_to_be_taken_up_begins_when_its_gpu_is_set_aside(cluster: Cluster, tmp_path: Path) -> None:
    async with shares_world(cluster, tmp_path, reservation_image="test.hotdesk.io/missing") as kube:
        workload_id = await kube.submit("workspace-ann", kind=Kind.WORKSPACE, gpu=HALF)
        await kube.start(workload_id, placement=half(kube, "g0"))
        await until(kube, lambda: _is_there(kube), "its reservation")
        assert not lifecycle.review(kube.engine.snapshot(), Policy(grant_take_up_s=0.0), time.time()), "nothing was granted yet"
        before = time.time()
        await _says_its_device(kube)
        await eventually(lambda: kube.engine.details(workload_id, 0).is_ready, "its grant")
        shown_at = kube.pod(workload_id).started_at
        assert shown_at is not None
        assert shown_at >= before
        assert lifecycle.review(kube.engine.snapshot(), Policy(grant_take_up_s=0.0), time.time())
        await kube.restart()
        await eventually(lambda: kube.engine.details(workload_id, 0).is_ready, "its grant again")
        assert kube.pod(workload_id).started_at == pytest.approx(shown_at, abs=0.001)


async def _is_there(kube: Kube) -> bool:
    return bool(await reservations(kube))


async def _says_its_device(kube: Kube) -> None:
    """As if its image had come at last."""
    (pod,) = await reservations(kube)
    base = {"image": "x", "imageID": "", "ready": True, "restartCount": 0}
    said = {**base, "name": "report", "state": {"terminated": {"exitCode": 0, "message": "GPU-1"}}}
    holds = {**base, "name": "hold", "state": {"running": {"startedAt": "2026-01-01T10:00:00Z"}}}
    status = {"phase": "Running", "initContainerStatuses": [said], "containerStatuses": [holds]}
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/status"
    await kube.api.merge(path, {"status": status})


async def make_other(kube: Kube, name: str, *, config_map: str = "", devices: int = 1, **container: Any) -> str:
    """A pod of somebody else that asks for half a GPU; answers its id."""
    notes = {"gpu-fraction": "0.5", **({claims.CONFIG_MAPS[0]: config_map} if config_map else {})}
    notes |= {claims.DEVICES: str(devices)} if devices > 1 else {}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": notes},
        "spec": {"schedulerName": "hotdesk", "containers": [{"name": "theirs", "image": "x", **container}]},
    }
    made = await kube.api.create(f"/api/v1/namespaces/{kube.namespace}-team-a/pods", body)
    uid: str = made["metadata"]["uid"]
    await eventually(lambda: kube.find(uid), "it being queued")
    return uid


async def test_a_pod_of_others_is_told_through_the_config_map_it_refers_to(kube: Kube) -> None:
    refers = {"name": "their-share", "key": "NVIDIA_VISIBLE_DEVICES"}
    uid = await make_other(kube, "theirs", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": refers}}])
    ours = await start(kube, "ours", "g0")
    await kube.start(uid, placement=half(kube, "g0"))
    await kube.until(uid, PodState.RUNNING)
    await kube.until(ours, PodState.RUNNING)
    (held,) = await reservations(kube)
    found = {one["metadata"]["name"]: one for one in await items(kube, "configmaps", "team-a")}
    assert found["their-share"]["data"]["NVIDIA_VISIBLE_DEVICES"] == f"GPU-played-{held['metadata']['uid']}"
    assert found["their-share"]["metadata"]["ownerReferences"][0]["uid"] == uid
    await kube.restart()
    assert kube.pod(uid).placement == half(kube, "g0")
    await kube.stop(uid, grace_s=0)
    await kube.stop(ours, grace_s=0)
    await until(kube, lambda: nothing_is_left(kube), "everything being gone")


async def test_a_pod_of_others_that_asks_for_a_part_of_two_gpus_has_both(kube: Kube) -> None:
    uid = await make_other(kube, "theirs", config_map="their-share", devices=2)
    assert kube.pod(uid).request.gpu == GpuRequest(millis=500, devices=2)
    await kube.start(uid, placement=half(kube, "g0", "g1"))
    await kube.until(uid, PodState.RUNNING)
    held = {f"GPU-played-{one['metadata']['uid']}" for one in await reservations(kube)}
    found = {one["metadata"]["name"]: one for one in await items(kube, "configmaps", "team-a")}
    assert (len(held), set(found["their-share"]["data"]["NVIDIA_VISIBLE_DEVICES"].split(","))) == (2, held)
    await kube.restart()
    assert kube.pod(uid).placement == half(kube, "g0", "g1")


async def test_a_config_map_that_is_somebody_elses_is_not_taken_for_a_share_whatever_a_pod_names(kube: Kube) -> None:
    changes = await heard(kube.engine)
    path = f"/api/v1/namespaces/{kube.namespace}-team-a/configmaps"
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"of": "somebody"}}
    await kube.api.create(path, theirs)
    refers = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "of"}}}]
    refused = await make_other(kube, "refused", config_map="settings", env=refers)
    first, second = [await make_other(kube, name, config_map="same") for name in ("first", "second")]
    await kube.start(refused, placement=half(kube, "g0"))
    await eventually(lambda: any("settings, which is to tell it" in change.sentence for change in changes), "it being refused")
    assert (await kube.api.get(f"{path}/settings"))["data"] == theirs["data"]
    await kube.start(first, placement=half(kube, "g0"))
    await kube.until(first, PodState.RUNNING)
    await kube.start(second, placement=half(kube, "g1"))
    await eventually(lambda: any("same, which is to tell it" in change.sentence for change in changes), "the second one being refused")
    assert (await kube.api.get(f"{path}/same"))["metadata"]["ownerReferences"][0]["uid"] == first


async def test_a_pod_of_others_that_names_no_config_map_cannot_be_told_and_that_is_said(kube: Kube) -> None:
    changes = await heard(kube.engine)
    uid = await make_other(kube, "silent")
    await kube.start(uid, placement=half(kube, "g0"))
    await eventually(lambda: any("names no ConfigMap" in change.sentence for change in changes), "it being said")
    assert not await reservations(kube)
