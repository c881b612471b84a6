"""Reads CSV files as people have them: other names for a column, other separators, units in a heading. Says exactly what is wrong where."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hotdesk_api.errors import Invalid

Value = TypeVar("Value")

_UNIT_MS = {"": 1000, "ms": 1, "s": 1000, "sec": 1000, "seconds": 1000, "m": 60_000, "min": 60_000, "minutes": 60_000, "h": 3_600_000,
            "hours": 3_600_000}  # fmt: skip
_UNIT = re.compile(rf"^(.+)_({'|'.join(filter(None, _UNIT_MS))})$")


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, what else people call it, and whether its heading may end in a unit of time (`duration_h`)."""

    name: str
    also: tuple[str, ...] = ()
    is_time: bool = False

    def unit_ms(self, heading: str) -> int | None:
        """Milliseconds of what a number under this heading counts (1000 unless it says so); None if it is another column."""
        names = (self.name, *self.also)
        if heading in names:
            return 1000
        unit = _UNIT.match(heading) if self.is_time else None
        return _UNIT_MS[unit[2]] if unit and unit[1] in names else None


@dataclass(frozen=True, slots=True)
class Row:
    """One line: the text under each known column that is filled in, and the headings as the file writes them."""

    path: Path
    line: int
    texts: Mapping[str, str]
    headings: Mapping[str, str]
    unit_ms: Mapping[str, int]

    def read(self, column: str, parse: Callable[[str], Value], expected: str) -> Value | None:
        """The value under a column, None if it is empty. Raises Invalid that names file, line, column, what was read, what is expected."""
        text = self.texts.get(column)
        if text is None:
            return None
        try:
            return parse(text)
        except (ValueError, ArithmeticError) as error:
            raise self.wrong(column, f"{text!r} is not {expected}") from error
        except Invalid as error:
            raise self.wrong(column, f"{text!r} is not {expected} ({error.sentence})") from error

    def need(self, column: str, parse: Callable[[str], Value], expected: str) -> Value:
        found = self.read(column, parse, expected)
        if found is None:
            raise self.wrong(column, f"it is empty; expected is {expected}")
        return found

    def wrong(self, column: str, what: str) -> Invalid:
        heading = self.headings.get(column, column)
        return Invalid(f"{self.path}, line {self.line}, column {heading}: {what}.", field=column, value=self.texts.get(column))


def _plain(heading: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", heading.strip().lower()).strip("_")


def read_text(path: Path) -> str:
    """Raises Invalid if the file cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}.", field=str(path)) from error
    except UnicodeDecodeError as error:
        raise Invalid(f"{path} is not a text file in UTF-8.", field=str(path)) from error


def read_rows(path: Path, columns: Sequence[Column], *, need: Sequence[str]) -> list[Row]:
    """The rows of a CSV file (`,` `;` or tab; lines that begin with # and empty ones are skipped). Raises Invalid."""
    lines = read_text(path).splitlines()
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")]
    if not numbered:
        raise Invalid(f"{path} is empty; its first line names the columns.", next_step=f"Needed: {', '.join(need)}.")
    separator = max(",;\t", key=numbered[0][1].count)
    cells = [next(csv.reader([line], delimiter=separator)) for _, line in numbered]
    headings = [heading.strip() for heading in cells[0]]
    places = _places(path, headings, columns)
    missing = [name for name in need if name not in places]
    if missing:
        other = next(column for column in columns if column.name == missing[0]).also
        called = f" (or {', '.join(other[:5])})" if other else ""
        raise Invalid(f"{path} has no column {missing[0]}{called}; its columns: {', '.join(headings)}.", field=missing[0])
    for (number, _), row in zip(numbered[1:], cells[1:], strict=True):
        if any(cell.strip() for cell in row[len(headings) :]):
            raise Invalid(f"{path}, line {number}, has {len(row)} values, and the first line names {len(headings)} columns.")
    shown = {name: headings[at] for name, (at, _) in places.items()}
    units = {name: unit for name, (_, unit) in places.items()}
    return [
        Row(path, number, {name: row[at].strip() for name, (at, _) in places.items() if at < len(row) and row[at].strip()}, shown, units)
        for (number, _), row in zip(numbered[1:], cells[1:], strict=True)
    ]


def _places(path: Path, headings: Sequence[str], columns: Sequence[Column]) -> dict[str, tuple[int, int]]:
    """Where each known column is, and its unit of time. A heading that two columns could mean is the first's."""
    places: dict[str, tuple[int, int]] = {}
    for at, heading in enumerate(headings):
        for column in columns:
            unit = column.unit_ms(_plain(heading))
            if unit is None:
                continue
            if column.name in places:
                raise Invalid(f"{path} has two columns for {column.name}: {headings[places[column.name][0]]} and {heading}.")
            places[column.name] = (at, unit)
            break
    return places
