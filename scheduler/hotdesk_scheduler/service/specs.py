"""From what somebody submits to the core's workload: defaults of the kind, checks with sentences, generated names.

What can never be right is refused here. What only quota forbids is accepted and held with its reason (scheduling.md 2).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from hotdesk_api.errors import Invalid, TooLarge
from hotdesk_api.models import MAX_ARGUMENTS_BYTES, MAX_PROGRAM_BYTES, WorkloadSpec
from hotdesk_api.units import WHOLE_GPU, format_gpus

from hotdesk_scheduler.core.model import HOLDING, GpuRequest, Kind, Node, NodeRule, Pod, PodRequest, Snapshot, Toleration, Workload
from hotdesk_scheduler.core.quantities import CPU, MEMORY, amount_words

DEFAULT_CPU_MILLIS = 100
DEFAULT_MEMORY_MIB = 128
MAX_PODS = 1000
MAX_COMPLETIONS = 1_000_000
MAX_SECONDS = 10 * 365 * 86400
KEPT_FOR_GPUS = Toleration(key="nvidia.com/gpu", operator="Exists")
"""Of whoever asks for a GPU, for nodes that a taint keeps for them: as Kubernetes' admission ExtendedResourceToleration has it."""
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class KindDefaults:
    """scheduling.md 2, classes."""

    priority: int
    preemptible: bool
    backoff_limit: int


_TRAIN = KindDefaults(priority=50, preemptible=True, backoff_limit=6)
_INTERACTIVE = KindDefaults(priority=100, preemptible=False, backoff_limit=0)
_INTERACTIVE_PREEMPTIBLE_PRIORITY = 75
DEFAULTS = {
    Kind.TRAIN: _TRAIN,
    Kind.HPO: _TRAIN,
    Kind.MPI: _TRAIN,
    Kind.PYTORCH: _TRAIN,
    Kind.INTERACTIVE: _INTERACTIVE,
    Kind.WORKSPACE: _INTERACTIVE,
    Kind.INFERENCE: KindDefaults(priority=125, preemptible=False, backoff_limit=6),
}


def _kind(spec: WorkloadSpec) -> Kind:
    asked = Kind(spec.kind)
    return Kind.HPO if asked is Kind.TRAIN and (spec.completions or spec.parallelism) else asked


def _pods_wanted(spec: WorkloadSpec, kind: Kind) -> int:
    if kind is Kind.HPO:
        return min(spec.parallelism or 1, spec.completions or spec.parallelism or 1)
    return spec.workers or 1


def workload_of(spec: WorkloadSpec, *, workload_id: str, name: str, user: str, now: float) -> Workload:
    """The core's view of a checked spec."""
    kind = _kind(spec)
    defaults = DEFAULTS[kind]
    preemptible = defaults.preemptible if spec.preemptible is None else spec.preemptible
    softened = defaults is _INTERACTIVE and preemptible
    priority = spec.priority if spec.priority is not None else _INTERACTIVE_PREEMPTIBLE_PRIORITY if softened else defaults.priority
    pods = _pods_wanted(spec, kind)
    request = pod_request(spec)
    return Workload(
        id=workload_id,
        name=name,
        project=spec.project,
        kind=kind,
        user=user,
        priority=priority,
        preemptible=preemptible,
        min_pods=1 if kind is Kind.HPO else pods,
        pods=tuple(Pod(index=index, request=request) for index in range(pods)),
        created_at=now,
        parallelism=spec.parallelism if kind is Kind.HPO else None,
        completions=(spec.completions or spec.parallelism) if kind is Kind.HPO else None,
        backoff_limit=defaults.backoff_limit if spec.backoff_limit is None else spec.backoff_limit,
        ttl_after_finish_s=None if spec.ttl_after_finish_s is None else float(spec.ttl_after_finish_s),
        node_type=spec.node_type,
        node_pools=tuple(spec.node_pools),
        tolerations=_tolerations(spec, request),
        node_terms=tuple(tuple(NodeRule(r.key, r.operator, tuple(r.values)) for r in term) for term in spec.node_terms),
    )


def _tolerations(spec: WorkloadSpec, request: PodRequest) -> tuple[Toleration, ...]:
    asked = tuple(Toleration(key=t.key, operator=t.operator, value=t.value, effect=t.effect) for t in spec.tolerations)
    return asked if request.gpu.is_none or KEPT_FOR_GPUS in asked else (*asked, KEPT_FOR_GPUS)


def pod_request(spec: WorkloadSpec) -> PodRequest:
    """What one pod asks for; CPU and memory default to little, so that they bind only where somebody asks for much."""
    if spec.gpu_memory_mib:
        gpu = GpuRequest(memory_mib=spec.gpu_memory_mib)
    elif spec.gpu_millis >= WHOLE_GPU:
        gpu = GpuRequest(whole=spec.gpu_millis // WHOLE_GPU)
    else:
        gpu = GpuRequest(millis=spec.gpu_millis)
    return PodRequest(gpu=gpu, cpu_millis=spec.cpu_millis or DEFAULT_CPU_MILLIS, memory_mib=spec.memory_mib or DEFAULT_MEMORY_MIB)


def generated_name(prefix: str | None, taken: Collection[str], start: int = 0) -> str:
    """`job-N`, or `PREFIX-N`, with the first free N from `start` on."""
    stem = (prefix or "job")[:56]
    number = start
    while f"{stem}-{number}" in taken:
        number += 1
    return f"{stem}-{number}"


def check(spec: WorkloadSpec, snapshot: Snapshot) -> None:
    """Raise Invalid or TooLarge, with a sentence, for what can never be right on this cluster."""
    check_alone(spec)
    _check_node_type(spec, snapshot.nodes)
    _check_fits_a_node(spec, snapshot)


def check_alone(spec: WorkloadSpec) -> None:
    """What is wrong on whatever cluster. Raises Invalid or TooLarge."""
    _check_gpus(spec)
    _check_sizes(spec)
    _check_counts(spec)
    _check_environment(spec)


def _check_gpus(spec: WorkloadSpec) -> None:
    millis = spec.gpu_millis
    if millis and spec.gpu_memory_mib:
        raise Invalid(
            "Ask for GPUs either by number or by memory, not both.", field="gpu_memory_mib", next_step="Leave out one of the two."
        )
    if millis > WHOLE_GPU and millis % WHOLE_GPU:
        whole = millis // WHOLE_GPU
        raise Invalid(
            f"{format_gpus(millis)} GPUs: above one GPU only whole numbers can be asked for.",
            field="gpu_millis",
            value=millis,
            next_step=f"Ask for {whole} or {whole + 1}, or for a fraction below 1.",
        )


def _check_sizes(spec: WorkloadSpec) -> None:
    words = [*spec.command, *spec.args, *(f"{name}={value}" for name, value in spec.environment.items())]
    size = sum(len(word.encode(errors="surrogatepass")) + 1 for word in words)
    if size > MAX_ARGUMENTS_BYTES:
        raise TooLarge(
            f"Command, arguments and environment have {size:,} bytes together; at most {MAX_ARGUMENTS_BYTES:,} are possible.",
            field="args",
            limit=MAX_ARGUMENTS_BYTES,
            value=size,
            next_step="Put the data into a file and pass its path.",
        )
    program = len((spec.program or "").encode(errors="surrogatepass"))
    if program > MAX_PROGRAM_BYTES:
        raise TooLarge(
            f"The program has {program:,} bytes; at most {MAX_PROGRAM_BYTES:,} are possible.",
            field="program",
            limit=MAX_PROGRAM_BYTES,
            value=program,
            next_step="Put it into a file and run that.",
        )
    if any("\0" in word for word in (*words, spec.program or "", spec.working_dir or "")):
        raise Invalid("A NUL character cannot be part of a command, its arguments, its program or its environment.", field="args")


def _check_counts(spec: WorkloadSpec) -> None:
    limits = {
        "parallelism": MAX_PODS,
        "workers": MAX_PODS,
        "completions": MAX_COMPLETIONS,
        "ttl_after_finish_s": MAX_SECONDS,
    }
    for name, limit in limits.items():
        value = getattr(spec, name)
        if value is not None and value > limit:
            raise Invalid(
                f"{name} {value} is more than the {limit} there may be.",
                field=name,
                value=str(value),
                limit=limit,
                next_step=f"Ask for {limit} or less.",
            )
    if (spec.parallelism or 1) > 1 and spec.completions is None:
        raise Invalid(
            f"parallelism {spec.parallelism} needs completions: how many runs are there to be in all?",
            field="completions",
            next_step="Add `--completions N`.",
        )
    if spec.kind in {"interactive", "workspace"} and (spec.parallelism or spec.completions):
        raise Invalid("parallelism and completions are for training, not for interactive work.", field="parallelism", value=spec.kind)


def _check_environment(spec: WorkloadSpec) -> None:
    for name in spec.environment:
        if not _ENVIRONMENT_NAME.match(name):
            raise Invalid(
                f"{name!r} is not the name of a variable: letters, digits and _, not starting with a digit.",
                field="environment",
                value=name[:100],
                next_step="Write `-e NAME=value`.",
            )


def _check_node_type(spec: WorkloadSpec, nodes: Iterable[Node]) -> None:
    known = sorted({node.node_type for node in nodes if node.node_type})
    if spec.node_type and spec.node_type not in known:
        raise Invalid(
            f"There is no node of type {spec.node_type}.",
            field="node_type",
            value=spec.node_type,
            next_step=f"Types here: {', '.join(known)}." if known else "No node here has a type; leave --node-type out.",
        )
    pools = sorted({node.pool for node in nodes})
    for pool in spec.node_pools:
        if pool not in pools:
            raise Invalid(f"There is no node pool {pool}.", field="node_pools", value=pool, next_step=f"Pools here: {', '.join(pools)}.")


def _check_fits_a_node(spec: WorkloadSpec, snapshot: Snapshot) -> None:
    nodes = [node for node in snapshot.nodes if spec.node_type in (None, node.node_type)]
    if not nodes:
        return  # A cluster without nodes may get some; it is held with its reason.
    request = pod_request(spec)
    most = max(node.gpus for node in nodes)
    if request.gpu.whole > most:
        free = free_gpus(snapshot)
        largest = max((node for node in nodes if node.gpus == most), key=lambda node: (free[node.name], node.name))
        raise Invalid(
            f"No node has {request.gpu.whole} GPUs: the largest, {largest.name}, has {most} ({free[largest.name]} free now).",
            field="gpu_millis",
            value=request.gpu.whole,
            limit=most,
            next_step=f"Ask for at most {most} on one node; `runai list nodes` shows them.",
        )
    if request.gpu.millis and not most:
        raise Invalid("No node here has a GPU.", field="gpu_millis", value=request.gpu.millis, limit=0, next_step="Submit it without -g.")
    gpu_nodes = [node for node in nodes if node.gpus]
    if request.gpu.memory_mib and not any(node.gpu_memory_mib for node in gpu_nodes):
        raise Invalid(
            "Nothing here tells how much memory a GPU has.",
            field="gpu_memory_mib",
            value=request.gpu.memory_mib,
            next_step="Ask for a part of one, such as -g 0.5. On Kubernetes nodes tell it with their label nvidia.com/gpu.memory.",
        )
    _check_amount("gpu_memory_mib", request.gpu.memory_mib, gpu_nodes, lambda mib: f"{mib} MiB of memory on one GPU")
    _check_amount("cpu_millis", request.cpu_millis, nodes, lambda millis: amount_words(millis, CPU))
    _check_amount("memory_mib", request.memory_mib, nodes, lambda mib: amount_words(mib, MEMORY))


def _check_amount(field: str, asked: int, nodes: Sequence[Node], words: Callable[[int], str]) -> None:
    """`field` is what the amount is called of a specification and of a node."""
    amount = attrgetter(field)
    limit = max(map(amount, nodes), default=0)
    if asked > limit:
        largest = max((node.name for node in nodes if amount(node) == limit), default="")
        where = f"the largest, {largest}, has {words(limit)}" if largest else "none has any"
        raise Invalid(
            f"No node has {words(asked)}: {where}.",
            field=field,
            value=str(asked),
            limit=limit,
            next_step=f"Ask for at most {words(limit)}; `runai list nodes` shows them.",
        )


def free_gpus(snapshot: Snapshot) -> dict[str, int]:
    """By node: devices that nobody holds a part of."""
    whole = {node.name: 0 for node in snapshot.nodes}
    groups: dict[str, set[str]] = {node.name: set() for node in snapshot.nodes}
    for workload in snapshot.workloads:
        for pod in workload.pods:
            if pod.placement is not None and pod.placement.node in whole and pod.state in HOLDING:
                whole[pod.placement.node] += pod.placement.whole
                groups[pod.placement.node].update(share.group for share in pod.placement.shares)
    foreign = {node.name: -(-node.foreign.gpu_millis // WHOLE_GPU) for node in snapshot.nodes}
    return {node.name: max(0, node.gpus - whole[node.name] - len(groups[node.name]) - foreign[node.name]) for node in snapshot.nodes}
