"""The hub's requests to its proxy and to workspaces, whose pods may vanish without closing what is connected to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from hotdesk_hub import on_cluster
from traitlets.config import Config

httpclient = pytest.importorskip("jupyterhub.httpclient", reason="JupyterHub 5 asks with Tornado's client, which keeps no connections")

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Any]:
    config = Config()
    on_cluster.configure(config, scheduler_url="http://hotdesk", scheduler_token="one", spawner_token="two")
    made = httpclient.JupyterHubHTTPClient.instance(config=config)
    yield made
    await made.close()


@pytest_asyncio.fixture
async def url() -> AsyncIterator[str]:
    """Of a server that answers once on each connection, and then nothing more, not even that it is gone."""

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        while await reader.read(1000):
            pass
        writer.close()

    server = await asyncio.start_server(answer_once, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/api/routes"
    server.close()


async def test_a_pod_that_vanished_without_a_word_does_not_keep_the_hub_waiting(client: Any, url: str) -> None:
    for _ in range(3):
        response = await asyncio.wait_for(client.fetch(url), timeout=5)
        assert await response.json() == {}


@pytest.mark.slow
async def test_who_takes_a_request_and_never_answers_is_asked_again_by_jupyterhub(client: Any) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    with pytest.raises(aiohttp.ClientConnectionError):  # what its own calls take as a reason to try again
        await asyncio.wait_for(client.fetch(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/api/routes"), timeout=20)
    server.close()
