"""What callers may ask for, and who may: names, pages, projects, suspend and resume, progress, health."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import desks
import httpx
import pytest
import pytest_asyncio
from hotdesk_api import calls, models
from hotdesk_api.errors import Conflict, Invalid, NotFound, Refused, Unauthorized
from hotdesk_scheduler.rest import openapi, routes


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[desks.Running]:
    async with desks.running(tmp_path) as running:
        yield running


async def test_names_are_generated_and_not_used_twice(service: desks.Running) -> None:
    alice = service.client()
    names = [(await alice.call(calls.submit(desks.spec(gpus=0)))).name for _ in range(3)]
    assert names == ["job-0", "job-1", "job-2"]
    await alice.call(calls.delete("team-a", "job-2"))
    await desks.until(lambda: len(service.engine.snapshot().workloads) == 2)
    assert (await alice.call(calls.submit(desks.spec(gpus=0)))).name == "job-3"
    assert (await alice.call(calls.submit(desks.spec(gpus=0, name_prefix="lr")))).name == "lr-0"


async def test_names_generated_at_the_same_moment_differ(service: desks.Running) -> None:
    alice = service.client()
    made = await asyncio.gather(*(alice.call(calls.submit(desks.spec(gpus=0))) for _ in range(20)))
    assert len({item.name for item in made}) == 20


async def test_a_list_comes_in_pages_by_project_then_name(service: desks.Running) -> None:
    admin = service.client("admin-token")
    for project, name in (("team-b", "a"), ("team-a", "c"), ("team-a", "b"), ("team-b", "z")):
        await admin.call(calls.submit(desks.spec(name, project=project, gpus=0)))
    seen: list[tuple[str, str]] = []
    after = None
    while True:
        page = await admin.call(calls.workloads(limit=3, after=after))
        seen += [(item.project, item.name) for item in page.items]
        if page.next is None:
            break
        after = page.next
    assert seen == [("team-a", "b"), ("team-a", "c"), ("team-b", "a"), ("team-b", "z")]


async def test_a_list_is_filtered_by_project_kind_status_and_user(service: desks.Running) -> None:
    alice, ann = service.client(), service.client("ann-token")
    await alice.call(calls.submit(desks.spec("one", gpus=0)))
    await ann.call(calls.submit(desks.spec("two", gpus=0, kind="interactive")))
    await desks.until_status(alice, "two", "Running")
    for filters, names in (
        ({"user": "ann"}, ["two"]),
        ({"kind": "train"}, ["one"]),
        ({"status": "running"}, ["one", "two"]),
        ({"status": "Pending"}, []),
        ({"project": "team-b"}, []),
    ):
        found = await alice.call(calls.workloads(**filters))  # type: ignore[arg-type]  # the table's values are texts
        assert [item.name for item in found.items] == names, filters


async def test_suspended_work_frees_its_share_and_goes_on_when_resumed(service: desks.Running) -> None:
    alice = service.client()
    await alice.call(calls.submit(desks.spec("one")))
    await desks.until_status(alice, "one", "Running")
    await alice.call(calls.suspend("team-a", "one"))
    suspended = await desks.until_status(alice, "one", "Suspended")
    assert suspended.gpu_millis_allocated == 0
    assert suspended.reason is not None
    assert "alice suspended it" in suspended.reason.sentence
    await alice.call(calls.suspend("team-a", "one"))
    await alice.call(calls.resume("team-a", "one"))
    await desks.until_status(alice, "one", "Running")
    await alice.call(calls.resume("team-a", "one"))


async def test_what_has_ended_is_neither_suspended_nor_resumed(service: desks.Running) -> None:
    alice = service.client()
    made = await alice.call(calls.submit(desks.spec("one")))
    await desks.until_status(alice, "one", "Running")
    service.engine.exit_pod(made.id, 0)
    await desks.until_status(alice, "one", "Succeeded")
    for call in (calls.suspend, calls.resume):
        with pytest.raises(Conflict):
            await alice.call(call("team-a", "one"))


async def test_a_workspace_is_not_suspended_from_here(service: desks.Running) -> None:
    await service.client("host-token").call(calls.submit(desks.spec("ws", kind="workspace", owner="alice", server_name="", image="")))
    with pytest.raises(Conflict, match="is a workspace") as refused:
        await service.client().call(calls.suspend("team-a", "ws"))
    assert "hub" in str(refused.value)


async def test_members_manage_each_others_work_readers_do_not(service: desks.Running) -> None:
    alice = service.client()
    await alice.call(calls.submit(desks.spec("one")))
    reader = service.client("reader-token")
    assert (await reader.call(calls.workload("team-a", "one"))).user == "alice"
    with pytest.raises(Refused, match="jobs:submit"):
        await reader.call(calls.delete("team-a", "one"))
    await service.client("ann-token").call(calls.delete("team-a", "one"))
    await desks.until(lambda: not service.engine.snapshot().workloads)


async def test_values_of_secret_variables_are_the_owners_alone(service: desks.Running) -> None:
    spec = desks.spec(
        "one", environment={"API_KEY": "s3cret", "EPOCHS": "5"}, command_line="runai submit one -e API_KEY=s3cret -e EPOCHS=5"
    )
    await service.client().call(calls.submit(spec))
    for token, shown in (("alice-token", "s3cret"), ("ann-token", "***"), ("admin-token", "s3cret")):
        found = await service.client(token).call(calls.workload("team-a", "one"))
        assert found.spec.environment == {"API_KEY": shown, "EPOCHS": "5"}
        assert ("s3cret" in found.spec.command_line) == (shown == "s3cret")


async def test_deleting_what_is_not_there_says_so(service: desks.Running) -> None:
    with pytest.raises(NotFound, match="no workload nothing in project team-a"):
        await service.client().call(calls.delete("team-a", "nothing"))


async def test_why_and_what_if_answer_with_a_sentence(service: desks.Running) -> None:
    alice = service.client()
    plan = await alice.call(calls.what_if(desks.spec("one")))
    assert plan.starts_now
    assert service.engine.snapshot().workloads == ()
    await alice.call(calls.submit(desks.spec("big", gpus=8, kind="interactive")))
    await desks.until(lambda: service.desk.loop.holds)
    why = await alice.call(calls.why("team-a", "big"))
    assert why.reason is not None
    assert (why.starts_now, why.quota_millis, why.asked_millis) == (False, 4000, 8000)
    with pytest.raises(Invalid, match="No node has 99 GPUs"):
        await alice.call(calls.what_if(desks.spec("huge", gpus=99)))


async def test_a_forecast_names_who_would_stop_and_who_took_its_place_is_told_afterwards(service: desks.Running) -> None:
    alice, bob = service.client(), service.client("bob-token")
    for name in ("one", "two"):
        await alice.call(calls.submit(desks.spec(name, gpus=8)))
    await desks.until(lambda: all(w.pods[0].placement for w in service.engine.snapshot().workloads))
    asked = desks.spec("b1", project="team-b", gpus=2)
    plan = await bob.call(calls.what_if(asked))
    (victim,) = plan.would_stop
    assert (plan.starts_now, victim.name, victim.project, victim.reason.code) == (True, "two", "team-a", "reclaimed")
    numbers = victim.reason.numbers
    assert (numbers["before"], numbers["after"], numbers["by_before"], numbers["by_after"]) == (16000, 8000, 0, 2000)
    assert "two of team-a stops (reclaimed: team-a goes from 16 GPUs to 8" in plan.sentence
    await bob.call(calls.submit(asked))
    two = next(w.id for w in service.engine.snapshot().workloads if w.name == "two")
    await desks.until(lambda: two in service.desk.loop.holds)
    why = await alice.call(calls.why("team-a", "two"))
    assert why.stopped is not None
    assert why.stopped.sentence.startswith("Reclaimed by project team-b for b1: team-a held 16 GPUs, may have")
    assert why.held_by == {"team-a": 8000, "team-b": 2000}
    assert (why.queue_position, why.queue_length) == (1, 1)


async def test_events_tell_the_story_of_a_workload_and_not_of_its_namesake(service: desks.Running) -> None:
    alice = service.client()
    await alice.call(calls.submit(desks.spec("one")))
    await desks.until_status(alice, "one", "Running")
    assert [event.reason for event in (await alice.call(calls.events("team-a", "one"))).items] == ["Submitted", "Scheduled"]
    await alice.call(calls.delete("team-a", "one"))
    await desks.until(lambda: not service.engine.snapshot().workloads)
    await alice.call(calls.submit(desks.spec("one", gpus=8, kind="interactive")))
    await desks.until(lambda: service.desk.loop.holds)
    assert [event.reason for event in (await alice.call(calls.events("team-a", "one"))).items] == ["Submitted", "Waiting"]


async def test_progress_is_taken_from_the_job_and_its_owner_only(service: desks.Running) -> None:
    alice = service.client()
    made = await alice.call(calls.submit(desks.spec("one")))
    await desks.until_status(alice, "one", "Running")
    token = service.desk.report_token(made.id)
    job = service.client(token)
    await job.call(calls.report_progress("team-a", "one", models.Progress(progress=0.5, message="half")))
    found = await alice.call(calls.workload("team-a", "one"))
    assert (found.progress, found.message) == (0.5, "half")
    own: list[calls.Call[Any]] = [calls.workload("team-a", "one"), calls.delete("team-a", "one"), calls.whoami()]
    for call in own:
        with pytest.raises(Unauthorized):
            await job.call(call)
    await alice.call(calls.submit(desks.spec("two")))
    with pytest.raises(Unauthorized):
        await job.call(calls.report_progress("team-a", "two", models.Progress(progress=0.5)))
    with pytest.raises(Refused):
        await service.client("ann-token").call(calls.report_progress("team-a", "one", models.Progress(progress=0.9)))


async def test_progress_counts_although_nobody_has_looked_since_the_job_started(service: desks.Running) -> None:
    made = await service.client().call(calls.submit(desks.spec("one")))
    await desks.until(lambda: any(pod.state == "running" for work in service.engine.snapshot().workloads for pod in work.pods))
    job = service.client(service.desk.report_token(made.id))
    await job.call(calls.report_progress("team-a", "one", models.Progress(progress=0.5)))
    assert (await service.client().call(calls.workload("team-a", "one"))).progress == 0.5


async def test_only_admins_change_projects_and_members_see_their_own(service: desks.Running) -> None:
    alice, admin = service.client(), service.client("admin-token")
    new = models.ProjectSpec(name="team-n", gpu_quota_millis=1500)
    changes: list[calls.Call[Any]] = [calls.create_project(new), calls.update_project(new), calls.delete_project("team-a")]
    for call in changes:
        with pytest.raises(Refused, match="jobs:admin"):
            await alice.call(call)
    made = await admin.call(calls.create_project(new))
    assert (made.gpu_quota_millis, made.gpu_limit_millis, made.member) == (1500, None, False)
    with pytest.raises(NotFound):
        await alice.call(calls.project("team-n"))
    with pytest.raises(Conflict, match="already"):
        await admin.call(calls.create_project(new))
    changed = await admin.call(calls.update_project(models.ProjectSpec(name="team-n", gpu_limit_millis=3000)))
    assert (changed.gpu_quota_millis, changed.gpu_limit_millis) == (1500, 3000)
    await admin.call(calls.delete_project("team-n"))
    with pytest.raises(NotFound):
        await admin.call(calls.project("team-n"))


async def test_a_project_with_workloads_is_not_deleted(service: desks.Running) -> None:
    await service.client().call(calls.submit(desks.spec("one")))
    with pytest.raises(Conflict, match="still has 1 workload, such as one"):
        await service.client("admin-token").call(calls.delete_project("team-a"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"gpu_limit_millis": 1000, "gpu_quota_millis": 2000},
        {"department": "none"},
        {"train_node_types": ["none"]},
        {"gpu_quota_millis": 10**30},
        {"memory_quota_mib": 10**30},
    ],
)
async def test_a_project_that_cannot_be_right_is_refused(service: desks.Running, wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        await service.client("admin-token").call(calls.create_project(models.ProjectSpec(name="team-n", **wrong)))
    assert len(service.engine.snapshot().projects) == 2


async def test_a_changed_quota_is_acted_on_at_once(service: desks.Running) -> None:
    alice, admin = service.client(), service.client("admin-token")
    await alice.call(calls.submit(desks.spec("big", gpus=8, kind="interactive")))
    await desks.until(lambda: service.desk.loop.holds)
    await admin.call(calls.update_project(models.ProjectSpec(name="team-a", gpu_quota_millis=8000)))
    await desks.until_status(alice, "big", "Running")


async def test_the_cluster_and_its_nodes_add_up(service: desks.Running) -> None:
    alice = service.client()
    await alice.call(calls.submit(desks.spec("half", gpus=0.5)))
    await alice.call(calls.submit(desks.spec("two", gpus=2)))
    await desks.until_status(alice, "two", "Running")
    await desks.until_status(alice, "half", "Running")
    cluster = await alice.call(calls.cluster())
    assert (cluster.gpus, cluster.gpus_in_use, cluster.gpu_millis_allocated, cluster.running, cluster.simulated) == (16, 3, 2500, 2, True)
    nodes = (await alice.call(calls.nodes())).items
    assert sum(node.gpu_millis_allocated for node in nodes) == 2500
    assert sum(node.gpus_free for node in nodes) == 13
    project = await alice.call(calls.project("team-a"))
    assert (project.gpu_millis_allocated, project.running, project.pending) == (2500, 2, 0)


async def test_health_and_metrics_need_no_token_and_are_not_below_the_prefix(service: desks.Running) -> None:
    await service.client().call(calls.submit(desks.spec("one")))
    await desks.until_status(service.client(), "one", "Running")
    async with httpx.AsyncClient(base_url=service.url, trust_env=False) as http:
        for path in ("/healthz", "/readyz", "/metrics", "/openapi.json"):
            assert (await http.get(path)).status_code == 200
            assert (await http.get("/services/hotdesk" + path)).status_code == 404
        text = (await http.get("/metrics")).text
    assert 'runai_allocated_gpus{project="team-a",simulated="true"} 1.0' in text
    assert 'runai_quota_gpus{project="team-b",simulated="true"} 2.0' in text
    assert "hotdesk_scheduling_pass_seconds_count" in text
    assert "alice" not in text


def test_openapi_lists_every_route_with_its_methods() -> None:
    documented = {(item.path.replace("{project}", "([^/]+)").replace("{name}", "([^/]+)"), item.method) for item in openapi.OPERATIONS}
    served = {
        (path, method)
        for path, handler in (*routes.ROOT, *routes.V1)
        for method in ("get", "post", "put", "patch", "delete")
        if method in vars(handler)
    }
    assert documented == served


def test_openapi_has_every_call_of_the_clients() -> None:
    spec, project = desks.spec("n"), models.ProjectSpec(name="p")
    all_calls: list[calls.Call[Any]] = [
        *(calls.version(), calls.whoami(), calls.cluster(), calls.images(), calls.nodes(), calls.projects(), calls.project("p")),
        *(calls.create_project(project), calls.update_project(project), calls.delete_project("p"), calls.workloads(), calls.submit(spec)),
        *(calls.workload("p", "n"), calls.delete("p", "n"), calls.suspend("p", "n"), calls.resume("p", "n"), calls.events("p", "n")),
        *(calls.why("p", "n"), calls.what_if(spec), calls.report_progress("p", "n", models.Progress())),
        calls.report_pod("p", "n", models.PodReport(state="running")),
    ]
    known = {(item.method.upper(), item.path.replace("{project}", "p").replace("{name}", "n")): item for item in openapi.OPERATIONS}
    known |= {(method, path.replace("/projects/n", "/projects/p")): item for (method, path), item in known.items()}
    for call in all_calls:
        operation = known[call.method, call.path]
        assert operation.answer is call.answer, call.path
        assert operation.body is (type(call.body) if call.body else None), call.path


def test_openapi_is_complete_in_itself() -> None:
    document = openapi.document()
    schemas = document["components"]["schemas"]
    text = openapi.dumps(document).decode()
    assert document["openapi"].startswith("3.1")
    for name in {piece.split('"')[0] for piece in text.split("#/components/schemas/")[1:]}:
        assert name in schemas
