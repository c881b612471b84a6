"""What can happen to a pod on a cluster, and what becomes of its workload."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from engine_world import eventually, heard
from hotdesk_api.errors import Conflict
from hotdesk_scheduler.core.model import GpuRequest, Placement, PodState
from hotdesk_scheduler.core.reasons import ReasonCode
from hotdesk_scheduler.engines.kubernetes import objects, resources
from hotdesk_scheduler.engines.kubernetes.api import ApiError
from kube_world import Kube


async def test_a_whole_gpu_is_asked_of_the_device_plugin_and_the_pod_says_who_it_is(kube: Kube) -> None:
    workload_id = await kube.submit("job", gpu=GpuRequest(whole=2), environment={"LR": "0.1", "JOB_NAME": "somebody"})
    await kube.run(workload_id, placement=Placement("dgx1-1", whole=2))
    pod = await kube.until_pod(workload_id)
    container = pod["spec"]["containers"][0]
    variables = {one["name"]: one.get("value", "") for one in container["env"]}
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert (variables["JOB_NAME"], variables["LR"], variables["RUNAI_NUM_OF_GPUS"]) == ("job", "0.1", "2")
    assert pod["spec"]["schedulerName"] == "hotdesk"
    assert pod["metadata"]["ownerReferences"][0]["kind"] == "Workload"
    assert [device.uuid for device in kube.engine.details(workload_id, 0).devices] == ["GPU-SIM-dgx1-1-0", "GPU-SIM-dgx1-1-1"]


async def test_an_image_that_cannot_be_pulled_fails_with_the_kubelets_words_and_gives_its_place_back(kube: Kube) -> None:
    changes = await heard(kube.engine)
    workload_id = await kube.submit("job", annotations={"test.hotdesk.io/waits": "ImagePullBackOff"})
    await kube.start(workload_id)
    failed = await kube.until(workload_id, PodState.FAILED)
    assert failed.stop_reason is not None
    assert failed.stop_reason.sentence == "Its image cannot be had (ImagePullBackOff): said by the test"
    assert any(change.kind == "failed_verb" and "ImagePullBackOff" in change.sentence for change in changes)
    workload = kube.find(workload_id)
    assert workload is not None
    assert workload.failures == 1
    assert "ImagePullBackOff" in kube.engine.details(workload_id, 0).error
    assert "ImagePullBackOff" in (await kube.status("job", lambda status: status["failures"] == 1))["message"]


async def test_out_of_memory_is_said_as_what_it_is(kube: Kube) -> None:
    notes = {"test.hotdesk.io/runs-for": "100ms", "test.hotdesk.io/exit-code": "137", "test.hotdesk.io/reason": "OOMKilled"}
    workload_id = await kube.submit("job", annotations=notes)
    await kube.start(workload_id)
    failed = await kube.until(workload_id, PodState.FAILED)
    assert failed.exit_code == 137
    assert failed.stop_reason is not None
    assert "more memory" in failed.stop_reason.sentence


async def test_a_pod_evicted_by_its_node_waits_again_and_is_not_counted_as_failed(kube: Kube) -> None:
    workload_id = await kube.submit("job")
    await kube.run(workload_id)
    await kube.set_status(workload_id, phase="Failed", reason="Evicted", message="The node was low on resource: memory.")
    lost = await kube.until(workload_id, PodState.LOST)
    assert lost.stop_reason is not None
    assert lost.stop_reason.sentence == "Its node evicted it: The node was low on resource: memory."
    workload = kube.find(workload_id)
    assert workload is not None
    assert workload.failures == 0


async def test_what_the_kubelet_refuses_fails_with_its_words(kube: Kube) -> None:
    workload_id = await kube.submit("job")
    await kube.run(workload_id)
    await kube.set_status(workload_id, phase="Failed", reason="UnexpectedAdmissionError", message="not enough GPUs left")
    failed = await kube.until(workload_id, PodState.FAILED)
    assert failed.stop_reason is not None
    assert failed.stop_reason.sentence == "Its node would not start it: not enough GPUs left"


async def test_a_pod_deleted_by_somebody_else_is_lost_and_its_place_is_free_only_when_it_is_gone(kube: Kube) -> None:
    workload_id = await kube.submit("job", annotations={"test.hotdesk.io/stops-in": "700ms"})
    await kube.run(workload_id)
    await kube.api.delete(kube.pod_path(workload_id))
    releasing = await kube.until(workload_id, PodState.RELEASING)
    assert releasing.stop_reason is not None
    assert releasing.stop_reason.code is ReasonCode.PROCESS_LOST
    stopped = await kube.until(workload_id, PodState.STOPPED)
    assert stopped.stop_reason == releasing.stop_reason
    await kube.engine.requeue_pod(workload_id, 0)
    await kube.run(workload_id)


async def test_a_pod_that_is_gone_says_no_more_that_its_gpu_is_broken(kube: Kube) -> None:
    workload_id = await kube.submit("job", gpu=GpuRequest(whole=1))
    await kube.run(workload_id, placement=Placement("dgx1-1", whole=1))
    unhealthy = [{"name": "nvidia.com/gpu", "resources": [{"resourceID": "GPU-1", "health": "Unhealthy"}]}]
    await kube.set_status(workload_id, phase="Running", state={"running": {}}, allocated=unhealthy)
    await eventually(lambda: "reported broken" in kube.engine.details(workload_id, 0).error, "its saying so")
    await kube.api.delete(kube.pod_path(workload_id), {"gracePeriodSeconds": 0})
    await eventually(lambda: kube.pod(workload_id).state in (PodState.LOST, PodState.STOPPED), "its end")
    assert kube.engine.details(workload_id, 0).error == ""
    await kube.status("job", lambda status: "reported broken" not in str(status))


async def test_pods_of_a_node_that_stays_away_are_lost_with_it(kube: Kube) -> None:
    name = await kube.add_node(f"{kube.namespace}-n", owner=kube.namespace)
    workload_id = await kube.submit("job")
    await eventually(lambda: any(node.name == name and node.ready for node in kube.engine.snapshot().nodes))
    await kube.run(workload_id, placement=Placement(name))
    await kube.api.delete(f"/api/v1/nodes/{name}")
    lost = await kube.until(workload_id, PodState.LOST)
    assert lost.stop_reason is not None
    assert lost.stop_reason.code is ReasonCode.NODE_LOST
    workload = kube.find(workload_id)
    assert workload is not None
    assert workload.lost_node


async def test_a_node_that_is_soon_back_loses_nothing(kube: Kube) -> None:
    workload_id = await kube.submit("job")
    await kube.run(workload_id)
    intake = kube.engine._intake
    there = kube.engine._book.nodes["dgx1-1"]
    intake._node(("", "dgx1-1"), (replace(there, ready=False), {}), None)
    intake._node(("", "dgx1-1"), (there, {}), None)
    await asyncio.sleep(2 * kube.config.node_patience_s)
    assert kube.pod(workload_id).state is PodState.RUNNING


async def test_gpus_that_pods_of_others_use_are_subtracted(kube: Kube) -> None:
    name = await kube.add_node(f"{kube.namespace}-n", owner=kube.namespace)
    resources = {"requests": {"cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu": "3"}, "limits": {"nvidia.com/gpu": "3"}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "theirs", "namespace": kube.namespace},
        "spec": {"nodeName": name, "containers": [{"name": "main", "image": "x", "resources": resources}]},
    }
    await _service_account(kube)
    await kube.api.create(f"/api/v1/namespaces/{kube.namespace}/pods", pod)

    def foreign() -> tuple[int, int, int, int]:
        found = next(node for node in kube.engine.snapshot().nodes if node.name == name)
        return found.foreign.gpu_millis, found.foreign.cpu_millis, found.foreign.memory_mib, found.foreign_pods

    await eventually(lambda: foreign() == (3000, 1500, 1024, 1), "the foreign pod being counted")
    await kube.api.delete(f"/api/v1/namespaces/{kube.namespace}/pods/theirs")
    await eventually(lambda: foreign() == (0, 0, 0, 0), "the foreign pod being gone")


async def test_what_the_api_server_refuses_is_a_failure_with_its_words(kube: Kube) -> None:
    workload_id = await kube.submit("job", labels={"not a label": "x"})
    await kube.start(workload_id)
    failed = await kube.until(workload_id, PodState.FAILED)
    assert failed.stop_reason is not None
    assert "The API server refused its pod" in failed.stop_reason.sentence


async def test_a_program_is_found_by_its_pod_and_goes_with_its_workload(kube: Kube) -> None:
    workload_id = await kube.submit("job", program="print('hello')", image="python:3.12")
    await kube.run(workload_id)
    pod = await kube.until_pod(workload_id)
    assert pod["spec"]["containers"][0]["command"] == ["python3", "-u", "/hotdesk/program/program"]
    kept = await kube.api.get(f"/api/v1/namespaces/{kube.namespace}-team-a/configmaps/job-program")
    assert kept["data"] == {"program": "print('hello')"}


async def test_a_program_never_takes_the_place_of_somebody_elses_config_map(kube: Kube) -> None:
    changes = await heard(kube.engine)
    space = f"/api/v1/namespaces/{kube.namespace}-team-a/configmaps"
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "job-program"}, "data": {"mine": "precious"}}
    await kube.api.create(space, theirs)
    with pytest.raises(Conflict, match=r"a ConfigMap that is not Hotdesk's: job-program in test-.*-team-a\.") as refused:
        await kube.submit("job", program="print('hello')")
    assert refused.value.next_step == "Choose another name for the workload, or move that ConfigMap away."
    assert (await kube.api.get(f"{space}/job-program"))["data"] == {"mine": "precious"}
    with pytest.raises(ApiError, match="404"):
        await kube.api.get(kube.resource_path("job"))
    assert changes == []
    await kube.api.delete(f"{space}/job-program")
    await kube.submit("job", program="print('hello')")


async def test_a_program_that_is_refused_when_its_workload_is_there_takes_it_along(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody was quicker with that name."""
    space = f"/api/v1/namespaces/{kube.namespace}-team-a/configmaps"
    check = objects.check_program_place

    async def checked(*asked: Any) -> None:
        await check(*asked)
        await kube.api.create(space, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "job-program"}, "data": {"a": "b"}})

    monkeypatch.setattr(objects, "check_program_place", checked)
    with pytest.raises(Conflict, match="not Hotdesk's"):
        await kube.submit("job", program="print('hello')")
    assert (await kube.api.get(f"{space}/job-program"))["data"] == {"a": "b"}
    with pytest.raises(ApiError, match="404"):
        await kube.api.get(kube.resource_path("job"))
    await eventually(lambda: kube.find("id-job") is None, "it being forgotten")


async def test_the_program_of_an_earlier_workload_gives_way_to_that_of_the_next_one(kube: Kube) -> None:
    """The cluster takes away what belonged to a workload in its own time."""
    space = f"/api/v1/namespaces/{kube.namespace}-team-a/configmaps"
    first = {"apiVersion": resources.API_VERSION, "kind": "Workload", "name": "job", "uid": "00000000-0000-4000-8000-000000000000"}
    meta = {"name": "job-program", "labels": resources.MANAGED, "ownerReferences": [first]}
    await kube.api.create(space, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"program": "1"}})
    await kube.submit("job", program="print('hello')")
    assert (await kube.api.get(f"{space}/job-program"))["data"] == {"program": "print('hello')"}


async def _service_account(kube: Kube) -> None:
    """Pods are refused before their namespace has one."""
    path = f"/api/v1/namespaces/{kube.namespace}/serviceaccounts"
    while not (await kube.api.get(path))["items"]:  # noqa: ASYNC110  # the test's timeout ends it
        await asyncio.sleep(0.05)
