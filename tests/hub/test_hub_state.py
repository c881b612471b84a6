"""The state directory: private, its secrets made once, its ports kept unless somebody else took one."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hotdesk_api.errors import Invalid, Unavailable
from hotdesk_hub import config, state
from hotdesk_hub.state import State
from jupyterhub.auth import PAMAuthenticator
from traitlets.config import Config


def prepared(root: Path) -> State:
    made = State(root / "state")
    made.prepare()
    return made


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_everything_is_private(tmp_path: Path) -> None:
    made = prepared(tmp_path)
    state.secrets_of(made)
    state.ports_of(made)
    assert {mode(made.root), mode(made.hub), mode(made.homes), mode(made.workspaces)} == {0o700}
    assert mode(made.hub / "secrets.json") == 0o600


def test_passwords_are_generated_once_and_long(tmp_path: Path) -> None:
    made = prepared(tmp_path)
    first = state.secrets_of(made)
    assert state.secrets_of(made) == first
    assert all(len(secret) >= 32 for secret in first.values())
    assert len(set(first.values())) == len(first)


def test_ports_are_kept_and_one_that_was_taken_is_changed_alone(tmp_path: Path) -> None:
    made = prepared(tmp_path)
    ports = state.ports_of(made)
    assert state.ports_of(made) == ports
    assert all(port < 32768 for port in ports.values()), "outside the range of outgoing connections"
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", ports["scheduler"]))
        stranger.listen()
        assert not state.is_free(ports["scheduler"])
        new = state.change_port(made, "scheduler")
    assert new != ports["scheduler"]
    assert state.ports_of(made) == ports | {"scheduler": new}


def test_a_state_directory_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(Unavailable, match=r"The state directory .*state cannot be used"):
        prepared(tmp_path)


def test_damaged_secrets_are_named_not_replaced(tmp_path: Path) -> None:
    made = prepared(tmp_path)
    (made.hub / "secrets.json").write_text("{")
    with pytest.raises(Unavailable, match=r"secrets.json cannot be read"):
        state.secrets_of(made)


def test_own_configuration_is_run_after_ours_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = prepared(tmp_path)
    (made.extra_configuration / "20.py").write_text("c['said'].append(20)")
    (made.extra_configuration / "10.py").write_text("c['said'].append(10)")
    (tmp_path / "last.py").write_text("get_config()['said'].append('last')")
    monkeypatch.setenv("HOTDESK_HUB_CONFIG", str(tmp_path / "last.py"))
    c: dict[str, list[object]] = {"said": []}
    for path in config.own_files(made):
        config.run_own_file(path, c)
    assert c["said"] == [10, 20, "last"]


def test_a_wrong_own_configuration_is_named(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("c.JupyterHub.nothing = undefined")
    with pytest.raises(Invalid, match=r"wrong.py failed: NameError"):
        config.run_own_file(wrong, None)


def test_a_first_start_that_was_interrupted_does_not_lose_the_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = prepared(tmp_path)
    monkeypatch.setenv("HOTDESK_STATE", str(made.root))
    monkeypatch.setattr(config, "find_proxy", lambda: ["proxy"])
    made.database.touch()  # it came as far as this
    interrupted = Config()
    config.configure(interrupted)
    assert interrupted.JupyterHub.load_groups["team-a"] == {"users": ["alice", "demo"]}
    made.passwords_shown.touch()
    later = Config()
    config.configure(later)
    assert "load_groups" not in later.JupyterHub, "the members are the admin's now"


def test_the_readmes_example_lets_everybody_of_the_system_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = prepared(tmp_path)
    monkeypatch.setenv("HOTDESK_STATE", str(made.root))
    monkeypatch.setattr(config, "find_proxy", lambda: ["proxy"])
    readme = (Path(__file__).parents[2] / "hub" / "README.md").read_text()
    (made.extra_configuration / "pam.py").write_text("\n".join(line[4:] for line in readme.splitlines() if line.startswith("    c.")))
    c = Config()
    config.configure(c)
    assert c.JupyterHub.authenticator_class == "pam"
    assert c.Authenticator.allow_all is True
    assert [role["users"] for role in c.JupyterHub.load_roles if role["name"] == "hotdesk-admin"] == [["carla"]]
    pam = PAMAuthenticator(config=c)
    assert pam.check_allowed("erin")
