"""Reading a pod's log: the rotated files as one text, its last lines, what came since a time, and what comes.

When bytes came is in the `.times` files the supervisor writes beside the log: (offset, time) pairs, at most ten a second. So logs
stay plain text, and `since` and `timestamps` cost a bisection. A line's time is that of the last pair at or before its first byte.
"""

from __future__ import annotations

import array
import asyncio
import bisect
import os
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

TIMES = struct.Struct("<Qd")
BLOCK_BYTES = 64 * 1024
POLL_S = 0.02
IDLE_POLL_S = 0.25


class _File:
    """One file of the log with its times, both open, so that a rotation under us changes nothing. Times are read when asked for."""

    def __init__(self, descriptor: int, times: int | None) -> None:
        self.descriptor = descriptor
        self.inode = os.fstat(descriptor).st_ino
        self._times = times
        self._times_read = 0
        self._offsets = array.array("Q")
        self._moments = array.array("d")

    def close(self) -> None:
        os.close(self.descriptor)
        if self._times is not None:
            os.close(self._times)

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def refresh_times(self) -> None:
        """Take in the pairs that were added since the last time."""
        while self._times is not None and (data := os.pread(self._times, BLOCK_BYTES, self._times_read)):
            data = data[: len(data) // TIMES.size * TIMES.size]
            if not data:
                return
            self._times_read += len(data)
            for offset, moment in TIMES.iter_unpack(data):
                self._offsets.append(offset)
                self._moments.append(moment)

    def time_of(self, offset: int) -> float | None:
        at = bisect.bisect_right(self._offsets, offset) - 1
        return self._moments[at] if at >= 0 else None

    def offset_since(self, since: float) -> int:
        """Where the first byte lies that came at or after `since` (to the accuracy of the times file)."""
        self.refresh_times()
        at = bisect.bisect_left(self._moments, since)
        return self._offsets[at] if at < len(self._offsets) else self.size()


def _open(path: Path) -> _File | None:
    """The file with the times that belong to it: looked at again afterwards, in case it was rotated in between."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            times = os.open(path.with_name(path.name + ".times"), os.O_RDONLY)
        except FileNotFoundError:
            times = None
        file = _File(descriptor, times)
        if _inode(path) == file.inode:
            return file
        file.close()


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _open_all(run_dir: Path) -> list[_File]:
    """Oldest first. If a rotation happens while we open, the same file is not taken twice."""
    numbers = sorted((int(path.suffix[1:]) for path in run_dir.glob("log.*") if path.suffix[1:].isdigit()), reverse=True)
    files: list[_File] = []
    for path in (*(run_dir / f"log.{number}" for number in numbers), run_dir / "log"):
        file = _open(path)
        if file and file.inode in {one.inode for one in files}:
            file.close()
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
        file.refresh_times()
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
            file.close()


async def _follow(
    run_dir: Path, files: list[_File], offset: int, ended: Callable[[], bool], stamps: _Stamps | None
) -> AsyncIterator[bytes]:
    """What is appended to the last of `files`, and to those that take its place (appended to `files`, which the caller closes)."""
    pause_s = POLL_S
    while True:
        over = ended()  # asked first: what was written before the end is then read below
        turned = _inode(run_dir / "log") != files[-1].inode
        found = False
        for at, block in _blocks(files[-1], offset):
            yield stamps.add(block, files[-1], at) if stamps else block
            offset, found = at + len(block), True
        if turned and (fresh := _newer(run_dir, files)):
            files += fresh
            offset = 0
            for file in fresh[:-1]:
                for at, block in _blocks(file, 0):
                    yield stamps.add(block, file, at) if stamps else block
            continue
        if over and not found:
            return
        pause_s = POLL_S if found else min(IDLE_POLL_S, pause_s * 1.2)
        if not over:
            await asyncio.sleep(pause_s)


def _newer(run_dir: Path, files: list[_File]) -> list[_File]:
    """Files of the log that are not among `files`, oldest first."""
    known = {file.inode for file in files}
    fresh = []
    for file in _open_all(run_dir):
        if file.inode in known:
            file.close()
        else:
            fresh.append(file)
    return fresh
