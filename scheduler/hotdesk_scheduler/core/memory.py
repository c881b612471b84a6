"""What is kept from one cycle to the next, so that a small change costs little.

A plan is exactly that of a start from nothing, whatever is remembered: what the last cycle decided is taken back, workloads that are
not the same values as before are taken out and in, and the rest stands as it did. Where nodes or settings differ, or projects in more
than what they are entitled to, everything is built anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import is_, is_not

from hotdesk_scheduler.core import accounts
from hotdesk_scheduler.core.allocate import honour_nominations
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.model import Policy, Snapshot, Workload
from hotdesk_scheduler.core.requests import Requests

MOST_CHANGED = 4
"""If more than one workload in so many differs, building anew is cheaper."""


class Memory:
    """Belongs to one who decides again and again, and is handed to `decide` each time. It holds the working copy of the last cycle."""

    def __init__(self) -> None:
        self._kept: tuple[Ledger, Requests] | None = None

    @property
    def kept(self) -> tuple[Ledger, Requests] | None:
        """Working copy and queues after the last cycle: another value after each, None while one is going on."""
        return self._kept

    def forget(self) -> None:
        """Start from nothing next time."""
        self._kept = None

    def keep(self, ledger: Ledger, requests: Requests) -> None:
        """A cycle is over."""
        self._kept = (ledger, requests)

    def take_up(self, snapshot: Snapshot, policy: Policy, now: float) -> tuple[Ledger, Requests]:
        """Working copy and queues of this snapshot, kept places honoured. Until `keep`, nothing is remembered."""
        kept, self._kept = self._kept, None
        if kept is not None and _is_alike(kept[0], snapshot, policy):
            ledger, requests = kept
            changes = changed(ledger.snapshot.workloads, snapshot.workloads)
            if len(changes[0]) + len(changes[1]) <= len(snapshot.workloads) // MOST_CHANGED + MOST_CHANGED:
                _catch_up(ledger, requests, changes, snapshot, now)
                return kept
        ledger = Ledger(snapshot, policy, now)
        honour_nominations(ledger)
        return ledger, Requests(ledger)


def _is_alike(ledger: Ledger, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether only workloads differ, what projects are entitled to, and what is taken anew in every cycle."""
    before = ledger.snapshot
    same_accounts = accounts.same_tree(before.projects, snapshot.projects) and accounts.same_tree(before.departments, snapshot.departments)
    return same_accounts and before.nodes == snapshot.nodes and ledger.policy == policy


def _catch_up(ledger: Ledger, requests: Requests, changes: tuple[list[Workload], list[Workload]], snapshot: Snapshot, now: float) -> None:
    requests.close_cycle()
    ledger.close_cycle()
    if ledger.snapshot.projects != snapshot.projects or ledger.snapshot.departments != snapshot.departments:
        accounts.entitle(ledger.top, snapshot.departments, snapshot.projects)
    gone, new = changes
    for workload in gone:
        requests.take_out(workload)
        ledger.take_out(workload)
    for workload in new:
        ledger.take_in(workload)
        requests.take_in(workload)
    ledger.open_cycle(snapshot, now)
    honour_nominations(ledger)
    requests.open_cycle()


def changed(old: Sequence[Workload], new: Sequence[Workload]) -> tuple[list[Workload], list[Workload]]:
    """(gone, new): the values that are in one of them only. Equal ends are passed over fast: mostly one thing changes at a time."""
    same = list(map(is_, old, new))
    start = same.index(False) if False in same else len(same)
    same = list(map(is_, reversed(old[start:]), reversed(new[start:])))
    end = same.index(False) if False in same else len(same)
    old, new = old[start : len(old) - end], new[start : len(new) - end]
    if len(old) == len(new):  # mostly what is another value is still in its place
        other = list(map(is_not, old, new))
        old, new = list(compress(old, other)), list(compress(new, other))
    there, before = {id(workload) for workload in new}, {id(workload) for workload in old}
    return [w for w in old if id(w) not in there], [w for w in new if id(w) not in before]
