"""One writer: every change of state is built, committed in a thread, shown in memory and told to the listeners, one after the other."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hotdesk_api.errors import Unavailable

from hotdesk_scheduler.engines.base import Change
from hotdesk_scheduler.engines.local.state import Batch, State

T = TypeVar("T")
Build = Callable[[], Batch | None]
RETRY_S = (0.05, 0.2, 0.5, 1.0, 2.0)


class Listener(AsyncIterator[Change]):
    """One reader of the changes; it hears everything from its creation on."""

    def __init__(self, journal: Journal) -> None:
        self.heard: asyncio.Queue[Change | None] = asyncio.Queue()
        self._journal = journal

    async def __anext__(self) -> Change:
        change = await self.heard.get()
        if change is None:
            raise StopAsyncIteration
        return change

    async def aclose(self) -> None:
        self._journal.listeners.discard(self)


class Journal:
    """Turns on `state`. A caller that is cancelled while its change is being written cannot tear disk and memory apart."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.listeners: weakref.WeakSet[Listener] = weakref.WeakSet()  # a reader that forgot us is forgotten
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hotdesk-state")
        self._writing: set[asyncio.Task[bool]] = set()

    async def close(self) -> None:
        """After the writes that are under way; listeners hear their end."""
        if self._writing:
            await asyncio.gather(*self._writing, return_exceptions=True)
        self._thread.shutdown()
        for listener in self.listeners:
            listener.heard.put_nowait(None)

    def listen(self) -> Listener:
        listener = Listener(self)
        self.listeners.add(listener)
        return listener

    def tell(self, change: Change) -> None:
        for listener in tuple(self.listeners):
            listener.heard.put_nowait(change)

    async def write(self, build: Build, *, frees: bool = False) -> bool:
        """Build the batch on the state as it is when our turn comes, and commit it. False if there was nothing to do.

        `frees`: what stops or removes something. It may use the space kept for a full disk, so that one can always make room.
        """
        task = asyncio.ensure_future(self._write(build, frees=frees))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return await asyncio.shield(task)

    async def _write(self, build: Build, *, frees: bool) -> bool:
        async with self._turn:
            batch = build()
            if batch is None:
                return False
            await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, batch, frees)
            self.state.apply(batch)
            for change in batch.changes:
                self.tell(change)
            return True

    def _commit(self, batch: Batch, frees: bool) -> None:
        try:
            self.state.write(batch)
        except Unavailable:
            if not (frees and self.state.free_reserve()):
                raise
            self.state.write(batch)
        else:
            self.state.keep_reserve()

    async def write_surely(self, build: Build, *, what: str, about: Change) -> bool:
        """For facts (a pod has ended): they are written in the end, whatever the disk says meanwhile. What it says is told once."""
        attempt = 0
        while True:
            try:
                return await self.write(build, frees=True)
            except Unavailable as error:
                if attempt == 0:
                    self.tell(
                        Change(
                            "failed_verb",
                            about.workload_id,
                            about.index,
                            f"{what} is not recorded yet and is tried again: {error.sentence}",
                        )
                    )
                await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
                attempt += 1
