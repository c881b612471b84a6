"""Both clients, against a real service: models out, models in, and every failure an error of `hotdesk_api`."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import desks
import pytest
import pytest_asyncio
from hotdesk_api import calls, errors, models
from hotdesk_api.client import AsyncClient, Client
from hotdesk_api.errors import BY_CODE, HotdeskError, Invalid, NotFound, Refused, Unauthorized, Unavailable, from_problem, problem


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[desks.Running]:
    async with desks.running(tmp_path) as running:
        yield running


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)


async def test_the_sync_client_does_what_the_async_one_does(service: desks.Running) -> None:
    client = Client(service.url, "alice-token")
    made = await in_thread(lambda: client.call(calls.submit(desks.spec("one"))))
    await desks.until_status(service.client(), "one", "Running")
    service.engine.write_log(made.id, 0, b"hello\n")
    assert b"".join(await in_thread(lambda: list(client.logs("team-a", "one")))) == b"hello\n"
    first = await in_thread(lambda: next(iter(client.events(project="team-a", workload="one"))))
    assert first.kind in {"cluster", "workload"}
    assert await in_thread(lambda: client.call(calls.delete("team-a", "one"))) is None
    client.close()


async def test_problems_arrive_as_the_errors_they_were(service: desks.Running) -> None:
    alice = service.client()
    with pytest.raises(NotFound) as missing:
        await alice.call(calls.workload("team-a", "one"))
    assert (missing.value.field, missing.value.value, missing.value.exit_code) == ("workload", "one", 1)
    with pytest.raises(Invalid) as wrong:
        await alice.call(calls.submit(desks.spec("one", gpus=99)))
    assert (wrong.value.limit, wrong.value.exit_code) == (8, 2)
    with pytest.raises(Unauthorized):
        await service.client(None).call(calls.whoami())
    with pytest.raises(NotFound):
        [piece async for piece in alice.logs("team-a", "one")]
    with pytest.raises(NotFound):
        [event async for event in alice.events(project="team-b")]


@pytest.mark.parametrize("name", ["a/b", "..", "a?x=1", "a#b", "a b", "%2e%2e"])
async def test_names_never_leave_their_place_in_the_path(service: desks.Running, name: str) -> None:
    with pytest.raises((NotFound, Invalid)):
        await service.client().call(calls.workload("team-a", name))


async def test_a_scheduler_that_is_not_there_is_named() -> None:
    client = AsyncClient("http://127.0.0.1:9", "t")
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:9"):
        await client.call(calls.whoami())
    await client.close()


@pytest.mark.parametrize(("status", "kind"), [(404, Unavailable), (302, Unavailable), (503, Unavailable), (403, Refused)])
async def test_a_page_of_the_hub_does_not_say_that_a_job_is_gone(status: int, kind: type[HotdeskError]) -> None:
    """A proxy that was just restarted knows no way to the scheduler yet, and whoever waits for a job goes on waiting."""

    async def page(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>".encode())
        await writer.drain()
        writer.close()

    hub = await asyncio.start_server(page, "127.0.0.1", 0)
    async with hub:
        client = AsyncClient(f"http://127.0.0.1:{hub.sockets[0].getsockname()[1]}", "t")
        with pytest.raises(kind, match=f"answered {status}"):
            await client.call(calls.workload("team-a", "one"))
        await client.close()


async def test_what_a_later_scheduler_adds_to_its_answers_is_passed_over() -> None:
    """A workspace's image stays as it is when the scheduler is upgraded."""
    known = {"code": "queued", "sentence": "It waits.", "numbers": {}}
    body = json.dumps({"sentence": "It waits.", "starts_now": False, "later": 1, "reason": {**known, "later": [1]}})

    async def later(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    scheduler = await asyncio.start_server(later, "127.0.0.1", 0)
    async with scheduler:
        client = AsyncClient(f"http://127.0.0.1:{scheduler.sockets[0].getsockname()[1]}", "t")
        answer = await client.call(calls.why("team-a", "one"))
        assert answer.sentence == "It waits."
        await client.close()


async def test_only_what_was_said_is_sent() -> None:
    spec = desks.spec("one", gpus=1)
    assert set(spec.model_dump(exclude_unset=True)) == {"name", "project", "image", "gpu_millis"}


@pytest.mark.parametrize("kind", list(BY_CODE.values()))
def test_every_error_survives_the_wire(kind: type[HotdeskError]) -> None:
    sent = kind("It is so.", field="gpu", limit=8, value=99, next_step="Ask for 8.")
    back = from_problem(problem(sent), sent.status)
    assert type(back) is kind
    assert (str(back), back.field, back.limit, back.value) == (str(sent), "gpu", 8, 99)


def test_every_error_is_known_by_its_code() -> None:
    defined = {item for _, item in inspect.getmembers(errors, inspect.isclass) if issubclass(item, HotdeskError)}
    assert defined == set(BY_CODE.values())


def test_unknown_members_are_refused_on_the_way_in() -> None:
    with pytest.raises(ValueError, match="Extra inputs"):
        models.WorkloadSpec.model_validate({"project": "a", "gpus": 1})
