"""Who is next: departments, projects in them, and each project's own queue (scheduling.md 4, order).

Only who starts something changes its own rank, so ranks are kept in heaps: one over the departments (and projects without one), one
over the projects of each department. Inside a project one heap over its groups of equal requests says which is next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.quantities import UNLIMITED
from hotdesk_scheduler.core.requests import Queue, Request, Walk

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
class _Turn:
    """One project's queue, and whose turn it is in it."""

    walk: Walk
    head: Request
    looked_again: int = 0


@dataclass(slots=True, eq=False)
class _Branch:
    """A department with the heap of its projects, or a project that stands beside the departments."""

    account: Account
    heap: list[tuple[Rank, str, _Turn]] = field(default_factory=list)


class Line:
    """All requests in the order in which they may start.

    `hopeless` tells which need not come up, nor others of the same project, shape and priority; `skip` which need not by themselves.
    """

    def __init__(
        self, by_project: Mapping[str, Queue], hopeless: Callable[[Request], bool] | None, skip: Callable[[Request], bool] | None
    ) -> None:
        self._hopeless = hopeless
        self._skip = skip
        self._looked_again = 0
        self._current: tuple[_Branch, _Turn] | None = None
        branches: dict[int, _Branch] = {}
        for name, queue in by_project.items():
            account = queue.account
            branch = branches.setdefault(id(account.side), _Branch(account.side))
            walk = Walk(queue)
            head = self._seek(walk)
            if head:
                branch.heap.append((rank(account, head), name, _Turn(walk, head)))
        self._heap: list[tuple[Rank, str, _Branch]] = []
        for branch in branches.values():
            heapify(branch.heap)
            self._push(branch)

    def look_again(self) -> None:
        """What was hopeless may no longer be: it comes up again where its project goes on."""
        self._looked_again += 1

    def _seek(self, walk: Walk) -> Request | None:
        """Move to the next request that is not hopeless, if there is one."""
        hopeless, skip = self._hopeless, self._skip
        while request := walk.head:
            if hopeless is not None and hopeless(request):
                walk.pass_group()
            elif skip is not None and skip(request):
                walk.skip_while(skip)
            else:
                return request
        return None

    def _push(self, branch: _Branch) -> None:
        if branch.heap:
            head_rank, _, turn = branch.heap[0]
            own = head_rank if branch.account is turn.walk.account else rank(branch.account, turn.head)
            heappush(self._heap, (own, branch.account.name, branch))

    def __iter__(self) -> Line:
        return self

    def __next__(self) -> Request:
        """The next request; ranks are taken anew from the sums as they stand."""
        if self._current:
            branch, turn = self._current
            self._go_on(branch, turn)
            self._push(branch)
            self._current = None
        if not self._heap:
            raise StopIteration
        _, _, branch = heappop(self._heap)
        _, _, turn = heappop(branch.heap)
        self._current = (branch, turn)
        return turn.head

    def _go_on(self, branch: _Branch, turn: _Turn) -> None:
        turn.walk.advance()
        if turn.looked_again != self._looked_again:
            turn.looked_again = self._looked_again
            turn.walk.look_again()
        head = self._seek(turn.walk)
        if head:
            turn.head = head
            heappush(branch.heap, (rank(turn.walk.account, head), turn.walk.account.name, turn))
