"""`make up`, `make down` and `make passwords` pass on what they were told, whatever is in it."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def would_run(*words: str) -> str:
    """What make would run, without running it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    return subprocess.run(["make", "-n", *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("target", ["up", "down", "passwords"])
def test_a_state_directory_may_have_spaces_and_quotes_in_its_name(target: str) -> None:
    said = would_run(target, "STATE=/tmp/Eva's state")
    assert "/tmp/Eva's state" in shlex.split(said, comments=True)


def test_the_help_names_every_command_of_the_readme() -> None:
    help_text = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(f"make {name} " in help_text for name in ("up", "down", "passwords", "install", "test", "lint", "bench"))


def test_where_nothing_is_installed_the_passwords_are_not_a_puzzle(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    tried = subprocess.run(["make", "passwords"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert tried.returncode != 0
    assert "Nothing is installed" in tried.stdout + tried.stderr
    assert "make up" in tried.stdout + tried.stderr
