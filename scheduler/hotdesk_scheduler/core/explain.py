"""Why a workload waits, and what if one were submitted: the same cycle, told as a sentence with its numbers (scheduling.md 6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hotdesk_scheduler.core import advice
from hotdesk_scheduler.core.advice import join
from hotdesk_scheduler.core.decide import cycle
from hotdesk_scheduler.core.displaced import Displaced, displaced, in_words
from hotdesk_scheduler.core.holds import holds
from hotdesk_scheduler.core.lack import holders
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.lifecycle import status
from hotdesk_scheduler.core.memory import Memory
from hotdesk_scheduler.core.model import HOLDING, Phase, Placement, PodState, Policy, Snapshot, Workload
from hotdesk_scheduler.core.plan import Hold, Move, Nominate, Start, Stop
from hotdesk_scheduler.core.quantities import GPU, UNLIMITED, asked, gpu_words, gpus
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.core.requests import Requests

Naming = Callable[[Sequence[Placement]], str]

_DOING = {"Running": "running", "ContainerCreating": "starting", "Terminating": "stopping"}
_ENDED = {
    "Succeeded": "It has done all of its work.",
    "Failed": "It failed.",
    "TimedOut": "It reached its time limit.",
    "Stopped": "It was stopped.",
    "Suspended": "It is suspended; resume it to queue it again.",
    "Deleting": "It is being deleted.",
}
FRESH_S = 1.0
"""So long an answer may be old by which nothing has changed but the time."""
_RUNS = frozenset({PodState.STARTING, PodState.RUNNING})
TOOK_ITS_PLACE = frozenset(
    {
        ReasonCode.RECLAIMED,
        ReasonCode.PREEMPTED,
        ReasonCode.MOVED,
        ReasonCode.GAVE_WAY,
        ReasonCode.STALE_GANG,
        ReasonCode.NODE_LOST,
        ReasonCode.PROCESS_LOST,
    }
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """One sentence, then the numbers. `starts_now` is None for a workload that already runs or has ended.

    `used_millis` is what its project holds: beside a workload that waits, and with one that runs. `held_by` are the projects that hold
    GPUs it could use, most first. `stopped` says who took its place under which rule when it was last stopped by the scheduler; it stays
    until the workload ends, also while it runs again.
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
    would_stop: tuple[Displaced, ...] = ()
    would_move: tuple[Displaced, ...] = ()
    what_would_help: str | None = None
    left_s: int | None = None
    queue_length: int | None = None
    held_by: tuple[tuple[str, int], ...] = ()
    stopped: Reason | None = None


class Explainer:
    """Answers again and again. While nothing changes one cycle answers for all, and after a change it is a warm one.

    `memory` may be that of who decides: it is a cycle of his own that is asked, and never changes what he decides.
    """

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory or Memory()
        self._kept: tuple[Ledger, Requests] | None = None
        self._asked: tuple[object, ...] = ()
        self._at = 0.0
        self._queue: Sequence[Hold] = ()

    def why(self, snapshot: Snapshot, policy: Policy, now: float, workload_id: str) -> Explanation:
        """Why this workload is where it is. Raises KeyError if there is none of that id."""
        workload = next((w for w in snapshot.workloads if w.id == workload_id), None)
        if workload is None:
            raise KeyError(workload_id)
        ledger = self._ledger(snapshot, policy, now)
        if workload.phase is not Phase.ACTIVE or any(pod.state in HOLDING for pod in workload.pods):
            return _not_waiting(ledger, workload)
        return _outcome(ledger, self._queue, workload, policy)

    def what_if(self, snapshot: Snapshot, policy: Policy, now: float, workload: Workload, *, naming: Naming | None = None) -> Explanation:
        """What would become of it if it were submitted now. `naming` says which GPUs free places are; the core knows no devices."""
        others = tuple(w for w in snapshot.workloads if w.id != workload.id)
        ledger, requests = cycle(replace(snapshot, workloads=(*others, workload)), policy, now, self._memory)
        found = _outcome(ledger, holds(ledger, requests), workload, policy, naming or words)
        self._memory.keep(ledger, requests)
        return found

    def _ledger(self, snapshot: Snapshot, policy: Policy, now: float) -> Ledger:
        """After the cycle of this snapshot; that of the question before if nothing was different, and nobody had another cycle since."""
        asked = (snapshot.version, snapshot.mix, snapshot.usage, policy)
        kept = self._memory.kept
        if kept is not None and kept is self._kept and asked == self._asked and 0 <= now - self._at <= FRESH_S:
            return kept[0]
        ledger, requests = cycle(snapshot, policy, now, self._memory)
        self._queue = holds(ledger, requests)
        self._memory.keep(ledger, requests)
        self._kept, self._asked, self._at = self._memory.kept, asked, now
        return ledger


def explain(snapshot: Snapshot, policy: Policy, now: float, workload_id: str) -> Explanation:
    """One question, from nothing."""
    return Explainer().why(snapshot, policy, now, workload_id)


def what_if(snapshot: Snapshot, policy: Policy, now: float, workload: Workload, *, naming: Naming | None = None) -> Explanation:
    """One question, from nothing."""
    return Explainer().what_if(snapshot, policy, now, workload, naming=naming)


def _outcome(ledger: Ledger, queue: Sequence[Hold], workload: Workload, policy: Policy, naming: Naming | None = None) -> Explanation:
    """What the plan does with a workload that waits."""
    mine = [d for d in ledger.decisions.values() if d.workload_id == workload.id]
    places = [d.placement for d in mine if isinstance(d, Start | Nominate) and d.placement]
    starts = any(isinstance(d, Start) for d in mine)
    for_it = [d for d in ledger.decisions.values() if isinstance(d, Stop | Move) and d.beneficiary == workload.id]
    making_room = tuple({d.workload_id: d for d in for_it}.values())
    stops = tuple(displaced(ledger.workloads[d.workload_id], d) for d in making_room if isinstance(d, Stop))
    moves = tuple(displaced(ledger.workloads[d.workload_id], d) for d in making_room if isinstance(d, Move))
    hold = next((h for h in queue if h.workload_id == workload.id), None)
    base = replace(_numbers(ledger, workload), stopped=_last_stop(workload))
    if not starts or making_room:
        leaves = (ledger.seats[d.workload_id, d.index] for d in for_it if isinstance(d, Stop))
        own = sum(seat.amount[GPU] for seat in leaves if seat.workload.project == workload.project)
        base = replace(base, held_by=_held_by(ledger, workload), used_millis=base.used_millis + own)
    if starts and places:
        which = words(places) if making_room or naming is None else naming(places)
        sentence = f"Starts now on {_nodes(places)} ({which})."
        return replace(base, sentence=sentence, starts_now=True, node=_nodes(places), gpus=which, would_stop=stops, would_move=moves)
    if places and making_room:
        notice = f" (at most {policy.grace_s:.0f} s of notice)" if policy.grace_s else ""
        start = "It would start" if naming else "It starts"
        sentence = f"{start} on {_nodes(places)} ({words(places)}) as soon as room is made{notice}: {in_words([*stops, *moves])}."
        reason = hold.reason if hold else None
        found = replace(base, sentence=sentence, starts_now=True, node=_nodes(places), gpus=words(places), reason=reason)
        return replace(found, would_stop=stops, would_move=moves)
    return _held(replace(base, queue_length=len(queue)) if hold else base, hold, ledger.now)


def _held_by(ledger: Ledger, workload: Workload) -> tuple[tuple[str, int], ...]:
    """Who holds the GPUs of the nodes it may use, as it is now; nothing for what asks for none."""
    if all(pod.request.gpu.is_none for pod in workload.pods):
        return ()
    eligible = ledger.eligible_of(workload)
    seats = (seat for seat in ledger.seats.values() if not seat.started_now)
    found = holders(ledger, seats, {spot.order for spot in ledger.spots if spot.order in eligible})
    return tuple(sorted(((name, held[GPU]) for name, held in found.items() if held[GPU]), key=lambda entry: (-entry[1], entry[0])))


def _last_stop(workload: Workload) -> Reason | None:
    return next((pod.stop_reason for pod in workload.pods if pod.stop_reason and pod.stop_reason.code in TOOK_ITS_PLACE), None)


def _held(base: Explanation, hold: Hold | None, now: float) -> Explanation:
    if hold is None:
        return replace(base, sentence="It waits; the next cycle decides about it.", starts_now=False)
    return replace(
        base,
        sentence=hold.reason.sentence,
        starts_now=False,
        reason=hold.reason,
        queue_position=hold.position,
        what_would_help=_help_said(hold),
        left_s=_left_s(hold.reason, now),
    )


def _left_s(reason: Reason, now: float) -> int | None:
    """Whole seconds until what the reason waits for is over, where that is known."""
    until = int(dict(reason.numbers).get("until", 0))
    return until - int(now) if until > now else None


def _help_said(hold: Hold) -> str | None:
    """The part of the sentence that says what would let it start."""
    ways = (advice.sentence(hold.helps, in_turn=in_turn) for in_turn in (True, False))
    return next((text for text in ways if text and text in hold.reason.sentence), None)


def _not_waiting(ledger: Ledger, workload: Workload) -> Explanation:
    base = _numbers(ledger, workload)
    places = [pod.placement for pod in workload.pods if pod.state in HOLDING and pod.placement]
    base = replace(base, used_millis=base.used_millis + sum(place.gpu_millis for place in places))
    base = replace(base, node=_nodes(places) or None, gpus=words(places) if places else None)
    word = status(workload)
    if workload.phase is Phase.ACTIVE:
        reason = next((pod.stop_reason for pod in workload.pods if pod.release_deadline and pod.stop_reason), None)
        on = f"on {_nodes(places)} ({words(places)})"
        sentence = f"It is {_DOING.get(word, word)} {on}.{_pods_in_words(workload)}{f' {reason.sentence}' if reason else ''}"
        return replace(base, sentence=sentence, reason=reason, stopped=None if reason else _last_stop(workload))
    reason = workload.phase_reason
    ended = _ENDED.get("Suspended" if workload.phase is Phase.SUSPENDED else word, "It is being stopped.")
    return replace(base, sentence=_with_reason(ended, reason) if reason else ended, reason=reason)


def _with_reason(ended: str, reason: Reason) -> str:
    """The reason alone where it says the end itself."""
    return f"{ended} {reason.sentence}" if reason.code is ReasonCode.TIME_LIMIT or ended == _ENDED["Deleting"] else reason.sentence


def _pods_in_words(workload: Workload) -> str:
    """How many of several pods run, and what becomes of the others."""
    pods = workload.pods
    if workload.completions is not None:
        return f" {workload.succeeded} of {workload.completions} completions are done."
    if len(pods) == 1:
        return ""
    runs = sum(pod.state in _RUNS for pod in pods)
    if any(pod.state is PodState.RELEASING for pod in pods) or not runs or runs == len(pods):
        return ""
    done = sum(pod.state is PodState.SUCCEEDED for pod in pods)
    left = len(pods) - runs - done
    said = f" {runs} of its {len(pods)} pods run" + (f", {done} {'is' if done == 1 else 'are'} done" if done else "")
    if not left:
        return f"{said}."
    what = "it needs at least {} and stops as a whole if they do not start soon" if runs + done < workload.min_pods else ""
    waits = f"{left} more {'waits' if left == 1 else 'wait'} for room"
    return f"{said}, {waits}{'; ' + what.format(workload.min_pods) if what else ''}."


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
