"""Job traces (`simulate --jobs`): what comes of a day, computed by hand, and what would come of it if the quotas were others.

The documentation's example is compared with what the command says today; after an intended change: `HOTDESK_GOLDEN=write pytest …`.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import re
import shlex
import struct
import subprocess
import sys
import termios
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hotdesk_api.errors import Invalid
from hotdesk_scheduler import cli
from hotdesk_scheduler.core.model import GpuRequest, Kind, Policy, Project, Quota
from hotdesk_scheduler.whatif import chart, cluster, report, trace
from hotdesk_scheduler.whatif.cluster import Change, Cluster
from hotdesk_scheduler.whatif.figures import Figures, Row, figures, jain
from hotdesk_scheduler.whatif.play import Rules, Story, play
from hotdesk_scheduler.whatif.report import duration_words
from rich.console import Console

ROOT = Path(__file__).parents[2]
WRITE = os.environ.get("HOTDESK_GOLDEN") == "write"  # read at import: the tests themselves see no HOTDESK_ variables
NOW_AND_THEN = """submit,duration,gpus,project,name
0,100,1,a,a1
0,100,1,a,a2
50,100,1,b,b1
"""
"""On two GPUs with a quota of one each: b1 takes over from a2 at 50 s; a2 goes on when a1 has ended."""


def written(folder: Path, text: str, name: str = "jobs.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def two_gpus(**quotas: int) -> Cluster:
    projects = tuple(Project(name, gpu=Quota(gpus * 1000), created_at=i) for i, (name, gpus) in enumerate(quotas.items()))
    return Cluster(cluster.simulated("1x2xT4"), projects)


def rules(*, grace_s: float = 0, checkpoint_every_s: int = 0, **policy: float) -> Rules:
    return Rules(Policy(grace_s=grace_s, **policy), checkpoint_every_s * 1000)  # type: ignore[arg-type]  # fields of Policy


def played(folder: Path, text: str, on: Cluster, how: Rules | None = None) -> Figures:
    return figures(story(folder, text, on, how))


def story(folder: Path, text: str, on: Cluster, how: Rules | None = None) -> Story:
    return play(on, trace.read_jobs(written(folder, text)), how or rules())


def row(found: Figures, project: str) -> Row:
    return next(row for row in found.rows if row.project == project)


# --- what comes of it, by hand ---------------------------------------------------------------------------------------------------------


def test_a_job_that_is_stopped_for_another_project_starts_again_from_the_beginning(tmp_path: Path) -> None:
    """a1 0-100, a2 0-50 and 100-200, b1 50-150: 350 of 400 GPU seconds held, 300 of them for work that counted."""
    found = played(tmp_path, NOW_AND_THEN, two_gpus(a=1, b=1))
    assert (found.makespan_s, found.total.allocation, found.total.utilisation) == (200, 87.5, 75)
    assert (found.total.preempted, row(found, "a").preempted, row(found, "b").preempted) == (1, 1, 0)
    assert row(found, "a").lost_gpu_hours == round(50 / 3600, 3)
    assert row(found, "a").gpu_hours == round(250 / 3600, 3)
    assert [found.total.wait_mean_s, found.total.wait_p50_s, found.total.wait_p99_s] == [0, 0, 0]


def test_a_job_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    """50 s of work, a checkpoint every 20: 40 are kept, 60 are left, so a2 ends at 160 and only 10 GPU seconds are lost."""
    found = played(tmp_path, NOW_AND_THEN, two_gpus(a=1, b=1), rules(checkpoint_every_s=20))
    assert found.makespan_s == 160
    assert row(found, "a").lost_gpu_hours == round(10 / 3600, 3)


def test_who_takes_over_waits_for_the_end_of_the_notice(tmp_path: Path) -> None:
    """a2 keeps its GPU until 60, which counts as lost; b1 waits for 10 s and ends at 160."""
    found = played(tmp_path, NOW_AND_THEN, two_gpus(a=1, b=1), rules(grace_s=10))
    assert row(found, "b").wait_mean_s == 10
    assert row(found, "a").lost_gpu_hours == round(60 / 3600, 3)


def test_served_compares_what_was_held_with_the_fair_share_while_there_were_jobs(tmp_path: Path) -> None:
    """b alone is over for 100 s of its day; both got what was theirs, so all is fair."""
    found = played(tmp_path, NOW_AND_THEN, two_gpus(a=1, b=1))
    assert (row(found, "a").served, row(found, "b").served, found.fairness) == (100, 100, 1)


def test_who_waits_within_his_share_was_not_served(tmp_path: Path) -> None:
    """a's work is protected for longer than it runs: b, whose share is one GPU, waits 50 of 150 s; a held two where one was its share."""
    text = "submit,duration,gpus,project\n0,100,1,a\n0,100,1,a\n50,100,1,b\n"
    found = played(tmp_path, text, two_gpus(a=1, b=1), rules(min_runtime_s=1000))
    assert row(found, "b").wait_mean_s == 50
    assert (row(found, "a").served, row(found, "b").served) == (133.333, 66.667)
    assert found.fairness == 0.9


def test_equal_service_is_fair_and_one_alone_is_one_nth() -> None:
    assert (jain([50, 50, 50]), jain([90, 0, 0]), jain([])) == (1, 0.3333, None)


def test_ranks_of_waits_are_of_the_nearest_job(tmp_path: Path) -> None:
    """One GPU, four jobs of 10 s at once: they wait 0, 10, 20 and 30 s."""
    text = "submit,duration,gpus,project\n" + "0,10,1,a\n" * 4
    total = played(tmp_path, text, Cluster(cluster.simulated("1x1xT4"), (Project("a", gpu=Quota(1000)),))).total
    assert (total.wait_mean_s, total.wait_p50_s, total.wait_p99_s) == (15, 10, 30)


def test_a_gang_starts_together_or_not_at_all(tmp_path: Path) -> None:
    text = "submit,duration,gpus,pods,project\n0,30,1,1,a\n1,10,1,2,a\n"
    total = played(tmp_path, text, two_gpus(a=2)).total
    assert (total.wait_p99_s, total.finished) == (29, 2)


def test_fractions_share_a_gpu(tmp_path: Path) -> None:
    text = "submit,duration,gpu_millis,project\n" + "0,10,500,a\n" * 4
    found = played(tmp_path, text, two_gpus(a=2))
    assert (found.makespan_s, found.total.allocation) == (10, 100)


def test_a_job_runs_on_the_gpu_model_it_asks_for(tmp_path: Path) -> None:
    on = Cluster(cluster.simulated("1x1xT4,1x1xV100-SXM2-32GB"), (Project("a", gpu=Quota(2000)),))
    text = "submit,duration,gpus,project,gpu_model\n0,10,1,a,V100\n0,10,1,a,V100\n"
    assert played(tmp_path, text, on).makespan_s == 20


def test_a_job_that_can_never_start_is_named_with_why(tmp_path: Path) -> None:
    found = played(tmp_path, "submit,duration,gpus,project,name\n0,10,8,a,large\n0,10,1,a,small\n", two_gpus(a=2))
    assert [(project, name) for project, name, _ in found.waiting] == [("a", "large")]
    assert "8" in found.waiting[0][2]
    assert (found.total.jobs, found.total.finished) == (2, 1)


def test_past_use_lets_who_used_less_go_first(tmp_path: Path) -> None:
    """a filled both GPUs for an hour; then both want both, without quotas: with history, b holds them for longer."""
    text = "submit,duration,gpus,project\n0,3600,2,a\n" + "".join(f"3600,600,1,{name}\n" for name in "aaaabbbb")
    on = two_gpus(a=0, b=0)
    plain = played(tmp_path, text, on, Rules(Policy(grace_s=0), 600_000))
    history = played(tmp_path, text, on, Rules(Policy(grace_s=0, history_weight=2), 600_000, half_life_ms=3_600_000))
    before, after = row(plain, "b").wait_mean_s, row(history, "b").wait_mean_s
    assert before is not None
    assert after is not None
    assert after < before


# --- what if ---------------------------------------------------------------------------------------------------------------------------


def test_with_a_larger_quota_nothing_is_taken_and_the_other_waits(tmp_path: Path) -> None:
    now = two_gpus(a=1, b=1)
    then = cluster.changed(now, [Change("quota", "a", 2000)])
    before, after = (played(tmp_path, NOW_AND_THEN, on) for on in (now, then))
    assert (before.total.preempted, after.total.preempted) == (1, 0)
    assert (row(before, "b").wait_mean_s, row(after, "b").wait_mean_s) == (0, 50)


def test_with_a_limit_the_second_job_waits_for_the_first(tmp_path: Path) -> None:
    then = cluster.changed(two_gpus(a=1, b=1), [Change("limit", "a", 1000)])
    found = played(tmp_path, NOW_AND_THEN, then)
    assert (row(found, "a").wait_p99_s, row(found, "b").wait_p99_s, found.total.preempted) == (100, 0, 0)


def test_a_what_if_of_an_unknown_project_lists_the_known() -> None:
    with pytest.raises(Invalid, match=r"--quota c: .*Known: a, b\."):
        cluster.changed(two_gpus(a=1, b=1), [Change("quota", "c", 1000)])


# --- the command -----------------------------------------------------------------------------------------------------------------------


def simulate(*words: str | Path) -> int:
    return cli.main(["simulate", *map(str, words)])


def test_the_command_prints_both_sides_and_the_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs, projects = written(tmp_path, NOW_AND_THEN), written(tmp_path, "name,quota\na,1\nb,1\n", "p.csv")
    assert simulate("--jobs", jobs, "--projects", projects, "--simulate", "1x2xT4", "--grace", "0", "--quota", "a=2") == 0
    out = capsys.readouterr().out
    assert "What if: a quota 2" in out
    assert ["+50s" in line for line in out.splitlines() if "change" in line] == [False, True, True]
    assert "Makespan: 3m 20s now, 3m 20s what if." in out


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_on_a_narrow_terminal_every_figure_is_there_in_tables_below_each_other(tmp_path: Path, width: int) -> None:
    now = two_gpus(a=1, b=1)
    before, after = (played(tmp_path, NOW_AND_THEN, on) for on in (now, cluster.changed(now, [Change("quota", "a", 2000)])))
    for then in (None, after):
        console = Console(width=width, file=io.StringIO())
        with console.capture() as captured:
            shown = report.tables(before, then, console)
            for table in shown:
                console.print(table)
        text = captured.get()
        assert max(len(line.rstrip()) for line in text.splitlines()) <= width
        assert "…" not in text
        assert all(text.count(heading) == 1 for heading, _, _ in report.COLUMNS)
        assert text.count("PROJECT") == len(shown)
        assert (len(shown) == 1) == (width == 200)


def test_the_table_on_a_terminal_of_80_columns_is_no_wider(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    words = ["simulate", "--jobs", str(written(tmp_path, NOW_AND_THEN)), "--simulate", "1x2xT4", "--quota", "a=2"]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        [sys.executable, "-m", "hotdesk_scheduler.cli", *words],
        env=environment | {"TERM": "dumb"}, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL,
    ) as command:  # fmt: skip
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # how a terminal says that nobody writes to it any more
            while part := os.read(ours, 65536):
                said += part
    os.close(ours)
    lines = [line for line in said.decode().splitlines() if "Makespan" not in line]
    assert command.returncode == 0
    assert sum("PROJECT" in line for line in lines) == 2
    assert max(map(len, lines)) <= 80


def test_json_has_every_figure_and_the_change_of_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = written(tmp_path, NOW_AND_THEN)
    simulate("--jobs", jobs, "--simulate", "1x2xT4", "--grace", "0", "--quota", "a=2", "--json")
    body = json.loads(capsys.readouterr().out)
    assert body["what_if"] == "a quota 2"
    assert [change["wait_mean_s"] for change in body["change"]["rows"]] == [0, 50]
    assert (body["now"]["total"]["preempted"], body["then"]["total"]["preempted"], body["change"]["total"]["preempted"]) == (1, 0, -1)


def test_projects_nobody_described_get_equal_quotas_and_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate("--jobs", written(tmp_path, NOW_AND_THEN), "--simulate", "1x3xT4")
    assert "No quotas were given for 2 projects; equal ones were assumed: a 2, b 1." in capsys.readouterr().out


def test_the_help_defines_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--jobs", "--help") == 0
    out = capsys.readouterr().out
    assert "Jain's index" in out
    assert "--add-nodes" in out


def test_more_nodes_can_be_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate("--jobs", written(tmp_path, NOW_AND_THEN), "--simulate", "1x2xT4", "--add-nodes", "1x1xT4", "--json")
    body = json.loads(capsys.readouterr().out)
    assert (body["now"]["gpus"], body["then"]["gpus"], body["then"]["total"]["preempted"]) == (2, 3, 0)


def test_the_same_trace_gives_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    jobs = written(tmp_path, NOW_AND_THEN + "".join(f"{i * 7},{i % 5 * 20 + 10},0.5,{'ab'[i % 2]},n{i}\n" for i in range(20)))
    outcomes = set()
    for seed in "12":
        picture = tmp_path / f"{seed}.svg"
        words = ["simulate", "--jobs", str(jobs), "--simulate", "1x2xT4", "--quota", "a=2", "--chart", str(picture)]
        done = subprocess.run(
            [sys.executable, "-m", "hotdesk_scheduler.cli", *words],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        outcomes.add((done.stdout, picture.read_bytes()))
    assert len(outcomes) == 1


# --- the chart -------------------------------------------------------------------------------------------------------------------------


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_the_chart_names_its_axes_projects_and_quotas(tmp_path: Path) -> None:
    found = texts(chart.draw([("", story(tmp_path, NOW_AND_THEN, two_gpus(a=1, b=1)))]))
    for text in ("GPUs held (of 2)", "Jobs waiting", "a", "b", "a 1", "b 1", "minutes since the first submit"):
        assert text in found


def test_two_stories_are_drawn_to_one_scale(tmp_path: Path) -> None:
    now = two_gpus(a=1, b=1)
    stories = [(title, story(tmp_path, NOW_AND_THEN, on)) for title, on in (("Now", now), ("Then <&", cluster.changed(now, [])))]
    found = texts(chart.draw(stories))
    assert found.count("minutes since the first submit") == 2
    assert "Then <&" in found


def test_a_long_story_is_drawn_as_means_and_no_gpu_time_is_lost(tmp_path: Path) -> None:
    lines = "".join(f"{i * 10},7,{1 + i % 2},a\n" for i in range(600))
    told = story(tmp_path, "submit,duration,gpus,project\n" + lines, two_gpus(a=2))
    bands = (chart.Band("a", "#000000", (0,)),)
    steps = chart._steps(told, bands)
    assert len(told.samples) > len(steps) == chart.BINS
    assert sum(step.held[0] * (step.end_ms - step.begin_ms) for step in steps) == pytest.approx(told.served["a"])


def test_projects_beyond_the_colours_are_drawn_together(tmp_path: Path) -> None:
    text = "submit,duration,gpus,project\n" + "".join(f"0,{10 + i},1,p{i:02}\n" for i in range(12))
    on = cluster.with_projects_of(two_gpus(), trace.read_jobs(written(tmp_path, text)))
    found = texts(chart.draw([("", play(on, trace.read_jobs(written(tmp_path, text)), rules()))]))
    assert "5 others" in found
    assert "p11" in found
    assert "p00" not in found


def test_only_svg_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--jobs", written(tmp_path, NOW_AND_THEN), "--chart", "x.png") == 2
    assert "charts are SVG" in capsys.readouterr().err


# --- reading ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("90", 90_000), ("1.5", 1500), ("2h30m", 9_000_000), ("1:30:00", 5_400_000), ("1-12:00:00", 129_600_000), ("90s", 90_000)],
)
def test_durations_are_read_as_people_write_them(text: str, milliseconds: int) -> None:
    assert trace.duration_ms(text) == milliseconds


def test_other_names_separators_and_units_are_understood(tmp_path: Path) -> None:
    headings = "Job ID;Submit Time;Elapsed_min;num_gpu;gpu_milli;Account;Type"
    text = f"\ufeff# from the old queue\n{headings}\n7;2026-03-02T09:00:00Z;1.5;2;500;a;Notebook\n"
    jobs = trace.read_jobs(written(tmp_path, text))
    assert [(j.name, j.submit_ms, j.duration_ms, j.project, j.kind, j.preemptible) for j in jobs] == [
        ("7", 0, 90_000, "a", Kind.INTERACTIVE, False)
    ]
    assert jobs[0].request.gpu == GpuRequest(millis=500, devices=2)


def test_a_start_and_an_end_say_how_long(tmp_path: Path) -> None:
    text = "creation_time,scheduled_time,deletion_time,gpus,project\n100,150,200,1,a\n40,50,70,0,a\n"
    assert [(job.submit_ms, job.duration_ms) for job in trace.read_jobs(written(tmp_path, text))] == [(0, 20_000), (60_000, 50_000)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "submit,duration,gpus,project\n0,10,1,a\n0,10,1.5,a\n",
            r"line 3, column gpus: '1.5' is not a number of GPUs: whole, or a fraction",
        ),
        ("submit,duration,gpus,project\n0,long,1,a\n", r"line 2, column duration: 'long' is not a duration: seconds, or such as 90s"),
        ("time,duration,gpus,team\nnoon,10,1,a\n", r"line 2, column time: 'noon' is not a time: seconds, or a date"),
        ("submit,duration,gpus,project\n0,-5,1,a\n", r"line 2, column duration: '-5' is not a duration"),
        ("submit,duration,gpus,project\n0,10,1,\n", r"line 2, column project: it is empty; expected is the name of a project"),
        ("submit,duration,gpus,project\n0,10,,a\n", r"line 2, column gpus: it is empty; expected is a number of GPUs"),
        ("submit,duration,gpus,project,kind\n0,10,1,a,magic\n", r"line 2, column kind: 'magic' is not a kind: train, interactive"),
        ("submit,duration,gpus,project,pods\n0,10,1,a,0\n", r"line 2, column pods: '0' is not a whole number from 1"),
        ("submit,duration,gpu_millis,project\n0,10,1500,a\n", r"line 2, column gpu_millis: 1500 is not whole GPUs"),
        (
            "submit,duration,gpus,project\n0,10,1,a\n2026-03-02,10,1,a\n",
            r"line 3, column submit: '2026-03-02' is not a number as the lines",
        ),
        ("submit,duration,gpus\n0,10,1\n", r"has no column project \(or team, group"),
        ("submit,gpus,project\n0,1,a\n", r"has no column duration"),
        ("submit,duration,project\n0,1,a\n", r"has no column gpus"),
        ("submit,time,duration,gpus,project\n0,0,1,1,a\n", r"two columns for submit: submit and time"),
        ("submit,duration,gpus,project\n0,10,1,a,b\n", r"line 2, has 5 values, and the first line names 4 columns"),
        ("submit,duration,gpus,project\n", r"has no jobs"),
        ("", r"is empty"),
    ],
)
def test_a_line_that_cannot_be_read_is_named_with_what_is_expected(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        trace.read_jobs(written(tmp_path, text))


def test_a_gpu_model_no_node_has_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"line 2: GPU model H100 is on no node; the nodes have T4"):
        played(tmp_path, "submit,duration,gpus,project,gpu_model\n0,1,1,a,H100\n", two_gpus(a=1))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.csv", "project,gpu_quota,weight,department\na,4,2,d\nb,unlimited,,\n"),
        ("p.json", '[{"name": "a", "quota": 4, "weight": 2, "department": "d"}, {"name": "b", "quota": "unlimited"}]'),
        ("p.json", '{"items": [{"name": "a", "gpu_quota_millis": 4000, "gpu_over_quota_weight": 2000, "department": "d"}, '
         '{"name": "b", "gpu_quota_millis": null}]}'),
        ("p.yaml", "projects:\n  a: {quota: 4, weight: 2, department: d}\n  b: unlimited\ndepartments:\n  d: 6\n"),
    ],
)  # fmt: skip
def test_projects_are_read_from_every_form(tmp_path: Path, name: str, text: str) -> None:
    projects, departments = cluster.read_projects(written(tmp_path, text, name))
    assert [(p.name, p.gpu.quota, p.weight, p.department) for p in projects] == [("a", 4000, 2000, "d"), ("b", None, None, None)]
    assert [department.name for department in departments] == ["d"]


def test_nodes_may_be_a_file(tmp_path: Path) -> None:
    nodes = cluster.read_nodes(written(tmp_path, "name,gpus,gpu_model,cpu_millis\nx,8,A100,64000\ny,0,,\n", "nodes.csv"))
    assert [(node.name, node.gpus, node.node_type, node.cpu_millis) for node in nodes] == [("x", 8, "A100", 64000), ("y", 0, None, 1 << 40)]


def test_times_are_said_in_words() -> None:
    assert [duration_words(seconds) for seconds in (None, 12, 65, 7500, 273_600)] == ["-", "12s", "1m 05s", "2h 05m", "3d 04h"]


# --- the documentation -----------------------------------------------------------------------------------------------------------------


def test_the_documented_example_says_what_the_page_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page, picture, drawn = ROOT / "docs/what-if.md", ROOT / "docs/what-if/chart.svg", tmp_path / "chart.svg"
    before, command, between, shown, after = re.split(r"^```(?:text)?\n", page.read_text(), maxsplit=4, flags=re.MULTILINE)
    words = shlex.split(command.replace("\\\n", " ").replace("docs/what-if/chart.svg", str(drawn)))
    monkeypatch.chdir(ROOT)
    assert words[:2] == ["hotdesk-scheduler", "simulate"]
    assert simulate(*words[2:]) == 0
    said = capsys.readouterr().out
    if WRITE:
        page.write_text(f"{before}```\n{command}```\n{between}```text\n{said}```\n{after}")
        picture.write_text(drawn.read_text())
    assert (said, drawn.read_text()) == (shown, picture.read_text())
