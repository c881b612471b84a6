"""Who is next: departments, projects in them, and each project's own queue (scheduling.md 4, order).

Only who starts something changes its own rank, so ranks are kept in heaps: one over the departments (and projects without one), one
over the projects of each department.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.quantities import UNLIMITED
from hotdesk_scheduler.core.requests import Request

PRECISION = 96
"""Bits after the point of a ratio kept as an integer: exact order for all amounts below 2**47."""

Rank = tuple[bool, bool, int, int, float, str]


def ratio(amount: int, share: int) -> int:
    """amount / share as an integer that sorts exactly like the fraction; a share of 0 counts as one thousandth."""
    return (amount << PRECISION) // (share or 1)


def rank(account: Account, request: Request) -> Rank:
    """Sorts first who is next, judged with the request it would start.

    Dominant is the largest (allocated + asked) / allocatable share; unlimited shares decide nothing.
    """
    ask = request.ask
    allocated, fair, quota, share = account.allocated, account.fair, account.quota, account.share
    over_share = over_quota = False
    dominant = 0
    for r in request.asked:
        after = allocated[r] + ask[r]
        if after > fair[r]:
            over_share = True
        if after > quota[r]:
            over_quota = True
        if share[r] < UNLIMITED:
            dominant = max(dominant, (after << PRECISION) // (share[r] or 1))
    return (over_share, over_quota, -account.priority, dominant, account.created_at, account.name)


@dataclass(slots=True, eq=False)
class _Queue:
    """One project's requests with a cursor."""

    account: Account
    requests: list[Request]
    at: int = 0

    @property
    def head(self) -> Request:
        return self.requests[self.at]


@dataclass(slots=True, eq=False)
class _Branch:
    """A department with the heap of its projects, or a project that stands beside the departments."""

    account: Account
    heap: list[tuple[Rank, str, _Queue]] = field(default_factory=list)


class Line:
    """All requests in the order in which they may start.

    `hopeless` tells which need not come up, nor others of the same project, shape and priority; `skip` which need not by themselves.
    """

    def __init__(
        self, by_project: dict[str, list[Request]], hopeless: Callable[[Request], bool] | None, skip: Callable[[Request], bool] | None
    ) -> None:
        self._hopeless = hopeless
        self._skip = skip
        self._current: tuple[_Branch, _Queue] | None = None
        branches: dict[int, _Branch] = {}
        for name, requests in by_project.items():
            account = requests[0].account
            queue = _Queue(account, requests)
            branch = branches.setdefault(id(account.side), _Branch(account.side))
            if self._seek(queue):
                branch.heap.append((rank(account, queue.head), name, queue))
        self._heap: list[tuple[Rank, str, _Branch]] = []
        for branch in branches.values():
            heapify(branch.heap)
            self._push(branch)

    def _seek(self, queue: _Queue) -> bool:
        """Move to the next request that is not hopeless; whether there is one."""
        requests, hopeless, skip, at = queue.requests, self._hopeless, self._skip, queue.at
        while at < len(requests):
            request = requests[at]
            if hopeless is not None and hopeless(request):
                at = request.run_ends_at
            elif skip is not None and skip(request):
                at += 1
            else:
                break
        queue.at = at
        return at < len(requests)

    def _push(self, branch: _Branch) -> None:
        if branch.heap:
            head_rank, _, queue = branch.heap[0]
            own = head_rank if branch.account is queue.account else rank(branch.account, queue.head)
            heappush(self._heap, (own, branch.account.name, branch))

    def __iter__(self) -> Line:
        return self

    def __next__(self) -> Request:
        """The next request; ranks are taken anew from the sums as they stand."""
        if self._current:
            branch, queue = self._current
            queue.at += 1
            if self._seek(queue):
                heappush(branch.heap, (rank(queue.account, queue.requests[queue.at]), queue.account.name, queue))
            self._push(branch)
            self._current = None
        if not self._heap:
            raise StopIteration
        _, _, branch = heappop(self._heap)
        _, _, queue = heappop(branch.heap)
        self._current = (branch, queue)
        return queue.head
