"""The programs of one test cluster as children of this process: started, killed, frozen, ended; they never outlive it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

STOP_TIMEOUT_S = 10.0


class DidNotStartError(Exception):
    """A program ended or stayed silent while the cluster started; carries the end of its log."""


class Processes:
    """By name. Logs are `FOLDER/logs/NAME.log`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, list[str]] = {}
        (folder / "logs").mkdir(parents=True, exist_ok=True)

    def start(self, name: str, command: list[str]) -> None:
        """The kernel kills it when this process (the thread that called) ends, however that happens."""
        self._commands[name] = command
        with self._log(name).open("ab") as log:
            self._children[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | {"KUBECONFIG": ""},
            )

    def start_again(self, name: str) -> None:
        self.start(name, self._commands[name])

    def send(self, name: str, number: signal.Signals) -> None:
        """SIGSTOP and SIGCONT freeze and thaw it; SIGKILL waits until it is gone."""
        self._children[name].send_signal(number)
        if number == signal.SIGKILL:
            self._children[name].wait(STOP_TIMEOUT_S)

    def stop(self, name: str) -> None:
        child = self._children.pop(name, None)
        if child is None:
            return
        child.terminate()
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def stop_all(self) -> None:
        """The last started first."""
        for name in reversed(list(self._children)):
            self.stop(name)

    def wait_for(self, name: str, what: str, is_true: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
        end = time.monotonic() + timeout_s
        while not is_true():
            child = self._children[name]
            if child.poll() is not None:
                raise DidNotStartError(f"{name} ended with {child.returncode} before: {what}\n{self._end_of_log(name)}")
            if time.monotonic() > end:
                raise DidNotStartError(f"not within {timeout_s:.0f} s: {what}\n{self._end_of_log(name)}")
            time.sleep(0.1)

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def _end_of_log(self, name: str) -> str:
        return "\n".join(self._log(name).read_text(errors="replace").splitlines()[-20:])


def free_ports(count: int) -> list[int]:
    """Different ones, free on loopback right now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
