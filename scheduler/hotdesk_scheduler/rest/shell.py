"""The exec websocket: a command inside a pod. First a JSON message, then binary ones whose first byte is the channel (README)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import Any

from hotdesk_api.errors import Conflict, HotdeskError, Invalid, problem
from hotdesk_api.models import Wire
from pydantic import Field, ValidationError
from tornado import web, websocket

from hotdesk_scheduler.core.model import PodState
from hotdesk_scheduler.engines.base import ExecSession
from hotdesk_scheduler.rest.auth import Authenticator, bearer
from hotdesk_scheduler.rest.base import as_problem
from hotdesk_scheduler.rest.streams import pod_index
from hotdesk_scheduler.service.callers import Caller
from hotdesk_scheduler.service.desk import Desk

log = logging.getLogger(__name__)
STDIN, STDOUT, STDERR, CONTROL = range(4)
FIRST_MESSAGE_S = 30.0


class ExecRequest(Wire):
    argv: list[str] = Field(min_length=1, max_length=10_000)
    tty: bool = False
    rows: int = Field(default=24, ge=1, le=10_000)
    columns: int = Field(default=80, ge=1, le=10_000)
    pod: int | str | None = None


class Exec(websocket.WebSocketHandler):
    """Tokens only: a browser cannot send one across sites, so any origin may."""

    def initialize(self, desk: Desk, authenticator: Authenticator) -> None:
        self.desk = desk
        self.authenticator = authenticator
        self.caller = Caller("")
        self.project = self.name = ""
        self.session: ExecSession | None = None
        self._first = True
        self._task: asyncio.Task[None] | None = None

    def check_origin(self, origin: str) -> bool:
        return True

    async def prepare(self) -> None:
        self.caller = await self.authenticator.caller(bearer(self.request.headers.get("Authorization", "")))

    async def get(self, project: str, name: str) -> None:
        entry = self.desk.entry(self.caller, project, name)
        self.caller.require_inside(entry.workload)
        self.project, self.name = project, name
        await super().get(project, name)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        known = as_problem(kwargs.get("exc_info", (None, None, None))[1], status_code, self.request.method or "", self.request.path)
        self.set_status(known.status)
        self.set_header("Content-Type", "application/problem+json")
        self.finish(json.dumps(problem(known)))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, HotdeskError | web.HTTPError):
            log.error("exec.failed path=%s", self.request.path, exc_info=(typ, value, tb))

    def open(self, *_: str) -> None:
        self._timeout = asyncio.get_running_loop().call_later(FIRST_MESSAGE_S, self._too_late)

    def _too_late(self) -> None:
        if self._first:
            self.close(1002, "no command came")

    async def on_message(self, message: str | bytes) -> None:
        try:
            if self._first:
                self._first = False
                await self._begin(message)
            elif isinstance(message, bytes) and message:
                await self._feed(message[0], message[1:])
        except HotdeskError as error:
            await self._fail(error)
        except Exception as error:  # told to the caller, without our insides
            log.exception("exec.failed workload=%s/%s", self.project, self.name)
            await self._fail(as_problem(error, 500, "", ""))

    async def _begin(self, message: str | bytes) -> None:
        try:
            request = ExecRequest.model_validate_json(message)
        except ValidationError as error:
            raise Invalid("The first message is to be JSON: argv, tty, rows, columns, pod.", field="argv") from error
        entry = self.desk.entry(self.caller, self.project, self.name)
        index = pod_index(entry.workload, None if request.pod is None else str(request.pod), self.desk.engine)
        state = next((pod.state for pod in entry.workload.pods if pod.index == index), PodState.PENDING)
        if state is not PodState.RUNNING:
            raise Conflict(
                f"{self.name} is not running ({entry.view.status}), so nothing can be run in it.",
                field="workload",
                value=self.name,
                next_step=f"`runai why {self.name} -p {self.project}` says what it waits for.",
            )
        self.desk.recorder.audit(self.caller, "exec", project=self.project, subject=self.name, message=request.argv[0])
        self.session = await self.desk.engine.exec(
            entry.workload.id, index, request.argv, tty=request.tty, rows=request.rows, columns=request.columns
        )
        self._task = asyncio.create_task(self._pump(self.session), name=f"exec {self.name}")

    async def _feed(self, channel: int, data: bytes) -> None:
        if self.session is None:
            return
        if channel == STDIN:
            with contextlib.suppress(BrokenPipeError, ConnectionError):  # it no longer reads; its end is told by its exit code
                await self.session.write(data)
        elif channel == CONTROL:
            size = json.loads(data)
            await self.session.resize(int(size["rows"]), int(size["columns"]))

    async def _pump(self, session: ExecSession) -> None:
        """Output until the end, then the exit code. A reader that is slow holds up the command, not our memory."""
        try:
            while (piece := await session.read()) is not None:
                stream, data = piece
                await self.write_message(bytes([stream]) + data, binary=True)
            await self._control({"exit_code": await session.wait()})
            self.close(1000)
        except websocket.WebSocketClosedError:
            pass  # on_close ends the command
        except Exception as error:  # whatever the engine raises is told
            log.exception("exec.failed workload=%s/%s", self.project, self.name)
            await self._fail(as_problem(error, 500, "", ""))

    async def _control(self, content: dict[str, Any]) -> None:
        await self.write_message(bytes([CONTROL]) + json.dumps(content).encode(), binary=True)

    async def _fail(self, error: HotdeskError) -> None:
        with contextlib.suppress(websocket.WebSocketClosedError):
            await self._control({"problem": problem(error)})
        self.close(1000)

    def on_close(self) -> None:
        self._timeout.cancel()
        if self.session is not None:
            self._closing = asyncio.ensure_future(self._end(self.session))

    async def _end(self, session: ExecSession) -> None:
        with contextlib.suppress(Exception):  # it may have ended by itself
            await session.close()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._task
