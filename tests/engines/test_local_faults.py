"""Faults: kill -9 of supervisor, program and scheduler at any point, full disks. Nothing runs twice, unseen, or is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from engine_world import NODE, Local, eventually, heard
from hotdesk_api.errors import Unavailable
from hotdesk_api.models import WorkloadSpec
from hotdesk_scheduler.core.model import Placement, PodState
from hotdesk_scheduler.core.reasons import ReasonCode
from hotdesk_scheduler.engines.local import pods, processes, runs

COUNTS = 'echo run >> "$HOME/runs"; echo up; exec sleep 700'


async def _counted(local: Local, name: str = "job") -> str:
    """A job that leaves a line for each time it is run."""
    return await local.submit(name, command=["sh", "-c", COUNTS])


def _times_run(local: Local) -> int:
    file = local.state_dir / "homes" / "ada" / "runs"
    return len(file.read_text().splitlines()) if file.exists() else 0


def _ids(local: Local, workload_id: str) -> tuple[int, int]:
    record = json.loads((local.run_dir(workload_id) / "process.json").read_text())
    return record["shim"]["pid"], record["child"]["pid"]


async def test_a_restarted_scheduler_adopts_what_runs(local: Local) -> None:
    workload_id = await _counted(local)
    await local.run(workload_id)
    pid = local.engine.details(workload_id, 0).pid
    await local.says(workload_id, "up")
    await local.restart()
    assert local.pod(workload_id).state is PodState.RUNNING
    assert local.engine.details(workload_id, 0).pid == pid
    await local.stop(workload_id)
    await local.until(workload_id, PodState.STOPPED)
    assert _times_run(local) == 1


async def test_an_end_while_no_scheduler_ran_is_known_after_its_restart(local: Local) -> None:
    workload_id = await local.submit("job")
    await local.run(workload_id)
    await local.engine.close()
    await local.end(workload_id, code=5)
    await eventually((local.run_dir(workload_id) / "exit.json").exists, "the exit record")
    await local.restart()
    pod = await local.until(workload_id, PodState.FAILED)
    assert pod.exit_code == 5
    assert pod.ended_at is not None
    assert abs(pod.ended_at - time.time()) < 60


async def test_a_pod_that_was_granted_but_never_spawned_starts_after_a_restart(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 between the intent's commit and the spawn."""
    workload_id = await _counted(local)
    with monkeypatch.context() as patch:
        patch.setattr(local.engine._pods, "launch", lambda key, token: None)
        await local.start(workload_id)
    await local.restart()
    await local.until(workload_id, PodState.RUNNING)
    await local.says(workload_id, "up")
    assert _times_run(local) == 1


async def test_a_supervisor_nobody_recorded_is_found_by_its_token(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 after the spawn and before anything of it was written down."""
    workload_id = await _counted(local)
    with monkeypatch.context() as patch:
        patch.setattr(local.engine._pods, "launch", lambda key, token: None)
        await local.start(workload_id)
    run = local.engine._state.runs[workload_id, 0]
    workload = local.find(workload_id)
    assert workload is not None
    runs.prepare(local.run_dir(workload_id), local.engine._grants.plan(workload, workload.pods[0], run))
    assert not isinstance(runs.spawn(local.run_dir(workload_id), run.token), str)
    await local.restart()
    await local.until(workload_id, PodState.RUNNING)
    await local.says(workload_id, "up")
    assert _times_run(local) == 1


async def test_a_pid_that_belongs_to_somebody_else_by_now_is_not_adopted(local: Local) -> None:
    workload_id = await _counted(local)
    await local.run(workload_id)
    await local.says(workload_id, "up")
    shim, child = _ids(local, workload_id)
    await local.engine.close()
    os.kill(shim, signal.SIGKILL)
    await eventually(lambda: processes.identify(child) is None, "the program dying with its supervisor")
    bystander = subprocess.Popen(["sleep", "701"])  # noqa: ASYNC220  # starts at once
    try:
        _rewrite(local, workload_id, bystander.pid)
        await local.restart()
        pod = await local.until(workload_id, PodState.LOST)
        assert pod.stop_reason is not None
        assert pod.stop_reason.code is ReasonCode.PROCESS_LOST
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def _rewrite(local: Local, workload_id: str, pid: int) -> None:
    """As if the number had been given to a stranger: same pids, another start time."""
    path = local.run_dir(workload_id) / "process.json"
    record = json.loads(path.read_text())
    record["shim"]["pid"] = record["child"]["pid"] = pid
    path.write_text(json.dumps(record))


async def test_a_killed_supervisor_takes_its_program_along_and_the_pod_is_lost(local: Local) -> None:
    workload_id = await local.submit("job", command=["sh", "-c", "setsid sleep 702.5 & echo up; sleep 702.5"])
    await local.run(workload_id)
    await local.says(workload_id, "up")
    await eventually(lambda: len(_sleepers("702.5")) == 2, "both sleepers")
    os.kill(_ids(local, workload_id)[0], signal.SIGKILL)
    await local.until(workload_id, PodState.LOST)
    assert _sleepers("702.5") == []


async def test_supervisor_and_scheduler_killed_together_leave_no_unseen_runner(local: Local) -> None:
    workload_id = await local.submit("job", command=["sh", "-c", "setsid sleep 703.5 & echo up; sleep 703.5"])
    await local.run(workload_id)
    await local.says(workload_id, "up")
    await eventually(lambda: len(_sleepers("703.5")) == 2, "both sleepers")
    await local.engine.close()
    os.kill(_ids(local, workload_id)[0], signal.SIGKILL)
    await local.restart()
    await local.until(workload_id, PodState.LOST)
    assert _sleepers("703.5") == []


async def test_a_killed_program_has_failed_with_its_signal(local: Local) -> None:
    workload_id = await _counted(local)
    await local.run(workload_id)
    await local.says(workload_id, "up")
    os.kill(_ids(local, workload_id)[1], signal.SIGKILL)
    assert (await local.until(workload_id, PodState.FAILED)).exit_code == 137


async def test_the_grace_holds_although_the_scheduler_is_gone(local: Local) -> None:
    workload_id = await local.submit("job", command=["sh", "-c", "trap 'echo noticed' TERM; echo up; while :; do sleep 0.05; done"])
    await local.run(workload_id)
    await local.says(workload_id, "up")
    await local.stop(workload_id, grace_s=1.0)
    await local.says(workload_id, "noticed")
    await local.engine.close()
    await eventually((local.run_dir(workload_id) / "exit.json").exists, "the exit record")
    await local.restart()
    assert (await local.until(workload_id, PodState.STOPPED)).exit_code == 137


async def test_a_stop_that_was_recorded_but_not_sent_is_sent_after_a_restart(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    workload_id = await _counted(local)
    await local.run(workload_id)
    await local.says(workload_id, "up")
    with monkeypatch.context() as patch:
        patch.setattr(local.engine._pods, "stop", lambda key, token, grace_s=None: None)
        await local.stop(workload_id)
    await local.restart()
    await local.until(workload_id, PodState.STOPPED)


async def test_what_was_forgotten_just_before_the_scheduler_was_killed_is_ended_by_the_next(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload_id = await local.submit("job", command=["sh", "-c", "setsid sleep 709.5 & echo up; sleep 709.5"])
    await local.run(workload_id)
    await local.says(workload_id, "up")

    async def killed(*_: object) -> None:
        """kill -9 came first."""

    with monkeypatch.context() as patch:
        patch.setattr(local.engine, "_clean_up", killed)
        await local.engine.forget(workload_id)
    assert _sleepers("709.5")
    await local.restart()
    await eventually(lambda: not _sleepers("709.5"), "the forgotten job being ended")
    await eventually(lambda: not local.run_dir(workload_id).exists(), "its files being gone")


async def test_a_stuck_supervisor_is_killed_when_it_is_overdue(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods, "SUPERVISOR_OVERDUE_S", 0.5)
    workload_id = await _counted(local)
    await local.run(workload_id)
    await local.says(workload_id, "up")
    shim, child = _ids(local, workload_id)
    os.kill(shim, signal.SIGSTOP)
    await local.stop(workload_id, grace_s=0.2)
    await local.until(workload_id, PodState.STOPPED)
    assert processes.identify(child) is None


async def test_a_program_that_kills_its_supervisor_at_once_is_lost_and_not_said_to_have_failed_to_start(local: Local) -> None:
    workload_id = await local.submit("job", command=["sh", "-c", "kill -9 $PPID; sleep 711"])
    await local.start(workload_id)
    await local.until(workload_id, PodState.LOST)
    workload = local.find(workload_id)
    assert workload is not None
    assert workload.failures == 0
    await eventually(lambda: not _sleepers("711"), "its program being gone")


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.01, 0.02, 0.04, 0.08])
async def test_a_supervisor_killed_at_any_moment_never_leaves_a_job_running_unseen(local: Local, after_s: float) -> None:
    """It ran at most once, is lost (which is no failure of its own), and nothing of it is left."""
    sleep = str(708.5 + after_s)
    workload_id = await local.submit("job", command=["sh", "-c", f'echo run >> "$HOME/runs"; setsid sleep {sleep} & wait'])
    await local.start(workload_id)
    token = local.engine._state.runs[workload_id, 0].token
    shim = await eventually(lambda: processes.supervisors().get(token), "the supervisor")
    await asyncio.sleep(after_s)
    with contextlib.suppress(ProcessLookupError):
        os.kill(shim.pid, signal.SIGKILL)
    with contextlib.suppress(AssertionError):
        await eventually(lambda: local.pod(workload_id).state is PodState.LOST, within_s=3)
    if local.pod(workload_id).state is not PodState.LOST:  # the kill met the short-lived starter, not the supervisor itself
        assert local.pod(workload_id).state is PodState.RUNNING
        os.kill(_ids(local, workload_id)[0], signal.SIGKILL)
        await local.until(workload_id, PodState.LOST)
    await eventually(lambda: not _sleepers(sleep), "every program being gone")
    assert _times_run(local) <= 1


SCHEDULER = """
    import asyncio, sys, time
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from engine_world import Local
    from hotdesk_scheduler.core.model import Placement, PodState, Project

    async def main():
        local = Local(Path(sys.argv[1]))
        await local.engine.open()
        await local.engine.put_project(Project("team-a"))
        print("open", flush=True)
        for number in range(12):
            command = ["sh", "-c", f'echo run >> "$HOME/runs-{number}"; echo up; exec sleep 704']
            workload_id = await local.submit(f"job{number}", command=command)
            await local.start(workload_id)
            print("started", number, flush=True)
        await asyncio.sleep(600)

    asyncio.run(main())
"""


async def _killed_after(tmp_path: Path, after_s: float) -> Local:
    """What a scheduler left that was killed so long after it began to start twelve jobs, opened by its successor."""
    script = tmp_path / "scheduler.py"
    script.write_text(textwrap.dedent(SCHEDULER))
    scheduler = subprocess.Popen(  # noqa: ASYNC220  # it is to be killed, not awaited
        [sys.executable, str(script), str(tmp_path), str(Path(__file__).parent.parent)], stdout=subprocess.PIPE, start_new_session=True
    )
    assert scheduler.stdout is not None
    assert scheduler.stdout.readline() == b"open\n"
    await asyncio.sleep(after_s)
    os.killpg(scheduler.pid, signal.SIGKILL)
    scheduler.stdout.close()
    scheduler.wait()
    local = Local(tmp_path)
    await local.engine.open()
    return local


@pytest.mark.parametrize("after_s", [0.0, 0.03, 0.06, 0.1])
async def test_what_a_killed_scheduler_was_starting_can_be_stopped_at_once(tmp_path: Path, after_s: float) -> None:
    local = await _killed_after(tmp_path, after_s)
    try:
        started = [one.id for one in local.engine.snapshot().workloads if one.pods[0].state is not PodState.PENDING]
        for workload_id in started:
            await local.stop(workload_id)
        for workload_id in started:
            await local.until(workload_id, PodState.STOPPED)
        await asyncio.sleep(0.7)  # longer than anything that was on its way
        assert not [process for process in psutil.process_iter() if _belongs_to(process, tmp_path)]
    finally:
        await local.engine.close()


def _belongs_to(process: psutil.Process, directory: Path) -> bool:
    try:
        return process.environ().get("HOME", "").startswith(str(directory))
    except psutil.Error:
        return False


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.03, 0.06, 0.1, 0.2])
async def test_a_scheduler_killed_at_any_moment_of_starting_runs_every_job_once(tmp_path: Path, after_s: float) -> None:
    local = await _killed_after(tmp_path, after_s)
    try:
        started = [one for one in local.engine.snapshot().workloads if one.pods[0].state is not PodState.PENDING]
        for workload in started:
            await local.until(workload.id, PodState.RUNNING)
            await local.says(workload.id, "up")
            number = workload.name.removeprefix("job")
            assert (local.state_dir / "homes" / "ada" / f"runs-{number}").read_text() == "run\n"
        for workload in started:
            await local.stop(workload.id)
        for workload in started:
            await local.until(workload.id, PodState.STOPPED)
    finally:
        await local.engine.close()


# a full disk


@contextlib.contextmanager
def _small_disk(path: Path, size: str = "16m") -> Iterator[Path]:
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "hotdesk-test", str(path)], capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs is not permitted here (it needs root)")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with _small_disk(tmp_path / "disk") as path:
        yield path


def _fill(disk: Path) -> Path:
    filler = disk / "filler"
    with open(filler, "ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


@pytest.fixture
async def crowded(small_disk: Path):  # type: ignore[no-untyped-def]  # an async generator; its type says nothing more
    """A local engine on a disk of 16 MiB."""
    local = Local(small_disk)
    await local.engine.open()
    yield local
    await local.engine.close()


async def test_a_full_disk_refuses_a_submission_with_a_sentence_and_loses_nothing(crowded: Local) -> None:
    kept = await crowded.submit("kept")
    filler = _fill(crowded.directory)
    refused = None
    for number in range(200):  # what is left of the database's last page may still take some
        try:
            await crowded.engine.submit(
                crowded.workload(f"more{number}"), WorkloadSpec(name=f"more{number}", project="team-a", image="bash", args=["x" * 3000])
            )
        except Unavailable as error:
            refused = error
            break
    assert refused is not None
    assert "disk is full" in refused.sentence
    shown = {one.name for one in crowded.engine.snapshot().workloads}
    assert "kept" in shown
    assert f"more{number}" not in shown
    filler.unlink()
    await crowded.restart()
    assert {one.name for one in crowded.engine.snapshot().workloads} == shown
    assert crowded.engine.spec(kept).name == "kept"
    await crowded.submit("again")


async def test_a_job_goes_on_and_ends_with_its_exit_code_although_its_log_cannot_be_written(crowded: Local) -> None:
    go = crowded.state_dir / "go"
    wait, talk = f"while [ ! -e {go} ]; do sleep 0.02; done", "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done"
    script = f"echo first; {wait}; {talk}; echo last >&2; exit 4"
    workload_id = await crowded.submit("job", command=["sh", "-c", script])
    await crowded.run(workload_id)
    await crowded.says(workload_id, "first")
    go.touch()
    filler = _fill(crowded.directory)
    assert (await crowded.until(workload_id, PodState.FAILED)).exit_code == 4
    said = await eventually(lambda: crowded.engine.details(workload_id, 0).error, "the loss being shown")
    assert "the disk was full" in said
    filler.unlink()
    assert (await crowded.log(workload_id)).startswith("first\n")


async def test_the_log_says_where_output_is_missing_once_there_is_space_again(crowded: Local) -> None:
    fifo = crowded.waiting("job")["args"][0]
    script = f"echo first; head -c 3000000 /dev/zero | tr '\\0' 'x'; echo; read code < {fifo}; echo after"
    workload_id = await crowded.submit("job", command=["sh", "-c", script])
    filler = _fill(crowded.directory)
    os.truncate(filler, filler.stat().st_size - 400_000)  # room for the start, not for three million bytes
    await crowded.run(workload_id)
    await eventually(lambda: os.statvfs(crowded.directory).f_bavail == 0, "the log filling the disk")
    await asyncio.sleep(0.5)  # most of the three million bytes are still to come
    filler.unlink()
    await crowded.end(workload_id)
    await crowded.until(workload_id, PodState.SUCCEEDED)
    log = await crowded.log(workload_id)
    assert "bytes of output are missing here: the disk was full" in log
    assert log.endswith("after\n")


async def test_an_end_on_a_full_disk_is_told_and_recorded_as_soon_as_there_is_space(crowded: Local) -> None:
    changes = await heard(crowded.engine)
    await crowded.submit("other")
    workload_id = await crowded.submit("job")
    await crowded.run(workload_id)
    crowded.engine._state.free_reserve()
    crowded.engine._state._has_reserve = True  # so that it is not made again before the disk is full
    (crowded.run_dir(workload_id) / "reserve").unlink()  # which its supervisor would free when it has ended
    fill = _fill(crowded.directory)
    await _fill_the_database(crowded)
    await crowded.end(workload_id, code=3)
    await eventually((crowded.run_dir(workload_id) / "exit.json").exists, "the exit record, although the disk is full")
    told = await eventually(lambda: [one.sentence for one in changes if "not recorded yet" in one.sentence], "the trouble being told")
    assert "disk is full" in told[0]
    assert crowded.pod(workload_id).state is PodState.RUNNING
    fill.unlink()
    assert (await crowded.until(workload_id, PodState.FAILED)).exit_code == 3


async def test_a_start_on_a_full_disk_fails_with_a_sentence(crowded: Local) -> None:
    workload_id = await crowded.submit("job")
    filler = _fill(crowded.directory)
    try:
        await crowded.start(workload_id)
    except Unavailable as error:
        assert "disk is full" in error.sentence  # noqa: PT017  # either answer is right; this is what one of them says
        assert crowded.pod(workload_id).state is PodState.PENDING
    else:
        pod = await crowded.until(workload_id, PodState.FAILED)
        assert pod.stop_reason is not None
        assert "No space left" in pod.stop_reason.sentence
    filler.unlink()


async def test_on_a_full_disk_one_can_still_stop_and_delete(crowded: Local) -> None:
    """The space kept for it makes room."""
    await crowded.submit("other")
    workload_id = await crowded.submit("job")
    await crowded.run(workload_id)
    _fill(crowded.directory)
    await _fill_the_database(crowded)
    await crowded.stop(workload_id)
    await crowded.until(workload_id, PodState.STOPPED)
    await crowded.engine.forget(workload_id)
    assert crowded.find(workload_id) is None


async def test_a_scheduler_starts_on_a_full_disk_and_finds_what_runs(crowded: Local) -> None:
    workload_id = await _counted(crowded)
    await crowded.run(workload_id)
    await crowded.engine.close()
    _fill(crowded.directory)
    await crowded.restart_after_close()
    assert crowded.pod(workload_id).state is PodState.RUNNING
    await crowded.stop(workload_id)
    await crowded.until(workload_id, PodState.STOPPED)


async def _fill_the_database(crowded: Local) -> None:
    """Small writes until not even the smallest fits any more."""
    other = await _anything(crowded)
    with contextlib.suppress(Unavailable):
        for number in range(10_000):
            await crowded.engine.nominate(other, 0, Placement(NODE, whole=number))


async def _anything(crowded: Local) -> str:
    return next(one.id for one in crowded.engine.snapshot().workloads if one.pods[0].state is PodState.PENDING)


def _sleepers(seconds: str) -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["cmdline"] == ["sleep", seconds] and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found
