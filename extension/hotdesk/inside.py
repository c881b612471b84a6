"""A command inside a job, over the exec websocket (scheduler/README.md): bytes in, bytes out, window size, exit code."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote

from hotdesk_api.errors import HotdeskError, Unavailable, from_problem
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import WebSocketClientConnection, WebSocketError, websocket_connect

from hotdesk.answers import InsideJob

STDIN, STDOUT, STDERR, CONTROL = 0, 1, 2, 3
PING_S = 20
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
Write = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Ends:
    """Where output goes, and where input comes from: `read` gives the next bytes, b"" at the end; None: there is no input."""

    out: Write
    err: Write
    read: Callable[[], Awaitable[bytes]] | None = None
    size: tuple[int, int] = (24, 80)


class Attached:
    """An open connection. `resize` tells the window's new size; `finish` serves it to the end and gives the exit code."""

    def __init__(self, connection: WebSocketClientConnection, job: InsideJob) -> None:
        self._connection = connection
        self._job = job

    async def send(self, channel: int, data: bytes) -> None:
        await self._connection.write_message(bytes([channel]) + data, binary=True)

    async def resize(self, rows: int, columns: int) -> None:
        await self.send(CONTROL, json.dumps({"rows": rows, "columns": columns}).encode())

    async def finish(self, ends: Ends) -> int:
        feeding = asyncio.create_task(self._feed(ends)) if ends.read is not None else None
        try:
            return await self._receive(ends)
        finally:
            if feeding is not None:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
            self._connection.close()

    async def _feed(self, ends: Ends) -> None:
        assert ends.read is not None
        while data := await ends.read():
            await self.send(STDIN, data)
        await self.send(STDIN, b"")

    async def _receive(self, ends: Ends) -> int:
        while (message := await self._connection.read_message()) is not None:
            data = message.encode() if isinstance(message, str) else message
            if data[:1] == bytes([STDOUT]):
                ends.out(data[1:])
            elif data[:1] == bytes([STDERR]):
                ends.err(data[1:])
            elif data[:1] == bytes([CONTROL]):
                control = cast(dict[str, Any], json.loads(data[1:]))
                if "problem" in control:
                    raise from_problem(control["problem"], int(control["problem"].get("status", 500)))
                if "exit_code" in control:
                    return int(control["exit_code"])
        raise Unavailable(
            f"The connection into {self._job.name} broke off before the command ended.",
            next_step="The job itself goes on; try again, or see `describe job`.",
        )


async def attach(url: str, token: str, job: InsideJob, ends: Ends) -> Attached:
    """Connect and start the command. Raises HotdeskError if the scheduler refuses or is not there."""
    address = "ws" + url.rstrip("/").removeprefix("http") + f"/v1/workloads/{quote(job.project, safe='')}/{quote(job.name, safe='')}/exec"
    request = HTTPRequest(address, headers={"Authorization": f"Bearer {token}"}, request_timeout=30, connect_timeout=10)
    try:
        connection = await websocket_connect(request, ping_interval=PING_S, max_message_size=MAX_MESSAGE_BYTES)
    except HTTPClientError as error:
        raise _refusal(error) from error
    except OSError as error:
        raise Unavailable(f"The scheduler at {url} cannot be reached ({error}).", next_step="Is Hotdesk running?") from error
    rows, columns = ends.size
    await connection.write_message(json.dumps({"argv": job.argv, "tty": job.tty, "rows": rows, "columns": columns, "pod": job.pod}))
    return Attached(connection, job)


def _refusal(error: HTTPClientError) -> HotdeskError:
    body = error.response.body if error.response is not None else b""
    try:
        problem = json.loads(body or b"{}")
    except ValueError:
        problem = {}
    return from_problem(problem if isinstance(problem, dict) else {}, error.code)


class InsideThread:
    """The same from code that cannot await (a notebook's cell): a thread with its own loop; the caller takes output from a queue."""

    def __init__(self, url: str, token: str, job: InsideJob) -> None:
        self._output: queue.SimpleQueue[bytes | HotdeskError | int] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._input: asyncio.Queue[bytes] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, args=(url, token, job), name="hotdesk-inside", daemon=True)
        self._thread.start()

    def _run(self, url: str, token: str, job: InsideJob) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._serve(url, token, job))
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        self._loop.close()

    async def _serve(self, url: str, token: str, job: InsideJob) -> None:
        ends = Ends(self._output.put, self._output.put, self._input.get if job.stdin else None)
        try:
            self._output.put(await (await attach(url, token, job, ends)).finish(ends))
        except HotdeskError as error:
            self._output.put(error)
        except (WebSocketError, OSError) as error:
            self._output.put(Unavailable(f"The connection into {job.name} failed ({error})."))

    def send(self, data: bytes) -> None:
        """More standard input; b"" ends it."""
        with contextlib.suppress(RuntimeError):  # it has ended meanwhile; the exit code is in the queue
            self._loop.call_soon_threadsafe(self._input.put_nowait, data)

    def next(self) -> bytes | int:
        """The next output, or at the end the exit code. Raises what went wrong. Can be interrupted."""
        while True:
            try:
                found = self._output.get(timeout=0.2)
            except queue.Empty:
                continue
            if isinstance(found, HotdeskError):
                raise found
            return found

    def close(self) -> None:
        """Let go of it; what runs inside is told by the closed connection."""
        with contextlib.suppress(RuntimeError):
            if self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(timeout=5)
