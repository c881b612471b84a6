"""Looks for advice on the working copy as it stands after a cycle: what is tried here and fits is said, what is not tried is not.

All of it is taken back. The search is bounded by counts (nodes looked at, workloads ended), so that holds cost little.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from hotdesk_scheduler.core import limits, placement
from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.advice import Advice, Help, HelpKind, with_gpu
from hotdesk_scheduler.core.allocate import fit
from hotdesk_scheduler.core.ledger import Ledger, Seat
from hotdesk_scheduler.core.model import WHOLE_GPU, Pod, Workload
from hotdesk_scheduler.core.quantities import GPU, RESOURCES, UNLIMITED, asked
from hotdesk_scheduler.core.requests import Request
from hotdesk_scheduler.core.rooms import BOTH, LATER, Spot

MOST_ENDED = 8
NODES_LOOKED_AT = 12
MOST_TRIES = 4


class Remedies:
    """Asked for one request at a time; keeps what runs where between the questions."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._near: dict[int, dict[int, dict[str, Workload]]] = {}
        self._of_project: dict[str, dict[str, Workload]] | None = None

    def of(self, request: Request) -> tuple[Advice, ...]:
        """Ways to let it start, at most one of a kind, the likeliest first."""
        found: list[Advice] = []
        kept = request.kept_for is not None
        if kept:  # in its turn nothing is kept for others any more
            request = replace(request, eligible=request.wished or request.eligible, kept_for=None)
        ended = self.ending(request)
        if ended:
            found.append((ended,))
        if request.fixed and (kept or limits.over_fixed_quota(request)):
            found.extend(self._with_room(preemptible(request), Help(HelpKind.AS_PREEMPTIBLE)))
        if kept and self.starts(request):
            return tuple(found)
        if not limits.may_start(request):
            found.extend(self._raising(request))
        found.extend(self._fewer(request))
        found.extend(self.on_any_node(request, alone=True))
        return tuple(one for one in found if not any(_is_part(other, one) for other in found if other is not one))

    def on_any_node(self, request: Request, *, alone: bool = False) -> Iterator[Advice]:
        """Without its wish of type and pool; `alone`: only where no work has to end as well."""
        if request.workload.node_type or request.workload.node_pools:
            workload = replace(request.workload, node_type=None, node_pools=())
            free = replace(request, workload=workload, eligible=self.ledger.eligible_of(workload))
            yield from (found for found in self._with_room(free, Help(HelpKind.ANY_NODE)) if len(found) == 1 or not alone)

    def _with_room(self, request: Request, help_: Help) -> Iterator[Advice]:
        """The help alone if that does, else together with work that ends."""
        if self.starts(request):
            yield (help_,)
        elif ended := self.ending(request):
            yield (help_, ended)

    @contextmanager
    def _taken_back(self) -> Iterator[None]:
        checkpoint = self.ledger.checkpoint()
        yield
        self.ledger.rollback(checkpoint)

    def starts(self, request: Request, without: list[Workload] | None = None) -> bool:
        """Whether it would start if these had ended."""
        with self._taken_back():
            for workload in without or ():
                self._end(workload)
            return limits.may_start(request) and fit(self.ledger, request)

    # --- work that ends ----------------------------------------------------------------------------------------------------------

    def ending(self, request: Request) -> Help | None:
        """Few running workloads whose end lets it start, none of them needless; None if no few do."""
        chosen: list[Workload] = []
        self._nearest(request)  # kept from before anything is ended here
        with self._taken_back():
            enough = self._end_within_limits(request, chosen) and self._end_for_room(request, chosen)
        if not enough or not chosen or not self.starts(request, chosen):
            return None
        for workload in list(chosen):
            rest = [other for other in chosen if other is not workload]
            if rest and self.starts(request, rest):
                chosen = rest
        return Help(HelpKind.END_WORK, workloads=tuple((w.id, w.name, w.project) for w in chosen))

    def _end(self, workload: Workload) -> None:
        for pod in workload.pods:
            key = (workload.id, pod.index)
            seat = self.ledger.seats.get(key)
            if seat and seat.rooms == BOTH:
                self.ledger.vacate(seat)
            if kept := self.ledger.nominated.get(key):
                self.ledger.vacate(kept)

    def _end_within_limits(self, request: Request, chosen: list[Workload]) -> bool:
        while len(chosen) <= MOST_ENDED:
            broken = limits.over_limit(request)
            fixed = None if broken else limits.over_fixed_quota(request)
            if not (broken or fixed):
                return True
            account, r = broken or fixed  # type: ignore[misc]  # one of them is there
            cap, holds = (account.limit, account.allocated) if broken else (account.quota, account.fixed)
            workload = self._one_of(account, r, holds[r] + request.ask[r] - cap[r], fixed=fixed is not None)
            if request.ask[r] > cap[r] or workload is None:
                return False
            self._end(workload)
            chosen.append(workload)
        return False

    def _one_of(self, account: Account, r: int, lacks: int, *, fixed: bool) -> Workload | None:
        """The smallest workload of the account that holds enough, else the largest; the youngest of equals."""
        sized = []
        for name in [account.name] if not account.is_department else [child.name for child in account.children]:
            for workload in self._projects().get(name, {}).values():
                amount = sum(seat.amount[r] for seat in self._seats(workload))
                if amount and not (fixed and workload.preemptible):
                    sized.append((amount < lacks, amount if amount >= lacks else -amount, -workload.created_at, workload.name, workload))
        return min(sized, key=lambda entry: entry[:4])[4] if sized else None

    def _projects(self) -> dict[str, dict[str, Workload]]:
        if self._of_project is None:
            self._of_project = {}
            for seat in self.ledger.seats.values():
                self._of_project.setdefault(seat.workload.project, {})[seat.workload.id] = seat.workload
        return self._of_project

    def _seats(self, workload: Workload) -> list[Seat]:
        found = (self.ledger.seats.get((workload.id, pod.index)) for pod in workload.pods)
        return [seat for seat in found if seat and seat.rooms == BOTH]

    def _end_for_room(self, request: Request, chosen: list[Workload]) -> bool:
        if self.starts(request):
            return True
        for pod in sorted(request.pods, key=lambda p: -p.request.gpu.whole):
            place = placement.find(self.ledger, pod.request, request.eligible, LATER)
            if place is None:
                found = self._best_node(request, pod)
                if found is None or len(chosen) + len(found[1]) > MOST_ENDED:
                    return False
                for workload in found[1]:
                    self._end(workload)
                chosen.extend(found[1])
                place = placement.on_spot(found[0], pod.request, LATER)
            if place is None:
                return False
            self.ledger.nominate(request.workload, pod, place)
        return True

    def _best_node(self, request: Request, pod: Pod) -> tuple[Spot, list[Workload]] | None:
        """The node where the fewest workloads would have to end for this pod, then the fewest GPUs."""
        offers = []
        for order, workloads in self._nearest(request).items():
            ended = self._least(self.ledger.spots[order], list(workloads.values()), pod)
            if ended:
                size = sum(seat.amount[GPU] for workload in ended for seat in self._seats(workload))
                offers.append(((len(ended), size, order), self.ledger.spots[order], ended))
        return min(offers, key=lambda offer: offer[0])[1:] if offers else None

    def _nearest(self, request: Request) -> dict[int, dict[str, Workload]]:
        """What runs on the eligible nodes that have most free."""
        found = self._near.get(id(request.eligible))
        if found is None:
            buckets = self.ledger.index.later.downwards(0)
            orders = (order for bucket in buckets for order in bucket if order in request.eligible)
            found = {order: {} for order, _ in zip(orders, range(NODES_LOOKED_AT), strict=False)}
            for seat in self.ledger.seats.values():
                if seat.spot.order in found and seat.rooms == BOTH:
                    found[seat.spot.order][seat.workload.id] = seat.workload
            self._near[id(request.eligible)] = found
        return found

    def _least(self, spot: Spot, workloads: list[Workload], pod: Pod) -> list[Workload]:
        """One that is enough (the smallest), else the largest ones together."""
        ended: list[Workload] = []
        here = {w.id: sum(s.amount[GPU] for s in self._seats(w) if s.spot is spot) for w in workloads}
        workloads = sorted(workloads, key=lambda w: (here[w.id], -w.created_at, w.name))
        for workload in workloads:
            with self._taken_back():
                self._end(workload)
                if placement.on_spot(spot, pod.request, LATER):
                    return [workload]
        with self._taken_back():
            while workloads and len(ended) < MOST_ENDED:
                ended.append(workloads.pop())
                self._end(ended[-1])
                if placement.on_spot(spot, pod.request, LATER):
                    return ended
        return []

    # --- more for the project ----------------------------------------------------------------------------------------------------

    def _raising(self, request: Request) -> Iterator[Advice]:
        """Quotas and limits that stand in the way, raised to what is needed."""
        with self._lowered_again(request):
            steps = self._raised(request)
            alone = bool(steps) and self.starts(request)
            ended = self.ending(request) if steps and not alone else None
        if alone:
            yield steps
        elif ended and (less := self._raised_without(request, ended)):
            yield (*less, ended)

    def _raised_without(self, request: Request, ended: Help) -> Advice:
        """What has to be raised once this work has ended."""
        gone = [self.ledger.workloads[id_] for id_, _, _ in ended.workloads]
        with self._taken_back(), self._lowered_again(request):
            for workload in gone:
                self._end(workload)
            return self._raised(request)

    @contextmanager
    def _lowered_again(self, request: Request) -> Iterator[None]:
        kept = [(account, list(account.quota), list(account.limit)) for account in request.account.path]
        yield
        for account, quota, limit in kept:
            account.quota[:], account.limit[:] = quota, limit

    def _raised(self, request: Request) -> Advice:
        steps: dict[tuple[HelpKind, str, bool, int], Help] = {}

        def step(kind: HelpKind, account: Account, r: int, amount: int) -> None:
            key = (kind, account.name, account.is_department, r)
            steps[key] = Help(kind, amount, r, account.name, account.is_department)

        for _ in range(2 * len(RESOURCES) * len(request.account.path)):
            broken = limits.over_limit(request)
            if broken:
                account, r = broken
                needed = account.allocated[r] + request.ask[r]
                if self._bound_to_quota(account, r):
                    step(HelpKind.RAISE_QUOTA, account, r, needed)
                    self._raise_quota(account, r, needed)
                if not self._bound_to_quota(account, r) or self._written_limit(account, r) < needed:
                    step(HelpKind.RAISE_LIMIT, account, r, needed)
                account.limit[r] = needed
                continue
            fixed = limits.over_fixed_quota(request)
            if not fixed:
                return tuple(steps.values())
            account, r = fixed
            if self._is_sum(account, r):
                return ()
            needed = account.fixed[r] + request.ask[r]
            step(HelpKind.RAISE_QUOTA, account, r, needed)
            self._raise_quota(account, r, needed)
        return ()

    def _raise_quota(self, account: Account, r: int, needed: int) -> None:
        """A department whose quota is the sum of its projects' follows."""
        parent = account.parent
        if parent and self._is_sum(parent, r) and parent.quota[r] < UNLIMITED:
            parent.quota[r] += needed - account.quota[r]
            if self._bound_to_quota(parent, r):
                parent.limit[r] = min(self._written_limit(parent, r), parent.quota[r])
        account.quota[r] = needed

    def _entitled(self, account: Account) -> tuple[bool, int | None, int | None, int | None, bool]:
        """(may go over quota, written limits of GPU, CPU and memory, whether the GPU quota is a sum)."""
        of = account.project or next(d for d in self.ledger.snapshot.departments if d.name == account.name)
        return (of.over_quota, of.gpu.limit, of.cpu.limit, of.memory.limit, getattr(of, "quota_is_sum", False))

    def _bound_to_quota(self, account: Account, r: int) -> bool:
        return not self._entitled(account)[0] and not self._is_sum(account, r)

    def _written_limit(self, account: Account, r: int) -> int:
        written = self._entitled(account)[1 + r]
        return UNLIMITED if written is None else int(written)

    def _is_sum(self, account: Account, r: int) -> bool:
        return r == GPU and self._entitled(account)[4]

    # --- less for itself ---------------------------------------------------------------------------------------------------------

    def _fewer(self, request: Request) -> Iterator[Advice]:
        """The largest smaller request of the same kind that starts at once."""
        if not request.ask[GPU]:
            return
        allowed = self._allowed(request)
        tries = self._fewer_pods(request, allowed) if len(request.pods) > 1 else self._fewer_gpus(request, allowed)
        for help_, smaller in tries:
            if self.starts(smaller):
                yield (help_,)
                return

    def _allowed(self, request: Request) -> int:
        """GPU thousandths that limits and quotas leave."""
        left = UNLIMITED
        for account in request.account.path:
            left = min(left, account.limit[GPU] - account.allocated[GPU])
            if request.fixed:
                left = min(left, account.quota[GPU] - account.fixed[GPU])
        return max(0, left)

    def _fewer_gpus(self, request: Request, allowed: int) -> Iterator[tuple[Help, Request]]:
        gpu = request.pods[0].request.gpu
        if gpu.memory_mib or gpu.devices > 1:
            return
        index = self.ledger.index
        ask = gpu.whole * WHOLE_GPU or gpu.millis
        spots = (order for bucket in index.startable.downwards(1) for order in bucket if order in request.eligible)
        block = next((self.ledger.spots[order].startable_gpus for order in spots), 0)
        whole = min(gpu.whole - 1, block, allowed // WHOLE_GPU)
        sizes = [n * WHOLE_GPU for n in range(whole, max(0, whole - MOST_TRIES), -1)]
        if ask > WHOLE_GPU and not sizes:
            return  # who asks for several does not want a part of one
        parts = [WHOLE_GPU - 1] if block else []
        parts += list(reversed(index.startable_groups.amounts))[:MOST_TRIES]
        sizes += sorted({min(part, allowed, ask - 1) // 10 * 10 for part in parts if min(part, allowed, ask - 1) >= 10}, reverse=True)
        for size in sizes[: 2 * MOST_TRIES]:
            yield Help(HelpKind.FEWER_GPUS, size), self._resized(request, tuple(with_gpu(pod, size) for pod in request.pods))

    def _fewer_pods(self, request: Request, allowed: int) -> Iterator[tuple[Help, Request]]:
        workload = request.workload
        if workload.min_pods != len(workload.pods) or len(request.pods) != len(workload.pods):
            return
        with self._taken_back():
            fits = placement.place(self.ledger, request, BOTH)
        each = request.ask[GPU] // len(request.pods)
        most = min(fits, len(request.pods) - 1, allowed // each if each else fits)
        for count in range(most, max(0, most - MOST_TRIES), -1):
            yield Help(HelpKind.FEWER_PODS, count), self._resized(request, request.pods[:count])

    def _resized(self, request: Request, pods: tuple[Pod, ...]) -> Request:
        amounts = [asked(pod.request, self.ledger.smallest_gpu_mib) for pod in pods]
        ask = (sum(a[0] for a in amounts), sum(a[1] for a in amounts), sum(a[2] for a in amounts))
        return replace(request, pods=pods, ask=ask, asked=tuple(r for r in RESOURCES if ask[r]))


def _is_part(small: Advice, large: Advice) -> bool:
    """Whether the first asks for less: each of its helps is in the second, which asks for more besides."""

    def covered(help_: Help) -> bool:
        if help_.kind is not HelpKind.END_WORK:
            return help_ in large
        return any(set(help_.workloads) <= set(other.workloads) for other in large if other.kind is HelpKind.END_WORK)

    return len(small) < len(large) and all(covered(help_) for help_ in small)


def preemptible(request: Request) -> Request:
    """The same request, submitted as preemptible."""
    return replace(request, workload=replace(request.workload, preemptible=True), eligible=request.wished or request.eligible)
