"""What the outcome of a command becomes in a notebook: displays, live cards, streamed text, and a session line by line."""

from __future__ import annotations

import codecs
import getpass
import sys
import time
import uuid
from typing import Any

from hotdesk_api.errors import HotdeskError, Invalid

from hotdesk.answers import Answer, InsideJob, LogStream, Outcome, Waiting
from hotdesk.commands.parse import Typed
from hotdesk.commands.perform import perform
from hotdesk.listing import Listing
from hotdesk.render.view import View
from hotdesk.session import Session

WATCH_S = 5.0


def ask(prompt: str, secret: bool) -> str | None:
    """Through the notebook's input box, where the front end has one."""
    try:
        return getpass.getpass(prompt) if secret else input(prompt)
    except (EOFError, RuntimeError, NotImplementedError):
        return None


def value_of(answer: Answer) -> Any:
    """The answer as plain Python values."""
    if answer.data is None:
        return answer.text if answer.text is not None else list(answer.names)
    from hotdesk.render.data import as_python

    values = as_python(answer.data)
    return Listing(values, view=answer.view) if isinstance(values, list) and answer.view is not None else values


def display_answer(answer: Answer, output: str | None) -> None:
    from hotdesk.render import data
    from hotdesk.widgets import bundle, show

    if output in ("json", "yaml") and answer.data is not None:
        sys.stdout.write(data.as_json(answer.data) if output == "json" else data.as_yaml(answer.data))
    elif output == "name":
        sys.stdout.writelines(f"{name}\n" for name in answer.names)
    elif answer.text is not None:
        sys.stdout.write(answer.text)
    elif answer.view is not None or answer.talk:
        show(bundle(answer.view or View(()), answer.talk))


def job_at(place: tuple[str, str]) -> Any:
    from hotdesk.python import job

    return job(place[1], project=place[0])


def show_job(job: Any) -> None:
    from hotdesk.widgets import show_live

    show_live(job._session, job._seen)


def stream_log(log: LogStream) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    try:
        for piece in log.pieces:
            sys.stdout.write(decoder.decode(piece))
            sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"\nDetached; {log.name} goes on. `%runai logs {log.name} -p {log.project} -f` follows it again.")


def run_inside(session: Session, job: InsideJob) -> None:
    from hotdesk.inside import InsideThread

    if job.is_shell:
        return _line_session(session, job)
    if job.tty:
        raise Invalid(
            "-t needs a terminal, and a notebook is none.", field="tty", next_step="Leave it out, or open a terminal in the workspace."
        )
    url, token = session.settings.reachable()
    running = InsideThread(url, token, InsideJob(job.project, job.name, job.argv, pod=job.pod))
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    try:
        while isinstance(found := running.next(), bytes):
            sys.stdout.write(decoder.decode(found))
            sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"\nDetached from {job.name}; the job goes on.")
        return None
    finally:
        running.close()
    if found:
        raise HotdeskError(f"The command in {job.name} ended with exit code {found}.", value=found)
    return None


def _line_session(session: Session, job: InsideJob) -> None:
    """`%runai bash`: line by line through the notebook's input box, where there is one; else what to do instead."""
    from hotdesk.inside import InsideThread

    prompt = f"{job.name}$ "
    line = ask(f"{prompt}(empty line ends) ", False)
    if line is None:
        display_answer(_instead(job), None)
        return
    url, token = session.settings.reachable()
    running = InsideThread(url, token, InsideJob(job.project, job.name, job.argv, stdin=True, pod=job.pod))
    try:
        while line and line.strip() != "exit":
            _one_line(running, line)
            line = ask(prompt, False)
        running.send(b"exit\n")
    except KeyboardInterrupt:
        print(f"Detached from {job.name}; the job goes on.")
    finally:
        running.close()


def _instead(job: InsideJob) -> Answer:
    return Answer(
        talk=(
            f"A shell needs input, which this notebook cannot give. Run one command: `%runai exec {job.name} -p {job.project} -- COMMAND`,",
            f"or open a terminal in the workspace and type `runai bash {job.name} -p {job.project}`.",
        )
    )


def _one_line(running: Any, line: str) -> None:
    """Send a line, show what it prints, until the mark that follows it."""
    mark = uuid.uuid4().hex
    running.send(f"{line}\nprintf '%s' {mark[:8]}''{mark[8:]}\n".encode())
    shown = b""
    while isinstance(found := running.next(), bytes):
        shown += found
        text, ended, _ = shown.partition(mark.encode())
        if ended:
            sys.stdout.write(text.decode(errors="replace"))
            return
    sys.stdout.write(shown.decode(errors="replace"))
    raise KeyboardInterrupt  # the shell is gone: the session ends as if let go


def wait(session: Session, waiting: Waiting) -> None:
    from hotdesk.watch import wait_for

    display_answer(waiting.done, None)
    show_job(job_at((waiting.project, waiting.name)))
    try:
        job = wait_for(session.client, waiting.project, waiting.name, until=waiting.until, timeout_s=waiting.timeout_s)
    except KeyboardInterrupt:
        print(f"Detached; {waiting.name} goes on.")
        return
    if job.status in ("Failed", "TimedOut", "Stopped"):
        sentence = f": {job.reason.sentence}" if job.reason else "."
        raise HotdeskError(
            f"{waiting.name} is {job.status}{sentence}", next_step=f"`%runai logs {waiting.name} -p {waiting.project}` shows its output."
        )


def watch(session: Session, typed: Typed) -> None:
    """One display that is kept up to date until the cell is interrupted."""
    from hotdesk.watch import Changes, renewed
    from hotdesk.widgets import LEAST_S, bundle, show

    answer = _answer_of(perform(session, typed))
    handle = show(bundle(answer.view or View(()), answer.talk), display_id=True)
    project, workload = answer.changes or (None, None)
    try:
        with Changes(*session.settings.reachable(), project=project, workload=workload) as changes:
            while True:
                changes.wait(WATCH_S)
                time.sleep(LEAST_S)
                answer = renewed(lambda: _answer_of(perform(session, typed)), answer)
                handle.update(bundle(answer.view or View(()), answer.talk), raw=True)
    except KeyboardInterrupt:
        print("Stopped watching; the jobs go on.")


def _answer_of(outcome: Outcome) -> Answer:
    assert isinstance(outcome, Answer), "only commands that answer with a view have --watch"
    return outcome
