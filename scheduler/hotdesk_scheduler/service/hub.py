"""What the scheduler asks of JupyterHub: which servers there are, and to stop one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

import httpx
from hotdesk_api.errors import Unavailable

TIMEOUT_S = 20.0
PAGE, OVERLAP = 200, 20
TRIES = 3
_PAGED = "application/jupyterhub-pagination+json"


@dataclass(frozen=True, slots=True)
class Server:
    """One active server of the hub: `ready`, or with something `pending` (spawn, stop, check)."""

    ready: bool
    pending: str | None


Servers = Mapping[tuple[str, str], Server]


class Hub(Protocol):
    """The part of a hub that workspaces need; tests have their own."""

    async def servers(self) -> Servers:
        """Active servers by (user, server name). Raises Unavailable."""

    async def stop(self, user: str, server: str) -> None:
        """Ask the hub to stop (or cancel) it; no error if it is not there. Raises Unavailable."""


class HubClient:
    """The hub's REST API with this service's own token."""

    def __init__(self, api_url: str, token: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._http = httpx.AsyncClient(
            base_url=api_url.rstrip("/") + "/", headers={"Authorization": f"token {token}"}, timeout=timeout_s, trust_env=False
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = await self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise Unavailable(f"JupyterHub cannot be reached ({type(error).__name__}).") from error
        if response.status_code >= 500 or response.status_code in (401, 403):
            raise Unavailable(f"JupyterHub answered {response.status_code} to {method} {path.split('?')[0]}.")
        return response

    async def servers(self) -> Servers:
        for _ in range(TRIES):
            users = await self._users()
            if users is not None:
                return dict(_active(users))
        raise Unavailable("JupyterHub's list of servers changed each time it was read.")

    async def _users(self) -> list[dict[str, Any]] | None:
        """Those with active servers, page by page; None if one may have been missed.

        Pages are counted from the first user: when one goes between two of them, another moves from the second to the first. So
        each begins with some that the one before has shown, and must show the last of them.
        """
        found: list[dict[str, Any]] = []
        offset = 0
        while True:
            query: dict[str, str | int] = {"state": "active", "offset": offset, "limit": PAGE}
            response = await self._ask("GET", "users", params=query, headers={"Accept": _PAGED})
            if response.status_code != 200:
                raise Unavailable(f"JupyterHub answered {response.status_code} to GET users.")
            page = response.json()
            if isinstance(page, list):
                return found + page
            users = page["items"]
            if found and found[-1]["name"] not in {user["name"] for user in users}:
                return None
            found += users
            if not page["_pagination"]["next"]:
                return found
            offset += max(1, len(users) - min(OVERLAP, len(users) // 2))

    async def stop(self, user: str, server: str) -> None:
        path = f"users/{quote(user, safe='')}/" + (f"servers/{quote(server, safe='')}" if server else "server")
        await self._ask("DELETE", path)


def _active(users: Iterable[dict[str, Any]]) -> Iterator[tuple[tuple[str, str], Server]]:
    """By (user, server name). Some hubs list servers that are stopped, too."""
    for user in users:
        for name, server in (user.get("servers") or {}).items():
            if server.get("ready") or server.get("pending"):
                yield (user["name"], name), Server(ready=bool(server.get("ready")), pending=server.get("pending"))
