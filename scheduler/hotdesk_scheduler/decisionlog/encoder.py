"""Cycles as lines of JSON, each only what differs from the line before it; the first says everything.

    {"step": "decide", "now": 1.5, "version": 7, "workloads": {"put": [...], "gone": ["id"]}, "projects": …, "mix": …, "policy": …,
     "decisions": [{"kind": "start", …}], "queue": [[0, 5], "id", [6, 90]], "holds": [{"reason": …, "helps": …, "at": [[0, 3]]}],
     "fair_shares": {"a": 1000}}

`queue` builds the new order from runs [first, length] of the order before and from ids that are new; without it the order is the
same. `holds` gives the places (runs again, in the new order) whose reason is new; all others keep theirs. With `"in_order": false` nobody
had looked at the queue: its order there is any. When somebody looks, the cycle comes again with the order that he saw.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hotdesk_scheduler.core.line import Holds, Told, told_of
from hotdesk_scheduler.core.memory import changed
from hotdesk_scheduler.core.model import Policy, Snapshot
from hotdesk_scheduler.core.plan import Hold, Plan
from hotdesk_scheduler.decisionlog.cycles import DECIDE, KEYS, PARTS, POLICY, Cycle, decision_text, facts_of, told_text

AT_ONCE = 500
"""So many values are written in one go; between them other threads may run."""


def runs(numbers: Iterable[int]) -> list[list[int]]:
    """Ascending neighbours as [first, length]: 0, 1, 2, 7 -> [[0, 3], [7, 1]]."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][0] + found[-1][1]:
            found[-1][1] += 1
        else:
            found.append([number, 1])
    return found


class Encoder:
    """Remembers what it wrote last."""

    def __init__(self) -> None:
        self._keyed: dict[str, dict[str, Any]] = {name: {} for name in KEYS}
        self._whole: dict[str, Any] = {}
        self._policy: Policy | None = None
        self._seen: dict[str, Sequence[Any]] = dict.fromkeys(KEYS, ())
        self._told: Mapping[str, Told | Hold] = {}
        self._places: dict[str, int] = {}
        self._in_order = True
        self._facts: dict[str, dict[str, int]] = {}
        self._is_first = True

    def line(self, cycle: Cycle, *, skipped: int = 0) -> bytes:
        """The line of a cycle, with its line feed; empty if nothing changed and nothing was decided."""
        in_order = _in_order(cycle)  # asked once: somebody may look meanwhile
        asked, answered = list(self._asked(cycle)), list(self._answered(cycle, in_order=in_order))
        parts = [*asked, *answered]
        if skipped:
            parts.append(b'"skipped":%d' % skipped)
        has_news = any(part.startswith(b'"queue"') for part in answered) if cycle.again else bool(answered)
        if not (asked or has_news or skipped or self._is_first):
            return b""
        if cycle.again:
            parts.append(b'"again":true')
        self._is_first = False
        if cycle.step == DECIDE:
            self._in_order = in_order
            if not in_order:
                parts.append(b'"in_order":false')
        head = json.dumps({"step": cycle.step, "now": cycle.now, "version": cycle.snapshot.version}).encode()
        return b",".join([head[:-1], *parts]) + b"}\n"

    def _asked(self, cycle: Cycle) -> Iterator[bytes]:
        for name in PARTS:
            if name in KEYS:
                yield from self._keyed_part(name, cycle.snapshot)
            elif cycle.step == DECIDE:  # lifecycle reads nothing else
                yield from self._whole_part(name, cycle.snapshot)
        if cycle.policy != self._policy:
            self._policy = cycle.policy
            yield b'"policy":' + POLICY.dump_json(cycle.policy)

    def _whole_part(self, name: str, snapshot: Snapshot) -> Iterator[bytes]:
        value = getattr(snapshot, name)
        before = self._whole.get(name)
        if value is before or value == before:
            return
        self._whole[name] = value
        yield b'"%s":%s' % (name.encode(), PARTS[name].dump_json(value, exclude_defaults=True))

    def _keyed_part(self, name: str, snapshot: Snapshot) -> Iterator[bytes]:
        before, key, values = self._keyed[name], KEYS[name], getattr(snapshot, name)
        old, new = changed(self._seen[name], values)
        self._seen[name] = values
        put = []
        for value in new:
            if before.get(getattr(value, key)) != value:
                put.append(value)
            before[getattr(value, key)] = value
        gone = sorted({getattr(value, key) for value in old} - {getattr(value, key) for value in new})
        for old_key in gone:
            del before[old_key]
        if put or gone:
            chunks = [PARTS[name].dump_json(tuple(put[i : i + AT_ONCE]), exclude_defaults=True)[1:-1] for i in range(0, len(put), AT_ONCE)]
            yield b'"%s":{"put":[%s],"gone":%s}' % (name.encode(), b",".join(chunks), json.dumps(gone).encode())

    def _answered(self, cycle: Cycle, *, in_order: bool) -> Iterator[bytes]:
        if cycle.broken:
            yield b'"broken":' + json.dumps(cycle.broken).encode()
        if isinstance(cycle.answer, str):
            yield b'"error":' + json.dumps(cycle.answer).encode()
        elif isinstance(cycle.answer, Plan):
            if cycle.answer.acts:
                yield b'"decisions":[%s]' % b",".join(map(decision_text, cycle.answer.acts))
            yield from self._queue(_told(cycle.answer, in_order=in_order), in_order=in_order)
            for name, facts in facts_of(cycle.answer).items():
                if facts != self._facts.get(name, {}):
                    self._facts[name] = facts
                    yield b'"%s":%s' % (name.encode(), json.dumps(facts).encode())
        elif cycle.answer:
            yield b'"decisions":[%s]' % b",".join(map(decision_text, cycle.answer))

    def _queue(self, all_told: Mapping[str, Told | Hold], *, in_order: bool) -> Iterator[bytes]:
        """The order, then what is told differently than before, equal reasons together."""
        if all_told.keys() != self._places.keys() or (in_order and not (self._in_order and list(all_told) == list(self._places))):
            places = {workload_id: place for place, workload_id in enumerate(all_told)}
            yield b'"queue":' + json.dumps(self._order(places), separators=(",", ":")).encode()
            self._places = places
        same: dict[tuple[int, int, int, int], bool] = {}
        told: dict[tuple[int, int], tuple[Told | Hold, list[int]]] = {}
        for workload_id, one in all_told.items():
            old = self._told.get(workload_id)
            if old is not None:
                pair = (id(old.reason), id(old.helps), id(one.reason), id(one.helps))
                if pair not in same:
                    same[pair] = old.reason == one.reason and old.helps == one.helps
                if same[pair]:
                    continue
            told.setdefault((id(one.reason), id(one.helps)), (one, []))[1].append(self._places[workload_id])
        if told:
            texts = (b'%s,"at":%s}' % (told_text(one)[:-1], json.dumps(runs(sorted(at))).encode()) for one, at in told.values())
            yield b'"holds":[%s]' % b",".join(texts)
        self._told = all_told

    def _order(self, places: dict[str, int]) -> list[Any]:
        order: list[Any] = []
        for workload_id in places:
            before = self._places.get(workload_id)
            if before is None:
                order.append(workload_id)
            elif order and isinstance(order[-1], list) and before == order[-1][0] + order[-1][1]:
                order[-1][1] += 1
            else:
                order.append([before, 1])
        return order


def _in_order(cycle: Cycle) -> bool:
    """Whether the order of the queue is known: somebody has looked, or nobody waits."""
    if not isinstance(cycle.answer, Plan) or not isinstance(cycle.answer.holds, Holds):
        return True
    return cycle.answer.holds.counted is not None or not told_of(cycle.answer)


def _told(plan: Plan, *, in_order: bool) -> Mapping[str, Told | Hold]:
    return {hold.workload_id: hold for hold in plan.holds} if in_order else told_of(plan)
