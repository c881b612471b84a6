"""A cluster of one's own to break: control plane, pretended nodes, real schedulers, two projects that take GPUs back from each other.

Workloads are written as resources, so that they come and go whether or not anybody leads. Who ends because he lost the lead is started
again, as a Deployment would.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from cluster.control_plane import ControlPlane
from history import History, watched
from hotdesk_scheduler.engines.kubernetes import crds, resources
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError
from kube_world import node_object
from scheduler_fixture import Scheduler

Json = dict[str, Any]
NODES, GPUS = 3, 8
LONG_S, LEASE_S = 60.0, 12.0  # a busy machine is no reason to lose it; where it is to be lost, as it is by default
WITHIN_S = 120.0
MOST_WAITING = 10
FILLERS = NODES * GPUS + 4  # jobs of one GPU that do not end: more than there is room for
PASSING = (409, 429)


class Storm:
    """`namespace` is the installation's; `there(project)` where its workloads are."""

    def __init__(self, plane: ControlPlane, api: Api, history: History, folder: Path, *, seed: int, lease_s: float) -> None:
        self.plane = plane
        self.api = api
        self.history = history
        self.folder = folder
        self.random = random.Random(seed)
        self.lease_s = lease_s
        self.namespace = f"test-{uuid.uuid4().hex[:8]}"
        self.schedulers: list[Scheduler] = []
        self._count = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._unsettled = ""

    # schedulers

    async def begin(self, replicas: int = 2) -> None:
        """Two projects that fill the cluster together, and schedulers for them, one of which leads."""
        await self.api.create("/api/v1/namespaces", _namespace(self.namespace))
        for name in ("team-a", "team-b"):
            await self.write("Project", self.namespace, name, {"gpu": {"quota": NODES * GPUS * 500}})
        places = ["--namespace", self.namespace, "--namespace-prefix", f"{self.namespace}-", "--kubeconfig", str(self.plane.kubeconfig)]
        times = ["--lease-s", str(self.lease_s), "--grace-s", "1", "--node-patience-s", "4", "--tick-s", "5"]
        for number in range(replicas):
            more = ["--engine", "kubernetes", *places, *times]
            self.schedulers.append(Scheduler(self.folder / f"s{number}", "", "", more=more))
        await asyncio.gather(*(asyncio.to_thread(one.start) for one in self.schedulers))
        await self.until(self.leader, "somebody leading")
        self._tasks.append(asyncio.create_task(self._tend()))

    async def _tend(self) -> None:
        while True:
            for one in self.schedulers:
                if one.process is not None and one.process.poll() is not None:
                    with contextlib.suppress(AssertionError):
                        await asyncio.to_thread(one.start)
            await asyncio.sleep(0.1)

    async def leader(self) -> Scheduler | None:
        """Who holds the Lease, if that one is alive."""
        holder = (await self.api.get(self._lease()))["spec"].get("holderIdentity") or ""
        alive = [one for one in self.schedulers if one.process is not None and one.process.poll() is None]
        return next((one for one in alive if one.process and f"-{one.process.pid}-" in holder), None)

    def _lease(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/hotdesk-scheduler"

    async def kill(self, leader: Scheduler) -> None:
        """kill -9, and nobody waits for the Lease of who is certainly dead."""
        leader.kill()
        await self.insist(lambda: self.api.merge(self._lease(), {"spec": {"holderIdentity": ""}}))

    def signal(self, one: Scheduler, number: signal.Signals) -> None:
        assert one.process is not None
        one.process.send_signal(number)

    def logs(self) -> str:
        return "\n".join(one.log.read_text() for one in self.schedulers)

    # work

    def there(self, project: str) -> str:
        return f"{self.namespace}-{project}"

    async def write(self, kind: str, namespace: str, name: str, spec: Json) -> None:
        """As kubectl would, as often as it takes."""
        body = {"apiVersion": resources.API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
        await self.insist(lambda: self.api.create(resources.path(kind, namespace), body))

    async def insist(self, call: Callable[[], Any]) -> None:
        """While the API server is away, is busy or does not know the namespace yet. There already: it arrived before."""
        end = time.monotonic() + WITHIN_S
        while True:
            try:
                await call()
                return
            except ApiError as error:
                if error.reason == "AlreadyExists":
                    return
                if not (error.is_passing or error.status in (403, 404, 409)) or time.monotonic() > end:
                    raise
            await asyncio.sleep(0.1)

    async def submit(self, project: str, *, gpus: int = 1, runs_for: str = "", **spec: Any) -> str:
        self._count += 1
        name = f"{'ends' if runs_for else 'stays'}-{self._count}"
        ends = {"annotations": {"test.hotdesk.io/runs-for": runs_for}} if runs_for else {}
        await self.write("Workload", self.there(project), name, {"image": "x", "gpuMillis": gpus * 1000, **ends, **spec})
        return name

    async def fill(self) -> None:
        """One project takes everything, over its quota."""
        for _ in range(FILLERS):
            await self.submit("team-a")
        await self.until(self.is_full, "every GPU being used")

    @contextlib.asynccontextmanager
    async def churn(self) -> AsyncIterator[None]:
        """Jobs of the other project come, take GPUs back, end or are deleted, for as long as this lasts."""
        churning = asyncio.create_task(self._churn())
        try:
            yield
            assert not churning.done(), churning.exception()
        finally:
            churning.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await churning

    async def _churn(self) -> None:
        while True:
            await self.until(self._is_quiet, "the schedulers keeping up")
            draw = self.random.random()
            if draw < 0.5:
                await self.submit("team-b", gpus=self.random.choice((1, 1, 2, 4)), runs_for=f"{self.random.randint(100, 1000)}ms")
            elif draw < 0.7:
                await self.submit("team-b", runs_for="500ms", kind="pytorch", workers=3)
            elif draw < 0.85:
                await self.submit("team-b", gpus=0, gpuMillis=500, runs_for="500ms")
            else:
                name = await self.submit("team-a", gpus=2)
                await asyncio.sleep(self.random.uniform(0, 0.5))
                path = resources.path("Workload", self.there("team-a"), name)
                await self.insist(lambda path=path: self.api.delete(path))  # type: ignore[misc]  # mypy knows no default of a lambda
            await asyncio.sleep(self.random.uniform(0.02, 0.3))

    async def _is_quiet(self) -> bool:
        items = (await self.api.get(resources.path("Workload", self.there("team-b"))))["items"]
        return sum(bool(item.get("status", {}).get("status") != "Succeeded") for item in items) < MOST_WAITING

    # what has become of it

    async def until(self, holds: Callable[[], Any], what: str, within_s: float = WITHIN_S, problem: Callable[[], str] = str) -> Any:
        end = time.monotonic() + within_s
        while True:
            with contextlib.suppress(ApiError):
                if value := await holds():
                    return value
            assert time.monotonic() < end, f"{what}: not within {within_s:.0f} s {problem()}\n{self.logs()[-6000:]}"
            await asyncio.sleep(0.1)

    async def is_full(self) -> bool:
        return self.history.gpus_held() == NODES * GPUS

    async def workloads(self) -> dict[str, Json]:
        """By name; of both projects."""
        found = [
            item for name in ("team-a", "team-b") for item in (await self.api.get(resources.path("Workload", self.there(name))))["items"]
        ]
        return {item["metadata"]["name"]: item for item in found}

    async def settles(self) -> None:
        """Everything that was to end has ended, every GPU is used by what stays, and statuses say what pods are there."""
        await self.until(self._is_settled, "everything settling", problem=lambda: self._unsettled)

    async def _is_settled(self) -> bool:
        found = await self.workloads()
        words = {name: item.get("status", {}).get("status") for name, item in found.items()}
        running = {item["metadata"]["uid"]: name for name, item in found.items() if words[name] == "Running"}
        alive = {pod.whose[0]: pod.name for pod in self.history.alive.values() if pod.whose}
        wrong = {
            "not ended": [name for name, word in words.items() if name.startswith("ends-") and word != "Succeeded"],
            "running without a pod": [name for uid, name in running.items() if uid not in alive],
            "pods of what does not run": [name for uid, name in alive.items() if uid not in running],
            "waiting without a reason": [
                name for name, word in words.items() if word == "Pending" and not found[name]["status"].get("message")
            ],
            "bound nowhere": [pod.name for pod in self.history.alive.values() if not pod.node],
            "GPUs held": [] if await self.is_full() else [self.history.gpus_held()],
        }
        self._unsettled = str({what: which for what, which in wrong.items() if which})
        return not any(wrong.values())

    async def end(self) -> None:
        """Every workload deleted by hand: nothing is left of any."""
        for name in ("team-a", "team-b"):
            await self.insist(lambda name=name: self.api.request("DELETE", resources.path("Workload", self.there(name))))  # type: ignore[misc]

        async def is_empty() -> bool:
            return not self.history.alive and not await self.workloads()

        await self.until(is_empty, "nothing being left")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self.schedulers:
            if one.process is not None and one.process.poll() is None:
                one.process.send_signal(signal.SIGCONT)
                one.kill()


def _namespace(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def start_plane(folder: Path) -> ControlPlane:
    plane = ControlPlane(folder)
    plane.start()
    plane.start_kwok()
    return plane


async def prepare(api: Api) -> None:
    await crds.install(api)
    for number in range(NODES):
        with contextlib.suppress(ApiError):
            await api.create("/api/v1/nodes", node_object(f"dgx1-{number}", gpus=GPUS))
    while not all(_is_ready(item) for item in (await api.get("/api/v1/nodes"))["items"]):  # noqa: ASYNC110  # the test's limit ends it
        await asyncio.sleep(0.1)


def _is_ready(node: Json) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in node.get("status", {}).get("conditions", []))


@contextlib.asynccontextmanager
async def storm(plane: ControlPlane, folder: Path, *, seed: int, lease_s: float = LONG_S) -> AsyncIterator[Storm]:
    """With every GPU of the cluster in use. In the end everything has settled, is deleted, and was never wrong in between."""
    api = await Api.connect(plane.kubeconfig)
    try:
        await prepare(api)
        async with watched(api, gpus=GPUS) as history:
            world = Storm(plane, api, history, folder, seed=seed, lease_s=lease_s)
            try:
                await world.begin()
                await world.fill()
                yield world
                await world.settles()
                await world.end()
            finally:
                await world.close()
    finally:
        await api.close()
