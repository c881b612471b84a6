"""The way to the API server breaks: what was decided meanwhile is done when it is back, once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml  # type: ignore[import-untyped]  # ships no types
from cluster.running import Cluster
from hotdesk_api.errors import Unavailable
from hotdesk_scheduler.core.model import PodState
from hotdesk_scheduler.core.reasons import ReasonCode
from hotdesk_scheduler.engines.kubernetes import watch
from hotdesk_scheduler.engines.kubernetes.engine import KubernetesEngine
from kube_world import Kube, kube_world


class Wire:
    """Bytes from a port of our own to the API server, as long as it is not cut. `forgotten`: the ends that get none any more."""

    def __init__(self, host: str, port: int) -> None:
        self._to = host, port
        self._ends: set[asyncio.StreamWriter] = set()
        self.forgotten: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def join(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        self._server.close()
        for end in tuple(self._ends):
            end.transport.abort()
        await asyncio.sleep(0)

    def forget(self) -> None:
        """All connections there are; nobody is told."""
        self.forgotten |= self._ends

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there, back = await asyncio.open_connection(*self._to)
            self._ends |= {writer, back}
            await asyncio.gather(self._pour(reader, back), self._pour(there, writer))
            self._ends -= {writer, back}

    async def _pour(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if writer not in self.forgotten:
                    writer.write(data)
                    await writer.drain()
        writer.close()


@pytest.fixture
async def wired(cluster: Cluster, tmp_path: Path) -> AsyncIterator[tuple[Kube, Wire]]:
    """An engine that reaches the API server through a wire of its own; the tests do not."""
    known = yaml.safe_load(cluster.kubeconfig.read_text())
    address = urlsplit(known["clusters"][0]["cluster"]["server"])
    if cluster.external or address.hostname != "127.0.0.1" or address.port is None:
        pytest.skip("the certificate of this API server is not for 127.0.0.1")
    wire = Wire(address.hostname, address.port)
    await wire.join()
    known["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{wire.port}"
    file = tmp_path / "wired.kubeconfig"
    file.write_text(json.dumps(known))
    async with kube_world(cluster, tmp_path) as kube:
        await kube.engine.close()
        kube.config = replace(kube.config, kubeconfig=file)
        kube.engine = KubernetesEngine(kube.config)
        await kube.engine.open()
        yield kube, wire
    await wire.cut()


async def test_what_is_decided_while_the_api_server_is_away_is_done_when_it_is_back(wired: tuple[Kube, Wire]) -> None:
    kube, wire = wired
    runs, starts = await kube.submit("runs"), await kube.submit("starts")
    await kube.run(runs)
    await wire.cut()
    await kube.start(starts)
    await kube.stop(runs)
    with pytest.raises(Unavailable, match="API server"):
        await kube.submit("new")
    assert (kube.pod(starts).state, kube.pod(runs).state) == (PodState.STARTING, PodState.RELEASING)
    await wire.join()
    await kube.until(starts, PodState.RUNNING)
    await kube.until(runs, PodState.STOPPED)
    pods = (await kube.api.get(f"/api/v1/namespaces/{kube.namespace}-team-a/pods"))["items"]
    assert [pod["metadata"]["labels"]["hotdesk.io/workload"] for pod in pods] == ["starts"]
    await kube.status("runs", lambda status: status["pods"][0]["state"] == "stopped")


async def test_what_happened_while_the_api_server_was_away_is_seen_when_it_is_back(wired: tuple[Kube, Wire]) -> None:
    kube, wire = wired
    ends, vanishes = await kube.submit("ends"), await kube.submit("vanishes")
    await kube.run(ends)
    await kube.run(vanishes)
    await wire.cut()
    await kube.end(ends, code=7)
    await kube.api.delete(kube.pod_path(vanishes))
    assert kube.pod(ends).state is PodState.RUNNING
    await wire.join()
    assert (await kube.until(ends, PodState.FAILED)).exit_code == 7
    gone = await kube.until(vanishes, PodState.STOPPED)  # the stream goes on where it broke, so its leaving is seen too
    assert gone.stop_reason is not None
    assert gone.stop_reason.code is ReasonCode.PROCESS_LOST


async def test_a_watch_whose_connection_was_silently_forgotten_is_begun_again(
    wired: tuple[Kube, Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    kube, wire = wired
    monkeypatch.setattr(watch, "SILENCE_S", 2.0)
    await kube.restart()
    workload_id = await kube.submit("job")
    await kube.run(workload_id)
    wire.forget()
    await kube.end(workload_id)
    await kube.until(workload_id, PodState.SUCCEEDED)
