"""What waits, as requests: the pods of a workload that must start together, or one surplus pod of an elastic one.

Equal requests have the same `shape`, so that a question about one of them is asked once for all. A project's requests are kept by
group of equals, each in its order: what is hopeless for one is passed over for all, whatever else waits between them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from operator import attrgetter

from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.eligible import Eligible
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.model import HOLDING, Phase, Pod, PodRequest, PodState, Workload
from hotdesk_scheduler.core.quantities import Vector, asked, asked_resources, total

ALIVE = frozenset({PodState.STARTING, PodState.RUNNING, PodState.SUCCEEDED})


@dataclass(frozen=True, slots=True)
class Kept:
    """Nodes kept for one that has waited long, since when, and what has to end there first: (name, project) of each."""

    nodes: tuple[str, ...]
    since: float
    blockers: tuple[tuple[str, str], ...]


@dataclass(slots=True, eq=False)
class Request:
    """Pods that start together. `shape` is equal for requests that ask the same of the same nodes in the same way."""

    workload: Workload
    account: Account
    pods: tuple[Pod, ...]
    ask: Vector
    asked: tuple[int, ...]
    surplus: bool
    shape: int
    eligible: Eligible
    key: Key = (0, False, 0.0, "", 0)
    """Its place in its project's queue."""
    beside_minimum: bool = False
    """Surplus whose workload waits for its minimum too."""
    kept_for: Workload | None = None
    """For whom some of its nodes are kept: it may not use those (core/reserve)."""
    wished: Eligible | None = None
    """Its nodes with those."""

    @property
    def fixed(self) -> bool:
        return not self.workload.preemptible


Key = tuple[int, bool, float, str, int]
"""Priority, the minimum before surplus, age, name, index."""
Form = tuple[Vector, tuple[int, ...], int, Eligible]
"""What equal requests share: amounts, the resources asked for, shape, eligible nodes."""

by_key = attrgetter("key")


@dataclass(slots=True, eq=False)
class Queue:
    """What waits in one project: lists of equal requests by (shape, priority), each list in order."""

    account: Account
    groups: dict[tuple[int, int], list[Request]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Request]:
        """All of it, in order."""
        return iter(Walk(self))

    def __bool__(self) -> bool:
        return bool(self.groups)

    def group(self, request: Request) -> list[Request]:
        return self.groups.setdefault((request.shape, request.workload.priority), [])

    def remove(self, request: Request) -> None:
        group = self.group(request)
        at = bisect_left(group, request.key, key=by_key)
        while group[at].workload is not request.workload:
            at += 1
        del group[at]
        if not group:
            del self.groups[request.shape, request.workload.priority]

    def sort(self) -> None:
        for group in self.groups.values():
            group.sort(key=by_key)


@dataclass(slots=True, eq=False)
class _Group:
    """Equal requests with a cursor."""

    requests: list[Request]
    number: int
    at: int = 0

    def entry(self) -> tuple[Key, int, _Group]:
        return (self.requests[self.at].key, self.number, self)


class Walk:
    """A queue in order, by a heap of its groups; who is like the last one may be passed over, and looked at again."""

    __slots__ = ("_heap", "_last", "_passed", "account")

    def __init__(self, queue: Queue) -> None:
        self.account = queue.account
        self._heap = [_Group(group, number).entry() for number, group in enumerate(queue.groups.values())]
        heapify(self._heap)
        self._passed: list[_Group] = []
        self._last: Key | None = None

    @property
    def head(self) -> Request | None:
        """The next one."""
        if not self._heap:
            return None
        group = self._heap[0][2]
        return group.requests[group.at]

    def advance(self) -> None:
        """Past the head."""
        self._last, _, group = self._heap[0]
        group.at += 1
        if group.at < len(group.requests):
            heapreplace(self._heap, group.entry())
        else:
            heappop(self._heap)

    def skip_while(self, skip: Callable[[Request], bool]) -> None:
        """Past the head, and those equal to it that follow and are to be skipped too."""
        group = self._heap[0][2]
        requests, at = group.requests, group.at + 1
        while at < len(requests) and skip(requests[at]):
            at += 1
        group.at = at
        if at < len(requests):
            heapreplace(self._heap, group.entry())
        else:
            heappop(self._heap)

    def pass_group(self) -> None:
        """Past the head and all that are equal to it."""
        self._passed.append(heappop(self._heap)[2])

    def look_again(self) -> None:
        """What was passed comes up again, but for requests that would have come before the last one."""
        for group in self._passed:
            if self._last is not None:
                group.at = bisect_right(group.requests, self._last, lo=group.at, key=by_key)
            if group.at < len(group.requests):
                heappush(self._heap, group.entry())
        self._passed.clear()

    def __iter__(self) -> Iterator[Request]:
        while request := self.head:
            self.advance()
            yield request


def _amounts(request: PodRequest) -> tuple[int, ...]:
    gpu = request.gpu
    return (gpu.whole, gpu.millis, gpu.memory_mib, gpu.devices, request.cpu_millis, request.memory_mib)


def _waits_alone(workload: Workload) -> bool:
    """Of a workload with one pod. The first pod of a gang whose others are still to be made waits for them."""
    return workload.pods[0].state is PodState.PENDING and workload.min_pods <= 1


def is_placed(ledger: Ledger, request: Request) -> bool:
    """Whether this plan has started it, or keeps a place for it."""
    if not ledger.seats and not ledger.nominated:
        return False
    key = (request.workload.id, request.pods[0].index)
    return key in ledger.seats or key in ledger.nominated


class Requests:
    """What waits, by project; a project of which nothing waits has no queue. Made after the places kept have been looked at.

    `take_in` and `take_out` keep it in step with the workloads; what depends on the cycle (workloads with kept places, nodes kept for
    others) is put in by `open_cycle` and `narrow` and taken back by `close_cycle`.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.by_project: dict[str, Queue] = {}
        self.kept: dict[str, Kept] = {}
        """What is kept for workloads that have waited long, by workload (core/reserve)."""
        self._shapes: dict[object, int] = {}
        self._forms: dict[object, Form] = {}
        self._with_places: dict[str, list[Request]] = {}
        self._narrowed: dict[int, tuple[Request, Request]] = {}
        self._narrow_shapes: dict[tuple[int, int], tuple[int, Eligible]] = {}
        self._to_regroup: set[str] = set()
        self._wide: dict[str, Queue] | None = None
        self._fill()
        self.open_cycle()

    def _fill(self) -> None:
        ledger = self.ledger
        for workload in ledger.snapshot.workloads:
            for request in self._of(workload):
                queue = self.by_project.get(workload.project)
                if queue is None:
                    queue = self.by_project[workload.project] = Queue(request.account)
                group = queue.groups.get((request.shape, workload.priority))
                if group is None:
                    queue.groups[request.shape, workload.priority] = [request]
                else:
                    group.append(request)
        for queue in self.by_project.values():
            queue.sort()

    def _of(self, workload: Workload) -> list[Request]:
        """Its requests; none for one with kept places, whose requests are the cycle's matter."""
        ledger = self.ledger
        account = ledger.projects.get(workload.project)
        pods = workload.pods
        if account is None or workload.phase is not Phase.ACTIVE or (len(pods) == 1 and not _waits_alone(workload)):
            return []
        if ledger.with_places and workload.id in ledger.with_places:
            return []
        return self._requests(workload, account)

    def _requests(self, workload: Workload, account: Account) -> list[Request]:
        if len(workload.pods) == 1:
            return [self.request(workload, account, workload.pods, surplus=False)] if _waits_alone(workload) else []
        several = waiting(workload, self.ledger)
        found = [self.request(workload, account, pods, surplus=surplus) for pods, surplus in several]
        for request in found[1:] if found and not found[0].surplus else ():
            request.beside_minimum = True
        return found

    def take_in(self, workload: Workload) -> None:
        """One that the ledger has taken in."""
        self._add(self._of(workload))

    def take_out(self, workload: Workload) -> None:
        """One that the ledger is about to take out."""
        self._remove(self._of(workload))

    def _add(self, requests: Iterable[Request]) -> None:
        for request in requests:
            queue = self.by_project.setdefault(request.account.name, Queue(request.account))
            insort(queue.group(request), request, key=by_key)

    def _remove(self, requests: Iterable[Request]) -> None:
        for request in requests:
            queue = self.by_project[request.account.name]
            queue.remove(request)
            if not queue:
                del self.by_project[request.account.name]

    def open_cycle(self) -> None:
        """Take in what waits of the workloads that had places kept."""
        for workload_id, workload in self.ledger.with_places.items():
            account = self.ledger.projects.get(workload.project)
            if account is not None and workload.phase is Phase.ACTIVE:
                self._with_places[workload_id] = found = self._requests(workload, account)
                self._add(found)

    def close_cycle(self) -> None:
        """As it was before `open_cycle`."""
        if self._wide is not None:
            self.by_project, self._wide = self._wide, None
        for found in self._with_places.values():
            self._remove(found)
        self._with_places.clear()
        self._narrowed.clear()
        self._narrow_shapes.clear()
        self.kept = {}

    def narrow(self, request: Request, eligible: Eligible, *, kept_for: Workload) -> None:
        """Let it use fewer nodes from `regroup` on; equal requests so narrowed are equal again."""
        number = len(self._shapes) + len(self._narrow_shapes)
        shape, _ = self._narrow_shapes.setdefault((request.shape, id(eligible)), (number, eligible))
        narrow = Request(  # by itself, as this is done for most of the queue: `replace` takes three times as long
            request.workload, request.account, request.pods, request.ask, request.asked, request.surplus, shape, eligible, request.key,
            request.beside_minimum, kept_for, request.wished or request.eligible,
        )  # fmt: skip
        self._narrowed[id(request)] = (request, narrow)
        self._to_regroup.add(request.account.name)

    def regroup(self) -> None:
        """From here on the queues have the narrowed requests in place of what they were."""
        if self._to_regroup and self._wide is None:
            self._wide = self.by_project
            self.by_project = dict(self._wide)
        for name in self._to_regroup:
            wide = self.by_project[name]
            self.by_project[name] = queue = Queue(wide.account)
            for group in wide.groups.values():
                for request in group:
                    request = self.current(request)
                    queue.group(request).append(request)
            queue.sort()
        self._to_regroup.clear()

    def current(self, request: Request) -> Request:
        """The request as it is now that nodes are kept."""
        return self._narrowed[id(request)][1] if id(request) in self._narrowed else request

    def request(self, workload: Workload, account: Account, pods: tuple[Pod, ...], *, surplus: bool) -> Request:
        """One request; equal ones share shape, amounts and eligible nodes."""
        first = pods[0].request
        gpu = first.gpu
        amounts = (gpu.whole, gpu.millis, gpu.memory_mib, gpu.devices, first.cpu_millis, first.memory_mib)
        more = tuple(_amounts(pod.request) for pod in pods[1:]) if len(pods) > 1 else len(workload.pods) > 1
        nodes = (workload.node_type, workload.node_pools, workload.tolerations, workload.node_terms, workload.volumes)
        wishes = (nodes, workload.scarce, workload.preemptible, surplus)
        bound = self.ledger.eligible_of.bound_by(workload)
        form_key = (amounts, more, wishes, bound)
        form = self._forms.get(form_key)
        if form is None:
            form = self._forms[form_key] = self._form(workload, pods, surplus=surplus)
        ask, resources, shape, eligible = form
        key = (-workload.priority, surplus, workload.created_at, workload.name, pods[0].index)
        return Request(workload, account, pods, ask, resources, surplus, shape, eligible, key)

    def _form(self, workload: Workload, pods: tuple[Pod, ...], *, surplus: bool) -> Form:
        eligible = self.ledger.eligible_of(workload)
        key = (tuple(_amounts(pod.request) for pod in pods), id(eligible), workload.preemptible, surplus)
        shape = self._shapes.setdefault(key, len(self._shapes))
        ask = total([asked(pod.request, self.ledger.smallest_gpu_mib) for pod in pods])
        return ask, asked_resources(ask), shape, eligible


def waiting(workload: Workload, ledger: Ledger) -> list[tuple[tuple[Pod, ...], bool]]:
    """(pods, surplus) of each request: the missing part of the minimum together, then every other pod by itself.

    A gang of which pods are still being stopped, or to be made, is no request: it starts whole or not at all.
    """
    pods = workload.pods
    if len(pods) == 1:
        pod = pods[0]
        free = _waits_alone(workload) and (not ledger.nominated or (workload.id, pod.index) not in ledger.nominated)
        return [(pods, False)] if free else []
    pending = [pod for pod in pods if pod.state is PodState.PENDING and (workload.id, pod.index) not in ledger.nominated]
    if not pending:
        return []
    pending.sort(key=lambda pod: pod.index)
    lacking = workload.min_pods - alive(workload) - sum((workload.id, pod.index) in ledger.nominated for pod in pods)
    if lacking <= 0:
        return [((pod,), True) for pod in pending]
    if len(pending) < lacking or any(pod.state is PodState.RELEASING for pod in pods):
        return []
    return [(tuple(pending[:lacking]), False), *(((pod,), True) for pod in pending[lacking:])]


def alive(workload: Workload) -> int:
    """Pods that count towards the gang: running, starting, or done."""
    return sum(pod.state in ALIVE for pod in workload.pods)


def holding(workload: Workload) -> bool:
    return any(pod.state in HOLDING for pod in workload.pods)
