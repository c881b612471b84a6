"""Views as aligned text: for pipes, NO_COLOR's friends and the text side of notebook outputs. Nothing is cut off; columns are stable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hotdesk.render.view import Block, Cell, Facts, Lines, Table, View, printable

GAP = "  "


def shown(cell: Cell) -> str:
    """A cell on one line: its badge in parentheses, line breaks as blanks."""
    text = printable(" ".join(cell.text.split("\n"))) or "-"
    return f"{text} ({cell.badge})" if cell.badge else text


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))] if rows else []
    return [GAP.join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _block(block: Block) -> Iterable[str]:
    match block:
        case Table():
            if block.heading:
                yield block.heading
            yield from aligned([block.columns, *([shown(cell) for cell in row] for row in block.rows)])
        case Facts():
            yield from aligned([[f"{name}:", shown(cell)] for name, cell in block.pairs])
        case Lines():
            yield from (line for cell in block.lines for line in (_line(cell) or "").split("\n"))


def _line(cell: Cell) -> str:
    text = printable(cell.text)
    return f"{text} ({cell.badge})" if cell.badge else text


def body(view: View) -> str:
    """The data alone, ending in a line break."""
    return "\n\n".join("\n".join(_block(block)) for block in view.blocks) + "\n" if view.blocks else ""


def talk(view: View) -> list[str]:
    return [_line(cell) for cell in view.footer]


def whole(view: View) -> str:
    """Title, data and footer: the text/plain side of a notebook's output."""
    title = view.title + "\n" if view.title else ""
    return title + body(view) + "".join(line + "\n" for line in talk(view))
