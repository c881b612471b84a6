"""`%runai` and `%%runai` in a real kernel, through nbclient: HTML and text, live displays, errors that stop, completion, Python values."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from typing import Any

import nbclient
import nbformat
import pytest
from seats import Desk, wait_until

QUICKSTART = "gcr.io/run-ai-demo/quickstart"
pytestmark = pytest.mark.slow  # a kernel takes a second or two to start


class Notebook:
    """Cells run in one kernel; `outputs` of the cell that ran last."""

    def __init__(self, client: nbclient.NotebookClient) -> None:
        self.client = client
        self.cell: Any = None

    def run(self, source: str, *, fails: bool = False) -> str:
        """Run one more cell; all its text (text/plain of displays, streams, error texts)."""
        self.cell = nbformat.v4.new_code_cell(source)  # type: ignore[no-untyped-call]  # nbformat has no types
        self.client.nb.cells.append(self.cell)
        index = len(self.client.nb.cells) - 1
        if fails:
            with pytest.raises(nbclient.exceptions.CellExecutionError):
                self.client.execute_cell(self.cell, index)
        else:
            self.client.execute_cell(self.cell, index)
        return self.text

    @property
    def text(self) -> str:
        return "".join(_text(output) for output in self.cell.outputs)

    @property
    def html(self) -> str:
        return "".join(output.get("data", {}).get("text/html", "") for output in self.cell.outputs)

    def complete(self, code: str) -> list[str]:
        """What the kernel offers at the end of `code`, as whole texts."""
        kernel: Any = self.client.kc
        message = kernel.complete(code, len(code))
        while True:
            try:
                answer = nbclient.util.run_sync(kernel.get_shell_msg)(timeout=30)
            except queue.Empty as error:
                raise AssertionError("no completion in 30 s") from error
            if answer["parent_header"].get("msg_id") == message:
                start = answer["content"]["cursor_start"]
                return [code[:start] + match for match in answer["content"]["matches"]]


def _text(output: Any) -> str:
    if output["output_type"] == "stream":
        return str(output["text"])
    if output["output_type"] == "error":
        return "\n".join(output["traceback"])
    return str(output["data"].get("text/plain", ""))


@pytest.fixture
def notebook(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    for name, value in desk.environment(RUNAI_PROJECT="team-a", JUPYTERHUB_USER="alice").items():
        if name != "HOME":
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("IPYTHONDIR", str(desk.home / "ipython"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    empty = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]  # nbformat has no types
    client = nbclient.NotebookClient(empty, timeout=120, kernel_name="python3")
    with client.setup_kernel():
        made = Notebook(client)
        made.run("%load_ext hotdesk")
        yield made


def test_the_walk_through_in_a_notebook(notebook: Notebook, desk: Desk, job: str) -> None:
    submitted = notebook.run(f"%runai submit {job} -i gcr.io/run-ai-demo/quickstart -g 0.5")
    assert f"The job '{job}' has been submitted successfully" in submitted
    assert f"You can run `%runai describe job {job} -p team-a` to check the job status" in submitted
    desk.until(job, "Running")
    listed = notebook.run("%runai list")
    assert "Showing jobs for project team-a" in listed
    assert "<table" in notebook.html
    assert "SIMULATED" in notebook.html
    assert job in notebook.html
    wait_until(lambda: "loss" in notebook.run(f"%runai logs {job}"), "a line with the loss")
    assert "SIMULATED" in notebook.run(f"%runai exec {job} -- nvidia-smi")
    assert f"inside {job}-team-a" in notebook.run(f"%runai exec {job} -- sh -c 'echo inside $JOB_NAME-$RUNAI_PROJECT'")
    assert f"%runai exec {job}" in notebook.run(f"%runai bash {job}"), "a kernel that cannot ask says what to do instead"
    assert "has been deleted" in notebook.run(f"name = '{job}'\n%runai delete {{name}}")


def test_a_pending_job_shows_its_reason_in_the_table(notebook: Notebook, desk: Desk, job: str) -> None:
    notebook.run(f"%runai submit {job} -i python -g 8 --interactive \\\n   --command sleep --args infinity")
    desk.until(job, "Pending")
    notebook.run("%runai list")
    assert "quota of 4 GPUs" in notebook.html


def test_a_cell_runs_as_a_job_and_its_display_follows_it_to_the_end(notebook: Notebook, desk: Desk, job: str) -> None:
    body = "import os, time\nfor step in range(3):\n    print('step', step, os.environ['RUNAI_PROJECT'], flush=True)\n    time.sleep(0.3)\n"
    notebook.run(f"%%runai submit {job} \\\n  -g 0.5\n{body}")
    cell = notebook.cell
    assert "has been submitted successfully" in notebook.text
    desk.until(job, "Succeeded")
    for _ in range(100):  # updates travel while cells run
        if "Succeeded" in "".join(_text(output) for output in cell.outputs):
            break
        notebook.run("import time; time.sleep(0.2)")
    shown = "".join(output.get("data", {}).get("text/html", "") for output in cell.outputs)
    assert "Succeeded" in shown
    assert "step 2 team-a" in shown, "the last line of its log"
    assert notebook.run(f"%runai logs {job}") == "step 0 team-a\nstep 1 team-a\nstep 2 team-a\n"


def test_an_error_is_one_red_sentence_and_stops_the_notebook(notebook: Notebook) -> None:
    shown = notebook.run("%runai submit x -i nope -g 1", fails=True)
    assert "There is no image nope" in shown
    assert "\x1b[31m" in shown
    assert "Traceback" not in shown
    assert "Yours: team-a" in notebook.run("%runai logs x -p nope", fails=True)
    assert "Did you mean list" in notebook.run("%runai lst", fails=True)
    assert "works in a shell" in notebook.run("%runai list | grep x", fails=True)
    assert "no program" in notebook.run("%%runai submit empty -g 1\n \n", fails=True)
    assert "--all and the name" in notebook.run("%runai delete --all x -p team-a", fails=True)


def test_an_assigned_list_is_data_and_is_not_displayed(notebook: Notebook, desk: Desk, job: str) -> None:
    notebook.run(f"%runai submit {job} -i python --command sleep --args infinity")
    assert notebook.run("found = %runai list") == ""
    assert notebook.run("print([item['name'] for item in found])") == f"['{job}']\n"
    assert "len 1" in notebook.run("%%time\ntimed = %runai list\nprint('len', len(timed))"), "where nobody can tell, both"
    assert json.loads(notebook.run("%runai list -o json"))["items"][0]["name"] == job
    assert notebook.run("%runai list -o name\nNone") == f"{job}\n"


def test_from_python_a_job_is_an_object(notebook: Notebook, desk: Desk, job: str) -> None:
    notebook.run(
        "import hotdesk\n"
        f"job = hotdesk.submit(name='{job}', image='python', gpu=0.1 + 0.2, command=['python', '-c', 'print(6 * 7)'])\n"
        "again = await job\n"
        "assert again is job"
    )
    assert desk.data("describe", "job", job)["gpu_millis_requested"] == 300
    assert notebook.run("print(job.state, job.logs(), job.why())").startswith("Succeeded 42\n")
    notebook.run("job")
    assert "Succeeded" in notebook.html
    notebook.run("job.delete()")


def test_tab_completes_verbs_flags_and_live_names(notebook: Notebook, desk: Desk, job: str) -> None:
    notebook.run(f"%runai submit {job} -i python --command sleep --args infinity")
    assert "%runai describe" in notebook.complete("%runai desc")
    assert "%runai submit x --gpu-memory" in notebook.complete("%runai submit x --gpu-m")
    assert f"%runai logs {job}" in notebook.complete(f"%runai logs {job[:-2]}")
    assert notebook.complete("%%runai submit x --project=te") == ["%%runai submit x --project=team-a"]
    assert notebook.complete(f"found = %hotdesk describe job {job[:-2]}") == [f"found = %hotdesk describe job {job}"]
    assert notebook.complete("%runai submit x --image=gcr.io/ru") == [f"%runai submit x --image={QUICKSTART}"]
    assert "print" in notebook.complete("%%runai submit x -g 1\npri")[0], "in the cell's body it is Python that is completed"


def test_nothing_of_pythons_stands_between_our_flags_and_names(notebook: Notebook, desk: Desk, job: str) -> None:
    notebook.run(f"%runai submit {job} -i python --command sleep --args infinity")
    assert notebook.complete("%runai logs ") == [f"%runai logs {job}"]
    flags = notebook.complete("%runai logs x --")
    assert flags
    assert not [flag for flag in flags if flag.endswith(("--abs", "--all", "--and"))]


def test_loading_twice_is_loading_once_and_unloading_removes_it(notebook: Notebook) -> None:
    notebook.run("%load_ext hotdesk\n%reload_ext hotdesk\n%runai version --short")
    notebook.run("%unload_ext hotdesk")
    assert "not found" in notebook.run("%runai list", fails=True)


def test_an_interrupt_of_a_followed_log_detaches(notebook: Notebook, desk: Desk, job: str) -> None:
    notebook.run(f"%runai submit {job} -i gcr.io/run-ai-demo/quickstart -g 0.5")
    desk.until(job, "Running")
    code = f"import os, signal, threading\nthreading.Timer(3, os.kill, (os.getpid(), signal.SIGINT)).start()\n%runai logs {job} -f"
    shown = notebook.run(code)
    assert f"Detached; {job} goes on" in shown
    assert desk.data("describe", "job", job)["status"] == "Running"
    watched = notebook.run("threading.Timer(3, os.kill, (os.getpid(), signal.SIGINT)).start()\n%runai list -w")
    assert "Stopped watching" in watched
    assert job in watched


def test_bash_in_a_notebook_goes_line_by_line_where_there_is_an_input_box(notebook: Notebook, desk: Desk, job: str) -> None:
    notebook.run(f"%runai submit {job} -i python --interactive --command sleep --args infinity")
    desk.until(job, "Running")
    answers = "typed = iter(['cd /tmp; x=7', 'echo $x in $PWD', 'echo again $x >&2', 'exit'])\nimport builtins\n"
    shown = notebook.run(f"{answers}builtins.input = lambda prompt: next(typed)\n%runai bash {job}")
    assert shown == "7 in /tmp\nagain 7\n"


def test_lists_from_python_look_like_their_tables(notebook: Notebook, desk: Desk, job: str) -> None:
    notebook.run(f"%runai submit {job} -i python --command sleep --args infinity")
    notebook.run("import hotdesk\nhotdesk.jobs()")
    assert "<table" in notebook.html
    assert job in notebook.text
    assert notebook.run("print([job.name for job in hotdesk.jobs()], hotdesk.nodes()[0].simulated, hotdesk.whoami().name)") == (
        f"['{job}'] True alice\n"
    )
    assert "GPU-SIM" in notebook.run("%runai top node -d")
    assert "not an argument" in notebook.run("hotdesk.submit(image='python', gpus=1)", fails=True).replace("is not an", "not an")
