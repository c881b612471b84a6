"""Views through rich, for people at a terminal. Long cells are wrapped, never cut: a name must be copyable."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

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
LONG = 60
KEPT_WHOLE = frozenset({"NAME", "STATUS", "PROJECT", "TYPE", "AGE", "POD", "GPUs"})


def cell_text(cell: Cell) -> Text:
    text = Text(printable(cell.text) or "-", style=STYLES[cell.tone])
    if cell.badge:
        text.append(" ").append(f" {cell.badge} ", style=BADGE_STYLE)
    return text


def _long_table(table: Table) -> Iterable[RenderableType]:
    """Hundreds of rows: one text a row, aligned here; a layout of every cell would take longer than the scheduler's answer."""
    rows = [[cell_text(Cell(column, "strong")) for column in table.columns], *([cell_text(cell) for cell in row] for row in table.rows)]
    widths = [max(row[at].cell_len for row in rows) for at in range(len(table.columns))]
    if table.heading:
        yield Text(table.heading)
    for row in rows:
        line = Text(no_wrap=True, overflow="ignore")
        for text, width in zip(row, widths, strict=True):
            line.append_text(text).append(" " * (width - text.cell_len + 2))
        line.rstrip()
        yield line


def _block(block: Block) -> Iterable[RenderableType]:
    match block:
        case Table() if len(block.rows) > LONG:
            yield from _long_table(block)
        case Table():
            table = RichTable(
                box=None, pad_edge=False, padding=(0, 2, 0, 0), title=block.heading or None, title_justify="left", header_style="bold"
            )
            for column in block.columns:
                table.add_column(column, no_wrap=column in KEPT_WHOLE, overflow="fold")
            for row in block.rows:
                table.add_row(*(cell_text(cell) for cell in row))
            yield table
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
