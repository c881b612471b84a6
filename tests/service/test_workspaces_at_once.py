"""Workspaces that change while the hub is being asked: its answer is older than what happened meanwhile, and harms nothing newer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import desks
import pytest
import pytest_asyncio
from hotdesk_api import calls, models
from hotdesk_api.errors import Unavailable
from hotdesk_scheduler.core.model import PodState, Policy
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.service import stops
from hotdesk_scheduler.service.hub import HubClient
from hotdesk_scheduler.service.workspaces import Patience
from tornado import httpserver, netutil, web

READY, SPAWNING = {"ready": True, "pending": None}, {"ready": False, "pending": "spawn"}
STOPPING = {"ready": False, "pending": "stop"}
TAKEN_AWAY = Reason(ReasonCode.RECLAIMED, "Its share was needed elsewhere.")


class Hub:
    """JupyterHub's API over HTTP. While `holds`, a list is made when it is asked for, and sent when `let_go` says so."""

    def __init__(self) -> None:
        self.active: dict[str, dict[str, Any]] = {}
        self.stopped: list[str] = []
        self.away = False
        self.stops_together = 1
        self.refuses: set[str] = set()
        self.holds = False
        self.held: list[asyncio.Event] = []
        self.url = ""

    async def asked_for(self, lists: int) -> None:
        await desks.until(lambda: len(self.held) >= lists)

    def let_go(self, *numbers: int) -> None:
        for number in numbers or range(len(self.held)):
            self.held[number].set()

    async def listed(self) -> str:
        users = [{"name": name, "servers": {"": server}} for name, server in self.active.items()]
        if self.holds:
            self.held.append(asyncio.Event())
            await self.held[-1].wait()
        return json.dumps({"items": users, "_pagination": {"next": None}})

    async def stop(self, user: str) -> None:
        self.stopped.append(user)
        if user not in self.refuses:
            await desks.until(lambda: len(set(self.stopped)) >= self.stops_together)
            self.active.pop(user, None)


def application(hub: Hub) -> web.Application:
    class Users(web.RequestHandler):
        async def get(self) -> None:
            self.finish(await hub.listed())

        def prepare(self) -> None:
            if hub.away:
                raise web.HTTPError(503)

    class Server(web.RequestHandler):
        async def delete(self, user: str) -> None:
            self.set_status(500 if user in hub.refuses else 204)
            await hub.stop(user)

    return web.Application([("/users", Users), ("/users/([^/]+)/server", Server)], log_function=lambda handler: None)


@pytest_asyncio.fixture
async def hub() -> AsyncIterator[Hub]:
    found = Hub()
    sockets = netutil.bind_sockets(0, "127.0.0.1")
    server = httpserver.HTTPServer(application(found))
    server.add_sockets(sockets)
    found.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    yield found
    found.holds = False
    found.let_go()
    server.stop()
    await server.close_all_connections()


@pytest_asyncio.fixture
async def service(tmp_path: Path, hub: Hub) -> AsyncIterator[desks.Running]:
    client = HubClient(hub.url, "own-token")
    async with desks.running(tmp_path, hub=client, patience=Patience(poll_s=3600), policy=Policy(grace_s=1.0)) as running:
        yield running
        hub.holds = False
        hub.let_go()
    await client.close()


def workspace(gpus: float = 0.5, owner: str = "alice", **wishes: Any) -> models.WorkloadSpec:
    return desks.spec(owner, gpus=gpus, image="", kind="workspace", owner=owner, server_name="", **wishes)


async def granted(service: desks.Running, hub: Hub, user: str = "alice") -> models.WorkloadDetail:
    hub.active[user] = SPAWNING
    await service.client("host-token").call(calls.submit(workspace(owner=user)))
    return await desks.until_status(service.client("host-token"), user, "ContainerCreating")


async def started(service: desks.Running, hub: Hub, user: str = "alice") -> models.WorkloadDetail:
    await granted(service, hub, user)
    hub.active[user] = READY
    return await service.client("host-token").call(calls.report_pod("team-a", user, models.PodReport(state="running")))


def state(service: desks.Running, workload: models.WorkloadDetail) -> PodState | None:
    found = service.engine.find(workload.id)
    return found.pods[0].state if found else None


async def test_a_start_is_not_stopped_while_the_one_before_makes_way_for_it(service: desks.Running, hub: Hub) -> None:
    """Both are one server to the hub: the list has it, and it is the new start."""
    service.desk.workspaces._patience = Patience(poll_s=3600, submit_s=0)
    before = await granted(service, hub)
    hub.holds = True
    await service.client().call(calls.delete("team-a", "alice"))
    await hub.asked_for(lists=1)
    start = asyncio.create_task(service.client("host-token").call(calls.submit(workspace(1))))
    await hub.asked_for(lists=2)
    compared = asyncio.create_task(service.desk.workspaces.reconcile())
    await hub.asked_for(lists=3)
    hub.let_go(0, 2)
    await compared
    assert (hub.stopped, state(service, before)) == ([], PodState.RELEASING)
    hub.let_go(1)
    assert (await start).id != before.id
    assert hub.stopped == []


async def test_what_the_hub_listed_before_a_workspace_ended_does_not_stop_the_next_start(service: desks.Running, hub: Hub) -> None:
    before = await started(service, hub)
    hub.holds = True
    await service.engine.stop_pod(before.id, 0, TAKEN_AWAY, 1.0, service.desk.clock())
    compared = asyncio.create_task(service.desk.workspaces.reconcile())
    await hub.asked_for(lists=2)
    await service.client("host-token").call(calls.report_pod("team-a", "alice", models.PodReport(state="stopped")))
    hub.active["alice"] = SPAWNING
    hub.let_go()
    await compared
    assert hub.stopped == []


async def test_what_the_hub_listed_before_a_workspace_was_replaced_is_no_failure(service: desks.Running, hub: Hub) -> None:
    before = await granted(service, hub)
    hub.holds = True
    compared = asyncio.create_task(service.desk.workspaces.reconcile())
    await hub.asked_for(lists=1)
    start = asyncio.create_task(service.client("host-token").call(calls.submit(workspace(1))))
    await hub.asked_for(lists=2)
    hub.holds = False
    hub.let_go(*range(1, len(hub.held)))
    after = await start
    hub.let_go()
    await compared
    assert (after.id != before.id, hub.stopped, service.desk.problems()) == (True, [], [])


async def test_a_server_that_runs_is_asked_to_stop_at_once_when_its_workspace_makes_way(service: desks.Running, hub: Hub) -> None:
    """With no plan and no poll to come by."""
    before = await started(service, hub)
    await service.desk.loop.stop()
    start = service.client("host-token").call(calls.submit(workspace(1)))
    assert (await asyncio.wait_for(start, 10)).id != before.id
    assert hub.stopped == ["alice"]


async def test_a_stop_that_is_under_way_is_not_asked_for_again(service: desks.Running, hub: Hub) -> None:
    """Asked a moment later, it would stop the start that follows."""
    before = await started(service, hub)
    hub.active["alice"] = STOPPING
    await service.client().call(calls.delete("team-a", "alice"))
    await desks.until(lambda: state(service, before) is PodState.RELEASING)
    await service.desk.workspaces.reconcile()
    hub.active.clear()
    await desks.until(lambda: not service.engine.snapshot().workloads)
    assert hub.stopped == []


async def test_a_start_whose_submission_is_on_its_way_is_not_stopped(service: desks.Running, hub: Hub) -> None:
    """The hub lists it already, while the place of the one before is still being given back."""
    service.desk.workspaces._patience = Patience(poll_s=3600, submit_s=3600)
    before = await granted(service, hub)
    await service.client().call(calls.delete("team-a", "alice"))
    await desks.until(lambda: state(service, before) is PodState.RELEASING)
    await service.desk.workspaces.reconcile()
    assert hub.stopped == []
    assert (await service.client("host-token").call(calls.submit(workspace(1)))).id != before.id
    await service.desk.workspaces.reconcile()
    assert hub.stopped == []


async def test_a_start_that_goes_on_without_its_place_is_stopped(service: desks.Running, hub: Hub) -> None:
    await granted(service, hub)
    await service.client().call(calls.delete("team-a", "alice"))
    await desks.until(lambda: hub.stopped == ["alice"])
    await desks.until(lambda: not service.engine.snapshot().workloads)


async def test_a_start_is_not_stopped_when_the_hub_could_not_be_asked_about_the_one_before(service: desks.Running, hub: Hub) -> None:
    before = await started(service, hub)
    hub.active["alice"] = SPAWNING
    hub.away = True
    with pytest.raises(Unavailable):
        await service.client("host-token").call(calls.submit(workspace(1)))
    hub.away = False
    assert state(service, before) is PodState.RUNNING
    assert (await service.client("host-token").call(calls.submit(workspace(1)))).id != before.id
    assert hub.stopped == []


async def test_a_place_taken_up_again_is_not_ended_by_what_the_hub_listed_before(service: desks.Running, hub: Hub) -> None:
    """The hub has restarted: twice its list is without the server, and then the spawner is back."""
    before = await started(service, hub)
    hub.active.clear()
    await service.desk.workspaces.reconcile()
    hub.holds = True
    compared = asyncio.create_task(service.desk.workspaces.reconcile())
    await hub.asked_for(lists=1)
    hub.active["alice"] = SPAWNING
    assert (await service.client("host-token").call(calls.submit(workspace()))).id == before.id
    hub.let_go()
    await compared
    assert state(service, before) is PodState.RUNNING


async def test_a_workspace_that_goes_while_it_makes_way_has_made_way(service: desks.Running, hub: Hub) -> None:
    before = await granted(service, hub)
    hub.holds = True
    await service.client().call(calls.delete("team-a", "alice"))
    start = asyncio.create_task(service.client("host-token").call(calls.submit(workspace(1))))
    await hub.asked_for(lists=2)
    await service.client("host-token").call(calls.report_pod("team-a", "alice", models.PodReport(state="stopped")))
    await desks.until(lambda: not service.engine.snapshot().workloads)
    hub.holds = False
    hub.let_go()
    assert (await start).id != before.id


async def test_of_two_starts_of_one_server_the_later_one_stays(service: desks.Running, hub: Hub) -> None:
    """The hub gave up the first and began a second one, in another project, before the scheduler had answered the first."""
    await granted(service, hub)
    hub.holds = True
    first = asyncio.create_task(service.client("host-token").call(calls.submit(workspace(1))))
    await hub.asked_for(lists=1)
    second = asyncio.create_task(service.client("host-token").call(calls.submit(workspace(1, project="team-b"))))
    for _ in range(5):  # by then the second is there, too
        await service.client("host-token").call(calls.projects())
    hub.holds = False
    hub.let_go()
    await first
    after = await second
    assert [workload.id for workload in service.engine.snapshot().workloads] == [after.id]


async def both_taken_away(service: desks.Running, hub: Hub) -> None:
    for user in ("alice", "bob"):
        await started(service, hub, user)
    await service.desk.loop.stop()
    for user in ("alice", "bob"):
        found = service.desk.find("team-a", user)
        assert found is not None
        await service.engine.stop_pod(found.workload.id, 0, TAKEN_AWAY, 1.0, service.desk.clock())


async def test_slow_stops_do_not_wait_for_each_other(service: desks.Running, hub: Hub) -> None:
    """Else the list is older with each of them, and people start again meanwhile."""
    hub.stops_together = 2
    await both_taken_away(service, hub)
    await service.desk.workspaces.reconcile()
    await desks.until(lambda: not hub.active)
    assert sorted(hub.stopped) == ["alice", "bob"]


async def test_a_workspace_is_asked_to_stop_while_the_hub_still_stops_another(service: desks.Running, hub: Hub) -> None:
    """A hub answers after up to ten seconds; who is reclaimed meanwhile has to hear of it, and who has ended gives back its share."""
    hub.stops_together = 2
    first, second = await started(service, hub), await started(service, hub, "bob")
    await service.engine.stop_pod(first.id, 0, TAKEN_AWAY, 1.0, service.desk.clock())
    await desks.until(lambda: hub.stopped == ["alice"])
    await service.engine.stop_pod(second.id, 0, TAKEN_AWAY, 1.0, service.desk.clock())
    await desks.until(lambda: not hub.active)
    assert hub.stopped == ["alice", "bob"]


async def test_a_stop_that_has_no_turn_yet_is_asked_for_when_another_has_ended(
    service: desks.Running, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stops, "AT_ONCE", 1)
    await both_taken_away(service, hub)
    service.desk.workspaces.wake()
    await desks.until(lambda: not hub.active)
    assert sorted(hub.stopped) == ["alice", "bob"]


async def test_a_stop_that_the_hub_refuses_keeps_no_other_from_being_stopped(service: desks.Running, hub: Hub) -> None:
    hub.refuses.add("alice")
    await both_taken_away(service, hub)
    await service.desk.workspaces.reconcile()
    await desks.until(lambda: any("answered 500" in problem for problem in service.desk.problems()))
    await desks.until(lambda: sorted(hub.stopped) == ["alice", "bob"])


async def test_what_kept_a_workspace_from_being_stopped_is_no_problem_any_more_when_it_has_ended(service: desks.Running, hub: Hub) -> None:
    hub.refuses.add("alice")
    before = await started(service, hub)
    await service.engine.stop_pod(before.id, 0, TAKEN_AWAY, 1.0, service.desk.clock())
    await desks.until(lambda: service.desk.problems() != [])
    await service.client("host-token").call(calls.report_pod("team-a", "alice", models.PodReport(state="stopped")))
    await service.client().call(calls.delete("team-a", "alice"))
    await desks.until(lambda: not service.engine.snapshot().workloads)
    await service.desk.workspaces.reconcile()
    assert service.desk.problems() == []
