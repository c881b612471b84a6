"""The wire: what REST `/v1` takes and answers, as pydantic models. OpenAPI is generated from them.

Units are in the names (`gpu_millis`, `memory_mib`, `cpu_millis`, `_s`); times are UTC. Unknown members are refused on the way in.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from hotdesk_api.units import NAME_MAX, NAME_PATTERN

API_VERSION = "v1"
MAX_ARGUMENTS_BYTES = 128 * 1024
MAX_PROGRAM_BYTES = 1024 * 1024

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=NAME_MAX)]
ClaimName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
KindName = Literal["train", "workspace", "interactive", "hpo", "mpi", "pytorch"]
Status = Literal[
    "Pending", "ContainerCreating", "Running", "Terminating", "Succeeded", "Failed", "TimedOut", "Stopped", "Suspended", "Deleting"
]
FINAL_STATUSES = frozenset({"Succeeded", "Failed", "TimedOut", "Stopped"})


class Wire(BaseModel):
    """Base of all models: closed, and read by name."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, defer_build=True)  # `runai` needs only a few of them, and soon


class Port(Wire):
    """`--port 8080` (host None: chosen) or `host:container`."""

    container: int = Field(ge=1, le=65535)
    host: int | None = Field(default=None, ge=1, le=65535)


class TolerationSpec(Wire):
    key: str = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str = ""
    effect: str = ""


class NodeRuleSpec(Wire):
    """About a label of a node, or its name (key `metadata.name`)."""

    key: str = Field(max_length=317)
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = "In"
    values: list[str] = Field(default_factory=list, max_length=1000)


NodeTerm = Annotated[list[NodeRuleSpec], Field(min_length=1, max_length=20)]


class WorkloadSpec(Wire):
    """What somebody submits. A missing name is generated (`job-N`). `program` is source text run by the image's interpreter."""

    name: Name | None = None
    name_prefix: Name | None = None
    project: Name
    kind: KindName = "train"
    image: str = ""
    command: list[str] = Field(default_factory=list, description="replaces the image's entry point")
    args: list[str] = Field(default_factory=list, description="appended to the command, or to the image's entry point")
    program: str | None = Field(default=None, description="source text run by the image's interpreter, at most 1 MiB")
    environment: dict[str, str] = Field(default_factory=dict)
    working_dir: str | None = None
    gpu_millis: int = Field(default=0, ge=0, description="thousandths: a multiple of 1000, or below 1000 for a fraction of one GPU")
    gpu_memory_mib: int | None = Field(default=None, ge=1, description="a share of one GPU by memory, instead of gpu_millis")
    cpu_millis: int | None = Field(default=None, ge=1)
    memory_mib: int | None = Field(default=None, ge=1)
    preemptible: bool | None = Field(default=None, description="None: as the kind says")
    priority: int | None = Field(default=None, ge=0, le=1000)
    parallelism: int | None = Field(default=None, ge=1)
    completions: int | None = Field(default=None, ge=1)
    workers: int | None = Field(default=None, ge=1)
    backoff_limit: int | None = Field(default=None, ge=0, le=1000)
    ttl_after_finish_s: int | None = Field(default=None, ge=0)
    node_type: str | None = None
    node_pools: list[str] = Field(default_factory=list)
    tolerations: list[TolerationSpec] = Field(default_factory=list)
    node_terms: list[NodeTerm] = Field(
        default_factory=list, max_length=20, description="only on nodes for which one of these holds with all of its rules"
    )
    volume_claims: list[ClaimName] = Field(
        default_factory=list, max_length=16, description="workspaces: claims whose volumes its pod uses; it is placed where they are"
    )
    service_type: str | None = None
    ports: list[Port] = Field(default_factory=list)
    large_shm: bool = False
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "Always"
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    command_line: str = Field(default="", description="the line as typed, for describe")
    server_name: str | None = Field(default=None, description="workspaces: the hub's server name ('' is the default server)")
    owner: str | None = Field(default=None, description="workspaces only, set by the hub's own service: whose it is")


class ReasonOut(Wire):
    code: str
    sentence: str
    numbers: dict[str, int | str] = Field(default_factory=dict)


class DeviceOut(Wire):
    index: int
    uuid: str
    model: str
    memory_mib: int
    simulated: bool
    allocated_millis: int = 0
    shared: bool = False
    utilisation_percent: float | None = None
    memory_used_mib: int | None = None


class PodOut(Wire):
    name: str
    index: int
    status: str
    node: str | None = None
    gpu_millis: int = 0
    devices: list[DeviceOut] = Field(default_factory=list)
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    attempt: int = 0
    error: str = ""


class PodGrant(Wire):
    """On a cluster: where the hub's spawner makes a workspace's pod, what marks it as the workload's, and what it may use."""

    namespace: str
    labels: dict[str, str]
    annotations: dict[str, str]
    config_map: str | None = Field(default=None, description="its share of a GPU: a ConfigMap there, to which its variables refer")
    config_keys: list[str] = Field(default_factory=list, description="variables that are keys of config_map")
    gpus: int = Field(default=0, description="whole ones, from the device plugin")
    cpu_millis: int = 0
    memory_mib: int = 0


class Grant(Wire):
    """For a workspace whose placement is granted: what its process must be started with."""

    node: str
    environment: dict[str, str]
    gpu_millis: int
    simulated: bool
    tier: str
    pod: PodGrant | None = None


class WorkloadOut(Wire):
    """One workload. Keys are fixed: `-o json` prints this."""

    id: str
    name: str
    project: str
    user: str
    kind: KindName
    type: str
    status: Status
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    image: str = ""
    priority: int
    preemptible: bool
    gpu_millis_requested: int
    gpu_memory_mib_requested: int | None = None
    gpu_millis_allocated: int
    cpu_millis: int = 0
    memory_mib: int = 0
    nodes: list[str] = Field(default_factory=list)
    running_pods: int = 0
    pending_pods: int = 0
    reason: ReasonOut | None = None
    queue_position: int | None = None
    progress: float | None = Field(default=None, description="0..1")
    message: str = ""
    service_urls: list[str] = Field(default_factory=list)
    simulated: bool = False
    created_by_cli: bool = Field(default=False, description="submitted with a command line (CLI or magic)")
    tier_requested: str = ""
    tier_verified: str = ""


class WorkloadDetail(WorkloadOut):
    """One workload with its pods, its spec and (workspaces, for the hub's service) the grant."""

    spec: WorkloadSpec
    pods: list[PodOut] = Field(default_factory=list)
    namespace: str = Field(default="", description="on a cluster: where `kubectl` finds it")
    grant: Grant | None = None


class WorkloadList(Wire):
    items: list[WorkloadOut]
    next: str | None = None


class EventOut(Wire):
    """`source` names the part; `type` is Normal or Warning; `reason` is one CamelCase word; `message` a sentence."""

    at: datetime
    type: Literal["Normal", "Warning"] = "Normal"
    source: str = "scheduler"
    reason: str
    message: str
    project: str | None = None
    workload: str | None = None
    user: str | None = None


class EventList(Wire):
    items: list[EventOut]


class Displaced(Wire):
    """A workload that would be stopped or moved; `reason` names the rule, and for a reclaim both sides before and after."""

    name: str
    project: str
    reason: ReasonOut


class Explanation(Wire):
    """Why, or what if: one sentence, then the numbers. `starts_now` is None for a workload that already runs or has ended."""

    sentence: str
    starts_now: bool | None = None
    node: str | None = None
    gpus: str | None = Field(default=None, description="on which GPU(s), in words")
    reason: ReasonOut | None = None
    queue_position: int | None = None
    quota_millis: int | None = None
    fair_share_millis: int | None = None
    used_millis: int = 0
    asked_millis: int = 0
    would_stop: list[Displaced] = Field(default_factory=list)
    would_move: list[Displaced] = Field(default_factory=list)
    what_would_help: str | None = None
    left_s: int | None = Field(default=None, description="in how many seconds it starts, or is tried again, at the latest")
    queue_length: int | None = Field(default=None, description="how many workloads wait, with this one")
    held_by: dict[str, int] = Field(default_factory=dict, description="project -> GPU thousandths of the nodes it may use, most first")
    stopped: ReasonOut | None = Field(default=None, description="who took its place when it was last stopped, by which rule; until it ends")


class NodeOut(Wire):
    name: str
    status: Literal["Ready", "NotReady"]
    role: str = "worker"
    address: str = ""
    gpus: int
    gpu_model: str
    gpu_memory_mib: int
    gpu_millis_allocated: int
    gpus_free: int
    cpu_millis: int
    cpu_millis_allocated: int
    memory_mib: int
    memory_mib_allocated: int
    node_type: str | None = None
    pool: str = "default"
    simulated: bool
    devices: list[DeviceOut] = Field(default_factory=list)


class NodeList(Wire):
    items: list[NodeOut]


class Entitlement(Wire):
    """What a project or department may have. -1 = unlimited / none."""

    name: Name
    gpu_quota_millis: int | None = Field(default=None, ge=-1)
    gpu_limit_millis: int | None = Field(default=None, ge=-1)
    gpu_over_quota_weight: int | None = Field(default=None, ge=0, description="thousandths")
    over_quota: bool | None = None
    priority: int | None = None
    cpu_quota_millis: int | None = Field(default=None, ge=-1)
    cpu_limit_millis: int | None = Field(default=None, ge=-1)
    memory_quota_mib: int | None = Field(default=None, ge=-1)
    memory_limit_mib: int | None = Field(default=None, ge=-1)


class DepartmentSpec(Entitlement):
    """Create or change a department; on PATCH only the members that are set change. GPU quota None: the sum of its projects'."""


class ProjectSpec(Entitlement):
    """Create or change a project; on PATCH only the members that are set change. `department` None: it stands beside the departments."""

    department: str | None = None
    interactive_time_limit_s: int | None = Field(default=None, ge=0)
    train_node_types: list[str] | None = None
    interactive_node_types: list[str] | None = None
    node_pools: list[str] | None = None


class ProjectOut(Wire):
    """None as quota or limit = unlimited / none. `gpu_millis_free_now`: what a preemptible request could take without any reclaim."""

    name: str
    department: str | None = None
    gpu_quota_millis: int | None
    gpu_limit_millis: int | None
    gpu_over_quota_weight: int | None = None
    gpu_over_quota_weight_now: int | None = Field(default=None, description="as past use leaves it, where past use counts")
    over_quota: bool = True
    priority: int = 0
    cpu_quota_millis: int | None = None
    memory_quota_mib: int | None = None
    gpu_millis_allocated: int
    gpu_millis_requested: int = 0
    fair_share_millis: int | None = None
    running: int = 0
    pending: int = 0
    interactive_time_limit_s: int | None = None
    train_node_types: list[str] = Field(default_factory=list)
    interactive_node_types: list[str] = Field(default_factory=list)
    created_at: datetime
    member: bool = True


class ProjectList(Wire):
    items: list[ProjectOut]


class DepartmentOut(Wire):
    """None as quota or limit = unlimited / none. `projects` are those the caller may see; every number is of all of its projects."""

    name: str
    projects: list[str] = Field(default_factory=list)
    gpu_quota_millis: int | None
    gpu_quota_is_sum: bool = Field(default=True, description="the GPU quota is the sum of its projects'")
    gpu_limit_millis: int | None
    gpu_over_quota_weight: int | None = None
    over_quota: bool = True
    priority: int = 0
    cpu_quota_millis: int | None = None
    cpu_limit_millis: int | None = None
    memory_quota_mib: int | None = None
    memory_limit_mib: int | None = None
    gpu_millis_allocated: int
    gpu_millis_requested: int = 0
    fair_share_millis: int | None = Field(default=None, description="the sum of its projects'")
    running: int = 0
    pending: int = 0
    created_at: datetime


class DepartmentList(Wire):
    items: list[DepartmentOut]


class ImageOut(Wire):
    name: str
    description: str


class ImageList(Wire):
    items: list[ImageOut]


class SchedulingSpec(Wire):
    """Hold scheduling (`paused`, and why) or let it go on."""

    paused: bool
    why: str = Field(default="", max_length=200)


class Scheduling(Wire):
    """Whether anything is started or stopped for others now; if not, who said so and when."""

    paused: bool
    by: str = ""
    since: datetime | None = None
    why: str = ""
    sentence: str = ""


class Cluster(Wire):
    """The whole cluster in a few numbers."""

    name: str = "hotdesk"
    engine: str
    simulated: bool
    nodes: int
    nodes_ready: int
    gpus: int
    gpus_in_use: int
    gpu_millis_allocated: int
    largest_free_block: int
    running: int
    pending: int
    version: int


class Me(Wire):
    name: str
    admin: bool
    projects: list[str]
    scopes: list[str]
    default_project: str | None = None


class Version(Wire):
    hotdesk: str
    api: str = API_VERSION
    engine: str
    simulated: bool


class Progress(Wire):
    """A running job tells how far it is (0..1) and, if it likes, its metrics."""

    progress: float | None = Field(default=None, ge=0, le=1)
    message: str = Field(default="", max_length=500)
    metrics: dict[str, float] = Field(default_factory=dict, max_length=100)


class PodReport(Wire):
    """The hub's spawner tells what became of a granted workspace."""

    state: Literal["running", "stopped", "failed", "succeeded"]
    exit_code: int | None = None


class StreamEvent(Wire):
    """One server-sent event of `/v1/events`: `workload` (changed, with its new view), `removed`, `event`, `cluster`."""

    kind: Literal["workload", "removed", "event", "cluster"]
    version: int
    workload: WorkloadOut | None = None
    event: EventOut | None = None
    name: str | None = None
    project: str | None = None
