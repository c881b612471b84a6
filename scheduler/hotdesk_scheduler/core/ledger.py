"""The one mutable thing in the core: the working copy of a cycle, with incremental sums, checkpoint and rollback.

It knows where every pod sits, what every account is charged, and what this plan has decided so far. Every change goes through
`_change`, which logs its inverse, so that a step may try something and take it back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hotdesk_scheduler.core import accounts, shares
from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.eligible import Eligibility
from hotdesk_scheduler.core.model import (
    HOLDING,
    Mix,
    Phase,
    Placement,
    Pod,
    PodState,
    Policy,
    Snapshot,
    Workload,
)
from hotdesk_scheduler.core.plan import Act, Move, Nominate, Start, Stop
from hotdesk_scheduler.core.quantities import NOTHING, Vector, asked, held, plus
from hotdesk_scheduler.core.reasons import Reason
from hotdesk_scheduler.core.rooms import BOTH, LATER, NOW, Index, Spot
from hotdesk_scheduler.core.spare import Spare
from hotdesk_scheduler.core.stranded import Strands, prices

PodKey = tuple[str, int]


@dataclass(slots=True, eq=False)
class Seat:
    """Where a pod is on the working copy. `rooms` says in which rooms it is held: BOTH runs, NOW is going, LATER is nominated."""

    workload: Workload
    pod: Pod
    placement: Placement
    spot: Spot
    rooms: int
    amount: Vector
    started_now: bool = False
    """Started by this plan: can be taken back without stopping anything."""


class Ledger:
    """Working copy of one snapshot. Build it with `Ledger(snapshot, policy, now)`."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.now = now
        self.index = Index()
        self.spots = [Spot(node, i) for i, node in enumerate(sorted(snapshot.nodes, key=lambda n: n.name))]
        self.spot_of = {spot.node.name: spot for spot in self.spots}
        self.eligible_of = Eligibility([spot.node for spot in self.spots], snapshot.projects)
        self.smallest_gpu_mib = min((n.gpu_memory_mib for n in snapshot.nodes if n.gpus and n.ready), default=0)
        self.capacity = self._capacity()
        self.projects, self.top = accounts.build(snapshot.departments, snapshot.projects)
        self.workloads = {w.id: w for w in snapshot.workloads}
        self.seats: dict[PodKey, Seat] = {}
        self.nominated: dict[PodKey, Seat] = {}
        self.decisions: dict[tuple[str, int, str], Act] = {}
        self.beneficiaries: set[str] = set()
        self.moved: dict[str, bool] = {}
        self.protected: dict[tuple[str, int], tuple[float, tuple[str, ...]]] = {}
        self.releasing = 0
        self.with_places: dict[str, Workload] = {}
        """Workloads for which earlier plans kept places."""
        self.short_gangs: dict[str, Workload] = {}
        """Gangs of which too few are alive."""
        self.irregular: dict[str, Workload] = {}
        """Workloads of unknown projects, with failed pods, or of which some pods wait and others are being stopped or still to be made."""
        self.lowest: dict[str, int] = {}
        """A lower bound of the priorities of preemptible work that runs, by project: most preemptions are refused by it alone."""
        self.last: dict[str, tuple[float, int]] = {}
        """Bounds of what each project runs: when the youngest was created (never, if it has surplus pods), and the lowest priority."""
        self._priorities: Counter[tuple[str, int]] = Counter()
        """How many preemptible pods run, by project and priority."""
        self._log: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        for workload in snapshot.workloads:
            self._take(workload, 1)
        self.index.fill(self.spots)
        self.strands = self._strands(snapshot.mix)
        self._spare: Spare | None = None
        self.open_cycle(snapshot, now)

    # --- from one cycle to the next ------------------------------------------------------------------------------------------------

    def close_cycle(self) -> None:
        """As it was when the cycle opened: what the snapshot says, and nothing decided."""
        self.rollback(0)
        self.beneficiaries.clear()
        self.protected.clear()

    def take_in(self, workload: Workload) -> None:
        """One that is new, or as it is now."""
        self.workloads[workload.id] = workload
        self._take(workload, 1)

    def take_out(self, workload: Workload) -> None:
        """One that is gone, or as it was."""
        del self.workloads[workload.id]
        self._take(workload, -1)

    def open_cycle(self, snapshot: Snapshot, now: float) -> None:
        """All workloads are taken in."""
        if snapshot.mix is not self.snapshot.mix:
            self.strands = self._strands(snapshot.mix)
        self.snapshot, self.now = snapshot, now
        self.lowest = {}
        for (name, priority), count in self._priorities.items():
            if count:
                self.lowest[name] = min(priority, self.lowest.get(name, priority))
        shares.assign(self.top, self.capacity, shares.past(snapshot.usage, self.policy.history_weight))

    def _strands(self, mix: Mix | None) -> Strands | None:
        found = prices(mix, self.smallest_gpu_mib) if mix and self.policy.placement == "binpack" else None
        return Strands(found, self.spots, self.index) if found else None

    def weights_now(self) -> tuple[tuple[str, int], ...]:
        """Over-quota weights of projects as past use leaves them; none where it does not count."""
        return tuple(sorted((name, a.weight_now) for name, a in self.projects.items() if a.weight_now is not None))

    @property
    def spare(self) -> Spare:
        """Where CPU-only work goes."""
        if self._spare is None:
            self._spare = Spare(self.spots, self.index, spread=self.policy.placement == "spread")
        return self._spare

    def keep_room_for(self, mix: Mix | None) -> None:
        """Place for this mix of requests from now on."""
        self.strands = self._strands(mix)

    def _capacity(self) -> Vector:
        ready = [s.node for s in self.spots if s.node.ready]
        return (
            sum(max(0, n.gpus * 1000 - n.foreign.gpu_millis) for n in ready),
            sum(max(0, n.cpu_millis - n.foreign.cpu_millis) for n in ready),
            sum(max(0, n.memory_mib - n.foreign.memory_mib) for n in ready),
        )

    def _take(self, workload: Workload, sign: int) -> None:
        """Take a workload in (sign 1) or out (-1): sums, rooms and seats as its pods say."""
        account = self.projects.get(workload.project)
        fixed = not workload.preemptible
        active = workload.phase is Phase.ACTIVE
        wanted = NOTHING
        for pod in workload.pods:
            if pod.state is PodState.PENDING and pod.nominated is None:
                if active:
                    amount = asked(pod.request, self.smallest_gpu_mib)
                    wanted = amount if wanted is NOTHING else plus(wanted, amount)
                continue
            if pod.state in HOLDING and pod.placement:
                leaving = pod.state is PodState.RELEASING or not active
                amount = self._sit(workload, pod, pod.placement, NOW if leaving else BOTH, sign)
                if not leaving:
                    wanted = plus(wanted, amount)
                    if account:
                        account.charge(amount, fixed, sign)
            if not active:
                continue
            if pod.nominated and pod.state in (PodState.PENDING, PodState.RELEASING) and pod.nominated.node in self.spot_of:
                amount = self._sit(workload, pod, pod.nominated, LATER, sign)
                wanted = plus(wanted, amount)
                if account:
                    account.charge(amount, fixed, sign)
            elif pod.state is PodState.PENDING:  # nominated to a node that is no more
                wanted = plus(wanted, asked(pod.request, self.smallest_gpu_mib))
        if account:
            account.want(wanted, sign)
        self._list(workload, account, sign)

    def _list(self, workload: Workload, account: Account | None, sign: int) -> None:
        """In the lists of the few that are asked about one by one."""
        pods = workload.pods
        if account and workload.min_pods <= 1 and _is_plain(pods):
            return
        states = {pod.state for pod in pods}
        waits, to_be_made = PodState.PENDING in states, len(pods) < workload.min_pods
        for listed, table in (
            (any((workload.id, pod.index) in self.nominated for pod in pods), self.with_places),
            (workload.short_of_gang_since is not None and workload.min_pods > 1, self.short_gangs),
            (PodState.FAILED in states or (waits and (account is None or PodState.RELEASING in states or to_be_made)), self.irregular),
        ):
            if listed and sign > 0:
                table[workload.id] = workload
            else:
                table.pop(workload.id, None)

    def _sit(self, workload: Workload, pod: Pod, placement: Placement, rooms: int, sign: int) -> Vector:
        amount = held(pod.request, placement)
        spot = self.spot_of.get(placement.node)
        if spot is None:
            return amount
        spot.change(rooms, placement, pod.request, sign)
        table = self.nominated if rooms == LATER else self.seats
        if sign > 0:
            table[workload.id, pod.index] = Seat(workload, pod, placement, spot, rooms, amount)
        else:
            del table[workload.id, pod.index]
        if rooms != LATER:
            self.releasing += sign * (rooms == NOW)
            if workload.preemptible:
                self._priorities[workload.project, workload.priority] += sign
        if sign > 0:
            self._bound(workload)
        return amount

    def _bound(self, workload: Workload) -> None:
        created_at = workload.created_at if len(workload.pods) <= workload.min_pods else float("inf")
        last = self.last.get(workload.project)
        if last is None or created_at > last[0] or workload.priority < last[1]:
            youngest, least = last or (created_at, workload.priority)
            self.last[workload.project] = (max(youngest, created_at), min(least, workload.priority))
        if workload.preemptible and workload.priority < self.lowest.get(workload.project, workload.priority + 1):
            self.lowest[workload.project] = workload.priority

    def tighten_bounds(self) -> None:
        """Who has left by now no longer counts in `last`: over many warm cycles it would tell less and less."""
        self.last = {}
        for workload in {id(s.workload): s.workload for table in (self.seats, self.nominated) for s in table.values()}.values():
            self._bound(workload)

    # --- changes -----------------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> int:
        return len(self._log)

    def rollback(self, checkpoint: int) -> None:
        """Take back everything since the checkpoint."""
        log = self._log
        while len(log) > checkpoint:
            inverse, arguments = log.pop()
            inverse(*arguments)

    def _room(self, spot: Spot, rooms: int, placement: Placement, pod: Pod, sign: int) -> None:
        spot.change(rooms, placement, pod.request, sign)
        self._log.append((spot.change, (rooms, placement, pod.request, -sign)))

    def _charge(self, workload: Workload, amount: Vector, sign: int) -> None:
        account = self.projects.get(workload.project)
        if account:
            account.charge(amount, not workload.preemptible, sign)
            self._log.append((account.charge, (amount, not workload.preemptible, -sign)))

    def _set(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        """Set or (None) remove an entry, logging the inverse."""
        old = table.get(key)
        self._log.append((_restore, (table, key, old)))
        _restore(table, key, value)

    def start(self, workload: Workload, pod: Pod, placement: Placement) -> None:
        """Start a pending pod there now; it must fit in both rooms."""
        spot = self.spot_of[placement.node]
        amount = held(pod.request, placement)
        self._room(spot, BOTH, placement, pod, 1)
        self._charge(workload, amount, 1)
        self._seat_started(workload, pod, placement, spot, amount)

    def _seat_started(self, workload: Workload, pod: Pod, placement: Placement, spot: Spot, amount: Vector) -> None:
        key = (workload.id, pod.index)
        self._bound(workload)
        self._set(self.seats, key, Seat(workload, pod, placement, spot, BOTH, amount, started_now=True))
        self._set(self.decisions, (*key, "start"), Start(workload.id, pod.index, placement))

    def start_nominated(self, seat: Seat) -> None:
        """Start a pod at the place it was nominated for; it must fit in `now` (it is in `later` and charged already)."""
        self._room(seat.spot, NOW, seat.placement, seat.pod, 1)
        self._set(self.nominated, (seat.workload.id, seat.pod.index), None)
        self._seat_started(seat.workload, seat.pod, seat.placement, seat.spot, seat.amount)

    def nominate(self, workload: Workload, pod: Pod, placement: Placement) -> None:
        """Keep a place for a pod until what is being released there is gone; it counts as allocated."""
        spot = self.spot_of[placement.node]
        amount = held(pod.request, placement)
        key = (workload.id, pod.index)
        self._bound(workload)
        self._room(spot, LATER, placement, pod, 1)
        self._charge(workload, amount, 1)
        self._set(self.nominated, key, Seat(workload, pod, placement, spot, LATER, amount))
        self._set(self.decisions, (*key, "nominate"), Nominate(workload.id, pod.index, placement))

    def give_up_nomination(self, seat: Seat) -> None:
        key = (seat.workload.id, seat.pod.index)
        self._room(seat.spot, LATER, seat.placement, seat.pod, -1)
        self._charge(seat.workload, seat.amount, -1)
        self._set(self.nominated, key, None)
        # whatever this plan tried before: a place that is on record is given back, any other was never told
        self._set(self.decisions, (*key, "nominate"), Nominate(*key, None) if seat.pod.nominated else None)

    def vacate(self, seat: Seat) -> None:
        """A pod leaves: what this plan started is simply taken back, what runs holds its place in `now` until it is gone."""
        if seat.rooms == LATER:
            self.give_up_nomination(seat)
            return
        if seat.started_now:
            key = (seat.workload.id, seat.pod.index)
            self._charge(seat.workload, seat.amount, -1)
            self._room(seat.spot, BOTH, seat.placement, seat.pod, -1)
            self._set(self.seats, key, None)
            self._set(self.decisions, (*key, "start"), None)
            if seat.pod.nominated:
                self._set(self.decisions, (*key, "nominate"), Nominate(*key, None))
            return
        self._leave(seat)

    def _leave(self, seat: Seat) -> None:
        """What runs goes: one entry in the log, as sets of victims are tried and taken back by the thousand."""
        spot, workload, pod = seat.spot, seat.workload, seat.pod
        account = self.projects.get(workload.project)
        if account:
            account.charge(seat.amount, not workload.preemptible, -1)
        spot.change(LATER, seat.placement, pod.request, -1)
        self.seats[workload.id, pod.index] = Seat(workload, pod, seat.placement, spot, NOW, seat.amount)
        self.releasing += 1
        self._log.append((self._stay, (seat, account)))

    def _stay(self, seat: Seat, account: Account | None) -> None:
        workload, pod = seat.workload, seat.pod
        if account:
            account.charge(seat.amount, not workload.preemptible, 1)
        seat.spot.change(LATER, seat.placement, pod.request, 1)
        self.seats[workload.id, pod.index] = seat
        self.releasing -= 1

    def settle(self, seat: Seat, placement: Placement) -> None:
        """A pod that was vacated to be moved gets its new place, which must be free now."""
        spot = self.spot_of[placement.node]
        amount = held(seat.pod.request, placement)
        self._room(spot, BOTH, placement, seat.pod, 1)
        self._charge(seat.workload, amount, 1)
        self._set(self.nominated, (seat.workload.id, seat.pod.index), Seat(seat.workload, seat.pod, placement, spot, LATER, amount))

    def decide(self, key: tuple[str, int, str], decision: Act) -> None:
        self._set(self.decisions, key, decision)

    def record_stop(self, seat: Seat, reason: Reason, beneficiary: str | None) -> None:
        """Write the stop of a vacated pod into the plan (nothing to write for one that this plan had just started)."""
        if seat.rooms == BOTH and not seat.started_now:
            stop = Stop(seat.workload.id, seat.pod.index, reason, self.policy.grace_s, beneficiary)
            self._set(self.decisions, (seat.workload.id, seat.pod.index, "stop"), stop)

    def record_move(self, seat: Seat, placement: Placement, reason: Reason, beneficiary: str) -> None:
        self._set(self.moved, seat.workload.id, True)
        move = Move(seat.workload.id, seat.pod.index, placement, reason, self.policy.grace_s, beneficiary)
        self._set(self.decisions, (seat.workload.id, seat.pod.index, "stop"), move)

    # --- questions ---------------------------------------------------------------------------------------------------------------

    def account_of(self, workload: Workload) -> Account | None:
        return self.projects.get(workload.project)

    def stays(self, workload: Workload, pod: Pod) -> bool:
        """Whether the pod runs (or starts) and is not being stopped, as this plan stands."""
        seat = self.seats.get((workload.id, pod.index))
        return seat is not None and seat.rooms == BOTH


def _is_plain(pods: tuple[Pod, ...]) -> bool:
    """One pod that waits or runs, as most are: nothing about its workload has to be asked one by one."""
    return len(pods) == 1 and pods[0].nominated is None and pods[0].state in (PodState.PENDING, PodState.RUNNING)


def _restore(table: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
