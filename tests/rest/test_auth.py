"""Who is calling: tokens resolved by a hub over HTTP, remembered for a short time, never logged."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import desks
import pytest
from hotdesk_api import calls
from hotdesk_api.errors import Invalid, Unauthorized, Unavailable
from hotdesk_scheduler.rest import auth
from hotdesk_scheduler.rest.auth import FileAuthenticator, HubAuthenticator
from tornado import httpserver, netutil, web


class HubStandIn:
    """`GET /hub/api/user` with the answers of a real hub; counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.models: dict[str, dict[str, Any]] = {
            "token-a": {"kind": "user", "name": "alice", "admin": False, "groups": ["team-a"], "scopes": [desks.SCOPES.submit, "self"]},
        }
        self.status: int | None = None

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        hub = self

        class User(web.RequestHandler):
            def get(self) -> None:
                hub.asked += 1
                token = self.request.headers["Authorization"].removeprefix("token ")
                if hub.status or token not in hub.models:
                    self.set_status(hub.status or 403)
                    self.finish()
                    return
                self.finish(json.dumps(hub.models[token]))

        sockets = netutil.bind_sockets(0, "127.0.0.1")
        server = httpserver.HTTPServer(web.Application([("/hub/api/user", User)], log_function=lambda handler: None))
        server.add_sockets(sockets)
        try:
            yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}/hub/api"
        finally:
            server.stop()
            await server.close_all_connections()


@asynccontextmanager
async def authenticated(clock: Any = None) -> AsyncIterator[tuple[HubStandIn, HubAuthenticator]]:
    hub = HubStandIn()
    async with hub.listening() as url:
        checks = HubAuthenticator(url, desks.SCOPES, **({"clock": clock} if clock else {}))
        try:
            yield hub, checks
        finally:
            await checks.close()


async def test_groups_are_projects_and_scopes_are_what_the_token_may() -> None:
    async with authenticated() as (_, checks):
        caller = await checks.caller("token-a")
    assert (caller.name, caller.groups, caller.admin, caller.may_submit) == ("alice", frozenset({"team-a"}), False, True)


async def test_an_answer_is_remembered_for_a_short_time_only() -> None:
    now = 0.0
    async with authenticated(lambda: now) as (hub, checks):
        for _ in range(5):
            await checks.caller("token-a")
        assert hub.asked == 1
        del hub.models["token-a"]
        now = auth.KNOWN_S
        with pytest.raises(Unauthorized):
            await checks.caller("token-a")
        with pytest.raises(Unauthorized):
            await checks.caller("token-a")
        assert hub.asked == 2
        hub.models["token-a"] = {"name": "alice"}
        now += auth.UNKNOWN_S
        assert (await checks.caller("token-a")).name == "alice"


async def test_guessed_tokens_do_not_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "REMEMBERED", 10)
    async with authenticated() as (_, checks):
        for number in range(30):
            with pytest.raises(Unauthorized):
                await checks.caller(f"guess-{number}")
        assert len(checks._remembered) == 10


@pytest.mark.parametrize(
    ("scopes", "may_submit", "admin"),
    [
        (["custom:hotdesk:jobs:read"], False, False),
        (["custom:hotdesk:jobs:submit!user=alice"], True, False),
        (["custom:hotdesk:jobs:submit!user=bob"], False, False),
        (["custom:hotdesk:jobs:admin!group=team-a"], False, False),
        (["custom:hotdesk:jobs:admin"], True, True),
        (["custom:other:jobs:admin"], False, False),
    ],
)
async def test_scopes_mean_what_they_say_and_a_filter_never_widens(scopes: list[str], may_submit: bool, admin: bool) -> None:
    async with authenticated() as (hub, checks):
        hub.models["token-a"]["scopes"] = scopes
        caller = await checks.caller("token-a")
    assert (caller.may_submit, caller.admin) == (may_submit, admin)


async def test_the_hubs_admin_flag_alone_makes_nobody_admin_here() -> None:
    async with authenticated() as (hub, checks):
        hub.models["token-a"]["admin"] = True
        assert not (await checks.caller("token-a")).admin


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_a_hub_that_fails_is_not_a_wrong_token(status: int) -> None:
    async with authenticated() as (hub, checks):
        hub.status = status
        with pytest.raises(Unavailable, match="JupyterHub"):
            await checks.caller("token-a")


async def test_a_hub_that_is_away_is_answered_with_503(tmp_path: Path) -> None:
    checks = HubAuthenticator("http://127.0.0.1:9/hub/api", desks.SCOPES)
    async with desks.running(tmp_path, authenticator=checks) as service:
        with pytest.raises(Unavailable, match="JupyterHub"):
            await service.client().call(calls.whoami())


async def test_tokens_are_never_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with authenticated() as (_, checks), desks.running(tmp_path, authenticator=checks) as service:
        await service.client("token-a").call(calls.whoami())
        with pytest.raises(Unauthorized):
            await service.client("wrong-token").call(calls.whoami())
    assert "token-a" not in caplog.text
    assert "wrong-token" not in caplog.text


def test_a_file_of_tokens_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = desks.write_tokens(tmp_path / "tokens.json")
    path.chmod(0o644)
    with pytest.raises(Invalid, match="can be read by others"):
        FileAuthenticator(path, desks.SCOPES)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"t": 1}', '{"t": {}}'])
def test_a_file_of_tokens_that_is_broken_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(Invalid, match="cannot be read"):
        FileAuthenticator(path, desks.SCOPES)


async def test_both_spellings_of_the_header_are_taken(tmp_path: Path) -> None:
    import httpx

    async with desks.running(tmp_path) as service, httpx.AsyncClient(base_url=service.url, trust_env=False) as http:
        for header, status in (
            ("Bearer alice-token", 200),
            ("token alice-token", 200),
            ("bearer alice-token", 200),
            ("Basic alice-token", 401),
            ("Bearer \u00e4", 401),
            ("Bearer " + "x" * 5000, 401),
            ("Bearer", 401),
        ):
            response = await http.get("/v1/whoami", headers={b"Authorization": header.encode("latin-1")})
            assert response.status_code == status, header
        assert (await http.get("/v1/whoami", headers={"Cookie": "token=alice-token"})).status_code == 401


async def test_many_callers_at_once_cost_the_hub_few_questions() -> None:
    async with authenticated() as (hub, checks):
        await checks.caller("token-a")
        await asyncio.gather(*(checks.caller("token-a") for _ in range(100)))
        assert hub.asked == 1
