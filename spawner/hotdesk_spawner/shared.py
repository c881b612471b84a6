"""What all spawners of one hub share: a client for each scheduler, tasks that outlive a call, and why workspaces were stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from hotdesk_api.client import AsyncClient

CALL_TIMEOUT_S = 10.0
_clients: dict[tuple[int, str, str], AsyncClient] = {}
_background: set[asyncio.Task[None]] = set()
_ends: dict[tuple[str, str], asyncio.Task[None]] = {}


class Sentences(dict[tuple[str, str], str]):
    """(user, server) -> why. It stays one and the same although JupyterHub deep-copies its configuration."""

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Sentences:
        return self


why_stopped = Sentences()  # for the hub's "not running" page


def client_for(url: str, token: str) -> AsyncClient:
    """One client for each event loop, scheduler and token: connections are kept, and certificates are read once."""
    key = (id(asyncio.get_running_loop()), url, token)
    if key not in _clients:
        _clients[key] = AsyncClient(url, token, timeout_s=CALL_TIMEOUT_S)
    return _clients[key]


def in_background(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run it to its end; asyncio itself keeps only weak references to tasks."""
    task = asyncio.ensure_future(work)
    _background.add(task)
    task.add_done_callback(_background.discard)
    return task


def tell_end(user: str, server: str, work: Coroutine[Any, Any, None]) -> None:
    """In the background, until it is told or the workspace is opened again."""
    forget_end(user, server)
    _ends[user, server] = in_background(work)


def forget_end(user: str, server: str) -> None:
    """It is opened again: told now, the end of the one before would be the end of this one, which may take over its place."""
    if task := _ends.pop((user, server), None):
        task.cancel()
