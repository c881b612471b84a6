"""A real service on a free loopback port in this very process, on the fake engine unless told otherwise; for tests of service and rest."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotdesk_api import calls, models
from hotdesk_api.client import AsyncClient
from hotdesk_scheduler.core.model import Node, Policy, Project, Quota
from hotdesk_scheduler.decisionlog.writer import DecisionLog
from hotdesk_scheduler.engines.base import Engine, Image
from hotdesk_scheduler.engines.fake import FakeEngine
from hotdesk_scheduler.records import Records
from hotdesk_scheduler.rest.app import listen, make_app
from hotdesk_scheduler.rest.auth import Authenticator, FileAuthenticator, caller_of
from hotdesk_scheduler.service.callers import Caller, Scopes
from hotdesk_scheduler.service.desk import Desk
from hotdesk_scheduler.service.hub import Hub
from hotdesk_scheduler.service.workspaces import Patience

SCOPES = Scopes()
TOKENS: dict[str, dict[str, Any]] = {
    "admin-token": {"name": "root", "groups": [], "scopes": [SCOPES.admin]},
    "alice-token": {"name": "alice", "groups": ["team-a"], "scopes": [SCOPES.submit]},
    "ann-token": {"name": "ann", "groups": ["team-a"], "scopes": [SCOPES.submit]},
    "bob-token": {"name": "bob", "groups": ["team-b"], "scopes": [SCOPES.submit]},
    "reader-token": {"name": "rita", "groups": ["team-a"], "scopes": [SCOPES.read]},
    "nobody-token": {"name": "nobody", "groups": ["team-a"], "scopes": []},
    "host-token": {"name": "hotdesk-spawner", "kind": "service", "scopes": [SCOPES.host]},
}
IMAGES = (Image("python", "Python"), Image("gcr.io/run-ai-demo/quickstart", "A training loop"))


def write_tokens(path: Path) -> Path:
    path.write_text(json.dumps(TOKENS))
    path.chmod(0o600)
    return path


def nodes(count: int = 2, *, gpus: int = 8) -> list[Node]:
    return [
        Node(
            name=f"sim-{number + 1}",
            gpus=gpus,
            gpu_memory_mib=32768,
            cpu_millis=80_000,
            memory_mib=512_000,
            gpu_model="V100-SXM2-32GB",
            simulated=True,
        )
        for number in range(count)
    ]


def projects(**quotas: int) -> list[Project]:
    """`team_a=4` -> project team-a with a quota of four GPUs."""
    return [Project(name.replace("_", "-"), gpu=Quota(quota=gpus * 1000)) for name, gpus in quotas.items()]


def fake_engine(*, automatic: bool = True) -> FakeEngine:
    return FakeEngine(nodes(), projects=projects(team_a=4, team_b=2), images=IMAGES, automatic=automatic)


def spec(name: str | None = None, *, project: str = "team-a", gpus: float = 1, **more: Any) -> models.WorkloadSpec:
    return models.WorkloadSpec(name=name, project=project, image=more.pop("image", "python"), gpu_millis=int(gpus * 1000), **more)


@dataclass
class Running:
    """A service under test; `client(token)` speaks to it."""

    desk: Desk
    url: str
    _clients: list[AsyncClient] = field(default_factory=list)

    def client(self, token: str | None = "alice-token", *, url: str | None = None) -> AsyncClient:
        client = AsyncClient(url or self.url, token)
        self._clients.append(client)
        return client

    @property
    def engine(self) -> Any:
        return self.desk.engine

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


@asynccontextmanager
async def running(
    tmp_path: Path,
    *,
    engine: Engine | None = None,
    hub: Hub | None = None,
    authenticator: Authenticator | None = None,
    policy: Policy | None = None,
    patience: Patience | None = None,
    prefix: str = "/services/hotdesk/",
    records_url: str | None = None,
    decision_log: DecisionLog | None = None,
) -> AsyncIterator[Running]:
    desk = Desk(
        engine or fake_engine(),
        Records(records_url or f"sqlite:///{tmp_path / 'records.db'}"),
        policy=policy or Policy(grace_s=1.0),
        hub=hub,
        patience=patience,
        decision_log=decision_log,
    )
    checks = authenticator or FileAuthenticator(write_tokens(tmp_path / "tokens.json"), SCOPES)
    await desk.open()
    server, port = await listen(make_app(desk, checks, prefix=prefix), "127.0.0.1", 0)
    desk.api_url = f"http://127.0.0.1:{port}"
    await desk.start()
    found = Running(desk, desk.api_url)
    try:
        yield found
    finally:
        await found.close()
        server.stop()
        await desk.stop()
        await server.close_all_connections()
        await checks.close()


def caller(token: str = "alice-token") -> Caller:
    return caller_of(TOKENS[token], SCOPES)


async def until(holds: Callable[[], object], *, within_s: float = 60.0) -> None:
    """Look until it holds; fails after `within_s`."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come to hold"
        await asyncio.sleep(0.01)


async def until_status(
    client: AsyncClient, name: str, *statuses: str, project: str = "team-a", within_s: float = 60.0
) -> models.WorkloadDetail:
    """Look until the workload has one of these statuses."""
    deadline = time.monotonic() + within_s
    while True:
        found = await client.call(calls.workload(project, name))
        if found.status in statuses:
            return found
        assert time.monotonic() < deadline, f"{name} is {found.status}: {found.reason}"
        await asyncio.sleep(0.02)
