"""Who is calling: a bearer token resolved by the hub, or by a file of tokens where there is no hub. No cookies, so no XSRF.

Answers are remembered for a short time; tokens are remembered only as hashes and never logged.
"""

from __future__ import annotations

import hashlib
import json
import stat
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import httpx
from hotdesk_api.errors import Invalid, Unauthorized, Unavailable

from hotdesk_scheduler.service.callers import Caller, Scopes

KNOWN_S = 30.0
UNKNOWN_S = 5.0
REMEMBERED = 2000
TIMEOUT_S = 10.0
TOKEN_MAX = 4096


class Authenticator(Protocol):
    async def caller(self, token: str) -> Caller:
        """Raises Unauthorized, or Unavailable if nobody can tell."""

    async def close(self) -> None: ...


def bearer(header: str) -> str:
    """The token of an Authorization header, `Bearer X` or `token X`. Raises Unauthorized."""
    kind, _, token = header.partition(" ")
    token = token.strip()
    if kind.lower() not in ("bearer", "token") or not token:
        raise Unauthorized("The request carries no token.", next_step="Send it as `Authorization: Bearer TOKEN`; `hotdesk login` does so.")
    if len(token) > TOKEN_MAX or not (token.isascii() and token.isprintable()):
        raise _unauthorized()
    return token


def _unauthorized() -> Unauthorized:
    return Unauthorized(
        "The token is not valid (any more).",
        next_step="Log in again with `hotdesk login`, or restart the workspace to get a new one.",
    )


def _own_scopes(scopes: list[str], name: str) -> frozenset[str]:
    """Scopes as they hold for their owner: a filter on the own user is no restriction, any other is not ours to widen."""
    own = f"!user={name}"
    return frozenset(scope.removesuffix(own) for scope in scopes if "!" not in scope or scope.endswith(own))


class HubAuthenticator:
    """Asks the hub's `GET /user`; what it says holds for `KNOWN_S` seconds, a refusal for `UNKNOWN_S`."""

    def __init__(self, api_url: str, scopes: Scopes, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._scopes = scopes
        self._clock = clock
        self._remembered: OrderedDict[bytes, tuple[float, Caller | None]] = OrderedDict()
        self._http = httpx.AsyncClient(base_url=api_url.rstrip("/") + "/", timeout=TIMEOUT_S, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def caller(self, token: str) -> Caller:
        key = hashlib.sha256(token.encode(errors="surrogatepass")).digest()
        until, caller = self._remembered.get(key, (0.0, None))
        if until <= self._clock():
            caller = await self._ask(token)
            self._remember(key, caller)
        if caller is None:
            raise _unauthorized()
        return caller

    def _remember(self, key: bytes, caller: Caller | None) -> None:
        self._remembered[key] = (self._clock() + (KNOWN_S if caller else UNKNOWN_S), caller)
        self._remembered.move_to_end(key)
        while len(self._remembered) > REMEMBERED:
            self._remembered.popitem(last=False)

    async def _ask(self, token: str) -> Caller | None:
        try:
            response = await self._http.get("user", headers={"Authorization": f"token {token}"})
        except httpx.HTTPError as error:
            raise _hub_down(type(error).__name__) from error
        if response.status_code in (401, 403, 404):
            return None
        if response.status_code != 200:
            raise _hub_down(f"it answered {response.status_code}")
        return caller_of(response.json(), self._scopes)


def _hub_down(why: str) -> Unavailable:
    return Unavailable(
        f"JupyterHub, which knows the tokens, cannot be asked ({why}).", next_step="Try again in a moment; running jobs are not affected."
    )


def caller_of(model: dict[str, Any], scopes: Scopes) -> Caller:
    """From the hub's model of a user or a service."""
    name = str(model["name"])
    return Caller(
        name=name,
        groups=frozenset(model.get("groups") or ()),
        scopes=_own_scopes(list(model.get("scopes") or ()), name),
        service=model.get("kind") == "service",
        names=scopes,
    )


class FileAuthenticator:
    """`{"TOKEN": {"name", "groups": [], "scopes": []}}` in a file that only its owner may read; read again when it changes."""

    def __init__(self, path: Path, scopes: Scopes) -> None:
        self._path = path
        self._scopes = scopes
        self._read_at: tuple[int, int] | None = None
        self._callers: dict[str, Caller] = {}
        self._load()

    async def close(self) -> None:
        return

    def _load(self) -> None:
        try:
            status = self._path.stat()
            if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise Invalid(f"{self._path} can be read by others.", field="tokens", next_step=f"chmod 600 {self._path}")
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp == self._read_at:
                return
            content = json.loads(self._path.read_text())
            self._callers = {token: caller_of(model, self._scopes) for token, model in content.items()}
            self._read_at = stamp
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise Invalid(f"The tokens in {self._path} cannot be read: {type(error).__name__}.", field="tokens") from error

    async def caller(self, token: str) -> Caller:
        try:
            self._load()
        except Invalid as error:
            raise Unavailable(error.sentence, next_step=error.next_step) from error
        if token not in self._callers:
            raise _unauthorized()
        return self._callers[token]
