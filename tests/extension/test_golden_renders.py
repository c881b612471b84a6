"""The same views in all three media, compared with kept files. After an intended change: `HOTDESK_GOLDEN=write pytest tests/extension`."""

from __future__ import annotations

import io
import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hotdesk.render import cluster, html, jobs, plain, terminal, why
from hotdesk.render.view import Table, View
from hotdesk_api.models import (
    DepartmentOut,
    DeviceOut,
    Displaced,
    EventOut,
    Explanation,
    NodeOut,
    PodOut,
    ProjectOut,
    ReasonOut,
    WorkloadDetail,
    WorkloadOut,
    WorkloadSpec,
)
from rich.console import Console

GOLDEN = Path(__file__).parent / "golden"
WRITE = os.environ.get("HOTDESK_GOLDEN") == "write"  # read at import: the tests themselves see no HOTDESK_ variables
NOON = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
NOW = NOON.timestamp() + 11
QUICKSTART = "gcr.io/run-ai-demo/quickstart"
WAITS = ReasonOut(
    code="no_free_block", sentence="No node has 2 free GPUs: dgx1-1 and dgx1-2 have 0 <free>. It starts when two become free."
)


def device(index: int, allocated: int) -> DeviceOut:
    return DeviceOut(
        index=index,
        uuid=f"GPU-SIM-{index}",
        model="V100-SXM2-32GB",
        memory_mib=32768,
        simulated=True,
        allocated_millis=allocated,
        shared=0 < allocated < 1000,
        utilisation_percent=97.0 if allocated else 0.0,
        memory_used_mib=15525 if allocated else 0,
    )


def workload(name: str, **changes: object) -> WorkloadOut:
    fields: dict[str, object] = {
        "id": f"id-{name}",
        "name": name,
        "project": "team-a",
        "user": "alice",
        "kind": "train",
        "type": "Train",
        "status": "Running",
        "created_at": NOON,
        "started_at": NOON,
        "image": QUICKSTART,
        "priority": 50,
        "preemptible": True,
        "gpu_millis_requested": 1000,
        "gpu_millis_allocated": 1000,
        "cpu_millis": 1000,
        "memory_mib": 1000,
        "nodes": ["dgx1-1"],
        "running_pods": 1,
        "simulated": True,
        "created_by_cli": True,
    }
    return WorkloadOut.model_validate(fields | changes)


WAITING: dict[str, object] = {
    "status": "Pending",
    "started_at": None,
    "nodes": [],
    "running_pods": 0,
    "pending_pods": 1,
    "gpu_millis_allocated": 0,
}
LIST = [
    workload("hyper1", progress=0.42),
    workload("b-5-gg", project="team-b", gpu_millis_requested=2000, reason=WAITS, queue_position=1, **WAITING),
    workload("frac05", kind="interactive", type="Interactive", gpu_millis_requested=500, gpu_millis_allocated=500),
    workload(
        "two",
        nodes=["dgx1-1", "dgx1-2"],
        gpu_memory_mib_requested=5120,
        service_urls=["http://127.0.0.1:8000/team-a/two", "https://127.0.0.1/team-a/two"],
    ),
    workload(
        "failed", status="Failed", finished_at=NOON, gpu_millis_allocated=0, reason=ReasonOut(code="exited", sentence="It ended with 3.")
    ),
]
PODS = [PodOut(name="hyper1-0", index=0, status="Running", node="dgx1-1", gpu_millis=500, devices=[device(0, 500)], started_at=NOON)]
DETAIL = WorkloadDetail.model_validate(
    LIST[2].model_dump()
    | {"spec": WorkloadSpec(project="team-a", image=QUICKSTART, command_line="runai submit frac05 -g 0.5").model_dump(), "pods": PODS}
)
EVENTS = [EventOut(at=NOON, reason="Scheduled", message="Pod frac05-0 starts on dgx1-1.")]
WHY = Explanation(
    sentence=WAITS.sentence,
    starts_now=False,
    reason=WAITS,
    queue_position=1,
    quota_millis=2000,
    fair_share_millis=2500,
    used_millis=2000,
    asked_millis=1000,
    would_stop=[Displaced(name="b-4-gg", project="team-b", reason=ReasonOut(code="reclaimed", sentence="Reclaimed by project team-a."))],
    would_move=[
        Displaced(
            name="b-5-gg",
            project="team-b",
            reason=ReasonOut(code="moved", sentence="Moved.", numbers={"from": "dgx1-1", "to": "dgx1-2"}),
        )
    ],
    what_would_help="Ask for 1 GPU.",
    left_s=25,
    queue_length=3,
    held_by={"team-b": 4000, "team-a": 2000},
    stopped=ReasonOut(code="reclaimed", sentence="Reclaimed by project team-b for b-4-gg."),
)
WAITS_DETAIL = WorkloadDetail.model_validate(LIST[1].model_dump() | {"spec": DETAIL.spec, "pods": []})
NODE = NodeOut(
    name="dgx1-1",
    status="Ready",
    address="127.0.0.1",
    gpus=2,
    gpu_model="V100-SXM2-32GB",
    gpu_memory_mib=32768,
    gpu_millis_allocated=500,
    gpus_free=1,
    cpu_millis=80000,
    cpu_millis_allocated=500,
    memory_mib=524288,
    memory_mib_allocated=128,
    simulated=True,
    devices=[device(0, 500), device(1, 0)],
)
PROJECTS = [
    ProjectOut(name="team-a", gpu_quota_millis=4000, gpu_limit_millis=None, gpu_millis_allocated=2500, created_at=NOON),
    ProjectOut(name="team-b", gpu_quota_millis=2000, gpu_limit_millis=6000, gpu_millis_allocated=4000, pending=1, created_at=NOON),
    ProjectOut(name="open", gpu_quota_millis=None, gpu_limit_millis=None, gpu_millis_allocated=0, created_at=NOON),
]
DEPARTMENTS = [
    DepartmentOut(
        name="research",
        projects=["team-a", "team-b"],
        gpu_quota_millis=6000,
        gpu_limit_millis=8000,
        gpu_over_quota_weight=1500,
        priority=2,
        gpu_millis_allocated=6500,
        fair_share_millis=6000,
        running=3,
        pending=1,
        created_at=NOON,
    ),
    DepartmentOut(name="empty", gpu_quota_millis=0, gpu_limit_millis=None, gpu_millis_allocated=0, over_quota=False, created_at=NOON),
]
VIEWS: dict[str, View] = {
    "list": jobs.job_list(LIST, project="team-a", now=NOW),
    "list-all": jobs.job_list(LIST, project=None, now=NOW),
    "list-wide": jobs.job_list(LIST, project="team-a", now=NOW, wide=True),
    "list-empty": jobs.job_list([], project="team-a", now=NOW),
    "describe": jobs.describe(DETAIL, EVENTS, now=NOW),
    "describe-waiting": jobs.describe(WAITS_DETAIL, EVENTS, now=NOW, answer=WHY),
    "describe-again": jobs.describe(DETAIL, EVENTS, now=NOW, answer=WHY.model_copy(update={"starts_now": None})),
    "why": why.explanation(WHY),
    "card": jobs.card(LIST[0], now=NOW, last_line="step 3/10 <loss> 0.5"),
    "top-job": jobs.top([DETAIL], now=NOW),
    "nodes": cluster.node_list([NODE]),
    "describe-node": cluster.node_details([NODE]),
    "top-node": cluster.top_node([NODE], details=True),
    "projects": cluster.project_list(PROJECTS, current="team-a", wide=True),
    "departments": cluster.department_list(DEPARTMENTS, wide=True),
}


def _in_terminal(view: View, width: int = 220) -> str:
    console = Console(
        file=io.StringIO(), width=width, force_terminal=True, color_system="standard", highlight=False, markup=False, _environ={}
    )
    console.print(terminal.whole(view), crop=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


MEDIA = {"html": html.whole, "ansi": _in_terminal, "txt": plain.whole}


@pytest.mark.parametrize("medium", MEDIA)
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_looks_as_kept(name: str, medium: str) -> None:
    shown = MEDIA[medium](VIEWS[name])
    file = GOLDEN / f"{name}.{medium}"
    if WRITE:
        file.write_text(shown)
    assert shown == file.read_text()


def test_html_escapes_what_comes_from_outside() -> None:
    shown = html.whole(VIEWS["list"]) + html.whole(VIEWS["card"])
    assert "<free>" not in shown
    assert "&lt;free&gt;" in shown
    assert "&lt;loss&gt;" in shown
    assert html.error("<b>", "<i>").count("&lt;") == 2


def test_what_a_job_reports_cannot_steer_a_terminal() -> None:
    evil = jobs.job_list([workload("evil", status="Failed", message="\x1b]0;title\x07\x1b[2Jgone")], project="team-a", now=NOW, wide=True)
    assert "\x1b" not in plain.whole(evil)
    assert "\x1b[2J" not in _in_terminal(evil)
    assert "gone" in _in_terminal(evil)


def _text_in_terminal(view: View, width: int) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", _in_terminal(view, width)).splitlines()


def test_a_long_table_at_a_terminal_has_the_same_columns_and_is_not_cut() -> None:
    many = [workload(f"job-{n:03}", image="registry/" + "x" * 300) for n in range(100)]
    shown = _text_in_terminal(jobs.job_list(many, project="team-a", now=NOW), 220)
    assert shown[0] == "Showing jobs for project team-a"
    first, last = (next(line for line in shown if name in line) for name in ("job-000", "job-099"))
    assert first.index("Running") == last.index("Running")
    assert sum("x" * 300 in line for line in shown) == 100


def test_at_80_columns_nothing_is_cut_and_no_name_is_broken() -> None:
    image = "registry.example.org/vision/lane-detection:3.1"
    listed = [workload("a-1-1-jupyter", type="Interactive", status="ContainerCreating", image=image), *LIST]
    for wide, project in ((False, "team-a"), (False, None), (True, "team-a")):
        lines = _text_in_terminal(jobs.job_list(listed, project=project, now=NOW, wide=wide), 80)
        assert max(map(len, lines)) <= 80, "\n".join(lines)
        for whole in (image, QUICKSTART, "a-1-1-jupyter", "ContainerCreating", "<multiple>", "http://127.0.0.1:8000/team-a/two"):
            assert any(whole in line for line in lines), (whole, "\n".join(lines))
    lines = _text_in_terminal(VIEWS["list"], 80)
    assert lines[1].split() == ["NAME", "STATUS", "AGE", "NODE", "TYPE", "PROJECT", "USER", "GPUs"]
    assert lines[3] == f"    IMAGE {QUICKSTART}", "below its row, named"


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("width", [60, 80, 100, 132])
def test_every_word_of_a_table_is_whole_at_every_width(name: str, width: int) -> None:
    cells = [cell for block in VIEWS[name].blocks if isinstance(block, Table) for row in block.rows for cell in row]
    shown = "\n".join(_text_in_terminal(VIEWS[name], width))
    assert not [word for cell in cells for word in cell.text.split() if word not in shown]


def test_simulated_gpus_are_marked_in_every_medium() -> None:
    for name in ("list", "describe", "nodes", "describe-node", "top-node", "top-job", "card"):
        for medium, render in MEDIA.items():
            assert "SIMULATED" in render(VIEWS[name]), (name, medium)


def test_of_a_cluster_that_is_only_partly_simulated_not_all_is_said_to_be() -> None:
    mixed = [LIST[0], LIST[2].model_copy(update={"simulated": False})]
    assert "The GPUs of some of these jobs are not real." in plain.whole(jobs.job_list(mixed, project="team-a", now=NOW))


def test_the_reason_of_what_waits_is_in_the_notebooks_table_and_in_wide() -> None:
    assert "No node has 2 free GPUs" in html.whole(VIEWS["list"])
    assert "No node has 2 free GPUs" in plain.whole(VIEWS["list-wide"])


def test_what_a_running_job_reports_is_its_progress_and_no_reason() -> None:
    running = workload("hyper1", progress=0.08, message="step 276 of 3600")
    detail = WorkloadDetail.model_validate(running.model_dump() | {"spec": DETAIL.spec, "pods": PODS})
    described = plain.body(jobs.describe(detail, EVENTS, now=NOW))
    assert re.search(r"^PROGRESS: +8% step 276 of 3600$", described, re.MULTILINE)
    assert "REASON" not in described
    head, row = plain.body(jobs.job_list([running], project="team-a", now=NOW, wide=True)).splitlines()
    assert row[head.index("PROGRESS") :].startswith("8% step 276 of 3600")
    assert row[head.index("REASON") :] == "-"


def test_a_reason_in_a_notebook_has_the_whole_width_of_its_row() -> None:
    columns = len(VIEWS["list"].blocks[0].columns)  # type: ignore[union-attr]  # a table
    shown = html.whole(VIEWS["list"])
    assert re.search(rf'<tr><td colspan="{columns}"[^>]*><div class="hotdesk-note"[^>]*>1\. in the queue: No node has 2 free GPUs', shown)
    assert html.whole(VIEWS["list-wide"]).count("No node has 2 free GPUs") == 1, "wide has a column for it"


def test_a_url_becomes_a_link_and_nothing_else_does() -> None:
    shown = html.whole(VIEWS["list"])
    assert shown.count("<a href=") == 2
    assert 'href="http://127.0.0.1:8000/team-a/two"' in shown


def test_columns_are_those_of_the_documentation() -> None:
    assert plain.body(VIEWS["list"]).split("\n")[0].split("  ")[0] == "NAME"
    head = " ".join(plain.body(VIEWS["list-all"]).split("\n")[0].split())
    assert head == "NAME STATUS AGE NODE IMAGE TYPE PROJECT USER GPUs CREATED BY CLI SERVICE URL(S)"
    wide = " ".join(plain.body(VIEWS["list-wide"]).split("\n")[0].split())
    assert "GPUs Allocated (Requested) PODs Running (Pending)" in wide


def test_where_there_is_no_list_of_images_it_says_so_instead_of_showing_an_empty_table() -> None:
    shown = plain.whole(cluster.image_list(()))
    assert "any image that its nodes can pull will do" in shown
