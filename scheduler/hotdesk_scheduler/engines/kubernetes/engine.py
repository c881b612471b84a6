"""The engine of a Kubernetes cluster. This module is the contract (`engines/base.py`) and nothing else.

`book` is what is known, `intake` hears of it, `pods` and `saving` carry it out, `lease` says who may. Memory is ahead of the API server
by what is under way: whoever takes over reads the pods that exist and the statuses that are written, and decides the rest again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hotdesk_api.errors import Conflict, Invalid, Unavailable
from hotdesk_api.models import WorkloadSpec

from hotdesk_scheduler.core.model import (
    HOLDING,
    Department,
    Kind,
    Phase,
    Placement,
    Pod,
    PodState,
    Project,
    Snapshot,
    Workload,
)
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines import transitions
from hotdesk_scheduler.engines.base import Change, Device, ExecSession, Image, PodDetails
from hotdesk_scheduler.engines.kubernetes import check, inside, manifests, objects, reserving
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError, Json
from hotdesk_scheduler.engines.kubernetes.book import Book
from hotdesk_scheduler.engines.kubernetes.desired import Desired
from hotdesk_scheduler.engines.kubernetes.entry import Entry
from hotdesk_scheduler.engines.kubernetes.events import Events
from hotdesk_scheduler.engines.kubernetes.intake import Intake, Resolve
from hotdesk_scheduler.engines.kubernetes.lease import Lease, Terms
from hotdesk_scheduler.engines.kubernetes.pods import Pods
from hotdesk_scheduler.engines.kubernetes.reservation import DEFAULT_IMAGE
from hotdesk_scheduler.engines.kubernetes.reserving import Reservations
from hotdesk_scheduler.engines.kubernetes.saving import Saving
from hotdesk_scheduler.engines.kubernetes.shares import Shares
from hotdesk_scheduler.engines.kubernetes.watch import Key

CLOSE_S, EVENTS_S = 5.0, 2.0
LEADS_LABEL = "hotdesk.io/leads"


@dataclass(frozen=True, slots=True)
class KubernetesConfig:
    """`namespace`: where Hotdesk itself is installed, with projects, departments and lease. `prefix` + project: where workloads live.

    `pod`: the one this process runs in, if it does. `reservations`: where GPUs are set aside for sharing; default: NAMESPACE-reservations.
    `resolve` says what a Workload comes to that somebody wrote by hand (service/specs.py).
    """

    namespace: str = "hotdesk"
    prefix: str = "hotdesk-"
    pod: str | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    terms: Terms = field(default_factory=Terms)
    node_patience_s: float = 60.0
    resolve: Resolve | None = None
    reservations: str = ""
    reservation_image: str = DEFAULT_IMAGE
    reservation_patience_s: float = 120.0

    @property
    def reserving(self) -> reserving.Terms:
        namespace = self.reservations or f"{self.namespace}-reservations"
        return reserving.Terms(namespace, self.reservation_image or DEFAULT_IMAGE, self.reservation_patience_s, self.namespace)


EXPLAINED_EVERY_S = 10.0  # at most, while only the words of a reason change


class KubernetesEngine:
    """See `engines.base.Engine`. `open()` waits until this process leads; `lost` is called once when it does not any more."""

    name = "kubernetes"

    def __init__(self, config: KubernetesConfig) -> None:
        self.config = config
        self.pod_environment: Callable[[Workload], Mapping[str, str]] = lambda workload: {}
        self._book = Book(version=int(time.time() * 1000))
        self._shares = Shares(self._book, added=self._added)
        self._is_closed = False
        self._opening: Intake | None = None

    async def open(self) -> None:
        self._api = await Api.connect(self.config.kubeconfig, self.config.context)
        identity = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._own_api = await Api.connect(self.config.kubeconfig, self.config.context)
        self._lease = Lease(self._own_api, self.config.namespace, identity, terms=self.config.terms)
        try:
            await objects.check_definitions(self._api)
            await self._take_lease()
            self._api.may_write = self._lease.holds
            self._saving = Saving(self._api, note=self._note, see=self._see, is_over=self._is_over)
            self._reservations = Reservations(
                self._api, self._book, self.config.reserving, give_up=self._give_up, see=self._see_pod, is_over=self._is_over
            )
            self._pods = Pods(
                self._api,
                self._book,
                self._saving,
                shares=self._shares,
                reservations=self._reservations,
                take_in_again=self._take_in_again,
                is_over=self._is_over,
            )
            self._intake = self._opening = Intake(
                self._api,
                self._book,
                self._pods,
                self._saving,
                namespace=self.config.namespace,
                prefix=self.config.prefix,
                resolve=self.config.resolve or check.plainly_resolved,
                node_patience_s=self.config.node_patience_s,
                is_over=self._is_over,
            )
            await self._intake.start()
            places = {"namespace": self.config.namespace, "prefix": self.config.prefix}
            self._desired = Desired(self._api, self._book, self._intake, self._saving, **places)
            self._events = Events(self._api)
        except (ApiError, TimeoutError) as error:
            await self._let_go()
            next_step = "See that its API server answers, and what this account may do there."
            raise Unavailable(f"The cluster could not be read: {error}", next_step=next_step) from error
        except BaseException:
            await self._let_go()
            raise

    async def _let_go(self) -> None:
        """Of what could be had of an opening that did not succeed."""
        self._is_closed = True
        if self._opening is not None:
            await self._opening.stop()
        await self._lease.give_up()
        await self._own_api.close()
        await self._api.close()

    async def _take_lease(self) -> None:
        """Marked while it leads: the Service of the installation sends requests to the pod with that label.

        Alone: who led before cannot take its own mark off when its node has died, and would get a share of the requests until the
        cluster calls that node lost.
        """
        await self._mark(False)
        await self._lease.take()
        if self.config.pod is not None:
            with contextlib.suppress(ApiError):  # gone meanwhile, or kept by somebody: the cluster finds out by itself, later
                for other in await objects.pods_with(self._own_api, self.config.namespace, f"{LEADS_LABEL}=true"):
                    await objects.label_pod(self._own_api, self.config.namespace, other, {LEADS_LABEL: None})
        await self._mark(True)

    async def _mark(self, leads: bool) -> None:
        if self.config.pod is not None:
            await objects.label_pod(self._own_api, self.config.namespace, self.config.pod, {LEADS_LABEL: "true" if leads else None})

    async def close(self) -> None:
        await self._intake.stop()
        within_s = 0.0 if self._lease.lost.is_set() else CLOSE_S  # what is under way may not arrive late
        await self._reservations.close()
        await self._pods.close(within_s)
        await self._saving.close(within_s)
        await self._events.close(min(within_s, EVENTS_S))
        self._is_closed = True
        with contextlib.suppress(ApiError):
            await self._mark(False)
        await self._lease.give_up()
        self._book.close()
        await self._own_api.close()
        await self._api.close()

    async def lost(self) -> None:
        """Returns when another scheduler leads: this one may do nothing any more, and ends."""
        await self._lease.lost.wait()

    async def keep(self, text: str) -> None:
        with objects.told():
            await self._lease.keep(text)

    async def kept(self) -> str:
        with objects.told():
            return await self._lease.kept()

    @property
    def requests(self) -> int:
        """Sent to the API server so far, apart from those about who leads."""
        return self._api.requests

    def _note(self, key: Key, version: int) -> None:
        self._intake.workloads.note(key, version)

    def _see(self, item: Json) -> None:
        self._intake.workloads.put(item)

    def _see_pod(self, item: Json) -> None:
        self._intake.pods.put(item)

    def _give_up(self, entry: Entry, index: int, sentence: str) -> None:
        self._pods.give_up(entry, index, sentence)

    def _take_in_again(self, entry: Entry, index: int) -> None:
        self._intake.claimed.take_in_again(entry, index)

    def _added(self, workload: Workload) -> Mapping[str, str]:
        return self.pod_environment(workload)

    def _is_over(self) -> bool:
        return self._is_closed or self._lease.lost.is_set()

    # what is

    def snapshot(self) -> Snapshot:
        return self._book.snapshot()

    def show_holds(self, reasons: Mapping[str, Reason]) -> None:
        """In the condition `Scheduled`; written again when the main reason is another one, or what is scarce is elsewhere."""
        now = time.monotonic()
        for workload_id, entry in self._book.entries.items():
            reason = reasons.get(workload_id)
            is_another = (entry.hold.code if entry.hold else None) is not (reason.code if reason else None)
            if is_another or (entry.workload.scarce and reason != entry.hold and now - entry.explained_at > EXPLAINED_EVERY_S):
                entry.hold, entry.explained_at = reason, now
                if reason is not None:
                    self._saving.soon(entry)
            elif reason is not None and reason.code is ReasonCode.GANG_INCOMPLETE and reason != entry.hold:
                entry.hold = reason
                self._intake.claimed.retell(entry)

    def show_event(self, workload_id: str, kind: str, reason: str, sentence: str) -> None:
        entry = self._book.entries.get(workload_id)
        if entry is not None and not self._is_over():
            self._events.add(entry, kind, reason, sentence)

    def find(self, workload_id: str) -> Workload | None:
        entry = self._book.entries.get(workload_id)
        return entry.workload if entry else None

    def changes(self) -> AsyncIterator[Change]:
        return self._book.listen()

    def spec(self, workload_id: str) -> WorkloadSpec:
        return self._book.entry(workload_id).spec

    def details(self, workload_id: str, index: int) -> PodDetails:
        details, member = self._shares.details(workload_id, index), self._book.entry(workload_id).members.get(index)
        return replace(details, name=member.name) if member is not None else details

    def devices(self, node: str) -> Sequence[Device]:
        return self._shares.devices(node)

    def would_give(self, placement: Placement) -> Sequence[Device]:
        return self._shares.would_give(placement)

    def images(self) -> Sequence[Image]:
        """Any image of any registry: there is no list of them."""
        return ()

    async def check(self, spec: WorkloadSpec) -> None:
        check.check(spec, self._book.nodes.values())

    # desired state

    async def put_project(self, project: Project) -> None:
        await self._desired.put_project(project)

    async def seed_projects(self, projects: Sequence[Project]) -> list[str]:
        return await self._desired.seed_projects(projects)

    async def delete_project(self, name: str) -> None:
        await self._desired.delete_project(name)

    async def put_department(self, department: Department) -> None:
        await self._desired.put_department(department)

    async def delete_department(self, name: str) -> None:
        await self._desired.delete_department(name)

    async def submit(self, workload: Workload, spec: WorkloadSpec) -> None:
        await self._desired.submit(workload, spec)

    async def set_phase(self, workload_id: str, phase: Phase, reason: Reason | None, now: float) -> None:
        await self._desired.set_phase(workload_id, phase, reason, now)

    async def forget(self, workload_id: str) -> None:
        await self._desired.forget(workload_id)

    # pods

    async def start_pod(self, workload_id: str, index: int, placement: Placement, now: float) -> None:
        entry = self._book.entry(workload_id)
        pod = entry.pod(index)
        if pod.state is not PodState.PENDING:
            return
        held = self._book.would_give(placement)
        if held:
            self._book.grant(entry, index, placement.node, held)
        entry.errors.pop(index, None)
        entry.hold = None
        workload, begun = replace(entry.workload, lost_node=False), transitions.started(pod, placement, now)
        if workload.kind is Kind.WORKSPACE and self._book.is_reserved(placement):
            begun = replace(begun, started_at=None)  # its time begins when its grant is shown
        self._put(entry, transitions.with_pod(workload, begun, now), Change("updated", workload_id, index))
        if workload.kind is Kind.WORKSPACE:
            self._pods.prepare(entry, index)
            await self._saving.now(entry)
        else:
            self._pods.bring_up(entry, index)

    async def stop_pod(self, workload_id: str, index: int, reason: Reason, grace_s: float, now: float) -> None:
        entry = self._book.entry(workload_id)
        pod, deadline = entry.pod(index), now + grace_s
        if pod.state not in HOLDING or (pod.release_deadline is not None and pod.release_deadline <= deadline):
            return
        said = pod.stop_reason if pod.state is PodState.RELEASING else reason
        stopped = replace(pod, state=PodState.RELEASING, release_deadline=deadline, stop_reason=said)
        self._put(entry, transitions.with_pod(entry.workload, stopped, now), Change("updated", workload_id, index))
        if entry.workload.kind is Kind.WORKSPACE:
            await self._saving.now(entry)
        else:
            self._pods.take_down(entry, index, grace_s)

    async def nominate(self, workload_id: str, index: int, placement: Placement | None) -> None:
        entry = self._book.entry(workload_id)
        pod = entry.pod(index)
        if pod.nominated == placement:
            return
        pods = tuple(replace(one, nominated=placement) if one is pod else one for one in entry.workload.pods)
        self._put(entry, replace(entry.workload, pods=pods), Change("updated", workload_id, index))
        self._saving.soon(entry)

    async def requeue_pod(self, workload_id: str, index: int) -> None:
        entry = self._book.entry(workload_id)
        pod = entry.pod(index)
        if not transitions.has_ended(pod):
            return
        self._put(entry, transitions.with_pod(entry.workload, transitions.again(pod), time.time()), Change("updated", workload_id, index))
        self._saving.soon(entry)

    async def report_pod(self, workload_id: str, index: int, state: PodState, now: float, exit_code: int | None = None) -> None:
        entry = self._book.entry(workload_id)
        workload, pod = entry.workload, entry.pod(index)
        if workload.kind is not Kind.WORKSPACE:
            raise Conflict(f"{workload.name} is run by the scheduler itself; nobody else reports on it.", field="state", value=state)
        if pod.state not in HOLDING or (state is PodState.RUNNING and pod.state is not PodState.STARTING):
            return
        if state is PodState.RUNNING:
            self._put(entry, transitions.with_pod(workload, replace(pod, state=state), now), Change("started", workload_id, index))
        else:
            end = PodState.STOPPED if pod.state is PodState.RELEASING else state
            ended = replace(pod, state=end, ended_at=now, exit_code=exit_code, release_deadline=None)
            change = Change("released" if end is PodState.STOPPED else "exited", workload_id, index)
            self._put(entry, transitions.ended(workload, ended, now), change)
        await self._saving.now(entry)

    def _put(self, entry: Entry, workload: Workload, change: Change) -> None:
        self._book.put(entry, workload)
        self._book.changed(change)

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
    ) -> AsyncIterator[bytes]:
        entry = self._book.entry(workload_id)
        pod = entry.pod(index)
        if pod.state is PodState.PENDING and pod.attempt:
            pod = replace(pod, attempt=pod.attempt - 1)  # it waits again: what its last attempt said is all there is
        name, container = self._inside(entry, pod)
        return inside.logs(
            self._api, entry.namespace, name, container=container, tail=tail, since=since, follow=follow, timestamps=timestamps
        )

    async def exec(self, workload_id: str, index: int, argv: Sequence[str], *, tty: bool, rows: int = 24, columns: int = 80) -> ExecSession:
        entry = self._book.entry(workload_id)
        workload, pod = entry.workload, entry.pod(index)
        if pod.state is not PodState.RUNNING:
            raise Conflict(
                f"{workload.name} is not running now (it is {pod.state}).",
                field="state",
                value=pod.state,
                next_step=f"`runai why {workload.name} -p {workload.project}` says why.",
            )
        if not argv or not argv[0]:
            raise Invalid("No command was given.", field="argv", next_step=f"For example: runai exec {workload.name} nvidia-smi.")
        name, container = self._inside(entry, pod)
        with objects.told():
            session = await inside.execute(self._api, entry.namespace, name, argv, container=container, tty=tty)
        if tty:
            await session.resize(rows, columns)
        return session

    def _inside(self, entry: Entry, pod: Pod) -> tuple[str, str]:
        """Name of the pod, and of its container where there may be others. A workspace's pod is the hub's: found by its marks."""
        workload = entry.workload
        if entry.is_claimed and (member := entry.members.get(pod.index)) is not None:
            return member.name, ""
        if workload.kind is Kind.WORKSPACE:
            return self._book.pod_of(workload.id, pod), manifests.NOTEBOOK
        return manifests.pod_name(workload, entry.uid, pod), ""
