"""The holds of a plan. Their reasons are there at once; the order of the queue is worked out when somebody first looks.

With a hundred thousand workloads in the queue, counting their places takes longer than everything else that a cycle decides, and a
plan of which nobody looks at the queue needs none of it. What is kept for it is a copy of its own, so that it comes out the same
whenever that is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import overload

from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.advice import Advice
from hotdesk_scheduler.core.order import Line
from hotdesk_scheduler.core.plan import Hold, Plan
from hotdesk_scheduler.core.reasons import Reason
from hotdesk_scheduler.core.requests import Queue, Request, by_key

Asked = tuple[str, int, bool]
"""Project, shape, whether it may evict: who agrees in these is told the same."""


@dataclass(frozen=True, slots=True)
class Told:
    """A reason whose sentence has the advice in it, and that advice."""

    reason: Reason
    helps: tuple[Advice, ...] = ()


def frozen(by_project: Mapping[str, Queue]) -> dict[str, Queue]:
    """The queues as they stand, with accounts of their own."""
    copies: dict[int, Account] = {}

    def copy(account: Account) -> Account:
        found = copies.get(id(account))
        if found is None:
            found = copies[id(account)] = replace(
                account, allocated=[*account.allocated], fair=[*account.fair], quota=[*account.quota], share=[*account.share]
            )
            found.path = tuple(copy(one) if one is not account else found for one in account.path)
        return found

    return {
        name: Queue(copy(queue.account), {key: list(group) for key, group in queue.groups.items()}) for name, queue in by_project.items()
    }


class Holds(Sequence[Hold]):
    """All holds in the order of the queue, as a tuple would be; what is `told` is to be had without that order.

    `more` adds to what some are told, by workload, what is not told to all like them.
    """

    def __init__(
        self,
        *,
        first: tuple[tuple[str, Told], ...],
        queues: dict[str, Queue],
        absent: frozenset[tuple[str, int]],
        told: dict[Asked, Told],
        may_evict: Callable[[Request], bool],
        more: Mapping[str, Callable[[Told], Told]],
        last: tuple[tuple[str, Told], ...],
        started: frozenset[str],
    ) -> None:
        self._first = first
        self._queues = queues
        self._absent = absent
        self._told = told
        self._may_evict = may_evict
        self._more = more
        self._last = last
        self._started = started
        self._all: tuple[Hold, ...] | None = None
        self._by_id: dict[str, Told] | None = None

    def _not_waiting(self, request: Request) -> bool:
        return (request.workload.id, request.pods[0].index) in self._absent

    def _told_to(self, request: Request) -> Told:
        told = self._told[request.account.name, request.shape, self._may_evict(request)]
        more = self._more.get(request.workload.id)
        return more(told) if more else told

    def _line(self) -> Iterator[Request]:
        """What still lacks its minimum, in the order in which it would start if room came: each is charged as if it had started."""
        for request in Line(self._queues, None, self._not_waiting if self._absent else None):
            yield request
            self._queues[request.account.name].account.charge(request.ask, False, 1)

    def _once(self, line: Iterator[Request]) -> Iterator[tuple[str, Told]]:
        """Everybody once, and nobody who starts."""
        seen = set(self._started)
        for workload_id, told in self._first:
            if workload_id not in seen:
                seen.add(workload_id)
                yield workload_id, told
        for request in line:
            workload_id = request.workload.id
            if workload_id not in seen:
                seen.add(workload_id)
                yield workload_id, self._told_to(request)
        yield from (entry for entry in self._last if entry[0] not in seen)

    @property
    def counted(self) -> tuple[Hold, ...] | None:
        """All in the order of the queue if somebody has looked at it; None if not."""
        return self._all

    def told(self) -> Mapping[str, Told]:
        """What each is told, by workload, in no particular order. No place is counted for it."""
        if self._by_id is None:
            self._by_id = self._told_by_id()
        return self._by_id

    def _told_by_id(self) -> dict[str, Told]:
        if self._all is not None:
            return {hold.workload_id: Told(hold.reason, hold.helps) for hold in self._all}
        found: dict[str, Told] = {}
        surplus: list[Request] = []
        for name, queue in self._queues.items():
            for group in queue.groups.values():
                if group[0].surplus:
                    surplus += group
                    continue
                waiting = [request for request in group if not self._not_waiting(request)] if self._absent else group
                young = bisect_left(waiting, True, key=lambda request: not self._may_evict(request))
                for part in (waiting[:young], waiting[young:]):
                    if part:
                        told = self._told[name, part[0].shape, self._may_evict(part[0])]
                        found.update(dict.fromkeys([request.workload.id for request in part], told))
        for request in sorted(surplus, key=by_key):
            if not self._not_waiting(request) and request.workload.id not in found:
                found[request.workload.id] = self._told[request.account.name, request.shape, self._may_evict(request)]
        found.update({workload_id: more(found[workload_id]) for workload_id, more in self._more.items() if workload_id in found})
        found.update(self._first)
        for workload_id in self._started:
            found.pop(workload_id, None)
        return {**{workload_id: told for workload_id, told in self._last if workload_id not in self._started}, **found}

    def _counted(self) -> tuple[Hold, ...]:
        if self._all is None:
            told = self._once(self._line())
            self._all = tuple(Hold(workload_id, one.reason, place, one.helps) for place, (workload_id, one) in enumerate(told, 1))
            self._queues = {}
        return self._all

    def __len__(self) -> int:
        return len(self._counted())

    @overload
    def __getitem__(self, at: int) -> Hold: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Hold, ...]: ...
    def __getitem__(self, at: int | slice) -> Hold | tuple[Hold, ...]:
        return self._counted()[at]

    def __iter__(self) -> Iterator[Hold]:
        return iter(self._counted())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Holds | tuple) and self._counted() == tuple(other)

    def __hash__(self) -> int:
        return hash(self._counted())

    def __repr__(self) -> str:
        return repr(self._counted())


def told_of(plan: Plan) -> Mapping[str, Told]:
    """What a plan tells those who wait, by workload, without counting their places."""
    holds = plan.holds
    return holds.told() if isinstance(holds, Holds) else {hold.workload_id: Told(hold.reason, hold.helps) for hold in holds}
