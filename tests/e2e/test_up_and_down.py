"""`hotdesk-hub up`, Ctrl-C, up again, kill -9 of each part, down: what a person at a terminal and his jobs live through."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hotdesk_up
import httpx
import psutil
import pytest
import workspaces
from hotdesk_hub.state import some_free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("bad-days")]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state directory, with everything of it ended afterwards."""
    folder = tmp_path / "state"
    yield folder
    if folder.exists():
        hotdesk_up.down(folder)
    assert processes_of(folder) == []


def processes_of(state: Path) -> list[str]:
    """Everything on this machine that carries the state directory on its command line or in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(state) in word for word in words):
            found.append(f"{process.pid} {' '.join(process.cmdline())}")
    return found


def wait_for(holds: Callable[[], bool], what: str, *, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.1)


class Api:
    """REST through the hub's proxy, as a script outside would use it."""

    def __init__(self, researcher: workspaces.Researcher) -> None:
        self.http = httpx.Client(
            base_url=f"{researcher.hub_url}/services/hotdesk",
            headers={"Authorization": f"Bearer {researcher.token}"},
            timeout=30,
            trust_env=False,
        )

    def submit(self, name: str, script: str, **more: Any) -> None:
        body = {"name": name, "project": "team-a", "image": "python", "gpu_millis": 1000, "command": ["python", "-u", "-c", script]} | more
        answer = self.http.post("/v1/workloads", json=body)
        assert answer.status_code == 201, answer.text

    def job(self, name: str) -> dict[str, Any]:
        try:
            answer = self.http.get(f"/v1/workloads/team-a/{name}")
        except httpx.HTTPError:
            return {"status": "unreachable"}
        found: dict[str, Any] = answer.json() if answer.status_code == 200 else {"status": f"HTTP {answer.status_code}"}
        return found

    def log(self, name: str) -> str:
        return self.http.get(f"/v1/workloads/team-a/{name}/logs").text


def alice(running: hotdesk_up.RunningHotdesk) -> workspaces.Researcher:
    return workspaces.Researcher(running.url, "alice", running.password("alice"))


COUNTING = "import os, time\nprint('pid', os.getpid())\nwhile True: time.sleep(0.1)"


def scheduler_of(state: Path) -> psutil.Process:
    """The scheduler's process: the one that runs `hotdesk_scheduler … serve` with this state directory."""
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if (
            "serve" in words
            and any("hotdesk_scheduler" in word or "hotdesk-scheduler" in word for word in words)
            and str(state) in " ".join(words)
        ):
            return process
    raise AssertionError("no scheduler runs")


def listening_on(port: int) -> psutil.Process:
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr[1] == port and connection.pid:
            return psutil.Process(connection.pid)
    raise AssertionError(f"nothing listens on {port}")


def test_first_start_prints_the_passwords_once_and_what_is_simulated(state: Path) -> None:
    running = hotdesk_up.start(state)
    assert f"Hotdesk is ready at {running.url}" in running.text
    assert "SIMULATED" in running.text.upper()
    for password in running.passwords.values():
        assert password in running.text
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert running.press_ctrl_c() == 0
    again = hotdesk_up.start(state, port=running.port)
    for password in again.passwords.values():
        assert password not in again.text
    assert "passwords" in again.text, "says how to see them"


def test_ctrl_c_leaves_jobs_and_workspaces_alone_and_the_next_up_finds_them(state: Path) -> None:
    running = hotdesk_up.start(state)
    user = alice(running)
    api = Api(user)
    user.open_workspace(project="team-a", gpu="0.5")
    workspace_pid = user.kernel().run("import os; print(os.getppid())").text.strip()
    api.submit("counting", COUNTING)
    wait_for(lambda: "pid" in api.log("counting"), "the job's first line")
    before = api.job("counting")
    assert running.press_ctrl_c() == 0
    assert psutil.pid_exists(int(workspace_pid))
    pid = int(api_log_file(state, before["id"]).split()[1])
    assert psutil.pid_exists(pid)

    again = hotdesk_up.start(state, port=running.port)
    wait_for(lambda: api.job("counting")["status"] == "Running", "the job is found")
    assert api.job("counting")["started_at"] == before["started_at"]
    assert psutil.pid_exists(pid)
    assert user.kernel().run("import os; print(os.getppid())").text.strip() == workspace_pid
    items = api.http.get("/v1/workloads").json()["items"]
    assert [item["status"] for item in items if item["kind"] == "workspace"] == ["Running"]
    hotdesk_up.down(state)
    assert again.process.wait(timeout=60) is not None
    assert not psutil.pid_exists(pid)
    assert not psutil.pid_exists(int(workspace_pid))


def api_log_file(state: Path, workload_id: str) -> str:
    """The job's log as it lies on disk, read while nothing runs that could serve it."""
    return "".join(path.read_text() for path in sorted((state / "pods" / workload_id).rglob("log")))


def test_a_killed_scheduler_comes_back_and_every_job_is_where_it_was(state: Path) -> None:
    running = hotdesk_up.start(state)
    api = Api(alice(running))
    api.submit("counting", COUNTING)
    api.submit("big", "print(1)", gpu_millis=8000, kind="interactive")
    wait_for(lambda: "pid" in api.log("counting"), "the job's first line")
    before = api.job("counting")
    scheduler_of(state).kill()
    wait_for(lambda: api.job("counting")["status"] == "Running", "the hub has started it again")
    after = api.job("counting")
    assert (after["started_at"], after["pods"][0]["attempt"]) == (before["started_at"], 0)
    assert api.log("counting").count("pid") == 1, "never run twice"
    assert api.job("big")["status"] == "Pending"


def test_a_killed_hub_gives_way_to_the_next_one_with_its_orphans(state: Path) -> None:
    running = hotdesk_up.start(state)
    user = alice(running)
    user.open_workspace(project="team-a", gpu="0.5")
    api = Api(user)
    api.submit("counting", COUNTING)
    wait_for(lambda: "pid" in api.log("counting"), "the job's first line")
    before = api.job("counting")
    for process in [psutil.Process(running.process.pid), *psutil.Process(running.process.pid).children()]:
        if process.is_running() and ("jupyterhub" in " ".join(process.cmdline()) or process.pid == running.process.pid):
            process.kill()
    running.process.wait(timeout=30)
    hotdesk_up.start(state, port=running.port)
    wait_for(lambda: api.job("counting")["status"] == "Running", "the job is where it was")
    assert api.job("counting")["started_at"] == before["started_at"]
    wait_for(lambda: bool((user.server() or {}).get("ready")), "the workspace is where it was")


def test_a_killed_proxy_is_started_again(state: Path) -> None:
    running = hotdesk_up.start(state)
    api = Api(alice(running))
    listening_on(running.port).kill()
    wait_for(lambda: api.job("nothing")["status"] == "HTTP 404", "the proxy answers again", timeout_s=60)


def test_a_second_up_on_the_same_state_is_refused_with_a_sentence(state: Path) -> None:
    running = hotdesk_up.start(state)
    second = subprocess.run(
        [hotdesk_up.BIN / "hotdesk-hub", "up", "--port", str(some_free_port()), "--state", str(state)],
        capture_output=True,
        text=True,
        env=hotdesk_up.clean_environment(),
        timeout=60,
        check=False,
    )
    assert second.returncode != 0
    assert "already" in second.stdout + second.stderr
    assert running.process.poll() is None


def test_a_taken_port_is_named(state: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        tried = subprocess.run(
            [hotdesk_up.BIN / "hotdesk-hub", "up", "--port", str(port), "--state", str(state)],
            capture_output=True,
            text=True,
            env=hotdesk_up.clean_environment(),
            timeout=60,
            check=False,
        )
    assert tried.returncode != 0
    assert str(port) in tried.stdout + tried.stderr
    assert "PORT=" in tried.stdout + tried.stderr


def test_down_may_be_said_twice_and_after_kill_9_of_everything(state: Path) -> None:
    running = hotdesk_up.start(state)
    api = Api(alice(running))
    api.submit("counting", COUNTING)
    wait_for(lambda: "pid" in api.log("counting"), "the job's first line")
    for process in psutil.Process(running.process.pid).children(recursive=True):
        process.send_signal(signal.SIGKILL)
    running.kill_9()
    hotdesk_up.down(state)
    assert processes_of(state) == []
    hotdesk_up.down(state)
