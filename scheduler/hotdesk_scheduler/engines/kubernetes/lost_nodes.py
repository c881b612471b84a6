"""Nodes that went away: for how long they may be not ready, and when what ran there is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hotdesk_scheduler.core.model import Node


class LostNodes:
    """`lose(name)` is called when a node's time is over: at once for one that was removed, which will not come back."""

    def __init__(self, patience_s: float, lose: Callable[[str], None]) -> None:
        self._patience_s = patience_s
        self._lose = lose
        self._waiting: dict[str, asyncio.TimerHandle] = {}

    def look(self, name: str, node: Node | None) -> None:
        """What is known of a node now (None: there is none of that name)."""
        if node is not None and node.ready:
            self._forget(name)
        elif node is None:
            self._wait(name, 0.0)
        elif name not in self._waiting:
            self._wait(name, self._patience_s)

    def stop(self) -> None:
        for name in tuple(self._waiting):
            self._forget(name)

    def _forget(self, name: str) -> None:
        if (timer := self._waiting.pop(name, None)) is not None:
            timer.cancel()

    def _wait(self, name: str, patience_s: float) -> None:
        self._forget(name)
        self._waiting[name] = asyncio.get_running_loop().call_later(patience_s, self._over, name)

    def _over(self, name: str) -> None:
        self._waiting.pop(name, None)
        self._lose(name)
