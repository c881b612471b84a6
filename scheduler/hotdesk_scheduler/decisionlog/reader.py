"""Reads the record of decisions back: every cycle with the very values the core was given, and the answer on record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hotdesk_api.errors import Invalid

from hotdesk_scheduler.core.model import Policy, Snapshot
from hotdesk_scheduler.decisionlog import segments
from hotdesk_scheduler.decisionlog.cycles import DECIDE, FACTS, FORMAT, KEYS, PARTS, POLICY, REVIEW, Answer, Json
from hotdesk_scheduler.decisionlog.segments import Segment


@dataclass(frozen=True, slots=True)
class Recorded:
    """`number` counts cycles over the whole record, from 1. `skipped` cycles before it could not be written.

    `again`: it is the cycle before once more, with the queue as somebody saw it.
    """

    number: int
    step: str
    snapshot: Snapshot
    policy: Policy
    now: float
    answer: Answer
    broken: str = ""
    skipped: int = 0
    again: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """Something about the record itself: a sentence for people. `damaged`: what follows in that segment is lost."""

    sentence: str
    damaged: bool = False


class _Decoder:
    """The opposite of `encoder.Encoder`."""

    def __init__(self) -> None:
        self._keyed: dict[str, dict[str, Any]] = {name: {} for name in KEYS}
        self._whole: dict[str, Any] = {}
        self._policy: Policy | None = None
        self._order: list[str] = []
        self._told: dict[str, Json] = {}
        self._facts: dict[str, dict[str, int]] = {}

    def cycle(self, number: int, body: Json) -> Recorded:
        """Raises ValueError, KeyError, TypeError or IndexError for what no encoder wrote."""
        for name, adapter in PARTS.items():
            if name not in body:
                continue
            if name not in KEYS:
                self._whole[name] = adapter.validate_python(body[name])
                continue
            part = self._keyed[name]
            part.update({getattr(value, KEYS[name]): value for value in adapter.validate_python(body[name]["put"])})
            for key in body[name]["gone"]:
                del part[key]
        if "policy" in body:
            self._policy = POLICY.validate_python(body["policy"])
        if self._policy is None or body["step"] not in (DECIDE, REVIEW):
            raise ValueError("it does not say what was asked")
        keyed: dict[str, Any] = {name: tuple(part.values()) for name, part in self._keyed.items()}
        snapshot = Snapshot(version=int(body["version"]), **keyed, **self._whole)
        return Recorded(
            number, body["step"], snapshot, self._policy, float(body["now"]), self._answer(body),
            broken=str(body.get("broken", "")), skipped=int(body.get("skipped", 0)),
            again=bool(body.get("again")),
        )  # fmt: skip

    def _answer(self, body: Json) -> Answer:
        decisions = tuple(body.get("decisions", ()))
        if body.get("error"):
            return Answer(error=str(body["error"]))
        if body["step"] == REVIEW:
            return Answer(decisions)
        if "queue" in body:
            before, self._order = self._order, []
            for item in body["queue"]:
                self._order.extend([item] if isinstance(item, str) else _run(before, item))
            self._told = {workload_id: self._told[workload_id] for workload_id in self._order if workload_id in self._told}
        for group in body.get("holds", ()):
            told = {name: value for name, value in group.items() if name != "at"}
            for run in group["at"]:
                self._told.update(dict.fromkeys(_run(self._order, run), told))
        self._facts = {name: dict(body.get(name, self._facts.get(name, {}))) for name in FACTS}
        holds = {workload_id: self._told[workload_id] for workload_id in self._order}
        return Answer(decisions, holds, self._facts, in_order=bool(body.get("in_order", True)))


def _run(order: list[str], run: Sequence[int]) -> list[str]:
    first, length = run
    if not 0 <= first <= first + length <= len(order):
        raise ValueError(f"there are no places {first} to {first + length} in a queue of {len(order)}")
    return order[first : first + length]


def found(path: Path) -> list[Segment]:
    """The segments of a state directory, of a folder of segments, or one file. Raises Invalid if there are none."""
    for folder in (path / "scheduler" / "decisions", path):
        if segments_there := segments.listed(folder):
            return segments_there
    if path.is_file():
        return [Segment(path, 0, is_compressed=path.suffix == ".gz")]
    raise Invalid(
        f"There is no record of decisions in {path}.",
        field="LOG",
        value=str(path),
        next_step="Give a state directory (the one `make up` or `serve` was given as STATE) or files of STATE/scheduler/decisions.",
    )


def read(segment: Segment, *, progress: Callable[[int], None] = lambda position: None) -> Iterator[Recorded | Note]:
    """Every cycle of a segment, and what is to be said about it. Raises Invalid for what is not a record, or of another format.

    `progress` is told how many bytes of the file are read.
    """
    try:
        with segment.opened() as file:
            under = file if not segment.is_compressed else getattr(file, "fileobj", file)
            yield from _read(segment, file, lambda: progress(under.tell()))
    except (OSError, EOFError) as error:
        yield Note(f"{segment.path} cannot be read any further: {error}.", damaged=True)


def _read(segment: Segment, file: IO[bytes], progress: Callable[[], None]) -> Iterator[Recorded | Note]:
    head = file.readline()
    if not head.endswith(b"\n"):
        yield Note(f"{segment.path} ends before its first cycle.")
        return
    number = _first_cycle(segment.path, head)
    decoder = _Decoder()
    for line_number, line in enumerate(file, 2):
        try:
            recorded = decoder.cycle(number, json.loads(line))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            if not line.endswith(b"\n"):
                yield Note(f"{segment.path} ends in the middle of line {line_number}: it was just being written, or cut off by a crash.")
            else:
                yield Note(f"{segment.path}, line {line_number}, is damaged, and what follows in it is left out: {error!r}.", damaged=True)
            return
        yield recorded
        number += 1
        progress()


def _first_cycle(path: Path, line: bytes) -> int:
    try:
        head = json.loads(line)
        version, first = head["hotdesk_decisions"], int(head["first_cycle"])
    except (ValueError, KeyError, TypeError) as error:
        raise Invalid(f"{path} is not a record of decisions: its first line does not say so.", field="LOG", value=str(path)) from error
    if version != FORMAT:
        raise Invalid(
            f"{path} is a record of format {version}, this Hotdesk reads format {FORMAT}.",
            field="LOG",
            value=str(path),
            next_step=f"Replay it with the Hotdesk that wrote it ({head.get('hotdesk') or 'unknown version'}).",
        )
    return first
