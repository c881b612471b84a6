"""Live displays in a notebook: a job's card that follows its state to the end, from a thread that outlives the cell and an interrupt."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hotdesk_api import calls
from hotdesk_api.client import Client
from hotdesk_api.errors import HotdeskError, NotFound, Unavailable
from hotdesk_api.models import FINAL_STATUSES
from IPython.core.getipython import get_ipython
from IPython.display import display

from hotdesk.render import html, plain
from hotdesk.render import jobs as views
from hotdesk.render.view import Cell, View, printable

if TYPE_CHECKING:
    from hotdesk_api.models import WorkloadOut

    from hotdesk.session import Session

TICK_S = 5.0
LEAST_S = 0.2
LINE_MAX = 200


def bundle(view: View, talk: tuple[str, ...] = ()) -> dict[str, str]:
    """One output in both forms: HTML for people, aligned text for everything else."""
    said = html.sentences(talk) if talk else ""
    return {"text/html": html.whole(view) + said, "text/plain": plain.whole(view) + "".join(f"{line}\n" for line in talk)}


def show(content: dict[str, str], *, display_id: bool = False) -> Any:
    """Display a bundle; with `display_id` the handle through which it can be replaced."""
    return display(content, raw=True, display_id=display_id or None)  # type: ignore[no-untyped-call]  # IPython's is not typed


def last_line(client: Client, project: str, name: str) -> str:
    """The newest line of its log, or nothing."""
    try:
        text = b"".join(client.logs(project, name, tail=1)).decode(errors="replace")
    except HotdeskError:
        return ""
    lines = text.replace("\r", "\n").strip().split("\n")
    return printable(lines[-1])[:LINE_MAX]


class LateUpdates:
    """Some front ends (nbclient) hear a kernel only while a cell runs: what changed in between is sent again with the next cell."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[Any, dict[str, str]]] = {}
        self._lock = threading.Lock()
        self._shell: Any = None

    def update(self, handle: Any, content: dict[str, str]) -> None:
        with self._lock:
            self._newest[id(handle)] = (handle, content)
        handle.update(content, raw=True)

    def again(self, *_info: object) -> None:
        with self._lock:
            newest, self._newest = list(self._newest.values()), {}
        for handle, content in newest:
            handle.update(content, raw=True)

    def listen(self) -> None:
        """Once a kernel; outside of one there is nothing to listen to."""
        shell = get_ipython()
        if shell is not None and shell is not self._shell:
            shell.events.register("pre_run_cell", self.again)
            self._shell = shell


_late = LateUpdates()


def show_live(session: Session, seen: WorkloadOut) -> threading.Thread:
    """Display the job now and keep the display true until it ends; the thread that does so."""
    view = views.card(seen, now=session.now())
    handle = show(bundle(view), display_id=True)
    _late.listen()
    url, token = session.settings.reachable()
    follower = Follower(url, token, seen, now=session.now, update=lambda newer: _late.update(handle, bundle(newer)))
    thread = threading.Thread(target=follower.run, name=f"hotdesk-live-{seen.name}", daemon=True)
    thread.start()
    return thread


class Follower:
    """Asks for the job whenever something changed (every few seconds at least) and hands each new view to `update`."""

    def __init__(self, url: str, token: str, seen: WorkloadOut, *, now: Callable[[], float], update: Callable[[View], None]) -> None:
        self._client = Client(url, token)
        self._url, self._token = url, token
        self._seen = seen
        self._now, self._update = now, update

    def run(self) -> None:
        """Until it has ended, is deleted, or may not be seen any more."""
        from hotdesk.watch import Changes

        try:
            with Changes(self._url, self._token, project=self._seen.project, workload=self._seen.name) as changes:
                while self._look():
                    changes.wait(TICK_S)
                    time.sleep(LEAST_S)
        finally:
            self._client.close()

    def _look(self) -> bool:
        """Show what it is now; False when there is nothing more to come."""
        try:
            job = self._client.call(calls.workload(self._seen.project, self._seen.name))
        except Unavailable:
            self._show("The scheduler cannot be reached at the moment; this is the last that is known.")
            return True
        except NotFound:
            self._show("It has been deleted.")
            return False
        except HotdeskError as error:
            self._show(str(error))
            return False
        if job.id != self._seen.id:
            self._show("It has been deleted; another job of that name is there now.")
            return False
        self._seen = job
        line = last_line(self._client, job.project, job.name) if job.started_at is not None else ""
        self._update(views.card(job, now=self._now(), last_line=line))
        return job.status not in FINAL_STATUSES

    def _show(self, sentence: str) -> None:
        card = views.card(self._seen, now=self._now())
        self._update(View(card.blocks, footer=(Cell(sentence, "dim"),)))
