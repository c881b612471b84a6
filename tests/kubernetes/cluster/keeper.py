"""Holds a cluster for the test processes that use it, and ends it with the last of them, killed ones included.

    python -m cluster.keeper FOLDER LEVEL [KUBECONFIG]

Every user holds a shared lock on FOLDER.users (`leftovers.users_file`); the keeper gets the exclusive one when the last is gone. It says
`FOLDER/ready` (the path of the kubeconfig) or `FOLDER/failed` (why), and at its end `FOLDER.left` if something outlived the cluster. With
KUBECONFIG the cluster is somebody's, and only kwok is started. SIGUSR1: the kubelet that a test has killed is started again.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from pathlib import Path

from cluster.control_plane import LOOPBACK, ControlPlane, kwok_command
from cluster.leftovers import keeper_file, left_file, left_of, remove, starting_file, users_file
from cluster.processes import DidNotStartError, Processes
from cluster.real_node import ADDRESS, RealNode

GONE_WITHIN_S = 10.0


def keep(folder: Path, level: int, kubeconfig: Path | None) -> None:
    cluster = _External(folder, kubeconfig) if kubeconfig else _Own(folder, level)
    try:
        try:
            cluster.start()
        except (DidNotStartError, OSError) as problem:
            _say(folder / "failed", str(problem))
        else:
            _say(folder / "ready", str(cluster.kubeconfig))
        with users_file(folder).open("a") as users:
            fcntl.flock(users, fcntl.LOCK_EX)
            _note_what_is_left(folder, cluster.stop())
            remove(folder)
            starting_file(folder).unlink(missing_ok=True)
            users_file(folder).unlink(missing_ok=True)
    finally:
        cluster.stop()


class _Own:
    """Level 1; from level 2 on with a real node."""

    def __init__(self, folder: Path, level: int) -> None:
        self._plane = ControlPlane(folder, address=ADDRESS if level > 1 else LOOPBACK)
        self._node = RealNode(self._plane) if level > 1 else None
        self.kubeconfig = self._plane.kubeconfig

    def start(self) -> None:
        if self._node:
            self._node.prepare()
        self._plane.start()
        self._plane.start_kwok()
        if self._node:
            self._plane.start_scheduler()
            self._node.start()
            signal.signal(signal.SIGUSR1, lambda *_: self._plane.processes.start_again("kubelet"))

    def stop(self) -> set[str]:
        left = self._node.stop() if self._node else set()
        self._plane.stop()
        return left


class _External:
    """Somebody's cluster: kwok plays the nodes that tests add to it."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self._processes = Processes(folder)

    def start(self) -> None:
        self._processes.start("kwok", kwok_command(self.kubeconfig))

    def stop(self) -> set[str]:
        self._processes.stop_all()
        return set()


def _note_what_is_left(folder: Path, on_machine: set[str]) -> None:
    """Programs that tests killed may take a moment to be gone."""
    end = time.monotonic() + GONE_WITHIN_S
    while (left := left_of(folder)) and time.monotonic() < end:
        time.sleep(0.1)
    if left or on_machine:
        _say(left_file(folder), "\n".join(sorted(left | on_machine)))


def _say(path: Path, text: str) -> None:
    """Whole or not at all."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.rename(path)


def main(arguments: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.umask(0o022)  # what containers see is made by programs started here; the folder itself is our user's alone
    folder, level, *kubeconfig = arguments
    with keeper_file(Path(folder)).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keep(Path(folder), int(level), Path(kubeconfig[0]) if kubeconfig else None)


if __name__ == "__main__":
    main(sys.argv[1:])
