"""`.ci/run` as a script: its order, what it says and how it ends. What it calls stands in here; CI runs the real one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_MAKEFILE = """
lint:
	@echo lint >>order
test:
	@echo "test $(PYTEST_ARGS)" >>order
	@echo "SKIPPED 3 tests: no chromium here"
"""

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """`.ci/run` where building Kubernetes is this program."""

    def run(build: str) -> subprocess.Popen[str]:
        cluster = tmp_path / "tests" / "kubernetes" / "cluster"
        cluster.mkdir(parents=True)
        (cluster / "__init__.py").touch()
        (cluster / "programs.py").write_text(build)
        (cluster / "schemas.py").write_text("print('schemas fetched')")
        (tmp_path / "Makefile").write_text(_MAKEFILE)
        (tmp_path / ".ci").mkdir()
        shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
        environment = os.environ | {"HOTDESK_NO_APT": "1"}
        return subprocess.Popen(
            ["bash", ".ci/run"],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return run


def _until_exists(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come within a minute"
        time.sleep(0.05)


def test_the_tests_on_a_cluster_come_last_and_wait_for_the_build(start: Start, tmp_path: Path) -> None:
    """The build ends only after the other tests."""
    waits = "import time, pathlib\nwhile 'not' not in (pathlib.Path('order').exists() and open('order').read() or ''): time.sleep(0.05)"
    run = start(f"{waits}\nprint('built', file=open('order', 'a'))")
    said, _ = run.communicate(timeout=120)
    assert run.returncode == 0, said
    assert (tmp_path / "order").read_text().splitlines() == ["lint", "test -m 'not kubernetes'", "built", "test -m 'kubernetes'"]
    assert said.splitlines()[-3:-1] == ["SKIPPED 3 tests: no chromium here"] * 2
    assert "schemas fetched" in (tmp_path / "build" / "kube.log").read_text()


def test_without_a_fitting_go_it_says_so_and_goes_on(start: Start, tmp_path: Path) -> None:
    run = start("import sys\nsys.exit(print('no go is on PATH') or 3)")
    said, _ = run.communicate(timeout=120)
    assert run.returncode == 0, said
    assert "no go is on PATH" in said
    assert (tmp_path / "order").read_text().splitlines()[-1] == "test -m 'kubernetes'"


def test_a_build_that_fails_is_shown_and_fails_the_run(start: Start, tmp_path: Path) -> None:
    run = start("import sys\nsys.exit(print('undefined: nonsense') or 1)")
    said, _ = run.communicate(timeout=120)
    assert run.returncode == 1
    assert "undefined: nonsense" in said
    assert (tmp_path / "order").read_text().splitlines()[-1] == "test -m 'not kubernetes'"


def test_interrupted_it_ends_the_build_too(start: Start, tmp_path: Path) -> None:
    wait = "import os, time\nopen('building', 'w').write(str(os.getpid()))\ntime.sleep(600)"
    run = start(wait)
    _until_exists(tmp_path / "order")
    _until_exists(tmp_path / "building")
    os.killpg(run.pid, signal.SIGINT)
    run.communicate(timeout=120)
    assert run.returncode != 0
    number = int((tmp_path / "building").read_text())
    end = time.monotonic() + 60
    while Path(f"/proc/{number}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{number}").exists()
