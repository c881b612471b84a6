"""`exec` and `bash` at a terminal or a pipe: raw mode, window size, standard input, and Ctrl-C that detaches."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import Awaitable, Callable, Iterator

from hotdesk.answers import InsideJob
from hotdesk.inside import Attached, Ends, attach


def is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


@contextlib.contextmanager
def raw_terminal(wanted: bool) -> Iterator[None]:
    """Every key goes into the job; the terminal is as before afterwards, whatever happens."""
    if not wanted:
        yield
        return
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _reader(loop: asyncio.AbstractEventLoop) -> Callable[[], Awaitable[bytes]]:
    """Standard input through a thread: regular files and terminals alike, and the loop stays free. At most 64 pieces wait."""
    pieces: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(64)

    def read() -> None:
        data = b"-"
        while data:
            room.acquire()
            try:
                data = os.read(0, 65536)
            except OSError:
                data = b""
            try:
                loop.call_soon_threadsafe(pieces.put_nowait, data)
            except RuntimeError:
                return  # the loop is closed: nobody listens any more

    async def next_piece() -> bytes:
        data = await pieces.get()
        room.release()
        return data

    threading.Thread(target=read, name="hotdesk-stdin", daemon=True).start()
    return next_piece


def _write(descriptor: int) -> Callable[[bytes], None]:
    def write(data: bytes) -> None:
        while data:
            data = data[os.write(descriptor, data) :]

    return write


def _size() -> tuple[int, int]:
    """(columns, rows) of the terminal itself; COLUMNS and LINES may be left over from elsewhere."""
    try:
        size = os.get_terminal_size(0)
    except OSError:
        return 80, 24
    return size.columns or 80, size.lines or 24


async def _session(url: str, token: str, job: InsideJob) -> int:
    loop = asyncio.get_running_loop()
    columns, rows = _size()
    ends = Ends(_write(1), _write(2), _reader(loop) if job.stdin else None, (rows, columns))
    attached = await attach(url, token, job, ends)
    with raw_terminal(job.tty and sys.stdin.isatty()):
        resizes: set[asyncio.Task[None]] = set()
        if job.tty:
            loop.add_signal_handler(signal.SIGWINCH, lambda: _resized(attached, resizes))
        try:
            return await attached.finish(ends)
        finally:
            await asyncio.gather(*resizes, return_exceptions=True)


def _resized(attached: Attached, resizes: set[asyncio.Task[None]]) -> None:
    columns, rows = _size()
    task = asyncio.get_running_loop().create_task(attached.resize(rows, columns))
    resizes.add(task)
    task.add_done_callback(resizes.discard)


def run_inside(url: str, token: str, job: InsideJob) -> int:
    """Run it with our own standard streams; its exit code."""
    return asyncio.run(_session(url, token, job))
