"""What the scheduler decides about: nodes, projects, workloads and their pods, as frozen values.

All amounts are integers: GPUs in thousandths (`gpu_millis`, 1000 = one GPU), CPU in thousandths of a core, memory in MiB.
Times are seconds since the epoch, passed in. `None` as a quota, limit or share means unlimited.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hotdesk_scheduler.core.reasons import Reason

WHOLE_GPU = 1000


class Kind(StrEnum):
    """What a workload is for (design.md 2)."""

    TRAIN = "train"
    WORKSPACE = "workspace"
    INTERACTIVE = "interactive"
    HPO = "hpo"
    MPI = "mpi"
    PYTORCH = "pytorch"
    INFERENCE = "inference"


class Phase(StrEnum):
    """Where a workload stands as a whole. ACTIVE ones are scheduled; the last five are final (SUSPENDED and STOPPED can be resumed)."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    DELETING = "deleting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"


class PodState(StrEnum):
    """Life of one pod. STARTING, RUNNING and RELEASING pods hold their placement; the engine sets everything from STARTING on.

    STOPPED (ended because we stopped it) and LOST (its process or node vanished without an exit record) wait for `lifecycle.review`,
    which requeues or ends them.
    """

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    RELEASING = "releasing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"


HOLDING = frozenset({PodState.STARTING, PodState.RUNNING, PodState.RELEASING})


@dataclass(frozen=True, slots=True)
class Resources:
    """An amount of each resource."""

    gpu_millis: int = 0
    cpu_millis: int = 0
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """One of: nothing, `whole` GPUs, `millis` of one GPU (0 < millis < 1000), or `memory_mib` of one GPU (scheduling.md 1).

    `devices` asks for the same fraction on several devices of one node (`2 x 0.5`).
    """

    whole: int = 0
    millis: int = 0
    memory_mib: int = 0
    devices: int = 1

    def __post_init__(self) -> None:
        forms = (self.whole > 0) + (self.millis > 0) + (self.memory_mib > 0)
        if forms > 1 or min(self.whole, self.millis, self.memory_mib) < 0 or self.millis >= WHOLE_GPU or self.devices < 1:
            raise ValueError(f"not a GPU request: {self!r}")

    @property
    def is_none(self) -> bool:
        return not (self.whole or self.millis or self.memory_mib)


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What one pod asks for."""

    gpu: GpuRequest = field(default_factory=GpuRequest)
    cpu_millis: int = 0
    memory_mib: int = 0

    def __post_init__(self) -> None:
        if self.cpu_millis < 0 or self.memory_mib < 0:
            raise ValueError(f"not a pod's request: {self!r}")


@dataclass(frozen=True, slots=True)
class Share:
    """A part of one shared GPU; `group` names the shared GPU on its node, engines map it to a device."""

    group: str
    millis: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a pod sits: a node, and there either `whole` GPUs, or shares of shared GPUs, or (CPU only) neither."""

    node: str
    whole: int = 0
    shares: tuple[Share, ...] = ()

    @property
    def gpu_millis(self) -> int:
        if not self.shares:
            return self.whole * WHOLE_GPU
        return self.whole * WHOLE_GPU + sum(share.millis for share in self.shares)


@dataclass(frozen=True, slots=True)
class Pod:
    """One unit of placement. `nominated` is the place it keeps while it waits for a release (scheduling.md 4, allocate)."""

    index: int
    request: PodRequest
    state: PodState = PodState.PENDING
    placement: Placement | None = None
    nominated: Placement | None = None
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    attempt: int = 0
    release_deadline: float | None = None
    stop_reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class Volume:
    """Something stored that its pods use, within reach of some nodes only: those for which one of `terms` holds whole."""

    name: str
    terms: tuple[tuple[NodeRule, ...], ...]


@dataclass(frozen=True, slots=True)
class Scarce:
    """Something else that its pods ask for, which is not counted here (`1 rdma/hca`), and the nodes that have too little of it free now.

    `could`: there is enough of it where nothing holds it.
    """

    what: str
    lacking: tuple[str, ...]
    could: bool = True


@dataclass(frozen=True, slots=True)
class Workload:
    """Anything submitted. `id` is new for each creation and stable over preemption; names are unique inside a project.

    `min_pods` pods start together or not at all. `pods` are those that exist at once: for hpo (`completions` set) there are
    `min(parallelism, completions left)` of them, and `succeeded` counts the completions that are done. Where others make the pods
    there may be fewer than `min_pods` for a while, and their indexes need not be without gaps.
    """

    id: str
    name: str
    project: str
    kind: Kind
    user: str = ""
    priority: int = 50
    preemptible: bool = True
    min_pods: int = 1
    pods: tuple[Pod, ...] = ()
    created_at: float = 0.0
    phase: Phase = Phase.ACTIVE
    phase_reason: Reason | None = None
    finished_at: float | None = None
    parallelism: int | None = None
    completions: int | None = None
    succeeded: int = 0
    failures: int = 0
    backoff_limit: int = 6
    ttl_after_finish_s: float | None = None
    node_type: str | None = None
    node_pools: tuple[str, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    node_terms: tuple[tuple[NodeRule, ...], ...] = ()
    """Of the nodes it may use one of these holds whole; none means any."""
    volumes: tuple[Volume, ...] = ()
    scarce: tuple[Scarce, ...] = ()
    idle_s: float | None = None
    short_of_gang_since: float | None = None
    lost_node: bool = False


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class Toleration:
    """Kubernetes' form: an empty key with operator Exists tolerates everything."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class NodeRule:
    """Kubernetes' form, about a label of a node: `operator` is In, NotIn, Exists, DoesNotExist, Gt or Lt. NODE_NAME is its name."""

    key: str
    operator: str = "In"
    values: tuple[str, ...] = ()


NODE_NAME = "metadata.name"


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with `gpus` identical devices. `foreign` is what other schedulers' work holds there (subtracted from what is free).

    `foreign_pods`: how many of `max_pods` are others'.
    `closed_groups`: shared GPUs there that nobody may join any more (a device that broke); who is on one stays.
    """

    name: str
    gpus: int = 0
    gpu_memory_mib: int = 0
    cpu_millis: int = 0
    memory_mib: int = 0
    gpu_model: str = ""
    node_type: str | None = None
    pool: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    max_pods: int | None = None
    ready: bool = True
    simulated: bool = False
    foreign: Resources = field(default_factory=Resources)
    foreign_pods: int = 0
    address: str = ""
    closed_groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Quota:
    """Quota (guaranteed) and limit (hard cap) of one resource; None = unlimited / no limit."""

    quota: int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Department:
    """A parent of projects with the same kind of entitlement; with `quota_is_sum` its GPU quota is the sum of its projects'."""

    name: str
    gpu: Quota = field(default_factory=lambda: Quota(quota=None))
    cpu: Quota = field(default_factory=Quota)
    memory: Quota = field(default_factory=Quota)
    quota_is_sum: bool = True
    weight: int | None = None
    priority: int = 0
    over_quota: bool = True
    created_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Project:
    """The quota unit. `weight` is in thousandths like GPUs; None = its GPU quota, 1000 if that is unlimited (scheduling.md 2)."""

    name: str
    department: str | None = None
    gpu: Quota = field(default_factory=lambda: Quota(quota=0))
    cpu: Quota = field(default_factory=Quota)
    memory: Quota = field(default_factory=Quota)
    weight: int | None = None
    priority: int = 0
    over_quota: bool = True
    created_at: float = 0.0
    train_node_types: tuple[str, ...] = ()
    interactive_node_types: tuple[str, ...] = ()
    node_pools: tuple[str, ...] = ()
    interactive_time_limit_s: float | None = None
    idle_limit_interactive_s: float | None = None
    idle_limit_preemptible_s: float | None = None
    idle_limit_train_s: float | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings of the scheduler that hold for the whole cluster (scenarios/README: `policy`)."""

    max_moves: int | None = 16
    stale_grace_s: float = 60.0
    min_runtime_s: float = 0.0
    preemption_delay_s: float = 0.0
    reserve_after_s: float | None = None
    grace_s: float = 30.0
    placement: str = "binpack"
    history_weight: float = 0.0
    """How much past use corrects over-quota weights (k of scheduling.md 3.3), to the thousandth; 0 = not at all."""
    grant_take_up_s: float = 600.0
    paused: Reason | None = None
    """Why nothing is started and nothing stopped for others now; what runs goes on, ends and is counted as ever."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Requests seen so far: (request of a pod, node types it named, how many), in a fixed order. Learnt by `mix.Learner`."""

    requests: tuple[tuple[PodRequest, tuple[str, ...], int], ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent view of the cluster, stamped with the engine's version. Order of the tuples carries no meaning.

    `mix` is what placement keeps room for (scheduling.md 5); without one the everyday rules decide alone.
    """

    version: int
    nodes: tuple[Node, ...]
    departments: tuple[Department, ...]
    projects: tuple[Project, ...]
    workloads: tuple[Workload, ...]
    mix: Mix | None = None
    usage: tuple[tuple[str, int], ...] = ()
    """Past use of each project (`history.Usage`); counts only with `Policy.history_weight`."""
