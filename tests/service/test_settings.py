"""Settings: a flag beats a variable beats the default; every one is documented."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import pytest
from hotdesk_api.errors import Invalid
from hotdesk_scheduler import cli, serve, settings
from hotdesk_scheduler.settings import Settings, load, parse_seed_projects

DOCUMENT = Path(settings.__file__).parents[1] / "settings.md"


def loaded(flags: list[str], environment: dict[str, str] | None = None) -> Settings:
    parser = argparse.ArgumentParser()
    settings.add_arguments(parser)
    return load(parser.parse_args(flags), environment or {})


def test_a_flag_beats_a_variable_beats_the_default() -> None:
    assert loaded([]).grace_s == 30
    assert loaded([], {"HOTDESK_GRACE_S": "7"}).grace_s == 7
    assert loaded(["--grace-s", "2m"], {"HOTDESK_GRACE_S": "7"}).grace_s == 120


def test_the_hubs_variables_are_read() -> None:
    found = loaded([], {"JUPYTERHUB_API_URL": "http://h/hub/api", "JUPYTERHUB_API_TOKEN": "t", "JUPYTERHUB_SERVICE_PREFIX": "/services/x/"})
    assert (found.hub_api_url, found.hub_token, found.service_prefix) == ("http://h/hub/api", "t", "/services/x/")


def test_the_services_own_token_is_never_a_flag() -> None:
    parser = argparse.ArgumentParser()
    settings.add_arguments(parser)
    assert "token" not in {action.dest for action in parser._actions if action.dest != "tokens_file"}
    assert "--hub-token" not in parser.format_help()


@pytest.mark.parametrize("flags", [["--grace-s", "soon"], ["--grace-s", "nan"], ["--tick-s", "-1"], ["--port", "x"]])
def test_a_value_that_cannot_be_read_names_its_flag(flags: list[str]) -> None:
    with pytest.raises(Invalid, match=flags[0]):
        loaded(flags)


def test_seed_projects_are_names_and_quotas() -> None:
    assert parse_seed_projects("team-a=4, team-b=0.5,team-c=unlimited") == [("team-a", 4000), ("team-b", 500), ("team-c", None)]
    with pytest.raises(Invalid):
        parse_seed_projects("team-a=many")


def test_every_setting_is_in_the_documentation_and_nothing_else_is() -> None:
    rows = [
        [cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")
    ]
    wanted = {
        settings.variable_of(item.name): ("" if item.name in settings.NO_FLAG else settings.flag_of(item.name), item.metadata["help"])
        for item in fields(Settings)
    }
    assert {variable: (flag, text) for variable, flag, _, text in rows} == wanted


def test_serve_without_anybody_who_knows_callers_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["serve", "--state", str(tmp_path / "state"), "--simulate", "1x1xV100-SXM2-32GB"]) == 2
    assert "--tokens" in capsys.readouterr().err


def test_several_schedulers_take_the_key_of_report_tokens_from_one_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("x" * 40)
    first, second = (serve.report_key(tmp_path / name, file) for name in ("one", "two"))
    assert first == second
    file.write_text("short")
    with pytest.raises(Invalid, match="at least 32"):
        serve.report_key(tmp_path / "one", file)
