"""A command inside a pod: in its environment and directory, in a session of its own, on a terminal if asked for."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import shutil
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path

from hotdesk_api.errors import Invalid

CHUNK_BYTES = 64 * 1024
MAX_WAITING = 64


class _Protocol(asyncio.subprocess.SubprocessStreamProtocol):
    """Says when the process itself has ended. `Process.wait()` waits for its pipes too, which its children may hold open for ever."""

    def __init__(self) -> None:
        super().__init__(limit=CHUNK_BYTES, loop=asyncio.get_running_loop())
        self.ended = asyncio.Event()

    def process_exited(self) -> None:
        self.ended.set()
        super().process_exited()


class LocalExec:
    """See `engines.base.ExecSession`. Reading stops while the reader is behind, so a chatty command waits for its listener."""

    def __init__(self, *, on_end: Callable[[LocalExec], None] = lambda session: None) -> None:
        self._on_end = on_end
        self._process: asyncio.subprocess.Process | None = None
        self._ended = asyncio.Event()
        self._terminal: int | None = None
        self._output: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue(MAX_WAITING)
        self._readers: list[asyncio.Task[None]] = []
        self._closer: asyncio.Task[None] | None = None

    async def start(
        self, argv: Sequence[str], *, environment: Mapping[str, str], directory: Path, tty: bool, rows: int, columns: int
    ) -> None:
        """Start it; `Invalid` with a sentence if there is no such program."""
        environment = {**environment, "TERM": "xterm-256color"} if tty else dict(environment)
        inner = None
        if tty:
            self._terminal, inner = pty.openpty()
            _set_size(inner, rows, columns)
        pipe = inner if inner is not None else subprocess.PIPE
        try:
            transport, protocol = await asyncio.get_running_loop().subprocess_exec(
                _Protocol,
                *argv,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env=environment,
                cwd=directory,
                start_new_session=True,
                umask=0o022,  # as in the pod itself
                preexec_fn=_take_terminal if tty else None,
                executable=_find(argv[0], environment["PATH"]),
            )
        except (OSError, ValueError) as error:
            self._close_terminal()
            what = error.strerror if isinstance(error, OSError) else str(error)
            raise Invalid(f"{argv[0][:200]} could not be run in the pod: {what}.", field="argv", value=argv[0][:200]) from error
        finally:
            if inner is not None:
                os.close(inner)
        self._process, self._ended = asyncio.subprocess.Process(transport, protocol, asyncio.get_running_loop()), protocol.ended
        self._readers = [asyncio.create_task(reader) for reader in self._reading()]
        self._closer = asyncio.create_task(self._finish())

    def _reading(self) -> list[Coroutine[None, None, None]]:
        assert self._process is not None
        if self._terminal is not None:
            return [self._read_terminal(self._terminal)]
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        return [self._read_pipe(1, self._process.stdout), self._read_pipe(2, self._process.stderr)]

    async def _read_pipe(self, number: int, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(CHUNK_BYTES):
            await self._output.put((number, data))

    async def _read_terminal(self, terminal: int) -> None:
        os.set_blocking(terminal, False)
        loop = asyncio.get_running_loop()
        while True:
            ready = asyncio.Event()
            loop.add_reader(terminal, ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_reader(terminal)
            try:
                data = os.read(terminal, CHUNK_BYTES)
            except BlockingIOError:
                continue
            except OSError:  # EIO: the last process let go of the terminal
                return
            if not data:
                return
            await self._output.put((1, data))

    async def _finish(self) -> None:
        """When the command itself has ended: a moment for its last words, then the end of the stream (its children may hold it open)."""
        await self._ended.wait()
        await asyncio.wait(self._readers, timeout=0.5)
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        self._on_end(self)
        await self._output.put(None)

    async def read(self) -> tuple[int, bytes] | None:
        item = await self._output.get()
        if item is None:
            self._output.put_nowait(None)  # so that it ends for every later reader too
        return item

    async def write(self, data: bytes) -> None:
        assert self._process is not None
        if self._terminal is not None:
            await self._write_terminal(data or b"\x04")  # the end of input, as a terminal says it
            return
        stdin = self._process.stdin
        if stdin is None or stdin.is_closing():
            return
        with contextlib.suppress(ConnectionError):  # it no longer listens; its exit code tells
            if data:
                stdin.write(data)
                await stdin.drain()
            else:
                stdin.close()

    async def _write_terminal(self, data: bytes) -> None:
        while data and self._terminal is not None:
            try:
                data = data[os.write(self._terminal, data) :]
            except BlockingIOError:
                await asyncio.sleep(0.01)
            except OSError:
                return

    async def resize(self, rows: int, columns: int) -> None:
        if self._terminal is not None:
            _set_size(self._terminal, rows, columns)

    async def wait(self) -> int:
        assert self._process is not None
        await self._ended.wait()
        code = self._process.returncode
        assert code is not None
        return 128 - code if code < 0 else code

    async def close(self) -> None:
        """SIGHUP, then SIGKILL to its whole group, and the terminal away."""
        assert self._process is not None
        for number in (signal.SIGHUP, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                break
            if number == signal.SIGHUP:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), 0.3)
        await self._ended.wait()
        for task in (*self._readers, self._closer):
            if task is not None:
                task.cancel()
        await asyncio.gather(*self._readers, *([self._closer] if self._closer else []), return_exceptions=True)
        if self._output.empty():
            self._output.put_nowait(None)
        self._close_terminal()

    def _close_terminal(self) -> None:
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None


def _find(name: str, path: str) -> str:
    """The program as the pod would find it (on its PATH, not on ours)."""
    return shutil.which(name, path=path) or name


def _take_terminal() -> None:
    """In the child: make the terminal on stdin its controlling one, so that Ctrl-C and job control work."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _set_size(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", max(1, min(rows, 9999)), max(1, min(columns, 9999)), 0, 0))
