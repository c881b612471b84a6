"""`%runai` and `%%runai` (also `%hotdesk`): the command table in a notebook. An error is one red sentence, and stops "run all"."""

from __future__ import annotations

import linecache
import os
import re
import sys
from types import FrameType
from typing import Any

from hotdesk_api.errors import HotdeskError, Invalid, NotFound
from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher
from IPython.core.magic import no_var_expand

from hotdesk import notebook
from hotdesk.answers import Answer, InsideJob, LogStream, Outcome, Waiting
from hotdesk.commands.complete import complete
from hotdesk.commands.parse import Typed, parse
from hotdesk.commands.perform import perform, with_projects
from hotdesk.commands.words import split_line
from hotdesk.names import LiveNames
from hotdesk.session import Session

NAMES = ("runai", "hotdesk")
_ASSIGNED = re.compile(r"^\s*[^=()#]+=\s*get_ipython\(\)\.run_line_magic\(")
_OURS = re.compile(r"^(?:[^=()#%]+=)?\s*%%?(?:runai|hotdesk)(\s.*)$")
_SIMPLE = (str, int, float)


class RunaiError(Exception):
    """A command that failed in a notebook: shown as its sentence, without a traceback."""

    def __init__(self, error: HotdeskError) -> None:
        super().__init__(str(error))
        self.error = error

    def _render_traceback_(self) -> list[str]:
        step = f" {self.error.next_step}" if self.error.next_step else ""
        return [f"\033[31m{self.error.sentence}\033[0m{step}"]


class Runai:
    """The magics of one kernel."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.names = LiveNames()
        self.matcher: Any = None

    def __call__(self, line: str, cell: str | None = None) -> Any:
        session = Session(ask=notebook.ask, word="%runai", confirms=False)
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
        try:
            if typed.on("watch"):
                return notebook.watch(session, typed)
            return self._show(session, typed, perform(session, typed), wanted=wanted)
        except NotFound as error:
            raise with_projects(session, typed, error) from None

    def _variable(self, name: str) -> str | None:
        found = self._python(name)
        return found if found is not None else os.environ.get(name)

    def _python(self, name: str) -> str | None:
        value = self.shell.user_ns.get(name)
        return str(value) if isinstance(value, _SIMPLE) and not name.startswith("_") else None

    def _show(self, session: Session, typed: Typed, outcome: Outcome, *, wanted: bool | None) -> Any:
        match outcome:
            case Answer():
                return self._show_answer(session, typed, outcome, wanted=wanted)
            case LogStream():
                return notebook.stream_log(outcome)
            case InsideJob():
                return notebook.run_inside(session, outcome)
            case Waiting():
                return notebook.wait(session, outcome)

    def _show_answer(self, session: Session, typed: Typed, answer: Answer, *, wanted: bool | None) -> Any:
        value = notebook.value_of(answer)
        if not (wanted and answer.view is not None):
            notebook.display_answer(answer, typed.text("output"))
        if answer.job is not None and (session.program is not None or wanted):
            job = notebook.job_at(answer.job)
            if not wanted:
                notebook.show_job(job)
            value = job
        if answer.problems:
            raise RunaiError(HotdeskError(" ".join(str(error) for error in answer.problems)))
        return None if wanted is False else value

    def complete(self, context: CompletionContext) -> SimpleMatcherResult:
        """IPython's matcher: what may stand at the cursor of a line of ours, and nothing of Python's beside it."""
        line = _OURS.match(context.text_until_cursor)
        if line is None:
            return {"completions": []}
        words = line[1].split()
        partial = "" if line[1][-1:].isspace() or not words else words.pop()
        found = [SimpleCompletion(candidate.text, type="hotdesk") for candidate in complete(words, partial, self.names)]
        return {"completions": found, "matched_fragment": partial, "ordered": True, "suppress": True}


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


def _is_assigned(namespace: dict[str, Any]) -> bool | None:
    """Was it `x = %runai …`? Then the value is wanted, not a display. The cell's translated source line tells; None: it is not known."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals is not namespace:
        frame = frame.f_back
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno) if frame is not None else ""
    return bool(_ASSIGNED.match(line)) if line else None


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

    @context_matcher(identifier="hotdesk")  # type: ignore[untyped-decorator]  # IPython's is not typed
    def matcher(context: CompletionContext) -> SimpleMatcherResult:
        return magic.complete(context)

    magic.matcher = matcher
    shell.Completer.custom_matchers.append(magic.matcher)
    shell._hotdesk = magic


def unregister(shell: Any) -> None:
    for name in NAMES:
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop(name, None)
    magic = getattr(shell, "_hotdesk", None)
    if magic is not None and magic.matcher in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.remove(magic.matcher)
    shell._hotdesk = None
