"""The published four-teams walk-through, line by line as it is written, and what it says comes out (GPUs in thousandths)."""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from workspaces import Researcher

FOUR_TEAMS = [
    "submit a-1-1-jupyter -i jupyter/base-notebook -g 1 --interactive --service-type=ingress --port 8888 \\\n"
    '  --args="--NotebookApp.base_url=team-a-test-ingress" --command=start-notebook.sh -p team-a',
    "submit a-1-g    -i gcr.io/run-ai-demo/quickstart -g 1 -p team-a",
    "submit a-2-gg   -i gcr.io/run-ai-demo/quickstart -g 2 -p team-a",
    "submit b-1-g06  -i gcr.io/run-ai-demo/quickstart -g 0.6 --interactive -p team-b",
    "submit b-2-g04  -i gcr.io/run-ai-demo/quickstart -g 0.4 --interactive -p team-b",
    "submit b-3-g    -i gcr.io/run-ai-demo/quickstart -g 1 -p team-b",
    "submit b-4-gg   -i gcr.io/run-ai-demo/quickstart -g 2 -p team-b",
    "submit c-1-g05  -i gcr.io/run-ai-demo/quickstart -g 0.5 --interactive -p team-c",
    "submit c-2-g03  -i gcr.io/run-ai-demo/quickstart -g 0.3 --interactive -p team-c",
    "submit c-3-g02  -i gcr.io/run-ai-demo/quickstart -g 0.2 --interactive -p team-c",
    "submit c-4-gg   -i gcr.io/run-ai-demo/quickstart -g 2 -p team-c",
    "submit c-5-g    -i gcr.io/run-ai-demo/quickstart -g 1 -p team-c",
    "submit d-1-gggg -i gcr.io/run-ai-demo/quickstart -g 4 -p team-d",
]
AFTER_EACH = [
    {"team-a": 1000},
    {"team-a": 2000},
    {"team-a": 4000},
    {"team-b": 600},
    {"team-b": 1000},
    {"team-b": 2000},
    {"team-b": 4000},
    {"team-c": 500},
    {"team-c": 800},
    {"team-c": 1000},
    {"team-c": 3000},
    {"team-c": 4000},
    {"team-d": 4000},
]
OVER_QUOTA = [
    "submit d-2-gg -i gcr.io/run-ai-demo/quickstart -g 2 -p team-d",
    "submit d-3-gg -i gcr.io/run-ai-demo/quickstart -g 2 -p team-d",
]
QUEUES = [
    "submit a-3-gg -i gcr.io/run-ai-demo/quickstart -g 2 -p team-a",
    "submit a-4-gg -i gcr.io/run-ai-demo/quickstart -g 2 -p team-a",
    "submit b-5-gg -i gcr.io/run-ai-demo/quickstart -g 2 -p team-b",
    "submit c-6-gg -i gcr.io/run-ai-demo/quickstart -g 2 -p team-c",
]
THE_DELETE = "delete -p team-d d-1-gggg d-2-gg d-3-gg"
NEVER_TOUCHED = ["a-1-1-jupyter", "a-1-g", "a-2-gg", "b-1-g06", "b-2-g04", "c-1-g05", "c-2-g03", "c-3-g02"]
QUOTAS = {"team-a": 4000, "team-b": 2000, "team-c": 2000, "team-d": 8000}


class Typist(Protocol):
    """Types a `runai` line and gives back what it showed; fails if the line failed."""

    def line(self, words: str, *, timeout_s: float = 60) -> str: ...

    def data(self, words: str) -> Any:
        """The line with `-o json`, parsed."""


class InNotebook:
    def __init__(self, researcher: Researcher) -> None:
        self.kernel = researcher.kernel()

    def line(self, words: str, *, timeout_s: float = 60) -> str:
        cell = self.kernel.run(f"%runai {words}", timeout_s=timeout_s)
        assert not cell.error, f"%runai {words}\n{cell.error}\n{cell.text}"
        return cell.text + re.sub(r"<[^>]+>", " ", cell.html)

    def data(self, words: str) -> Any:
        cell = self.kernel.run(f"!runai {words} -o json")
        return json.loads(cell.text)


def wait_for(holds: Callable[[], bool], what: str, *, timeout_s: float = 90) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.2)


def jobs(typist: Typist) -> list[dict[str, Any]]:
    return [item for item in typist.data("list -A")["items"] if item["kind"] != "workspace"]


def allocated(typist: Typist) -> dict[str, int]:
    """Of the four teams."""
    return {item["name"]: item["gpu_millis_allocated"] for item in typist.data("list projects")["items"] if item["name"] in QUOTAS}


def holds_exactly(typist: Typist, gpus: dict[str, int]) -> bool:
    return allocated(typist) == gpus


def pending(typist: Typist) -> dict[str, int]:
    return {item["name"]: item["pending"] for item in typist.data("list projects")["items"] if item["name"] in QUOTAS}


def settled(typist: Typist, gpus: dict[str, int], queued: dict[str, int]) -> bool:
    return allocated(typist) == gpus and pending(typist) == queued and {job["status"] for job in jobs(typist)} <= {"Running", "Pending"}


def started_at(typist: Typist) -> dict[str, str]:
    return {job["name"]: job["started_at"] for job in jobs(typist) if job["name"] in NEVER_TOUCHED}


def play_four_teams(typist: Typist, *, on: str = "") -> None:
    """All of it. `on`: flags added to each submit, on a cluster that has other nodes too."""
    gpus = dict.fromkeys(QUOTAS, 0)
    for line, change in zip(FOUR_TEAMS, AFTER_EACH, strict=True):
        shown = typist.line(line + on)
        assert "has been submitted successfully" in shown
        gpus |= change
        wait_for(functools.partial(holds_exactly, typist, dict(gpus)), f"{gpus} after {line}")
    none_waits = dict.fromkeys(QUOTAS, 0)
    wait_for(lambda: settled(typist, dict.fromkeys(QUOTAS, 4000), none_waits), "a, b, c, d hold 4 each, nobody waits")
    table = typist.line("list -A")
    for column in ("NAME", "STATUS", "AGE", "NODE", "IMAGE", "TYPE", "PROJECT", "USER", "SERVICE URL(S)"):
        assert column in table, table
    types = [job["type"] for job in jobs(typist)]
    assert (types.count("Train"), types.count("Interactive")) == (7, 6)
    nodes = [node for node in typist.data("list nodes")["items"] if any(device["simulated"] for device in node["devices"])]
    assert sum(node["gpu_millis_allocated"] for node in nodes) == 16000
    before = started_at(typist)
    assert len(before) == len(NEVER_TOUCHED)

    for line in OVER_QUOTA:
        typist.line(line + on)
    one_each = {"team-a": 0, "team-b": 1, "team-c": 1, "team-d": 0}
    wait_for(lambda: settled(typist, QUOTAS, one_each), "d has its 8, one of b and one of c wait")
    assert started_at(typist) == before, "something interactive or of team-a was touched"
    for job in jobs(typist):
        if job["status"] == "Pending":
            assert job["type"] == "Train"
            assert job["gpu_millis_requested"] == 2000
            assert "team-d" in typist.line(f"why {job['name']} -p {job['project']}")

    for line in QUEUES:
        typist.line(line + on)
    wait_for(lambda: settled(typist, QUOTAS, {"team-a": 2, "team-b": 2, "team-c": 2, "team-d": 0}), "two wait in a, b and c")

    typist.line(THE_DELETE, timeout_s=120)
    final = {"team-a": 8000, "team-b": 4000, "team-c": 4000, "team-d": 0}
    wait_for(lambda: settled(typist, final, {"team-a": 0, "team-b": 1, "team-c": 1, "team-d": 0}), "a 8/4, b 4/2, c 4/2, d 0/8")
    assert started_at(typist) == before, "something interactive or of team-a was touched"
