"""Settings: where each comes from, that the file is private and never half written, and that tokens stay with their address."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hotdesk import settings
from hotdesk_api.errors import HotdeskError, Invalid, Unauthorized, Unavailable


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path)}


def test_flag_beats_environment_beats_file(environment: dict[str, str]) -> None:
    settings.change(environment, url="http://file", token="of-file", project="of-file")
    assert settings.load(environment).url == "http://file"
    environment |= {"HOTDESK_API_URL": "http://environment", "HOTDESK_TOKEN": "of-environment", "HOTDESK_PROJECT": "of-environment"}
    found = settings.load(environment)
    assert (found.url, found.token, found.project) == ("http://environment", "of-environment", "of-environment")
    assert (found.url_from, found.project_from) == ("HOTDESK_API_URL", "HOTDESK_PROJECT")
    found = settings.load(environment, url="http://flag", token="of-flag", project="of-flag")
    assert (found.url, found.token, found.project) == ("http://flag", "of-flag", "of-flag")


def test_in_a_workspace_the_choice_beats_the_workspaces_project(environment: dict[str, str]) -> None:
    environment |= {"JUPYTERHUB_USER": "alice", "HOTDESK_PROJECT": "team-a"}
    assert settings.load(environment).project == "team-a"
    settings.change(environment, project="team-b")
    assert settings.load(environment).project == "team-b"
    settings.change(environment, project=None)
    assert settings.load(environment).project == "team-a"


def test_a_saved_token_goes_only_to_where_it_was_saved_for(environment: dict[str, str]) -> None:
    settings.change(environment, url="http://here", token="secret")
    assert settings.load(environment).token == "secret"
    assert settings.load(environment, url="http://elsewhere").token is None
    environment["HOTDESK_API_URL"] = "http://elsewhere"
    assert settings.load(environment).token is None


def test_the_file_is_private_and_replaced_whole(environment: dict[str, str]) -> None:
    file = settings.change(environment, token="secret")
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    settings.change(environment, project="team-a")
    assert json.loads(file.read_text()) == {"token": "secret", "project": "team-a"}
    assert [path.name for path in file.parent.iterdir()] == ["config.json"]


def test_a_file_that_cannot_be_read_is_named_and_kept(environment: dict[str, str]) -> None:
    file = settings.change(environment, project="team-a")
    file.write_text("{")
    with pytest.raises(HotdeskError, match=r"config\.json"):
        settings.change(environment, project="team-b")
    assert file.read_text() == "{"


def test_without_address_or_token_the_next_step_is_told(environment: dict[str, str]) -> None:
    with pytest.raises(Unavailable, match="hotdesk login"):
        settings.load(environment).reachable()
    with pytest.raises(Unauthorized, match="no token"):
        settings.load(environment, url="http://here").reachable()


@pytest.mark.parametrize("url", ["nonsense", "http://", "http://[::1", "ftp://x", "http://x:99999"])
def test_what_is_not_an_address_is_told_before_it_is_tried(environment: dict[str, str], url: str) -> None:
    with pytest.raises(Invalid, match="not the address of a scheduler"):
        settings.load(environment, url=url, token="t").reachable()


def test_a_token_with_a_line_break_is_never_shown(environment: dict[str, str]) -> None:
    with pytest.raises(Unauthorized) as error:
        settings.load(environment, url="http://here", token="sesame\nopen").reachable()
    assert "sesame" not in str(error.value)


@pytest.mark.parametrize(
    ("environment", "image"),
    [
        ({"HOTDESK_WORKSPACE": "workspace-alice", "JUPYTER_IMAGE": "registry/lab:2"}, "registry/lab:2"),
        ({"HOTDESK_WORKSPACE": "workspace-alice"}, "python"),
        ({"JUPYTER_IMAGE": "registry/lab:2"}, "python"),
    ],
)
def test_a_cell_runs_in_the_image_of_the_workspace_that_has_one(environment: dict[str, str], image: str) -> None:
    assert settings.program_image(environment) == image
