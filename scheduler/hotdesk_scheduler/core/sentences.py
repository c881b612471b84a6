"""What the holds say first: the fact, and the numbers behind it. What would help is found by `remedies` and said by `advice`."""

from __future__ import annotations

from hotdesk_scheduler.core import limits
from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.advice import join
from hotdesk_scheduler.core.ledger import Ledger, Seat
from hotdesk_scheduler.core.model import Workload
from hotdesk_scheduler.core.quantities import CPU, GPU, MEMORY, UNLIMITED, amount_words, gpu_words, gpus
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.core.requests import Request
from hotdesk_scheduler.core.rooms import Spot


class Cluster:
    """What the sentences say about the cluster, taken once from the ledger as it stands."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        holding = [(a.allocated[GPU], a.name) for a in ledger.projects.values() if a.allocated[GPU]]
        self.holders = sorted(holding, key=lambda h: (-h[0], h[1]))
        self.possible: set[int] = set()
        """Shapes that an empty cluster could take: asked once for equal requests, as are the next two."""
        self._eligible: dict[int, list[Spot]] = {}
        self._free: dict[int, int] = {}
        self._gpus_are_there: dict[int, bool] = {}

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

    def holders_words(self, besides: str | None = None) -> str:
        """`team-b (2 GPUs) and team-c (1 GPU)`; at most three are named."""
        named = [f"{name} ({gpu_words(millis)})" for millis, name in self.holders if name != besides]
        if len(named) > 3:
            more = len(named) - 3
            named = [*named[:3], f"{more} other project{'s' if more > 1 else ''}"]
        return join(named)


def of(account: Account) -> str:
    return f"{'Department' if account.is_department else 'Project'} {account.name}"


def reason(code: ReasonCode, sentence: str, **numbers: int | str) -> Reason:
    return Reason(code, sentence, tuple(sorted(numbers.items())))


def _asks(request: Request, resource: int = GPU) -> str:
    return amount_words(request.ask[resource], resource)


def excluded(cluster: Cluster, request: Request) -> Reason | None:
    """No node is of its type, in its pools, and without a taint it does not tolerate."""
    if cluster.eligible(request):
        return None
    workload = request.workload
    wishes = []
    if workload.node_type:
        wishes.append(f"node type {workload.node_type}")
    if workload.node_pools:
        wishes.append(f"node pool {' or '.join(workload.node_pools)}")
    project = request.account.project
    if project and not wishes and (project.train_node_types or project.interactive_node_types or project.node_pools):
        wishes.append(f"what project {project.name} is bound to")
    nodes = [spot.node for spot in cluster.ledger.spots]
    ready = sum(node.ready for node in nodes)
    types = sorted({node.node_type for node in nodes if node.node_type}) or ["none"]
    pools = sorted({node.pool for node in nodes}) or ["none"]
    sentence = (
        f"No ready node matches {join(wishes) if wishes else 'it (nodes are not ready or have taints it does not tolerate)'}: "
        f"{ready} of {len(nodes)} nodes are ready; node types: {join(types)}; pools: {join(pools)}."
    )
    return reason(ReasonCode.NODES_EXCLUDED, sentence, nodes=len(nodes), ready=ready)


def too_large(cluster: Cluster, request: Request) -> Reason | None:
    """One pod is larger than any node it may use, even an empty one."""
    spots = cluster.eligible(request)
    for pod in request.pods[:1]:
        gpu = pod.request.gpu
        needed = gpu.whole or (0 if gpu.is_none else gpu.devices)
        largest = max(spots, key=lambda s: (s.node.gpus, -s.order))
        if needed > largest.node.gpus:
            sentence = (
                f"One pod asks for {needed} GPU{'s' if needed > 1 else ''} on one node, and the largest node it may use, "
                f"{largest.node.name}, has {largest.node.gpus}."
            )
            return reason(ReasonCode.NO_NODE_LARGE_ENOUGH, sentence, asked=needed, largest=largest.node.gpus, node=largest.node.name)
        if gpu.memory_mib and all(s.node.gpu_memory_mib < gpu.memory_mib for s in spots):
            most = max(s.node.gpu_memory_mib for s in spots)
            sentence = (
                f"It asks for {gpu.memory_mib} MiB of one GPU's memory, and the largest GPU here has {most} MiB; "
                "more than that never starts here."
            )
            return reason(ReasonCode.NO_NODE_LARGE_ENOUGH, sentence, asked_mib=gpu.memory_mib, largest_mib=most)
        for resource, asked, has in (
            (CPU, pod.request.cpu_millis, max(s.node.cpu_millis for s in spots)),
            (MEMORY, pod.request.memory_mib, max(s.node.memory_mib for s in spots)),
        ):
            if asked > has:
                sentence = (
                    f"One pod asks for {amount_words(asked, resource)}, and no node it may use has more than "
                    f"{amount_words(has, resource)}, even when it is empty."
                )
                return reason(ReasonCode.NO_NODE_LARGE_ENOUGH, sentence, asked=asked, largest=has)
    return None


def over_limit(account: Account, resource: int, request: Request) -> Reason:
    code = ReasonCode.OVER_DEPARTMENT_LIMIT if account.is_department else ReasonCode.OVER_PROJECT_LIMIT
    used, limit = account.allocated[resource], account.limit[resource]
    sentence = (
        f"{of(account)} may use at most {amount_words(limit, resource)} and uses {amount_words(used, resource)}; "
        f"this asks for {_asks(request, resource)}."
    )
    return reason(code, sentence, asked=request.ask[resource], limit=limit, used=used)


def over_fixed_quota(account: Account, resource: int, request: Request) -> Reason:
    used, quota = account.fixed[resource], account.quota[resource]
    sentence = (
        f"Non-preemptible work never goes over quota: {of(account).lower() if not account.is_department else of(account)} has a quota of "
        f"{amount_words(quota, resource)}, non-preemptible work holds {amount_words(used, resource)} of it, and this asks for "
        f"{_asks(request, resource)}."
    )
    return reason(ReasonCode.NON_PREEMPTIBLE_OVER_QUOTA, sentence, asked=request.ask[resource], quota=quota, used=used)


def protected(until: float, names: tuple[str, ...], ledger: Ledger) -> Reason:
    """Others would have to make way, and have not run for as long as everybody may."""
    left = max(1, round(until - ledger.now))
    sentence = (
        f"It may take the place of {join(list(names[:3]))}, which started recently: everybody may run for at least "
        f"{ledger.policy.min_runtime_s:.0f} s."
    )
    return reason(ReasonCode.VICTIMS_PROTECTED, sentence, until=int(until), left_s=left)


def too_young(request: Request, ledger: Ledger) -> Reason:
    """The preemption delay: until then it takes what is free, and nobody is stopped for it."""
    left = max(1, round(request.workload.created_at + ledger.policy.preemption_delay_s - ledger.now))
    sentence = (
        f"Nothing that is free suffices, and nobody is stopped for work younger than {ledger.policy.preemption_delay_s:.0f} s: "
        f"others may be asked to make way in {left} s."
    )
    return reason(ReasonCode.VICTIMS_PROTECTED, sentence, left_s=left)


def no_room(cluster: Cluster, request: Request) -> Reason:
    """Limits and quotas allow it, but there is no place: whose share is it, or how is the free capacity split?"""
    spots = cluster.eligible(request)
    free = cluster.free_gpus(request)
    pod = request.pods[0].request
    if request.ask[GPU] == 0 or cluster.gpus_are_there(request):
        return _short_of_cpu(cluster, request)
    if not limits.stays_within_share(request) and free * 1000 < request.ask[GPU]:
        return _share_reached(cluster, request)
    block = max(spots, key=lambda s: (s.startable_gpus, -s.order))
    if len(request.pods) > 1:
        return _gang(cluster, request, spots)
    if pod.gpu.whole and free >= pod.gpu.whole:
        sentence = (
            f"{gpu_words(free * 1000)} are free, but in pieces: the largest free block is {gpus(block.startable_gpus * 1000)} on "
            f"{block.node.name}, and this asks for {gpu_words(request.ask[GPU])} on one node. What runs beside them cannot be moved "
            "together."
        )
        return reason(
            ReasonCode.FRAGMENTED,
            sentence,
            asked=request.ask[GPU],
            free=free * 1000,
            largest_block=block.startable_gpus,
            node=block.node.name,
        )
    return _all_held(cluster, request, block, free)


def _gpus_are_there(spots: list[Spot], request: Request) -> bool:
    gpu = request.pods[0].request.gpu
    if len({pod.request for pod in request.pods}) > 1:
        return False
    if gpu.whole:
        return sum(max(0, spot.startable_gpus) // gpu.whole for spot in spots) >= len(request.pods)
    count = 0
    for spot in spots:
        millis = spot.millis_for(request.pods[0].request)
        if 0 < millis <= 1000:
            count += max(0, spot.startable_gpus) * (1000 // millis)
            count += sum(spot.startable_millis(g) // millis for g in spot.now.groups)
    return count >= len(request.pods) * gpu.devices and gpu.devices == 1


def _short_of_cpu(cluster: Cluster, request: Request) -> Reason:
    spots = cluster.eligible(request)
    pod = request.pods[0].request
    with_gpu = [s for s in spots if s.startable_gpus * 1000 >= min(1000, request.ask[GPU])] or spots
    cpu = max(max(0, min(s.now.cpu_millis, s.later.cpu_millis)) for s in with_gpu)
    memory = max(max(0, min(s.now.memory_mib, s.later.memory_mib)) for s in with_gpu)
    where = "no node with enough free GPUs" if request.ask[GPU] else "no node"
    many = f" for each of {len(request.pods)} pods" if len(request.pods) > 1 else ""
    sentence = (
        f"It asks for {amount_words(pod.cpu_millis, CPU)} and {amount_words(pod.memory_mib, MEMORY)}{many}, and {where} has that free: "
        f"at most {amount_words(cpu, CPU)} and {amount_words(memory, MEMORY)}."
    )
    return reason(
        ReasonCode.NO_CPU_OR_MEMORY, sentence, asked_cpu_millis=pod.cpu_millis, asked_memory_mib=pod.memory_mib,
        free_cpu_millis=cpu, free_memory_mib=memory,
    )  # fmt: skip


def _share_reached(cluster: Cluster, request: Request) -> Reason:
    account = request.account
    share, used = account.share[GPU], account.allocated[GPU]
    held_by = cluster.holders_words(besides=account.name)
    with_own = f"project {account.name} may have {gpu_words(share)} now (quota {gpus(account.quota[GPU])}) and uses {gpus(used)}"
    sentence = f"The fair share is reached: {with_own}; this asks for {_asks(request)}. The rest is held by {held_by}."
    numbers: dict[str, int | str] = {"asked": request.ask[GPU], "fair_share": share, "used": used}
    if account.quota[GPU] < UNLIMITED:
        numbers["quota"] = account.quota[GPU]
    return reason(ReasonCode.FAIR_SHARE_REACHED, sentence, **numbers)


def _gang(cluster: Cluster, request: Request, spots: list[Spot]) -> Reason:
    gpu = request.pods[0].request.gpu
    each = gpu.whole or 1
    fit = min(len(request.pods) - 1, sum(max(0, spot.startable_gpus) // each for spot in spots))
    sentence = (
        f"Its {len(request.pods)} pods start together or not at all, and only {fit} of them {'fits' if fit == 1 else 'fit'} now "
        f"({gpu_words(request.pods[0].request.gpu.whole * 1000 or request.ask[GPU] // len(request.pods))} each). "
        f"{_held_by(cluster)}"
    )
    return reason(ReasonCode.GANG_DOES_NOT_FIT, sentence, fit=fit, pods=len(request.pods))


def _held_by(cluster: Cluster) -> str:
    if not cluster.holders:
        return "Nothing else runs: it is larger than the cluster."
    return f"The GPUs are held by {cluster.holders_words()}."


def _all_held(cluster: Cluster, request: Request, block: Spot, free: int) -> Reason:
    largest = max(0, block.startable_gpus)
    found = f"the largest free block is {gpu_words(largest * 1000)} on {block.node.name}" if largest else "none is free"
    sentence = (
        f"It asks for {_asks(request)} on one node, and {found}. They are held by {cluster.holders_words()}, and nothing of that "
        "may be stopped for it."
    )
    return reason(ReasonCode.NO_FREE_BLOCK, sentence, asked=request.ask[GPU], free=free * 1000, largest_block=largest, node=block.node.name)


def waiting_for_release(seat: Seat, leaving: list[Seat]) -> Reason:
    names = sorted({f"{s.workload.name} of {s.workload.project}" for s in leaving})
    until = max((s.pod.release_deadline or 0.0 for s in leaving), default=0.0)
    who = join(names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} others"]) if names else "what is being stopped there"
    many = len(names) > 1
    sentence = (
        f"Its place on {seat.spot.node.name} is kept while {who} shut{'' if many else 's'} down; it starts as soon as "
        f"{'they are' if many else 'that is'} gone, at the latest when the notice {'they were' if many else 'it was'} given has run out."
    )
    return reason(ReasonCode.WAITING_FOR_RELEASE, sentence, node=seat.spot.node.name, until=int(until))


def own_pods_stopping() -> Reason:
    return reason(ReasonCode.WAITING_FOR_RELEASE, "Its own pods are still shutting down; it is queued again when they are gone.")


def backing_off(workload: Workload) -> Reason:
    failed = [pod for pod in workload.pods if pod.exit_code not in (None, 0)]
    code = f" with exit code {failed[0].exit_code}" if failed else ""
    sentence = (
        f"It failed{code} ({workload.failures} of at most {workload.backoff_limit} retries) and is tried again after a pause. "
        "Its logs say why; delete it to stop the retries."
    )
    return reason(ReasonCode.BACKING_OFF, sentence, failures=workload.failures, limit=workload.backoff_limit)


def unknown_project(workload: Workload) -> Reason:
    return reason(
        ReasonCode.UNKNOWN_PROJECT,
        f"There is no project {workload.project} (any more). An admin has to create it, or submit this to another project.",
        project=workload.project,
    )


def kept(request: Request, owner: Workload) -> Reason:
    sentence = (
        f"What is free is kept for {owner.name} of {owner.project}, which has waited long; only preemptible work may run there until then."
    )
    return reason(ReasonCode.KEPT_FOR_OTHERS, sentence, by=owner.project, name=owner.name)


def kept_for_it(nodes: tuple[str, ...]) -> str:
    """For who has waited long (core/reserve)."""
    shown = list(nodes[:3]) + ([f"{len(nodes) - 3} more"] if len(nodes) > 3 else [])
    return f"{join(shown)} {'is' if len(nodes) == 1 else 'are'} kept for it: what starts there from now on gives way."
