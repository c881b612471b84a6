"""A person at a real hub through its API: several servers, the progress stream in the background, and what the scheduler says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx
from hotdesk_api import calls
from hotdesk_api.client import Client
from hotdesk_api.models import WorkloadOut
from workspaces import Researcher

PATIENCE_S = 60.0
T = TypeVar("T")


def wait_for(look: Callable[[], T], what: str, *, patience_s: float = PATIENCE_S) -> T:
    """The first true thing that `look` answers."""
    deadline = time.monotonic() + patience_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {patience_s:g} s for {what}"
        time.sleep(0.05)
    return found


class Progress:
    """The events of one progress stream, read as they come."""

    def __init__(self, http: httpx.Client, path: str) -> None:
        self.events: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read, args=(http, path), daemon=True)
        self._thread.start()

    def _read(self, http: httpx.Client, path: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        try:
            while self._read_once(http, path) == httpx.codes.BAD_REQUEST and time.monotonic() < deadline:
                time.sleep(0.2)  # a refused server is just being put away; the page comes again as well
        except httpx.HTTPError:
            pass  # the hub was killed; what came is there

    def _read_once(self, http: httpx.Client, path: str) -> int:
        with http.stream("GET", path, timeout=PATIENCE_S) as stream:
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    self.events.append(json.loads(line[5:]))
            return stream.status_code

    @property
    def messages(self) -> list[str]:
        return [str(event.get("message", "")) for event in self.events]

    def says(self, text: str) -> str:
        """Wait for a message with this text in it."""
        return wait_for(lambda: next((message for message in self.messages if text in message), ""), f"{text!r} in {self.messages}")


class Person(Researcher):
    """`workspaces.Researcher` with named servers. Server "" is the default one."""

    def __init__(self, hub_url: str, user: str, password: str) -> None:
        super().__init__(hub_url, user, password)
        self._password = password
        self._browser: httpx.Client | None = None

    def _path(self, server: str) -> str:
        return f"/hub/api/users/{self.user}/" + (f"servers/{server}" if server else "server")

    def ask(self, server: str = "", **options: Any) -> httpx.Response:
        return self.http.post(self._path(server), json=options)

    def watch(self, server: str = "") -> Progress:
        return Progress(self.http, self._path(server) + "/progress")

    def servers(self) -> dict[str, Any]:
        """Active servers of the hub's model by name."""
        model = self.http.get(f"/hub/api/users/{self.user}").json()
        return {name: server for name, server in model["servers"].items() if server["ready"] or server["pending"]}

    def is_ready(self, server: str = "") -> bool:
        return bool(self.servers().get(server, {}).get("ready"))

    def open(self, server: str = "", **options: Any) -> None:
        """Ask, and wait until it is ready."""
        answer = self.ask(server, **options)
        assert answer.status_code in {201, 202}, answer.text
        wait_for(lambda: self.is_ready(server), f"server {server!r} of {self.user}: {self.servers()}")

    def close(self, server: str = "") -> None:
        self.http.delete(self._path(server))
        wait_for(lambda: server not in self.servers(), f"the end of server {server!r}")

    def browse(self) -> httpx.Client:
        """A browser's session: pages take cookies, not tokens."""
        if self._browser is None:
            self._browser = httpx.Client(base_url=self.hub_url, timeout=60, trust_env=False, follow_redirects=True)
            self._browser.get("/hub/login")
            xsrf = self._browser.cookies.get("_xsrf", path="/hub/")
            form = {"username": self.user, "password": self._password, "_xsrf": xsrf or ""}
            answer = self._browser.post("/hub/login?next=/hub/home", data=form)
            assert answer.url.path == "/hub/home", answer.text
        return self._browser

    def go_home(self) -> None:
        """Stop all servers and log out."""
        if self._browser:
            self._browser.close()
        for server in self.servers():
            self.close(server)
        self.http.close()

    def api(self) -> Client:
        return Client(f"{self.hub_url}/services/hotdesk", self.token)

    def workloads(self) -> dict[str, WorkloadOut]:
        """The person's own, by name, as the scheduler tells them."""
        client = self.api()
        try:
            return {item.name: item for item in client.call(calls.workloads(user=self.user)).items}
        finally:
            client.close()

    def status(self, workload: str) -> str | None:
        found = self.workloads().get(workload)
        return found.status if found else None
