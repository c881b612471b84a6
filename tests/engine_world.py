"""Worlds for engine tests: one engine with two simulated nodes, pods whose programs wait for a word, and waiting without sleeping long."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotdesk_api.models import WorkloadSpec
from hotdesk_scheduler.core.model import GpuRequest, Kind, Node, Placement, Pod, PodRequest, PodState, Project, Share, Workload
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines.base import Change, Engine
from hotdesk_scheduler.engines.fake import FakeEngine
from hotdesk_scheduler.engines.local.engine import LocalConfig, LocalEngine

SIMULATION = "2x8xV100-SXM2-32GB"
NODE = "dgx1-1"
PATIENCE_S = 30.0
RECLAIMED = Reason(ReasonCode.RECLAIMED, "Its place was given back to its owner.")
WAITS = ["sh", "-c", 'echo started; read code < "$0"; echo told "$code"; exit "$code"']


async def eventually(
    holds: Callable[[], Any], what: str = "what was waited for", within_s: float = PATIENCE_S, is_now: Callable[[], Any] | None = None
) -> Any:
    """The first true value of `holds()`; fails with `what`, and with what is then instead, after a generous deadline."""
    give_up = time.monotonic() + within_s
    while not (value := holds()):
        assert time.monotonic() < give_up, f"{what} did not happen within {within_s} s{f'; it is {is_now()}' if is_now else ''}"
        await asyncio.sleep(0.01)
    return value


class World:
    """An engine and what the tests do with it. Ids are `id-NAME`."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self.engine = engine
        self.directory = directory

    def workload(self, name: str, *, kind: Kind = Kind.TRAIN, gpu: GpuRequest | None = None, pods: int = 1, **values: Any) -> Workload:
        request = PodRequest(gpu or GpuRequest())
        values = {"project": "team-a", "user": "ada", "created_at": 1.0, "min_pods": pods, **values}
        return Workload(id=f"id-{name}", name=name, kind=kind, pods=tuple(Pod(index, request) for index in range(pods)), **values)

    async def submit(self, name: str, *, kind: Kind = Kind.TRAIN, gpu: GpuRequest | None = None, pods: int = 1, **spec: Any) -> str:
        """Without a command or program its pods wait until `end()`."""
        values = {name: spec.pop(name) for name in ("completions", "min_pods") if name in spec}
        workload = self.workload(name, kind=kind, gpu=gpu, pods=pods, **values)
        asked = {"image": "bash", **({} if {"command", "program", "image"} & set(spec) else self.waiting(name)), **spec}
        await self.engine.submit(
            workload, WorkloadSpec.model_validate({"name": name, "project": workload.project, "kind": kind.value, **asked})
        )
        return workload.id

    def waiting(self, name: str) -> dict[str, Any]:
        fifo = self.directory / f"{name}.fifo"
        if not fifo.exists():
            os.mkfifo(fifo)
        return {"command": WAITS, "args": [str(fifo)]}

    async def start(self, workload_id: str, index: int = 0, placement: Placement | None = None) -> None:
        await self.engine.start_pod(workload_id, index, placement or Placement(NODE), time.time())

    async def run(self, workload_id: str, index: int = 0, placement: Placement | None = None) -> None:
        await self.start(workload_id, index, placement)
        await self.until(workload_id, PodState.RUNNING, index)

    async def stop(self, workload_id: str, index: int = 0, grace_s: float = 20.0) -> None:
        await self.engine.stop_pod(workload_id, index, RECLAIMED, grace_s, time.time())

    async def end(self, workload_id: str, index: int = 0, code: int = 0) -> None:
        """The pod's program ends by itself."""
        if isinstance(self.engine, FakeEngine):
            self.engine.exit_pod(workload_id, index, code)
            return
        fifo = self.directory / f"{workload_id.removeprefix('id-')}.fifo"
        (await eventually(lambda: _writable(fifo), "the program reading its pipe")).send(code)

    async def until(self, workload_id: str, state: PodState, index: int = 0) -> Pod:
        """The pod, once it is in that state. The fake moves when told."""

        def there() -> Pod | None:
            if isinstance(self.engine, FakeEngine):
                self.engine.settle()
            pod = self.pod(workload_id, index)
            return pod if pod.state is state else None

        pod = await eventually(there, f"{workload_id} becoming {state}", is_now=lambda: self.pod(workload_id, index))
        assert isinstance(pod, Pod)
        return pod

    def find(self, workload_id: str) -> Workload | None:
        return next((one for one in self.engine.snapshot().workloads if one.id == workload_id), None)

    def pod(self, workload_id: str, index: int = 0) -> Pod:
        workload = self.find(workload_id)
        assert workload is not None, f"{workload_id} is gone"
        return next(pod for pod in workload.pods if pod.index == index)

    async def log(self, workload_id: str, index: int = 0, **options: Any) -> str:
        return b"".join([block async for block in self.engine.logs(workload_id, index, **options)]).decode()

    async def says(self, workload_id: str, words: str, index: int = 0) -> str:
        """The whole log, once it holds these words."""
        give_up = time.monotonic() + PATIENCE_S
        while words not in (text := await self.log(workload_id, index)):
            assert time.monotonic() < give_up, f"{workload_id} did not say {words!r} but {text!r}"
            await asyncio.sleep(0.02)
        return text


class Local(World):
    """The local engine, with what only it has."""

    engine: LocalEngine

    def __init__(self, directory: Path, **config: Any) -> None:
        self.state_dir = directory / "state"
        self.config = LocalConfig(self.state_dir, simulate=SIMULATION, **config)
        super().__init__(LocalEngine(self.config), directory)

    async def restart(self) -> None:
        """A new engine takes over what the old one let go."""
        await self.engine.close()
        await self.restart_after_close()

    async def restart_after_close(self) -> None:
        self.engine = LocalEngine(self.config)
        await self.engine.open()

    def run_dir(self, workload_id: str, index: int = 0, attempt: int = 0) -> Path:
        return self.state_dir / "pods" / workload_id / str(index) / str(attempt)


class _Pipe:
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def send(self, code: int) -> None:
        os.write(self.descriptor, f"{code}\n".encode())
        os.close(self.descriptor)


def _writable(fifo: Path) -> _Pipe | None:
    try:
        return _Pipe(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        if error.errno != errno.ENXIO:  # nobody reads yet
            raise
        return None


def half(group: str = "g1") -> Placement:
    return Placement(NODE, shares=(Share(group, 500),))


def fake_nodes() -> list[Node]:
    return [Node(f"dgx1-{number}", gpus=8, gpu_memory_mib=32768, gpu_model="V100-SXM2-32GB", simulated=True) for number in (1, 2)]


def fake_world(directory: Path) -> World:
    return World(FakeEngine(fake_nodes(), projects=[Project("team-a")]), directory)


async def heard(engine: Engine) -> list[Change]:
    """What the engine tells from now on, collected in the background of the test."""
    changes: list[Change] = []

    async def listen() -> None:
        async for change in engine.changes():
            changes.append(change)

    task = asyncio.create_task(listen())
    _LISTENERS.add(task)
    task.add_done_callback(_LISTENERS.discard)
    await asyncio.sleep(0)
    return changes


_LISTENERS: set[asyncio.Task[None]] = set()
