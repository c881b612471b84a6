"""A large pretended cluster with a real `hotdesk-scheduler serve --engine kubernetes`: for `make bench` and for tests at a small size.

What is waited for is asked of the API server itself, not of the scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import psutil
from cluster.running import Cluster, shared_cluster
from hotdesk_api.models import WorkloadSpec
from hotdesk_scheduler.core.model import GpuRequest, Kind, Placement, Pod, PodRequest, PodState, Workload
from hotdesk_scheduler.engines.kubernetes import crds, manifests, resources
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError, until_it_works
from hotdesk_scheduler.service.specs import workload_of
from scheduler_fixture import ADMIN, Scheduler

Json = dict[str, Any]
GPUS = 8
AT_ONCE = 32
GIVE_UP_S = 300.0


@dataclass
class Seen:
    """How many came, are leaving and went since a watch began, and when the last news came (by `time.perf_counter`)."""

    came: int = 0
    leaving: int = 0
    went: int = 0
    last_at: float = 0.0
    problem: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, *, came: int = 0, leaving: int = 0, went: int = 0, within_s: float = GIVE_UP_S) -> float:
        """When it was so."""
        async with asyncio.timeout(within_s):
            while self.came < came or self.leaving < leaving or self.went < went:
                assert not self.problem, self.problem
                self.changed.clear()
                await self.changed.wait()
        return self.last_at


async def _count(api: Api, path: str, params: Json, seen: Seen) -> None:
    """The API server ends a watch that reads too slowly in a burst: it goes on where it was."""
    version = params["resourceVersion"]
    try:
        while True:
            now = {**params, "resourceVersion": version}
            response = await until_it_works(lambda now=now: api.stream(path, now), gives_up=lambda: False)
            try:
                async for line in response.content:
                    assert not line.startswith(b'{"type":"ERROR"'), line[:500]
                    seen.came += line.startswith(b'{"type":"ADDED"')
                    seen.went += line.startswith(b'{"type":"DELETED"')
                    seen.leaving += line.startswith(b'{"type":"MODIFIED"') and b'"deletionTimestamp"' in line
                    seen.last_at = time.perf_counter()
                    seen.changed.set()
                    if found := _VERSION.search(line):
                        version = found[1].decode()
            finally:
                response.close()
    except (aiohttp.ClientError, OSError, ValueError, AssertionError, ApiError) as error:
        seen.problem = f"the watch of {path} broke: {error!r}"
        seen.changed.set()


_VERSION = re.compile(rb'"resourceVersion":"(\d+)"')


class Large:
    """`api` is the administrator's. One installation at a time has the namespace `name`; projects' namespaces are `NAME-PROJECT`."""

    def __init__(self, cluster: Cluster, api: Api, name: str, folder: Path) -> None:
        self.cluster = cluster
        self.api = api
        self.owner = self.name = name
        self.folder = folder
        self.nodes: list[str] = []

    @asynccontextmanager
    async def installed(self, name: str, projects: str, kubeconfig: Path | None = None) -> AsyncIterator[tuple[Scheduler, Caller]]:
        """An installation of its own: nothing it finds is of another one's. `kubeconfig`: with other rights than the administrator's."""
        self.name = f"{self.owner}-{name}"
        await self.api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}})
        with self._scheduler(projects, kubeconfig or self.cluster.kubeconfig) as running:
            caller = Caller(running.url)
            try:
                yield running, caller
            finally:
                await caller.close()

    @contextmanager
    def _scheduler(self, projects: str, kubeconfig: Path) -> Iterator[Scheduler]:
        names = ["--namespace", self.name, "--namespace-prefix", f"{self.name}-", "--kubeconfig", str(kubeconfig)]
        one = Scheduler(self.folder / self.name, "", projects, more=["--engine", "kubernetes", *names, "--grace-s", "5"])
        try:
            one.start()
            self.cluster.wait_until("the scheduler leads", lambda: is_ready(one))
            yield one
        finally:
            one.end()

    def namespace(self, project: str) -> str:
        return f"{self.name}-{project}"

    def pods_path(self, project: str) -> str:
        return f"/api/v1/namespaces/{self.namespace(project)}/pods"

    async def count(self, path: str) -> int:
        """How many objects there are, without reading them."""
        page = await self.api.get(path, limit=1)
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))

    @asynccontextmanager
    async def watched(self, path: str, selector: str = "") -> AsyncIterator[Seen]:
        """Counts pods as they come to be what the field selector says."""
        start = (await self.api.get(path, limit=1))["metadata"]["resourceVersion"]
        seen = Seen()
        params = {"watch": "1", "resourceVersion": start, "fieldSelector": selector}
        counting = asyncio.create_task(_count(self.api, path, params, seen))
        try:
            yield seen
        finally:
            counting.cancel()
            await asyncio.gather(counting, return_exceptions=True)

    async def create_pods(self, project: str, count: int) -> None:
        """The pods that as many one-GPU workloads would get, on their nodes, by the administrator's hand."""
        path = self.pods_path(project)
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with turns:
                await self.api.create(path, self.plain_pod(project, number))

        await asyncio.gather(*(one(number) for number in range(count)))

    def plain_pod(self, project: str, number: int) -> Json:
        spec = job(f"raw-{number}", project)
        pod = Pod(0, PodRequest(GpuRequest(whole=1), 100, 128), PodState.STARTING, Placement(self.nodes[number % len(self.nodes)], whole=1))
        workload = Workload(id=f"raw-{number}", name=f"raw-{number}", project=project, kind=Kind.TRAIN, user="root", pods=(pod,))
        variables = manifests.identity(workload, pod)
        body = manifests.pod_object(workload, spec, pod, uid=f"raw-{number}", namespace=self.namespace(project), variables=variables)
        del body["metadata"]["ownerReferences"], body["metadata"]["labels"]["hotdesk.io/workload-id"]
        return {**body, "spec": {**body["spec"], "nodeName": self.nodes[number % len(self.nodes)]}}

    async def delete_pods(self, project: str) -> None:
        path = self.pods_path(project)
        await self.api.request("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}, timeout_s=120)
        await until(lambda: self._is_empty(path), "the pods being gone")

    async def _is_empty(self, path: str) -> bool:
        return not await self.count(path)

    async def write_workloads(self, specs: Sequence[WorkloadSpec]) -> None:
        """As resources, by the administrator's hand."""
        turns, now = asyncio.Semaphore(AT_ONCE), time.time()

        async def one(spec: WorkloadSpec) -> None:
            assert spec.name is not None
            namespace = self.namespace(spec.project)
            workload = workload_of(spec, workload_id=f"{namespace}-{spec.name}", name=spec.name, user="root", now=now)
            async with turns:
                await self.api.create(resources.path("Workload", namespace), resources.workload_object(workload, spec, namespace))

        await asyncio.gather(*(one(spec) for spec in specs))

    async def forget_workloads(self, project: str) -> None:
        """Their finalizers are a scheduler's to take off, and it has ended."""
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(name: str) -> None:
            async with turns:
                await self.api.merge(resources.path("Workload", self.namespace(project), name), {"metadata": {"finalizers": None}})

        items = (await self.api.get(resources.path("Workload", self.namespace(project))))["items"]
        await asyncio.gather(*(one(item["metadata"]["name"]) for item in items))
        await self.api.request("DELETE", resources.path("Workload", self.namespace(project)), timeout_s=120)

    async def requests_about_workloads(self) -> int:
        """Answered so far by the API server: about workloads, pods and events; not what lists, watches and what plays the kubelet."""
        response = await self.api.stream("/metrics", {})
        found = 0.0
        for line in (await response.read()).decode().splitlines():
            if (about := _ABOUT.match(line)) and about["verb"] in _COUNTED[about["resource"]]:
                found += float(line.rsplit(" ", 1)[1])
        return int(found)

    def cpu_s(self, *more: int) -> float:
        """CPU time so far of the cluster's programs, of this process and of those with these ids: nothing else of this machine."""
        found = 0.0
        for one in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess):  # or a zombie
                if one.pid in (os.getpid(), *more) or str(self.cluster.folder) in " ".join(one.cmdline()):
                    times = one.cpu_times()
                    found += times.user + times.system
        return found

    async def until_told(self) -> None:
        """Nothing is written about workloads any more."""
        before = -1

        async def is_quiet() -> bool:
            nonlocal before
            before, now = await self.requests_about_workloads(), before
            return before == now

        await until(is_quiet, "all being told", pause_s=1.5)


_ABOUT = re.compile(r'apiserver_request_total\{.*resource="(?P<resource>workloads|pods|events)".*verb="(?P<verb>[A-Z]+)"')
_COUNTED = {
    "workloads": ("POST", "PUT", "PATCH", "GET", "DELETE"),
    "pods": ("POST", "PUT", "GET", "DELETE"),
    "events": ("POST", "PATCH"),
}


def job(name: str, project: str, **values: Any) -> WorkloadSpec:
    given = {"name": name, "project": project, "image": "python", "command": ["sleep", "infinity"], "gpu_millis": 1000, **values}
    return WorkloadSpec.model_validate(given)


def is_ready(one: Scheduler) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{one.url}/readyz", timeout=5).status_code == 200
    return False


class Caller:
    """REST as an admin, with little cost of its own: many requests at once on few connections."""

    def __init__(self, url: str, token: str = ADMIN) -> None:
        self._url = url
        self._session = aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"})

    async def close(self) -> None:
        await self._session.close()

    async def call(self, method: str, path: str, body: str | None = None) -> Any:
        async with self._session.request(method, self._url + path, data=body) as answer:
            content = await answer.json(content_type=None) if answer.status != 204 else None
            assert answer.status < 400, f"{method} {path}: {answer.status} {content}"
            return content

    async def submit(self, specs: Sequence[WorkloadSpec], at_once: int = AT_ONCE) -> None:
        turns = asyncio.Semaphore(at_once)

        async def one(body: str) -> None:
            async with turns:
                await self.call("POST", "/v1/workloads", body)

        await asyncio.gather(*(one(spec.model_dump_json(exclude_unset=True)) for spec in specs))


async def until(holds: Callable[[], Awaitable[bool]], what: str, *, pause_s: float = 0.25, within_s: float = GIVE_UP_S) -> None:
    deadline = time.monotonic() + within_s
    while not await holds():
        assert time.monotonic() < deadline, f"{what}: not within {within_s:.0f} s"
        await asyncio.sleep(pause_s)


@asynccontextmanager
async def large(nodes: int, session: str) -> AsyncIterator[Large]:
    """A control plane of its own with so many nodes, definitions installed. Raises CannotRunError where there can be none."""
    with tempfile.TemporaryDirectory() as folder, shared_cluster(session) as cluster:
        api = await Api.connect(cluster.kubeconfig)
        try:
            await crds.install(api)
            world = Large(cluster, api, f"large-{os.getpid()}", Path(folder))
            world.nodes = cluster.add_nodes(nodes, owner=world.name, gpus=GPUS)
            yield world
        finally:
            await api.close()
