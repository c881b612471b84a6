"""The state directory of a local Hotdesk as the hub sees it: where things lie, the ports, and the generated secrets."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from hotdesk_api.errors import Unavailable

PASSWORD_BYTES = 24  # 32 characters, the least JupyterHub's shared-password authenticator takes for admins
FIRST_PORT, PORTS = 20000, 12000
PORT_NAMES = ("hub", "proxy_api", "scheduler")
SECRET_NAMES = ("admin_password", "researcher_password", "proxy_token", "scheduler_token", "spawner_token")


@dataclass(frozen=True, slots=True)
class State:
    """Paths below one directory (scheduler/README.md draws it). `prepare` makes them, private to their owner."""

    root: Path

    @property
    def hub(self) -> Path:
        return self.root / "hub"

    @property
    def homes(self) -> Path:
        return self.root / "homes"

    @property
    def workspaces(self) -> Path:
        return self.hub / "workspaces"

    @property
    def database(self) -> Path:
        return self.hub / "jupyterhub.sqlite"

    @property
    def log(self) -> Path:
        return self.hub / "hub.log"

    @property
    def proxy_pid(self) -> Path:
        return self.hub / "proxy.pid"

    @property
    def hub_process(self) -> Path:
        return self.hub / "hub.process.json"

    @property
    def front_process(self) -> Path:
        return self.hub / "up.process.json"

    @property
    def proxy_process(self) -> Path:
        return self.hub / "proxy.process.json"

    @property
    def passwords_shown(self) -> Path:
        """Made when the first start was complete: the demo projects have their members, the passwords were shown, once and not never."""
        return self.hub / "passwords_shown"

    @property
    def extra_configuration(self) -> Path:
        return self.root / "jupyterhub_config.d"

    def prepare(self) -> None:
        """Make the directories, 0700. Raises Unavailable with a sentence if that cannot be."""
        try:
            for folder in (self.root, self.hub, self.homes, self.workspaces, self.extra_configuration):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                folder.chmod(0o700)
        except OSError as error:
            raise Unavailable(
                f"The state directory {self.root} cannot be used ({error.strerror or error}).",
                field="--state",
                value=str(self.root),
                next_step="Choose one that you own: `make up STATE=/path` or `hotdesk-hub up --state /path`.",
            ) from error


def default_root() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(os.environ.get("HOTDESK_STATE") or Path(base) / "hotdesk").expanduser().absolute()


def write_private(path: Path, text: str) -> None:
    """Whole or not at all, 0600 from the first byte on."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    part.replace(path)


def _read_json(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Unavailable(f"{path} cannot be read ({error}).", next_step="Move it away; Hotdesk makes a new one.") from error
    return found if isinstance(found, dict) else {}


def secrets_of(state: State) -> dict[str, str]:
    """Every secret by name; what is missing is generated and kept."""
    path = state.hub / "secrets.json"
    known = {name: str(value) for name, value in _read_json(path).items()}
    missing = [name for name in SECRET_NAMES if name not in known]
    if missing:
        known |= {name: secrets.token_urlsafe(PASSWORD_BYTES) for name in missing}
        write_private(path, json.dumps(known, indent=1))
    return known


def is_free(port: int, address: str = "127.0.0.1") -> bool:
    """Whether one could listen there now."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True


def some_free_port(taken: Collection[int] = ()) -> int:
    """Below the range from which systems take ports for outgoing connections: those come and go, and would get in our way at a restart."""
    while True:
        port = FIRST_PORT + secrets.randbelow(PORTS)
        if port not in taken and is_free(port):
            return port


def ports_of(state: State) -> dict[str, int]:
    """The inner ports by name, chosen once and kept: running workspaces know them."""
    path = state.hub / "ports.json"
    known = {name: int(str(value)) for name, value in _read_json(path).items() if name in PORT_NAMES}
    missing = [name for name in PORT_NAMES if name not in known]
    for name in missing:
        known[name] = some_free_port(set(known.values()))
    if missing:
        write_private(path, json.dumps(known, indent=1))
    return known


def change_port(state: State, name: str) -> int:
    """Choose this port anew, because somebody else listens on it."""
    known = ports_of(state)
    known[name] = some_free_port(set(known.values()))
    write_private(state.hub / "ports.json", json.dumps(known, indent=1))
    return known[name]
