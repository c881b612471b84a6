"""What is wrong with a pod for as long as it lasts: shown with the workload, as an event once, and taken back when it is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hotdesk_scheduler.engines.base import Change
from hotdesk_scheduler.engines.kubernetes import tries
from hotdesk_scheduler.engines.kubernetes.api import ApiError
from hotdesk_scheduler.engines.kubernetes.book import Book
from hotdesk_scheduler.engines.kubernetes.entry import Entry
from hotdesk_scheduler.engines.kubernetes.saving import Saving
from hotdesk_scheduler.engines.kubernetes.tries import Tries

log = logging.getLogger(__name__)

Tell = Callable[[str], None]


class Troubles:
    def __init__(self, book: Book, saving: Saving) -> None:
        self._book = book
        self._saving = saving

    @contextmanager
    def of(self, entry: Entry, index: int) -> Iterator[Tell]:
        """Sentences about one pod, each in place of the one before. An exception, as at the scheduler's end, leaves the last one."""
        said = ""

        def tell(sentence: str) -> None:
            nonlocal said
            if entry.errors.get(index) != sentence:
                self._put(entry, index, sentence)
            said = sentence

        yield tell
        if said and entry.errors.get(index) == said:
            del entry.errors[index]
            self._renew(entry, Change("updated", entry.workload.id, index))

    async def until_taken(
        self, entry: Entry, index: int, ask: Callable[[], Awaitable[Any]], *, what: str, otherwise: str, is_over: Callable[[], bool]
    ) -> Any:
        """What was asked for, however long it is refused: a rule may be lifted, a right granted. None if it is not wanted any more."""
        with self.of(entry, index) as tell:
            tried = Tries(what, tell, ends=False)
            while not is_over():
                try:
                    async with entry.turn(index):
                        return await tried.until_it_works(ask, gives_up=is_over)
                except ApiError as error:
                    log.error("pod.not_taken_down workload=%s pod=%d error=%s", entry.workload.id, index, error)
                    tell(tries.refused(what, error, otherwise))
                await asyncio.sleep(tries.REFUSED_PAUSE_S)
        return None

    def _put(self, entry: Entry, index: int, sentence: str) -> None:
        """Pods of a gang fare alike: what was said of one is no event any more."""
        is_news = sentence not in entry.errors.values()
        entry.errors[index] = sentence
        self._renew(entry, Change("failed_verb" if is_news else "updated", entry.workload.id, index, sentence))

    def _renew(self, entry: Entry, change: Change) -> None:
        if self._book.entries.get(entry.workload.id) is entry:
            self._book.put(entry, replace(entry.workload))  # for whoever looks at it only when it is another one
            self._saving.soon(entry)
            self._book.changed(change)
