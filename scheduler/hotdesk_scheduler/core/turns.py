"""The walk that reclaim and preempt share: who waits, in order, each with the chance to have others stopped for it."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from hotdesk_scheduler.core import limits
from hotdesk_scheduler.core.allocate import fit, minimum_runs
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.order import Line
from hotdesk_scheduler.core.requests import Request, Requests, is_placed
from hotdesk_scheduler.core.victims import Pools


def take_turns(
    ledger: Ledger, requests: Requests, pools: Pools, take: Callable[[Request], bool], *, alike: Callable[[Request], Hashable]
) -> None:
    """Start what fits by then; else `take` may stop others for it, and says whether it did. Who is `alike` is asked once between stops."""
    freed = 0
    no_room: dict[int, int] = {}
    in_vain: dict[Hashable, int] = {}

    def hopeless(request: Request) -> bool:
        return in_vain.get(alike(request)) == freed

    line = Line(requests.by_project, hopeless, lambda request: is_placed(ledger, request))
    for request in line:
        if request.surplus and not minimum_runs(ledger, request):
            continue
        if no_room.get(request.shape) != freed and limits.may_start(request):
            if fit(ledger, request):
                pools.add(request.workload)
                continue
            no_room[request.shape] = freed
        if not may_evict(ledger, request):
            continue
        if take(request):
            freed += 1
            line.look_again()
        else:
            in_vain[alike(request)] = freed


def may_evict(ledger: Ledger, request: Request) -> bool:
    """A workload younger than the preemption delay may start on what is free, but evicts nobody."""
    return old_enough(ledger)(request)


def old_enough(ledger: Ledger) -> Callable[[Request], bool]:
    """`may_evict` by itself, for later."""
    delay, now = ledger.policy.preemption_delay_s, ledger.now
    return lambda request: not delay or request.workload.created_at + delay <= now
