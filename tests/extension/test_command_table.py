"""The table holds together: every verb acts, every flag is documented, every example parses, the page and the versions are up to date."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hotdesk.commands import document
from hotdesk.commands.complete import complete
from hotdesk.commands.flags import Verb
from hotdesk.commands.parse import parse
from hotdesk.commands.perform import action_of
from hotdesk.commands.table import VERBS, flags_of
from hotdesk.commands.words import split_line
from hotdesk_api.errors import Invalid
from hotdesk_api.version import VERSION

ROOT = Path(__file__).parents[2]
NOW = [verb for verb in VERBS if not verb.later]


def _ids(verb: Verb) -> str:
    return verb.title


@pytest.mark.parametrize("verb", NOW, ids=_ids)
def test_a_verb_acts_and_its_examples_parse_to_it(verb: Verb) -> None:
    assert callable(action_of(verb))
    assert verb.examples
    for example in verb.examples:
        assert parse(split_line(example)).verb == verb


@pytest.mark.parametrize("verb", VERBS, ids=_ids)
def test_a_verb_and_its_flags_are_unambiguous_and_explained(verb: Verb) -> None:
    spellings = [spelling for flag in flags_of(verb) for spelling in flag.spellings]
    assert len(spellings) == len(set(spellings))
    text = document.verb_help(verb, word="runai")
    for flag in flags_of(verb):
        assert flag.name in text
        assert flag.help
    for path in verb.paths:
        assert " ".join(path) in text


def test_no_two_verbs_share_a_path() -> None:
    paths = [path for verb in VERBS for path in verb.paths]
    assert len(paths) == len(set(paths))


def test_the_page_of_commands_is_made_from_the_table() -> None:
    kept = (ROOT / "docs" / "commands.md").read_text()
    assert kept == document.markdown(), "run: python -m hotdesk.commands.document > docs/commands.md"
    for verb in VERBS:
        assert f"## `{verb.title}`" in kept


@pytest.mark.parametrize("words", [[], ["help"], ["-h"], ["--help"], ["-p", "team-a"]])
def test_without_a_verb_there_is_help(words: list[str]) -> None:
    assert parse(words).verb.path == ("help",)


def test_help_of_a_verb_in_both_spellings() -> None:
    assert parse(["submit", "--help"]).words == ("submit",)
    assert parse(["list", "-h"]).words == ("list", "jobs")
    assert "--gpu-memory" in document.help_for(["submit"])


def test_help_of_a_word_that_begins_several_verbs_lists_them() -> None:
    for word, verbs in (("project", ("create", "update", "delete")), ("list", ("jobs", "projects", "nodes", "images"))):
        for verb in verbs:
            assert re.search(rf"^  {word} {verb}\b.*\[flags\]", document.help_for([word]), re.MULTILINE)
    assert "config project team-a" in document.help_for(["config"])
    assert "project set = config project" in document.help_for([])


def test_what_comes_later_is_named_apart_from_what_works() -> None:
    now, _, later = document.help_for(["submit"]).partition("With a later version")
    assert "--volume" not in now
    assert "--volume" in later
    with pytest.raises(Invalid) as error:
        parse(["submit", "x", "--volum", "/a:/b"])
    assert "Did you mean --volume?" in str(error.value)
    assert "--volume" not in str(error.value).partition("Valid:")[2]
    assert not [found.text for found in complete([], "submit-", lambda kind, project: ())]


def test_every_verb_can_be_reached_by_tabs() -> None:
    for verb in NOW:
        for at in range(len(verb.path)):
            offered = [candidate.text for candidate in complete(verb.path[:at], "", lambda kind, project: ())]
            assert verb.path[at] in offered


def test_completion_asks_for_names_of_the_project_typed() -> None:
    asked = []

    def names(kind: str, project: str | None) -> list[str]:
        asked.append((kind, project))
        return ["one", "two"]

    assert [found.text for found in complete(["delete", "-p", "team-b", "one"], "", names)] == ["two"]
    assert asked == [("jobs", "team-b")]
    assert complete(["exec", "one", "--"], "l", names) == []


def test_the_version_is_the_distributions() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import hotdesk", ["httpx", "pydantic", "rich", "IPython", "tornado"]),
        ("import hotdesk.cli", ["httpx", "pydantic", "rich", "IPython", "tornado", "asyncio"]),
        ("from hotdesk import report", ["httpx", "pydantic", "rich", "IPython", "asyncio"]),
        ("import hotdesk.completion, hotdesk.names, hotdesk.commands.complete", ["httpx", "pydantic", "rich", "asyncio"]),
    ],
)
def test_what_is_started_often_loads_little(statement: str, heavy: list[str]) -> None:
    code = f"import sys; {statement}; print(sorted(set({heavy!r}) & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert shown.stdout.strip() == "[]", shown.stderr


def test_only_magics_and_widgets_know_ipython() -> None:
    folder = ROOT / "extension" / "hotdesk"
    knowing = {
        path.stem
        for path in folder.rglob("*.py")
        for line in path.read_text().splitlines()
        if re.match(r"\s*(from|import) (IPython|ipywidgets)", line)
    }
    assert knowing == {"magics", "widgets"}


def test_rendering_reads_no_clock_and_does_no_io() -> None:
    folder = ROOT / "extension" / "hotdesk" / "render"
    for path in folder.glob("*.py"):
        assert not re.search(r"^(import|from) (time|os|sys|httpx|pathlib)\b", path.read_text(), re.MULTILINE), path
