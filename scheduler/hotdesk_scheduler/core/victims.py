"""What could be stopped for another: preemptible workloads whole, or the surplus pods of elastic ones, highest index first.

Units of one workload form a chain: a unit can only be taken with those before it (surplus pods first, then the rest).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.ledger import Ledger, Seat
from hotdesk_scheduler.core.model import PodState, Workload
from hotdesk_scheduler.core.offers import OfferBook
from hotdesk_scheduler.core.quantities import Vector, total
from hotdesk_scheduler.core.rooms import BOTH, LATER


@dataclass(slots=True, eq=False)
class Unit:
    """The least that can be stopped at a time. `seniority` grows with youth over all workloads of the cluster."""

    workload: Workload
    account: Account
    seats: tuple[Seat, ...]
    amount: Vector
    surplus: bool
    seniority: int
    before: Unit | None
    started_now: bool

    @property
    def preference(self) -> tuple[bool, int, bool, int, int, int]:
        """Inside one project: what this plan started, low priority, surplus, small, young first."""
        gpu, cpu, _ = self.amount
        return (not self.started_now, self.workload.priority, not self.surplus, gpu, cpu, -self.seniority)

    def available(self, ledger: Ledger) -> bool:
        """Whether all of it still runs on the working copy."""
        for seat in self.seats:
            table = ledger.nominated if seat.rooms == LATER else ledger.seats
            if table.get((seat.workload.id, seat.pod.index)) is not seat:
                return False
        return True

    def chain(self, ledger: Ledger) -> list[Unit]:
        """This unit and those that have to go before it and still run."""
        found = [self]
        unit = self.before
        while unit is not None:
            if unit.available(ledger):
                found.append(unit)
            unit = unit.before
        return found[::-1]

    def protected_until(self, ledger: Ledger) -> float | None:
        """Until when the minimum run time protects it; surplus pods are not protected (scheduling.md 4, limits)."""
        least = ledger.policy.min_runtime_s
        if not least or self.surplus or self.started_now:
            return None
        since = min((seat.pod.started_at for seat in self.seats if seat.pod.started_at is not None), default=None)
        return since + least if since is not None and since + least > ledger.now else None


@dataclass(slots=True, eq=False)
class Row:
    """Units in order of preference; `first` is the first that may still run."""

    units: list[Unit] = field(default_factory=list)
    first: int = 0

    def add(self, unit: Unit) -> None:
        at = bisect_right(self.units, unit.preference, key=_preference)
        self.units.insert(at, unit)
        self.first = min(self.first, at)

    def without(self, workload: Workload) -> None:
        self.units = [unit for unit in self.units if unit.workload is not workload]
        self.first = 0

    def skip_gone(self, ledger: Ledger) -> None:
        while self.first < len(self.units) and not self.units[self.first].available(ledger):
            self.first += 1

    def below(self, priority: int | None) -> Iterator[Unit]:
        """Those of lower priority (None: all), in order. All of a row were started by this plan, or none: lower priorities come first."""
        units = self.units
        end = len(units) if priority is None else bisect_left(units, priority, lo=self.first, key=_priority)
        return (units[i] for i in range(self.first, end))


_preference = attrgetter("preference")
_priority = attrgetter("workload.priority")


class Pools:
    """Units by project, each project's in order of preference: what this plan started, then what runs."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._built = False
        self._seniority: dict[str, int] = {}
        self._started: dict[str, Row] = {}
        self._running: dict[str, Row] = {}
        self._largest: dict[str, int] = {}
        self._seats: dict[str, list[Seat]] = {}
        self.offers = OfferBook(self)
        self.joined: defaultdict[str, list[Unit]] = defaultdict(list)
        """Units that came later, by project."""
        self.remade: Counter[str] = Counter()
        """How often units of a project have gone or are no longer to be stopped, other than by being stopped."""

    def _build(self) -> None:
        """Only when somebody may take something from others: mostly nobody may."""
        self._built = True
        ledger = self.ledger
        ordered = sorted(ledger.snapshot.workloads, key=lambda w: (w.created_at, w.name, w.id))
        self._seniority = {workload.id: i for i, workload in enumerate(ordered)}
        for seat in ledger.seats.values():
            if seat.rooms == BOTH and seat.workload.preemptible:
                self._seats.setdefault(seat.workload.id, []).append(seat)
        for seat in ledger.nominated.values():
            if seat.workload.preemptible and self._may_be_given_up(seat):
                self._seats.setdefault(seat.workload.id, []).append(seat)
        for seats in self._seats.values():
            for unit in self._units_of(seats):
                self._row(unit).units.append(unit)
                self._measure(unit)
        for row in (*self._started.values(), *self._running.values()):
            row.units.sort(key=_preference)

    def _row(self, unit: Unit) -> Row:
        rows = self._started if unit.started_now else self._running
        row = rows.get(unit.workload.project)
        if row is None:
            row = rows[unit.workload.project] = Row()
        return row

    def _measure(self, unit: Unit) -> None:
        project = unit.workload.project
        if unit.amount[0] > self._largest.get(project, 0):
            self._largest[project] = unit.amount[0]

    def _may_be_given_up(self, seat: Seat) -> bool:
        """A place kept since an earlier plan is not taken back (others stopped for it), but it goes with the rest of its workload."""
        return seat.pod.nominated is None or seat.workload.id in self._seats

    def _units_of(self, seats: list[Seat]) -> Iterator[Unit]:
        workload = seats[0].workload
        account = self.ledger.projects.get(workload.project)
        if account is None or not self._may_go(workload):
            return
        if len(workload.pods) == 1:
            yield self._unit(account, tuple(seats), surplus=False, before=None)
            return
        seats = sorted(seats, key=lambda seat: (seat.rooms == LATER, seat.pod.index))
        done = sum(pod.state is PodState.SUCCEEDED for pod in workload.pods)
        least = max(1, workload.min_pods - done)
        before: Unit | None = None
        while len(seats) > least:
            before = self._unit(account, (seats.pop(),), surplus=True, before=before)
            yield before
        yield self._unit(account, tuple(seats), surplus=False, before=before)

    def _may_go(self, workload: Workload) -> bool:
        """Not who has others stopped or moved for it by this plan, nor who was moved himself."""
        return workload.id not in self.ledger.beneficiaries and workload.id not in self.ledger.moved

    def _unit(self, account: Account, seats: tuple[Seat, ...], *, surplus: bool, before: Unit | None) -> Unit:
        workload = seats[0].workload
        return Unit(
            workload=workload,
            account=account,
            seats=seats,
            amount=seats[0].amount if len(seats) == 1 else total([seat.amount for seat in seats]),
            surplus=surplus,
            seniority=self._seniority[workload.id],
            before=before,
            started_now=all(seat.started_now or seat.rooms == LATER for seat in seats),
        )

    def add(self, workload: Workload) -> None:
        """Something this step started, or keeps a place for; units it had before are made anew."""
        if not self._built or not workload.preemptible:
            return
        ledger = self.ledger
        keys = [(workload.id, pod.index) for pod in workload.pods]
        seats = [seat for key in keys if (seat := ledger.seats.get(key)) and seat.rooms == BOTH]
        seats += [seat for key in keys if (seat := ledger.nominated.get(key)) and self._may_be_given_up(seat)]
        if workload.id in self._seats:
            self.remade[workload.project] += 1
            for row in self._rows(workload.project):
                row.without(workload)
        self._seats[workload.id] = seats
        for unit in self._units_of(seats) if seats else ():
            self._row(unit).add(unit)
            self._measure(unit)
            self.joined[workload.project].append(unit)

    def _rows(self, project: str) -> list[Row]:
        return [rows[project] for rows in (self._started, self._running) if project in rows]

    def of(self, project: str, *, below: int | None = None) -> Iterator[Unit]:
        """Units of the project that still run, in order of preference; with `below` only those of lower priority."""
        if not self._built:
            self._build()
        ledger = self.ledger
        for row in self._rows(project):
            for unit in row.below(below):
                if self._may_go(unit.workload) and unit.available(ledger):
                    yield unit

    def all_of(self, project: str) -> Iterator[Unit]:
        """Those of the project in order of preference, also if they are gone: a try may have stopped them."""
        return (unit for row in self._rows(project) for unit in row.units)

    def runs(self, unit: Unit) -> bool:
        """Whether it still does, and may be stopped."""
        return unit.available(self.ledger) and self._may_go(unit.workload)

    def has_started(self, project: str) -> bool:
        """Whether this plan started any of the project's units."""
        return project in self._started

    def stopped_for(self, workload: Workload) -> None:
        """Others stop for it: what it has running is not stopped by this plan."""
        if workload.id in self._seats:
            self.remade[workload.project] += 1

    def largest(self, project: str) -> int:
        """GPU thousandths of the project's largest unit (an upper bound: also of one that is gone)."""
        return self._largest.get(project, 0)

    def skip_gone(self, projects: Iterable[str]) -> None:
        """After stops that stand: do not look at the gone ones at the head again."""
        for project in projects:
            for row in self._rows(project):
                row.skip_gone(self.ledger)
