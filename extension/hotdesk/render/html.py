"""Views as HTML for notebooks. Everything from outside is escaped; colours work on light and dark themes; no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from hotdesk.render.view import Block, Cell, Facts, Lines, Table, Tone, View, printable

COLOURS: dict[Tone, str] = {
    "": "",
    "good": "color:var(--jp-success-color0,#1a7f37);font-weight:600",
    "wait": "color:var(--jp-warn-color0,#9a6700);font-weight:600",
    "bad": "color:var(--jp-error-color1,#cf222e);font-weight:600",
    "done": "color:var(--jp-info-color0,#0969da);font-weight:600",
    "dim": "opacity:.65",
    "strong": "font-weight:600",
}
BADGE = "background:#ffbf00;color:#3d2c00;border-radius:3px;padding:0 .4em;font-size:85%;font-weight:600;white-space:nowrap"
TH = "text-align:left;padding:.25em .8em .25em 0;border-bottom:1px solid #8886;font-weight:600;white-space:nowrap"
TD = "text-align:left;padding:.2em .8em .2em 0;vertical-align:top"
OUTER = "font-size:13px;line-height:1.4;overflow-x:auto"
TABLE = "border-collapse:collapse;color:inherit;font-size:inherit"
SHORT = 48


def error(sentence: str, next_step: str | None = None) -> str:
    step = f' <span style="{COLOURS["dim"]}">{escape(next_step)}</span>' if next_step else ""
    return f'<div class="hotdesk-error" style="{OUTER}"><span style="{COLOURS["bad"]}">{escape(sentence)}</span>{step}</div>'


def _bar(share: float, text: str) -> str:
    percent = max(0.0, min(1.0, share)) * 100
    colour = "#bf870077" if share > 1 else "#2da44e66"  # more than the quota is borrowed, not wrong
    return (
        f'<div style="background:linear-gradient(90deg,{colour} {percent:.0f}%,#8883 {percent:.0f}%);border-radius:3px;'
        f'padding:0 .5em;min-width:6em;white-space:nowrap">{text}</div>'
    )


def _linked(text: str) -> str:
    """Text, or a link where it is a web address."""
    shown = escape(text).replace("\n", "<br>")
    if not text.startswith(("http://", "https://")) or " " in text:
        return shown
    return f'<a href="{escape(text, quote=True)}" target="_blank" rel="noopener noreferrer">{shown}</a>'


def cell_html(cell: Cell) -> str:
    text = ", ".join(_linked(part) for part in printable(cell.text).split(", "))
    if cell.tone and cell.bar is not None:
        text = f'<span style="{COLOURS["strong"]}">{text}</span>'  # on a bar the bar is the colour
    elif cell.tone:
        text = f'<span style="{COLOURS[cell.tone]}">{text}</span>'
    if cell.bar is not None:
        text = _bar(cell.bar, text)
    if cell.badge:
        text += f' <span class="hotdesk-badge" style="{BADGE}">{escape(cell.badge)}</span>'
    return text + _note(cell) if cell.note else text


def _note(cell: Cell) -> str:
    return f'<div class="hotdesk-note" style="{COLOURS["dim"]};font-size:90%;max-width:60em">{escape(printable(cell.note))}</div>'


def _td(cell: Cell) -> str:
    """Names and numbers stay on one line; sentences may wrap."""
    one_line = "" if cell.note or len(cell.text) > SHORT else ";white-space:nowrap"
    return f'<td style="{TD}{one_line}">{cell_html(cell)}</td>'


def _row(row: Sequence[Cell]) -> str:
    """A row, and below it, over its whole width, the sentences that a column would squeeze."""
    beside = [replace(cell, note="") if len(cell.note) > SHORT else cell for cell in row]
    below = "".join(_note(cell) for cell in row if len(cell.note) > SHORT)
    cells = "".join(_td(cell) for cell in beside)
    return f"<tr>{cells}</tr>" + (f'<tr><td colspan="{len(row)}" style="{TD};padding-left:1.6em">{below}</td></tr>' if below else "")


def _block(block: Block) -> str:
    match block:
        case Table():
            heading = f'<div style="font-weight:600;margin-top:.6em">{escape(block.heading)}</div>' if block.heading else ""
            head = "".join(f'<th style="{TH}">{escape(column)}</th>' for column in block.columns)
            rows = "".join(_row(row) for row in block.rows)
            return f'{heading}<table style="{TABLE}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        case Facts():
            rows = "".join(
                f'<tr><th style="{TD};font-weight:600;white-space:nowrap">{escape(name)}</th><td style="{TD}">{cell_html(cell)}</td></tr>'
                for name, cell in block.pairs
            )
            return f'<table style="{TABLE}"><tbody>{rows}</tbody></table>'
        case Lines():
            return "".join(f"<div>{cell_html(cell)}</div>" for cell in block.lines)


def whole(view: View) -> str:
    title = f'<div style="margin-bottom:.3em">{escape(view.title)}</div>' if view.title else ""
    footer = "".join(f'<div style="margin-top:.3em;font-size:95%">{cell_html(cell)}</div>' for cell in view.footer)
    return f'<div class="hotdesk" style="{OUTER}">{title}{"".join(_block(block) for block in view.blocks)}{footer}</div>'


def sentences(lines: tuple[str, ...]) -> str:
    return f'<div class="hotdesk" style="{OUTER}">' + "".join(f"<div>{escape(line)}</div>" for line in lines) + "</div>"
