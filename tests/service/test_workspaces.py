"""Workspaces: the place in the queue and the share survive whatever the hub and its spawner do, and never leak."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import desks
import pytest
import pytest_asyncio
from hotdesk_api import calls, models
from hotdesk_api.errors import Conflict, Invalid, NotFound, Refused, Unavailable
from hotdesk_scheduler.core.model import Policy
from hotdesk_scheduler.service.hub import Server
from hotdesk_scheduler.service.workspaces import Patience


class Hub:
    """A hub in memory: servers there are, and what it was asked to stop. `stops_at_once` False: stopping takes for ever."""

    def __init__(self) -> None:
        self.active: dict[tuple[str, str], Server] = {}
        self.stopped: list[tuple[str, str]] = []
        self.away = False
        self.stops_at_once = True

    async def servers(self) -> dict[tuple[str, str], Server]:
        if self.away:
            raise Unavailable("The hub is away.")
        return dict(self.active)

    async def stop(self, user: str, server: str) -> None:
        self.stopped.append((user, server))
        if self.stops_at_once:
            self.active.pop((user, server), None)

    def spawning(self, user: str = "alice", server: str = "") -> None:
        self.active[user, server] = Server(ready=False, pending="spawn")

    def runs(self, user: str = "alice", server: str = "") -> None:
        self.active[user, server] = Server(ready=True, pending=None)


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest_asyncio.fixture
async def service(tmp_path: Path, hub: Hub) -> AsyncIterator[desks.Running]:
    patience = Patience(poll_s=0.05, wait_s=3600, grant_s=3600)
    async with desks.running(tmp_path, hub=hub, patience=patience, policy=Policy(grace_s=1.0)) as running:
        yield running


def workspace(gpus: float = 0.5, **wishes: object) -> models.WorkloadSpec:
    given: dict[str, object] = {"name": "alice", "kind": "workspace", "owner": "alice", "server_name": "", "image": "", **wishes}
    return desks.spec(gpus=gpus, **given)  # type: ignore[arg-type]  # members of the spec


async def started(service: desks.Running, hub: Hub, **wishes: object) -> models.WorkloadDetail:
    """Granted, taken up, reported as running."""
    host = service.client("host-token")
    hub.spawning()
    await host.call(calls.submit(workspace(**wishes)))  # type: ignore[arg-type]  # members of the spec
    await desks.until_status(host, "alice", "ContainerCreating")
    hub.runs()
    return await host.call(calls.report_pod("team-a", "alice", models.PodReport(state="running")))


async def test_a_workspace_is_granted_taken_up_and_ended(service: desks.Running, hub: Hub) -> None:
    host, alice = service.client("host-token"), service.client()
    hub.spawning()
    await host.call(calls.submit(workspace()))
    granted = await desks.until_status(host, "alice", "ContainerCreating")
    assert granted.grant is not None
    assert (granted.user, granted.type, granted.grant.gpu_millis) == ("alice", "Interactive", 500)
    assert (await alice.call(calls.workload("team-a", "alice"))).grant is None
    hub.runs()
    running = await host.call(calls.report_pod("team-a", "alice", models.PodReport(state="running")))
    assert running.status == "Running"
    hub.active.clear()
    await host.call(calls.report_pod("team-a", "alice", models.PodReport(state="stopped")))
    await desks.until_status(host, "alice", "Stopped")
    assert service.desk.find("team-a", "alice").view.gpu_millis_allocated == 0  # type: ignore[union-attr]  # it is there


async def test_submitting_the_same_again_keeps_the_place(service: desks.Running) -> None:
    host = service.client("host-token")
    first = await host.call(calls.submit(workspace(8)))
    again = await host.call(calls.submit(workspace(8)))
    assert (again.id, again.created_at) == (first.id, first.created_at)


async def test_submitting_something_else_replaces_what_waits(service: desks.Running) -> None:
    host = service.client("host-token")
    first = await host.call(calls.submit(workspace(8)))
    other = await host.call(calls.submit(workspace(1)))
    assert other.id != first.id
    assert len(service.engine.snapshot().workloads) == 1


async def test_a_granted_place_is_found_again_after_a_restart_of_the_hub(service: desks.Running, hub: Hub) -> None:
    host = service.client("host-token")
    first = await host.call(calls.submit(workspace()))
    await desks.until_status(host, "alice", "ContainerCreating")
    again = await host.call(calls.submit(workspace()))
    assert again.id == first.id
    assert again.grant is not None


async def test_a_workspace_that_ended_is_replaced_by_the_next(service: desks.Running, hub: Hub) -> None:
    first = await started(service, hub)
    host = service.client("host-token")
    await host.call(calls.report_pod("team-a", "alice", models.PodReport(state="failed", exit_code=1)))
    await desks.until_status(host, "alice", "Failed")
    assert (await host.call(calls.submit(workspace()))).id != first.id


async def test_an_end_that_nobody_reported_is_learned_from_the_hubs_list(service: desks.Running, hub: Hub) -> None:
    await started(service, hub)
    hub.active.clear()
    await desks.until_status(service.client("host-token"), "alice", "Stopped")


async def test_a_hub_that_is_away_ends_nothing(service: desks.Running, hub: Hub) -> None:
    await started(service, hub)
    hub.active.clear()
    hub.away = True
    await desks.until(lambda: service.desk.workspaces.problem)
    assert (await service.client("host-token").call(calls.workload("team-a", "alice"))).status == "Running"
    assert any("hub is away" in problem for problem in service.desk.problems())
    hub.away = False
    await desks.until_status(service.client("host-token"), "alice", "Stopped")


async def test_a_deleted_workspace_is_stopped_through_the_hub(service: desks.Running, hub: Hub) -> None:
    await started(service, hub)
    await service.client().call(calls.delete("team-a", "alice"))
    await desks.until(lambda: not service.engine.snapshot().workloads)
    assert hub.stopped == [("alice", "")]


async def test_the_share_is_held_until_the_hub_has_really_stopped_it(service: desks.Running, hub: Hub) -> None:
    await started(service, hub)
    hub.stops_at_once = False
    await service.client().call(calls.delete("team-a", "alice"))
    await desks.until(lambda: hub.stopped)
    found = await service.client().call(calls.workload("team-a", "alice"))
    assert (found.status, found.gpu_millis_allocated) == ("Deleting", 500)
    hub.active.clear()
    await desks.until(lambda: not service.engine.snapshot().workloads)


async def test_a_place_that_was_taken_back_cannot_be_taken_up(service: desks.Running, hub: Hub) -> None:
    host = service.client("host-token")
    hub.spawning()
    hub.stops_at_once = False
    await host.call(calls.submit(workspace()))
    await desks.until_status(host, "alice", "ContainerCreating")
    await service.client().call(calls.delete("team-a", "alice"))
    with pytest.raises(Conflict, match="no granted place"):
        await host.call(calls.report_pod("team-a", "alice", models.PodReport(state="running")))


async def test_a_teammate_may_not_stop_ones_workspace(service: desks.Running, hub: Hub) -> None:
    hub.spawning()
    await service.client("host-token").call(calls.submit(workspace()))
    with pytest.raises(Refused, match="the workspace of alice"):
        await service.client("ann-token").call(calls.delete("team-a", "alice"))
    assert hub.stopped == []
    await service.client("alice-token").call(calls.delete("team-a", "alice"))


async def test_a_waiting_workspace_without_its_spawner_is_given_up_after_a_while(tmp_path: Path, hub: Hub) -> None:
    patience = Patience(poll_s=0.05, wait_s=0.3, grant_s=3600)
    async with desks.running(tmp_path, hub=hub, patience=patience) as service:
        await service.client("host-token").call(calls.submit(workspace(8)))
        await desks.until(lambda: not service.engine.snapshot().workloads)


async def test_a_waiting_workspace_keeps_its_place_while_its_spawner_shows(tmp_path: Path, hub: Hub) -> None:
    now = 1000.0
    async with desks.running(tmp_path, hub=hub, patience=Patience(poll_s=3600, wait_s=600)) as service:
        workspaces = service.desk.workspaces
        workspaces._clock = lambda: now
        await service.client("host-token").call(calls.submit(workspace(8)))
        now += 599
        host = service.client("host-token")
        await host.call(calls.Call("GET", "/v1/workloads/team-a/alice", models.WorkloadDetail, {"touch": "1"}))
        now += 599
        await workspaces.reconcile()
        hub.spawning()
        now += 599
        await workspaces.reconcile()
        hub.active.clear()
        now += 599
        await workspaces.reconcile()
        assert (await host.call(calls.workload("team-a", "alice"))).status == "Pending"
        now += 2
        await workspaces.reconcile()
        await desks.until(lambda: not service.engine.snapshot().workloads)


async def test_a_grant_that_nobody_takes_up_goes_back(tmp_path: Path, hub: Hub) -> None:
    async with desks.running(tmp_path, hub=hub, patience=Patience(poll_s=0.05, grant_s=0.3)) as service:
        host = service.client("host-token")
        await host.call(calls.submit(workspace()))
        ended = await desks.until_status(host, "alice", "Stopped")
        assert ended.reason is not None
        assert ended.reason.code == "grant_not_taken_up"


async def test_a_grant_that_is_being_prepared_does_not_go_back(tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    async with desks.running(tmp_path, hub=hub, patience=Patience(poll_s=0.05, grant_s=0.1)) as service:
        usual = service.engine.details
        monkeypatch.setattr(service.engine, "details", lambda *of: replace(usual(*of), is_ready=False))
        host = service.client("host-token")
        await host.call(calls.submit(workspace()))
        await desks.until_status(host, "alice", "ContainerCreating")
        await asyncio.sleep(0.5)
        assert (await host.call(calls.workload("team-a", "alice"))).status == "ContainerCreating"


async def test_a_workspace_needs_a_project_and_an_owner(service: desks.Running) -> None:
    host = service.client("host-token")
    with pytest.raises(Invalid, match="no project team-x"):
        await host.call(calls.submit(workspace(project="team-x")))
    with pytest.raises(Invalid, match="needs its owner"):
        await host.call(calls.submit(workspace(owner=None)))


async def test_only_the_hubs_service_reports_and_only_on_workspaces(service: desks.Running, hub: Hub) -> None:
    await started(service, hub)
    alice, host = service.client(), service.client("host-token")
    with pytest.raises(Refused, match="workspaces:host"):
        await alice.call(calls.report_pod("team-a", "alice", models.PodReport(state="stopped")))
    await alice.call(calls.submit(desks.spec("job")))
    with pytest.raises(NotFound):
        await host.call(calls.report_pod("team-a", "job", models.PodReport(state="stopped")))
    with pytest.raises(NotFound):
        await host.call(calls.workload("team-a", "job"))


async def test_the_hubs_service_can_ask_what_would_become_of_a_workspace(service: desks.Running) -> None:
    host = service.client("host-token")
    assert (await host.call(calls.what_if(workspace()))).starts_now
    assert [project.name for project in (await host.call(calls.projects())).items] == ["team-a", "team-b"]
