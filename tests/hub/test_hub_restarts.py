"""What happens to workspaces when the hub, its proxy or the process in front dies: what runs goes on, what waits keeps its place."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import hotdesk_up
import httpx
import pytest
from hotdesk_hub.state import State, ports_of
from hotdesk_spawner import processes
from hotdesk_up import RunningHotdesk
from people import Person, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.hub_versions, pytest.mark.xdist_group("workspaces"), pytest.mark.timeout(400)]


def pid_in(path: Path) -> int:
    return int(json.loads(path.read_text())["pid"])


def kill_hub(state: Path, running: RunningHotdesk) -> None:
    """The hub dies without a word; `up` notices, says so and ends."""
    os.kill(pid_in(state / "hub" / "hub.process.json"), signal.SIGKILL)
    assert running.process.wait(timeout=60) == 1
    wait_for(lambda: "The hub ended unexpectedly" in running.text, "what `up` says")


def test_a_killed_hub_loses_neither_workspaces_nor_places_in_the_queue(state: Path, hub: RunningHotdesk) -> None:
    bob = Person(hub.url, "bob", hub.password("bob"))
    bob.open(project="team-b", gpu="2")
    server = pid_in(state / "hub" / "workspaces" / "workspace-bob.json")
    bob.ask("second", project="team-b", gpu="1")
    wait_for(lambda: bob.status("workspace-bob-second") == "Pending", "its place in the queue")
    place = bob.workloads()["workspace-bob-second"].id
    kill_hub(state, hub)
    assert processes.identify(server), "the workspace goes on without its hub"

    again = hotdesk_up.start(state, port=hub.port, simulate="1x4xV100-SXM2-32GB")
    assert bob.is_ready(), "the running workspace is the hub's again"
    assert bob.status("workspace-bob") == "Running"
    assert pid_in(state / "hub" / "workspaces" / "workspace-bob.json") == server
    bob.ask("second", project="team-b", gpu="1")
    bob.watch("second").says("Number 1 in the queue")
    assert bob.workloads()["workspace-bob-second"].id == place, "the same place, not a new one"

    assert again.press_ctrl_c() == 0
    assert processes.identify(server), "Ctrl-C leaves it running too"
    last = hotdesk_up.start(state, port=hub.port, simulate="1x4xV100-SXM2-32GB")
    assert bob.workloads()["workspace-bob-second"].id == place, "nor does Ctrl-C cost the place"
    bob.close()
    assert not processes.identify(server)
    bob.ask("second", project="team-b", gpu="1")
    wait_for(lambda: bob.is_ready("second"), "the workspace that waited")
    assert bob.workloads()["workspace-bob-second"].id == place

    os.kill(pid_in(state / "hub" / "proxy.process.json"), signal.SIGKILL)
    wait_for(lambda: _answers(bob) and bob.is_ready("second"), "the proxy's return")
    said = hotdesk_up.down(state)
    assert "1 workspace" in said
    assert last.process.wait(timeout=60) == 0


def _answers(person: Person) -> bool:
    try:
        return person.http.get(f"/hub/api/users/{person.user}").status_code == 200
    except httpx.HTTPError:
        return False


def test_an_inner_port_that_a_stranger_took_is_chosen_anew(state: Path) -> None:
    ports = ports_of(State(state))
    with socket.create_server(("127.0.0.1", ports["hub"])):
        running = hotdesk_up.start(state, simulate="1x4xV100-SXM2-32GB")
    assert f"Port {ports['hub']} (hub) is taken by another program" in running.text
    assert ports_of(State(state))["hub"] != ports["hub"]
    running.press_ctrl_c()


def test_down_leaves_strangers_alone(tmp_path: Path) -> None:
    """A pid file whose pid now belongs to somebody else."""
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        made = State(tmp_path / "state")
        made.prepare()
        for path in (made.hub_process, made.proxy_process, made.workspaces / "workspace-alice.json"):
            processes.save(path, processes.Identity(stranger.pid, started_at=1.0))
        assert "No hub, proxy or workspace runs" in hotdesk_up.down(made.root)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_server_that_ends_while_starting_is_reported_at_once_with_what_it_said(tmp_path: Path) -> None:
    """And the operator's own configuration has the last word."""
    own = tmp_path / "own.py"
    own.write_text("c.Spawner.cmd = ['sh', '-c', 'echo the disk is on fire; exit 3']")
    root = tmp_path / "state"
    running = hotdesk_up.start(root, simulate="1x1xV100-SXM2-32GB", environment={"HOTDESK_HUB_CONFIG": str(own)})
    try:
        alice = Person(running.url, "alice", running.password("alice"))
        alice.ask(project="team-a", gpu="0.5")
        page = alice.watch()
        page.says("ended while starting (exit code 3); the last it said: the disk is on fire")
        wait_for(lambda: sum(item.gpu_millis_allocated for item in alice.workloads().values()) == 0, "the share's return")
    finally:
        hotdesk_up.down(root)
