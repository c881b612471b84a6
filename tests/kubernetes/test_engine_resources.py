"""Projects and workloads as people see and write them with kubectl, and streams that break."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engine_world import RECLAIMED, eventually
from hotdesk_api.errors import Conflict, Invalid
from hotdesk_scheduler.core.model import Department, GpuRequest, Phase, PodState, Project, Quota
from hotdesk_scheduler.engines.kubernetes import crds, resources
from hotdesk_scheduler.engines.kubernetes.api import ApiError
from kube_world import Kube


def workload(name: str = "by-hand", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": resources.API_VERSION, "kind": "Workload", "metadata": {"name": name}, "spec": {"image": "bash", **spec}}


async def test_kubectl_shows_workloads_like_runai_list(kube: Kube) -> None:
    workload_id = await kube.submit("job", gpu=GpuRequest(whole=1))
    await kube.run(workload_id)
    await kube.status("job", lambda status: status["status"] == "Running")
    header, line = kube.cluster.kubectl("get", "workloads", "-n", f"{kube.namespace}-team-a").splitlines()
    assert header.split() == ["NAME", "STATUS", "AGE", "NODE", "IMAGE", "TYPE", "PROJECT", "USER", "GPUS"]
    assert [word for word in line.split() if not word.endswith("s")] == ["job", "Running", "dgx1-1", "bash", "train", "team-a", "ada", "0"]


async def test_a_workload_written_by_hand_is_queued_and_runs(kube: Kube) -> None:
    kube.cluster.apply(workload(gpuMillis=2000, user="bob"), namespace=f"{kube.namespace}-team-a")
    found = await eventually(lambda: kube.engine.snapshot().workloads, "the engine seeing it")
    assert (found[0].name, found[0].project, found[0].user, found[0].pods[0].request.gpu.whole) == ("by-hand", "team-a", "bob", 2)
    await kube.run(found[0].id)
    assert kube.engine.spec(found[0].id).image == "bash"


async def test_a_project_written_by_hand_gets_its_namespace_and_the_workloads_that_wait_there(kube: Kube) -> None:
    there = f"{kube.namespace}-existing"
    kube.cluster.add_namespace(there)
    kube.cluster.apply(workload(), namespace=there)
    spec = {"namespace": there, "gpu": {"quota": 4000}, "department": "physics"}
    for name, values in (("old", spec), ("new", {})):
        item = {"apiVersion": resources.API_VERSION, "kind": "Project", "metadata": {"name": name}, "spec": values}
        kube.cluster.apply(item, namespace=kube.namespace)
    found = await eventually(lambda: kube.engine.snapshot().workloads, "the engine seeing the workload")
    assert found[0].project == "old"
    projects = {project.name: project for project in kube.engine.snapshot().projects}
    assert projects["old"].gpu == Quota(quota=4000)
    assert projects["old"].department == "physics"
    assert projects["new"].gpu == Quota(quota=0)
    path = f"/api/v1/namespaces/{kube.namespace}-new"
    await _eventually_there(kube, path)


async def test_deleting_the_resource_stops_the_workload_with_grace_before_it_goes(kube: Kube) -> None:
    workload_id = await kube.submit("job")
    await kube.run(workload_id)
    kube.cluster.kubectl("delete", "workload", "job", "-n", f"{kube.namespace}-team-a", "--wait=false")

    def phase() -> Phase | None:
        found = kube.find(workload_id)
        return found.phase if found else None

    await eventually(lambda: phase() is Phase.DELETING, "the deletion being seen")
    assert kube.pod(workload_id).state is PodState.RUNNING
    await kube.stop(workload_id)
    await kube.until(workload_id, PodState.STOPPED)
    await kube.engine.forget(workload_id)
    with pytest.raises(ApiError, match="404"):
        await kube.api.get(kube.resource_path("job"))


async def test_finalizers_of_others_are_left_to_them(kube: Kube) -> None:
    workload_id = await kube.submit("job")
    await kube.api.merge(kube.resource_path("job"), {"metadata": {"finalizers": ["example.org/theirs", resources.FINALIZER]}})
    await kube.engine.forget(workload_id)
    left = await kube.api.get(kube.resource_path("job"))
    assert left["metadata"]["finalizers"] == ["example.org/theirs"]
    assert "deletionTimestamp" in left["metadata"]
    second = await kube.submit("another")  # by then the stream has told of the first one's end
    await kube.run(second)
    assert kube.find(workload_id) is None
    await kube.api.merge(kube.resource_path("job"), {"metadata": {"finalizers": None}})


async def test_suspended_in_its_resource_it_is_suspended_and_resumed(kube: Kube) -> None:
    workload_id = await kube.submit("job")
    for wish, phase in ((True, Phase.SUSPENDED), (False, Phase.ACTIVE)):
        await kube.api.merge(kube.resource_path("job"), {"spec": {"suspended": wish}})

        def is_so(phase: Phase = phase) -> bool:
            found = kube.find(workload_id)
            return found is not None and found.phase is phase

        await eventually(is_so, f"the phase becoming {phase}")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"gpuMillis": 1500}, "only whole numbers"),
        ({"gpuMillis": 1000, "gpuMemoryMib": 100}, "either by number or by memory"),
        ({"parallelism": 3}, "parallelism needs completions"),
        ({"kind": "dance"}, "Unsupported value"),
        ({"gpuMillis": -1}, "should be greater than or equal to 0"),
        ({"gpus": 1}, "unknown field"),
    ],
)
async def test_nonsense_is_refused_by_the_api_server_with_a_sentence(kube: Kube, spec: dict[str, Any], words: str) -> None:
    path = resources.path("Workload", f"{kube.namespace}-team-a")
    with pytest.raises(ApiError, match=words):
        await kube.api.request("POST", path, workload(**spec), params={"fieldValidation": "Strict"})


def another_value(schema: dict[str, Any]) -> Any:
    """One that this field may have, and that nobody has asked for yet."""
    if "enum" in schema:
        return next(value for value in schema["enum"] if value != schema.get("default"))
    match schema["type"]:
        case "array":
            return [another_value(schema["items"])]
        case "object" if "properties" in schema:
            return {name: another_value(schema["properties"][name]) for name in schema.get("required", list(schema["properties"])[:1])}
        case "object":
            return {"other": another_value(schema["additionalProperties"])}
    return {"string": "other", "integer": 1000, "boolean": True}[schema["type"]]


def fields_of_a_workload() -> dict[str, Any]:
    definition = next(one for one in crds.definitions() if one["spec"]["names"]["kind"] == "Workload")
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    fields: dict[str, Any] = schema["properties"]["spec"]["properties"]
    return fields


async def test_what_was_asked_for_cannot_change_later(kube: Kube) -> None:
    """Else a job would go on as something else after the next change of leader."""
    await kube.submit("job", gpu=GpuRequest(whole=2), gpu_millis=2000)
    fields = fields_of_a_workload()
    assert len(fields) > 30
    for name, schema in fields.items():
        if name != "suspended":
            with pytest.raises(ApiError, match=f"{name} cannot change"):
                await kube.api.merge(kube.resource_path("job"), {"spec": {name: another_value(schema)}})
    await kube.api.merge(kube.resource_path("job"), {"spec": {"suspended": True}})


async def test_a_limit_below_the_quota_is_refused(kube: Kube) -> None:
    item = resources.project_object(Project("p", gpu=Quota(quota=2000, limit=1000)), kube.namespace, None)
    with pytest.raises(ApiError, match="the limit is below the quota"):
        await kube.api.create(resources.path("Project", kube.namespace), item)


async def test_a_status_written_by_hand_is_overwritten_and_believed_by_nobody(kube: Kube) -> None:
    workload_id = await kube.submit("job")
    await kube.run(workload_id)
    await kube.status("job", lambda status: status["status"] == "Running")
    nonsense = {"phase": "succeeded", "failures": 99, "pods": [{"index": 77, "state": "lost"}]}
    await kube.api.merge(f"{kube.resource_path('job')}/status", {"status": nonsense})
    await kube.stop(workload_id)
    status = await kube.status("job", lambda status: status.get("pods", [{}])[0].get("state") == "stopped")
    assert (status["phase"], status["failures"], len(status["pods"])) == ("active", 0, 1)


async def test_a_project_with_workloads_is_not_deleted(kube: Kube) -> None:
    await kube.submit("job")
    with pytest.raises(Conflict, match="still has 1 workload"):
        await kube.engine.delete_project("team-a")


async def test_a_changed_project_keeps_its_resource_and_its_namespace(kube: Kube) -> None:
    first = await kube.api.get(resources.path("Project", kube.namespace, "team-a"))
    project = Project("team-a", gpu=Quota(quota=None, limit=8000), weight=3, node_pools=("default",), created_at=5.0)
    await kube.engine.put_project(project)
    await kube.engine.put_department(Department("physics", gpu=Quota(quota=1000), quota_is_sum=False))
    assert [one for one in kube.engine.snapshot().projects if one.name == "team-a"] == [project]
    second = await kube.api.get(resources.path("Project", kube.namespace, "team-a"))
    assert first["metadata"]["uid"] == second["metadata"]["uid"]
    await kube.restart()
    assert [one for one in kube.engine.snapshot().projects if one.name == "team-a"] == [project]
    assert kube.engine.snapshot().departments[0].gpu == Quota(quota=1000)


async def test_first_projects_that_an_interruption_kept_back_are_made_at_the_next_start_and_never_again(kube: Kube) -> None:
    await kube.engine.delete_project("team-a")
    with pytest.raises(Invalid, match="set GPUs aside"):
        await kube.engine.seed_projects([Project("team-a"), Project("reservations"), Project("team-c")])
    await kube.restart()
    assert await kube.engine.seed_projects([Project("team-a"), Project("team-b"), Project("team-c")]) == ["team-b", "team-c"]
    assert {one.name for one in kube.engine.snapshot().projects} == {"team-a", "team-b", "team-c"}
    await kube.engine.delete_project("team-c")
    await kube.restart()
    assert await kube.engine.seed_projects([Project("team-a"), Project("team-b"), Project("team-c")]) == []


async def test_after_an_expired_watch_everything_is_listed_again_and_nothing_is_missed(kube: Kube) -> None:
    """410 Gone, as after a compaction: told here by asking to go on from a version of long ago."""
    intake = kube.engine._intake
    workload_id = await kube.submit("job")
    await kube.run(workload_id)
    await intake.pods.stop()
    lists = intake.pods.lists
    await kube.api.delete(kube.pod_path(workload_id))
    await _eventually_gone(kube, kube.pod_path(workload_id))
    assert kube.pod(workload_id).state is PodState.RUNNING
    intake.pods.start()
    await kube.until(workload_id, PodState.LOST)
    assert intake.pods.lists == lists + 1


async def test_projects_made_at_the_same_moment_leave_one_watch_of_workloads_and_none_at_the_end(kube: Kube) -> None:
    def watches() -> list[str]:
        return [task.get_name() for task in asyncio.all_tasks() if task.get_name() == f"watch {resources.path('Workload')}"]

    there = f"{kube.namespace}-existing"
    kube.cluster.add_namespace(there)
    kube.cluster.apply(workload(), namespace=there)
    old = {"apiVersion": resources.API_VERSION, "kind": "Project", "metadata": {"name": "old"}, "spec": {"namespace": there}}
    await kube.api.create(resources.path("Project", kube.namespace), old)
    await asyncio.gather(*(kube.engine.put_project(Project(f"p{number}")) for number in range(6)))
    await eventually(lambda: kube.engine.snapshot().workloads, "the engine seeing the workload that was there before its project")
    assert len(watches()) == 1
    await kube.engine.put_project(Project("last"))
    await kube.engine.close()
    await asyncio.sleep(0.1)
    assert watches() == []
    await kube.restart_after_close()


async def test_every_field_has_its_explanation(kube: Kube) -> None:
    text = kube.cluster.kubectl("explain", "workload.spec.gpuMillis")
    assert "in thousandths" in text
    for definition in crds.definitions():
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        assert not list(_undocumented(schema, definition["spec"]["names"]["kind"]))


async def test_reasons_and_grace_are_in_the_status_for_people(kube: Kube) -> None:
    workload_id = await kube.submit("job", annotations={"test.hotdesk.io/stops-in": "5s"})
    await kube.run(workload_id)
    await kube.stop(workload_id, grace_s=7.0)
    status = await kube.status("job", lambda status: status["pods"][0]["state"] == "releasing")
    assert status["pods"][0]["stopReason"] == {"code": "reclaimed", "sentence": RECLAIMED.sentence}
    assert "releaseDeadline" in status["pods"][0]
    for _ in range(600):  # first why, then the end
        pod = await kube.api.get(kube.pod_path(workload_id))
        if "deletionTimestamp" in pod["metadata"]:
            break
        await asyncio.sleep(0.05)
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 7


def _undocumented(schema: dict[str, Any], where: str) -> list[str]:
    found = [where] if "description" not in schema and not where.endswith((".metadata", "[]")) else []
    for name, one in schema.get("properties", {}).items():
        found += _undocumented(one, f"{where}.{name}")
    if isinstance(schema.get("items"), dict) and schema["items"].get("properties"):
        found += _undocumented(schema["items"], f"{where}[]")
    return found


async def _eventually_there(kube: Kube, path: str) -> None:
    for _ in range(200):
        try:
            await kube.api.get(path)
            return
        except ApiError:
            await asyncio.sleep(0.05)
    raise AssertionError(f"{path} is not there")


async def _eventually_gone(kube: Kube, path: str) -> None:
    for _ in range(200):
        try:
            await kube.api.get(path)
        except ApiError:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{path} is still there")
