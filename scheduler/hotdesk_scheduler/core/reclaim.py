"""Reclaim: a project takes back from others what is its own (scheduling.md 4).

The theory: who gains ends within his allocatable share; who loses was above his; quota yields only to quota. Two projects are
compared where their branches part. That, and not priorities between workloads, is what keeps two projects from stopping each
other's work in turns.

    4 GPUs; A: quota 2, runs T1 and T2; B: quota 2, runs T1 and asks T1
    A holds 3 > 2, B ends at 2 <= 2  ->  A's T1 stops: an exact fit; T2 would overshoot
"""

from __future__ import annotations

from collections.abc import Iterator

from hotdesk_scheduler.core import limits, stops
from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.choice import Loser, Search, Tally, Units, larger, may_go
from hotdesk_scheduler.core.greedy import choose
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.model import PodRequest
from hotdesk_scheduler.core.offers import Offers
from hotdesk_scheduler.core.order import ratio
from hotdesk_scheduler.core.quantities import GPU, UNLIMITED
from hotdesk_scheduler.core.requests import Request, Requests
from hotdesk_scheduler.core.turns import take_turns
from hotdesk_scheduler.core.victims import Pools, Unit


def branches(mine: Account, theirs: Account) -> tuple[Account, Account]:
    """Where two projects are compared: as projects of one department, else department with department."""
    if mine.parent is not None and mine.parent is theirs.parent:
        return mine, theirs
    return mine.side, theirs.side


class ReclaimRules:
    """The rules for one request, on the ledger as it stands."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.account = request.account
        self._badness: dict[str, tuple[int, ...]] = {}
        self._paths: dict[str, tuple[Account, ...]] = {}

    def may_ask(self) -> bool:
        """Within its allocatable share with the request; non-preemptible within quota."""
        return limits.stays_within_share(self.request) and limits.over_fixed_quota(self.request) is None

    def ends(self, side: Account, freed: dict[int, list[int]]) -> list[int]:
        """What the reclaimer's side holds after the request started and its own victims stopped."""
        back = freed.get(id(side), (0, 0, 0))
        return [side.allocated[r] + self.request.ask[r] - back[r] for r in range(3)]

    def could_lose(self, project: Account) -> bool:
        """Whether anything of this project may be a victim at all."""
        mine, theirs = branches(self.account, project)
        ends = self.ends(mine, {})
        checked = [(a, a.quota if all(ends[r] <= mine.quota[r] for r in self.request.asked) else a.share) for a in _path(project, theirs)]
        return all(any(a.allocated[r] > least[r] for r in self.request.asked) for a, least in checked)

    def legal(self, units: Units) -> bool:
        freed: dict[int, list[int]] = {}
        victims: dict[int, tuple[Account, list[Unit]]] = {}
        for unit in units:
            for account in unit.account.path:
                sums = freed.setdefault(id(account), [0, 0, 0])
                for r in range(3):
                    sums[r] += unit.amount[r]
                victims.setdefault(id(account), (account, []))[1].append(unit)
        if not self._within_limits(freed):
            return False
        compared: dict[int, tuple[Account, bool]] = {}
        for project in {id(unit.account): unit.account for unit in units}.values():
            mine, theirs = branches(self.account, project)
            ends = self.ends(mine, freed)
            if any(ends[r] > mine.share[r] for r in self.request.asked):
                return False
            by_quota = all(ends[r] <= mine.quota[r] for r in self.request.asked)
            for account in _path(project, theirs):
                if id(account) not in compared:
                    compared[id(account)] = (account, by_quota)
        return all(self._may_lose(account, victims[id(account)][1], by_quota) for account, by_quota in compared.values())

    def more(self, tally: Tally, units: Units) -> bool:
        """Judged on the sums alone; the whole set is judged once more in the end."""
        largest = dict(tally.largest)
        tally.add(units)
        for project in {id(unit.account): unit.account for unit in units}.values():
            mine, theirs = branches(self.account, project)
            allocated, back = tally.allocated[id(mine)], tally.freed.get(id(mine), (0, 0, 0))
            ends = [allocated[r] + self.request.ask[r] - back[r] for r in range(3)]
            by_quota = all(ends[r] <= mine.quota[r] for r in self.request.asked)
            if not all(self._may_lose_sum(account, tally, by_quota) for account in _path(project, theirs)):
                tally.add(units, -1)
                tally.largest = largest
                return False
        return True

    def _may_lose_sum(self, account: Account, tally: Tally, by_quota: bool) -> bool:
        allocated, freed, largest = tally.allocated[id(account)], tally.freed[id(account)], tally.largest[id(account)]
        least = account.quota if by_quota else account.share
        asked = self.request.asked
        if not any(allocated[r] - freed[r] + largest[r] > least[r] for r in asked if freed[r]):
            return False
        return by_quota or all(allocated[r] - freed[r] >= account.quota[r] for r in asked if freed[r] and account.quota[r] < UNLIMITED)

    def _within_limits(self, freed: dict[int, list[int]]) -> bool:
        for account in self.account.path:
            ends = self.ends(account, freed)
            if any(ends[r] > account.limit[r] for r in self.request.asked):
                return False
        return True

    def _may_lose(self, account: Account, victims: list[Unit], by_quota: bool) -> bool:
        """The account stays above what it must be above until its last victim, the largest; beyond quota nobody's quota is touched."""
        asked = self.request.asked
        least = account.quota if by_quota else account.share
        holds = list(account.allocated)
        for unit in sorted(victims, key=larger) if len(victims) > 1 else victims:
            if not any(holds[r] > least[r] and unit.amount[r] for r in asked):
                return False
            for r in range(3):
                holds[r] -= unit.amount[r]
        if by_quota:
            return True
        return all(holds[r] >= account.quota[r] or holds[r] == account.allocated[r] for r in asked if account.quota[r] < UNLIMITED)

    def pushes(self, units: Units) -> bool:
        """Asked of every set that is looked at."""
        for r in self.request.asked:
            freed: dict[int, int] = {}
            for unit in units:
                amount = unit.amount[r]
                for account in self._losing(unit.account) if amount else ():
                    freed[id(account)] = back = freed.get(id(account), 0) + amount
                    if account.allocated[r] - back < account.share[r] < UNLIMITED:
                        return True
        return False

    def _losing(self, project: Account) -> tuple[Account, ...]:
        """The accounts from a victim's project up to where the branches part."""
        found = self._paths.get(project.name)
        if found is None:
            found = self._paths[project.name] = _path(project, branches(self.account, project)[1])
        return found

    def badness(self, unit: Unit) -> tuple[int, ...]:
        """Most over-served first, where the branches part, then below; ties: the younger pays."""
        name = unit.account.name
        if name not in self._badness:
            over = tuple(-self._over(account) for account in reversed(self._losing(unit.account)))
            self._badness[name] = (*over, *([0] * (2 - len(over))), -unit.account.seniority)
        return self._badness[name]

    def _over(self, account: Account) -> int:
        return max((ratio(account.allocated[r], account.share[r]) for r in self.request.asked if account.share[r] < UNLIMITED), default=0)


def _path(project: Account, side: Account) -> tuple[Account, ...]:
    """The accounts from the project up to where the branches part."""
    return (project,) if side is project else (project, side)


def reclaim(ledger: Ledger, requests: Requests, pools: Pools) -> None:
    """Start, in order, what its project may take back from others."""
    take_turns(ledger, requests, pools, lambda request: _reclaim_for(ledger, request, pools), alike=lambda r: (r.account.name, r.shape))


def _reclaim_for(ledger: Ledger, request: Request, pools: Pools) -> bool:
    found = victims_for(ledger, request, pools)
    if found is None:
        return False
    search, chosen = found
    stops.commit_reclaim(search, chosen)
    pools.stopped_for(request.workload)
    pools.skip_gone({unit.account.name for unit in chosen})
    return True


def victims_for(ledger: Ledger, request: Request, pools: Pools) -> tuple[Search, list[Unit]] | None:
    """Whom other projects would have to stop for it; the search knows whether others are to be moved as well."""
    rules = ReclaimRules(request)
    if not rules.may_ask():
        return None
    losers = _losers(ledger, request, rules, pools)
    if not losers or not _enough_could_go(ledger, request, rules, losers=losers, pools=pools):
        return None
    search = Search(ledger, request, rules)
    search.losers = [_loser(search, account, pools) for account in losers]
    chosen = choose(search, _units(search, losers, pools), may_move=not request.surplus)
    if chosen is None and ledger.policy.min_runtime_s:
        search.losers = ()
        stops.note_protection(ledger, request, choose(search, _units(search, losers, pools, protect=False), may_move=False))
    return (search, chosen) if chosen else None


def _losers(ledger: Ledger, request: Request, rules: ReclaimRules, pools: Pools) -> list[Account]:
    """Projects that could lose something, the most over-served first."""
    found: list[tuple[tuple[int, ...], Account]] = []
    for account in ledger.projects.values():
        if account is not request.account and rules.could_lose(account):
            unit = next(pools.of(account.name), None)
            if unit:
                found.append((rules.badness(unit), account))
    return [account for _, account in sorted(found, key=lambda entry: entry[0])]


def _units(search: Search, losers: list[Account], pools: Pools, *, protect: bool = True) -> Iterator[Unit]:
    """Their units in order of preference."""
    for account in losers:
        for unit in pools.of(account.name):
            if may_go(search, unit, protect=protect):
                yield unit


def _loser(search: Search, account: Account, pools: Pools) -> Loser:
    def offers(request: PodRequest) -> Offers:
        asked, eligible = search.request.asked, search.request.eligible
        return pools.offers.of(account.name, request, eligible, lambda unit: may_go(search, unit), asked)

    return Loser(offers, pools.has_started(account.name))


def _enough_could_go(ledger: Ledger, request: Request, rules: ReclaimRules, *, losers: list[Account], pools: Pools) -> bool:
    """A bound that proves most impossible requests at once: what is free and what all could lose together is less than asked."""
    if request.pods[0].request.gpu.whole == 0:
        return True
    nodes = ledger.index.later
    bound = sum(count * len(bucket) for count, bucket in enumerate(nodes.buckets)) * 1000
    bound += 1000 * sum(len(groups) for groups in ledger.index.later_groups.buckets.values())
    if bound >= request.ask[GPU]:
        return True
    for account in losers:
        mine, _ = branches(rules.account, account)
        ends = rules.ends(mine, {})
        by_quota = mine is not rules.account or all(ends[r] <= mine.quota[r] for r in request.asked)
        least = account.quota[GPU] if by_quota else account.share[GPU]
        largest = pools.largest(account.name)
        bound += max(0, account.allocated[GPU] - least - 1) + largest
        if bound >= request.ask[GPU]:
            return True
    return False
