"""Bad input gets a sentence and loses nothing: each line that people get wrong, as it arrives on the wire."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import desks
import httpx
import pytest
import pytest_asyncio
from hotdesk_api import calls, models


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[desks.Running]:
    async with desks.running(tmp_path) as running:
        yield running


async def refused(service: desks.Running, body: dict[str, Any] | bytes, *, token: str | None = "alice-token") -> dict[str, Any]:
    """The problem that a submission is answered with; nothing is submitted."""
    content = body if isinstance(body, bytes) else json.dumps({"project": "team-a", "image": "python", **body}).encode()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(base_url=service.url, headers=headers, trust_env=False) as http:
        response = await http.post("/v1/workloads", content=content)
    assert response.headers["content-type"] == "application/problem+json", response.text
    assert response.status_code == response.json()["status"]
    assert service.engine.snapshot().workloads == ()
    found: dict[str, Any] = response.json()
    return found


async def test_an_unknown_project_is_answered_with_the_callers_own(service: desks.Running) -> None:
    found = await refused(service, {"project": "team-x"})
    assert (found["status"], found["field"], found["value"]) == (422, "project", "team-x")
    assert "team-a" in found["next_step"]


async def test_another_teams_project_reads_as_unknown(service: desks.Running) -> None:
    known, unknown = await refused(service, {"project": "team-b"}), await refused(service, {"project": "team-y"})
    assert known["detail"].replace("team-b", "team-y") == unknown["detail"]


async def test_an_unknown_member_is_answered_with_the_known_ones(service: desks.Running) -> None:
    found = await refused(service, {"gpus": 1})
    assert "gpus" in found["detail"]
    assert "gpu_millis" in found["next_step"]


async def test_an_unknown_image_is_named(service: desks.Running) -> None:
    found = await refused(service, {"image": "tensorflow:latest"})
    assert "tensorflow:latest" in found["detail"]
    assert "python" in found["next_step"]


async def test_an_unknown_node_type_is_answered_with_the_valid_ones(service: desks.Running) -> None:
    from dataclasses import replace

    node = replace(desks.nodes(1)[0], name="typed", node_type="dgx")
    service.engine.put_node(node)
    found = await refused(service, {"node_type": "dgx2"})
    assert found["field"] == "node_type"
    assert "dgx" in found["next_step"]


async def test_an_unknown_kind_is_answered_with_the_valid_ones(service: desks.Running) -> None:
    found = await refused(service, {"kind": "batch"})
    assert "train" in found["detail"] + str(found.get("limit"))


@pytest.mark.parametrize("millis", [-1000, -1])
async def test_less_than_no_gpu_is_refused(service: desks.Running, millis: int) -> None:
    found = await refused(service, {"gpu_millis": millis})
    assert (found["status"], found["field"]) == (422, "gpu_millis")


@pytest.mark.parametrize("millis", [1500, 1001, 2999])
async def test_above_one_gpu_only_whole_ones_can_be_asked_for(service: desks.Running, millis: int) -> None:
    found = await refused(service, {"gpu_millis": millis})
    assert "whole" in found["detail"]
    assert found["next_step"]


@pytest.mark.parametrize("text", ["NaN", "Infinity", "123.4", '"0.5"'])
async def test_gpus_are_whole_thousandths(service: desks.Running, text: str) -> None:
    body = b'{"project": "team-a", "image": "python", "gpu_millis": ' + text.encode() + b"}"
    assert (await refused(service, body))["status"] == 422


async def test_more_gpus_than_any_node_has_names_the_largest_node(service: desks.Running) -> None:
    found = await refused(service, {"gpu_millis": 99_000})
    assert "sim-2" in found["detail"]
    assert "8 free" in found["detail"]
    assert found["limit"] == 8


async def test_more_memory_or_cpu_than_any_node_has_is_refused(service: desks.Running) -> None:
    assert (await refused(service, {"memory_mib": 10**30}))["limit"] == 512_000
    assert (await refused(service, {"cpu_millis": 80_001}))["limit"] == 80_000
    assert (await refused(service, {"gpu_memory_mib": 99_999}))["limit"] == 32_768


async def test_gpus_by_number_and_by_memory_exclude_each_other(service: desks.Running) -> None:
    assert "not both" in (await refused(service, {"gpu_millis": 500, "gpu_memory_mib": 100}))["detail"]


async def test_more_than_the_quota_allows_is_accepted_and_held_with_its_reason(service: desks.Running) -> None:
    alice = service.client()
    await alice.call(calls.submit(desks.spec("big", gpus=8, kind="interactive")))
    await desks.until(lambda: service.desk.loop.holds)
    held = await alice.call(calls.workload("team-a", "big"))
    assert held.status == "Pending"
    assert held.reason is not None
    assert held.reason.code == "non_preemptible_over_quota"


async def test_a_name_that_is_taken_is_a_conflict(service: desks.Running) -> None:
    alice = service.client()
    await alice.call(calls.submit(desks.spec("one")))
    async with httpx.AsyncClient(base_url=service.url, headers={"Authorization": "token alice-token"}, trust_env=False) as http:
        response = await http.post("/v1/workloads", json={"name": "one", "project": "team-a", "image": "python"})
    assert response.status_code == 409
    assert "one" in response.json()["detail"]


@pytest.mark.parametrize("name", ["Upper", "1st", "a_b", "a.b", "-a", "a-", "", "x" * 64, "a/b", "../a", "a\n", "ä", "a b", "$(id)"])
async def test_a_name_that_is_not_dns_1035_is_explained(service: desks.Running, name: str) -> None:
    found = await refused(service, {"name": name})
    assert found["field"] == "name"
    assert "DNS-1035" in found["detail"]
    assert "\n" not in found["detail"]


async def test_too_many_bytes_of_arguments_are_refused(service: desks.Running) -> None:
    found = await refused(service, {"args": ["x" * 1024 * 1024]})
    assert (found["status"], found["limit"]) == (413, models.MAX_ARGUMENTS_BYTES)
    many = await refused(service, {"args": ["x"] * 100_000})
    assert many["status"] == 413


async def test_a_body_above_the_limit_is_answered_not_cut_off(service: desks.Running) -> None:
    found = await refused(service, {"program": "x" * (5 * 1024 * 1024)})
    assert (found["status"], found["field"]) == (413, "body")


async def test_a_program_above_its_limit_is_refused(service: desks.Running) -> None:
    assert (await refused(service, {"program": "x" * (models.MAX_PROGRAM_BYTES + 1)}))["field"] == "program"


@pytest.mark.parametrize("name", ["", "1A", "A B", "A=B", "A-B"])
async def test_a_variable_needs_a_name(service: desks.Running, name: str) -> None:
    assert (await refused(service, {"environment": {name: "x"}}))["field"] == "environment"


async def test_a_nul_character_is_refused(service: desks.Running) -> None:
    assert (await refused(service, {"args": ["a\0b"]}))["status"] == 422


@pytest.mark.parametrize("field", ["parallelism", "workers", "completions", "ttl_after_finish_s"])
async def test_counts_that_would_fill_memory_are_refused(service: desks.Running, field: str) -> None:
    found = await refused(service, {field: 10**12, "completions": 10} if field == "parallelism" else {field: 10**12})
    assert found["field"] == field


async def test_parallelism_needs_completions(service: desks.Running) -> None:
    assert "completions" in (await refused(service, {"parallelism": 3}))["detail"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"project": 1}', b"1e999"])
async def test_a_malformed_body_is_a_problem_not_a_crash(service: desks.Running, body: bytes) -> None:
    assert (await refused(service, body))["status"] == 422


async def test_no_token_and_a_wrong_token_are_not_let_in(service: desks.Running) -> None:
    assert (await refused(service, {}, token=None))["status"] == 401
    wrong = await refused(service, {}, token="guessed")
    assert wrong["status"] == 401
    assert "guessed" not in json.dumps(wrong)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", ["/v1/workloads", "/nowhere"])
async def test_who_is_refused_is_told_when_the_connection_closes(service: desks.Running, method: str, path: str) -> None:
    """Else the proxy sends the next request, whosever it is, on a closed one and answers 503."""
    async with httpx.AsyncClient(base_url=service.url, headers={"Authorization": "Bearer guessed"}, trust_env=False) as http:
        for _ in range(5):
            refused = await http.request(method, path, content=b"{}" if method == "POST" else None)
            assert refused.status_code in (401, 404)
            assert refused.headers.get("connection") == "close"
            assert (await http.get("/healthz")).status_code == 200


async def test_a_token_without_the_scope_is_refused(service: desks.Running) -> None:
    assert (await refused(service, {}, token="reader-token"))["limit"] == "custom:hotdesk:jobs:submit"
    assert (await refused(service, {}, token="nobody-token"))["status"] == 403


async def test_nobody_submits_for_somebody_else(service: desks.Running) -> None:
    assert (await refused(service, {"owner": "bob"}))["status"] == 403
    assert (await refused(service, {"kind": "workspace", "owner": "alice"}))["limit"] == "custom:hotdesk:workspaces:host"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/suspend"),
        ("POST", "/resume"),
        ("GET", "/events"),
        ("GET", "/explain"),
        ("GET", "/logs"),
        ("GET", "/exec"),
        ("PUT", "/progress"),
    ],
)
async def test_another_teams_job_is_answered_as_if_it_did_not_exist(service: desks.Running, method: str, path: str) -> None:
    await service.client().call(calls.submit(desks.spec("secret")))
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": "x" * 22 + "==", "Sec-WebSocket-Version": "13"}
    headers = {"Authorization": "Bearer bob-token", **(upgrade if path == "/exec" else {})}
    body = b"{}" if method == "PUT" else None
    async with httpx.AsyncClient(base_url=service.url, headers=headers, trust_env=False) as http:
        there = await http.request(method, f"/v1/workloads/team-a/secret{path}", content=body)
        nowhere = await http.request(method, f"/v1/workloads/team-a/nothin{path}", content=body)
    assert there.status_code == nowhere.status_code == 404
    assert there.text.replace("secret", "nothin") == nowhere.text
    assert service.desk.find("team-a", "secret") is not None


async def test_lists_show_only_what_the_caller_may_see(service: desks.Running) -> None:
    await service.client().call(calls.submit(desks.spec("of-a")))
    bob = service.client("bob-token")
    assert (await bob.call(calls.workloads())).items == []
    assert [project.name for project in (await bob.call(calls.projects())).items] == ["team-b"]


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v2/workloads", "/v1/workloads/a", "/v1/workloads/team-a/..%2f..%2fetc", "/%00", "/v1/projects/%ff"]
)
async def test_an_unknown_path_is_a_problem(service: desks.Running, path: str) -> None:
    async with httpx.AsyncClient(base_url=service.url, headers={"Authorization": "Bearer alice-token"}, trust_env=False) as http:
        response = await http.get(path)
    assert response.status_code in (404, 422), response.text
    assert response.headers["content-type"] == "application/problem+json"


async def test_a_wrong_method_is_a_problem(service: desks.Running) -> None:
    async with httpx.AsyncClient(base_url=service.url, headers={"Authorization": "Bearer alice-token"}, trust_env=False) as http:
        response = await http.put("/v1/workloads", content=b"{}")
    assert (response.status_code, response.json()["title"]) == (405, "method not allowed")


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=-1", "after=nothing"])
async def test_a_wrong_query_is_a_problem(service: desks.Running, query: str) -> None:
    async with httpx.AsyncClient(base_url=service.url, headers={"Authorization": "Bearer alice-token"}, trust_env=False) as http:
        response = await http.get(f"/v1/workloads?{query}")
    assert response.status_code == 422
    assert response.json()["detail"]


async def test_a_failure_inside_shows_nothing_of_the_inside(service: desks.Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(spec: object) -> None:
        raise RuntimeError("secret path /root/x")

    monkeypatch.setattr(service.engine, "check", broken)
    found = await refused(service, {})
    assert (found["status"], "secret" in json.dumps(found)) == (500, False)


async def test_a_full_disk_while_submitting_is_a_sentence(service: desks.Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(service.engine, "submit", full)
    found = await refused(service, {})
    assert (found["status"], "disk" in found["detail"]) == (503, True)
