"""Reading a pod's log: the rotated files as one text, its last lines, what came since a time, and what comes.

When bytes came is in the `.times` files the supervisor writes beside the log: (offset, time) pairs, at most twenty a second. So logs
stay plain text, and `since` and `timestamps` cost a bisection. A line's time is that of the last pair at or before its first byte.
"""

from __future__ import annotations

import asyncio
import bisect
import os
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

TIMES = struct.Struct("<Qd")
BLOCK_BYTES = 64 * 1024
POLL_S = 0.05
IDLE_POLL_S = 0.25


@dataclass(slots=True)
class _File:
    """One file of the log, open, so that a rotation under us changes nothing."""

    descriptor: int
    times: tuple[tuple[int, ...], tuple[float, ...]]
    inode: int

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def time_of(self, offset: int) -> float | None:
        at = bisect.bisect_right(self.times[0], offset) - 1
        return self.times[1][at] if at >= 0 else None

    def offset_since(self, since: float) -> int:
        """Where the first byte lies that came at or after `since` (to the accuracy of the times file)."""
        at = bisect.bisect_left(self.times[1], since)
        return self.times[0][at] if at < len(self.times[0]) else self.size()


def _open(path: Path) -> _File | None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    return _File(descriptor, _times(path), os.fstat(descriptor).st_ino)


def _times(path: Path) -> tuple[tuple[int, ...], tuple[float, ...]]:
    try:
        data = path.with_name(path.name + ".times").read_bytes()
    except OSError:
        return (), ()
    pairs = list(TIMES.iter_unpack(data[: len(data) // TIMES.size * TIMES.size]))
    return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)


def _open_all(run_dir: Path) -> list[_File]:
    """Oldest first. If a rotation happens while we open, the same file is not taken twice."""
    numbers = sorted((int(path.suffix[1:]) for path in run_dir.glob("log.*") if path.suffix[1:].isdigit()), reverse=True)
    files: list[_File] = []
    for path in (*(run_dir / f"log.{number}" for number in numbers), run_dir / "log"):
        file = _open(path)
        if file and file.inode in {one.inode for one in files}:
            os.close(file.descriptor)
        elif file:
            files.append(file)
    return files


def _tail_start(files: list[_File], lines: int) -> tuple[int, int]:
    """(file, offset) where the last `lines` lines begin, found by reading backwards in blocks."""
    wanted = lines
    last = True
    for number in range(len(files) - 1, -1, -1):
        end = files[number].size()
        while end > 0:
            start = max(0, end - BLOCK_BYTES)
            block = os.pread(files[number].descriptor, end - start, start)
            at = len(block)
            if last and block.endswith(b"\n"):
                at -= 1  # the newline that ends the last line begins none
            last = last and not block
            while wanted and (at := block.rfind(b"\n", 0, at)) >= 0:
                wanted -= 1
            if wanted == 0:
                return number, start + at + 1
            end, last = start, False
    return 0, 0


def _begin(files: list[_File], tail: int | None, since: float | None) -> tuple[int, int]:
    """(file, offset) to read from: the later of what `tail` and `since` ask for."""
    begins = [(0, 0)]
    if since is not None:
        begins.append(next(((n, at) for n, file in enumerate(files) if (at := file.offset_since(since)) < file.size()), _end(files)))
    if tail is not None:
        begins.append(_end(files) if tail <= 0 else _tail_start(files, tail))
    return max(begins)


def _end(files: list[_File]) -> tuple[int, int]:
    return len(files) - 1, files[-1].size()


class _Stamps:
    """Puts the time in front of each line of a stream of blocks."""

    def __init__(self) -> None:
        self._at_line_start = True

    def add(self, block: bytes, file: _File, offset: int) -> bytes:
        parts = []
        for line in block.splitlines(keepends=True):
            if self._at_line_start:
                parts.append(_stamp(file.time_of(offset)))
            parts.append(line)
            self._at_line_start = line.endswith(b"\n")
            offset += len(line)
        return b"".join(parts)


def _stamp(time: float | None) -> bytes:
    if time is None:
        return b"- "
    return (datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z") + " ").encode()


def _blocks(file: _File, offset: int) -> Iterator[tuple[int, bytes]]:
    while block := os.pread(file.descriptor, BLOCK_BYTES, offset):
        yield offset, block
        offset += len(block)


async def read(
    run_dir: Path,
    *,
    ended: Callable[[], bool],
    tail: int | None = None,
    since: float | None = None,
    follow: bool = False,
    timestamps: bool = False,
) -> AsyncIterator[bytes]:
    """The log in blocks. With `follow` on, until `ended()` says nothing more can come and all of it was read."""
    stamps = _Stamps() if timestamps else None
    files = _open_all(run_dir)
    while not files and follow and not ended():
        await asyncio.sleep(POLL_S)
        files = _open_all(run_dir)
    try:
        if not files:
            return
        number, offset = _begin(files, tail, since)
        for later, file in enumerate(files[number:]):
            offset = offset if later == 0 else 0
            for at, block in _blocks(file, offset):
                yield stamps.add(block, file, at) if stamps else block
                offset = at + len(block)
        if follow:
            async for block in _follow(run_dir, files, offset, ended, stamps):
                yield block
    finally:
        for file in files:
            os.close(file.descriptor)


async def _follow(
    run_dir: Path, files: list[_File], offset: int, ended: Callable[[], bool], stamps: _Stamps | None
) -> AsyncIterator[bytes]:
    """What is appended to the last of `files`, and to those that take its place (appended to `files`, which the caller closes)."""
    pause_s = POLL_S
    while True:
        over = ended()  # asked first: what was written before the end is then read below
        found = False
        for at, block in _blocks(files[-1], offset):
            if stamps:
                files[-1].times = _times(run_dir / "log")
            yield stamps.add(block, files[-1], at) if stamps else block
            offset, found = at + len(block), True
        fresh = [file for file in _open_all(run_dir) if not _close_if_known(file, files)]
        if fresh:
            files += fresh
            offset = 0
            continue
        if over and not found:
            return
        pause_s = POLL_S if found else min(IDLE_POLL_S, pause_s * 1.5)
        if not over:
            await asyncio.sleep(pause_s)


def _close_if_known(file: _File, files: list[_File]) -> bool:
    known = file.inode in {one.inode for one in files}
    if known:
        os.close(file.descriptor)
    return known
