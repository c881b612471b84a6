"""What is read from the hub's API: all pages, active servers only, and every failure as "cannot be asked"."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hotdesk_api.errors import Unavailable
from hotdesk_scheduler.service.hub import HubClient, Server
from tornado import httpserver, netutil, web


@asynccontextmanager
async def hub(answers: dict[str, Any]) -> AsyncIterator[tuple[HubClient, list[str]]]:
    """Answers by `METHOD path?query`: a number is a status, what can be called gets the query. What was asked is noted."""
    asked: list[str] = []

    class Anything(web.RequestHandler):
        def answer(self) -> None:
            asked.append(f"{self.request.method} {self.request.uri}")
            found = next((value for key, value in answers.items() if asked[-1].startswith(key)), 404)
            if isinstance(found, int):
                self.set_status(found)
                self.finish()
            else:
                query = {name: self.get_query_argument(name) for name in self.request.query_arguments}
                self.finish(json.dumps(found(query) if callable(found) else found))

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


class Paged:
    """A hub's list, by offset and limit; before each page something may happen to it."""

    def __init__(self, users: list[dict[str, Any]], *, limit: int = 200) -> None:
        self.users = users
        self.limit = limit
        self.before_page: Callable[[int], None] = lambda page: None
        self.asked = 0

    def __call__(self, query: Mapping[str, str]) -> object:
        self.asked += 1
        self.before_page(self.asked)
        start, limit = int(query["offset"]), min(int(query["limit"]), self.limit)
        more = {"offset": start + limit, "limit": limit} if start + limit < len(self.users) else None
        return {"items": self.users[start : start + limit], "_pagination": {"next": more}}


async def test_only_active_servers_count() -> None:
    users = Paged([user("alice", default=READY, old=STOPPED), user("bob", gpu=SPAWNING)])
    async with hub({"GET /hub/api/users?state=active&": users}) as (client, _):
        assert await client.servers() == {("alice", ""): Server(True, None), ("bob", "gpu"): Server(False, "spawn")}


@pytest.mark.parametrize("limit", [200, 50, 7])
async def test_all_pages_are_read_also_of_a_hub_that_gives_smaller_ones(limit: int) -> None:
    names = [f"user-{number}" for number in range(450)]
    users = Paged([user(name, default=READY) for name in names], limit=limit)
    async with hub({"GET": users}) as (client, _):
        assert [name for name, _ in await client.servers()] == names


@pytest.mark.parametrize("goes", [1, 25])
async def test_who_has_an_open_workspace_is_never_missed_because_others_closed_theirs_while_pages_were_read(goes: int) -> None:
    """As if it had none, its GPU would be given away."""
    users = Paged([user(f"user-{number}", default=READY) for number in range(450)])

    def some_close_theirs(page: int) -> None:
        if page == 2:
            del users.users[:goes]

    users.before_page = some_close_theirs
    async with hub({"GET": users}) as (client, _):
        found = await client.servers()
    assert {(one["name"], "") for one in users.users} <= found.keys()


async def test_a_list_that_changes_each_time_it_is_read_tells_nothing() -> None:
    users = Paged([user(f"user-{number}", default=READY) for number in range(4000)])

    def many_close_theirs(page: int) -> None:
        del users.users[:100]

    users.before_page = many_close_theirs
    async with hub({"GET": users}) as (client, _):
        with pytest.raises(Unavailable):
            await client.servers()


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
