"""Commands inside a pod (`exec`, `bash`): its environment, a terminal if asked for, and nothing left when they are closed."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import psutil
import pytest
from engine_world import Local, eventually, half
from hotdesk_api.errors import Invalid
from hotdesk_scheduler.core.model import GpuRequest, Kind, PodState
from hotdesk_scheduler.engines.base import ExecSession


async def _running(local: Local, **spec: Any) -> str:
    workload_id = await local.submit("build1", kind=Kind.INTERACTIVE, gpu=GpuRequest(millis=500), **spec)
    await local.run(workload_id, placement=half())
    return workload_id


async def _all(session: ExecSession) -> dict[int, bytes]:
    said = {1: b"", 2: b""}
    while item := await asyncio.wait_for(session.read(), 30):
        said[item[0]] += item[1]
    return said


async def _until_said(session: ExecSession, words: bytes) -> bytes:
    said = b""
    while words not in said:
        item = await asyncio.wait_for(session.read(), 30)
        assert item is not None, said
        said += item[1]
    return said


async def test_a_command_has_the_pods_environment_and_directory(local: Local) -> None:
    workload_id = await _running(local, environment={"MINE": "yes"})
    session = await local.engine.exec(workload_id, 0, ["sh", "-c", "echo $JOB_NAME $MINE; pwd; echo oops >&2; exit 7"], tty=False)
    said = await _all(session)
    assert said[1].decode().splitlines() == ["build1 yes", str(local.state_dir / "homes" / "ada")]
    assert said[2] == b"oops\n"
    assert await session.wait() == 7
    await session.close()


async def test_what_a_shell_writes_has_the_modes_of_what_the_pod_writes(local: Local) -> None:
    workload_id = await _running(local)
    before = os.umask(0o077)  # as the scheduler's own is
    try:
        session = await local.engine.exec(workload_id, 0, ["sh", "-c", "umask"], tty=False)
    finally:
        os.umask(before)
    assert (await _all(session))[1] == b"0022\n"
    await session.close()


async def test_nvidia_smi_in_a_pod_shows_its_share(local: Local) -> None:
    workload_id = await _running(local)
    session = await local.engine.exec(workload_id, 0, ["nvidia-smi"], tty=False)
    assert b"16384MiB" in (await _all(session))[1]
    await session.close()


async def test_a_shell_on_a_terminal_talks_and_ends_with_its_exit_code(local: Local) -> None:
    workload_id = await _running(local)
    session = await local.engine.exec(workload_id, 0, ["bash", "--norc"], tty=True, rows=40, columns=111)
    await session.write(b"stty size; tty; echo sum $((40+2))\n")
    said = await _until_said(session, b"sum 42")
    assert b"40 111" in said
    assert b"/dev/pts/" in said
    await session.resize(50, 99)
    await session.write(b"stty size\n")
    assert b"50 99" in await _until_said(session, b"50 99")
    await session.write(b"exit 3\n")
    assert await asyncio.wait_for(session.wait(), 30) == 3
    await _all(session)
    await session.close()


async def test_control_c_reaches_what_runs_on_the_terminal(local: Local) -> None:
    workload_id = await _running(local)
    session = await local.engine.exec(workload_id, 0, ["bash", "--norc"], tty=True)
    await session.write(b"sleep 807.5\n")
    await eventually(lambda: _sleepers("807.5"), "the sleeper")
    await session.write(b"\x03")
    await eventually(lambda: not _sleepers("807.5"), "the sleeper being interrupted")
    await session.close()


async def test_input_ends_when_it_is_closed(local: Local) -> None:
    workload_id = await _running(local)
    session = await local.engine.exec(workload_id, 0, ["wc", "-c"], tty=False)
    await session.write(b"x" * 300_000)
    await session.write(b"")
    assert (await _all(session))[1].strip() == b"300000"
    assert await session.wait() == 0
    await session.close()


async def test_closing_ends_the_whole_group(local: Local) -> None:
    workload_id = await _running(local)
    session = await local.engine.exec(workload_id, 0, ["sh", "-c", "sleep 805.5 & echo up; sleep 805.5"], tty=False)
    await session.read()
    await session.close()
    await eventually(lambda: not _sleepers("805.5"), "the sleepers being gone")


@pytest.mark.parametrize("heeds", ["", "trap '' HUP; "], ids=["hangup", "no-hangup"])
async def test_the_end_of_the_pod_ends_what_was_started_in_it_without_waiting_for_what_holds_its_output(local: Local, heeds: str) -> None:
    workload_id = await _running(local)
    session = await local.engine.exec(workload_id, 0, ["sh", "-c", f"{heeds}setsid sleep 806.5 & echo up; sleep 806.5"], tty=False)
    await session.read()
    await local.stop(workload_id)
    await local.until(workload_id, PodState.STOPPED)
    await eventually(lambda: not _sleepers("806.5"), "the sleepers being gone")
    await _all(session)


async def test_a_command_ends_when_it_ends_though_something_it_started_keeps_its_output(local: Local) -> None:
    workload_id = await _running(local)
    session = await local.engine.exec(workload_id, 0, ["sh", "-c", "setsid sleep 808.5 & sleep 0.2; echo up; exit 3"], tty=False)
    assert (await asyncio.wait_for(_all(session), 10))[1] == b"up\n"
    assert await asyncio.wait_for(session.wait(), 10) == 3
    await session.close()
    await local.stop(workload_id)
    await local.until(workload_id, PodState.STOPPED)
    assert not _sleepers("808.5")


async def test_a_command_that_is_not_there_gets_a_sentence(local: Local) -> None:
    workload_id = await _running(local)
    with pytest.raises(Invalid, match="no-such-program"):
        await local.engine.exec(workload_id, 0, ["no-such-program"], tty=False)
    with pytest.raises(Invalid, match="no-such-program"):
        await local.engine.exec(workload_id, 0, ["no-such-program"], tty=True)
    with pytest.raises(Invalid):
        await local.engine.exec(workload_id, 0, [], tty=False)
    with pytest.raises(Invalid) as long:
        await local.engine.exec(workload_id, 0, ["x" * 200_000], tty=False)
    assert len(str(long.value)) < 400


async def test_a_command_runs_in_an_adopted_pod_too(local: Local) -> None:
    workload_id = await _running(local, environment={"MINE": "kept"})
    await local.restart()
    session = await local.engine.exec(workload_id, 0, ["sh", "-c", "echo $MINE"], tty=False)
    assert (await _all(session))[1] == b"kept\n"
    await session.close()


async def test_a_command_runs_in_a_workspace(local: Local) -> None:
    workload_id = await local.submit("desk", kind=Kind.WORKSPACE, gpu=GpuRequest(millis=500), image="")
    await local.start(workload_id, placement=half())
    await local.engine.report_pod(workload_id, 0, PodState.RUNNING, 1.0)
    session = await local.engine.exec(workload_id, 0, ["nvidia-smi"], tty=False)
    assert b"16384MiB" in (await _all(session))[1]
    await session.close()


def _sleepers(seconds: str) -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["cmdline"] == ["sleep", seconds] and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found
