"""A played trace in words: the table for people, and the same as JSON. With a "what if" both are side by side, with the difference."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hotdesk_scheduler.whatif.figures import Figures, Row

PIPED_WIDTH = 200
WIDEST = 10_000
NAMED_WAITING = 3

Cell = Callable[[Row], float | int | None]
Column = tuple[str, Cell, Callable[[float | int | None], str]]


def duration_words(seconds: float | None) -> str:
    """`12s`, `1m 05s`, `2h 05m`, `3d 04h`."""
    if seconds is None:
        return "-"
    left = round(seconds)
    if left < 60:
        return f"{left}s"
    if left < 3600:
        return f"{left // 60}m {left % 60:02d}s"
    if left < 86_400:
        return f"{left // 3600}h {left % 3600 // 60:02d}m"
    return f"{left // 86_400}d {left % 86_400 // 3600:02d}h"


def _number(digits: int, unit: str = "") -> Callable[[float | int | None], str]:
    return lambda value: "-" if value is None else f"{value:.{digits}f}{unit}"


COLUMNS: Sequence[Column] = (
    ("QUOTA", lambda row: row.quota_gpus, lambda value: "-" if value is None else f"{value:g}"),
    ("JOBS", lambda row: row.jobs, _number(0)),
    ("DONE", lambda row: row.finished, _number(0)),
    ("ALLOCATION", lambda row: row.allocation, _number(1, " %")),
    ("UTILISATION", lambda row: row.utilisation, _number(1, " %")),
    ("WAIT MEAN", lambda row: row.wait_mean_s, duration_words),
    ("P50", lambda row: row.wait_p50_s, duration_words),
    ("P99", lambda row: row.wait_p99_s, duration_words),
    ("PREEMPTED", lambda row: row.preempted, _number(0)),
    ("MOVED", lambda row: row.moved, _number(0)),
    ("LOST GPU H", lambda row: row.lost_gpu_hours, _number(1)),
    ("SERVED", lambda row: row.served, _number(1, " %")),
)


def print_report(now: Figures, then: Figures | None, *, title: str, what_if: str, notes: Sequence[str]) -> None:
    """On a terminal no wider than it is; piped always the same text."""
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False)
    with console.capture() as captured:
        for table in tables(now, then, console):
            console.print(table)
    print(title, *notes, sep="\n")
    if then is not None:
        print(f"What if: {what_if}")
    print(*(line.rstrip() for line in captured.get().splitlines()), *_closing(now, then), sep="\n")


def tables(now: Figures, then: Figures | None, console: Console) -> list[Table]:
    """All columns, one below the other in as many tables as the width of the console takes."""
    anywhere = console.options.update(width=WIDEST)
    found: list[Table] = []
    columns = list(COLUMNS)
    while columns:
        count = len(columns)
        while count > 1 and console.measure(_table(now, then, columns[:count]), options=anywhere).maximum > console.width:
            count -= 1
        found.append(_table(now, then, columns[:count]))
        columns = columns[count:]
    return found


def _table(now: Figures, then: Figures | None, columns: Sequence[Column]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("PROJECT")
    if then is not None:
        table.add_column("")
    for heading, _, _ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    pairs = zip((*now.rows, now.total), (*then.rows, then.total) if then else (None,) * (len(now.rows) + 1), strict=True)
    for row, other in pairs:
        cells = [show(value(row)) for _, value, show in columns]
        if other is None:
            table.add_row(row.project, *cells)
            continue
        table.add_row(row.project, "now", *cells)
        table.add_row("", "what if", *(show(value(other)) for _, value, show in columns))
        table.add_row("", "change", *(change(value(row), value(other), show) for _, value, show in columns), end_section=True, style="bold")
    return table


def change(before: float | None, after: float | None, show: Callable[[float | int | None], str]) -> str:
    """`+1m 05s`, `-2.0 %`, nothing where nothing changed."""
    if before is None or after is None:
        return ""
    text = show(abs(after - before))
    return "" if text == show(0) else f"{'+' if after > before else '-'}{text}"


def _closing(now: Figures, then: Figures | None) -> list[str]:
    def both(show: Callable[[Figures], str]) -> str:
        return show(now) if then is None else f"{show(now)} now, {show(then)} what if"

    def fairness(figures: Figures) -> str:
        return "-" if figures.fairness is None else f"{figures.fairness:.3f}"

    lines = [f"Makespan: {both(lambda f: duration_words(f.makespan_s))}. Fairness (Jain's index of SERVED): {both(fairness)}."]
    for figures, words in ((now, "" if then is None else " now"), (then, " what if")):
        if figures is None or not figures.waiting:
            continue
        count = len(figures.waiting)
        lines.append(f"{count} job{'s' if count > 1 else ''} never started{words}:")
        lines += [f"  {project}/{name}: {why}" for project, name, why in figures.waiting[:NAMED_WAITING]]
        if count > NAMED_WAITING:
            lines.append(f"  and {count - NAMED_WAITING} more")
    return lines


def as_json(now: Figures, then: Figures | None, *, what_if: str, notes: Sequence[str]) -> dict[str, Any]:
    """The figures as they are; with a what-if also the difference of every number."""
    body: dict[str, Any] = {"notes": list(notes), "now": asdict(now)}
    if then is not None:
        body |= {"what_if": what_if, "then": asdict(then), "change": _difference(asdict(now), asdict(then))}
    return body


def _difference(now: Any, then: Any) -> Any:
    """Number by number; rows keep their project's name."""
    if isinstance(now, dict):
        kept = {"project": now["project"]} if "project" in now else {}
        return kept | {key: _difference(now[key], then[key]) for key in now if key not in ("project", "waiting", "gpus")}
    if isinstance(now, list | tuple):
        return [_difference(a, b) for a, b in zip(now, then, strict=True)]
    return None if now is None or then is None else round(then - now, 4)
