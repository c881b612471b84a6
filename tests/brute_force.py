"""The rules of reclaim and preempt once more, as plainly and slowly as possible: every set of victims, every way to place the pods.

Written from scheduling.md 4 alone, so that the search in `core/choice` has something to be compared with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.choice import Search
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.model import WHOLE_GPU, Pod
from hotdesk_scheduler.core.preempt import PreemptRules
from hotdesk_scheduler.core.quantities import UNLIMITED
from hotdesk_scheduler.core.reclaim import ReclaimRules
from hotdesk_scheduler.core.requests import Request
from hotdesk_scheduler.core.rooms import Spot
from hotdesk_scheduler.core.victims import Pools, Unit

Set = list[Unit]
Key = tuple[object, ...]
FEW_UNITS = 9


# --- who may be stopped ----------------------------------------------------------------------------------------------------------------


@dataclass
class Reclaim:
    """Taking from other projects."""

    request: Request

    def victims(self, ledger: Ledger, pools: Pools) -> Set:
        return [u for name in sorted(ledger.projects) if name != self.request.account.name for u in pools.of(name)]

    def is_legal(self, chosen: Set) -> bool:
        me, asked = self.request.account, self.request.asked
        if any(me.allocated[r] + self.request.ask[r] > me.share[r] for r in asked):
            return False
        if any(self._after(a, chosen)[r] > a.limit[r] for a in me.path for r in asked):
            return False
        if self.request.fixed and any(a.fixed[r] + self.request.ask[r] > a.quota[r] for a in me.path for r in asked):
            return False
        return all(self._may_lose(victim, chosen) for victim in chosen)

    def _may_lose(self, victim: Unit, chosen: Set) -> bool:
        """The side and the project of this victim are both above what they must be above, until the last of theirs, the largest."""
        asked = self.request.asked
        mine, theirs = self.sides(victim)
        ends = self._after(mine, chosen)
        if any(ends[r] > mine.share[r] for r in asked):
            return False
        within_quota = all(ends[r] <= mine.quota[r] for r in asked)
        for account in {id(a): a for a in (victim.account, theirs)}.values():
            theirs_of_it = sorted((u for u in chosen if account in u.account.path), key=lambda u: u.amount)
            holds = list(account.allocated)
            for unit in theirs_of_it:
                above = account.quota if within_quota else account.share
                if not any(holds[r] > above[r] and unit.amount[r] for r in asked):
                    return False
                holds = [amount - part for amount, part in zip(holds, unit.amount, strict=True)]
            pushed = [r for r in asked if account.quota[r] < UNLIMITED and holds[r] < account.quota[r] and holds[r] < account.allocated[r]]
            if pushed and not within_quota:
                return False
        return True

    def sides(self, victim: Unit) -> tuple[Account, Account]:
        """Where the branches part."""
        me, other = self.request.account, victim.account
        if me.parent and me.parent is other.parent:
            return me, other
        return me.parent or me, other.parent or other

    def _after(self, account: Account, chosen: Set) -> list[int]:
        return [
            account.allocated[r] + self.request.ask[r] - sum(u.amount[r] for u in chosen if account in u.account.path) for r in range(3)
        ]

    def pushes(self, chosen: Set) -> bool:
        for unit in chosen:
            for account in (unit.account, self.sides(unit)[1]):
                for r in self.request.asked:
                    left = account.allocated[r] - sum(u.amount[r] for u in chosen if account in u.account.path)
                    if left < account.allocated[r] and left < account.share[r] < UNLIMITED:
                        return True
        return False

    def least_over_served(self, chosen: Set) -> Key:
        """Of the least over-served victim: the larger its side's and its project's allocated / share, the better; then the younger pays."""
        return max(self._served(unit) for unit in chosen)

    def _served(self, unit: Unit) -> tuple[float, float, int]:
        theirs = self.sides(unit)[1]
        below = 0.0 if theirs is unit.account else -self._over(unit.account)
        return -self._over(theirs), below, -unit.account.seniority

    def _over(self, account: Account) -> float:
        return max(
            (account.allocated[r] / (account.share[r] or 1) for r in self.request.asked if account.share[r] < UNLIMITED), default=0.0
        )

    def search(self, ledger: Ledger) -> Search:
        return Search(ledger, self.request, ReclaimRules(self.request))


@dataclass
class Preempt:
    """Less important work of one's own project."""

    request: Request

    def victims(self, ledger: Ledger, pools: Pools) -> Set:
        return [u for u in pools.of(self.request.account.name) if u.workload.priority < self.request.workload.priority]

    def is_legal(self, chosen: Set) -> bool:
        for account in self.request.account.path:
            for r in self.request.asked:
                ends = account.allocated[r] + self.request.ask[r] - sum(u.amount[r] for u in chosen)
                if ends > account.limit[r] or ends > max(account.allocated[r], account.share[r]):
                    return False
                if self.request.fixed and account.fixed[r] + self.request.ask[r] > account.quota[r]:
                    return False
        return True

    def pushes(self, chosen: Set) -> bool:
        return False

    def least_over_served(self, chosen: Set) -> Key:
        return (0,)

    def search(self, ledger: Ledger) -> Search:
        return Search(ledger, self.request, PreemptRules(self.request))


Rules = Reclaim | Preempt


# --- every set -------------------------------------------------------------------------------------------------------------------------


def sets(units: Sequence[Unit]) -> Iterator[Set]:
    """All sets but the empty one, surplus pods before the rest of their workload."""
    for bits in product((False, True), repeat=len(units)):
        chosen = [unit for unit, taken in zip(units, bits, strict=True) if taken]
        if chosen and all(unit.before is None or unit.before in chosen for unit in chosen):
            yield chosen


def key(rules: Rules, chosen: Set, *, moves: bool) -> Key:
    """Smallest set sufficient: the order of scheduling.md 4."""
    return (
        any(not unit.started_now for unit in chosen),
        rules.pushes(chosen),
        moves,
        rules.least_over_served(chosen),
        max(unit.workload.priority for unit in chosen),
        any(not unit.surplus for unit in chosen),
        sum(unit.amount[0] for unit in chosen),
        sum(unit.amount[1] for unit in chosen),
        sorted((-unit.seniority for unit in chosen), reverse=True),
    )


def candidates(rules: Rules, ledger: Ledger, pools: Pools) -> Set:
    """Who may be stopped by himself: holds something that is asked for, and is not protected by the minimum run time."""
    asked = rules.request.asked
    units = [u for u in rules.victims(ledger, pools) if any(u.amount[r] for r in asked) and u.protected_until(ledger) is None]
    return [u for u in units if u.before is None or u.before in units]


# --- every place -----------------------------------------------------------------------------------------------------------------------


@dataclass
class Board:
    """What one node has left."""

    gpus: int
    cpu_millis: int
    memory_mib: int
    pods: int
    shared: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, spot: Spot) -> Board:
        room = spot.later
        return cls(room.free_gpus, room.cpu_millis, room.memory_mib, room.pods, dict(room.groups))

    def options(self, pod: Pod) -> Iterator[Board]:
        """What it has left after the pod, for every way to put it there."""
        gpu = pod.request.gpu
        cpu, memory, pods = self.cpu_millis - pod.request.cpu_millis, self.memory_mib - pod.request.memory_mib, self.pods - 1
        if min(cpu, memory, pods) < 0:
            return
        if not gpu.millis:
            if self.gpus >= gpu.whole:
                yield Board(self.gpus - gpu.whole, cpu, memory, pods, self.shared)
            return
        for name, used in self.shared.items():
            if used + gpu.millis <= WHOLE_GPU:
                yield Board(self.gpus, cpu, memory, pods, {**self.shared, name: used + gpu.millis})
        if self.gpus:
            yield Board(self.gpus - 1, cpu, memory, pods, {**self.shared, f"new{len(self.shared)}": gpu.millis})


def has_room(boards: dict[int, Board], pods: Sequence[Pod]) -> bool:
    """Whether some way to place all of them exists."""
    if not pods:
        return True
    return any(has_room({**boards, order: after}, pods[1:]) for order, board in boards.items() for after in board.options(pods[0]))


def makes_room(ledger: Ledger, request: Request, chosen: Set) -> bool:
    checkpoint = ledger.checkpoint()
    for unit in chosen:
        for seat in unit.seats:
            ledger.vacate(seat)
    boards = {spot.order: Board.of(spot) for spot in ledger.spots if spot.node.ready and spot.order in request.eligible}
    ledger.rollback(checkpoint)
    return has_room(boards, request.pods)


def best(rules: Rules, ledger: Ledger, pools: Pools, *, may_move: bool) -> tuple[Key, Set] | None:
    """The first of all sets that are legal and make room, with its key; moves are tried as consolidate tries them."""
    units = candidates(rules, ledger, pools)
    legal = [chosen for chosen in sets(units) if rules.is_legal(chosen)]
    found: list[tuple[Key, Set]] = [(key(rules, c, moves=False), c) for c in legal if makes_room(ledger, rules.request, c)]
    if may_move:
        search = rules.search(ledger)
        search.moves = True
        found += [(key(rules, c, moves=True), c) for c in legal if search.suffices(c)]
    return min(found, key=lambda entry: entry[0], default=None)
