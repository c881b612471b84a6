"""`%runai` and `%%runai` (also `%hotdesk`): the command table in a notebook. An error is one red sentence, and stops "run all"."""

from __future__ import annotations

import codecs
import getpass
import linecache
import os
import re
import sys
import uuid
from types import FrameType
from typing import Any

from hotdesk_api.errors import HotdeskError, Invalid
from IPython.core.magic import no_var_expand

from hotdesk.answers import Answer, InsideJob, LogStream, Outcome, Waiting
from hotdesk.commands.complete import complete
from hotdesk.commands.parse import Typed, parse
from hotdesk.commands.perform import perform
from hotdesk.commands.words import split_line
from hotdesk.names import LiveNames
from hotdesk.render.view import View
from hotdesk.session import Session

NAMES = ("runai", "hotdesk")
WATCH_S = 5.0
_ASSIGNED = re.compile(r"^\s*[^=()#]+=\s*get_ipython\(\)\.run_line_magic\(")
_SIMPLE = (str, int, float)


class RunaiError(Exception):
    """A command that failed in a notebook: shown as its sentence, without a traceback."""

    def __init__(self, error: HotdeskError) -> None:
        super().__init__(str(error))
        self.error = error

    def _render_traceback_(self) -> list[str]:
        step = f" {self.error.next_step}" if self.error.next_step else ""
        return [f"\033[31m{self.error.sentence}\033[0m{step}"]


class Data(list[Any]):
    """What `x = %runai list` gives: the items as plain values, shown as the table when looked at."""

    view: View | None = None

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        from hotdesk.widgets import bundle

        return bundle(self.view) if self.view is not None else {"text/plain": repr(list(self))}


def _ask(prompt: str, secret: bool) -> str | None:
    """Through the notebook's input box, where the front end has one."""
    try:
        return getpass.getpass(prompt) if secret else input(prompt)
    except (EOFError, RuntimeError, NotImplementedError):
        return None


class Runai:
    """The magics of one kernel."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.names = LiveNames()

    def __call__(self, line: str, cell: str | None = None) -> Any:
        session = Session(ask=_ask, word="%runai", confirms=False)
        try:
            return self._run(session, line, cell)
        except HotdeskError as error:
            raise RunaiError(error) from None
        finally:
            session.close()

    def _run(self, session: Session, line: str, cell: str | None) -> Any:
        if cell is not None:
            line, session.program = _with_continuation(line, cell)
        typed = parse(split_line(line, variable=self._variable, python=self._python))
        if cell is not None:
            _must_be_program(typed, session.program or "")
        wanted = _is_assigned(self.shell.user_ns)
        if typed.on("watch"):
            return _watch(session, typed)
        return self._show(session, typed, perform(session, typed), wanted=wanted)

    def _variable(self, name: str) -> str | None:
        found = self._python(name)
        return found if found is not None else os.environ.get(name)

    def _python(self, name: str) -> str | None:
        value = self.shell.user_ns.get(name)
        return str(value) if isinstance(value, _SIMPLE) and not name.startswith("_") else None

    def _show(self, session: Session, typed: Typed, outcome: Outcome, *, wanted: bool) -> Any:
        match outcome:
            case Answer():
                return self._show_answer(session, typed, outcome, wanted=wanted)
            case LogStream():
                return _stream(outcome)
            case InsideJob():
                return _inside(session, outcome)
            case Waiting():
                return _wait(session, outcome)

    def _show_answer(self, session: Session, typed: Typed, answer: Answer, *, wanted: bool) -> Any:
        value = _value(answer)
        if not (wanted and answer.view is not None):
            _display(answer, typed.text("output"))
        if answer.job is not None and (session.program is not None or wanted):
            job = _job(answer.job)
            if not wanted:
                _live(job)
            value = job
        if answer.problems:
            raise RunaiError(HotdeskError(" ".join(str(error) for error in answer.problems)))
        return value if wanted else None

    def complete(self, _shell: Any, event: Any) -> list[str]:
        """IPython's hook: what may stand at the cursor. Asks the scheduler for a second at most, and remembers."""
        text = event.text_until_cursor
        _magic, *words = text.split()
        partial = "" if text[-1:].isspace() or not words else words.pop()
        cut = len(partial) - len(event.symbol) if partial.endswith(event.symbol) else 0
        return [found.text[cut:] for found in complete(words, partial, self.names)]


def _with_continuation(line: str, cell: str) -> tuple[str, str]:
    """A cell magic's line ends at the first line break; continue it while it ends in a backslash."""
    rest = cell
    while line.rstrip().endswith("\\") and rest:
        more, _, rest = rest.partition("\n")
        line = line.rstrip()[:-1] + " " + more
    return line, rest


def _must_be_program(typed: Typed, program: str) -> None:
    if typed.verb.path != ("submit",):
        raise Invalid(
            f"%%runai runs a cell as a job; `{typed.verb.title}` has no use for one.", next_step=f"Write %runai {typed.verb.title} …"
        )
    if typed.text("command") or typed.every("args"):
        raise Invalid(
            "The cell is what runs, so --command and --args have no place beside it.",
            field="command",
            next_step="Leave them out, or use %runai submit in one line.",
        )
    if not program.strip():
        raise Invalid("The cell has no program under its first line.", next_step="Write the job's Python code there, or use %runai submit.")


def _is_assigned(namespace: dict[str, Any]) -> bool:
    """Was it `x = %runai …`? Then the value is wanted, not a display. The cell's translated source line tells."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals is not namespace:
        frame = frame.f_back
    return frame is not None and bool(_ASSIGNED.match(linecache.getline(frame.f_code.co_filename, frame.f_lineno)))


def _value(answer: Answer) -> Any:
    """The answer as plain Python values."""
    if answer.data is None:
        return answer.text if answer.text is not None else list(answer.names)
    from hotdesk.render.data import as_python

    values = as_python(answer.data)
    if isinstance(values, list):
        values = Data(values)
        values.view = answer.view
    return values


def _display(answer: Answer, output: str | None) -> None:
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


def _job(place: tuple[str, str]) -> Any:
    from hotdesk.python import job

    return job(place[1], project=place[0])


def _live(job: Any) -> None:
    from hotdesk.widgets import show_live

    show_live(job._session, job._seen)


def _stream(log: LogStream) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    try:
        for piece in log.pieces:
            sys.stdout.write(decoder.decode(piece))
            sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"\nDetached; {log.name} goes on. `%runai logs {log.name} -p {log.project} -f` follows it again.")


def _inside(session: Session, job: InsideJob) -> None:
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
    line = _ask(f"{prompt}(empty line ends) ", False)
    if line is None:
        _display(_instead(job), None)
        return
    url, token = session.settings.reachable()
    running = InsideThread(url, token, InsideJob(job.project, job.name, job.argv, stdin=True, pod=job.pod))
    try:
        while line and line.strip() != "exit":
            _one_line(running, line)
            line = _ask(prompt, False)
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


def _wait(session: Session, waiting: Waiting) -> None:
    from hotdesk.watch import wait_for

    _display(waiting.done, None)
    _live(_job((waiting.project, waiting.name)))
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


def _watch(session: Session, typed: Typed) -> None:
    """One display that is kept up to date until the cell is interrupted."""
    import time

    from hotdesk.watch import Changes
    from hotdesk.widgets import LEAST_S, bundle, show

    answer = _answer_of(perform(session, typed))
    handle = show(bundle(answer.view or View(()), answer.talk), display_id=True)
    project, workload = answer.changes or (None, None)
    try:
        with Changes(*session.settings.reachable(), project=project, workload=workload) as changes:
            while True:
                changes.wait(WATCH_S)
                time.sleep(LEAST_S)
                answer = _answer_of(perform(session, typed))
                handle.update(bundle(answer.view or View(()), answer.talk), raw=True)
    except KeyboardInterrupt:
        print("Stopped watching; the jobs go on.")


def _answer_of(outcome: Outcome) -> Answer:
    assert isinstance(outcome, Answer), "only commands that answer with a view have --watch"
    return outcome


def register(shell: Any) -> None:
    """Add the magics and their completion to a kernel; doing it twice changes nothing."""
    if getattr(shell, "_hotdesk", None) is not None:
        return
    magic = Runai(shell)

    @no_var_expand
    def runai(line: str, cell: str | None = None) -> Any:
        """Hotdesk: submit jobs, see what runs, what waits and why. `%runai help` lists the commands."""
        return magic(line, cell)

    for name in NAMES:
        shell.register_magic_function(runai, "line_cell", name)
        for spelled in (f"%{name}", f"%%{name}"):
            shell.set_hook("complete_command", magic.complete, str_key=spelled)
    shell._hotdesk = magic


def unregister(shell: Any) -> None:
    for name in NAMES:
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop(name, None)
    shell._hotdesk = None
