"""The files of the record: numbered segments in one folder, each complete in itself, old ones compressed, the oldest deleted.

`000007.jsonl` is being written, `000006.jsonl.gz` is done. The first line of a segment is its head, then one line a cycle.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from hotdesk_scheduler.decisionlog.cycles import FORMAT

_NAME = re.compile(r"^(\d{6,})\.jsonl(\.gz)?$")


@dataclass(frozen=True, slots=True)
class Segment:
    path: Path
    number: int
    is_compressed: bool

    def opened(self) -> IO[bytes]:
        """Raises OSError."""
        return cast(IO[bytes], gzip.open(self.path)) if self.is_compressed else self.path.open("rb")


def listed(folder: Path) -> list[Segment]:
    """Oldest first; while one is being compressed only the plain one counts."""
    found: dict[int, Segment] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if match := _NAME.match(path.name):
            found.setdefault(int(match[1]), Segment(path, int(match[1]), is_compressed=bool(match[2])))
    return [found[number] for number in sorted(found)]


def head(*, first_cycle: int, at: float, made_by: str) -> bytes:
    """The first line; `first_cycle` is the number of the cycle in the second."""
    return json.dumps({"hotdesk_decisions": FORMAT, "hotdesk": made_by, "at": at, "first_cycle": first_cycle}).encode() + b"\n"


def next_cycle(folder: Path) -> int:
    """The number of the cycle after the last one on record; 1 if there is none, or it cannot be read."""
    for segment in reversed(listed(folder)):
        try:
            with segment.opened() as file:
                first = int(json.loads(file.readline())["first_cycle"])
                return first + sum(1 for _ in file)
        except (OSError, EOFError, ValueError, KeyError, TypeError):
            continue
    return 1


def compress(segment: Segment) -> None:
    """In place of the plain file. Raises OSError; the plain file is there until the compressed one is whole."""
    target = segment.path.with_name(segment.path.name + ".gz")
    partial = target.with_name(target.name + ".part")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with segment.path.open("rb") as plain, os.fdopen(descriptor, "wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
            shutil.copyfileobj(plain, packed)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    written = segment.path.stat()
    os.utime(partial, (written.st_atime, written.st_mtime))
    partial.rename(target)
    segment.path.unlink()


def tidy(folder: Path, *, but: Path | None, most_bytes: int, most_age_s: float) -> None:
    """Compress what is done and delete what is too old or too much, oldest first. Raises OSError."""
    for rest in folder.glob("*.part"):
        rest.unlink(missing_ok=True)
    for segment in listed(folder):
        if not segment.is_compressed and segment.path != but:
            compress(segment)
    done = [(segment.path, segment.path.stat()) for segment in listed(folder)]
    total = sum(stat.st_size for _, stat in done)
    for path, stat in done:
        if path != but and (total > most_bytes or time.time() - stat.st_mtime > most_age_s):
            total -= stat.st_size
            path.unlink(missing_ok=True)
