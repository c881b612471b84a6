"""A real hub and a real scheduler on the test cluster, each a process that can be killed; workspaces are pods that kwok plays."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from cluster.running import Cluster
from hotdesk_scheduler.engines.kubernetes import crds
from people import Progress
from scheduler_fixture import ADMIN, HOST, Scheduler

TOKEN = "tests-token-" * 3
CONFIG = Path(__file__).parent / "kubernetes" / "hub_config.py"
WITHIN_S = 120.0
START_S = 280.0


class _Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@dataclass
class Hub:
    """`start()` returns when it answers; `kill()` is kill -9."""

    cluster: Cluster
    scheduler: Scheduler
    namespace: str
    folder: Path
    notebook: str
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    python: str = sys.executable
    config: Path = CONFIG
    base_path: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def api(self) -> httpx.Client:
        base_url = f"{self.url}{self.base_path}/hub/api"
        return httpx.Client(base_url=base_url, headers={"Authorization": f"token {TOKEN}"}, timeout=60, trust_env=False)

    def start(self) -> None:
        given = {
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "HUB_URL": self.url,
            "SCHEDULER_URL": self.scheduler.url,
            "SCHEDULER_TOKEN": HOST,
            "TESTS_TOKEN": TOKEN,
            "PRETENDED_SERVER": self.notebook,
            "NODE_POOL": self.namespace,
            "PYTHONPATH": str(Path(__file__).parent),
            **self.environment,
        }
        with (self.folder / "hub.log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.python, "-m", "jupyterhub", "-f", str(self.config)],
                cwd=self.folder,
                env={**os.environ, **given},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.until(self._answers, "the hub answering", within_s=START_S)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the hub ended:\n{self.log[-4000:]}"
        with contextlib.suppress(httpx.HTTPError):
            return self.api.get("/").status_code == 200
        return False

    @property
    def log(self) -> str:
        path = self.folder / "hub.log"
        return path.read_text() if path.exists() else ""

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    def until(self, holds: Any, what: str, *, within_s: float = WITHIN_S) -> Any:
        """What `holds()` gives, once that is something."""
        deadline = time.monotonic() + within_s
        while not (found := holds()):
            assert time.monotonic() < deadline, f"{what}: not within {within_s:.0f} s\n{self.log[-6000:]}"
            time.sleep(0.1)
        return found

    # people

    def open(self, user: str, *, wait: bool = True, **options: Any) -> None:
        answer = self.api.post(f"/users/{user}/server", json=options)
        assert answer.status_code in {201, 202}, answer.text
        if wait:
            self.until(lambda: self.is_ready(user), f"{user}'s workspace")

    def server(self, user: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api.get(f"/users/{user}").json()["servers"].get("", {})
        return found

    def is_ready(self, user: str) -> bool:
        return bool(self.server(user).get("ready"))

    def close(self, user: str) -> None:
        self.api.delete(f"/users/{user}/server")
        self.until(lambda: not self.server(user), f"the end of {user}'s workspace")

    def watch(self, user: str) -> Progress:
        return Progress(self.api, f"/users/{user}/server/progress")

    @contextlib.contextmanager
    def browser(self, user: str) -> Iterator[httpx.Client]:
        """Logged in: pages take cookies."""
        base_url = f"{self.url}{self.base_path}"
        with httpx.Client(base_url=base_url, timeout=60, trust_env=False, follow_redirects=True) as client:
            client.get("/hub/login")
            form = {"username": user, "password": "any", "_xsrf": client.cookies.get("_xsrf", path=f"{self.base_path}/hub/") or ""}
            answer = client.post(f"/hub/login?next={self.base_path}/hub/home", data=form)
            assert answer.status_code == 200, answer.text
            yield client

    # the cluster's and the scheduler's view

    def space(self, project: str = "team-a") -> str:
        return f"{self.namespace}-{project}"

    def pod(self, user: str, project: str = "team-a") -> dict[str, Any]:
        """Empty if there is none."""
        found = self.cluster.get("pods", "-n", self.space(project), "-l", "component=singleuser-server")["items"]
        return next((item for item in found if item["metadata"]["name"] == f"jupyter-{user}"), {})

    def claim(self, user: str, project: str = "team-a") -> dict[str, Any]:
        found = self.cluster.get("persistentvolumeclaims", "-n", self.space(project))["items"]
        return next((item for item in found if item["metadata"]["name"] == f"home-{user}"), {})

    def workload(self, user: str, project: str = "team-a") -> dict[str, Any]:
        """As an administrator sees it; empty if there is none."""
        path = f"{self.scheduler.url}/v1/workloads/{project}/workspace-{user}"
        answer = httpx.get(path, headers={"Authorization": f"Bearer {ADMIN}"}, timeout=30, trust_env=False)
        found: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
        return found


@contextlib.contextmanager
def hub_on(cluster: Cluster, namespace: str, folder: Path) -> Iterator[Hub]:
    """With projects team-a (4 GPUs) and team-b (4), on two nodes of 8 GPUs of their own."""
    for file in crds.FILES:
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
    cluster.kubectl(
        "wait", "--for=condition=Established", "crd/projects.hotdesk.io", "crd/departments.hotdesk.io", "crd/workloads.hotdesk.io"
    )
    cluster.add_nodes(2, owner=namespace, labels={"hotdesk.io/pool": namespace, "nvidia.com/gpu.memory": "32768"})
    names = ["--namespace", namespace, "--namespace-prefix", f"{namespace}-", "--kubeconfig", str(cluster.kubeconfig)]
    scheduler = Scheduler(folder / "scheduler", "", "team-a=4,team-b=4", more=["--engine", "kubernetes", *names, "--grace-s", "1"])
    with pretended_notebook() as notebook:
        hub = Hub(cluster, scheduler, namespace, folder, notebook)
        try:
            scheduler.start()
            hub.until(lambda: is_ready(scheduler), "the scheduler being ready")
            hub.start()
            yield hub
        finally:
            hub.end()
            scheduler.end()
            for project in ("team-a", "team-b"):
                clean(cluster, hub.space(project))


@contextlib.contextmanager
def pretended_notebook() -> Iterator[str]:
    """The address of what answers everything with 200."""
    notebook = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=notebook.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{notebook.server_address[1]}"
    finally:
        notebook.shutdown()
        notebook.server_close()


def is_ready(scheduler: Scheduler) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{scheduler.url}/readyz", timeout=5, trust_env=False).status_code == 200
    return False


def clean(cluster: Cluster, space: str) -> None:
    with contextlib.suppress(Exception):  # it may never have been made
        for name in cluster.kubectl("get", "workloads", "-n", space, "-o", "name").split():
            cluster.kubectl("patch", name, "-n", space, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
        cluster.end_test(space)
