"""Why a workload waits, and what if one were submitted: the same cycle, told as a sentence with its numbers (scheduling.md 6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hotdesk_scheduler.core import advice
from hotdesk_scheduler.core.advice import join
from hotdesk_scheduler.core.decide import cycle
from hotdesk_scheduler.core.holds import holds
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.lifecycle import status
from hotdesk_scheduler.core.model import HOLDING, Phase, Placement, Policy, Snapshot, Workload
from hotdesk_scheduler.core.plan import Hold, Move, Nominate, Start, Stop
from hotdesk_scheduler.core.quantities import GPU, UNLIMITED, asked, gpu_words, gpus
from hotdesk_scheduler.core.reasons import Reason
from hotdesk_scheduler.core.requests import Requests

Naming = Callable[[Sequence[Placement]], str]

_DOING = {"Running": "running", "ContainerCreating": "starting", "Terminating": "stopping"}


@dataclass(frozen=True, slots=True)
class Explanation:
    """One sentence, then the numbers. `starts_now` is None for a workload that already runs or has ended.

    `used_millis` is what its project holds: beside a workload that waits, and with one that runs. `held_by` are the projects that hold
    GPUs it could use, most first; `stopped` says, for one that waits again, who took its place under which rule.
    """

    sentence: str
    starts_now: bool | None = None
    node: str | None = None
    gpus: str | None = None
    reason: Reason | None = None
    queue_position: int | None = None
    quota_millis: int | None = None
    fair_share_millis: int | None = None
    used_millis: int = 0
    asked_millis: int = 0
    would_stop: tuple[str, ...] = ()
    what_would_help: str | None = None
    queue_length: int | None = None
    held_by: tuple[tuple[str, int], ...] = ()
    stopped: Reason | None = None


def explain(snapshot: Snapshot, policy: Policy, now: float, workload_id: str) -> Explanation:
    """Why this workload is where it is. Raises KeyError if there is none of that id."""
    workload = next((w for w in snapshot.workloads if w.id == workload_id), None)
    if workload is None:
        raise KeyError(workload_id)
    ledger, requests = cycle(snapshot, policy, now)
    if workload.phase is not Phase.ACTIVE or any(pod.state in HOLDING for pod in workload.pods):
        return _not_waiting(ledger, workload)
    return _outcome(ledger, requests, workload, policy)


def what_if(snapshot: Snapshot, policy: Policy, now: float, workload: Workload, *, naming: Naming | None = None) -> Explanation:
    """What would become of this workload if it were submitted now. `naming` says which GPUs free places are; the core knows no devices."""
    others = tuple(w for w in snapshot.workloads if w.id != workload.id)
    ledger, requests = cycle(replace(snapshot, workloads=(*others, workload)), policy, now)
    return _outcome(ledger, requests, workload, policy, naming or words)


def _outcome(ledger: Ledger, requests: Requests, workload: Workload, policy: Policy, naming: Naming | None = None) -> Explanation:
    """What the plan does with a workload that waits."""
    mine = [d for d in ledger.decisions.values() if d.workload_id == workload.id]
    places = [d.placement for d in mine if isinstance(d, Start | Nominate) and d.placement]
    starts = any(isinstance(d, Start) for d in mine)
    stopped = [d for d in ledger.decisions.values() if isinstance(d, Stop | Move) and d.beneficiary == workload.id]
    names = tuple(dict.fromkeys(_name(ledger, d.workload_id) for d in stopped if isinstance(d, Stop)))
    queue = holds(ledger, requests)
    hold = next((h for h in queue if h.workload_id == workload.id), None)
    base = replace(_numbers(ledger, workload), held_by=_held_by(ledger, workload), stopped=_last_stop(workload))
    if starts and places:
        which = words(places) if stopped or naming is None else naming(places)
        return replace(base, sentence=_starts(places, names, which), starts_now=True, node=_nodes(places), gpus=which)
    if places and stopped:
        moved = [_name(ledger, d.workload_id) for d in stopped if isinstance(d, Move)]
        sentence = f"It would start on {_nodes(places)} ({words(places)}) as soon as {join(list(names) or moved)} has made room"
        sentence += f" (at most {policy.grace_s:.0f} s of notice)."
        reason = hold.reason if hold else None
        return replace(
            base, sentence=sentence, starts_now=True, node=_nodes(places), gpus=words(places), would_stop=names, reason=reason
        )  # fmt: skip
    return _held(replace(base, queue_length=len(queue)) if hold else base, hold)


def _held_by(ledger: Ledger, workload: Workload) -> tuple[tuple[str, int], ...]:
    """Who holds the GPUs of the nodes it may use."""
    eligible = ledger.eligible_of(workload)
    sums: dict[str, int] = {}
    for seat in ledger.seats.values():
        if seat.spot.order in eligible and seat.amount[GPU]:
            sums[seat.workload.project] = sums.get(seat.workload.project, 0) + seat.amount[GPU]
    return tuple(sorted(sums.items(), key=lambda entry: (-entry[1], entry[0])))


def _last_stop(workload: Workload) -> Reason | None:
    return next((pod.stop_reason for pod in workload.pods if pod.stop_reason), None)


def _held(base: Explanation, hold: Hold | None) -> Explanation:
    if hold is None:
        return replace(base, sentence="It waits; the next cycle decides about it.", starts_now=False)
    return replace(
        base,
        sentence=hold.reason.sentence,
        starts_now=False,
        reason=hold.reason,
        queue_position=hold.position,
        what_would_help=_help_said(hold),
    )


def _help_said(hold: Hold) -> str | None:
    """The part of the sentence that says what would let it start."""
    ways = (advice.sentence(hold.helps, in_turn=in_turn) for in_turn in (True, False))
    return next((text for text in ways if text and text in hold.reason.sentence), None)


def _starts(places: list[Placement], stopped: tuple[str, ...], which: str) -> str:
    sentence = f"Starts now on {_nodes(places)} ({which})"
    return f"{sentence}; {join(list(stopped))} stops for it." if stopped else f"{sentence}."


def _not_waiting(ledger: Ledger, workload: Workload) -> Explanation:
    base = _numbers(ledger, workload)
    places = [pod.placement for pod in workload.pods if pod.state in HOLDING and pod.placement]
    base = replace(base, used_millis=base.used_millis + sum(place.gpu_millis for place in places))
    word = status(workload)
    reason = workload.phase_reason
    if workload.phase is Phase.ACTIVE:
        sentence = f"It is {_DOING.get(word, word)} on {_nodes(places)} ({words(places)})."
        reason = next((pod.stop_reason for pod in workload.pods if pod.release_deadline and pod.stop_reason), None)
        sentence = f"{sentence} {reason.sentence}" if reason else sentence
    elif reason:
        sentence = f"It is {word.lower()}: {reason.sentence}"
    elif workload.phase is Phase.SUSPENDED:
        sentence = "It is suspended; resume it to queue it again."
    else:
        sentence = f"It has come to its end: {word}."
    return replace(base, sentence=sentence, node=_nodes(places) or None, gpus=words(places) if places else None, reason=reason)


def _numbers(ledger: Ledger, workload: Workload) -> Explanation:
    account = ledger.projects.get(workload.project)
    need = sum(asked(pod.request, ledger.smallest_gpu_mib)[GPU] for pod in workload.pods)
    if account is None:
        return Explanation("", asked_millis=need)
    quota = account.quota[GPU]
    used = sum(
        seat.amount[GPU]
        for seat in (*ledger.seats.values(), *ledger.nominated.values())
        if seat.workload.project == workload.project and seat.workload.id != workload.id and seat.rooms != 1
    )
    return Explanation(
        "",
        quota_millis=None if quota >= UNLIMITED else quota,
        fair_share_millis=account.fair[GPU],
        used_millis=used,
        asked_millis=need,
    )


def _name(ledger: Ledger, workload_id: str) -> str:
    workload = ledger.workloads[workload_id]
    return f"{workload.name} of {workload.project}"


def _nodes(places: list[Placement]) -> str:
    return join(sorted({place.node for place in places})) if places else ""


def words(places: Sequence[Placement]) -> str:
    """On which GPUs, in words: `2 whole GPUs`, `0.5 of one GPU`, `no GPU`."""
    whole = sum(place.whole for place in places)
    parts = [f"{whole} whole GPU{'s' if whole > 1 else ''}"] if whole else []
    for place in places:
        if place.shares:
            millis = place.shares[0].millis
            parts.append(f"{gpus(millis)} of {'one GPU' if len(place.shares) == 1 else f'{len(place.shares)} GPUs each'}")
    if len(parts) > 3:
        return gpu_words(sum(place.gpu_millis for place in places))
    return join(parts) if parts else "no GPU"
