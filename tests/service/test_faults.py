"""kill -9, full disks and rivals: after a restart every job is where it was or honestly marked, and none ran twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import scheduler_fixture
from hotdesk_api import calls, models
from hotdesk_api.client import Client
from hotdesk_api.errors import NotFound, Unavailable
from scheduler_fixture import Scheduler

pytestmark = pytest.mark.slow
WITHIN_S = 90.0


def until(holds: Callable[[], object], what: str = "it did not come to hold") -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def status(client: Client, name: str) -> str | None:
    try:
        return client.call(calls.workload("team-a", name)).status
    except (NotFound, Unavailable):
        return None


def submit(client: Client, name: str, script: str, *, gpus: int = 1, **more: object) -> models.WorkloadDetail:
    spec = models.WorkloadSpec(
        name=name,
        project="team-a",
        image="python",
        gpu_millis=gpus * 1000,
        command=["sh", "-c", script],
        **more,  # type: ignore[arg-type]  # members of the spec
    )
    return client.call(calls.submit(spec))


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_jobs_live_through_kill_9_of_the_scheduler_and_none_runs_twice(real: Scheduler, tmp_path: Path) -> None:
    client, ran = real.client(), tmp_path / "ran"
    (tmp_path / "go-on").touch()
    submit(client, "runs", f"echo runs >> {ran}; exec sleep 1000")
    submit(client, "ends-meanwhile", f"echo ends >> {ran}; while [ -e {tmp_path / 'go-on'} ]; do sleep 0.05; done")
    submit(client, "fills-one-node", "exec sleep 1000", gpus=6)
    submit(client, "fills-the-other", "exec sleep 1000", gpus=8)
    submit(client, "waits", f"echo waits >> {ran}", gpus=8)
    until(lambda: all(status(client, name) == "Running" for name in ("runs", "ends-meanwhile", "fills-one-node", "fills-the-other")))
    until(lambda: len(lines(ran)) == 2, f"{lines(ran)}")
    pid = client.call(calls.workload("team-a", "runs")).pods[0].started_at
    real.kill()
    (tmp_path / "go-on").unlink()
    real.start()
    until(lambda: status(client, "ends-meanwhile") == "Succeeded")
    assert client.call(calls.workload("team-a", "runs")).pods[0].started_at == pid
    assert {name: status(client, name) for name in ("runs", "waits")} == {"runs": "Running", "waits": "Pending"}
    client.call(calls.delete("team-a", "fills-the-other"))
    client.call(calls.delete("team-a", "runs"))
    until(lambda: status(client, "waits") == "Succeeded")
    assert sorted(lines(ran)) == ["ends", "runs", "waits"]


def test_killed_at_any_moment_while_jobs_come_and_go_nothing_runs_twice(real: Scheduler, tmp_path: Path) -> None:
    client = real.client()
    known: list[str] = []
    for round_number in range(6):
        for number in range(8):
            name = f"job-{round_number}-{number}"
            try:
                submit(client, name, f"echo x >> {tmp_path / name}; sleep 0.3")
                known.append(name)
            except Unavailable:
                break
            if number == round_number:
                assert real.process is not None
                os.kill(real.process.pid, signal.SIGKILL)
                real.process.wait()
        real.start()
    assert len(known) >= 6
    until(lambda: all(status(client, name) == "Succeeded" for name in known), f"{[(n, status(client, n)) for n in known]}")
    assert [name for name in known if len(lines(tmp_path / name)) != 1] == []


def test_a_stop_under_way_is_carried_through_after_kill_9(real: Scheduler, tmp_path: Path) -> None:
    client, told = real.client(), tmp_path / "told"
    submit(client, "stubborn", f"trap 'echo told >> {told}' TERM; echo up >> {told}; while :; do sleep 0.1; done")
    until(lambda: lines(told) == ["up"])
    client.call(calls.delete("team-a", "stubborn"))
    until(lambda: "told" in lines(told))
    real.kill()
    real.start()
    until(lambda: status(client, "stubborn") is None)
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(told) in " ".join(p.info["cmdline"] or [])]


def test_a_second_scheduler_on_the_same_state_refuses(real: Scheduler) -> None:
    second = subprocess.run(
        [*real.command(), "--port", "0"], capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "HOTDESK_PORT": "0"}
    )
    assert second.returncode == 1
    assert str(real.state) in second.stderr
    assert "Traceback" not in second.stderr
    real.client().call(calls.whoami())


def test_events_and_queue_are_there_after_a_restart(real: Scheduler) -> None:
    client = real.client()
    submit(client, "one", "exec sleep 1000")
    until(lambda: status(client, "one") == "Running")
    until(lambda: len(client.call(calls.events("team-a", "one")).items) >= 2)
    time.sleep(0.5)
    before = {event.reason for event in client.call(calls.events("team-a", "one")).items}
    real.kill()
    real.start()
    assert before <= {event.reason for event in client.call(calls.events("team-a", "one")).items}
    assert [project.name for project in client.call(calls.projects()).items] == ["team-a"]


def test_a_deleted_project_of_the_seed_does_not_come_back(real: Scheduler) -> None:
    admin = real.client(real.admin)
    for project in admin.call(calls.projects()).items:
        admin.call(calls.delete_project(project.name))
    real.end()
    real.start()
    assert admin.call(calls.projects()).items == []


_FAKE_HUB = """
import os, subprocess, sys, time
child = subprocess.Popen(sys.argv[1:])
print(child.pid, flush=True)
time.sleep(1000)
"""


def test_a_service_leaves_with_its_hub_and_its_successor_takes_over_port_and_jobs(tmp_path: Path) -> None:
    with scheduler_fixture.scheduler(tmp_path) as first:
        client = first.client()
        submit(client, "runs", "exec sleep 1000")
        until(lambda: status(client, "runs") == "Running")
        first.end()
        managed = {**os.environ, "JUPYTERHUB_SERVICE_URL": first.url, "JUPYTERHUB_SERVICE_PREFIX": "/services/hotdesk/"}
        with open(first.log, "ab") as log:
            hub = subprocess.Popen([sys.executable, "-c", _FAKE_HUB, *first.command()], env=managed, stdout=subprocess.PIPE, stderr=log)
        try:
            assert hub.stdout is not None
            service = psutil.Process(int(hub.stdout.readline()))
            until(lambda: status(client, "runs") == "Running")
            assert client.call(calls.whoami()).name == "alice"
        finally:
            hub.kill()
            hub.wait()
            if hub.stdout is not None:
                hub.stdout.close()
        first.start()  # at once, on the same port and state
        assert status(client, "runs") == "Running"
        service.wait(30)


def test_a_service_whose_hub_was_killed_while_it_started_is_an_orphan_too(real: Scheduler) -> None:
    """It finds itself the child of another process, which says nothing of its hub."""
    real.end()
    hub = subprocess.Popen(["true"])
    hub.wait()
    managed = {**os.environ, "JUPYTERHUB_SERVICE_URL": real.url, "HOTDESK_HUB_PID": str(hub.pid)}
    with open(real.log, "ab") as log, subprocess.Popen(real.command(), env=managed, stdout=log, stderr=log) as service:
        try:
            assert service.wait(WITHIN_S) == 0
        finally:
            service.kill()
    real.start()


def test_a_full_disk_under_the_records_stops_no_job_and_shows(real: Scheduler, tmp_path: Path) -> None:
    real.end()
    real.more = [*real.more, "--records-url", "sqlite:////dev/full/records.db"]
    real.start()
    client = real.client()
    submit(client, "one", "exec sleep 1000")
    until(lambda: status(client, "one") == "Running")
    import httpx

    until(lambda: httpx.get(f"{real.url}/readyz", trust_env=False).status_code == 503)
    assert "Events and audit" in httpx.get(f"{real.url}/readyz", trust_env=False).json()["problems"][0]
    assert {event.reason for event in client.call(calls.events("team-a", "one")).items} >= {"Submitted", "Scheduled"}


_REPORTS = """
import os, time, httpx
url = f"{os.environ['HOTDESK_API_URL']}/v1/workloads/{os.environ['RUNAI_PROJECT']}/{os.environ['JOB_NAME']}"
token = {"Authorization": "Bearer " + os.environ["HOTDESK_REPORT_TOKEN"]}
report = {"progress": 0.25, "message": "step 1"}
asked = [httpx.put(url + "/progress", headers=token, json=report), httpx.get(url, headers=token), httpx.delete(url, headers=token)]
print(*[answer.status_code for answer in asked], flush=True)
time.sleep(1000)
"""


def test_a_job_reports_its_progress_with_a_token_good_for_nothing_else(real: Scheduler) -> None:
    client = real.client()
    client.call(calls.submit(models.WorkloadSpec(name="one", project="team-a", image="python", program=_REPORTS)))
    until(lambda: client.call(calls.workload("team-a", "one")).progress == 0.25)
    assert client.call(calls.workload("team-a", "one")).message == "step 1"
    until(lambda: b"204 401 401" in b"".join(client.logs("team-a", "one")))
