"""One question to the core and its answer, and how both are written: JSON of the core's own values, made by pydantic.

What is written of an answer is what is compared byte for byte: decisions in the order taken, the reason of each hold, what each
project may have, and the order of the queue where somebody looked at it (it is counted for nobody else). What the core never reads
(commands, environment, tokens) cannot get here: no snapshot has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from hotdesk_scheduler.core.line import Told
from hotdesk_scheduler.core.model import Policy, Snapshot
from hotdesk_scheduler.core.plan import Decision, Finish, Hold, LifecycleDecision, Move, Nominate, Plan, Remove, Requeue, Start, Stop

FORMAT = 4
"""In the head of every segment. It goes up whenever an older `replay` would read a newer log wrongly."""

Json = dict[str, Any]

DECIDE, REVIEW = "decide", "review"
KEYS = {"nodes": "name", "departments": "name", "projects": "name", "workloads": "id"}
"""Parts of a snapshot that are written as what changed, by this key; every other part is written whole when it changes."""

FACTS = {"fair_shares": "fair share", "weights": "over-quota weight"}
"""What a plan says of each project, and its word for people."""

_hints = get_type_hints(Snapshot)
PARTS: dict[str, TypeAdapter[Any]] = {item.name: TypeAdapter(_hints[item.name]) for item in fields(Snapshot) if item.name != "version"}
POLICY = TypeAdapter(Policy)


TOLD = TypeAdapter(Told)
KINDS: dict[str, type] = {
    "start": Start, "stop": Stop, "move": Move, "nominate": Nominate, "requeue": Requeue, "finish": Finish, "remove": Remove,
}  # fmt: skip
_NAMES = {kind: name for name, kind in KINDS.items()}
_ADAPTERS: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(kind) for name, kind in KINDS.items()}


@dataclass(frozen=True, slots=True)
class Cycle:
    """What was asked, and the answer: a plan, lifecycle's decisions, or the sentence of what went wrong in the core.

    `broken`: what the invariants had against the plan, so that nothing of it was applied. `again`: it is on record and was applied, and
    now somebody has looked at its queue.
    """

    step: str
    snapshot: Snapshot
    policy: Policy
    now: float
    answer: Plan | tuple[LifecycleDecision, ...] | str
    broken: str = ""
    again: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer in plain JSON values. `holds` are by workload id, `in_order` of the queue or not; `facts` by `FACTS`, then project."""

    decisions: tuple[Json, ...] = ()
    holds: Mapping[str, Json] = field(default_factory=dict)
    facts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    error: str = ""
    in_order: bool = True

    def text(self, *, in_order: bool = True) -> bytes:
        """The canonical bytes: equal answers have equal ones. Compare what is not `in_order` with what is asked for so."""
        holds = list(self.holds.items()) if in_order and self.in_order else sorted(self.holds.items())
        whole = [self.decisions, holds, {name: facts for name, facts in self.facts.items() if facts}, self.error]
        return json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def decision_text(decision: Decision | LifecycleDecision) -> bytes:
    """A decision other than a hold as JSON, its kind first."""
    name = _NAMES[type(decision)]
    return b'{"kind":"%s",%s' % (name.encode(), _ADAPTERS[name].dump_json(decision, exclude_defaults=True)[1:])


def decision_from(body: Json) -> Decision | LifecycleDecision:
    """Raises ValueError for what is no decision."""
    adapter = _ADAPTERS.get(body.get("kind", ""))
    if adapter is None:
        raise ValueError(f"there is no decision {body.get('kind')!r}")
    found: Decision | LifecycleDecision = adapter.validate_python({name: value for name, value in body.items() if name != "kind"})
    return found


def told_text(told: Told | Hold) -> bytes:
    """A hold without its place in the queue."""
    return TOLD.dump_json(Told(told.reason, told.helps), exclude_defaults=True)


def plain(answer: Plan | Iterable[LifecycleDecision] | str) -> Answer:
    """An answer of the core in the form of the log."""
    if isinstance(answer, str):
        return Answer(error=answer)
    if not isinstance(answer, Plan):
        return Answer(tuple(json.loads(decision_text(decision)) for decision in answer))
    holds = list(answer.holds)
    told: dict[tuple[int, int], Json] = {}  # equal requests share their reason: it is written once
    for hold in holds:
        key = (id(hold.reason), id(hold.helps))
        if key not in told:
            told[key] = json.loads(told_text(hold))
    by_id = {hold.workload_id: told[id(hold.reason), id(hold.helps)] for hold in holds}
    return Answer(tuple(json.loads(decision_text(decision)) for decision in answer.acts), by_id, facts_of(answer))


def facts_of(plan: Plan) -> dict[str, dict[str, int]]:
    return {name: dict(getattr(plan, name)) for name in FACTS}


def failure(error: Exception) -> str:
    """A crash of the core as its answer."""
    return f"{type(error).__name__}: {error}"
