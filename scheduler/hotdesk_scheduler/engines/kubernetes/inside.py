"""Logs of pods and commands inside them, through the API server: `pods/log` and the websocket of `pods/exec` (v5, v4)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp

from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError

V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, SIZE, CLOSE = 0, 1, 2, 3, 4, 255
BLOCK = 64 * 1024
WAIT_S = 0.5


async def logs(
    api: Api,
    namespace: str,
    name: str,
    *,
    container: str = "",
    tail: int | None,
    since: float | None,
    follow: bool,
    timestamps: bool,
) -> AsyncIterator[bytes]:
    """As the container runtime keeps them; nothing for a pod that has not begun or is gone. With `follow` it waits for the beginning.

    `name` may be empty: there is no pod. `container` has to be said where there are several.
    """
    if not name:
        return
    params: dict[str, Any] = {"container": container} if container else {}
    if tail is not None:
        params["tailLines"] = tail
    if since is not None:
        params["sinceSeconds"] = max(1, math.ceil(time.time() - since))
    if follow:
        params["follow"] = "true"
    if timestamps:
        params["timestamps"] = "true"
    response = await _open(api, f"/api/v1/namespaces/{namespace}/pods/{name}/log", params, follow=follow)
    if response is None:
        return
    try:
        async for block in response.content.iter_chunked(BLOCK):
            yield block
    except (aiohttp.ClientError, OSError) as error:
        raise ApiError(0, type(error).__name__, f"the logs of {name} broke off: {error}").for_people() from error
    finally:
        response.close()


async def _open(api: Api, path: str, params: dict[str, Any], *, follow: bool) -> aiohttp.ClientResponse | None:
    while True:
        try:
            return await api.stream(path, params)
        except ApiError as error:
            if error.status == 404:
                return None
            if error.status != 400:  # 400: its container has not begun
                raise error.for_people() from error
        if not follow:
            return None
        await asyncio.sleep(WAIT_S)


async def execute(api: Api, namespace: str, name: str, argv: Sequence[str], *, container: str = "", tty: bool) -> PodExec:
    """Raises ApiError."""
    if not name:
        raise ApiError(404, "NotFound", "its pod is not there")
    params = [("stdin", "true"), ("stdout", "true"), ("tty", str(tty).lower())]
    params += [("container", container)] if container else []
    params += [] if tty else [("stderr", "true")]
    params += [("command", word) for word in argv]
    socket = await api.websocket(f"/api/v1/namespaces/{namespace}/pods/{name}/exec", params, (V5, V4))
    return PodExec(socket)


class PodExec:
    """See `engines.base.ExecSession`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._can_close_stdin = socket.protocol == V5
        self._heard: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue(maxsize=64)
        self._exit_code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read(), name="exec")

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                data = message.data if isinstance(message.data, bytes) else str(message.data).encode()
                if data[:1] and data[0] in (STDOUT, STDERR):
                    if data[1:]:
                        await self._heard.put((data[0], data[1:]))
                elif data[:1] and data[0] == STATUS:
                    self._end(_exit_code(data[1:]))
        finally:
            self._end(-1)
            with contextlib.suppress(asyncio.QueueFull):
                self._heard.put_nowait(None)

    def _end(self, code: int) -> None:
        if not self._exit_code.done():
            self._exit_code.set_result(code)

    async def read(self) -> tuple[int, bytes] | None:
        if self._reader.done() and self._heard.empty():
            return None
        return await self._heard.get()

    async def write(self, data: bytes) -> None:
        if self._socket.closed:
            return
        with contextlib.suppress(aiohttp.ClientError, OSError):
            if data:
                await self._socket.send_bytes(bytes([STDIN]) + data)
            elif self._can_close_stdin:
                await self._socket.send_bytes(bytes([CLOSE, STDIN]))

    async def resize(self, rows: int, columns: int) -> None:
        if not self._socket.closed:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                await self._socket.send_bytes(bytes([SIZE]) + json.dumps({"Width": columns, "Height": rows}).encode())

    async def wait(self) -> int:
        return await asyncio.shield(self._exit_code)

    async def close(self) -> None:
        """The kubelet ends the command when its connection goes."""
        await self._socket.close()
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader


def _exit_code(status: bytes) -> int:
    """v4: `Success`, or a failure whose causes name the code."""
    with contextlib.suppress(ValueError, KeyError, IndexError, TypeError):
        said = json.loads(status)
        if said.get("status") == "Success":
            return 0
        return int(next(one["message"] for one in said["details"]["causes"] if one["reason"] == "ExitCode"))
    return -1
