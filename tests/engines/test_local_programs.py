"""The programs jobs run: the quickstart learns, saves and goes on; nvidia-smi tells the share; start-notebook.sh serves."""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from engine_world import Local, eventually, half
from hotdesk_scheduler.core.model import GpuRequest, Kind, PodState
from hotdesk_scheduler.engines.local import catalog
from hotdesk_scheduler.engines.local.programs import start_notebook

STEP = re.compile(r"step (\d+)/(\d+)  loss ([\d.]+)  accuracy ([\d.]+)  [\d.]+ ms/step  ETA \d+:\d\d:\d\d")


def _quickstart(tmp_path: Path, **variables: str) -> list[str]:
    done = subprocess.run(_argv(), env=_environment(tmp_path, **variables), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def _argv() -> list[str]:
    return [sys.executable, str(catalog.PROGRAMS / "quickstart.py")]


def _environment(tmp_path: Path, **variables: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "JOB_NAME": "hyper1",
        "JOB_UUID": "u1",
        "QUICKSTART_STEP_S": "0",
        **variables,
    }


def test_the_quickstart_really_learns_and_shows_step_loss_accuracy_time_and_eta(tmp_path: Path) -> None:
    lines = _quickstart(tmp_path, QUICKSTART_STEPS="600")
    assert lines[0].startswith("quickstart: hyper1 trains")
    steps = [match for line in lines if (match := STEP.match(line))]
    assert len(steps) == 600
    assert float(steps[-1][3]) < float(steps[0][3]) / 10
    assert float(steps[-1][4]) > 0.95


def test_a_stopped_quickstart_saves_and_goes_on_where_it_was(tmp_path: Path) -> None:
    environment = _environment(tmp_path, QUICKSTART_STEPS="100000", QUICKSTART_STEP_S="0.01")
    job = subprocess.Popen(_argv(), env=environment, stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    while not job.stdout.readline().startswith("step 20/"):
        pass
    job.send_signal(signal.SIGTERM)
    said = job.stdout.read().splitlines()
    assert job.wait(30) == 0
    job.stdout.close()
    stopped = int(said[-1].split("step ")[1].split(";")[0])
    assert stopped >= 20
    again = _quickstart(tmp_path, QUICKSTART_STEPS=str(stopped + 5))
    assert again[1] == f"Resumed from the checkpoint at step {stopped}."
    first = STEP.match(again[2])
    assert first is not None
    assert int(first[1]) == stopped + 1


class Scheduler(http.server.BaseHTTPRequestHandler):
    """Takes progress reports, and keeps them."""

    heard: ClassVar[list[tuple[str, str, dict[str, Any]]]] = []

    def do_PUT(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.heard.append((self.path, self.headers["Authorization"], body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def scheduler() -> Iterator[tuple[str, list[tuple[str, str, dict[str, Any]]]]]:
    heard: list[tuple[str, str, dict[str, Any]]] = []
    Scheduler.heard = heard
    server = http.server.HTTPServer(("127.0.0.1", 0), Scheduler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/services/hotdesk", heard
    server.shutdown()
    thread.join()
    server.server_close()


def test_progress_is_reported_with_the_jobs_own_token(tmp_path: Path, scheduler: Any) -> None:
    url, heard = scheduler
    named = {"RUNAI_PROJECT": "team-a", "RUNAI_JOB_NAME": "hyper1", "HOTDESK_API_URL": url, "HOTDESK_REPORT_TOKEN": "tok"}
    _quickstart(tmp_path, QUICKSTART_STEPS="30", **named)
    path, token, body = heard[-1]
    assert path == "/services/hotdesk/v1/workloads/team-a/hyper1/progress"
    assert token == "Bearer tok"
    assert body["progress"] == 1.0
    assert set(body["metrics"]) == {"loss", "accuracy"}


def test_a_scheduler_that_is_away_does_not_stop_the_training(tmp_path: Path) -> None:
    named = {"RUNAI_PROJECT": "team-a", "RUNAI_JOB_NAME": "hyper1", "HOTDESK_API_URL": "http://127.0.0.1:9", "HOTDESK_REPORT_TOKEN": "t"}
    assert _quickstart(tmp_path, QUICKSTART_STEPS="5", **named)[-1] == "Training is complete."


async def test_the_quickstart_is_sparing_with_the_cpu(local: Local) -> None:
    workload_id = await local.submit("hyper1", image="gcr.io/run-ai-demo/quickstart")
    await local.run(workload_id)
    await local.says(workload_id, "step 1/")
    process = psutil.Process(local.engine.details(workload_id, 0).pid)
    before = process.cpu_times()
    await local.says(workload_id, "step 5/")
    after = process.cpu_times()
    assert (after.user + after.system) - (before.user + before.system) < 4 * 0.03 + 0.05
    assert process.num_threads() == 1


async def test_a_preempted_quickstart_goes_on_in_its_next_attempt(local: Local) -> None:
    workload_id = await local.submit("hyper1", image="gcr.io/run-ai-demo/quickstart", environment={"QUICKSTART_STEP_S": "0.05"})
    await local.run(workload_id)
    await local.says(workload_id, "step 3/")
    await local.stop(workload_id)
    await local.until(workload_id, PodState.STOPPED)
    await local.engine.requeue_pod(workload_id, 0)
    await local.run(workload_id)
    assert "Resumed from the checkpoint" in await local.says(workload_id, "Resumed")


# nvidia-smi


def _smi(*arguments: str, view: list[dict[str, Any]] | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOTDESK_GPU_VIEW": json.dumps([HALF] if view is None else view), **variables}
    argv = [sys.executable, "-I", "-S", "-E", str(catalog.PROGRAMS / "nvidia_smi.py"), *arguments]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)


HALF = {
    "index": 2, "uuid": "GPU-SIM-1", "model": "V100-SXM2-32GB", "memory_mib": 32768, "limit_mib": 16384, "millis": 500, "simulated": True,
}  # fmt: skip


def test_a_half_share_of_32768_mib_prints_16384_mib_total_and_says_it_is_simulated() -> None:
    shown = _smi().stdout
    assert "/ 16384MiB" in shown
    assert "share 0.5 of the GPU's 32768 MiB" in shown
    assert shown.count("SIMULATED") >= 3
    table = shown.splitlines()[2:]
    assert {len(line) for line in table if line} == {91}


def test_the_list_and_the_queries_read_like_the_real_ones() -> None:
    assert _smi("-L").stdout.startswith("GPU 2: SIMULATED V100-SXM2-32GB (UUID: GPU-SIM-1)")
    assert _smi("--query-gpu=memory.total", "--format=csv,noheader,nounits").stdout == "16384\n"
    asked = _smi("--query-gpu=index,name,memory.total", "--format=csv").stdout.splitlines()
    assert asked == ["index, name, memory.total [MiB]", "2, SIMULATED V100-SXM2-32GB, 16384 MiB"]
    assert _smi("--query-gpu=count", "--format=csv,noheader").stdout == "1\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nope"], "--nope is not known"),
        (["--query-gpu=nope", "--format=csv"], "Valid ones: timestamp"),
        (["--query-gpu=name"], "--format=csv"),
        (["-i", "7"], "No devices were found"),
        (["-l", "x"], "not a number of seconds"),
        (["-i"], "needs a value"),
    ],
)
def test_what_nvidia_smi_does_not_know_gets_a_sentence(arguments: list[str], words: str) -> None:
    answer = _smi(*arguments)
    assert answer.returncode == 2
    assert words in answer.stderr


def test_a_job_without_a_gpu_is_told_so() -> None:
    answer = _smi(view=[])
    assert answer.returncode == 6
    assert "this job has no GPU" in answer.stdout


def test_only_the_jobs_own_processes_are_listed() -> None:
    code = "import time; time.sleep(600)"
    mine = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "JOB_UUID": "mine"})
    other = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "JOB_UUID": "other"})
    try:
        shown = _smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader", JOB_UUID="mine").stdout
    finally:
        for process in (mine, other):
            process.kill()
            process.wait()
    assert [line.split(",")[0] for line in shown.splitlines()] == [str(mine.pid)]


def test_a_share_of_a_real_gpu_is_labelled_and_asks_the_real_tool_for_memory(tmp_path: Path) -> None:
    real = tmp_path / "nvidia-smi"
    real.write_text('#!/bin/sh\necho "$TEST_PID, python, 700"\necho "1, other, 9000"\n')
    real.chmod(0o755)
    mine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={**os.environ, "JOB_UUID": "mine"})
    view = {**HALF, "simulated": False, "uuid": "GPU-1"}
    path = f"{tmp_path}:{os.environ['PATH']}"
    try:
        shown = _smi(view=[view], PATH=path, JOB_UUID="mine", TEST_PID=str(mine.pid), HOTDESK_TIER="cooperative").stdout
    finally:
        mine.kill()
        mine.wait()
    assert "share view by Hotdesk: 0.5 of V100-SXM2-32GB (32768 MiB), tier cooperative" in shown
    assert "700MiB / 16384MiB" in shown
    assert "SIMULATED" not in shown


# start-notebook.sh


def test_old_spellings_become_todays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTDESK_PORT_8888", "41234")
    words = start_notebook.command_line(
        ["--NotebookApp.base_url=team-a-test", "--NotebookApp.token=x", "--port", "8888", "--ip=0.0.0.0", "--debug"]
    )
    assert "--ServerApp.base_url=/team-a-test/" in words
    assert "--IdentityProvider.token=x" in words
    assert "--ServerApp.port=41234" in words
    assert "--ServerApp.ip=127.0.0.1" in words
    assert "--ip=0.0.0.0" not in words
    assert words[-1] == "--debug"


@pytest.mark.slow
async def test_the_documented_jupyter_job_serves_its_page_on_the_port_it_was_given(local: Local) -> None:
    workload_id = await local.submit(
        "a-1-1-jupyter",
        kind=Kind.INTERACTIVE,
        gpu=GpuRequest(millis=500),
        image="jupyter/base-notebook",
        command=["start-notebook.sh"],
        args=["--NotebookApp.base_url=team-a-test-ingress"],
        ports=[{"container": 8888}],
    )
    await local.run(workload_id, placement=half())
    port = local.engine.details(workload_id, 0).ports[8888]

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/team-a-test-ingress/api", timeout=5) as answer:
                return bool(json.load(answer)["version"])
        except (urllib.error.URLError, OSError):
            return False

    await eventually(answers, "the server answering", within_s=90)
    assert "token=" in await local.log(workload_id)
    await local.stop(workload_id)
    await local.until(workload_id, PodState.STOPPED)
