"""Pods of the local engine as their owners see them: programs, logs, environment, stopping, what is left when they end."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import psutil
import pytest
from engine_world import NODE, Local, eventually, half
from hotdesk_api.errors import Conflict, Invalid
from hotdesk_api.models import WorkloadSpec
from hotdesk_scheduler.core.model import GpuRequest, Kind, Placement, PodState, Share
from hotdesk_scheduler.core.reasons import ReasonCode


async def test_a_program_runs_under_the_images_interpreter_with_its_arguments(local: Local) -> None:
    workload_id = await local.submit("job", image="python", program="import sys; print('got', sys.argv[1:])", args=["a b", "c"])
    await local.start(workload_id)
    await local.until(workload_id, PodState.SUCCEEDED)
    assert await local.log(workload_id) == "got ['a b', 'c']\n"


async def test_a_command_replaces_the_entry_point(local: Local) -> None:
    workload_id = await local.submit("job", image="python", command=["echo"], args=["one", "two"])
    await local.start(workload_id)
    await local.until(workload_id, PodState.SUCCEEDED)
    assert await local.log(workload_id) == "one two\n"


async def test_python_without_a_command_exits_at_once(local: Local) -> None:
    workload_id = await local.submit("build", kind=Kind.INTERACTIVE, image="python")
    await local.start(workload_id)
    await local.until(workload_id, PodState.SUCCEEDED)


async def test_a_program_that_is_not_there_fails_with_a_sentence(local: Local) -> None:
    workload_id = await local.submit("job", command=["no-such-program"])
    await local.start(workload_id)
    pod = await local.until(workload_id, PodState.FAILED)
    assert pod.exit_code == 127
    assert pod.stop_reason is not None
    assert pod.stop_reason.code is ReasonCode.IMAGE_OR_VOLUME_ERROR
    assert "no-such-program is not there" in pod.stop_reason.sentence
    assert "no-such-program is not there" in local.engine.details(workload_id, 0).error
    assert "no-such-program is not there" in await local.log(workload_id)


async def test_a_job_that_fails_by_itself_does_not_say_any_more_that_its_program_was_missing(local: Local, tmp_path: Path) -> None:
    program = tmp_path / "late"
    workload_id = await local.submit("job", command=[str(program)])
    await local.start(workload_id)
    await local.until(workload_id, PodState.FAILED)
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    await local.engine.requeue_pod(workload_id, 0)
    await local.start(workload_id)
    pod = await local.until(workload_id, PodState.FAILED)
    assert (pod.exit_code, pod.stop_reason) == (3, None)


async def test_a_working_directory_that_is_not_there_fails_with_a_sentence(local: Local) -> None:
    workload_id = await local.submit("job", command=["true"], working_dir="/no/such/place")
    await local.start(workload_id)
    pod = await local.until(workload_id, PodState.FAILED)
    assert pod.stop_reason is not None
    assert "working directory /no/such/place" in pod.stop_reason.sentence


async def test_a_job_sees_who_it_is_and_nothing_of_the_scheduler(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "top-secret")
    local.engine.pod_environment = lambda workload: {"HOTDESK_REPORT_TOKEN": f"report-{workload.name}"}
    workload_id = await local.submit(
        "job", gpu=GpuRequest(millis=500), command=["env"], environment={"MINE": "yes", "JOB_UUID": "forged", "HOTDESK_REPORT_TOKEN": "x"}
    )
    await local.start(workload_id, placement=half())
    await local.until(workload_id, PodState.SUCCEEDED)
    seen = dict(line.split("=", 1) for line in (await local.log(workload_id)).splitlines())
    expected = {
        "JOB_NAME": "job",
        "JOB_UUID": workload_id,
        "POD_INDEX": "0",
        "NODE_NAME": NODE,
        "RUNAI_PROJECT": "team-a",
        "RUNAI_JOB_NAME": "job",
        "RUNAI_NUM_OF_GPUS": "0.5",
        "GPU_PORTION": "0.5",
        "RUNAI_GPU_MEMORY_LIMIT": "16384",
        "HOTDESK_GPU_MEMORY_MIB": "16384",
        "CUDA_VISIBLE_DEVICES": "",
        "HOTDESK_REPORT_TOKEN": "report-job",
        "MINE": "yes",
        "USER": "ada",
        "HOME": str(local.state_dir / "homes" / "ada"),
        "PWD": str(local.state_dir / "homes" / "ada"),
    }
    assert {name: seen.get(name) for name in expected if name != "PWD"} == {k: v for k, v in expected.items() if k != "PWD"}
    assert seen["NVIDIA_VISIBLE_DEVICES"].startswith("GPU-SIM-")
    assert seen["PATH"].split(":")[0] == str(local.state_dir / "bin")
    assert not [name for name in seen if name.startswith("JUPYTERHUB")]


async def test_inside_a_half_share_nvidia_smi_shows_half_the_memory_and_the_jobs_own_process(local: Local) -> None:
    program = "import subprocess; print(subprocess.run(['nvidia-smi'], capture_output=True, text=True).stdout)"
    workload_id = await local.submit("frac05", gpu=GpuRequest(millis=500), image="python", program=program)
    await local.start(workload_id, placement=half())
    await local.until(workload_id, PodState.SUCCEEDED)
    shown = await local.log(workload_id)
    assert "16384MiB" in shown
    assert "SIMULATED" in shown
    assert "python" in shown.split("Processes:")[1]


async def test_two_shares_of_a_group_sit_on_one_device_and_whole_gpus_on_others(local: Local) -> None:
    first = await local.submit("frac05", gpu=GpuRequest(millis=500))
    second = await local.submit("frac03", gpu=GpuRequest(millis=300))
    whole = await local.submit("whole", gpu=GpuRequest(whole=2))
    await local.run(first, placement=half("g"))
    await local.run(whole, placement=Placement(NODE, whole=2))
    await local.run(second, placement=Placement(NODE, shares=(Share("g", 300),)))
    devices = [[device.index for device in local.engine.details(one, 0).devices] for one in (first, second, whole)]
    assert devices == [[0], [0], [1, 2]]


async def test_devices_are_kept_over_a_restart_and_given_back_at_the_end(local: Local) -> None:
    first = await local.submit("first", gpu=GpuRequest(whole=1))
    await local.run(first, placement=Placement(NODE, whole=1))
    await local.restart()
    second = await local.submit("second", gpu=GpuRequest(whole=1))
    await local.run(second, placement=Placement(NODE, whole=1))
    assert [device.index for device in local.engine.details(second, 0).devices] == [1]
    await local.end(first)
    await local.until(first, PodState.SUCCEEDED)
    assert local.engine.details(first, 0).devices == ()
    third = await local.submit("third", gpu=GpuRequest(whole=1))
    await local.run(third, placement=Placement(NODE, whole=1))
    assert [device.index for device in local.engine.details(third, 0).devices] == [0]


async def test_a_placement_that_does_not_fit_leaves_the_pod_waiting(local: Local) -> None:
    workload_id = await local.submit("job", gpu=GpuRequest(whole=9))
    with pytest.raises(Conflict, match="no place"):
        await local.start(workload_id, placement=Placement(NODE, whole=9))
    with pytest.raises(Conflict, match="no node"):
        await local.start(workload_id, placement=Placement("elsewhere", whole=1))
    assert local.pod(workload_id).state is PodState.PENDING


async def test_a_stop_gives_notice_and_waits_for_the_program(local: Local) -> None:
    program = (
        "import signal,sys,time\nsignal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(0)))\nprint('ready')\ntime.sleep(600)"
    )
    workload_id = await local.submit("job", image="python", program=program)
    await local.run(workload_id)
    await local.says(workload_id, "ready")
    await local.stop(workload_id)
    assert (await local.until(workload_id, PodState.STOPPED)).exit_code == 0
    assert (await local.log(workload_id)).endswith("saved\n")


async def test_after_the_grace_everything_of_a_stubborn_pod_is_killed(local: Local) -> None:
    """Also what left its group and its session, and what hides its environment."""
    hidden, left = "(setsid env -i sleep 612.5) &", "(setsid sh -c 'sleep 612.5; :' &)"
    script = f"trap '' TERM; {hidden} {left}; echo up; while :; do sleep 1; done"
    workload_id = await local.submit("job", command=["sh", "-c", script])
    await local.run(workload_id)
    await local.says(workload_id, "up")
    await eventually(lambda: len(_sleepers("612.5")) == 2, "both sleepers")
    await local.stop(workload_id, grace_s=0.3)
    assert (await local.until(workload_id, PodState.STOPPED)).exit_code == 137
    assert _sleepers("612.5") == []


async def test_what_a_finished_program_left_in_the_background_is_ended_with_it(local: Local) -> None:
    workload_id = await local.submit("job", command=["sh", "-c", "setsid sleep 613.5 & echo done"])
    await local.start(workload_id)
    await local.until(workload_id, PodState.SUCCEEDED)
    assert _sleepers("613.5") == []


async def test_a_second_stop_may_shorten_the_grace(local: Local) -> None:
    workload_id = await local.submit("job", command=["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"])
    await local.run(workload_id)
    await local.says(workload_id, "up")
    await local.stop(workload_id, grace_s=600)
    await local.stop(workload_id, grace_s=0)
    await local.until(workload_id, PodState.STOPPED)


async def test_a_pod_stopped_while_it_is_being_started_ends_stopped(local: Local) -> None:
    ids = [await local.submit(f"job{number}") for number in range(6)]
    for workload_id in ids:
        await local.start(workload_id)
        await local.stop(workload_id, grace_s=5)
    for workload_id in ids:
        await local.until(workload_id, PodState.STOPPED)
    assert not _programs_of(local)


async def test_a_running_workload_that_is_forgotten_leaves_no_process_and_no_file(local: Local) -> None:
    workload_id = await local.submit("job")
    await local.run(workload_id)
    await local.engine.forget(workload_id)
    await eventually(lambda: not (local.state_dir / "pods" / workload_id).exists(), "the files being gone")
    await eventually(lambda: not _programs_of(local), "the processes being gone")


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.03, 0.06])
async def test_a_workload_forgotten_while_it_is_being_started_leaves_nothing(local: Local, after_s: float) -> None:
    ids = [await local.submit(f"job{number}") for number in range(5)]
    for workload_id in ids:
        await local.start(workload_id)
    await asyncio.sleep(after_s)
    for workload_id in ids:
        await local.engine.forget(workload_id)
    await eventually(lambda: not list((local.state_dir / "pods").iterdir()), "the files being gone")
    await asyncio.sleep(0.2)
    assert not _programs_of(local)
    assert not list((local.state_dir / "pods").iterdir())


async def test_files_of_the_state_directory_are_private(local: Local) -> None:
    workload_id = await local.submit("job", environment={"PASSWORD": "secret"})
    await local.run(workload_id)
    await local.end(workload_id)
    await local.until(workload_id, PodState.SUCCEEDED)
    for path in [local.state_dir, *local.state_dir.rglob("*")]:
        if path.is_file() or path.is_dir():
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


async def test_secrets_appear_on_no_command_line(local: Local) -> None:
    workload_id = await local.submit("job", environment={"PASSWORD": "sesame-77"})
    await local.run(workload_id)
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines if "sesame-77" in line]


async def test_each_job_gets_its_own_port_for_the_port_it_asks_for(local: Local) -> None:
    ids = [await local.submit(f"web{number}", ports=[{"container": 8888}]) for number in range(2)]
    for workload_id in ids:
        await local.run(workload_id)
    ports = [local.engine.details(workload_id, 0).ports[8888] for workload_id in ids]
    assert len(set(ports)) == 2
    variables = local.engine.details(ids[0], 0).environment
    assert (variables["PORT"], variables["HOTDESK_PORT_8888"]) == (str(ports[0]), str(ports[0]))


@pytest.mark.parametrize("user", ["../../etc", "a/b", "..", "", "Ünï", "x" * 300])
async def test_no_user_name_leads_out_of_the_homes(local: Local, user: str) -> None:
    workload = local.workload("job", user=user)
    await local.engine.submit(workload, WorkloadSpec(name="job", project="team-a", image="bash", command=["sh", "-c", "echo $HOME"]))
    await local.start(workload.id)
    await local.until(workload.id, PodState.SUCCEEDED)
    home = Path((await local.log(workload.id)).strip())
    assert home.parent == local.state_dir / "homes"
    assert os.path.realpath(home) == str(home)


@pytest.mark.parametrize("name", ["../x", "a/b", "", "a" * 65])
async def test_an_id_that_could_be_a_path_is_refused(local: Local, name: str) -> None:
    from dataclasses import replace

    with pytest.raises(Invalid):
        await local.engine.submit(replace(local.workload("job"), id=name), WorkloadSpec(name="job", project="team-a", image="bash"))


async def test_several_pods_of_one_workload_run_side_by_side(local: Local) -> None:
    workload_id = await local.submit("gang", kind=Kind.PYTORCH, pods=3, command=["sh", "-c", "echo pod $POD_INDEX; sleep 600"])
    for index in range(3):
        await local.run(workload_id, index)
    for index in range(3):
        assert await local.says(workload_id, "pod", index) == f"pod {index}\n"
    await local.stop(workload_id, 1)
    await local.until(workload_id, PodState.STOPPED, 1)
    workload = local.find(workload_id)
    assert workload is not None
    assert workload.short_of_gang_since is not None
    assert [pod.state for pod in workload.pods] == [PodState.RUNNING, PodState.STOPPED, PodState.RUNNING]


async def test_a_pod_keeps_the_files_of_its_last_two_attempts(local: Local) -> None:
    workload_id = await local.submit("job", command=["true"])
    for _ in range(4):
        await local.start(workload_id)
        await local.until(workload_id, PodState.SUCCEEDED)
        await local.engine.requeue_pod(workload_id, 0)
    assert sorted(path.name for path in local.run_dir(workload_id).parent.iterdir()) == ["2", "3"]


def _sleepers(seconds: str) -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["cmdline"] == ["sleep", seconds] and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def _programs_of(local: Local) -> list[list[str]]:
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if str(local.directory) in " ".join(line) and "pytest" not in " ".join(line)]
