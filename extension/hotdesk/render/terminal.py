"""Views through rich, for people at a terminal. Nothing is cut and no name is broken: it must be copyable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from hotdesk.render.columns import GAP, Column, fit, longest_word
from hotdesk.render.view import Block, Cell, Facts, Lines, Table, Tone, View, printable

STYLES: dict[Tone, str] = {
    "": "",
    "good": "green",
    "wait": "yellow",
    "bad": "red",
    "done": "cyan",
    "dim": "dim",
    "strong": "bold",
}
BADGE_STYLE = "black on yellow"
INDENT = 4


def cell_text(cell: Cell) -> Text:
    text = Text(printable(cell.text) or "-", style=STYLES[cell.tone])
    if cell.badge:
        text.append(" ").append(f" {cell.badge} ", style=BADGE_STYLE)
    return text


class Fitted:
    """A table laid out for the width it is printed at (`columns.fit`). Aligned here: rich's own tables are slow for a thousand rows."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = [[cell_text(cell) for cell in row] for row in self.table.rows]
        names, last = self.table.columns, len(self.table.columns) - 1
        measured = [_measured(name, [row[at] for row in rows], may_wrap=at == last) for at, name in enumerate(names)]
        found = fit(measured, options.max_width)
        if self.table.heading:
            yield Text(self.table.heading)
        headings = [Text(names[at], style="bold") for at in found.beside]
        yield from _lines(console, headings, found.widths, at_the_bottom=True)
        for row, cells in zip(rows, self.table.rows, strict=True):
            yield from _lines(console, [row[at] for at in found.beside], found.widths)
            under = [Text(f"{names[at]} ", style="dim").append_text(row[at]) for at in found.below if cells[at].text not in ("", "-")]
            yield from _under(console, under, options.max_width)


def _measured(heading: str, cells: Sequence[Text], *, may_wrap: bool) -> Column:
    widest = max((cell.cell_len for cell in cells), default=0)
    return Column(heading, widest, max((longest_word(cell.plain) for cell in cells), default=0) if may_wrap else widest)


def _lines(console: Console, cells: Sequence[Text], widths: Sequence[int], *, at_the_bottom: bool = False) -> Iterator[Text]:
    """One row: a line, or several where a cell is wrapped at words."""
    if all(cell.cell_len <= width for cell, width in zip(cells, widths, strict=True)):
        yield _line(cells, widths)
        return
    wrapped = [
        list(cell.wrap(console, width)) if cell.cell_len > width and " " in cell.plain else [cell]
        for cell, width in zip(cells, widths, strict=True)
    ]
    height = max(len(lines) for lines in wrapped)
    padded = [[Text()] * (height - len(lines)) + lines if at_the_bottom else lines + [Text()] * (height - len(lines)) for lines in wrapped]
    for row in zip(*padded, strict=True):
        yield _line(row, widths)


def _line(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    line = Text(no_wrap=True, overflow="ignore")
    for text, width in zip(cells, widths, strict=True):
        line.append_text(text).append(" " * (max(0, width - text.cell_len) + GAP))
    line.rstrip()
    return line


def _under(console: Console, named: Sequence[Text], width: int) -> Iterator[Text]:
    """What has no place in the row, below it: as many to a line as fit, sentences wrapped at words."""
    room = max(width - INDENT, INDENT)
    line = Text()
    for text in named:
        if line and line.cell_len + GAP + text.cell_len > room:
            yield from _indented(console, line, room)
            line = Text()
        line = Text().append_text(line).append(" " * GAP if line else "").append_text(text)
    if line:
        yield from _indented(console, line, room)


def _indented(console: Console, text: Text, room: int) -> Iterator[Text]:
    fits = text.cell_len <= room or longest_word(text.plain) > room
    for part in [text] if fits else text.wrap(console, room):
        part.rstrip()
        yield Text(" " * INDENT, no_wrap=True, overflow="ignore").append_text(part)


def _block(block: Block) -> Iterable[RenderableType]:
    match block:
        case Table():
            yield Fitted(block)
        case Facts():
            table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
            table.add_column(no_wrap=True, style="bold")
            table.add_column(overflow="fold")
            for name, cell in block.pairs:
                table.add_row(f"{name}:", cell_text(cell))
            yield table
        case Lines():
            yield from (cell_text(cell) if cell.text else Text("") for cell in block.lines)


def whole(view: View) -> RenderableType:
    parts: list[RenderableType] = [Text(view.title)] if view.title else []
    for at, block in enumerate(view.blocks):
        parts += [Text("")] if at else []
        parts += _block(block)
    parts += [cell_text(cell) for cell in view.footer]
    return Group(*parts)


def console(*, colours: bool, stderr: bool = False) -> Console:
    """A console that never truncates to a guess: it has the terminal's width, or a wide one."""
    return Console(stderr=stderr, no_color=not colours, highlight=False, soft_wrap=False, markup=False, emoji=False)
