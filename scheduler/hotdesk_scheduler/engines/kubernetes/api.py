"""The API server as paths and dictionaries: the official client's connection (kubeconfig, tokens, TLS) without the cost of its models."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
from hotdesk_api.errors import HotdeskError, Refused, Unavailable
from kubernetes.aio import config
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from hotdesk_scheduler.engines.kubernetes.turns import Turns

Json = dict[str, Any]

MERGE = "application/merge-patch+json"
STEPS = "application/json-patch+json"
REQUEST_TIMEOUT_S = 30.0
CONNECTIONS = 64
_PLAIN = re.compile(r"(/(?!\.\.?(/|$))[\w.:-]+)+", re.ASCII)
_MISSING_RIGHT = re.compile(
    r'User "(?P<who>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)


class ApiError(Exception):
    """The API server refused: `status` is HTTP's, `reason` Kubernetes' (`AlreadyExists`, `Expired` …)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def is_passing(self) -> bool:
        """Worth trying again unchanged: not reached, overloaded, failing inside."""
        return self.status == 0 or self.status == 429 or self.status >= 500

    def for_people(self) -> HotdeskError:
        """Refused for good without a right, or by a rule of the cluster; else it may be tried again."""
        if self.status != 403:
            return Unavailable(f"The cluster's API server did not do it: {self.message}", next_step="Try again in a moment.")
        if (right := _MISSING_RIGHT.search(self.message)) is None:
            return Refused(f"A rule of the cluster refuses it: {self.message}", next_step="Ask for less, or an admin changes that rule.")
        resource = ".".join(filter(None, (right["resource"], right["group"])))
        where = f" in namespace {right['namespace']}" if right["namespace"] else ""
        return Refused(
            f"Hotdesk has no right to {right['verb']} {resource}{where}.",
            next_step=f"An admin grants it to {right['who']}: the chart's role has all that is needed (rbac.create).",
        )


class Api:
    """One connection pool. `turns`: who of those that write much goes first. `requests` counts what was sent, for `make bench`.

    Nothing is written while `may_write()` says no.
    """

    def __init__(self, configuration: Configuration) -> None:
        configuration.connection_pool_maxsize = CONNECTIONS
        if not any(name.lower() in ("https_proxy", "http_proxy", "all_proxy") for name in os.environ):
            configuration.client_session_kwargs = {"trust_env": False}  # else every request looks for ~/.netrc, in a thread
        self._configuration = configuration
        self._rest = RESTClientObject(configuration)
        self.requests = 0
        self.may_write: Callable[[], bool] = lambda: True
        self.turns = Turns()

    @classmethod
    async def connect(cls, kubeconfig: Path | None = None, context: str | None = None) -> Api:
        """The given file, else $KUBECONFIG or ~/.kube/config, else the pod's own service account. `Unavailable` if there is none."""
        configuration = Configuration()
        try:
            if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ and not os.environ.get("KUBECONFIG"):
                config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]  # ships no types
            else:
                file = str(kubeconfig) if kubeconfig else None
                load = config.load_kube_config(config_file=file, context=context, client_configuration=configuration)  # type: ignore[no-untyped-call]  # ships no types
                await load
        except (config.ConfigException, OSError) as error:
            raise Unavailable(
                f"No cluster can be reached: {error}", next_step="Set KUBECONFIG or --kubeconfig to a file that names one."
            ) from error
        return cls(configuration)

    async def close(self) -> None:
        await self._rest.close()

    async def get(self, path: str, **params: Any) -> Json:
        return await self.request("GET", path, params=params)

    async def create(self, path: str, body: Json) -> Json:
        return await self.request("POST", path, body)

    async def put(self, path: str, body: Json) -> Json:
        return await self.request("PUT", path, body)

    async def merge(self, path: str, patch: Json) -> Json:
        return await self.request("PATCH", path, patch, content_type=MERGE)

    async def delete(self, path: str, body: Json | None = None) -> bool:
        """Whether it was there."""
        try:
            await self.request("DELETE", path, body)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    async def request(
        self,
        method: str,
        path: str,
        body: Json | list[Json] | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Json:
        """The answer's JSON. Raises ApiError (status 0 if the server was not reached)."""
        response = await self._send(method, path, body, params=params, content_type=content_type, patience=aiohttp.ClientTimeout(timeout_s))
        try:
            text = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _not_reached(error) from error
        found: Json = json.loads(text) if text else {}
        return found

    async def stream(
        self, path: str, params: Mapping[str, Any], *, total_s: float | None = None, silence_s: float | None = None
    ) -> aiohttp.ClientResponse:
        """An answer to be read as it comes; the caller closes it. Reading on raises TimeoutError after so long a silence."""
        patience = aiohttp.ClientTimeout(total=total_s, connect=REQUEST_TIMEOUT_S, sock_read=silence_s)
        return await self._send("GET", path, None, params=params, content_type="application/json", patience=patience)

    async def _send(
        self,
        method: str,
        path: str,
        body: Json | list[Json] | None,
        *,
        params: Mapping[str, Any] | None,
        content_type: str,
        patience: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        if method != "GET" and not self.may_write():
            raise ApiError(0, "NotLeading", "another scheduler may lead by now, so nothing is written any more")
        self.requests += 1
        try:
            answer = await self._rest.request(  # type: ignore[no-untyped-call]  # ships no types
                method, self._url(path, params), headers=await self._headers(content_type), body=body, _request_timeout=patience
            )
            response: aiohttp.ClientResponse = answer.response
            if response.status < 400:
                return response
            text = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _not_reached(error) from error
        raise _refused(response.status, text)

    async def websocket(self, path: str, params: list[tuple[str, str]], protocols: tuple[str, ...]) -> aiohttp.ClientWebSocketResponse:
        self.requests += 1
        if self._rest.pool_manager is None:
            self._rest.pool_manager = self._rest._create_pool_manager()  # as the official client's own WsApiClient does
        session: aiohttp.ClientSession = self._rest.pool_manager
        url = self._url(path, params)
        try:
            return await session.ws_connect(url, headers=await self._headers(None), protocols=protocols, timeout=aiohttp.ClientWSTimeout())
        except aiohttp.WSServerHandshakeError as error:
            raise ApiError(error.status, "Handshake", error.message) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _not_reached(error) from error

    def _url(self, path: str, params: Mapping[str, Any] | Sequence[tuple[str, str]] | None) -> str:
        """A name that somebody wrote on a pod could lead elsewhere; no object has such a one."""
        if not _PLAIN.fullmatch(path):
            raise ApiError(404, "NotFound", f"{path[:200]!r} names nothing that a cluster can have")
        return f"{self._configuration.host}{path}" + (f"?{urlencode(params)}" if params else "")

    async def _headers(self, content_type: str | None) -> dict[str, str]:
        """`content_type` None: for a websocket, which some kubelets refuse to open for who accepts JSON only (406)."""
        headers = {"Accept": "application/json", "Content-Type": content_type} if content_type else {}
        settings: Json = dict(await self._configuration.auth_settings())
        for setting in settings.values():
            headers[setting["key"]] = setting["value"]
        return headers


async def until_it_works(call: Any, *, gives_up: Any, first_s: float = 0.2, most_s: float = 5.0) -> Any:
    """`await call()` again and again while what goes wrong is passing; None once `gives_up()`. Other ApiErrors are raised."""
    pause_s = first_s
    while not gives_up():
        try:
            return await call()
        except ApiError as error:
            if not error.is_passing:
                raise
        await asyncio.sleep(pause_s)
        pause_s = min(most_s, pause_s * 2)
    return None


def _not_reached(error: BaseException) -> ApiError:
    return ApiError(0, type(error).__name__, str(error) or "it did not answer in time")


def _refused(status: int, text: bytes) -> ApiError:
    try:
        said = json.loads(text)
        return ApiError(status, str(said.get("reason", "")), str(said.get("message", "")))
    except (ValueError, AttributeError):
        return ApiError(status, "", text.decode(errors="replace")[:500])
