"""How a table fits a terminal of a given width, decided on widths alone. Nothing is cut and no word is broken to make room.

In this order: headings on one line; headings wrapped at words; the last column wrapped, if it holds sentences; and else the widest
columns leave the table and stand below each row, named. At 80 columns `list` becomes

    NAME    STATUS   AGE  NODE    TYPE   PROJECT  USER   GPUs  SERVICE
                                                               URL(S)
    hyper1  Running  11s  dgx1-1  Train  team-a   alice  1     -
        IMAGE gcr.io/run-ai-demo/quickstart
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GAP = 2
SENTENCE_LEAST = 24
WIDE = 20
STAYS = frozenset({"NAME", "STATUS", "PROJECT", "USER", "TYPE", "AGE", "NODE", "POD", "GPU", "GPUs", "ALLOCATED GPUs", "FREE GPUs"})
GOES = frozenset({"IP ADDRESS", "ROLE", "CREATED BY CLI", "UUID"})


@dataclass(frozen=True, slots=True)
class Column:
    """`widest` is the widest cell, `longest_word` the longest word in any of them."""

    heading: str
    widest: int
    longest_word: int = 0


@dataclass(frozen=True, slots=True)
class Fit:
    """`beside`: the columns that stay, with their `widths`; `below`: those that stand under each row. Indexes of the table's columns."""

    beside: tuple[int, ...]
    widths: tuple[int, ...]
    below: tuple[int, ...] = ()


def fit(columns: Sequence[Column], width: int) -> Fit:
    """A place for every column. The first one always stays, even if it is wider than the terminal."""
    beside = list(range(len(columns)))
    while True:
        found = _whole(columns, beside, width) or _last_wrapped(columns, beside, width)
        if found or len(beside) == 1:
            below = tuple(at for at in range(len(columns)) if at not in beside)
            return Fit(tuple(beside), found or (columns[0].widest,), below)
        beside.remove(min(beside[1:], key=lambda at: _goes_first(columns[at], at)))


def _goes_first(column: Column, at: int) -> tuple[int, int, int]:
    """What is very wide, then what matters least, then the widest; of equals the rightmost."""
    rank = 3 if column.heading in STAYS else 0 if column.widest > WIDE else 1 if column.heading in GOES else 2
    return rank, -column.widest, -at


def _whole(columns: Sequence[Column], beside: Sequence[int], width: int) -> tuple[int, ...] | None:
    for heading_width in (len, longest_word):
        widths = tuple(max(columns[at].widest, heading_width(columns[at].heading)) for at in beside)
        if _needed(widths) <= width:
            return widths
    return None


def _last_wrapped(columns: Sequence[Column], beside: Sequence[int], width: int) -> tuple[int, ...] | None:
    widths = [max(columns[at].widest, longest_word(columns[at].heading)) for at in beside]
    room = width - _needed((*widths[:-1], 0))
    last = columns[beside[-1]]
    return (*widths[:-1], room) if len(beside) > 1 and room >= max(SENTENCE_LEAST, last.longest_word) else None


def _needed(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def longest_word(text: str) -> int:
    return max((len(word) for word in text.split()), default=0)
