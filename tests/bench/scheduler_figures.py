"""How fast the scheduler answers, and what it costs: a real `hotdesk-scheduler serve` with the local engine on simulated GPUs."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import crowd
import psutil
import scheduler_fixture
from figure import Figure
from hotdesk_api import calls
from hotdesk_api.client import Client
from hotdesk_api.models import WorkloadSpec

SUBMITS = 21
WORKLOADS = 1000
LISTINGS = 15
IDLE_S = 30.0
BIN = Path(sys.executable).parent


def _seconds_to_first_line(client: Client, name: str) -> float:
    """From the submit's first byte to the first line of the job's log, over REST."""
    spec = WorkloadSpec(name=name, project="team-a", image="gcr.io/run-ai-demo/quickstart", gpu_millis=1000)
    began = time.perf_counter()
    client.call(calls.submit(spec))
    for piece in client.logs("team-a", name, follow=True):
        if b"\n" in piece:
            return time.perf_counter() - began
    raise AssertionError(f"{name} ended without a line")


def submit_to_first_line() -> Iterator[Figure]:
    """One job at a time on an idle cluster of 16 GPUs."""
    with tempfile.TemporaryDirectory() as folder, scheduler_fixture.scheduler(Path(folder)) as running:
        client = running.client()
        times = []
        for number in range(SUBMITS):
            times.append(_seconds_to_first_line(client, f"first-{number}"))
            client.call(calls.delete("team-a", f"first-{number}"))
            _wait_until_gone(client)
    yield Figure("submit to first line of the log, median", statistics.median(times[1:]), "s", bar=0.5)
    yield Figure("submit to first line of the log, worst", max(times[1:]), "s")


def _wait_until_gone(client: Client) -> None:
    while client.call(calls.workloads()).items:
        time.sleep(0.05)


@contextmanager
def _thousand() -> Iterator[tuple[scheduler_fixture.Scheduler, Client]]:
    """1,000 workloads: what fits on 16 GPUs runs, the rest waits."""
    with tempfile.TemporaryDirectory() as folder, scheduler_fixture.scheduler(Path(folder)) as running:
        client = running.client()
        for number in range(WORKLOADS):
            spec = WorkloadSpec(name=f"job-{number:04d}", project="team-a", image="ubuntu", command=["sleep", "infinity"], gpu_millis=1000)
            client.call(calls.submit(spec))
        time.sleep(2)
        yield running, client


def listing() -> Iterator[Figure]:
    """`runai list` with 1,000 workloads: the service's time for the request, and the whole process."""
    with _thousand() as (running, client):
        service, process = [], []
        command = [str(BIN / "runai"), "list", "-p", "team-a"]
        environment = {**os.environ, "HOTDESK_API_URL": running.url, "HOTDESK_TOKEN": running.alice}
        for _ in range(LISTINGS):
            began = time.perf_counter()
            assert len(client.call(calls.workloads(project="team-a")).items) == WORKLOADS
            service.append(time.perf_counter() - began)
            began = time.perf_counter()
            shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
            process.append(time.perf_counter() - began)
            assert shown.count("\n") >= WORKLOADS
        yield from _resident(running)
    yield Figure("list of 1,000 workloads over REST, median", statistics.median(service), "s", bar=0.3)
    yield Figure("`runai list` of 1,000 workloads, whole process, median", statistics.median(process), "s", bar=1.0)


def burst() -> Iterator[Figure]:
    """200 submissions over REST, eight in the air, beside 10,000 that wait: CPU time of service and client until each is answered."""
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(crowd.burst(Path(folder), queued=10_000, submits=200, at_once=8))
    yield Figure("burst of 200 submissions with 10,000 queued, CPU time to the answer, p99", found.p99, "s", bar=1.0)
    yield Figure("scheduling passes during the burst of 200 submissions", found.passes, "passes")


def _resident(running: scheduler_fixture.Scheduler) -> Iterator[Figure]:
    """Memory and idle CPU of the scheduler's process, after the listings above."""
    assert running.process is not None
    process = psutil.Process(running.process.pid)
    used = process.cpu_times()
    began = time.perf_counter()
    time.sleep(IDLE_S)
    after = process.cpu_times()
    busy = (after.user + after.system) - (used.user + used.system)
    yield Figure("scheduler's resident memory with 1,000 workloads", process.memory_info().rss / 2**20, "MiB", bar=150)
    yield Figure("scheduler's idle CPU with 1,000 workloads", 100 * busy / (time.perf_counter() - began), "%", bar=1.0)
