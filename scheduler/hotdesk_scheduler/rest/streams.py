"""Answers that go on: logs (chunked) and server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from hotdesk_api.errors import Invalid, Unauthorized, Unavailable
from hotdesk_api.models import StreamEvent
from tornado.iostream import StreamClosedError

from hotdesk_scheduler.core.model import Workload
from hotdesk_scheduler.engines.base import Engine
from hotdesk_scheduler.rest import wire
from hotdesk_scheduler.rest.auth import Authenticator
from hotdesk_scheduler.rest.base import Handler
from hotdesk_scheduler.service.callers import no_such_workload
from hotdesk_scheduler.service.desk import Desk
from hotdesk_scheduler.service.feed import Listener, frame
from hotdesk_scheduler.service.views import STEP

KEEP_ALIVE_S = 15.0
SLOW_S = 60.0
MAX_TAIL = 1_000_000


def pod_index(workload: Workload, asked: str | None, engine: Engine) -> int:
    """`0`, `NAME-0` or what others named the pod; without it the first pod. Raises Invalid."""
    if asked in (None, ""):
        return workload.pods[0].index if workload.pods else 0
    assert asked is not None
    text = asked.removeprefix(f"{workload.name}-")
    known = {pod.index: engine.details(workload.id, pod.index).name or f"{workload.name}-{pod.index}" for pod in workload.pods}
    found = next((index for index, name in known.items() if text == str(index) or asked == name), None)
    if found is None:
        names = ", ".join(tuple(known.values())[:10])
        raise Invalid(f"{workload.name} has no pod {asked[:80]}.", field="pod", value=asked[:80], next_step=f"Its pods: {names}.")
    return found


async def is_still_the_same(handler: Handler) -> bool:
    """A token that was taken back ends what goes on, and so does a change of what it may; a hub that is away for a while does not."""
    try:
        return await handler.authenticator.caller(handler.token()) == handler.caller
    except Unauthorized:
        return False
    except Unavailable:
        return True


class Logs(Handler):
    def initialize(self, desk: Desk, authenticator: Authenticator) -> None:
        super().initialize(desk, authenticator)
        self._gone = asyncio.Event()

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._gone.set()

    async def get(self, project: str, name: str) -> None:
        entry = self.desk.entry(self.caller, project, name)
        since_s = wire.seconds(self.query("since_s"), field="since_s")
        pieces = self.desk.engine.logs(
            entry.workload.id,
            pod_index(entry.workload, self.query("pod"), self.desk.engine),
            tail=wire.integer(self.query("tail"), field="tail", most=MAX_TAIL),
            since=None if since_s is None else self.desk.clock() - since_s,
            follow=wire.flag(self.query("follow")),
            timestamps=wire.flag(self.query("timestamps")),
        )
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header("X-Accel-Buffering", "no")
        await self._send(pieces)

    async def _send(self, pieces: AsyncIterator[bytes]) -> None:
        """Until the log ends or the reader goes; a reader that is gone ends the engine's stream too."""
        sending = asyncio.ensure_future(self._send_all(pieces))
        gone = asyncio.ensure_future(self._gone.wait())
        try:
            while not (await asyncio.wait({sending, gone}, timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED))[0]:
                if not await is_still_the_same(self):
                    break
        finally:
            gone.cancel()
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, StreamClosedError):
                await sending

    async def _send_all(self, pieces: AsyncIterator[bytes]) -> None:
        await self.flush()
        try:
            async for piece in pieces:
                self.write(piece)
                await self.flush()
        except BaseException:  # also a service that stops: the reader must not take it for the log's end
            self._break_off()
            raise
        await self.finish()

    def _break_off(self) -> None:
        """Close without the last chunk, which readers see as an error."""
        stream = getattr(self.request.connection, "stream", None)
        if stream is not None:
            stream.close()


class Stream(Handler):
    """`/v1/events`: what is there, then every change, and a comment now and then so that dead connections show."""

    async def get(self) -> None:
        self.caller.require_read()
        desk = self.desk
        await desk.refreshed()
        project, workload = self.query("project"), self.query("workload")
        if project is not None and not (self.caller.is_member(project) or self.caller.hosts_workspaces):
            raise no_such_workload(project, workload or "*")
        if project is not None and workload is not None:
            desk.entry(self.caller, project, workload)  # nobody waits for news of what is not there
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("X-Accel-Buffering", "no")
        listener = desk.feed.join(self.caller, project=project, workload=workload)
        try:
            version = desk.engine.snapshot().version
            self.write(frame(StreamEvent(kind="cluster", version=version)))
            for number, entry in enumerate(desk.views, 1):
                view = entry.view
                if number % STEP == 0:
                    await asyncio.sleep(0)
                if listener.wants(view.project, view.name, kind=view.kind):
                    self.write(frame(StreamEvent(kind="workload", version=version, workload=view, name=view.name, project=view.project)))
            await self.flush()
            await self._send_changes(listener)
        except (StreamClosedError, TimeoutError):
            pass  # The listener went away, or does not read.
        finally:
            desk.feed.leave(listener)

    async def _send_changes(self, listener: Listener) -> None:
        """Until the listener falls behind, or is no longer who it was."""
        clock = asyncio.get_running_loop().time
        looked_at = clock()
        while not listener.dropped:
            waiting = await listener.take(KEEP_ALIVE_S)
            if not waiting or clock() - looked_at >= KEEP_ALIVE_S:
                looked_at = clock()
                if not await is_still_the_same(self):
                    return
            self.write(b"".join(waiting) or b": still here\n\n")
            await asyncio.wait_for(self.flush(), SLOW_S)
