"""Builds Kubernetes' own programs from their Go modules into the user's cache. Standard library only: it runs before .venv exists.

    python3 tests/kubernetes/cluster/programs.py [1|2|3]

`gomod/go.mod` and `go.sum` pin every version; one module for all programs shares most of the compiling. A program is built once for
one state of those files; an interrupted build goes on where it was (finished programs stay, Go's build cache keeps the rest).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

GOMOD = Path(__file__).parent / "gomod"
_COMMANDS = "k8s.io/kubernetes/cmd"


@dataclass(frozen=True, slots=True)
class Program:
    """`name` is its file in the cache. `files`: what it needs beside it, name in the cache -> path inside `module`."""

    name: str
    package: str
    level: int
    module: str = ""
    files: tuple[tuple[str, str], ...] = ()


PROGRAMS = (
    Program("etcd", "go.etcd.io/etcd/server/v3", 1),
    Program("kube-apiserver", f"{_COMMANDS}/kube-apiserver", 1),
    Program("kubectl", f"{_COMMANDS}/kubectl", 1),
    Program("kube-controller-manager", f"{_COMMANDS}/kube-controller-manager", 1),
    Program(
        "kwok",
        "sigs.k8s.io/kwok/cmd/kwok",
        1,
        module="sigs.k8s.io/kwok",
        files=(
            ("kwok-node-initialize.yaml", "kustomize/stage/node/fast/node-initialize.yaml"),
            ("kwok-node-heartbeat.yaml", "kustomize/stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml"),
        ),
    ),
    Program("kubelet", f"{_COMMANDS}/kubelet", 2),
    Program("kube-proxy", f"{_COMMANDS}/kube-proxy", 2),
    Program("kube-scheduler", f"{_COMMANDS}/kube-scheduler", 2),
    Program("fakegpu", "./fakegpu", 2),
    Program("helm", "helm.sh/helm/v4/cmd/helm", 3),
)


class CannotBuildError(Exception):
    """What is missing on this machine, in one sentence."""


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hotdesk-kube"


def programs_of(level: int) -> list[Program]:
    return [program for program in PROGRAMS if program.level <= level]


def path_of(name: str) -> Path:
    return cache() / "bin" / name


def why_not_built(level: int) -> str | None:
    """None if all programs up to `level` are there and of the pinned versions."""
    missing = [program.name for program in programs_of(level) if not _is_built(program)]
    if not missing:
        return None
    return f"not built yet: {', '.join(missing)} (`make kube` builds them once, about ten minutes on two cores; needs {_go_needed()})"


def why_cannot_build() -> str | None:
    """None if there is a fitting Go."""
    needed = f"{_go_needed()} or newer is needed to build Kubernetes for its tests"
    if not shutil.which("go"):
        return f"{needed}, and no go is on PATH"
    have = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout.strip()
    numbers = [int(number) for number in re.findall(r"\d+", have)[:2]]
    return f"{needed}, and this is {have}" if numbers < [int(number) for number in re.findall(r"\d+", _go_needed())] else None


def build(level: int) -> None:
    """Raises CannotBuildError without a fitting Go, CalledProcessError when the compiler fails."""
    (cache() / "bin" / ".stamps").mkdir(parents=True, exist_ok=True)
    with _only_one_build():
        todo = [program for program in programs_of(level) if not _is_built(program)]
        if todo and (reason := why_cannot_build()):
            raise CannotBuildError(reason)
        for half in (cache() / "bin").glob(".new-*"):  # of a build that was killed
            shutil.rmtree(half, ignore_errors=True)
        for program in todo:
            started = time.monotonic()
            _build(program)
            print(f"{program.name}: built in {time.monotonic() - started:.0f} s", flush=True)
    print(f"up to date: {cache() / 'bin'}", flush=True)


def version_of(module: str) -> str:
    """As pinned in go.mod, with its leading v."""
    found = re.search(rf"^(?:require|\s)\s*{re.escape(module)} (v\S+)", (GOMOD / "go.mod").read_text(), re.MULTILINE)
    if not found:
        raise LookupError(f"{module} is not in {GOMOD / 'go.mod'}")
    return found[1]


def _stamp(program: Program) -> str:
    digest = hashlib.sha256(repr((program, _link_flags())).encode())
    own = sorted((GOMOD / program.package).glob("*.go")) if program.package.startswith("./") else []
    for path in (GOMOD / "go.mod", GOMOD / "go.sum", *own):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _stamp_file(program: Program) -> Path:
    return cache() / "bin" / ".stamps" / program.name


def _is_built(program: Program) -> bool:
    there = all(path_of(name).exists() for name in (program.name, *(name for name, _ in program.files)))
    return there and _stamp_file(program).exists() and _stamp_file(program).read_text() == _stamp(program)


def _link_flags() -> str:
    kubernetes = version_of("k8s.io/kubernetes")
    values = {
        "k8s.io/component-base/version.gitVersion": kubernetes,
        "k8s.io/component-base/version.gitMajor": "1",
        "k8s.io/component-base/version.gitMinor": kubernetes.split(".")[1],
        "k8s.io/component-base/version.gitTreeState": "clean",
        "k8s.io/component-base/version.gitCommit": "module",
        "sigs.k8s.io/kwok/pkg/consts.Version": version_of("sigs.k8s.io/kwok"),
        "helm.sh/helm/v4/internal/version.version": version_of("helm.sh/helm/v4"),
    }
    return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in values.items())])


def _build(program: Program) -> None:
    """Into a folder of its own first; what gets its name in the cache is whole."""
    with tempfile.TemporaryDirectory(dir=cache() / "bin", prefix=".new-") as folder:
        made = Path(folder) / program.name
        _stamp_file(program).unlink(missing_ok=True)
        _go("build", "-mod=readonly", "-trimpath", "-ldflags", _link_flags(), "-o", str(made), program.package)
        if program.files:
            source = Path(_go("list", "-m", "-f", "{{.Dir}}", program.module).strip())
            for name, inside in program.files:
                shutil.copyfile(source / inside, path_of(name))
        made.rename(path_of(program.name))
        _stamp_file(program).write_text(_stamp(program))


def _go(*arguments: str) -> str:
    environment = os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}
    ends_with_us = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []  # it would write where nobody looks any more
    command = [*ends_with_us, "go", *arguments]
    with subprocess.Popen(command, cwd=GOMOD, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True) as go:
        try:
            out, _ = go.communicate()
        except BaseException:  # the compilers it started end with it
            os.killpg(go.pid, signal.SIGTERM)
            raise
    if go.returncode:
        raise subprocess.CalledProcessError(go.returncode, ["go", *arguments])
    return out


def _go_needed() -> str:
    return "Go " + (re.search(r"^go (\d+\.\d+)", (GOMOD / "go.mod").read_text(), re.MULTILINE) or ["", "?"])[1]


@contextmanager
def _only_one_build() -> Iterator[None]:
    with (cache() / ".build-lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another build is at work, waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        build(int(arguments[0]) if arguments else 3)
    except CannotBuildError as problem:
        print(problem, file=sys.stderr)
        return 3
    except subprocess.CalledProcessError as problem:
        print(f"go {' '.join(problem.cmd[1:3])} … failed with {problem.returncode}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
