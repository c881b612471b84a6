"""Building the cluster's programs: with the real Go, on a module small enough to do it often."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from cluster.programs import PROGRAMS, why_cannot_build

pytestmark = [
    pytest.mark.skipif(why_cannot_build() is not None, reason=str(why_cannot_build())),
    pytest.mark.kubernetes,
]
HERE = Path(__file__).parent

# Two programs of a module in the folder given; everything else is as it is.
_BUILD = """
import sys
from pathlib import Path
from cluster import programs
programs.GOMOD = Path(sys.argv[1])
programs.PROGRAMS = (programs.Program("one", "./one", 1), programs.Program("two", "./two", 1))
programs._link_flags = lambda: "-s -w"
sys.exit(programs.main(["1"]))
"""
_LONG = "".join(f"\nfunc F{n}(a, b int) int {{ if a > b {{ return a*{n} + b }}; return F{n // 2}(b, a-1) }}\n" for n in range(5_000))
Build = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def module(tmp_path: Path) -> Path:
    folder = tmp_path / "gomod"
    for name in ("one", "two"):
        (folder / name).mkdir(parents=True)
        (folder / name / "main.go").write_text(f'package main\n\nfunc main() {{ println("{name}") }}\n')
    (folder / "go.mod").write_text("module example.org/small\n\ngo 1.21\n")
    (folder / "go.sum").write_text("")
    return folder


@pytest.fixture
def build(module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Into a cache of the test's own; what Go itself keeps, its runtime first of all, is shared: compiling that takes longest."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    command = [sys.executable, "-c", _BUILD, str(module)]
    return lambda: subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _says(cache: Path, name: str) -> str:
    return subprocess.run([cache / "bin" / name], capture_output=True, text=True, check=True).stderr.strip()


def _compilers(tmp_path: Path) -> list[int]:
    """Go's processes that work for this test."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.name() in {"go", "compile", "link"} and process.environ().get("XDG_CACHE_HOME") == str(tmp_path):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def _until(holds: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 200
    while not holds():
        assert time.monotonic() < end, f"not within 200 s: {what}"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_build_leaves_no_half_program_and_goes_on_the_next_time(
    build: Build, module: Path, tmp_path: Path, how: signal.Signals
) -> None:
    """In the middle of `two`, which takes its time to compile."""
    cache = tmp_path / "hotdesk-kube"
    (module / "two" / "long.go").write_text("package main\n" + _LONG)
    first = build()
    _until(lambda: (cache / "bin" / ".stamps" / "one").exists() and _compilers(tmp_path), "the second one is being compiled")
    first.send_signal(how)
    first.wait(200)  # not for what it has started: that keeps its output open
    assert first.stdout
    first.stdout.close()
    assert not (cache / "bin" / "two").exists()
    if how == signal.SIGTERM:
        _until(lambda: not _compilers(tmp_path), "the compilers have ended with it")
    second = build()
    said, _ = second.communicate(timeout=250)
    assert re.findall(r"(\w+): built in", said) == ["two"]
    assert [_says(cache, name) for name in ("one", "two")] == ["one", "two"]
    assert [path.name for path in (cache / "bin").glob(".new-*")] == []


@pytest.mark.slow
def test_a_second_build_waits_for_the_first_and_has_nothing_to_do(build: Build, module: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hotdesk-kube"
    both = [build(), build()]
    said = [one.communicate(timeout=250)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert sorted(len(re.findall(r"built in", text)) for text in said) == [0, 2]
    assert any("another build is at work, waiting for it" in text for text in said)

    (module / "two" / "main.go").write_text('package main\n\nfunc main() { println("changed") }\n')
    again = build()
    text, _ = again.communicate(timeout=250)
    assert re.findall(r"(\w+): built in", text) == ["two"]
    assert _says(cache, "two") == "changed"


def test_a_program_that_does_not_compile_is_a_failure_with_the_compilers_words(build: Build, module: Path, tmp_path: Path) -> None:
    (module / "two" / "main.go").write_text("package main\n\nfunc main() { nonsense() }\n")
    tried = build()
    said, _ = tried.communicate(timeout=250)
    assert tried.returncode == 1
    assert "undefined: nonsense" in said
    assert "failed with 1" in said
    assert not (tmp_path / "hotdesk-kube" / "bin" / "two").exists()


def test_without_go_it_says_what_is_needed(build: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "no-go").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "no-go"))
    tried = build()
    said, _ = tried.communicate(timeout=60)
    assert tried.returncode == 3
    assert "Go 1.21 or newer is needed to build Kubernetes for its tests, and no go is on PATH" in said


def test_every_program_has_its_level_and_its_own_name() -> None:
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS)
    assert {program.level for program in PROGRAMS} == {1, 2, 3}
