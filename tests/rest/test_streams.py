"""What goes on: server-sent events, logs, and shells over the websocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import desks
import httpx
import pytest
import pytest_asyncio
from hotdesk_api import calls, models
from hotdesk_api.errors import Unavailable
from hotdesk_api.models import StreamEvent
from hotdesk_scheduler.rest import streams
from hotdesk_scheduler.service import feed
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[desks.Running]:
    async with desks.running(tmp_path) as running:
        yield running


async def gathered(events: AsyncIterator[StreamEvent], into: list[StreamEvent]) -> None:
    async for event in events:
        into.append(event)


async def test_a_stream_begins_with_what_is_there_and_goes_on_with_every_change(service: desks.Running) -> None:
    alice = service.client()
    await alice.call(calls.submit(desks.spec("before")))
    await desks.until_status(alice, "before", "Running")
    seen: list[StreamEvent] = []
    task = asyncio.create_task(gathered(service.client().events(project="team-a"), seen))
    await desks.until(lambda: any(event.name == "before" for event in seen))
    await alice.call(calls.submit(desks.spec("after")))
    await desks.until(lambda: any(e.workload and e.workload.name == "after" and e.workload.status == "Running" for e in seen))
    await alice.call(calls.delete("team-a", "after"))
    await desks.until(lambda: any(event.kind == "removed" and event.name == "after" for event in seen))
    assert any(event.kind == "event" and event.event and event.event.reason == "Submitted" for event in seen)
    task.cancel()


async def test_a_stream_tells_nothing_of_other_teams(service: desks.Running) -> None:
    seen: list[StreamEvent] = []
    task = asyncio.create_task(gathered(service.client("bob-token").events(), seen))
    await desks.until(lambda: len(service.desk.feed) == 1)
    await service.client().call(calls.submit(desks.spec("of-a")))
    await service.client("bob-token").call(calls.submit(desks.spec("of-b", project="team-b")))
    await desks.until(lambda: any(event.name == "of-b" for event in seen))
    assert all(event.project in (None, "team-b") for event in seen)
    task.cancel()


async def test_a_stream_of_another_teams_project_does_not_exist(service: desks.Running) -> None:
    async with httpx.AsyncClient(base_url=service.url, headers={"Authorization": "token bob-token"}, trust_env=False) as http:
        assert (await http.get("/v1/events?project=team-a")).status_code == 404
        assert (await http.get("/v1/events?project=team-b&workload=none")).status_code == 404


async def test_a_quiet_stream_sends_comments_and_ends_when_its_token_is_taken_back(
    service: desks.Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE_S", 0.05)
    headers = {"Authorization": "Bearer alice-token"}
    async with (
        httpx.AsyncClient(base_url=service.url, headers=headers, trust_env=False) as http,
        http.stream("GET", "/v1/events", timeout=60) as response,
    ):
        text = ""
        async for piece in response.aiter_text():
            text += piece
            if ": still here" in text and (tmp_path / "tokens.json").read_text() != "{}":
                (tmp_path / "tokens.json").write_text("{}")
    await desks.until(lambda: not len(service.desk.feed))


async def test_a_busy_stream_ends_too_when_its_user_leaves_the_project(
    service: desks.Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE_S", 0.2)
    await service.client("admin-token").call(calls.submit(desks.spec("chatty")))
    task = asyncio.create_task(gathered(service.client().events(), []))
    await desks.until(lambda: len(service.desk.feed) == 1)
    left = {"alice-token": {**desks.TOKENS["alice-token"], "groups": []}, "admin-token": desks.TOKENS["admin-token"]}
    (tmp_path / "tokens.json").write_text(json.dumps(left))
    admin = service.client("admin-token")
    async with asyncio.timeout(30):
        step = 0
        while len(service.desk.feed):
            step += 1
            await admin.call(calls.report_progress("team-a", "chatty", models.Progress(message=f"step {step}")))
    await task


async def test_a_followed_log_breaks_off_when_the_token_is_taken_back(
    service: desks.Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless(*_: Any, **__: Any) -> AsyncIterator[bytes]:
        yield b"begin\n"
        await asyncio.Event().wait()

    monkeypatch.setattr(service.engine, "logs", endless)
    monkeypatch.setattr(streams, "KEEP_ALIVE_S", 0.1)
    alice = service.client()
    await alice.call(calls.submit(desks.spec("one")))
    pieces = alice.logs("team-a", "one", follow=True)
    assert await anext(pieces) == b"begin\n"
    (tmp_path / "tokens.json").write_text("{}")
    with pytest.raises(Unavailable):
        await asyncio.wait_for(anext(pieces), 30)


async def test_a_listener_that_goes_away_is_forgotten(service: desks.Running) -> None:
    task = asyncio.create_task(gathered(service.client().events(), []))
    await desks.until(lambda: len(service.desk.feed) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for number in range(100):
        await service.client().call(calls.submit(desks.spec(f"job-{number}", gpus=0)))
        if not len(service.desk.feed):
            break
    await desks.until(lambda: not len(service.desk.feed))


def test_a_slow_listener_keeps_only_the_newest_of_each_workload_and_is_dropped_for_too_many_events() -> None:
    listener = feed.Listener(desks.caller(), None, None)
    for number in range(5000):
        listener.put("one", str(number).encode(), is_event=False)
    assert asyncio.run(listener.take(1)) == [b"4999"]
    for number in range(feed.MAX_EVENTS_WAITING + 1):
        listener.put(f"event {number}", b"", is_event=True)
    assert listener.dropped


async def test_a_log_is_streamed_with_its_tail(service: desks.Running) -> None:
    alice = service.client()
    made = await alice.call(calls.submit(desks.spec("one")))
    for number in range(5):
        service.engine.write_log(made.id, 0, f"line {number}\n".encode())
    assert b"".join([piece async for piece in alice.logs("team-a", "one", tail=2)]) == b"line 3\nline 4\n"


async def test_a_log_of_a_pod_that_is_not_there_names_those_that_are(service: desks.Running) -> None:
    await service.client().call(calls.submit(desks.spec("one")))
    async with httpx.AsyncClient(base_url=service.url, headers={"Authorization": "token alice-token"}, trust_env=False) as http:
        for query in ("pod=7", "pod=two-0", "pod=%C2%B2", "pod=" + "9" * 5000):
            found = await http.get(f"/v1/workloads/team-a/one/logs?{query}")
            assert found.status_code == 422
            assert "one-0" in found.json()["next_step"]
        for query in ("tail=-1", "since_s=nan", "since_s=-1", "tail=x"):
            assert (await http.get(f"/v1/workloads/team-a/one/logs?{query}")).status_code == 422


async def test_a_followed_log_ends_with_its_reader(service: desks.Running, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()

    async def endless(*_: Any, **__: Any) -> AsyncIterator[bytes]:
        try:
            yield b"begin\n"
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(service.engine, "logs", endless)
    await service.client().call(calls.submit(desks.spec("one")))
    async with (
        httpx.AsyncClient(base_url=service.url, headers={"Authorization": "token alice-token"}, trust_env=False) as http,
        http.stream("GET", "/v1/workloads/team-a/one/logs?follow=1", timeout=60) as response,
    ):
        async for piece in response.aiter_bytes():
            assert piece == b"begin\n"
            break
    async with asyncio.timeout(30):
        await ended.wait()


async def test_a_log_that_breaks_off_does_not_look_like_its_end(service: desks.Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any, **__: Any) -> AsyncIterator[bytes]:
        yield b"begin\n"
        raise OSError("the disk is gone")

    monkeypatch.setattr(service.engine, "logs", broken)
    alice = service.client()
    await alice.call(calls.submit(desks.spec("one")))
    with pytest.raises(Unavailable):
        [piece async for piece in alice.logs("team-a", "one")]


async def shell(service: desks.Running, name: str, *, token: str = "alice-token", first: Any = None) -> WebSocketClientConnection:
    url = service.url.replace("http", "ws") + f"/v1/workloads/team-a/{name}/exec"
    connection = await websocket_connect(HTTPRequest(url, headers={"Authorization": f"Bearer {token}"}))
    await connection.write_message(json.dumps({"argv": ["cat"]} if first is None else first))
    return connection


async def messages(connection: WebSocketClientConnection) -> list[bytes]:
    found = []
    async with asyncio.timeout(30):
        while (message := await connection.read_message()) is not None:
            assert isinstance(message, bytes)
            found.append(message)
    return found


async def test_a_shell_echoes_through_the_channels_and_tells_its_exit_code(service: desks.Running) -> None:
    alice = service.client()
    await alice.call(calls.submit(desks.spec("one")))
    await desks.until_status(alice, "one", "Running")
    connection = await shell(service, "one")
    await connection.write_message(b"\x03" + b'{"rows": 50, "columns": 100}', binary=True)
    await connection.write_message(b"\x00hello", binary=True)
    await connection.write_message(b"\x00", binary=True)
    assert await messages(connection) == [b"\x01cat\n", b"\x01hello", b'\x03{"exit_code": 0}']


async def test_a_shell_in_what_does_not_run_is_a_problem(service: desks.Running) -> None:
    await service.client().call(calls.submit(desks.spec("waits", gpus=8, kind="interactive")))
    found = await messages(await shell(service, "waits"))
    assert found[-1][0] == 3
    assert "not running" in json.loads(found[-1][1:])["problem"]["detail"]


@pytest.mark.parametrize("first", [[], {}, {"argv": []}, {"argv": "sh"}, {"argv": ["sh"], "rows": 0}, {"argv": ["sh"], "pod": 9}])
async def test_a_shell_with_a_wrong_first_message_is_a_problem(service: desks.Running, first: object) -> None:
    alice = service.client()
    await alice.call(calls.submit(desks.spec("one")))
    await desks.until_status(alice, "one", "Running")
    found = await messages(await shell(service, "one", first=first))
    assert json.loads(found[-1][1:])["problem"]["status"] == 422


async def test_only_the_owner_and_admins_get_a_shell(service: desks.Running) -> None:
    alice = service.client()
    await alice.call(calls.submit(desks.spec("one")))
    await desks.until_status(alice, "one", "Running")
    for token, status in (("ann-token", 403), ("bob-token", 404), ("guessed", 401), ("reader-token", 403)):
        with pytest.raises(HTTPClientError) as refused:
            await shell(service, "one", token=token)
        assert refused.value.code == status
    connection = await shell(service, "one", token="admin-token")
    connection.close()


async def test_a_shell_ends_when_its_user_goes_away(service: desks.Running, monkeypatch: pytest.MonkeyPatch) -> None:
    alice = service.client()
    await alice.call(calls.submit(desks.spec("one")))
    await desks.until_status(alice, "one", "Running")
    sessions: list[Any] = []
    run = service.engine.exec

    async def noted(*arguments: Any, **options: Any) -> Any:
        sessions.append(await run(*arguments, **options))
        return sessions[-1]

    monkeypatch.setattr(service.engine, "exec", noted)
    connection = await shell(service, "one")
    await desks.until(lambda: sessions)
    connection.close()
    async with asyncio.timeout(30):
        assert await sessions[0].wait() == 0
