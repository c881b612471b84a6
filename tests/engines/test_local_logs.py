"""Logs: rotated, read from their end without reading them whole, since a time, with times, and followed to the pod's end."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path

import pytest
from engine_world import Local, eventually
from hotdesk_scheduler.core.model import PodState, Project
from hotdesk_scheduler.engines.local import logs
from hotdesk_scheduler.engines.local.shim import Log


async def _read(directory: Path, **options: object) -> bytes:
    return b"".join([block async for block in logs.read(directory, ended=lambda: True, **options)])  # type: ignore[arg-type]  # options by name


def _log(directory: Path, size: int = 1000, count: int = 3) -> Log:
    return Log(str(directory / "log"), size, count)


def _lines(first: int, last: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(first, last + 1))


async def test_a_rotated_log_reads_as_one_text_and_forgets_the_oldest(tmp_path: Path) -> None:
    log = _log(tmp_path, size=100, count=3)
    for number in range(1, 101):
        log.write(_lines(number, number))
    text = await _read(tmp_path)
    assert text.endswith(_lines(75, 100))
    assert text == _lines(int(text.split()[1]), 100)
    assert sorted(path.name for path in tmp_path.glob("log*") if "times" not in path.name) == ["log", "log.1", "log.2"]


@pytest.mark.parametrize("tail", [0, 1, 3, 15, 40, 1000])
async def test_the_last_lines_come_from_as_many_files_as_they_lie_in(tmp_path: Path, tail: int) -> None:
    log = _log(tmp_path, size=100, count=10)
    for number in range(1, 61):
        log.write(_lines(number, number))
    assert await _read(tmp_path, tail=tail) == _lines(max(1, 61 - tail), 60)


async def test_a_last_line_without_an_end_counts_as_one(tmp_path: Path) -> None:
    log = _log(tmp_path)
    log.write(b"one\ntwo\nthree")
    assert await _read(tmp_path, tail=2) == b"two\nthree"


@pytest.mark.parametrize("size", [63, 64, 65, 200])
async def test_lines_across_the_blocks_of_the_backward_reading_are_found(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "BLOCK_BYTES", 64)
    log = _log(tmp_path, size=10_000)
    line = b"x" * (size - 1) + b"\n"
    for _ in range(20):
        log.write(line)
    for tail in (1, 2, 7, 20):
        assert await _read(tmp_path, tail=tail) == line * tail


async def test_the_end_of_a_big_log_is_read_without_the_rest(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"")
    os.truncate(tmp_path / "log", 8 * 2**30)
    with open(tmp_path / "log", "ab") as file:  # noqa: ASYNC230  # a test's own file
        file.write(b"\nlast\n")
    began = time.process_time()
    assert await _read(tmp_path, tail=1) == b"last\n"
    assert time.process_time() - began < 0.5


async def test_since_a_time_only_later_output_is_shown(tmp_path: Path) -> None:
    log = _log(tmp_path)
    log.write(b"early\n")
    await asyncio.sleep(0.3)
    since = time.time() - 0.03
    log.write(b"late\n")
    assert await _read(tmp_path, since=since) == b"late\n"
    assert await _read(tmp_path, since=since, tail=5) == b"late\n"
    assert await _read(tmp_path, since=time.time() + 10) == b""
    assert await _read(tmp_path, since=0.0) == b"early\nlate\n"


async def test_times_stand_before_each_line(tmp_path: Path) -> None:
    log = _log(tmp_path)
    log.write(b"one\ntwo\n")
    lines = (await _read(tmp_path, timestamps=True)).decode().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["one", "two"]
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", line) for line in lines)


async def test_no_log_yet_is_empty(tmp_path: Path) -> None:
    assert await _read(tmp_path / "nothing") == b""


async def test_following_ends_with_the_pod_and_misses_nothing_over_rotations(tmp_path: Path) -> None:
    local = Local(tmp_path, log_bytes=2000, log_files=4)
    await local.engine.open()
    await local.engine.put_project(Project("team-a"))
    try:
        script = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo line $i; sleep 0.002; done"
        workload_id = await local.submit("job", command=["sh", "-c", script])
        await local.start(workload_id)
        followed = (await local.log(workload_id, follow=True)).split()[1::2]
        assert followed == [str(number) for number in range(1, 301)]
        assert local.pod(workload_id).state is PodState.SUCCEEDED
    finally:
        await local.engine.close()


async def test_following_a_pod_that_waits_begins_when_it_starts(local: Local) -> None:
    workload_id = await local.submit("job", command=["echo", "here"])
    following = asyncio.create_task(local.log(workload_id, follow=True))
    await asyncio.sleep(0.1)
    assert not following.done()
    await local.start(workload_id)
    assert await asyncio.wait_for(following, 30) == "here\n"


async def test_following_ends_when_the_workload_is_forgotten(local: Local) -> None:
    workload_id = await local.submit("job", command=["sh", "-c", "echo up; sleep 600"])
    await local.run(workload_id)
    await local.says(workload_id, "up")
    following = asyncio.create_task(local.log(workload_id, follow=True))
    await asyncio.sleep(0.1)
    await local.engine.forget(workload_id)
    assert await asyncio.wait_for(following, 30) == "up\n"


async def test_a_chatty_job_is_rotated_and_its_end_is_kept(tmp_path: Path) -> None:
    local = Local(tmp_path, log_bytes=100_000, log_files=3)
    await local.engine.open()
    await local.engine.put_project(Project("team-a"))
    try:
        workload_id = await local.submit("job", command=["seq", "1", "200000"])
        await local.start(workload_id)
        await local.until(workload_id, PodState.SUCCEEDED)
        assert (await local.log(workload_id, tail=3)) == "199998\n199999\n200000\n"
        total = sum(path.stat().st_size for path in local.run_dir(workload_id).glob("log*") if not path.name.endswith("times"))
        assert total < 100_000 * 3 + 70_000 * 3
    finally:
        await local.engine.close()


async def test_a_waiting_pod_shows_what_its_last_attempt_said(local: Local) -> None:
    workload_id = await local.submit("job", command=["sh", "-c", "echo first words; exit 1"])
    await local.start(workload_id)
    await local.until(workload_id, PodState.FAILED)
    await local.engine.requeue_pod(workload_id, 0)
    assert await local.log(workload_id) == "first words\n"
    await eventually(lambda: local.pod(workload_id).attempt == 1)
