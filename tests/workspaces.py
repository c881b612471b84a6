"""A researcher without a browser: logs in to the hub, opens a workspace, runs cells in its kernel and lines in its terminal."""

from __future__ import annotations

import json
import re
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import httpx
import websocket

READY_TIMEOUT_S = 120.0


@dataclass
class CellResult:
    """What one cell showed: `text` of all outputs, `html` of the rich ones, `error` as "Name: message" if it raised."""

    text: str = ""
    html: str = ""
    error: str = ""
    outputs: list[dict[str, Any]] = field(default_factory=list)


class Kernel:
    """One kernel of a workspace, over the same websocket JupyterLab uses."""

    def __init__(self, server: str, token: str, kernel_id: str, *, connect_timeout_s: float = 120.0) -> None:
        self.kernel_id = kernel_id
        url = server.replace("http", "ws", 1) + f"api/kernels/{kernel_id}/channels"
        self._socket = websocket.create_connection(url, header=[f"Authorization: token {token}"], timeout=connect_timeout_s)
        self._socket.settimeout(120)
        self.session = uuid.uuid4().hex
        self.cells: list[dict[str, Any]] = []

    def close(self) -> None:
        self._socket.close()

    def run(self, code: str, *, timeout_s: float = 120.0) -> CellResult:
        """Execute one cell and wait until the kernel is idle again."""
        msg_id = uuid.uuid4().hex
        header = {"msg_id": msg_id, "username": "test", "session": self.session, "msg_type": "execute_request", "version": "5.3"}
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        self._socket.send(
            json.dumps({"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell", "buffers": []})
        )
        result = CellResult()
        deadline = time.monotonic() + timeout_s
        idle = replied = False
        while not (idle and replied):
            assert time.monotonic() < deadline, f"cell did not end in {timeout_s} s: {code}\n{result.text}"
            message = json.loads(self._socket.recv())
            if message.get("parent_header", {}).get("msg_id") != msg_id:
                continue
            kind, content = message["msg_type"], message["content"]
            idle = idle or (kind == "status" and content["execution_state"] == "idle")
            replied = replied or kind == "execute_reply"
            _collect(result, kind, content)
        self.cells.append({"code": code, "outputs": result.outputs})
        return result


def _collect(result: CellResult, kind: str, content: dict[str, Any]) -> None:
    if kind == "stream":
        result.text += content["text"]
        result.outputs.append({"output_type": "stream", "name": content["name"], "text": content["text"]})
    elif kind in {"display_data", "execute_result", "update_display_data"}:
        result.html += content["data"].get("text/html", "")
        result.text += content["data"].get("text/plain", "")
        result.outputs.append({"output_type": "display_data", "data": content["data"], "metadata": content["metadata"]})
    elif kind == "error":
        result.error = f"{content['ename']}: {content['evalue']}"
        result.outputs.append(
            {"output_type": "error", "ename": content["ename"], "evalue": content["evalue"], "traceback": content["traceback"]}
        )


class Terminal:
    """A terminal of a workspace. `run` waits for the line's end by an echoed marker with the exit code."""

    def __init__(self, server: str, token: str, name: str) -> None:
        url = server.replace("http", "ws", 1) + f"terminals/websocket/{name}"
        self._socket = websocket.create_connection(url, header=[f"Authorization: token {token}"], timeout=120)
        self._socket.send(json.dumps(["set_size", 50, 250, 0, 0]))

    def close(self) -> None:
        self._socket.close()

    def type(self, text: str) -> None:
        self._socket.send(json.dumps(["stdin", text]))

    def read_until(self, pattern: str, *, timeout_s: float = 60.0) -> str:
        """Everything shown up to and with the pattern; fails with what was shown."""
        shown = ""
        deadline = time.monotonic() + timeout_s
        while not re.search(pattern, shown):
            left = deadline - time.monotonic()
            assert left > 0, f"terminal never showed {pattern!r}; it showed:\n{shown}"
            self._socket.settimeout(left)
            try:
                kind, *data = json.loads(self._socket.recv())
            except websocket.WebSocketTimeoutException:
                continue
            if kind == "stdout":
                shown += data[0]
        return shown

    def run(self, line: str, *, timeout_s: float = 60.0) -> tuple[int, str]:
        """(exit code, text shown) of one shell line."""
        marker = uuid.uuid4().hex[:12]
        self.type(f"{line}; echo {marker[:6]}''{marker[6:]} $?\r")
        shown = self.read_until(marker + r" \d+", timeout_s=timeout_s)
        code = int(re.findall(marker + r" (\d+)", shown)[-1])
        return code, without_escapes(shown)


def without_escapes(text: str) -> str:
    """Terminal output as text: colours, cursor moves and carriage returns taken out."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b\][^\x07]*\x07|\r", "", text)


class Researcher:
    """Somebody logged in at the hub, holding an API token for all he may do."""

    def __init__(self, hub_url: str, user: str, password: str) -> None:
        self.hub_url, self.user = hub_url, user
        self.http = httpx.Client(base_url=hub_url, timeout=60, trust_env=False)
        answer = self.http.post(f"/hub/api/users/{user}/tokens", json={"auth": {"username": user, "password": password}, "note": "test"})
        assert answer.status_code == 201, f"log-in of {user} failed: {answer.status_code} {answer.text}"
        self.token = str(answer.json()["token"])
        self.http.headers["Authorization"] = f"token {self.token}"

    def close(self) -> None:
        self.http.close()

    def open_workspace(self, *, wait: bool = True, **options: Any) -> str:
        """Start the default workspace with these user options; its URL (ending in "/") when it is ready."""
        answer = self.http.post(f"/hub/api/users/{self.user}/server", json=options)
        assert answer.status_code in {201, 202}, f"{answer.status_code} {answer.text}"
        if wait:
            self.wait_ready()
        return f"{self.hub_url}/user/{self.user}/"

    def server(self) -> dict[str, Any] | None:
        """The hub's view of the default workspace, None if there is none."""
        model: dict[str, Any] = self.http.get(f"/hub/api/users/{self.user}").json()
        found: dict[str, Any] | None = model["servers"].get("")
        return found

    def progress(self) -> list[dict[str, Any]]:
        """All events of the hub's progress stream until it ends (ready or failed)."""
        events: list[dict[str, Any]] = []
        with self.http.stream("GET", f"/hub/api/users/{self.user}/server/progress", timeout=READY_TIMEOUT_S) as stream:
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    events.append(json.loads(line[5:]))
        return events

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not ((self.server() or {}).get("ready")):
            assert time.monotonic() < deadline, f"workspace of {self.user} not ready: {self.server()}"
            time.sleep(0.1)

    def close_workspace(self) -> None:
        self.http.delete(f"/hub/api/users/{self.user}/server")
        deadline = time.monotonic() + 60
        while self.server() is not None and time.monotonic() < deadline:
            time.sleep(0.1)

    def kernel(self) -> Kernel:
        server = f"{self.hub_url}/user/{self.user}/"
        answer = self.http.post(f"/user/{self.user}/api/kernels", json={"name": "python3"})
        assert answer.status_code == 201, answer.text
        return Kernel(server, self.token, answer.json()["id"])

    def terminal(self) -> Terminal:
        server = f"{self.hub_url}/user/{self.user}/"
        answer = self.http.post(f"/user/{self.user}/api/terminals")
        assert answer.status_code == 200, answer.text
        return Terminal(server, self.token, answer.json()["name"])
