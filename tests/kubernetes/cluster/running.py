"""A running cluster as tests see it: kubectl, waiting with a limit, pretended nodes; and how test processes share one."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cluster.leftovers import folder_of, is_kept, keeper_of, processes, remove, remove_abandoned, starting_file, users_file
from cluster.processes import DidNotStartError
from cluster.programs import path_of, why_not_built
from cluster.real_node import why_no_node

START_TIMEOUT_S = 200.0
WAIT_TIMEOUT_S = 60.0
ENDS_WITH_TEST = "test.hotdesk.io/namespace"  # label of what lies in no namespace and ends with a test
# Of Kubernetes itself, of kind, and ours: a cluster with other namespaces is not taken for a disposable one.
_HARMLESS = ("default", "kube-", "local-path-storage", "hotdesk", "test-")


class CannotRunError(Exception):
    """Why there is no cluster here: reason enough to skip."""


class KubectlError(Exception):
    """What was asked, and what kubectl said."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """`folder`: its state and logs; empty but for kwok's log if the cluster is somebody's (`KUBECONFIG`)."""

    kubeconfig: Path
    folder: Path
    external: bool = False

    def kubectl(self, *arguments: str, given: str | None = None, timeout_s: float = WAIT_TIMEOUT_S) -> str:
        """Its output. Raises KubectlError with what it said."""
        kubectl = str(path_of("kubectl")) if path_of("kubectl").exists() else "kubectl"
        command = [kubectl, f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=timeout_s, check=False)
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def get(self, *arguments: str) -> dict[str, Any]:
        """`kubectl get … -o json`."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found

    def apply(self, *objects: dict[str, Any], namespace: str = "default") -> None:
        """Server-side: big objects and many of them."""
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.kubectl("apply", "--server-side", "--force-conflicts", "-n", namespace, "-f", "-", given=items)

    def wait_until(self, what: str, is_true: Callable[[], bool], *, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        end = time.monotonic() + timeout_s
        while not is_true():
            if time.monotonic() > end:
                raise TimeoutError(f"not within {timeout_s:.0f} s: {what}")
            time.sleep(0.1)

    def add_nodes(self, count: int, *, owner: str, gpus: int = 8, labels: dict[str, str] | None = None) -> list[str]:
        """Pretended nodes (kwok), Ready when it returns. `owner`: the test's namespace; its end is theirs."""
        names = [f"{owner}-{number}" for number in range(count)]
        self.apply(*(_fake_node(name, gpus=gpus, labels={ENDS_WITH_TEST: owner} | (labels or {})) for name in names))
        self.kubectl("wait", "--for=condition=Ready", "node", "-l", f"{ENDS_WITH_TEST}={owner}", f"--timeout={int(WAIT_TIMEOUT_S)}s")
        return names

    def add_namespace(self, name: str) -> None:
        """With its default service account: before, pods are refused."""
        self.kubectl("create", "namespace", name)
        account = ("serviceaccount", "default", "-n", name, "--ignore-not-found")
        self.wait_until(f"{name} has a default service account", lambda: bool(self.kubectl("get", *account)))

    def kill_kubelet(self) -> None:
        """Of the real node, as kill -9 does; what it runs goes on."""
        of_ours = (
            number for number, command in processes() if command.startswith(f"{path_of('kubelet')} ") and f"{self.folder}/" in command
        )
        for number in of_ours:
            os.kill(number, signal.SIGKILL)

    def start_kubelet(self) -> None:
        os.kill(keeper_of(self.folder), signal.SIGUSR1)

    def end_test(self, namespace: str) -> None:
        """Everything a test made goes, without waiting for it: pods on pretended nodes would otherwise wait for a kubelet."""
        now = ("--ignore-not-found", "--wait=false")
        self.kubectl("delete", "pods", "--all", "-n", namespace, "--force", "--grace-period=0", *now)
        self.kubectl("delete", "namespace", namespace, *now)
        self.kubectl("delete", "nodes", "-l", f"{ENDS_WITH_TEST}={namespace}", *now)


def _fake_node(name: str, *, gpus: int, labels: dict[str, str]) -> dict[str, Any]:
    room = {"cpu": "96", "memory": "1Ti", "pods": "250", "ephemeral-storage": "1Ti", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name} | labels, "annotations": {"kwok.x-k8s.io/node": "fake"}}
    status = {"capacity": room, "allocatable": room}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}


@contextmanager
def shared_cluster(session: str, level: int = 1, *, worker: str = "") -> Iterator[Cluster]:
    """The cluster of `session` (a word all its test processes know), started by who comes first and ended after the last.

    With `worker`, that process' own; with `KUBECONFIG` set, that cluster for all of them, with one kwok. Raises CannotRunError where there
    can be none, DidNotStartError if it should but did not.
    """
    external = os.environ.get("KUBECONFIG", "")
    if reason := _why_none(level, external):
        raise CannotRunError(reason)
    remove_abandoned()
    folder = folder_of(session, 1) if external else folder_of(session, level, worker)
    with _as_user(folder):
        with starting_file(folder).open("w") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            if not is_kept(folder):
                remove(folder)
                _start_keeper(folder, level, external)
            _wait_for_keeper(folder)
        cluster = Cluster(Path((folder / "ready").read_text()), folder, external=bool(external))
        if external:
            _check_disposable(cluster)
        yield cluster


def _why_none(level: int, external: str) -> str | None:
    if external:
        built = path_of("kwok").exists()
        return None if built else "KUBECONFIG names a cluster, and there is no kwok here to play nodes: `make kube LEVEL=1` builds it"
    return why_not_built(level) or (why_no_node() if level > 1 else None)


@contextmanager
def _as_user(folder: Path) -> Iterator[None]:
    """Holds the shared lock that keeps the keeper at work. Waits while the keeper of an earlier session cleans up."""
    while True:
        users = users_file(folder).open("a")
        fcntl.flock(users, fcntl.LOCK_SH)
        if _is_still_there(users, users_file(folder)):
            break
        users.close()
    try:
        yield
    finally:
        users.close()


def _is_still_there(file: IO[str], path: Path) -> bool:
    """The keeper removes the file it has locked: a lock on that one keeps nobody."""
    return path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino


def _start_keeper(folder: Path, level: int, external: str) -> None:
    folder.mkdir(mode=0o700)
    command = [sys.executable, "-m", "cluster.keeper", str(folder), str(level), *([external] if external else [])]
    with (folder / "keeper.log").open("wb") as log:
        keeper = subprocess.Popen(
            command,
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    while not is_kept(folder) and keeper.poll() is None:
        time.sleep(0.01)


def _wait_for_keeper(folder: Path) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while not (folder / "ready").exists():
        if (folder / "failed").exists():
            raise DidNotStartError((folder / "failed").read_text())
        if not is_kept(folder) or time.monotonic() > end:
            raise DidNotStartError(f"the cluster's keeper ended or is silent:\n{(folder / 'keeper.log').read_text()}")
        time.sleep(0.1)


def _check_disposable(cluster: Cluster) -> None:
    """Tests add and delete nodes, resources and namespaces: nobody's work may be on it."""
    if os.environ.get("KUBECONFIG_IS_DISPOSABLE"):
        return
    names = [item["metadata"]["name"] for item in cluster.get("namespaces")["items"]]
    foreign = [name for name in names if not name.startswith(_HARMLESS)]
    if foreign:
        raise DidNotStartError(
            f"KUBECONFIG names a cluster with namespaces of others ({', '.join(foreign[:5])}). These tests change the whole cluster: "
            "unset KUBECONFIG to use the tests' own, or set KUBECONFIG_IS_DISPOSABLE=1 if nobody needs that one."
        )
