"""What lacks where limits and quotas allow a request, but there is no place for it: whose share is it, who holds what it could get,
how is what is free split (scheduling.md 6).
"""

from __future__ import annotations

from collections.abc import Iterable

from hotdesk_scheduler.core import limits, placement
from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.advice import join
from hotdesk_scheduler.core.ledger import Ledger, Seat
from hotdesk_scheduler.core.model import WHOLE_GPU, PodRequest
from hotdesk_scheduler.core.quantities import CPU, GPU, MEMORY, RESOURCES, UNLIMITED, Vector, amount_words, gpu_words, gpus
from hotdesk_scheduler.core.reasons import Reason, ReasonCode, reason
from hotdesk_scheduler.core.requests import Request
from hotdesk_scheduler.core.rooms import BOTH, NOW, Spot

NAMED = 3
OTHERS = "work outside Hotdesk"


def holders(ledger: Ledger, seats: Iterable[Seat], orders: set[int]) -> dict[str, Vector]:
    """What each project holds by these seats on these nodes, and others than us."""
    sums: dict[str, list[int]] = {}
    for seat in seats:
        if seat.spot.order in orders:
            mine = sums.get(seat.workload.project)
            if mine is None:
                mine = sums[seat.workload.project] = [0, 0, 0]
            gpu, cpu, memory = seat.amount
            mine[0] += gpu
            mine[1] += cpu
            mine[2] += memory
    for spot in ledger.spots:
        if spot.node.foreign.gpu_millis and spot.order in orders:
            foreign, mine = spot.node.foreign, sums.setdefault(OTHERS, [0, 0, 0])
            for r, amount in zip(RESOURCES, (foreign.gpu_millis, foreign.cpu_millis, foreign.memory_mib), strict=True):
                mine[r] += amount
    return {name: (mine[0], mine[1], mine[2]) for name, mine in sums.items()}


class Cluster:
    """What the sentences say about the cluster, as the ledger stands; everything is asked once for equal requests."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.possible: set[int] = set()
        """Shapes that an empty cluster could take."""
        self._eligible: dict[int, list[Spot]] = {}
        self._free: dict[int, int] = {}
        self._holders: dict[int, dict[str, Vector]] = {}
        self._gpus_are_there: dict[int, bool] = {}
        self._fit: dict[int, int] = {}
        self._movable: dict[int, bool] = {}

    def eligible(self, request: Request) -> list[Spot]:
        """Ready nodes it may use; the same list for all with the same wishes."""
        key = id(request.eligible)
        if key not in self._eligible:
            self._eligible[key] = [spot for spot in self.ledger.spots if spot.order in request.eligible and spot.node.ready]
        return self._eligible[key]

    def free_gpus(self, request: Request) -> int:
        """Whole GPUs free on these nodes together."""
        key = id(request.eligible)
        if key not in self._free:
            self._free[key] = sum(max(0, spot.startable_gpus) for spot in self.eligible(request))
        return self._free[key]

    def gpus_are_there(self, request: Request) -> bool:
        """Whether GPUs alone would do for every pod; then CPU, memory or the pod limit is what lacks."""
        if request.shape not in self._gpus_are_there:
            self._gpus_are_there[request.shape] = _gpus_are_there(self.eligible(request), request)
        return self._gpus_are_there[request.shape]

    def fitting_pods(self, request: Request) -> int:
        """How many of its pods would find a place now."""
        if request.shape not in self._fit:
            checkpoint = self.ledger.checkpoint()
            self._fit[request.shape] = placement.place(self.ledger, request, BOTH)
            self.ledger.rollback(checkpoint)
        return self._fit[request.shape]

    def movable(self, request: Request) -> bool:
        """Whether anything preemptible runs on these nodes."""
        key = id(request.eligible)
        if key not in self._movable:
            orders = {spot.order for spot in self.eligible(request)}
            seats = self.ledger.seats.values()
            self._movable[key] = any(s.rooms == BOTH and s.workload.preemptible and s.spot.order in orders for s in seats)
        return self._movable[key]

    def held_by(self, request: Request, resource: int = GPU, *, besides: str | None = None) -> str:
        """`team-b (2 GPUs) and team-c (1 GPU)` on the nodes it may use, as the plan leaves them; empty if nobody holds any."""
        key = id(request.eligible)
        if key not in self._holders:
            staying = (s for s in (*self.ledger.seats.values(), *self.ledger.nominated.values()) if s.rooms != NOW)
            self._holders[key] = holders(self.ledger, staying, {spot.order for spot in self.eligible(request)})
        found = [(-amounts[resource], name) for name, amounts in self._holders[key].items() if amounts[resource] and name != besides]
        named = [f"{name} ({amount_words(-amount, resource)})" for amount, name in sorted(found)]
        if len(named) > NAMED:
            more = len(named) - NAMED
            named = [*named[:NAMED], f"{more} other project{'s' if more > 1 else ''}"]
        return join(named) if named else ""


def pod_words(request: PodRequest) -> str:
    """What one pod asks of GPUs: `2 GPUs`, `0.5 GPU`, `8000 MiB of one GPU`, `0.5 of each of 2 GPUs`."""
    gpu = request.gpu
    if gpu.whole or gpu.is_none:
        return gpu_words(gpu.whole * WHOLE_GPU)
    if gpu.devices > 1:
        return f"{f'{gpu.memory_mib} MiB' if gpu.memory_mib else gpus(gpu.millis)} of each of {gpu.devices} GPUs"
    return f"{gpu.memory_mib} MiB of one GPU" if gpu.memory_mib else gpu_words(gpu.millis)


def no_room(cluster: Cluster, request: Request) -> Reason:
    """Limits and quotas allow it, but there is no place."""
    free = cluster.free_gpus(request)
    if request.ask[GPU] == 0 or cluster.gpus_are_there(request):
        return _short_of_cpu(cluster, request)
    if free * WHOLE_GPU < request.ask[GPU]:
        beyond = _beyond_share(request)
        if beyond:
            return _share_reached(cluster, request, beyond)
    if len(request.pods) > 1:
        return _gang(cluster, request)
    gpu = request.pods[0].request.gpu
    return _fragmented(cluster, request, free) if gpu.whole and free >= gpu.whole else _all_held(cluster, request, free)


def _gpus_are_there(spots: list[Spot], request: Request) -> bool:
    pod = request.pods[0].request
    if len({pod.request for pod in request.pods}) > 1:
        return False
    if pod.gpu.whole:
        return sum(max(0, spot.startable_gpus) // pod.gpu.whole for spot in spots) >= len(request.pods)
    count = 0
    for spot in spots:
        millis = spot.millis_for(pod)
        if 0 < millis <= WHOLE_GPU:
            count += max(0, spot.startable_gpus) * (WHOLE_GPU // millis)
            count += sum(max(0, spot.startable_millis(g)) // millis for g in spot.now.groups)
    return count >= len(request.pods) * pod.gpu.devices and pod.gpu.devices == 1


def _beyond_share(request: Request) -> Account | None:
    """The project, or else the department, that would hold more GPUs than it may have now."""
    if not limits.stays_within_share(request):
        return request.account
    ask = request.ask[GPU]
    return next((account for account in request.account.path if account.allocated[GPU] + ask > account.share[GPU]), None)


def whose(account: Account) -> str:
    return f"{'department' if account.is_department else 'project'} {account.name}"


def _share_reached(cluster: Cluster, request: Request, account: Account) -> Reason:
    share, used, quota = account.share[GPU], account.allocated[GPU], account.quota[GPU]
    by_memory = f" ({pod_words(request.pods[0].request)})" if request.pods[0].request.gpu.memory_mib and len(request.pods) == 1 else ""
    sentence = (
        f"The fair share is reached: {whose(account)} may have {gpu_words(share)} now (quota {gpus(quota)}) and uses {gpus(used)}; "
        f"this asks for {gpu_words(request.ask[GPU])}{by_memory}."
    )
    if account.weight_now is not None and account.weight_now < account.weight:
        sentence += f" Its over-quota weight is {gpus(account.weight)}, now {gpus(account.weight_now)} because of past use."
    rest = cluster.held_by(request, besides=request.account.name)
    if rest:
        sentence += f" The rest is held by {rest}."
    numbers: dict[str, int | str] = {"asked": request.ask[GPU], "fair_share": share, "used": used}
    if quota < UNLIMITED:
        numbers["quota"] = quota
    return reason(ReasonCode.FAIR_SHARE_REACHED, sentence, **numbers)


def _gang(cluster: Cluster, request: Request) -> Reason:
    count = len(request.pods)
    sentence = f"{together(request)}, and {_fit_words(cluster, request)} now{_each(request)}."
    held = cluster.held_by(request)
    sentence += f" The GPUs it could get are held by {held}." if held else " Nothing else runs there: it is too large for these nodes."
    return reason(ReasonCode.GANG_DOES_NOT_FIT, sentence, fit=min(count - 1, cluster.fitting_pods(request)), pods=count)


def together(request: Request) -> str:
    """How a gang starts; part of it may run already."""
    count, missing = len(request.pods), len(request.pods) < request.workload.min_pods
    return f"{f'{count} missing pods of it' if missing else f'Its {count} pods'} start together or not at all"


def _fit_words(cluster: Cluster, request: Request) -> str:
    fit = min(len(request.pods) - 1, cluster.fitting_pods(request))
    return "none of them fits" if not fit else f"only {fit} of them fit{'s' if fit == 1 else ''}"


def _each(request: Request) -> str:
    return "" if len({pod.request for pod in request.pods}) > 1 else f" ({pod_words(request.pods[0].request)} each)"


def _fragmented(cluster: Cluster, request: Request, free: int) -> Reason:
    """Enough GPUs are free, on no one node, and no moves bring them together."""
    block = max(cluster.eligible(request), key=lambda s: (s.startable_gpus, -s.order))
    largest = block.startable_gpus * WHOLE_GPU
    if cluster.ledger.policy.max_moves == 0:
        because = "Running work is not moved here."
    elif not cluster.movable(request):
        because = "What runs beside them is not preemptible, so it is not moved."
    else:
        because = "What runs beside them cannot be moved so that they come together."
    sentence = (
        f"{gpu_words(free * WHOLE_GPU)} are free, but in pieces: the largest free block is {gpus(largest)} on {block.node.name}, and this "
        f"asks for {gpu_words(request.ask[GPU])} on one node. {because}"
    )
    numbers: dict[str, int | str] = {"free": free * WHOLE_GPU, "largest_block": largest, "node": block.node.name}
    return reason(ReasonCode.FRAGMENTED, sentence, asked=request.ask[GPU], **numbers)


def _all_held(cluster: Cluster, request: Request, free: int) -> Reason:
    spots, pod = cluster.eligible(request), request.pods[0].request
    block = max(spots, key=lambda s: (s.startable_gpus, -s.order))
    largest = max(0, block.startable_gpus) * WHOLE_GPU
    if largest:
        found = f"the largest free block is {gpu_words(largest)} on {block.node.name}"
    else:
        part, where = max(((_largest_part(spot), -spot.order) for spot in spots), default=(0, 0))
        found = f"the most that is left of one is {gpus(part)} on {cluster.ledger.spots[-where].node.name}" if part else "none is free"
    sentence = f"It asks for {pod_words(pod)}{' on one node' if pod.gpu.whole > 1 else ''}, and {found}."
    if held := cluster.held_by(request):
        sentence += f" The GPUs it could get are held by {held}, and stopping what may be stopped for it would not make room."
    numbers: dict[str, int | str] = {"free": free * WHOLE_GPU, "largest_block": largest, "node": block.node.name}
    return reason(ReasonCode.NO_FREE_BLOCK, sentence, asked=request.ask[GPU], **numbers)


def _largest_part(spot: Spot) -> int:
    """Thousandths free on the shared GPU of this node that has most left."""
    return max((max(0, spot.startable_millis(group)) for group in spot.now.groups), default=0)


def _short_of_cpu(cluster: Cluster, request: Request) -> Reason:
    """The GPUs are there; CPU, memory or a place for one more pod is not."""
    pod = request.pods[0].request
    spots = [spot for spot in cluster.eligible(request) if _has_gpus(spot, pod)] or cluster.eligible(request)
    cpu = max(max(0, min(s.now.cpu_millis, s.later.cpu_millis)) for s in spots)
    memory = max(max(0, min(s.now.memory_mib, s.later.memory_mib)) for s in spots)
    amounts = ((CPU, pod.cpu_millis, cpu), (MEMORY, pod.memory_mib, memory))
    lacks = [(r, asks, free) for r, asks, free in amounts if asks > free]
    node = "node with enough free GPUs" if request.ask[GPU] else "node"
    asks = join([amount_words(amount, r) for r, amount, _ in (lacks or amounts)])
    held = cluster.held_by(request, lacks[0][0] if lacks else CPU)
    full = [min(spot.now.pods, spot.later.pods) <= 0 for spot in spots]
    if len(request.pods) > 1:
        sentence = f"{together(request)}, and {_fit_words(cluster, request)} now: each asks for {asks} beside its GPUs."
    elif lacks:
        most = join([amount_words(free, r) for r, _, free in lacks])
        sentence = f"It asks for {asks}, and no {node} has more than {most} free."
    elif all(full):
        sentence = f"Every {node} runs as many pods as it may."
        held = ""
    else:
        sentence = f"It asks for {asks}, and no {node} has both free{' and takes one more pod' if any(full) else ''}."
    if held:
        sentence += f" {'Memory' if lacks and lacks[0][0] == MEMORY else 'CPU'} there is held by {held}."
    numbers = {"asked_cpu_millis": pod.cpu_millis, "asked_memory_mib": pod.memory_mib, "free_cpu_millis": cpu, "free_memory_mib": memory}
    return reason(ReasonCode.NO_CPU_OR_MEMORY, sentence, **numbers)


def _has_gpus(spot: Spot, pod: PodRequest) -> bool:
    if pod.gpu.is_none:
        return True
    if pod.gpu.whole:
        return spot.startable_gpus >= pod.gpu.whole
    millis = spot.millis_for(pod)
    return 0 < millis <= WHOLE_GPU and (spot.startable_gpus >= pod.gpu.devices or _largest_part(spot) >= millis)
