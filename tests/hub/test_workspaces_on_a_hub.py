"""Workspaces on a real hub: they wait for their share, show why, start with it, and give it back. JupyterHub 5.5 and 6.x alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hotdesk_up import RunningHotdesk
from people import Person, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.hub_versions, pytest.mark.xdist_group("workspaces")]
LogIn = Callable[[str], Person]


def test_a_workspace_runs_on_its_share_and_gives_it_back(person: LogIn) -> None:
    alice = person("alice")
    alice.open(project="team-a", gpu="0.5")
    lab = alice.http.get("/user/alice/lab").text
    assert '"news": {"disabled": true}' in lab, "Lab asks nobody outside"
    assert '"@jupyterlab/apputils-extension:announcements"' in lab, "nor its user whether it may"
    shown = alice.workloads()["workspace-alice"]
    assert (shown.type, shown.status, shown.gpu_millis_allocated, shown.simulated) == ("Interactive", "Running", 500, True)
    alice.close()
    wait_for(lambda: "workspace-alice" not in alice.workloads(), "the share's return")


def test_while_it_waits_the_page_shows_place_and_reason_and_it_starts_when_it_can(person: LogIn) -> None:
    bob = person("bob")  # team-b has 2 GPUs
    bob.open(project="team-b", gpu="2")
    assert bob.ask("second", project="team-b", gpu="1").status_code in {201, 202}
    page = bob.watch("second")
    assert len(page.says("Number 1 in the queue. ")) > len("Number 1 in the queue. "), "and why"
    page.says("Asking for 1 GPU of team-b")
    wait_for(lambda: ["GPUs held by", "team-b (2 GPUs)"] in page.events[-1].get("hotdesk", {}).get("numbers", []), "its numbers")
    pending = bob.browse().get("/hub/spawn-pending/bob/second").text
    assert "hd-cancel" in pending, "JupyterHub 5 has no button of its own"
    assert "/hub/api/users/bob/servers/second" in pending
    again = bob.watch("second")
    again.says("Asking for 1 GPU of team-b")  # who comes back sees all of it
    bob.close()
    page.says("Placed on")
    wait_for(lambda: bob.is_ready("second"), "the second workspace")
    wait_for(lambda: page.events[-1].get("ready"), "the stream's end")


def test_cancelling_while_it_waits_gives_up_the_place(person: LogIn) -> None:
    bob = person("bob")
    bob.open(project="team-b", gpu="2")
    bob.ask("second", project="team-b", gpu="1")
    wait_for(lambda: bob.status("workspace-bob-second") == "Pending", "its place in the queue")
    page = bob.watch("second")
    page.says("Number 1 in the queue")
    bob.close("second")
    wait_for(lambda: page.events[-1].get("failed"), "the stream's end")
    assert not any(event.get("ready") for event in page.events), "another browser that looks on is not sent to a server that never was"
    wait_for(lambda: bob.status("workspace-bob-second") is None, "the end of its place")
    bob.ask("second", project="team-b", gpu="0")  # and it can be asked for again, otherwise
    wait_for(lambda: bob.is_ready("second"), "the workspace without a GPU")


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"project": "team-b"}, "team-b is not a project of yours. Choose one of team-a."),
        ({"gpu": "1.5"}, "above one GPU only whole numbers can be asked for"),
        ({"gpu": "99"}, "No node has 99 GPUs"),
        ({"colour": "red"}, "A workspace has no option colour"),
    ],
)
def test_a_refusal_is_a_sentence_with_what_would_work(person: LogIn, wish: dict[str, str], sentence: str) -> None:
    alice = person("alice")
    answer = alice.ask(**{"project": "team-a", **wish})
    if answer.status_code >= 400:
        assert sentence in answer.json()["message"]
    else:
        assert sentence in alice.watch().says(sentence)
    wait_for(lambda: not alice.servers(), "the refused server's end")
    assert not alice.workloads()
    page = alice.browse().get("/hub/spawn-pending/alice")
    assert sentence in page.text.replace("&#39;", "'")


def test_a_refused_form_comes_back_as_it_was_filled_in(person: LogIn) -> None:
    """Also after a failed start: the hub makes a new spawner then, another one than answered."""
    alice = person("alice")
    alice.ask(project="team-a", gpu="99")
    wait_for(lambda: not alice.servers(), "the refused server's end")
    browser = alice.browse()
    fields = {"project": "team-a", "gpu_mode": "memory", "gpu_memory": "plenty", "cpu": "2", "preemptible": "on"}
    page = browser.post("/hub/spawn/alice", data=fields | {"_xsrf": browser.cookies.get("_xsrf", path="/hub/") or ""}).text
    assert "GPU memory plenty" in page
    for kept in (
        'value="plenty"',
        'id="hd-kind-memory" value="memory" checked',
        'placeholder="as usual (for example 2 or 500m)" value="2"',
    ):
        assert kept in page
    assert 'value="plenty"' not in browser.get("/hub/spawn/alice").text, "but once only"


def test_a_wish_refused_again_and_again_is_never_said_to_be_granted(person: LogIn) -> None:
    alice = person("alice")
    answers = [alice.ask(project="team-a", gpu="nan") for _ in range(3)]
    assert 201 not in [answer.status_code for answer in answers]
    assert any("GPU nan is not a number of GPUs" in answer.text for answer in answers)


def test_inside_the_share_is_seen_and_runai_is_loaded_beside_ones_own_profile(person: LogIn, state: Path) -> None:
    profile = state / "homes" / "alice" / ".ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_config.py").write_text("c.InteractiveShellApp.exec_lines = ['own = 42']\n")
    alice = person("alice")
    alice.open(project="team-a", gpu="0.5")
    kernel = alice.kernel()
    try:
        assert kernel.run("own").text == "42"
        assert kernel.run("get_ipython().find_line_magic('runai') is not None").text == "True"
        assert kernel.run("!nvidia-smi").text.count("16384MiB") >= 1
        shown = kernel.run("import os; print(os.environ['HOTDESK_PROJECT'], os.environ['RUNAI_NUM_OF_GPUS'], os.getcwd())").text.split()
        assert shown == ["team-a", "0.5", str(state / "homes" / "alice")]
    finally:
        kernel.close()


def test_who_had_to_give_way_reads_why(person: LogIn) -> None:
    carol, bob = person("carol"), person("bob")  # both teams have a quota of 2; the node has 4
    carol.open(project="team-c", gpu="4", preemptible=True)
    bob.open(project="team-b", gpu="2")
    wait_for(lambda: not carol.servers(), "the end of what was over quota")
    page = carol.browse().get("/hub/spawn-pending/carol").text
    assert 'id="hd-why"' in page
    assert "team-" in page.partition('id="hd-why"')[2].partition("</p>")[0]


def test_a_workspace_that_dies_gives_its_share_back(person: LogIn, state: Path) -> None:
    import json
    import os
    import signal

    alice = person("alice")
    alice.open(project="team-a", gpu="1")
    os.kill(json.loads((state / "hub" / "workspaces" / "workspace-alice.json").read_text())["pid"], signal.SIGKILL)
    wait_for(lambda: alice.workloads().get("workspace-alice", None) is None or alice.status("workspace-alice") == "Failed", "the report")
    assert sum(item.gpu_millis_allocated for item in alice.workloads().values()) == 0
    alice.open(project="team-a", gpu="0.5")
    assert alice.status("workspace-alice") == "Running"


def test_the_form_shows_live_numbers_of_ones_own_projects_only(person: LogIn, hub: RunningHotdesk) -> None:
    alice = person("alice")
    page = alice.browse().get("/hub/spawn/alice")
    assert "team-a — quota 4, used 0, free 4" in page.text
    assert "team-b" not in page.text
    asked = {"project": "team-a", "gpu_mode": "fraction", "gpu_fraction": "0.5"}
    plan = alice.browse().get("/hub/hotdesk/explain", params=asked).json()
    assert plan["starts_now"] is True
    assert plan["numbers"]["free"] == "4"
    assert "not a project of yours" in alice.browse().get("/hub/hotdesk/explain", params=asked | {"project": "team-b"}).json()["problem"]
    assert alice.browse().get("/hub/hotdesk/explain", params=asked | {"user": "bob"}).status_code == 404
    admin = person("admin")
    assert admin.browse().get("/hub/hotdesk/explain", params=asked | {"user": "alice"}).json()["starts_now"] is True
    waits = alice.browse().get("/hub/hotdesk/explain", params={"project": "team-a", "gpu_mode": "whole", "gpus": "99"}).json()
    assert "99" in waits["problem"]


def test_a_notebooks_token_does_workloads_and_nothing_else(person: LogIn) -> None:
    alice = person("alice")
    alice.open(project="team-a", gpu="0")
    kernel = alice.kernel()
    try:
        token = kernel.run("import os; print(os.environ['JUPYTERHUB_API_TOKEN'], os.environ['HOTDESK_API_URL'])").text.split()[0]
    finally:
        kernel.close()
    headers = {"Authorization": f"token {token}"}

    def hub_says(method: str, path: str) -> int:
        return alice.http.request(method, f"/hub/api{path}", headers=headers, json={} if method == "POST" else None).status_code

    assert hub_says("GET", "/user") == 200
    for method, path in [
        ("POST", "/users/alice/servers/another"),
        ("DELETE", "/users/alice/server"),
        ("POST", "/users/alice/tokens"),
        ("GET", "/users/alice/tokens"),
        ("GET", "/users"),
        ("GET", "/users/bob"),
        ("POST", "/users/bob/server"),
        ("GET", "/groups"),
        ("GET", "/proxy"),
        ("POST", "/shutdown"),
    ]:
        assert hub_says(method, path) in {403, 404}, f"{method} {path}"
    scheduler = alice.http.get("/services/hotdesk/v1/workloads", headers=headers)
    assert scheduler.status_code == 200
    assert alice.http.post("/services/hotdesk/v1/projects", headers=headers, json={"name": "mine"}).status_code == 403
