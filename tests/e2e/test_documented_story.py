"""The published walk-throughs, verbatim, on a real hub: once as `%runai …` in a kernel, once as `runai …` in a terminal."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hotdesk_up
import pytest
import workspaces
from story import InNotebook, Typist, jobs, play_four_teams, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("story")]


class InTerminal:
    def __init__(self, researcher: workspaces.Researcher) -> None:
        self.terminal = researcher.terminal()

    def line(self, words: str, *, timeout_s: float = 60) -> str:
        code, shown = self.terminal.run(f"runai {words}", timeout_s=timeout_s)
        assert code == 0, f"runai {words} exited {code}:\n{shown}"
        return shown

    def data(self, words: str) -> Any:
        with tempfile.NamedTemporaryFile("r", suffix=".json") as answer:
            code, shown = self.terminal.run(f"runai {words} -o json > {answer.name}")
            assert code == 0, shown
            return json.load(answer)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hotdesk_up.RunningHotdesk]:
    with hotdesk_up.hotdesk(tmp_path_factory.mktemp("hotdesk") / "state") as up:
        yield up


@pytest.fixture(scope="module")
def researcher(running: hotdesk_up.RunningHotdesk) -> Iterator[workspaces.Researcher]:
    """`demo` is in all four teams; the workspace asks for no GPU, so that all sixteen are the jobs'."""
    demo = workspaces.Researcher(running.url, "demo", running.password("demo"))
    demo.open_workspace(project="team-a", gpu="0")
    yield demo
    demo.close_workspace()
    demo.close()


@pytest.fixture(params=[InNotebook, InTerminal], ids=["notebook", "terminal"])
def typist(request: pytest.FixtureRequest, researcher: workspaces.Researcher) -> Iterator[Typist]:
    made: Typist = request.param(researcher)
    yield made
    for item in made.data("list -A")["items"]:
        if item["kind"] != "workspace":
            made.line(f"delete -p {item['project']} {item['name']}")
    wait_for(lambda: jobs(made) == [], "all jobs gone")


def test_four_teams_share_sixteen_gpus_as_published(typist: Typist) -> None:
    play_four_teams(typist)
    nodes = typist.data("list nodes")["items"]
    assert all(device["simulated"] for node in nodes for device in node["devices"])


def test_one_training_job_from_submit_to_delete(typist: Typist) -> None:
    typist.line("project set team-a")
    typist.line("submit hyper1 -i gcr.io/run-ai-demo/quickstart -g 1")
    wait_for(lambda: [job["status"] for job in jobs(typist)] == ["Running"], "hyper1 Running")
    table = typist.line("list")
    assert "Showing jobs for project team-a" in table
    assert re.search(r"hyper1\s+Running", table), table
    assert "gcr.io/run-ai-demo/quickstart" in table
    assert "Train" in table
    wait_for(lambda: "loss" in typist.line("logs hyper1"), "a line with the loss")
    log = typist.line("logs hyper1")
    assert re.search(r"accuracy", log), log
    assert re.search(r"ETA", log), log
    assert "hyper1" in typist.line("get hyper1")
    typist.line("delete hyper1")
    wait_for(lambda: jobs(typist) == [], "hyper1 gone from the list")


def test_an_interactive_job_has_a_shell_inside(typist: Typist) -> None:
    typist.line("config project team-a")
    typist.line("submit build1 -i python -g 1 --interactive --command sleep --args infinity")
    wait_for(lambda: [job["status"] for job in jobs(typist)] == ["Running"], "build1 Running")
    assert jobs(typist)[0]["type"] == "Interactive"
    if isinstance(typist, InTerminal):
        typist.terminal.type("runai bash build1\r")
        typist.terminal.type("echo inside $JOB_NAME-$RUNAI_PROJECT\r")
        typist.terminal.read_until(r"inside build1-team-a")
        typist.terminal.type("exit\r")
        typist.terminal.read_until(r"exit[\s\S]*[#$] $")
        code, _ = typist.terminal.run("true")
        assert code == 0
    else:
        assert "exec build1" in typist.line("bash build1"), "a notebook that cannot ask is told what to do instead"
        assert "inside build1-team-a" in typist.line("exec build1 -- sh -c 'echo inside $JOB_NAME-$RUNAI_PROJECT'")


def test_two_fractions_share_one_gpu_and_see_their_share(typist: Typist) -> None:
    typist.line("config project team-a")
    typist.line("submit frac05 -i gcr.io/run-ai-demo/quickstart -g 0.5 --interactive")
    typist.line("submit frac03 -i gcr.io/run-ai-demo/quickstart -g 0.3")
    wait_for(lambda: [job["status"] for job in jobs(typist)] == ["Running", "Running"], "both fractions run")
    busy = [device for node in typist.data("list nodes")["items"] for device in node["devices"] if device["allocated_millis"]]
    assert [(device["allocated_millis"], device["shared"]) for device in busy] == [(800, True)]
    half = typist.line("exec frac05 -- nvidia-smi")
    assert "SIMULATED" in half
    assert re.search(r"/ *16384 *MiB", half), half
    assert "python" in half, "the job's own processes are listed"
    assert re.search(r"/ *98(30|31) *MiB", typist.line("exec frac03 -- nvidia-smi"))


def test_the_cell_magic_runs_the_cell_as_a_job(researcher: workspaces.Researcher) -> None:
    kernel = researcher.kernel()
    body = "import os\nprint('sum', sum(range(10)), os.environ['RUNAI_PROJECT'])\n"
    cell = kernel.run(f"%%runai submit cellular -g 1 -p team-a\n{body}")
    assert not cell.error, cell.error
    shown = ""
    deadline = time.monotonic() + 60
    while "sum 45 team-a" not in shown and time.monotonic() < deadline:
        shown = kernel.run("%runai logs cellular -p team-a").text
    assert "sum 45 team-a" in shown
    kernel.run("%runai delete cellular -p team-a")
    kernel.close()


def test_from_python_a_job_is_an_object(researcher: workspaces.Researcher) -> None:
    kernel = researcher.kernel()
    code = (
        "import hotdesk\n"
        "job = hotdesk.submit(name='from-python', image='python', project='team-a', gpu='0.5', command=['python', '-c', 'print(6 * 7)'])\n"
        "job.wait(timeout_s=60)\n"
        "print(job.state, job.logs())\n"
        "print(job.why())\n"
        "again = await job\n"
        "job.delete()\n"
    )
    cell = kernel.run(code)
    assert not cell.error, cell.error + cell.text
    assert "Succeeded" in cell.text
    assert "42" in cell.text
    kernel.close()


def test_tab_completes_in_a_workspaces_terminal(researcher: workspaces.Researcher) -> None:
    terminal = researcher.terminal()
    try:
        terminal.run("true")  # there is a prompt
        terminal.type("runai lis\tproj\t\r")
        terminal.read_until("DESERVED GPUs")
    finally:
        terminal.close()


def test_notebook_of_the_story_is_kept_for_people_to_read(researcher: workspaces.Researcher) -> None:
    """The executed notebook is written under build/, so that one can look at what a user sees."""
    kernel = researcher.kernel()
    for code in [
        "%runai whoami",
        "%runai list projects",
        "%runai list nodes",
        "%runai submit look -i gcr.io/run-ai-demo/quickstart -g 0.5 -p team-a",
        "%runai list -A",
        "%runai describe job look -p team-a",
        "%runai why look -p team-a",
        "%runai top node",
        "%runai delete look -p team-a",
    ]:
        cell = kernel.run(code)
        assert not cell.error, f"{code}: {cell.error}"
    cells = [
        {
            "cell_type": "code",
            "execution_count": n + 1,
            "metadata": {},
            "source": cell["code"],
            "outputs": cell["outputs"],
        }
        for n, cell in enumerate(kernel.cells)
    ]
    notebook = {
        "nbformat": 4,
        "nbformat_minor": 4,
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        "cells": cells,
    }
    folder = Path(__file__).parents[2] / "build"
    folder.mkdir(exist_ok=True)
    (folder / "story.ipynb").write_text(json.dumps(notebook, indent=1))
    kernel.close()
