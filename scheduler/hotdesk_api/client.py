"""The two clients: `Client` (sync) and `AsyncClient`. Both send `calls`, and raise `hotdesk_api.errors` for everything that goes wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal, TypeVar, cast

import httpx
from pydantic import BaseModel, ValidationError

from hotdesk_api import calls
from hotdesk_api.calls import Call
from hotdesk_api.errors import HotdeskError, Unavailable, from_problem
from hotdesk_api.models import StreamEvent

T = TypeVar("T", bound=BaseModel | None)
_LATER: Literal["ignore"] = "ignore"  # what a later scheduler adds: workspaces keep their image over its upgrades
TIMEOUT_S = 30.0


def _headers(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _error(status: int, text: str) -> HotdeskError:
    try:
        body = json.loads(text)
    except ValueError:
        body = {}
    if isinstance(body, dict) and "detail" in body:
        return from_problem(body, status)
    said = f"{status} {httpx.codes.get_reason_phrase(status)}"
    if status in (401, 403):
        return from_problem({"detail": f"The hub in front of the scheduler answered {said}."}, status)
    return Unavailable(  # a 404 too: it is the hub or its proxy that knows no scheduler, not the scheduler that knows no such job
        f"Something in front of the scheduler answered {said} in its place.",
        next_step="While the hub or its proxy starts this passes by itself; else compare the address, `hotdesk whoami` shows it.",
    )


def _unreachable(url: str, error: Exception) -> Unavailable:
    return Unavailable(
        f"The scheduler at {url} cannot be reached ({type(error).__name__}: {error}).",
        next_step="Is Hotdesk running? On one machine `make up` starts it, on a cluster another scheduler takes over within half a minute; "
        "`hotdesk login --url … --token …` says where else it is.",
    )


def _body(call: Call[Any]) -> bytes | None:
    return call.body.model_dump_json(exclude_unset=True).encode() if call.body is not None else None


def _answer(call: Call[T], response: httpx.Response) -> T:
    if response.status_code >= 400 or response.is_redirect:
        raise _error(response.status_code, response.text)
    if call.answer is None:
        return cast(T, None)
    try:
        return cast(T, call.answer.model_validate_json(response.content, extra=_LATER))  # type: ignore[attr-defined]  # T is a model here
    except ValidationError as error:
        raise Unavailable(
            f"The scheduler's answer to {call.method} {call.path} is not one this version understands.",
            next_step="Compare `hotdesk version` with the scheduler's version.",
        ) from error


def _log_query(tail: int | None, since_s: float | None, follow: bool, timestamps: bool, pod: str | None) -> dict[str, str]:
    wanted = {"tail": tail, "since_s": since_s, "pod": pod}
    query = {name: str(value) for name, value in wanted.items() if value is not None}
    return query | ({"follow": "1"} if follow else {}) | ({"timestamps": "1"} if timestamps else {})


def _event_of(data: str) -> StreamEvent:
    return StreamEvent.model_validate_json(data, extra=_LATER)


class Client:
    """`url` is the scheduler's root (with `/services/hotdesk` when it is reached through the hub); `token` a JupyterHub API token."""

    def __init__(self, url: str, token: str | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url.rstrip("/")
        self.token = token
        self._http = httpx.Client(base_url=self.url, headers=_headers(token), timeout=timeout_s, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def call(self, call: Call[T]) -> T:
        """Send and return the answer's model. Raises `hotdesk_api.errors.HotdeskError`."""
        try:
            response = self._http.request(
                call.method, call.path, params=dict(call.query), content=_body(call), headers={"Content-Type": "application/json"}
            )
        except httpx.HTTPError as error:
            raise _unreachable(self.url, error) from error
        return _answer(call, response)

    @contextmanager
    def _stream(self, path: str, query: dict[str, str]) -> Iterator[httpx.Response]:
        timeout = httpx.Timeout(TIMEOUT_S, read=None)
        try:
            with self._http.stream("GET", path, params=query, timeout=timeout) as response:
                if response.status_code >= 400:
                    response.read()
                    raise _error(response.status_code, response.text)
                yield response
        except httpx.HTTPError as error:
            raise _unreachable(self.url, error) from error

    def logs(
        self,
        project: str,
        name: str,
        *,
        tail: int | None = None,
        since_s: float | None = None,
        follow: bool = False,
        timestamps: bool = False,
        pod: str | None = None,
    ) -> Iterator[bytes]:
        """The log in pieces; with `follow` until the workload ends."""
        with self._stream(calls._workload(project, name, "/logs"), _log_query(tail, since_s, follow, timestamps, pod)) as response:
            yield from response.iter_raw()

    def events(self, *, project: str | None = None, workload: str | None = None) -> Iterator[StreamEvent]:
        """Server-sent events; the first ones describe what is there now."""
        with self._stream("/v1/events", calls._query(project=project, workload=workload)) as response:
            for line in response.iter_lines():
                if line.startswith("data:"):
                    yield _event_of(line[5:].strip())


class AsyncClient:
    """As `Client`, awaitable."""

    def __init__(self, url: str, token: str | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url.rstrip("/")
        self.token = token
        self._http = httpx.AsyncClient(base_url=self.url, headers=_headers(token), timeout=timeout_s, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def call(self, call: Call[T]) -> T:
        try:
            response = await self._http.request(
                call.method, call.path, params=dict(call.query), content=_body(call), headers={"Content-Type": "application/json"}
            )
        except httpx.HTTPError as error:
            raise _unreachable(self.url, error) from error
        return _answer(call, response)

    @asynccontextmanager
    async def _stream(self, path: str, query: dict[str, str]) -> AsyncIterator[httpx.Response]:
        timeout = httpx.Timeout(TIMEOUT_S, read=None)
        try:
            async with self._http.stream("GET", path, params=query, timeout=timeout) as response:
                if response.status_code >= 400:
                    await response.aread()
                    raise _error(response.status_code, response.text)
                yield response
        except httpx.HTTPError as error:
            raise _unreachable(self.url, error) from error

    async def logs(
        self,
        project: str,
        name: str,
        *,
        tail: int | None = None,
        since_s: float | None = None,
        follow: bool = False,
        timestamps: bool = False,
        pod: str | None = None,
    ) -> AsyncIterator[bytes]:
        async with self._stream(calls._workload(project, name, "/logs"), _log_query(tail, since_s, follow, timestamps, pod)) as response:
            async for piece in response.aiter_raw():
                yield piece

    async def events(self, *, project: str | None = None, workload: str | None = None) -> AsyncIterator[StreamEvent]:
        async with self._stream("/v1/events", calls._query(project=project, workload=workload)) as response:
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    yield _event_of(line[5:].strip())
