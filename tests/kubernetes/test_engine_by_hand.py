"""What people write with kubectl, sense and nonsense: taken as it was meant, or answered with a sentence on the resource itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from engine_world import NODE, eventually
from hotdesk_api.errors import Conflict, Invalid
from hotdesk_scheduler.core.model import Department, GpuRequest, Phase, Placement, PodState, Project, Quota
from hotdesk_scheduler.engines.kubernetes import manifests, resources
from hotdesk_scheduler.engines.kubernetes.api import ApiError
from hotdesk_scheduler.engines.kubernetes.resources import FINALIZER, ID_LABEL, PROJECT_LABEL
from kube_world import Json, Kube


def workload(name: str = "by-hand", **spec: Any) -> Json:
    return {"apiVersion": resources.API_VERSION, "kind": "Workload", "metadata": {"name": name}, "spec": {"image": "bash", **spec}}


def project(name: str, **spec: Any) -> Json:
    return {"apiVersion": resources.API_VERSION, "kind": "Project", "metadata": {"name": name}, "spec": spec}


async def seen(kube: Kube, path: str, holds: Callable[[Json], Any]) -> Json:
    """The object, once it is so."""
    give_up = time.monotonic() + 60
    while True:
        try:
            found: Json = await kube.api.get(path)
            if holds(found):
                return found
        except ApiError as error:
            found = {"error": str(error)}
        assert time.monotonic() < give_up, f"{path} stays {found}"
        await asyncio.sleep(0.05)


async def gone(kube: Kube, path: str) -> None:
    give_up = time.monotonic() + 60
    while True:
        try:
            await kube.api.get(path)
        except ApiError as error:
            if error.status == 404:
                return
        assert time.monotonic() < give_up, f"{path} is still there"
        await asyncio.sleep(0.05)


def accepted(item: Json) -> tuple[str, str]:
    """Condition Accepted: status and message."""
    found: Json = next((one for one in item.get("status", {}).get("conditions", []) if one["type"] == "Accepted"), {})
    return found.get("status", ""), found.get("message", "")


async def test_a_workload_applied_by_hand_becomes_like_one_that_was_submitted(kube: Kube) -> None:
    there = f"{kube.namespace}-team-a"
    kube.cluster.apply(workload(gpuMillis=2000, user="bob"), namespace=there)
    item = await seen(kube, kube.resource_path("by-hand"), lambda one: one["metadata"].get("finalizers"))
    assert item["metadata"]["finalizers"] == [FINALIZER]
    assert item["metadata"]["labels"][PROJECT_LABEL] == "team-a"
    assert item["spec"]["scheduling"]["request"] == {"gpu": {"whole": 2}, **item["spec"]["scheduling"]["request"]}
    found = kube.engine.snapshot().workloads[0]
    assert "bob" in kube.cluster.kubectl("get", "workloads", "-n", there).splitlines()[1].split()
    await kube.run(found.id, placement=Placement(NODE, whole=2))
    before = kube.find(found.id)
    await kube.restart()
    assert kube.find(found.id) == before
    kube.cluster.apply(workload(gpuMillis=2000, user="bob"), namespace=there)  # as GitOps does, again and again
    kube.cluster.kubectl("delete", "workload", "by-hand", "-n", there, "--wait=false")
    await eventually(lambda: (kube.find(found.id) or found).phase is Phase.DELETING, "it being stopped with grace, not just gone")
    assert kube.pod(found.id).state is PodState.RUNNING


async def test_a_label_or_finalizer_taken_off_a_workload_is_put_back_and_nothing_runs_twice(kube: Kube) -> None:
    workload_id = await kube.submit("job")
    await kube.run(workload_id)
    path = kube.resource_path("job")
    whole = {ID_LABEL: workload_id, PROJECT_LABEL: "team-a"}
    nonsense: list[Json] = [{"labels": None}, {"finalizers": None}, {"labels": {ID_LABEL: "other", PROJECT_LABEL: "team-z"}}]
    for patch in nonsense:
        await kube.api.merge(path, {"metadata": patch})
        item = await seen(kube, path, lambda one: one["metadata"].get("labels", {}).items() >= whole.items() and _has_finalizer(one))
        assert item["metadata"]["finalizers"] == [FINALIZER]
    assert kube.pod(workload_id).state is PodState.RUNNING


async def test_a_workload_that_is_forgotten_is_gone_though_its_deletion_takes_a_while(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen without its finalizer before it is leaving, it would get that back, and stay for ever: nobody could use its name again."""
    workload_id = await kube.submit("job")
    delete = kube.engine._api.delete

    async def late(path: str, *options: Json) -> Any:
        await asyncio.sleep(0.5)
        return await delete(path, *options)

    monkeypatch.setattr(kube.engine._api, "delete", late)
    await asyncio.gather(kube.engine.forget(workload_id), kube.engine.forget(workload_id))
    await gone(kube, kube.resource_path("job"))
    await kube.submit("job")


async def test_who_forgets_a_workload_late_does_not_forget_the_next_one_of_its_name(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner, who starts it anew, and the scheduler, which clears it away, may do so at once."""
    first = await kube.submit("job")
    delete, may_go_on = kube.engine._api.delete, asyncio.Event()

    async def held(path: str, *options: Json) -> Any:
        await may_go_on.wait()
        return await delete(path, *options)

    with monkeypatch.context() as patched:
        patched.setattr(kube.engine._api, "delete", held)
        late = asyncio.create_task(kube.engine.forget(first))
        await asyncio.sleep(0.05)
    await kube.engine.forget(first)
    second = await kube.submit("job")
    may_go_on.set()
    await late
    assert [one.id for one in kube.engine.snapshot().workloads] == [second]
    await kube.run(second)


async def test_labels_taken_off_a_running_pod_do_not_hide_it_nor_does_a_copy_with_its_labels_count(kube: Kube) -> None:
    workload_id = await kube.submit("job", gpu=GpuRequest(whole=1))
    await kube.run(workload_id, placement=Placement(NODE, whole=1))
    path = kube.pod_path(workload_id)
    other_place = manifests.placement_out(Placement("dgx1-2", whole=8))
    await kube.api.merge(path, {"metadata": {"labels": None, "annotations": {"hotdesk.io/placement": other_place}}})
    original = await kube.api.get(path)
    meta = {"name": "copy", "labels": manifests.grant(kube.find(workload_id), kube.pod(workload_id), "x").labels}  # type: ignore[arg-type]
    copy = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {"containers": [{"name": "main", "image": "x"}], "nodeName": "dgx1-2"},
    }
    await kube.api.create(path.rpartition("/")[0], copy)
    marker = await kube.submit("marker")
    await kube.run(marker)  # by now the stream has brought the changes above
    for _ in range(2):
        assert kube.pod(workload_id).state is PodState.RUNNING
        assert kube.pod(workload_id).placement == Placement(NODE, whole=1)
        nodes = {node.name: node.foreign.gpu_millis for node in kube.engine.snapshot().nodes}
        assert (nodes[NODE], nodes["dgx1-2"]) == (0, 0)
        await kube.restart()
    await kube.end(workload_id, code=3)
    assert (await kube.until(workload_id, PodState.FAILED)).exit_code == 3
    assert (await kube.api.get(path))["metadata"]["uid"] == original["metadata"]["uid"]
    assert await kube.api.get(f"{path.rpartition('/')[0]}/copy")


async def test_a_copy_of_a_workload_labels_and_all_is_another_one(kube: Kube) -> None:
    workload_id = await kube.submit("zebra")
    await kube.run(workload_id)
    item = await kube.api.get(kube.resource_path("zebra"))
    copy = {**item, "metadata": {"name": "ant", "labels": item["metadata"]["labels"]}}
    made = await kube.api.create(resources.path("Workload", f"{kube.namespace}-team-a"), copy)
    await seen(kube, kube.resource_path("ant"), lambda one: one["metadata"]["labels"][ID_LABEL] == made["metadata"]["uid"])
    await kube.restart()  # they are read in the order of their names
    names = {one.id: one.name for one in kube.engine.snapshot().workloads}
    assert names == {workload_id: "zebra", made["metadata"]["uid"]: "ant"}
    assert kube.pod(workload_id).state is PodState.RUNNING


async def test_suspending_by_hand_and_by_command_take_each_other_back_also_after_a_restart(kube: Kube) -> None:
    workload_id = await kube.submit("job")
    path = kube.resource_path("job")

    async def until(phase: Phase) -> None:
        await eventually(lambda: (found := kube.find(workload_id)) is not None and found.phase is phase, f"the phase becoming {phase}")

    await kube.engine.set_phase(workload_id, Phase.SUSPENDED, None, time.time())
    assert (await kube.api.get(path))["spec"]["suspended"] is True
    await kube.api.merge(path, {"spec": {"suspended": False}})
    await until(Phase.ACTIVE)
    await kube.api.merge(path, {"spec": {"suspended": True}})
    await until(Phase.SUSPENDED)
    await kube.engine.set_phase(workload_id, Phase.ACTIVE, None, time.time())
    await kube.restart()
    assert (kube.find(workload_id) or kube.workload("x")).phase is Phase.ACTIVE
    await kube.engine.close()
    await kube.api.merge(path, {"spec": {"suspended": True}})
    await kube.restart_after_close()
    await until(Phase.SUSPENDED)
    await kube.engine.close()
    await kube.api.merge(path, {"spec": {"suspended": False}})
    await kube.restart_after_close()
    await until(Phase.ACTIVE)


async def test_a_workload_that_cannot_be_read_says_so_and_is_taken_when_it_is_mended(kube: Kube) -> None:
    there = f"{kube.namespace}-team-a"
    kube.cluster.apply(workload("wrong", image=""), workload("reserved", environment={"JOB_NAME": "x"}), namespace=there)
    message = accepted(await seen(kube, kube.resource_path("wrong"), accepted_is("False")))[1]
    assert message == f"No image was named. Name one: -i python:3.12. Correct it, or delete it: kubectl delete workload wrong -n {there}"
    line = kube.cluster.kubectl("get", "workload", "wrong", "-n", there, "-o", "wide").splitlines()[1]
    assert "NotAccepted" in line
    assert "No image was named." in line
    assert "JOB_NAME is set by Hotdesk" in accepted(await seen(kube, kube.resource_path("reserved"), accepted_is("False")))[1]
    assert not kube.engine.snapshot().workloads
    await kube.api.merge(kube.resource_path("reserved"), {"spec": {"environment": None}})
    await eventually(lambda: [one.name for one in kube.engine.snapshot().workloads] == ["reserved"], "it being taken")
    await seen(kube, kube.resource_path("reserved"), accepted_is(""))
    await kube.api.merge(kube.resource_path("wrong"), {"spec": {"image": "bash"}})
    await seen(kube, kube.resource_path("wrong"), accepted_is(""))
    with pytest.raises(ApiError, match="environment cannot change"):
        await kube.api.merge(kube.resource_path("reserved"), {"spec": {"environment": {"A": "1"}}})


async def test_a_workload_in_a_namespace_of_no_project_says_so_until_there_is_one(kube: Kube) -> None:
    there = f"{kube.namespace}-elsewhere"
    kube.cluster.add_namespace(there)
    kube.cluster.apply(workload(), namespace=there)
    path = resources.path("Workload", there, "by-hand")
    message = accepted(await seen(kube, path, accepted_is("False")))[1]
    assert message.startswith(f"No project has the namespace {there}. Put it into the namespace of one (")
    kube.cluster.apply(project("late", namespace=there), namespace=kube.namespace)
    await seen(kube, path, lambda one: one["metadata"].get("finalizers") and accepted(one) == ("", ""))
    assert [one.project for one in kube.engine.snapshot().workloads] == ["late"]


async def test_a_workload_that_nobody_can_run_goes_when_it_is_deleted_though_it_was_ours_once(kube: Kube) -> None:
    """It has our finalizer: its project was deleted while it was there, or it is not readable any more."""
    there, orphans = f"{kube.namespace}-team-a", f"{kube.namespace}-orphans"
    kube.cluster.add_namespace(orphans)
    orphan, unreadable = workload("orphan"), workload("unreadable", scheduling={"kind": "zebra"})
    for item, namespace in ((orphan, orphans), (unreadable, there)):
        item["metadata"]["finalizers"] = [FINALIZER]
        kube.cluster.apply(item, namespace=namespace)
    await seen(kube, kube.resource_path("unreadable"), accepted_is("False"))
    kube.cluster.kubectl("delete", "workload", "unreadable", "-n", there, "--wait=false")
    await gone(kube, kube.resource_path("unreadable"))
    await kube.engine.close()
    kube.cluster.kubectl("delete", "workload", "orphan", "-n", orphans, "--wait=false")
    await kube.restart_after_close()
    await gone(kube, resources.path("Workload", orphans, "orphan"))


async def test_projects_say_whether_they_can_be_what_they_say(kube: Kube) -> None:
    own = kube.namespace

    def path(name: str) -> str:
        return resources.path("Project", own, name)

    await seen(kube, path("team-a"), accepted_is("True"))
    kube.cluster.apply(project("physics-1", department="physics", gpu={"quota": 2**62, "limit": 2**63 - 1}), namespace=own)
    message = accepted(await seen(kube, path("physics-1"), accepted_is("False")))[1]
    assert message.startswith("There is no department physics;")
    assert {one.name for one in kube.engine.snapshot().projects} == {"team-a", "physics-1"}
    await kube.engine.put_department(Department("physics"))
    await seen(kube, path("physics-1"), accepted_is("True"))
    await kube.engine.delete_department("physics")
    await seen(kube, path("physics-1"), accepted_is("False"))
    kube.cluster.apply(project("squatter", namespace=f"{own}-team-a"), namespace=own)
    message = accepted(await seen(kube, path("squatter"), accepted_is("False")))[1]
    assert message.startswith(f"Namespace {own}-team-a is project team-a's.")
    assert "squatter" not in {one.name for one in kube.engine.snapshot().projects}
    with pytest.raises(Conflict, match="is project team-a's already"):
        await kube.engine.put_project(Project("squatter"))
    await kube.restart()
    assert {one.name for one in kube.engine.snapshot().projects} == {"team-a", "physics-1"}
    await kube.engine.delete_project("team-a")
    await seen(kube, path("squatter"), accepted_is("True"))
    assert "Accepted" in kube.cluster.kubectl("get", "projects", "-n", own).splitlines()[0].title()


async def test_a_project_in_the_namespace_of_the_reservations_or_of_kubernetes_is_refused_and_one_in_the_hubs_is_not(kube: Kube) -> None:
    """Whoever may write pods beside those that set GPUs aside could forge them, and none of his own would be seen."""
    own = kube.namespace
    with pytest.raises(Invalid, match="is for the pods that set GPUs aside for sharing") as refused:
        await kube.engine.put_project(Project("reservations"))
    assert refused.value.next_step == "Choose another name."
    asked = {"forger": f"{own}-reservations", "system": "kube-system", "leases": "kube-node-lease", "anybody": "default", "homes": own}
    items = [project("reservations"), *(project(name, namespace=namespace) for name, namespace in asked.items())]
    kube.cluster.apply(*items, namespace=own)
    for name in ("reservations", *asked):
        path = resources.path("Project", own, name)
        message = accepted(await seen(kube, path, accepted_is("True" if name == "homes" else "False")))[1]
        assert ("Delete this project, and make it with another name or spec.namespace." in message) is (name != "homes")
    assert {one.name for one in kube.engine.snapshot().projects} == {"team-a", "homes"}
    await kube.restart()
    assert {one.name for one in kube.engine.snapshot().projects} == {"team-a", "homes"}
    await kube.engine.put_project(Project("homes", gpu=Quota(quota=1000)))


async def test_a_project_keeps_the_namespace_it_was_made_with_and_takes_no_others(kube: Kube) -> None:
    own, there = kube.namespace, f"{kube.namespace}-team-a"
    kube.cluster.apply(project("named", namespace=f"{own}-mine"), project("usual"), namespace=own)
    for name, namespaces in (("usual", [there, f"{own}-usual"]), ("named", [there, None])):
        path = resources.path("Project", own, name)
        await seen(kube, path, accepted_is("True"))
        for namespace in namespaces:
            with pytest.raises(ApiError, match=r"the namespace of a project cannot change: .* make another project"):
                await kube.api.merge(path, {"spec": {"namespace": namespace}})
        await kube.api.merge(path, {"spec": {"priority": 3}})
    await kube.engine.put_project(Project("named", gpu=Quota(quota=1000)))
    assert (await kube.api.get(resources.path("Project", own, "named")))["spec"]["namespace"] == f"{own}-mine"


async def test_of_two_projects_of_one_second_the_first_keeps_the_namespace_over_a_restart(kube: Kube) -> None:
    own = kube.namespace
    for name in ("zoology", "algebra"):
        kube.cluster.apply(project(name, namespace=f"{own}-both"), namespace=own)
        await seen(kube, resources.path("Project", own, name), lambda one: accepted(one) != ("", ""))
    await kube.restart()
    assert {one.name for one in kube.engine.snapshot().projects} == {"team-a", "zoology"}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"gpu": {"quota": -1}}, "greater than or equal to 0"),
        ({"weight": -3}, "greater than or equal to 0"),
        ({"gpu": {"quota": "4"}}, "integer"),
    ],
)
async def test_a_quota_edited_to_nonsense_is_refused_and_the_old_one_counts(kube: Kube, spec: Json, words: str) -> None:
    await kube.engine.put_project(Project("team-a", gpu=Quota(quota=3000)))
    with pytest.raises(ApiError, match=words):
        await kube.api.merge(resources.path("Project", kube.namespace, "team-a"), {"spec": spec})
    assert [one.gpu.quota for one in kube.engine.snapshot().projects] == [3000]


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "active", "pods": [{"index": 0, "state": "running"}]},
        {"phase": "active", "pods": [{"index": 0, "state": "running", "stopReason": {"code": "because", "sentence": "I said so"}}]},
        {"phase": "suspended", "phaseReason": {"code": "dance", "sentence": "x"}, "failures": -4},
    ],
    ids=["running nowhere", "a reason nobody knows", "a phase nobody gave"],
)
async def test_a_status_made_nonsense_while_nobody_led_is_not_believed_and_what_runs_is_found(kube: Kube, status: Json) -> None:
    workload_id = await kube.submit("job", gpu=GpuRequest(whole=1))
    await kube.run(workload_id, placement=Placement(NODE, whole=1))
    await kube.status("job", lambda found: found["status"] == "Running")
    await kube.engine.close()
    item = await kube.api.get(kube.resource_path("job"))
    await kube.api.put(f"{kube.resource_path('job')}/status", {**item, "status": status})
    await kube.restart_after_close()
    running = await kube.until(workload_id, PodState.RUNNING)
    assert running.placement == Placement(NODE, whole=1)
    await kube.status("job", lambda found: found.get("status") == "Running" and found["pods"][0]["placement"]["node"] == NODE)


async def test_a_pod_that_a_former_leader_makes_late_is_taken_up_or_taken_away(kube: Kube) -> None:
    waits, ended = await kube.submit("waits", gpu=GpuRequest(whole=8)), await kube.submit("ended")
    await kube.run(ended)
    old_path = kube.pod_path(ended)
    old = await kube.api.get(old_path)
    await kube.stop(ended, grace_s=0)
    await kube.until(ended, PodState.STOPPED)
    await gone(kube, old_path)
    await kube.api.create(old_path.rpartition("/")[0], _afresh(old))
    await gone(kube, old_path)
    full = await kube.submit("full", gpu=GpuRequest(whole=1))
    await kube.run(full, placement=Placement(NODE, whole=1))
    entry = kube.engine._book.entry(waits)

    async def late(place: Placement) -> str:
        pod = replace(entry.pod(0), placement=place, started_at=1.0)
        body = manifests.pod_object(entry.workload, entry.spec, pod, uid=entry.uid, namespace=entry.namespace, variables={})
        await kube.api.create(f"/api/v1/namespaces/{entry.namespace}/pods", body)
        return f"/api/v1/namespaces/{entry.namespace}/pods/{body['metadata']['name']}"

    await gone(kube, await late(Placement(NODE, whole=8)))  # one of its GPUs is taken by now
    assert kube.pod(waits).state is PodState.PENDING
    await late(Placement("dgx1-2", whole=8))
    assert (await kube.until(waits, PodState.RUNNING)).placement == Placement("dgx1-2", whole=8)


async def test_a_deleted_namespace_of_a_project_takes_its_workloads_along_and_is_made_again(kube: Kube) -> None:
    workload_id = await kube.submit("job")
    await kube.run(workload_id)
    there = f"/api/v1/namespaces/{kube.namespace}-team-a"
    await kube.api.delete(there)
    await eventually(lambda: (found := kube.find(workload_id)) is None or found.phase is Phase.DELETING, "the workload being deleted")
    await eventually(lambda: (found := kube.find(workload_id)) is None or found.pods[0].state is not PodState.RUNNING, "its pod ending")
    await kube.engine.forget(workload_id)  # as the service does, when nothing holds any more
    await gone(kube, there)
    again = await kube.submit("another")
    await kube.run(again)


def accepted_is(status: str) -> Callable[[Json], bool]:
    return lambda item: accepted(item)[0] == status


def _has_finalizer(item: Json) -> bool:
    return FINALIZER in item["metadata"].get("finalizers", [])


def _afresh(pod: Json) -> Json:
    meta = {name: pod["metadata"][name] for name in ("name", "labels", "annotations", "ownerReferences")}
    spec = {name: value for name, value in pod["spec"].items() if name in ("containers", "schedulerName", "restartPolicy", "nodeName")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
