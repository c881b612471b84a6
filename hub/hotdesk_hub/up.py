"""`hotdesk-hub up`: prepare the state directory, start the hub (which starts proxy and scheduler), say when all is there, end in order."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import httpx
from hotdesk_api.errors import Conflict, Unavailable
from hotdesk_spawner import processes

from hotdesk_hub.greeting import Say, greet, make
from hotdesk_hub.ports import check_public
from hotdesk_hub.proxy import find_proxy
from hotdesk_hub.state import State, change_port, is_free, ports_of

DEFAULT_SHAPE = "2x8xV100-SXM2-32GB"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
LOOK_EVERY_S = 0.05
IDLE_LOOK_S = 0.2
LONGEST_LOG_BYTES = 10 * 1024 * 1024
CONFIGURATION = Path(__file__).with_name("jupyterhub_config.py")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The flags of `up`. `simulate` is a shape, `auto` (if this machine has no GPU) or `none`."""

    state: State
    address: str
    port: int
    simulate: str

    @property
    def url(self) -> str:
        return f"http://{'127.0.0.1' if self.address in {'0.0.0.0', '::'} else self.address}:{self.port}"  # noqa: S104  only compared


def shape_of(simulate: str) -> str:
    """What to simulate, "" for the real GPUs of this machine."""
    if simulate == "auto":
        return "" if _real_gpus() else DEFAULT_SHAPE
    return "" if simulate == "none" else simulate


def _real_gpus() -> int:
    if importlib.util.find_spec("pynvml") is None:
        return 0
    import pynvml

    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0


def up(wanted: Wanted, say: Say) -> int:
    """Exit code. Returns when the hub has ended. Raises HotdeskError with a sentence when it cannot start."""
    find_proxy()
    wanted.state.prepare()
    with _only_one(wanted.state) as lock:
        processes.stop(processes.load(wanted.state.proxy_process), grace_s=5)  # left over by a hub that was killed
        _check_ports(wanted, say)
        say(f"Starting Hotdesk, state in {wanted.state.root}")
        with _stop_signals() as asked_to_stop:
            hub, log_from = _start_hub(wanted, lock)
            try:
                if _wait_until_ready(wanted, hub, log_from=log_from, asked_to_stop=asked_to_stop, say=say):
                    greet(wanted.url, wanted.state, say)
                    while hub.poll() is None and not asked_to_stop:
                        time.sleep(IDLE_LOOK_S)
                return _end(wanted, hub, bool(asked_to_stop), say)
            finally:
                _stop_hub(wanted, hub)


@contextlib.contextmanager
def _only_one(state: State) -> Iterator[int]:
    """Hold the lock of this state directory. The hub inherits it, so it is held as long as either of the two lives."""
    with open(state.hub / "lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            running = processes.load(state.hub_process)
            raise Conflict(
                f"Another Hotdesk runs already on {state.root}{f' (process {running.pid})' if running else ''}.",
                field="--state",
                value=str(state.root),
                next_step=f"Use it, or end it with `{make('down', state)}`, or choose another state directory.",
            ) from error
        yield file.fileno()


def _check_ports(wanted: Wanted, say: Say) -> None:
    """The public port must be free; an inner one that somebody else took is chosen anew, and said."""
    check_public(wanted.address, wanted.port)
    for name, port in ports_of(wanted.state).items():
        if not is_free(port) and not (name == "scheduler" and _is_a_scheduler(port)):
            new = change_port(wanted.state, name)
            say(f"Port {port} ({name.replace('_', ' ')}) is taken by another program; using {new}. Open workspaces must be restarted.")


def _is_a_scheduler(port: int) -> bool:
    """One that was orphaned by a killed hub gives way to its successor as soon as that starts."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=2, trust_env=False).status_code < 500
    except httpx.HTTPError:
        return False


def _start_hub(wanted: Wanted, lock: int) -> tuple[subprocess.Popen[bytes], int]:
    """The hub's process, and where in the log its own part begins."""
    state = wanted.state
    if state.log.exists() and state.log.stat().st_size > LONGEST_LOG_BYTES:
        state.log.replace(state.log.with_suffix(".log.1"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTERHUB_")} | {
        "HOTDESK_STATE": str(state.root),
        "HOTDESK_HUB_ADDRESS": wanted.address,
        "HOTDESK_HUB_PORT": str(wanted.port),
        "HOTDESK_SIMULATE": shape_of(wanted.simulate),
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
    }
    log_from = state.log.stat().st_size if state.log.exists() else 0
    with open(os.open(state.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
        hub = subprocess.Popen(
            [sys.executable, "-m", "jupyterhub", "--config", str(CONFIGURATION)],
            cwd=state.hub,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches us, and we end it in order
            pass_fds=(lock,),
            umask=0o077,
        )
    for path, pid in ((state.hub_process, hub.pid), (state.front_process, os.getpid())):
        identity = processes.identify(pid)
        if identity:
            processes.save(path, identity)
    return hub, log_from


@contextlib.contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Ctrl-C, a closed terminal or a polite kill end Hotdesk in order; the list says that one came."""
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_until_ready(wanted: Wanted, hub: subprocess.Popen[bytes], *, log_from: int, asked_to_stop: list[int], say: Say) -> bool:
    """True when hub and scheduler answer; False if told to stop before. Raises Unavailable with the end of the log."""
    ports = ports_of(wanted.state)
    parts = {
        "hub": f"http://127.0.0.1:{ports['hub']}/hub/api/",
        "scheduler": f"http://127.0.0.1:{ports['scheduler']}/readyz",
        "proxy": f"{wanted.url}/hub/api/",  # last: before the hub answers it would only log errors
    }
    deadline = time.monotonic() + START_TIMEOUT_S
    with httpx.Client(timeout=5, trust_env=False) as http:
        while parts and not asked_to_stop:
            if hub.poll() is not None:
                raise _did_not_start(wanted.state, log_from, f"The hub ended while starting (exit code {hub.returncode}).")
            if time.monotonic() > deadline:
                raise _did_not_start(wanted.state, log_from, f"{' and '.join(parts)} did not answer within {START_TIMEOUT_S:g} s.")
            name, url = next(iter(parts.items()))
            if _answers(http, url) and (name != "scheduler" or _works_for(wanted.state, hub.pid)):
                say(f"  {name}: up")
                del parts[name]
            else:
                time.sleep(LOOK_EVERY_S)
    return not parts


def _answers(http: httpx.Client, url: str) -> bool:
    try:
        return http.get(url).status_code == 200
    except httpx.HTTPError:
        return False


def _works_for(state: State, hub_pid: int) -> bool:
    """Whether the scheduler that answers is this hub's. One orphaned by a killed hub answers too, until its successor has its lock."""
    try:
        parent = json.loads((state.root / "scheduler" / "lock").read_text()).get("parent")
    except (OSError, ValueError, AttributeError):
        return True  # another engine, without such a lock
    return not isinstance(parent, dict) or parent.get("pid") == hub_pid


def _did_not_start(state: State, log_from: int, what: str) -> Unavailable:
    lines = state.log.read_bytes()[log_from:].decode(errors="replace").splitlines()
    lines = [line for line in lines if "ConfigProxy" not in line and not line.startswith(("[I ", "[W ", "[D "))][-12:]
    end_of_log = "\n".join(f"    {line}" for line in lines)
    return Unavailable(f"{what} The end of its log:\n{end_of_log}\n", next_step=f"The whole log is {state.log}.")


def _end(wanted: Wanted, hub: subprocess.Popen[bytes], asked: bool, say: Say) -> int:
    if asked:
        say("\nStopping hub, proxy and scheduler …")
        _stop_hub(wanted, hub)
        again, down = make("up", wanted.state), make("down", wanted.state)
        say(f"Stopped. Running jobs and open workspaces go on; `{again}` finds them again, `{down}` stops them too.")
        return 0
    if hub.returncode == 0:
        return 0  # ended by `down`, which says what it did
    say(f"\nThe hub ended unexpectedly (exit code {hub.returncode}); its log is {wanted.state.log}.")
    say(f"Running jobs and open workspaces go on; `{make('up', wanted.state)}` finds them again.")
    return 1


def _stop_hub(wanted: Wanted, hub: subprocess.Popen[bytes]) -> None:
    """SIGTERM: it stops scheduler and proxy and leaves workspaces. Only if that takes too long, SIGKILL to itself alone."""
    if hub.poll() is None:
        hub.terminate()
        try:
            hub.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            hub.kill()
            hub.wait()
    processes.stop(processes.load(wanted.state.proxy_process), grace_s=5)
    for path in (wanted.state.hub_process, wanted.state.front_process, wanted.state.proxy_process, wanted.state.proxy_pid):
        path.unlink(missing_ok=True)
