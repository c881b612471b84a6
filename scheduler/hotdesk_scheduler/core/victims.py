"""What could be stopped for another: preemptible workloads whole, or the surplus pods of elastic ones, highest index first.

Units of one workload form a chain: a unit can only be taken with those before it (surplus pods first, then the rest).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.ledger import Ledger, Seat
from hotdesk_scheduler.core.model import PodState, Workload
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


class Pools:
    """Units by project, each project's in order of preference."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._built = False
        self._seniority: dict[str, int] = {}
        self._units: dict[str, list[Unit]] = {}
        self._largest: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._seats: dict[str, list[Seat]] = {}

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
                self._units.setdefault(unit.workload.project, []).append(unit)
        for units in self._units.values():
            units.sort(key=lambda unit: unit.preference)
        self._largest = {name: max(unit.amount[0] for unit in units) for name, units in self._units.items()}

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
        units = self._units.setdefault(workload.project, [])
        if workload.id in self._seats:
            units[:] = [unit for unit in units if unit.workload is not workload]
        self._seats[workload.id] = seats
        for unit in self._units_of(seats) if seats else ():
            insort(units, unit, key=lambda u: u.preference)
            self._largest[workload.project] = max(self._largest.get(workload.project, 0), unit.amount[0])
        self._first[workload.project] = 0

    def of(self, project: str) -> Iterator[Unit]:
        """Units of the project that still run, in order of preference."""
        if not self._built:
            self._build()
        units = self._units.get(project, ())
        ledger = self.ledger
        for i in range(self._first.get(project, 0), len(units)):
            unit = units[i]
            if self._may_go(unit.workload) and unit.available(ledger):
                yield unit

    def largest(self, project: str) -> int:
        """GPU thousandths of the project's largest unit (an upper bound: also of one that is gone)."""
        return self._largest.get(project, 0)

    def skip_gone(self, projects: Iterable[str]) -> None:
        """After stops that stand: do not look at the gone ones at the head again."""
        for project in projects:
            units = self._units.get(project, [])
            first = self._first.get(project, 0)
            while first < len(units) and not units[first].available(self.ledger):
                first += 1
            self._first[project] = first
