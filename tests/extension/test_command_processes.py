"""`runai` as a real process against a real scheduler: what it prints where, its exit codes, and what Ctrl-C does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # only to check that our YAML is YAML
from seats import RUNAI, Desk, wait_until

QUICKSTART = "gcr.io/run-ai-demo/quickstart"
SLEEP = ("--command", "sleep", "--args", "infinity")


def test_the_first_walk_through_works_in_a_pipe(desk: Desk, job: str) -> None:
    assert desk.run("project", "set", "team-a").err == "Project team-a has been set as default project\n"
    submitted = desk.run("submit", job, "-i", QUICKSTART, "-g", "1")
    assert (submitted.code, submitted.out) == (0, f"{job}\n")
    lines = submitted.err.splitlines()
    assert lines[0] == f"The job '{job}' has been submitted successfully"
    assert lines[1] == f"You can run `runai describe job {job} -p team-a` to check the job status"
    assert len(lines) == 3, "one line says what happens now"
    desk.until(job, "Running")
    listed = desk.run("list")
    assert listed.err.startswith("Showing jobs for project team-a\n")
    head, *rows = listed.out.splitlines()
    assert head.split()[:9] == ["NAME", "STATUS", "AGE", "NODE", "IMAGE", "TYPE", "PROJECT", "USER", "GPUs"]
    assert any(row.split()[:2] == [job, "Running"] and "Train" in row for row in rows)
    wait_until(lambda: "loss" in desk.ok("logs", job), "a line with the loss")
    assert f"NAME:                     {job}" in desk.ok("get", job)
    assert desk.run("delete", job).err == f"The job '{job}' has been deleted (project team-a)\n"
    wait_until(lambda: job not in desk.ok("list"), "gone from the list")


def test_json_yaml_and_names_agree_and_times_are_utc(desk: Desk, job: str) -> None:
    desk.ok("submit", job, "-i", "python", *SLEEP)
    listed = desk.data("list", "-A")
    mine = next(item for item in listed["items"] if item["name"] == job)
    assert mine["created_at"].endswith("Z")
    assert {"status", "gpu_millis_allocated", "nodes", "reason", "queue_position", "service_urls"} <= set(mine)
    assert job in desk.ok("list", "-o", "name").split()
    described = desk.until(job, "Running")
    as_yaml = yaml.safe_load(desk.ok("describe", "job", job, "-o", "yaml"))
    assert as_yaml["spec"] == described["spec"]
    assert as_yaml["name"] == job


def test_a_pending_job_says_why_in_wide_and_in_why(desk: Desk, job: str) -> None:
    desk.ok("submit", job, "-i", "python", "-g", "8", "--interactive", *SLEEP)
    desk.until(job, "Pending")
    assert "quota" in desk.ok("list", "-o", "wide")
    assert "quota of 4 GPUs" in desk.ok("why", job)


def test_dry_run_submits_nothing_and_shows_the_plan(desk: Desk, job: str) -> None:
    shown = desk.run("submit", job, "-i", "python", "-g", "2", "--dry-run")
    assert shown.code == 0
    assert "dgx1-" in shown.out
    assert "Nothing was submitted" in shown.err
    assert job not in desk.ok("list", "-o", "name").split()


def test_exec_passes_input_output_and_the_exit_code_along(desk: Desk, job: str) -> None:
    desk.ok("submit", job, "-i", "python", "-g", "0.5", "--interactive", *SLEEP)
    desk.until(job, "Running")
    shown = desk.run("exec", job, "--", "sh", "-c", "echo inside $JOB_NAME-$RUNAI_PROJECT; echo oops >&2; exit 7")
    assert (shown.code, shown.out, shown.err) == (7, f"inside {job}-team-a\n", "oops\n")
    assert desk.run("exec", "-i", job, "--", "cat", stdin="passed on\n").out == "passed on\n"
    assert "SIMULATED" in desk.ok("exec", job, "nvidia-smi")
    used = next(line for line in desk.ok("top", "job").splitlines() if line.startswith(job))
    assert re.search(r" \d+% +16G +\d+(\.\d)?G ", used), used
    refused = desk.run("bash", job)
    assert refused.code == 2
    assert f"exec {job}" in refused.err


def test_waiting_ends_with_the_job_or_with_exit_code_4(desk: Desk, job: str) -> None:
    waited = desk.run("submit", job, "-i", "python", "--wait", "--command", "--", "python", "-c", "print(6 * 7)")
    assert waited.code == 0, waited.err
    assert f"{job} is Succeeded" in waited.err
    assert desk.ok("logs", job) == "42\n"
    desk.ok("delete", job)
    wait_until(lambda: job not in desk.ok("list", "-o", "name").split(), "gone")
    late = desk.run("submit", job, "-i", "python", "--wait=finished", "--timeout", "1s", *SLEEP)
    assert late.code == 4
    assert re.search(rf"{job} was not finished after 1 s; it is \w+\. It goes on; ", late.err), late.err


def test_a_failed_job_makes_waiting_fail(desk: Desk, job: str) -> None:
    failed = desk.run("submit", job, "-i", "python", "--backoff-limit", "0", "--wait", "--command", "--", "sh", "-c", "exit 3")
    assert failed.code == 1
    assert f"{job} is Failed" in failed.err


def test_suspend_and_resume(desk: Desk, job: str) -> None:
    desk.ok("submit", job, "-i", "python", "-g", "1", *SLEEP)
    desk.until(job, "Running")
    desk.ok("suspend", job)
    desk.until(job, "Suspended")
    desk.ok("resume", job)
    desk.until(job, "Running")


def test_delete_tells_what_is_not_there_apart_and_deletes_the_rest(desk: Desk, job: str) -> None:
    desk.ok("submit", job, "-i", "python", *SLEEP)
    shown = desk.run("delete", "nosuch", job)
    assert shown.code == 1
    assert shown.out == f"{job}\n"
    assert "nosuch" in shown.err
    assert f"The job '{job}' has been deleted" in shown.err


def test_deleting_everything_asks_and_a_pipe_cannot_be_asked(desk: Desk) -> None:
    desk.ok("submit", "everything-1", "-i", "python", *SLEEP)
    refused = desk.run("delete", "--all")
    assert (refused.code, refused.out) == (2, "")
    assert "--yes" in refused.err
    assert "everything-1" in desk.ok("delete", "--all", "--yes")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("lst",), 2, "Did you mean list"),
        (("submit", "x", "-i", "nope", "-g", "1"), 2, "Known images"),
        (("submit", "x", "-i", "python", "-g", "99"), 2, "99 GPUs"),
        (("submit", "x", "-i", "python", "--node-type", "zz"), 2, "dgx1"),
        (("submit", "x", "-i", "python", "-p", "nope"), None, "team-a"),
        (("list", "-p", "team-aa"), 1, "team-aa that you are a member of. Yours: team-a"),
        (("list", "-p", "team-b"), 1, "team-b"),
        (("list", "--status", "Runing"), 2, "Did you mean Running? Valid: Running, "),
        (("logs", "x", "-p", "team-aa"), 1, "no project team-aa that you are a member of. Yours: team-a"),
        (("get", "x", "-p", "team-b"), 1, "no project team-b that you are a member of. Yours: team-a"),
        (("exec", "x", "-p", "team-b", "--", "ls"), 1, "no project team-b that you are a member of. Yours: team-a"),
        (("describe", "job", "nosuch"), 1, "nosuch"),
        (("describe", "node", "dgx9"), 2, "Did you mean dgx1"),
        (("exec", "nosuch", "--", "ls"), 1, "nosuch"),
        (("logs", "nosuch"), 1, "nosuch"),
        (("project", "create", "team-z"), 3, ""),
        (("project", "create", "Team_Z"), 2, "Write for example team-z."),
        (("config", "project", "team-b"), 2, "team-a"),
        (("submit-mpi", "--name", "x", "--processes=3"), 2, "does not have yet"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_goes_wrong_is_a_sentence_on_stderr_with_its_exit_code(
    desk: Desk, words: tuple[str, ...], code: int | None, says: str
) -> None:
    shown = desk.run(*words)
    assert shown.out == ""
    assert says in shown.err
    assert "Traceback" not in shown.err
    assert shown.code == code or (code is None and shown.code in (1, 2))


def test_no_token_a_wrong_token_and_no_scheduler_each_say_what_to_do(desk: Desk) -> None:
    nothing = desk.run("list", environment={"HOTDESK_API_URL": "", "HOTDESK_TOKEN": ""})
    assert nothing.code == 1
    assert "hotdesk login" in nothing.err
    no_token = desk.run("list", environment={"HOTDESK_TOKEN": ""})
    assert no_token.code == 3
    assert "no token" in no_token.err
    wrong = desk.run("list", environment={"HOTDESK_TOKEN": "nonsense"})
    assert wrong.code == 3
    assert "not valid" in wrong.err
    away = desk.run("list", environment={"HOTDESK_API_URL": "http://127.0.0.1:9"})
    assert away.code == 1
    assert "cannot be reached" in away.err


def test_login_tries_the_token_saves_it_privately_and_logout_forgets_it(desk: Desk) -> None:
    outside = {"HOTDESK_API_URL": "", "HOTDESK_TOKEN": ""}
    refused = desk.run("login", "--url", desk.scheduler.url, "--token", "nonsense", environment=outside)
    assert refused.code == 3
    file = desk.home / "config" / "hotdesk" / "config.json"
    assert not file.exists()
    page = f"{desk.scheduler.url}/hub/token?next=1"  # what a browser shows is as good
    done = desk.run("login", "--url", page, "--token", desk.token, environment=outside)
    assert done.code == 0, done.err
    assert desk.token not in done.out + done.err
    assert file.stat().st_mode & 0o777 == 0o600
    assert desk.run("whoami", "-o", "name", environment=outside).out == "alice\n"
    assert desk.run("logout", environment=outside).code == 0
    assert "no token" in desk.run("list", environment=outside).err


def test_an_administrator_makes_changes_and_deletes_a_project(admin: Desk) -> None:
    admin.ok("project", "create", "team-x", "--gpu-quota", "0.5", "--over-quota-weight", "2")
    assert admin.data("project", "update", "team-x", "-g", "3", "--limit", "5")["gpu_limit_millis"] == 5000
    mine = next(item for item in admin.data("list", "projects")["items"] if item["name"] == "team-x")
    assert (mine["gpu_quota_millis"], mine["gpu_over_quota_weight"]) == (3000, 2000)
    refused = admin.run("project", "delete", "team-x")
    assert refused.code == 2
    assert "--yes" in refused.err
    admin.ok("project", "delete", "team-x", "--yes")
    assert "team-x" not in admin.ok("list", "projects", "-o", "name").split()


def test_an_administrator_makes_changes_and_deletes_a_department(admin: Desk, desk: Desk) -> None:
    made = admin.run("department", "create", "lab", "--limit", "8", "--weight", "0.5", "--priority", "2", "--over-quota", "off")
    assert (made.code, made.err) == (0, "Department lab has been created.\n")
    admin.ok("project", "create", "team-x", "--gpu-quota", "1.5", "--department", "lab")
    shown = admin.data("department", "update", "lab", "--limit", "12")
    assert (shown["projects"], shown["gpu_quota_millis"], shown["gpu_quota_is_sum"]) == (["team-x"], 1500, True)
    assert (shown["gpu_limit_millis"], shown["gpu_over_quota_weight"], shown["priority"], shown["over_quota"]) == (12000, 500, 2, False)
    assert admin.data("department", "update", "lab", "--quota", "4")["gpu_quota_millis"] == 4000
    assert admin.data("department", "update", "lab", "--quota", "sum")["gpu_quota_millis"] == 1500
    assert re.search(r"^lab +team-x +1\.5 +0/1\.5 ", admin.ok("list", "departments"), re.MULTILINE)
    assert "lab" not in desk.ok("list", "departments")
    assert "still has 1 project, such as team-x" in admin.run("department", "delete", "lab", "--yes").err
    assert admin.data("project", "update", "team-x", "--department", "none")["department"] is None
    assert "--yes" in admin.run("department", "delete", "lab").err
    admin.ok("department", "delete", "lab", "--yes")
    admin.ok("project", "delete", "team-x", "--yes")
    assert admin.ok("list", "departments", "-o", "name") == ""


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("create", "Lab_1"), 2, "Write for example lab-1."),
        (("create", "none"), 2, "cannot be called none"),
        (("create", "lab", "--quota", "0.1234"), 2, "three decimals"),
        (("create", "lab", "--limit", "x"), 2, "x is not a number"),
        (("create", "lab", "--weight", "-1"), 2, "is not a weight"),
        (("create", "lab", "--quota", "4", "--limit", "2"), 2, "The GPU limit 2 of lab is below its quota 4."),
        (("create",), 2, "needs DEPARTMENT"),
        (("update", "nosuch", "--limit", "4"), 1, "There is no department nosuch"),
        (("update", "nosuch"), 2, "needs something to change"),
        (("delete", "nosuch", "--yes"), 1, "There is no department nosuch"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_department_that_cannot_be_is_refused_in_a_sentence(admin: Desk, words: tuple[str, ...], code: int, says: str) -> None:
    shown = admin.run("department", *words)
    assert (shown.code, shown.out) == (code, "")
    assert says in shown.err
    assert "Traceback" not in shown.err
    assert admin.ok("list", "departments", "-o", "name") == ""


def test_every_table_of_the_cluster_is_plain_and_whole_in_a_pipe(desk: Desk) -> None:
    nodes = desk.ok("list", "nodes")
    assert "V100-SXM2-32GB (SIMULATED)" in nodes
    assert "team-a (default)" in desk.ok("list", "projects")
    assert QUICKSTART in desk.ok("list", "images")
    assert "GPU-SIM-" in desk.ok("top", "node", "-d")
    assert "NODE GPUs INFO" in desk.ok("describe", "node", "dgx1-1")
    assert "GPUs ALLOCATED" in desk.ok("top", "job")
    assert "\x1b" not in nodes


def test_whoami_and_config_project_agree_on_the_project_in_use(desk: Desk) -> None:
    assert re.search(r"^CURRENT PROJECT: +team-a \(your only project\)$", desk.ok("whoami"), re.MULTILINE)
    assert desk.run("config", "project").err == "Project team-a is in use (your only project).\n"
    desk.ok("config", "project", "team-a")
    assert "team-a (from config project)" in desk.ok("whoami")


def test_logout_says_when_a_token_of_the_environment_goes_on(desk: Desk) -> None:
    assert "But HOTDESK_TOKEN is set here, and goes on being used." in desk.run("logout").err
    assert "But" not in desk.run("logout", environment={"HOTDESK_TOKEN": ""}).err


def test_a_filter_that_nothing_passes_is_not_an_empty_project(desk: Desk) -> None:
    shown = desk.run("list", "--status", "running", "--user", "nobody")
    assert (shown.code, "None of the jobs is like that." in shown.err, "submits one" in shown.err) == (0, True, False)


def test_a_reader_that_goes_away_is_no_error(desk: Desk) -> None:
    shown = subprocess.run(
        ["/bin/sh", "-c", f"{' '.join(RUNAI)} help submit | head -1; {' '.join(RUNAI)} list nodes -o json | head -1"],
        env=desk.environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert shown.stderr == ""


def _interrupted_after(desk: Desk, words: list[str], sign: bytes) -> tuple[int, str]:
    """Start, wait for `sign` on stdout, press Ctrl-C; exit code and stderr."""
    process = subprocess.Popen([*RUNAI, *words], env=desk.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        seen = b""
        while sign not in seen and (piece := os.read(process.stdout.fileno(), 4096)):
            seen += piece
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        return process.returncode, err.decode()
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def test_ctrl_c_while_following_detaches_says_so_and_the_job_goes_on(desk: Desk, job: str) -> None:
    desk.ok("submit", job, "-i", QUICKSTART, "-g", "0.5")
    code, err = _interrupted_after(desk, ["logs", job, "-f"], b"loss")
    assert code == 130
    assert f"Detached; {job} goes on" in err
    assert desk.data("describe", "job", job)["status"] == "Running"
    code, err = _interrupted_after(desk, ["list", "-w"], job.encode())
    assert code == 130
    assert "the jobs go on" in err


def test_a_log_can_be_cut_from_the_end_and_by_time(desk: Desk, job: str) -> None:
    desk.ok("submit", job, "-i", "python", "--wait", "--command", "--", "sh", "-c", "seq 100")
    assert desk.ok("logs", job, "-t", "3") == "98\n99\n100\n"
    assert desk.ok("logs", job, "--tail", "1", "--timestamps").split()[1] == "100"
    assert desk.ok("logs", job, "--since", "1h").startswith("1\n")
    later = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    assert desk.ok("logs", job, "--since-time", later) == ""


def test_settings_come_from_flag_then_environment_then_file(desk: Desk) -> None:
    desk.ok("config", "project", "team-a")
    assert json.loads((desk.home / "config" / "hotdesk" / "config.json").read_text()) == {"project": "team-a"}
    assert "team-b" in desk.run("list", environment={"RUNAI_PROJECT": "team-b"}).err
    inside = {"RUNAI_PROJECT": "team-b", "JUPYTERHUB_USER": "alice"}
    assert "project team-a" in desk.run("list", environment=inside).err, "the choice wins over the workspace's own project"
    assert "team-c" in desk.run("list", "-p", "team-c", environment=inside).err


def test_the_shell_completes_verbs_flags_and_live_names_quickly(desk: Desk, job: str, tmp_path: Path) -> None:
    desk.ok("submit", job, "-i", "python", *SLEEP)

    def completed(*words: str) -> list[str]:
        return [line.split("\t")[0] for line in desk.ok("__complete", *words).splitlines()]

    assert completed("desc") == ["describe"]
    assert "jobs" in completed("list", "")
    assert completed("submit", "--gpu-m") == ["--gpu-memory"]
    assert completed("logs", job[:-2]) == [job]
    assert completed("submit", "x", "-i", "gcr") == [QUICKSTART]
    assert completed("list", "-o", "j") == ["json"]
    assert completed("list", "--output=j") == ["--output=json"]
    assert completed("list", "-p", "team") == ["team-a"]
    away = desk.run("__complete", "logs", "", environment={"HOTDESK_API_URL": "http://127.0.0.1:9"})
    assert (away.code, away.out, away.err) == (0, "", "")


def test_bash_itself_completes(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "runai").write_text(f'#!/bin/sh\nexec {" ".join(RUNAI)} "$@"\n')
    (tmp_path / "runai").chmod(0o755)
    script = (
        'eval "$(runai completion bash)"\nCOMP_WORDS=(runai submit x --proj); COMP_CWORD=3; _hotdesk_complete; echo "${COMPREPLY[@]}"\n'
        'COMP_WORDS=(runai list --output = js); COMP_CWORD=4; _hotdesk_complete; echo "${COMPREPLY[@]}"\n'
    )
    environment = desk.environment(PATH=f"{tmp_path}:{os.environ['PATH']}")
    shown = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert shown.stdout.split("\n")[:2] == ["--project", "json"], shown.stderr
