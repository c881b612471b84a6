"""The service on the local engine: real processes, real logs, real shells."""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from hotdesk_api import calls, models
from hotdesk_api.client import Client
from hotdesk_api.errors import Invalid, NotFound
from scheduler_fixture import Scheduler
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

pytestmark = pytest.mark.slow
WITHIN_S = 60.0


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come to hold"
        time.sleep(0.02)


def job(name: str, script: str, *, gpu_millis: int = 1000, kind: models.KindName = "train") -> models.WorkloadSpec:
    return models.WorkloadSpec(name=name, project="team-a", image="python", gpu_millis=gpu_millis, kind=kind, command=["sh", "-c", script])


def status(client: Client, name: str) -> str:
    return client.call(calls.workload("team-a", name)).status


async def run_inside(real: Scheduler, name: str, argv: list[str], *, tty: bool = False, typed: bytes = b"") -> tuple[bytes, int]:
    """Output and exit code of a command in a pod."""
    url = real.url.replace("http", "ws") + f"/v1/workloads/team-a/{name}/exec"
    connection = await websocket_connect(HTTPRequest(url, headers={"Authorization": f"Bearer {real.alice}"}))
    await connection.write_message(json.dumps({"argv": argv, "tty": tty, "rows": 33, "columns": 99}))
    if typed:
        await connection.write_message(b"\x00" + typed, binary=True)
    output = b""
    async with asyncio.timeout(WITHIN_S):
        while (message := await connection.read_message()) is not None:
            assert isinstance(message, bytes)
            if message[0] == 3:
                return output, json.loads(message[1:])["exit_code"]
            output += message[1:]
    raise AssertionError(f"it ended without an exit code: {output!r}")


async def test_a_shell_inside_sees_its_share_and_its_terminal(real: Scheduler) -> None:
    client = real.client()
    client.call(calls.submit(job("half", "exec sleep 1000", gpu_millis=500, kind="interactive")))
    until(lambda: status(client, "half") == "Running")
    output, code = await run_inside(real, "half", ["nvidia-smi"])
    assert b"SIMULATED" in output
    assert b"16384MiB" in output
    assert code == 0
    output, code = await run_inside(real, "half", ["bash"], tty=True, typed=b"stty size; echo $RUNAI_PROJECT; exit 7\n")
    assert b"33 99" in output
    assert b"team-a" in output
    assert code == 7


def test_a_followed_log_arrives_line_by_line_and_ends_with_the_job(real: Scheduler, tmp_path: Path) -> None:
    client = real.client()
    client.call(calls.submit(job("talks", f"for i in 1 2 3; do echo line $i; while [ ! -e {tmp_path}/$i ]; do sleep 0.05; done; done")))
    seen = b""
    for piece in client.logs("team-a", "talks", follow=True):
        seen += piece
        (tmp_path / str(seen.count(b"line"))).touch()
    assert seen.splitlines() == [b"line 1", b"line 2", b"line 3"]
    until(lambda: status(client, "talks") == "Succeeded")


@pytest.mark.parametrize(("gpu_millis", "said"), [(8000, b""), (1000, b"up\n")])
def test_a_log_can_be_followed_before_the_job_starts_and_ends_when_it_is_deleted(real: Scheduler, gpu_millis: int, said: bytes) -> None:
    client = real.client()
    client.call(calls.submit(job("one", "echo up; exec sleep 1000", gpu_millis=gpu_millis, kind="interactive")))
    url, headers = f"{real.url}/v1/workloads/team-a/one/logs?follow=1", {"Authorization": f"Bearer {real.alice}"}
    with httpx.stream("GET", url, headers=headers, timeout=WITHIN_S, trust_env=False) as response:
        until(lambda: status(client, "one") == ("Running" if said else "Pending"))
        pieces = response.iter_raw()
        if said:
            assert next(pieces) == said
        client.call(calls.delete("team-a", "one"))
        assert b"".join(pieces) == b""


def test_a_suspended_job_is_stopped_with_notice_and_starts_anew(real: Scheduler, tmp_path: Path) -> None:
    client, told = real.client(), tmp_path / "told"
    client.call(calls.submit(job("one", f"trap 'echo notice >> {told}; exit 0' TERM; echo start >> {told}; while :; do sleep 0.05; done")))
    until(told.exists)
    client.call(calls.suspend("team-a", "one"))
    until(lambda: status(client, "one") == "Suspended")
    client.call(calls.resume("team-a", "one"))
    until(lambda: told.read_text().split() == ["start", "notice", "start"])


def test_wrong_wishes_get_sentences_from_the_real_catalog(real: Scheduler) -> None:
    client = real.client()
    with pytest.raises(Invalid, match="largest"):
        client.call(calls.submit(job("huge", "true", gpu_millis=99_000)))
    with pytest.raises(Invalid) as unknown:
        client.call(calls.submit(models.WorkloadSpec(name="x", project="team-a", image="tensorflow/none", gpu_millis=1000)))
    assert "python" in str(unknown.value)
    with pytest.raises(NotFound):
        real.client(real.bob).call(calls.workload("team-a", "huge"))


def test_all_that_a_scheduler_keeps_is_its_owners_alone(real: Scheduler) -> None:
    client = real.client()
    client.call(calls.submit(job("one", "true")))
    until(lambda: status(client, "one") == "Succeeded")
    kept = [real.state, *real.state.rglob("*")]
    assert {"records.db", "state.db", "port", "log"} <= {path.name for path in kept}
    assert [path for path in kept if stat.S_IMODE(path.stat().st_mode) & 0o077] == []


def test_stop_refuses_while_a_scheduler_works_and_ends_everything_afterwards(real: Scheduler) -> None:
    client = real.client()
    client.call(calls.submit(job("one", "exec sleep 1000")))
    until(lambda: status(client, "one") == "Running")
    stop = [sys.executable, "-m", "hotdesk_scheduler.cli", "stop", "--state", str(real.state)]
    refused = subprocess.run(stop, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert refused.returncode == 1
    assert "Another scheduler" in refused.stderr
    real.end()
    stopped = subprocess.run(stop, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert (stopped.returncode, stopped.stderr) == (0, "Stopped 1 pod.\n")
