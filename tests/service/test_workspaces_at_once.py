"""Workspaces that change while the hub is being asked: its answer is older than what happened meanwhile, and harms nothing newer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import desks
import pytest_asyncio
from hotdesk_api import calls, models
from hotdesk_scheduler.core.model import PodState, Policy
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.service.hub import HubClient
from hotdesk_scheduler.service.workspaces import Patience
from tornado import httpserver, netutil, web

READY, SPAWNING = {"ready": True, "pending": None}, {"ready": False, "pending": "spawn"}
TAKEN_AWAY = Reason(ReasonCode.RECLAIMED, "Its share was needed elsewhere.")


class Hub:
    """JupyterHub's API over HTTP. While `holds`, a list is made when it is asked for, and sent when `let_go` says so."""

    def __init__(self) -> None:
        self.active: dict[str, dict[str, Any]] = {}
        self.stopped: list[str] = []
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

    def stop(self, user: str) -> None:
        self.stopped.append(user)
        self.active.pop(user, None)


def application(hub: Hub) -> web.Application:
    class Users(web.RequestHandler):
        async def get(self) -> None:
            self.finish(await hub.listed())

    class Server(web.RequestHandler):
        async def delete(self, user: str) -> None:
            hub.stop(user)
            self.set_status(204)

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


def workspace(gpus: float = 0.5, **wishes: Any) -> models.WorkloadSpec:
    return desks.spec("alice", gpus=gpus, image="", kind="workspace", owner="alice", server_name="", **wishes)


async def granted(service: desks.Running, hub: Hub) -> models.WorkloadDetail:
    hub.active["alice"] = SPAWNING
    await service.client("host-token").call(calls.submit(workspace()))
    return await desks.until_status(service.client("host-token"), "alice", "ContainerCreating")


async def started(service: desks.Running, hub: Hub) -> models.WorkloadDetail:
    await granted(service, hub)
    hub.active["alice"] = READY
    return await service.client("host-token").call(calls.report_pod("team-a", "alice", models.PodReport(state="running")))


def state(service: desks.Running, workload: models.WorkloadDetail) -> PodState | None:
    found = service.engine.find(workload.id)
    return found.pods[0].state if found else None


async def test_a_start_is_not_stopped_while_the_one_before_makes_way_for_it(service: desks.Running, hub: Hub) -> None:
    """Both are one server to the hub: the list has it, and it is the new start."""
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
