"""An explanation's numbers in words, the same in a terminal, in a notebook and on the page of a workspace that waits."""

from __future__ import annotations

from collections.abc import Sequence

from hotdesk_api.models import Displaced, Explanation
from hotdesk_api.units import WHOLE_GPU, format_age, format_gpus


def numbers(answer: Explanation) -> dict[str, str]:
    """What it asks, what its project may have, who holds the GPUs it could get, its place, who stops or moves, what would help."""
    amounts = {
        "ASKED": answer.asked_millis,
        "QUOTA": answer.quota_millis,
        "FAIR SHARE": answer.fair_share_millis,
        "USED BY THE PROJECT": answer.used_millis,
    }
    texts = {
        "STARTS ON": " ".join(part for part in (answer.node, answer.gpus) if part) if answer.starts_now else "",
        "GPUs HELD BY": ", ".join(f"{project} ({gpus_in_words(millis)})" for project, millis in answer.held_by.items()),
        "PLACE IN THE QUEUE": place(answer),
        "AT THE LATEST": f"in {format_age(answer.left_s)}" if answer.left_s else "",
        "WOULD STOP": _displaced(answer.would_stop),
        "WOULD MOVE": _displaced(answer.would_move),
        "WHAT WOULD HELP": answer.what_would_help or "",
        "STOPPED BEFORE": answer.stopped.sentence if answer.stopped else "",
    }
    return {name: gpus_in_words(amount) for name, amount in amounts.items() if amount is not None} | {k: v for k, v in texts.items() if v}


def place(answer: Explanation) -> str:
    """`1 of 3`; nothing for what does not wait."""
    of = f" of {answer.queue_length}" if answer.queue_length else ""
    return f"{answer.queue_position}{of}" if answer.queue_position else ""


def _displaced(found: Sequence[Displaced]) -> str:
    return ", ".join(f"{_pods(one)}{one.name} of {one.project} ({_rule(one)})" for one in found)


def _pods(one: Displaced) -> str:
    """`2 pods of ` before a workload whose other pods go on."""
    pods = int(one.reason.numbers.get("pods", 0))
    return f"{pods} pod{'s' if pods > 1 else ''} of " if pods else ""


def _rule(one: Displaced) -> str:
    if one.reason.code == "moved":
        return f"from {one.reason.numbers.get('from')} to {one.reason.numbers.get('to')}"
    return one.reason.code.replace("_", " ")


def gpus_in_words(gpu_millis: int) -> str:
    """`1 GPU`, `0.5 GPU`, `4 GPUs`."""
    return f"{format_gpus(gpu_millis)} GPU{'s' if gpu_millis > WHOLE_GPU or gpu_millis == 0 else ''}"
