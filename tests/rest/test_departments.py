"""Departments over REST: who may make and see them, what is refused, and what their numbers are."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import desks
import httpx
import pytest
import pytest_asyncio
from hotdesk_api import calls, models
from hotdesk_api.errors import Conflict, Invalid, NotFound, Refused
from hotdesk_scheduler.core.model import Project, Quota
from hotdesk_scheduler.engines.fake import FakeEngine


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[desks.Running]:
    async with desks.running(tmp_path) as running:
        yield running


def lab(**more: Any) -> models.DepartmentSpec:
    return models.DepartmentSpec(name="lab", **more)


async def put_in(service: desks.Running, *projects: str, department: str | None = "lab") -> None:
    for project in projects:
        await service.client("admin-token").call(calls.update_project(models.ProjectSpec(name=project, department=department)))


async def test_only_admins_change_departments_and_members_see_those_of_their_projects(service: desks.Running) -> None:
    alice, bob, admin = service.client(), service.client("bob-token"), service.client("admin-token")
    changes: list[calls.Call[Any]] = [calls.create_department(lab()), calls.update_department(lab()), calls.delete_department("lab")]
    for call in changes:
        with pytest.raises(Refused, match="may not create, change or delete departments: it lacks the scope custom:hotdesk:jobs:admin"):
            await alice.call(call)
    made = await admin.call(calls.create_department(lab(gpu_limit_millis=8000)))
    assert (made.projects, made.gpu_quota_millis, made.gpu_limit_millis) == ([], 0, 8000)
    with pytest.raises(NotFound, match="no department lab with a project"):
        await alice.call(calls.department("lab"))
    await put_in(service, "team-a")
    assert (await alice.call(calls.department("lab"))).projects == ["team-a"]
    assert [item.name for item in (await alice.call(calls.departments())).items] == ["lab"]
    assert (await bob.call(calls.departments())).items == []
    with pytest.raises(NotFound):
        await bob.call(calls.department("lab"))
    with pytest.raises(Refused):
        await service.client("nobody-token").call(calls.departments())


async def test_a_member_is_told_the_numbers_of_the_whole_department_and_the_names_of_his_own_projects(service: desks.Running) -> None:
    admin, alice, bob = service.client("admin-token"), service.client(), service.client("bob-token")
    await admin.call(calls.create_department(lab()))
    await put_in(service, "team-a", "team-b")
    await alice.call(calls.submit(desks.spec("one", gpus=2)))
    await bob.call(calls.submit(desks.spec("half", project="team-b", gpus=0.5)))
    await bob.call(calls.submit(desks.spec("big", project="team-b", gpus=8, kind="interactive")))
    await desks.until_status(alice, "one", "Running")
    await desks.until_status(bob, "half", "Running", project="team-b")
    for client, names in ((alice, ["team-a"]), (bob, ["team-b"]), (admin, ["team-a", "team-b"])):
        found = await client.call(calls.department("lab"))
        assert found.projects == names
        assert (found.gpu_quota_millis, found.gpu_millis_allocated, found.gpu_millis_requested) == (6000, 2500, 10_500)
        assert (found.running, found.pending) == (2, 1)
    shares = [project.fair_share_millis or 0 for project in (await admin.call(calls.projects())).items]
    assert (await admin.call(calls.department("lab"))).fair_share_millis == sum(shares) > 0


async def test_the_quota_is_the_sum_of_the_projects_until_one_is_given_and_again_when_it_is_taken_back(service: desks.Running) -> None:
    admin = service.client("admin-token")
    await admin.call(calls.create_department(lab()))
    await put_in(service, "team-a", "team-b")
    for change, quota, is_sum in (
        ({"priority": 3}, 6000, True),
        ({"gpu_quota_millis": 5000}, 5000, False),
        ({"priority": 4}, 5000, False),
        ({"gpu_quota_millis": -1}, None, False),
        ({"gpu_quota_millis": None}, 6000, True),
    ):
        changed = await admin.call(calls.update_department(lab(**change)))
        assert (changed.gpu_quota_millis, changed.gpu_quota_is_sum) == (quota, is_sum), change
    await admin.call(calls.update_project(models.ProjectSpec(name="team-b", gpu_quota_millis=-1)))
    assert (await admin.call(calls.department("lab"))).gpu_quota_millis is None


async def test_a_change_leaves_alone_what_it_does_not_name(service: desks.Running) -> None:
    admin = service.client("admin-token")
    given = {"gpu_over_quota_weight": 500, "over_quota": False, "cpu_quota_millis": 1000, "cpu_limit_millis": 2000}
    made = await admin.call(calls.create_department(lab(**given, memory_quota_mib=100, memory_limit_mib=200, gpu_limit_millis=3000)))
    changed = await admin.call(calls.update_department(lab(priority=-2)))
    assert changed == made.model_copy(update={"priority": -2})
    assert changed.model_dump().items() >= (given | {"memory_quota_mib": 100, "memory_limit_mib": 200, "gpu_limit_millis": 3000}).items()
    assert (await admin.call(calls.update_department(lab(gpu_limit_millis=-1)))).gpu_limit_millis is None


async def test_a_name_is_taken_once_and_a_department_with_projects_stays(service: desks.Running) -> None:
    admin = service.client("admin-token")
    await admin.call(calls.create_department(lab()))
    with pytest.raises(Conflict, match="There is a department lab already"):
        await admin.call(calls.create_department(lab()))
    await put_in(service, "team-a", "team-b")
    with pytest.raises(Conflict, match="Department lab still has 2 projects, such as team-a") as refused:
        await admin.call(calls.delete_department("lab"))
    assert "project update team-a --department none" in str(refused.value)
    await put_in(service, "team-a", "team-b", department=None)
    await admin.call(calls.delete_department("lab"))
    assert service.engine.snapshot().departments == ()
    gone: list[calls.Call[Any]] = [calls.department("lab"), calls.delete_department("lab"), calls.update_department(lab())]
    for call in gone:
        with pytest.raises(NotFound, match="There is no department lab"):
            await admin.call(call)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"gpu_limit_millis": 1000, "gpu_quota_millis": 2000}, "The GPU limit 1 of lab is below its quota 2"),
        ({"gpu_quota_millis": 10**30}, "more than any cluster has"),
        ({"memory_quota_mib": 10**30}, "more than any cluster has"),
        ({"gpu_limit_millis": None}, "needs a number"),
    ],
)
async def test_a_department_that_cannot_be_right_is_refused(service: desks.Running, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        await service.client("admin-token").call(calls.create_department(lab(**wrong)))
    assert service.engine.snapshot().departments == ()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "Lab_1"}, "name"),
        ({"name": "none"}, "name"),
        ({"name": "x" * 64}, "name"),
        ({}, "name"),
        ({"name": "lab", "gpu_quota_millis": -2}, "gpu_quota_millis"),
        ({"name": "lab", "gpu_quota_millis": 0.5}, "gpu_quota_millis"),
        ({"name": "lab", "gpu_over_quota_weight": -1}, "gpu_over_quota_weight"),
        ({"name": "lab", "priority": "high"}, "priority"),
        ({"name": "lab", "department": "other"}, "department"),
    ],
)
async def test_a_body_that_cannot_be_read_names_the_member(service: desks.Running, body: dict[str, Any], field: str) -> None:
    headers = {"Authorization": "Bearer admin-token"}
    async with httpx.AsyncClient(base_url=service.url, headers=headers, trust_env=False) as http:
        response = await http.post("/v1/departments", json=body)
    assert (response.status_code, response.headers["content-type"]) == (422, "application/problem+json"), response.text
    assert response.json()["field"] == field
    assert service.engine.snapshot().departments == ()


async def test_a_department_is_not_renamed(service: desks.Running) -> None:
    await service.client("admin-token").call(calls.create_department(lab()))
    headers = {"Authorization": "Bearer admin-token"}
    async with httpx.AsyncClient(base_url=service.url, headers=headers, trust_env=False) as http:
        response = await http.patch("/v1/departments/lab", json={"name": "hall"})
    assert (response.status_code, response.json()["detail"]) == (409, "Department lab cannot be renamed to hall.")


async def test_an_unknown_department_of_a_project_is_answered_with_the_known_ones(service: desks.Running) -> None:
    admin = service.client("admin-token")
    await admin.call(calls.create_department(lab()))
    with pytest.raises(Invalid, match="There is no department hall") as refused:
        await put_in(service, "team-a", department="hall")
    assert "Departments: lab." in str(refused.value)
    assert service.engine.snapshot().projects[0].department is None


async def test_a_changed_limit_is_acted_on_at_once(tmp_path: Path) -> None:
    """Two open projects share a department: what the one holds leaves less for the other."""
    open_projects = [Project(name, gpu=Quota()) for name in ("team-a", "team-b")]
    engine = FakeEngine(desks.nodes(), projects=open_projects, images=desks.IMAGES, automatic=True)
    async with desks.running(tmp_path, engine=engine) as service:
        alice, bob, admin = service.client(), service.client("bob-token"), service.client("admin-token")
        await admin.call(calls.create_department(lab(gpu_limit_millis=3000)))
        await put_in(service, "team-a", "team-b")
        await alice.call(calls.submit(desks.spec("one", gpus=2)))
        await desks.until_status(alice, "one", "Running")
        await bob.call(calls.submit(desks.spec("two", project="team-b", gpus=2)))
        await desks.until(lambda: service.desk.loop.holds)
        why = await bob.call(calls.why("team-b", "two"))
        assert why.reason is not None
        assert why.reason.code == "over_department_limit"
        assert "Department lab may use at most 3 GPUs and uses 2 GPUs; this asks for 2 GPUs." in why.sentence
        await admin.call(calls.update_department(lab(gpu_limit_millis=4000)))
        await desks.until_status(bob, "two", "Running", project="team-b")


async def test_who_changed_a_department_is_on_record(tmp_path: Path) -> None:
    async with desks.running(tmp_path) as service:
        admin = service.client("admin-token")
        await admin.call(calls.create_department(lab(gpu_quota_millis=1500)))
        await admin.call(calls.update_department(lab(gpu_quota_millis=None)))
        await admin.call(calls.delete_department("lab"))
    with contextlib.closing(sqlite3.connect(tmp_path / "records.db")) as database:
        rows = database.execute("select user, action, subject, message from audit order by id").fetchall()
    assert rows == [
        ("root", "create department", "lab", "GPU quota 1.5"),
        ("root", "update department", "lab", "GPU quota the sum of its projects'"),
        ("root", "delete department", "lab", ""),
    ]
