"""Who would be stopped or moved for a workload, told from the numbers of the plan's own reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotdesk_scheduler.core.advice import join
from hotdesk_scheduler.core.model import Workload
from hotdesk_scheduler.core.plan import Move, Stop
from hotdesk_scheduler.core.quantities import MEMORY, RESOURCE_NAMES, amount_words, gpus
from hotdesk_scheduler.core.reasons import Reason, ReasonCode

MOST_TOLD = 3


@dataclass(frozen=True, slots=True)
class Displaced:
    """The rule is the reason's code; the numbers of a reclaim have both sides before and after."""

    name: str
    project: str
    reason: Reason


def displaced(workload: Workload, decision: Stop | Move) -> Displaced:
    return Displaced(workload.name, workload.project, decision.reason)


def in_words(found: Sequence[Displaced]) -> str:
    """`a2 and a3 of a stop (reclaimed: a goes from 3 GPUs to 1 and may have 1, b from 1 to 3 and may have 3)`; the first few alike."""
    alike: dict[tuple[str, ...], list[Displaced]] = {}
    for one in found:
        numbers = dict(one.reason.numbers)
        apart = (str(numbers.get("to", "")), str(numbers.get("priority", "")), one.name if "pods" in numbers else "")
        alike.setdefault((one.project, one.reason.code.value, *apart), []).append(one)
    told = [_group(group) for group in alike.values()]
    more = sum(len(group) for group in list(alike.values())[MOST_TOLD:])
    return join([*told[:MOST_TOLD], f"{more} more"] if more else told)


def _group(group: list[Displaced]) -> str:
    first, many = group[0], len(group) > 1
    names = sorted(one.name for one in group)
    who = f"{join([*names[:MOST_TOLD], f'{len(names) - MOST_TOLD} more'] if len(names) > MOST_TOLD else names)} of {first.project}"
    numbers, code = dict(first.reason.numbers), first.reason.code
    if code is ReasonCode.MOVED:
        where = f"to {numbers['to']}" if numbers["to"] != numbers["from"] else f"to another GPU of {numbers['to']}"
        return f"{who} move{'' if many else 's'} {where}"
    if pods := int(numbers.get("pods", 0)):
        who, many = f"{pods} pod{'s' if pods > 1 else ''} of {who}", pods > 1
    stops = f"{who} stop{'' if many else 's'}"
    if code is ReasonCode.RECLAIMED:
        return f"{stops} (reclaimed: {both_shares(first)})"
    if code is ReasonCode.PREEMPTED:
        return f"{stops} (preempted: priority {numbers['priority']}, this has {numbers['by_priority']})"
    return f"{stops} (started on GPUs that were kept for this)" if code is ReasonCode.GAVE_WAY else stops


def both_shares(one: Displaced) -> str:
    """`a goes from 3 GPUs to 1 and may have 1, b from 1 to 3 and may have 3`."""
    numbers = dict(one.reason.numbers)
    r = RESOURCE_NAMES.index(str(numbers["resource"]))

    def amount(name: str) -> str:
        return str(numbers[name]) if r == MEMORY or numbers[name] == "unlimited" else gpus(int(numbers[name]))

    return (
        f"{one.project} goes from {amount_words(int(numbers['before']), r)} to {amount('after')} and may have {amount('share')}, "
        f"{numbers['by']} from {amount('by_before')} to {amount('by_after')} and may have {amount('by_share')}"
    )
