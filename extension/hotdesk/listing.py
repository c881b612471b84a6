"""A list that shows itself as its table when a notebook or a console looks at it, and is a plain list for everything else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from hotdesk.render import html, plain
from hotdesk.render.view import View

Item = TypeVar("Item")


class Listing(list[Item]):
    """`view` is how it looks; the items are what it holds."""

    def __init__(self, items: Iterable[Item], *, view: View) -> None:
        super().__init__(items)
        self.view = view

    def _repr_html_(self) -> str:
        return html.whole(self.view)

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        printer.text(plain.whole(self.view).rstrip("\n"))  # type: ignore[attr-defined]  # IPython's printer
