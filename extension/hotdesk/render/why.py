"""Why a job is where it is, or what would become of one: the sentence, then the numbers behind it, the same for `why`, `describe`
and `--dry-run`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hotdesk_api.models import Displaced, Explanation
from hotdesk_api.units import WHOLE_GPU, format_age, format_gpus

from hotdesk.render.view import Cell, Facts, Lines, Tone, View


def explanation(answer: Explanation, *, title: str = "") -> View:
    tone: Tone = "wait" if answer.starts_now is False else "good" if answer.starts_now else ""
    return View((Lines((Cell(answer.sentence, tone),)), Facts(facts(answer))), title)


def facts(answer: Explanation) -> tuple[tuple[str, Cell], ...]:
    """What it asks, what its project may have, who holds the GPUs it could get, its place, who stops or moves, what would help."""
    amounts = (
        ("ASKED", answer.asked_millis),
        ("QUOTA", answer.quota_millis),
        ("FAIR SHARE", answer.fair_share_millis),
        ("USED BY THE PROJECT", answer.used_millis),
    )
    pairs = [(name, Cell(_gpus_in_words(amount))) for name, amount in amounts if amount is not None]
    texts = (
        ("STARTS ON", " ".join(part for part in (answer.node, answer.gpus) if part) if answer.starts_now else ""),
        ("GPUs HELD BY", ", ".join(f"{project} ({_gpus_in_words(millis)})" for project, millis in answer.held_by.items())),
        ("PLACE IN THE QUEUE", place(answer)),
        ("AT THE LATEST", f"in {format_age(answer.left_s)}" if answer.left_s else ""),
        ("WOULD STOP", _displaced(answer.would_stop)),
        ("WOULD MOVE", _displaced(answer.would_move)),
        ("WHAT WOULD HELP", answer.what_would_help or ""),
        ("STOPPED BEFORE", stopped_before(answer)),
    )
    return (*pairs, *((name, Cell(text)) for name, text in texts if text))


def stopped_before(answer: Explanation) -> str:
    return answer.stopped.sentence if answer.stopped else ""


def place(answer: Explanation) -> str:
    """`1 of 3`; nothing for what does not wait."""
    of = f" of {answer.queue_length}" if answer.queue_length else ""
    return f"{answer.queue_position}{of}" if answer.queue_position else ""


def _displaced(found: Sequence[Displaced]) -> str:
    return ", ".join(f"{one.name} of {one.project} ({_rule(one)})" for one in found)


def _rule(one: Displaced) -> str:
    numbers = one.reason.numbers
    if one.reason.code == "moved":
        return f"from {numbers.get('from')} to {numbers.get('to')}"
    return one.reason.code.replace("_", " ")


def _gpus_in_words(gpu_millis: int) -> str:
    return f"{format_gpus(gpu_millis)} GPU{'s' if gpu_millis > WHOLE_GPU or gpu_millis == 0 else ''}"


def now_line(answer: Explanation) -> str:
    """One line after submit: it starts (or runs), or what it waits for."""
    return answer.sentence
