"""What is read from the hub's API: all pages, active servers only, and every failure as "cannot be asked"."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hotdesk_api.errors import Unavailable
from hotdesk_scheduler.service.hub import HubClient, Server
from tornado import httpserver, netutil, web


@asynccontextmanager
async def hub(answers: dict[str, Any]) -> AsyncIterator[tuple[HubClient, list[str]]]:
    """Answers by `METHOD path?query`; a number is a status. What was asked is noted."""
    asked: list[str] = []

    class Anything(web.RequestHandler):
        def answer(self) -> None:
            asked.append(f"{self.request.method} {self.request.uri}")
            found = next((value for key, value in answers.items() if asked[-1].startswith(key)), 404)
            if isinstance(found, int):
                self.set_status(found)
                self.finish()
            else:
                self.finish(json.dumps(found))

        get = delete = answer

    sockets = netutil.bind_sockets(0, "127.0.0.1")
    server = httpserver.HTTPServer(web.Application([(".*", Anything)], log_function=lambda handler: None))
    server.add_sockets(sockets)
    client = HubClient(f"http://127.0.0.1:{sockets[0].getsockname()[1]}/hub/api", "own-token")
    try:
        yield client, asked
    finally:
        await client.close()
        server.stop()
        await server.close_all_connections()


def user(name: str, **servers: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "servers": {("" if key == "default" else key): value for key, value in servers.items()}}


READY, SPAWNING, STOPPED = {"ready": True, "pending": None}, {"ready": False, "pending": "spawn"}, {"ready": False, "pending": None}


async def test_all_pages_are_read_and_only_active_servers_count() -> None:
    first = {"items": [user("alice", default=READY, old=STOPPED)], "_pagination": {"next": {"offset": 200, "limit": 200}}}
    second = {"items": [user("bob", gpu=SPAWNING)], "_pagination": {"next": None}}
    path = "GET /hub/api/users?state=active&offset="
    async with hub({f"{path}0": first, f"{path}200": second}) as (client, asked):
        found = await client.servers()
    assert found == {("alice", ""): Server(True, None), ("bob", "gpu"): Server(False, "spawn")}
    assert len(asked) == 2


@pytest.mark.parametrize("status", [401, 403, 404, 500, 502])
async def test_a_hub_that_does_not_tell_is_not_a_hub_without_servers(status: int) -> None:
    async with hub({"GET": status}) as (client, _):
        with pytest.raises(Unavailable):
            await client.servers()


async def test_a_hub_that_never_answers_is_not_waited_for_long() -> None:
    """As one whose pod was taken away by force: the connection stays, and nobody is there."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = HubClient(f"http://127.0.0.1:{silent.getsockname()[1]}/hub/api", "own-token", timeout_s=0.2)
        for call in (client.servers(), client.stop("alice", "")):
            with pytest.raises(Unavailable):
                await asyncio.wait_for(call, 10)
        await client.close()


@pytest.mark.parametrize(("name", "server", "path"), [("alice", "", "alice/server"), ("a/b@c", "gpu", "a%2Fb%40c/servers/gpu")])
@pytest.mark.parametrize("status", [202, 204, 404])
async def test_a_stop_asks_for_exactly_that_server_and_one_that_is_gone_is_fine(name: str, server: str, path: str, status: int) -> None:
    async with hub({"DELETE": status}) as (client, asked):
        await client.stop(name, server)
    assert asked == [f"DELETE /hub/api/users/{path}"]
