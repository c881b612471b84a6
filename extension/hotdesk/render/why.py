"""Why a job is where it is, or what would become of one: the sentence, then the numbers behind it."""

from __future__ import annotations

from hotdesk_api.explained import numbers
from hotdesk_api.models import Explanation

from hotdesk.render.view import Cell, Facts, Lines, Tone, View


def explanation(answer: Explanation, *, title: str = "") -> View:
    """For `why` and `--dry-run`."""
    tone: Tone = "wait" if answer.starts_now is False else "good" if answer.starts_now else ""
    return View((Lines((Cell(answer.sentence, tone),)), Facts(facts(answer))), title)


def facts(answer: Explanation) -> tuple[tuple[str, Cell], ...]:
    return tuple((name, Cell(text)) for name, text in numbers(answer).items())


def stopped_before(answer: Explanation) -> str:
    return answer.stopped.sentence if answer.stopped else ""


def now_line(answer: Explanation) -> str:
    """One line after submit: it starts (or runs), or what it waits for."""
    return answer.sentence
