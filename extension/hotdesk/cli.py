"""The commands `hotdesk` and `runai`: rich text at a terminal, plain text in a pipe (data on stdout, talk on stderr), exit codes.

0 done, 1 failed, 2 wrong usage, 3 refused by policy, 4 waited in vain, 130 Ctrl-C; `exec` and `bash` exit as the command inside did.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotdesk_api.errors import HotdeskError, Invalid, NotFound

from hotdesk.answers import Answer, InsideJob, LogStream, Outcome, Waiting
from hotdesk.commands.parse import Typed, parse
from hotdesk.commands.perform import perform, with_projects
from hotdesk.session import Session

if TYPE_CHECKING:
    from rich.console import Console

    from hotdesk.render.view import View
    from hotdesk.watch import Changes

INTERRUPTED = 130
WATCH_S = 5.0
WATCH_LEAST_S = 0.3
START_WAIT_S = 30.0


class Screen:
    """Where this process prints: `rich` at a terminal, else plain."""

    def __init__(self) -> None:
        self.people = sys.stdout.isatty()
        self.rich = self.people and os.environ.get("TERM") != "dumb"
        self.colours = self.rich and not os.environ.get("NO_COLOR")

    def console(self) -> Console:
        from hotdesk.render.terminal import console  # rich is only loaded for people

        return console(colours=self.colours)

    def talk(self, lines: Sequence[str]) -> None:
        """Sentences: part of the text at a terminal, beside the data (stderr) in a pipe."""
        for line in lines:
            print(line, file=sys.stdout if self.people else sys.stderr)

    def problem(self, error: HotdeskError) -> None:
        sentence = f"\033[31m{error.sentence}\033[0m" if sys.stderr.isatty() and not os.environ.get("NO_COLOR") else error.sentence
        print(f"{sentence} {error.next_step}" if error.next_step else sentence, file=sys.stderr)


def ask(prompt: str, secret: bool) -> str | None:
    """Ask at the terminal; None where there is nobody (pipes, cron)."""
    if not sys.stdin.isatty():
        return None
    if secret:
        from getpass import getpass

        return getpass(prompt)
    print(prompt, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


def show_answer(screen: Screen, answer: Answer, typed: Typed) -> int:
    output = typed.text("output")
    if output in ("json", "yaml") and answer.data is not None:
        from hotdesk.render import data

        sys.stdout.write(data.as_json(answer.data) if output == "json" else data.as_yaml(answer.data))
    elif output == "name":
        sys.stdout.writelines(f"{name}\n" for name in answer.names)
    else:
        _show_people(screen, answer)
    if output not in ("json", "yaml", "name") or not screen.people:
        screen.talk(answer.talk)
    for error in answer.problems:
        screen.problem(error)
    return answer.exit_code


def _show_people(screen: Screen, answer: Answer) -> None:
    if answer.text is not None:
        sys.stdout.write(answer.text)
    elif answer.view is None:
        if not screen.people:
            sys.stdout.writelines(f"{name}\n" for name in answer.names)
    elif screen.rich:
        from hotdesk.render import terminal

        screen.console().print(terminal.whole(answer.view), crop=False)
    else:
        from hotdesk.render import plain

        screen.talk([answer.view.title] if answer.view.title else [])
        sys.stdout.write(plain.body(answer.view))
        sys.stdout.flush()
        screen.talk(plain.talk(answer.view))


def stream_log(screen: Screen, log: LogStream, word: str) -> int:
    """Pieces as they come. Ctrl-C while following detaches."""
    try:
        for piece in log.pieces:
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        if log.follow:
            print(f"\nDetached; {log.name} goes on. `{word} logs {log.name} -p {log.project} -f` follows it again.", file=sys.stderr)
        return INTERRUPTED
    return 0


def go_inside(screen: Screen, session: Session, job: InsideJob) -> int:
    from hotdesk_api.calls import workload

    from hotdesk import terminal_session
    from hotdesk.watch import wait_for

    if job.is_shell and not terminal_session.is_terminal():
        raise Invalid(
            "bash needs a terminal, and there is none here.",
            next_step=f"Run one command: `{session.word} exec {job.name} -p {job.project} -- COMMAND`.",
        )
    if job.tty and not terminal_session.is_terminal():
        raise Invalid(
            "-t needs a terminal, and there is none here.", field="tty", next_step="Leave -t out; -i alone passes standard input along."
        )
    state = session.client.call(workload(job.project, job.name))
    if state.status in ("Pending", "ContainerCreating"):
        print(f"Waiting for {job.name} to run" + (f": {state.reason.sentence}" if state.reason else " …"), file=sys.stderr)
        wait_for(session.client, job.project, job.name, until="running", timeout_s=START_WAIT_S)
    url, token = session.settings.reachable()
    try:
        return terminal_session.run_inside(url, token, job)
    except KeyboardInterrupt:
        print(f"\nDetached from {job.name}; the job goes on.", file=sys.stderr)
        return INTERRUPTED


def wait(screen: Screen, session: Session, waiting: Waiting, typed: Typed) -> int:
    from hotdesk.watch import wait_for

    if typed.text("output") not in ("json", "yaml"):
        show_answer(screen, waiting.done, typed)
    sys.stdout.flush()
    try:
        job = wait_for(session.client, waiting.project, waiting.name, until=waiting.until, timeout_s=waiting.timeout_s)
    except KeyboardInterrupt:
        print(
            f"\nDetached; {waiting.name} goes on. `{session.word} describe job {waiting.name} -p {waiting.project}` shows it.",
            file=sys.stderr,
        )
        return INTERRUPTED
    if typed.text("output") in ("json", "yaml"):
        show_answer(screen, Answer(data=job), typed)
    sentence = f": {job.reason.sentence}" if job.reason and job.status != "Succeeded" else ""
    print(f"{job.name} is {job.status}{sentence}", file=sys.stderr if not screen.people else sys.stdout)
    return 1 if job.status in ("Failed", "TimedOut", "Stopped") else 0


def watch(screen: Screen, session: Session, again: Callable[[], Answer], typed: Typed) -> int:
    """The same answer anew whenever something changed, until Ctrl-C."""
    import time

    from hotdesk.watch import Changes, renewed

    first = again()
    project, workload = first.changes or (None, None)
    try:
        with Changes(*session.settings.reachable(), project=project, workload=workload) as changes:
            if screen.rich and not typed.text("output"):
                return _watch_live(screen, first, again, changes)
            answer = first
            while True:
                show_answer(screen, answer, typed)
                print(flush=True)
                changes.wait(WATCH_S)
                time.sleep(WATCH_LEAST_S)
                answer = renewed(again, answer)
    except KeyboardInterrupt:
        print("Stopped watching; the jobs go on.", file=sys.stderr)
        return INTERRUPTED


def _watch_live(screen: Screen, first: Answer, again: Callable[[], Answer], changes: Changes) -> int:
    import time

    from rich.live import Live

    from hotdesk.render import terminal
    from hotdesk.watch import renewed

    answer = first
    with Live(terminal.whole(_view(answer)), console=screen.console(), auto_refresh=False) as live:
        while True:
            changes.wait(WATCH_S)
            time.sleep(WATCH_LEAST_S)
            answer = renewed(again, answer)
            live.update(terminal.whole(_view(answer)), refresh=True)


def _view(answer: Answer) -> View:
    assert answer.view is not None, "what has --watch has a view"
    return answer.view


def run(screen: Screen, session: Session, typed: Typed) -> int:
    """Do what was typed and show what came of it; the exit code."""
    try:
        return _run(screen, session, typed)
    except NotFound as error:
        raise with_projects(session, typed, error) from None


def _run(screen: Screen, session: Session, typed: Typed) -> int:
    if typed.on("watch"):
        return watch(screen, session, lambda: _answer_of(perform(session, typed)), typed)
    outcome: Outcome = perform(session, typed)
    match outcome:
        case Answer():
            return show_answer(screen, outcome, typed)
        case LogStream():
            return stream_log(screen, outcome, session.word)
        case InsideJob():
            return go_inside(screen, session, outcome)
        case Waiting():
            return wait(screen, session, outcome, typed)


def _answer_of(outcome: Outcome) -> Answer:
    assert isinstance(outcome, Answer), "only commands that answer with a view have --watch"
    return outcome


def _quiet_pipe() -> None:
    """The reader of our output has gone; nothing more is to be written, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a log or name the terminal's encoding lacks is no reason to fail
    program = Path(sys.argv[0]).name
    session = Session(ask=ask, word=program if program in ("runai", "hotdesk") else "runai")
    screen = Screen()
    try:
        if words[:1] == ["__complete"]:
            from hotdesk.completion import candidates

            sys.stdout.write(candidates(words[1:]))
            return 0
        code = run(screen, session, parse(words))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _quiet_pipe()
        return 0
    except HotdeskError as error:
        sys.stdout.flush()
        screen.problem(error)
        return error.exit_code
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # the terminal's ^C stands alone on its line, not before the next prompt
        return INTERRUPTED
    finally:
        session.close()


if __name__ == "__main__":
    sys.exit(main())
