"""The contract between the service and whatever runs pods. An engine holds the truth and never decides.

State that outlives the scheduler lives in the engine: projects, departments, workloads with their spec, pods, nominations.
Every method is idempotent: said twice it does no more than said once. A verb that fails becomes an event and a pod state, never a
lost pod. Errors a caller made are `hotdesk_api.errors`; anything else is a failure of the engine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from hotdesk_api.models import PodGrant, WorkloadSpec

from hotdesk_scheduler.core.model import Department, Phase, Placement, PodState, Project, Snapshot, Workload
from hotdesk_scheduler.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU as the engine knows it. `uuid` of a simulated one starts with `GPU-SIM-`."""

    index: int
    uuid: str
    model: str
    memory_mib: int
    simulated: bool
    utilisation_percent: float | None = None
    memory_used_mib: int | None = None


@dataclass(frozen=True, slots=True)
class PodDetails:
    """What the engine knows of a pod beyond the core: its devices, the environment of its share, its process, its ports.

    `grant`: how the hub makes a workspace's pod on a cluster. `name`: of a pod that others named. `namespace`: where on a cluster
    it and its workload are. `is_ready`: whether a granted workspace has what it starts with.
    """

    devices: tuple[Device, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    pid: int | None = None
    ports: Mapping[int, int] = field(default_factory=dict)
    tier: str = ""
    error: str = ""
    grant: PodGrant | None = None
    name: str = ""
    namespace: str = ""
    is_ready: bool = True


@dataclass(frozen=True, slots=True)
class Change:
    """Something happened. `kind` in: submitted, updated, removed, started, exited, released, lost, failed_verb, node, project."""

    kind: str
    workload_id: str | None = None
    index: int | None = None
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class Image:
    """An entry of the environment catalog."""

    name: str
    description: str
    kind_hint: str = "train"


class ExecSession(Protocol):
    """A command running inside a pod (`exec`, `bash`)."""

    async def read(self) -> tuple[int, bytes] | None:
        """Next (stream, data), stream 1 = stdout, 2 = stderr; None at the end."""

    async def write(self, data: bytes) -> None:
        """Feed stdin; b"" closes it."""

    async def resize(self, rows: int, columns: int) -> None: ...

    async def wait(self) -> int:
        """Exit code."""

    async def close(self) -> None:
        """End the command (its whole process group)."""


@runtime_checkable
class Mirror(Protocol):
    """An engine that shows what the service says where its own people look (`kubectl describe`). Neither does I/O nor fails."""

    def show_holds(self, reasons: Mapping[str, Reason]) -> None:
        """Why each waiting workload waits, after a plan."""

    def show_event(self, workload_id: str, kind: str, reason: str, sentence: str) -> None:
        """`kind` is Normal or Warning, `reason` one CamelCase word."""


@runtime_checkable
class Led(Protocol):
    """An engine of which several schedulers may be started: one leads, the others wait in `open()`."""

    async def lost(self) -> None:
        """Returns when another one leads: this process may do nothing any more, and ends."""


@runtime_checkable
class Keeper(Protocol):
    """An engine that keeps a text for the service where the next leader finds it; one that is kept takes the place of the one before."""

    async def keep(self, text: str) -> None: ...

    async def kept(self) -> str:
        """Empty if there is none."""


class Engine(Protocol):
    """See the module's text. `snapshot()` is cheap (no I/O) and consistent; its version grows with every change."""

    name: str
    pod_environment: Callable[[Workload], Mapping[str, str]]
    """Asked at each pod's start: variables that the service adds (where to report to, HOTDESK_REPORT_TOKEN). Set by it; default: none.

    They are added to workspaces' grants too, appear in no spec and no log, and lose against nothing the user sets.
    """

    async def open(self) -> None:
        """Take the state directory (refusing a second scheduler), read everything back, adopt what runs."""

    async def close(self) -> None:
        """Let go; pods keep running."""

    def snapshot(self) -> Snapshot: ...

    def find(self, workload_id: str) -> Workload | None:
        """A workload as the snapshot has it, without looking through all of them."""

    def changes(self) -> AsyncIterator[Change]:
        """Every change from now on; wakes the loop. May be called several times (each gets all)."""

    def spec(self, workload_id: str) -> WorkloadSpec: ...

    def details(self, workload_id: str, index: int) -> PodDetails: ...

    def devices(self, node: str) -> Sequence[Device]: ...

    def would_give(self, placement: Placement) -> Sequence[Device]:
        """The devices a pod would get there if it started now, for plans; `Conflict` if the place is not free."""

    def images(self) -> Sequence[Image]: ...

    async def check(self, spec: WorkloadSpec) -> None:
        """Raise `hotdesk_api.errors.Invalid` if this engine can never run it (unknown image, node type, volume form)."""

    # desired state
    async def put_project(self, project: Project) -> None: ...

    async def seed_projects(self, projects: Sequence[Project]) -> list[str]:
        """All of them if there is no project, and the rest of them if that was interrupted. The names of those it made."""

    async def delete_project(self, name: str) -> None: ...
    async def put_department(self, department: Department) -> None: ...
    async def delete_department(self, name: str) -> None: ...

    async def submit(self, workload: Workload, spec: WorkloadSpec) -> None:
        """Durable when it returns. `hotdesk_api.errors.Conflict` if the project has a workload of that name."""

    async def set_phase(self, workload_id: str, phase: Phase, reason: Reason | None, now: float) -> None:
        """ACTIVE (also: resume, which makes its ended pods pending), SUSPENDED, DELETING or a final phase. Stops nothing by itself."""

    async def forget(self, workload_id: str) -> None:
        """Remove it and its files; its pods hold nothing any more."""

    # pods
    async def start_pod(self, workload_id: str, index: int, placement: Placement, now: float) -> None:
        """PENDING -> STARTING at once (durably), then RUNNING, or FAILED with an event. A workspace is only granted its place.

        `started_at` of a workspace is None as long as its grant is not ready (`PodDetails.is_ready`): its time to be taken up begins then.
        """

    async def stop_pod(self, workload_id: str, index: int, reason: Reason, grace_s: float, now: float) -> None:
        """-> RELEASING: notice (SIGTERM), grace, SIGKILL of everything of it; then STOPPED. A workspace waits for `report_pod`."""

    async def nominate(self, workload_id: str, index: int, placement: Placement | None) -> None: ...

    async def requeue_pod(self, workload_id: str, index: int) -> None:
        """An ended pod (STOPPED, LOST, FAILED, SUCCEEDED of an hpo) becomes PENDING, attempt + 1, keeping why it stopped."""

    async def report_pod(self, workload_id: str, index: int, state: PodState, now: float, exit_code: int | None = None) -> None:
        """For pods whose process somebody else runs (kind workspace): RUNNING when taken up, STOPPED, FAILED or SUCCEEDED at its end."""

    # inside a pod
    def logs(
        self,
        workload_id: str,
        index: int,
        *,
        tail: int | None = None,
        since: float | None = None,
        follow: bool = False,
        timestamps: bool = False,
    ) -> AsyncIterator[bytes]: ...

    async def exec(
        self, workload_id: str, index: int, argv: Sequence[str], *, tty: bool, rows: int = 24, columns: int = 80
    ) -> ExecSession: ...
