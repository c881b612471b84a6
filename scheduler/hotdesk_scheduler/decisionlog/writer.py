"""Writes the record of decisions from a thread of its own: a pass only leaves a reference to what it saw, and goes on.

What cannot be written (a full disk, a folder that is somebody else's) is left out and counted; scheduling never waits for it, and
`problem` says so until writing works again. A new segment then begins, which says everything anew.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from pathlib import Path

from hotdesk_scheduler.core.line import told_of
from hotdesk_scheduler.core.plan import Plan
from hotdesk_scheduler.decisionlog import segments
from hotdesk_scheduler.decisionlog.cycles import Cycle
from hotdesk_scheduler.decisionlog.encoder import Encoder

log = logging.getLogger(__name__)

SEGMENT_BYTES = 8 * 2**20
SEGMENT_S = 86_400.0
MAX_WAITING = 1000
MAX_WAITING_VALUES = 200_000
"""Cycles that wait for the disk, and the workloads in them: neighbours share most of their values, but each has its own holds."""
CLOSE_S = 3.0
RETRY_S = 5.0


class DecisionLog:
    """`open()` first; `add` never waits and never raises; `close()` writes what waits, if the disk takes it within seconds."""

    def __init__(
        self,
        folder: Path,
        *,
        most_bytes: int,
        most_age_s: float,
        made_by: str = "",
        segment_bytes: int = SEGMENT_BYTES,
        retry_s: float = RETRY_S,
    ) -> None:
        self.folder = folder
        self._most_bytes = most_bytes
        self._most_age_s = most_age_s
        self._made_by = made_by
        self._segment_bytes = max(1, min(segment_bytes, most_bytes // 4))
        self._retry_s = retry_s
        self._waiting: deque[Cycle] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._skipped = 0
        self._thread: threading.Thread | None = None
        self._file: int | None = None
        self._encoder = Encoder()
        self._cycle = 0
        self._size = 0
        self._turn_at = 0
        self._begun_at = 0.0
        self._not_before = 0.0
        self.problem: str | None = None

    def open(self) -> None:
        self._thread = threading.Thread(target=self._write_forever, name="decisionlog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Blocks for a few seconds at most."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def add(self, cycle: Cycle) -> None:
        if isinstance(cycle.answer, Plan):
            told_of(cycle.answer)  # made once, when somebody first asks, and that is not to be two threads at a time
        with self._wake:
            if len(self._waiting) >= max(2, min(MAX_WAITING, MAX_WAITING_VALUES // (len(cycle.snapshot.workloads) + 1))):
                self._skipped += 1
                return
            self._waiting.append(cycle)
            self._wake.notify()

    def _write_forever(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    break
                cycle, skipped = self._waiting.popleft(), self._skipped
                self._skipped = 0
            if not self._take(cycle, skipped):
                with self._wake:
                    self._skipped += skipped + 1
        self._end_segment()

    def _take(self, cycle: Cycle, skipped: int) -> bool:
        """Whether it is on record now, or needs not be."""
        if time.monotonic() < self._not_before:
            return False
        try:
            self._write(cycle, skipped)
        except Exception as error:  # whatever it is: the thread lives on, and the record starts anew
            self._failed(error)
            return False
        if self.problem:
            log.info("decisionlog.recovered")
        self.problem = None
        return True

    def _write(self, cycle: Cycle, skipped: int) -> None:
        if self._file is None:
            self._begin_segment()
        elif self._size > self._turn_at or not 0 <= time.time() - self._begun_at <= SEGMENT_S:
            self._end_segment()
            self._begin_segment()
        assert self._file is not None
        is_first = self._turn_at == 0
        line = self._encoder.line(cycle, skipped=skipped)
        if not line:
            return
        self._append(line)
        self._cycle += 1
        if is_first:  # a big cluster's first line is long: what follows should be worth it
            self._turn_at = max(self._segment_bytes, 4 * self._size)

    def _begin_segment(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._cycle = self._cycle or segments.next_cycle(self.folder)
        number = max((segment.number for segment in segments.listed(self.folder)), default=0) + 1
        path = self.folder / f"{number:06}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._encoder = Encoder()
        self._size, self._turn_at, self._begun_at = 0, 0, time.time()
        self._append(segments.head(first_cycle=self._cycle, at=self._begun_at, made_by=self._made_by))
        segments.tidy(self.folder, but=path, most_bytes=self._most_bytes, most_age_s=self._most_age_s)

    def _append(self, line: bytes) -> None:
        assert self._file is not None
        left = memoryview(line)
        while left:
            left = left[os.write(self._file, left) :]
        self._size += len(line)

    def _end_segment(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _failed(self, error: Exception) -> None:
        sentence = f"Decisions are not recorded in {self.folder}: {getattr(error, 'strerror', None) or error}. Scheduling goes on."
        if self.problem != sentence:
            log.error("decisionlog.failed error=%s", sentence)
        self.problem = sentence
        self._not_before = time.monotonic() + self._retry_s
        self._end_segment()
