"""What is shown, without saying how: tables, facts and lines of cells. One view is printed as HTML, in a terminal, or as plain text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Tone = Literal["", "good", "wait", "bad", "done", "dim", "strong"]
SIMULATED = "SIMULATED"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Cell:
    """`note` is a second, smaller line; `bar` a share of 0..1 drawn behind the text; `badge` a marked word such as SIMULATED."""

    text: str
    tone: Tone = ""
    note: str = ""
    bar: float | None = None
    badge: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    heading: str = ""
    empty: str = "-"


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with values, one a line."""

    pairs: tuple[tuple[str, Cell], ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """Plain sentences."""

    lines: tuple[Cell, ...]


Block = Table | Facts | Lines


@dataclass(frozen=True, slots=True)
class View:
    """`title` stands above the data (talk, in a pipe), `footer` below it (talk as well)."""

    blocks: tuple[Block, ...]
    title: str = ""
    footer: tuple[Cell, ...] = ()


def printable(text: str) -> str:
    """Without escape sequences and control characters: what jobs report must not steer somebody's terminal."""
    return _CONTROL.sub("", text)


def cells(*texts: str) -> tuple[Cell, ...]:
    return tuple(Cell(text) for text in texts)
