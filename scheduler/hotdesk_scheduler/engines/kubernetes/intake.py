"""News from the API server into the book: projects, departments, nodes, workloads written by others, and what becomes of pods."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from hotdesk_api.errors import Conflict
from hotdesk_api.models import WorkloadSpec
from pydantic import ValidationError

from hotdesk_scheduler.core.model import HOLDING, Department, Kind, Node, Phase, Pod, PodState, Project, Workload
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines import transitions
from hotdesk_scheduler.engines.base import Change
from hotdesk_scheduler.engines.kubernetes import manifests, objects, progress, resources
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError, until_it_works
from hotdesk_scheduler.engines.kubernetes.book import Book, Entry
from hotdesk_scheduler.engines.kubernetes.claimed import Claimed
from hotdesk_scheduler.engines.kubernetes.claims import read_claim
from hotdesk_scheduler.engines.kubernetes.codec import Json, time_in
from hotdesk_scheduler.engines.kubernetes.nodes import read_node
from hotdesk_scheduler.engines.kubernetes.observe import Seen, read_pod
from hotdesk_scheduler.engines.kubernetes.pods import Pods, changed_workload, kind_of
from hotdesk_scheduler.engines.kubernetes.resources import Asked
from hotdesk_scheduler.engines.kubernetes.saving import Saving
from hotdesk_scheduler.engines.kubernetes.watch import Informer, Key

log = logging.getLogger(__name__)

Resolve = Callable[[WorkloadSpec, str, str, float], Workload]
SYNC_S = 60.0


def _read_pod(item: Json) -> Seen:
    seen = read_pod(item)
    return seen if seen.workload_id else replace(seen, claim=read_claim(item))


def _is_over(item: Json) -> bool:
    """We are done with it; others still hold on to it."""
    meta = item["metadata"]
    return "deletionTimestamp" in meta and resources.FINALIZER not in meta.get("finalizers", [])


class Intake:
    """Five informers. `ready()` after all of them have listed; until then nothing is concluded from what is not there."""

    def __init__(
        self, api: Api, book: Book, pods: Pods, saving: Saving, *, namespace: str, prefix: str, resolve: Resolve, node_patience_s: float
    ) -> None:
        self.book = book
        self._api = api
        self._pods = pods
        self._saving = saving
        self._namespace = namespace
        self._prefix = prefix
        self._resolve = resolve
        self._node_patience_s = node_patience_s
        self._is_adopting = True
        self._gone_nodes: dict[str, asyncio.TimerHandle] = {}
        self._project_of: dict[str, str] = {}
        self._renewing: set[asyncio.Task[None]] = set()
        self.claimed = Claimed(book, project_of=self._project_of, explain=saving.soon)
        here = resources.path
        self.projects: Informer[tuple[Project, str]] = Informer(api, here("Project", namespace), self._read_project, self._project)
        self.departments: Informer[Department] = Informer(api, here("Department", namespace), self._read_department, self._department)
        self.nodes: Informer[Node] = Informer(api, "/api/v1/nodes", read_node, self._node)
        self.pods: Informer[Seen] = Informer(api, "/api/v1/pods", _read_pod, self._pod)
        self.workloads: Informer[Asked] = Informer(api, here("Workload"), self._read_workload, self._workload)

    async def start(self) -> None:
        """Everything listed, in the order in which it is understood; then what runs is adopted. Raises TimeoutError."""
        async with asyncio.timeout(SYNC_S):
            for wave in ((self.projects, self.departments, self.nodes), (self.workloads,), (self.pods,)):
                for informer in wave:
                    informer.start()
                for informer in wave:
                    await informer.synced.wait()
        self._is_adopting = False
        groups: dict[str, list[Seen]] = {}
        for seen in self.book.pods.values():
            groups.setdefault(seen.workload_id or "", []).append(seen)
        for entry in tuple(self.book.entries.values()):
            self._adopt(entry, groups.get(entry.workload.id, ()))
        self._claim_all()
        self._look_for_lost_nodes()

    def _claim_all(self) -> None:
        for seen in tuple(self.book.pods.values()):
            if seen.claim is not None and seen.uid not in self.book.entries:
                self.claimed.look(seen, None)

    async def stop(self) -> None:
        for timer in self._gone_nodes.values():
            timer.cancel()
        for task in tuple(self._renewing):
            task.cancel()
        for informer in (self.projects, self.departments, self.nodes, self.workloads, self.pods):
            await informer.stop()

    def namespace_of(self, project: str) -> str:
        """Where a project's workloads live."""
        known = self.projects.items.get((self._namespace, project))
        return known[1] if known else self._prefix + project

    # projects, departments

    def _read_project(self, item: Json) -> tuple[Project, str] | None:
        try:
            project, namespace = resources.read_project(item)
        except ValidationError as error:
            log.error("project.not_readable name=%s error=%s", item["metadata"]["name"], error)
            return None
        return project, namespace or self._prefix + project.name

    def _read_department(self, item: Json) -> Department | None:
        try:
            return resources.read_department(item)
        except ValidationError as error:
            log.error("department.not_readable name=%s error=%s", item["metadata"]["name"], error)
            return None

    def _project(self, key: Key, new: tuple[Project, str] | None, old: tuple[Project, str] | None) -> None:
        if new is None:
            self.book.projects.pop(key[1], None)
        else:
            self.book.projects[key[1]] = new[0]
            if self._project_of.get(new[1]) != key[1]:
                self._project_of[new[1]] = key[1]
                self._make_room(key[1], new[1])
        self.book.changed(Change("project", sentence=key[1]))

    def _department(self, key: Key, new: Department | None, old: Department | None) -> None:
        if new is None:
            self.book.departments.pop(key[1], None)
        else:
            self.book.departments[key[1]] = new
        self.book.changed(Change("project", sentence=key[1]))

    def _make_room(self, project: str, namespace: str) -> None:
        """Its namespace, also for a project that was written by hand; and workloads may have been there before their project."""

        async def work() -> None:
            if not self._is_adopting:
                await self.workloads.again()
                self._claim_all()
            try:
                await until_it_works(lambda: objects.add_namespace(self._api, namespace, project), gives_up=lambda: False)
            except ApiError as error:
                log.error("namespace.refused namespace=%s error=%s", namespace, error)

        task = asyncio.create_task(work(), name=f"namespace {namespace}")
        self._renewing.add(task)
        task.add_done_callback(self._renewing.discard)

    # nodes

    def _node(self, key: Key, new: Node | None, old: Node | None) -> None:
        name = key[1]
        if new is None:
            self.book.nodes.pop(name, None)
        else:
            self.book.put_node(new)
        if new is not None and new.ready:
            if (timer := self._gone_nodes.pop(name, None)) is not None:
                timer.cancel()
        elif not self._is_adopting:
            self._wait_for(name, self._node_patience_s if new is not None else 0.0)
        self.book.changed(Change("node"))

    def _wait_for(self, name: str, patience_s: float) -> None:
        """A node that is not ready may come back; one that was removed will not."""
        if name in self._gone_nodes and patience_s:
            return
        if (timer := self._gone_nodes.pop(name, None)) is not None:
            timer.cancel()
        self._gone_nodes[name] = asyncio.get_running_loop().call_later(patience_s, self._lose, name)

    def _look_for_lost_nodes(self) -> None:
        pods = (pod for entry in self.book.entries.values() for pod in entry.workload.pods)
        for name in {pod.placement.node for pod in pods if pod.placement and pod.state in HOLDING}:
            node = self.book.nodes.get(name)
            if node is None or not node.ready:
                self._wait_for(name, self._node_patience_s if node else 0.0)

    def _lose(self, name: str) -> None:
        """Its pods are given up; their objects go as well, so that a node that comes back ends what it still runs."""
        now = time.time()
        for entry in tuple(self.book.entries.values()):
            on_it = [pod for pod in entry.workload.pods if pod.state in HOLDING and pod.placement and pod.placement.node == name]
            for pod in on_it:
                seen = self._seen(entry, pod)
                if entry.is_claimed and seen is None:
                    continue
                lost = progress.lost_with_node(pod, now)
                self.book.put(entry, transitions.ended(replace(entry.workload, lost_node=True), lost, now))
                self._told(entry, lost, f"Node {name} was lost, and pod {pod.index} with it.")
                if seen is not None:
                    self._pods.discard(seen)

    # workloads

    def _read_workload(self, item: Json) -> Asked | None:
        namespace = item["metadata"]["namespace"]
        project = self._project_of.get(namespace)
        if project is None or _is_over(item):
            return None
        try:
            return resources.read_workload(item, project, self._resolved(item, project))
        except (ValidationError, ValueError) as error:
            log.error("workload.not_readable name=%s/%s error=%s", namespace, item["metadata"]["name"], error)
            return self.workloads.items.get((namespace, item["metadata"]["name"]))

    def _resolved(self, item: Json, project: str) -> Workload | None:
        """What one that was written by hand comes to."""
        if "scheduling" in item["spec"]:
            return None
        spec = resources.read_spec(item, project)
        created_at = time_in(item["metadata"]["creationTimestamp"])
        return self._resolve(spec, resources.id_of(item), item["spec"].get("user") or spec.owner or "", created_at)

    def _workload(self, key: Key, new: Asked | None, old: Asked | None) -> None:
        known = self.book.entries.get(self.book.keys.get(key, ""))
        if known is not None and (new is None or known.uid != new.uid):
            self.book.drop(known.workload.id)
            self.book.changed(Change("removed", known.workload.id))
            known = None
        if new is not None and known is not None:
            known.version = max(known.version, new.version)
            self._wishes(known, new)
        elif new is not None:
            self._add(new)

    def _add(self, asked: Asked) -> None:
        if asked.workload.id in self.book.entries:  # a copy, label and all
            asked = replace(asked, workload=replace(asked.workload, id=asked.uid))
        entry = Entry(asked.namespace, asked.uid, asked.version, asked.workload, asked.spec, suspended=False)
        self.book.add(entry)
        for index, held in asked.grants.items():
            if (placement := entry.pod(index).placement) is not None:
                self.book.grant(entry, index, placement.node, held)
        self.book.changed(Change("submitted", asked.workload.id))
        self._wishes(entry, asked)
        if not self._is_adopting:
            self._adopt(entry, [seen for seen in self.book.pods.values() if seen.workload_id == asked.workload.id])

    def _wishes(self, entry: Entry, asked: Asked) -> None:
        """What people say through the resource itself: `kubectl delete`, `spec.suspended`."""
        entry.deleting = asked.deleting
        phase = entry.workload.phase
        if asked.deleting and phase is not Phase.DELETING:
            self._phase(entry, Phase.DELETING, Reason(ReasonCode.OWNER_DELETED, "Its resource was deleted."))
        elif asked.suspended != entry.suspended:
            if asked.suspended and phase is Phase.ACTIVE:
                self._phase(entry, Phase.SUSPENDED, Reason(ReasonCode.SUSPENDED, "It was suspended in its resource."))
            elif not asked.suspended and phase is Phase.SUSPENDED:
                self._phase(entry, Phase.ACTIVE, None)
        entry.suspended = asked.suspended

    def _phase(self, entry: Entry, phase: Phase, reason: Reason | None) -> None:
        self.book.put(entry, transitions.in_phase(entry.workload, phase, reason, time.time()))
        self._saving.soon(entry)
        self.book.changed(Change("updated", entry.workload.id))

    # pods

    def _pod(self, key: Key, new: Seen | None, old: Seen | None) -> None:
        self.book.see(key, new)
        one = new or old
        if one is not None and one.claim is not None:
            if not self._is_adopting:
                self.claimed.look(new, old)
            return
        if self._is_adopting or one is None or one.workload_id is None:
            return
        entry = self.book.entries.get(one.workload_id)
        if entry is None or entry.namespace != one.namespace or entry.workload.kind is Kind.WORKSPACE:
            return  # of a workspace's pod the hub tells; here it only counts as the workspace's
        pod = next((pod for pod in entry.workload.pods if pod.index == one.index), None)
        if pod is not None and pod.attempt == one.attempt:
            self._step(entry, pod, new)

    def _step(self, entry: Entry, pod: Pod, seen: Seen | None) -> None:
        now = time.time()
        pod = self._in_its_place(entry, pod, seen)
        after = progress.after(pod, seen, now)
        error = seen.why.sentence if seen and seen.why else ""
        if after is pod:
            if error and entry.errors.get(pod.index) != error:
                entry.errors[pod.index] = error
                self._saving.soon(entry)
                self.book.changed(Change("failed_verb", entry.workload.id, pod.index, error))
            return
        if after.state is PodState.RUNNING:
            entry.errors.pop(pod.index, None)
        elif error:
            entry.errors[pod.index] = error
        self.book.put(entry, changed_workload(entry.workload, after, now))
        self._told(entry, after, error)
        if progress.is_stuck(after):
            self._pods.take_down(entry, pod.index, 0)

    def _in_its_place(self, entry: Entry, pod: Pod, seen: Seen | None) -> Pod:
        """A pod that another leader made is where that one sent it."""
        if pod.state not in HOLDING or pod.placement is None or seen is None or seen.placement == manifests.placement_out(pod.placement):
            return pod
        if (placement := manifests.placement_in(seen.placement)) is None or placement == pod.placement:
            return pod
        moved = replace(pod, placement=placement)
        self.book.put(entry, transitions.with_pod(entry.workload, moved, time.time()))
        self.book.changed(Change("updated", entry.workload.id, pod.index))
        return moved

    def _told(self, entry: Entry, pod: Pod, sentence: str) -> None:
        self._saving.soon(entry)
        kind = "failed_verb" if progress.is_stuck(pod) else kind_of(pod)
        self.book.changed(Change(kind, entry.workload.id, pod.index, sentence))

    def _seen(self, entry: Entry, pod: Pod) -> Seen | None:
        if entry.is_claimed:
            return self.book.pods.get((entry.namespace, entry.workload.name))
        if entry.workload.kind is Kind.WORKSPACE:  # the hub named it
            return next((seen for seen in self.book.pods.values() if seen.workload_id == entry.workload.id), None)
        return self.book.pods.get((entry.namespace, manifests.pod_name(entry.workload, entry.uid, pod)))

    # after a restart

    def _adopt(self, entry: Entry, pods: Iterable[Seen]) -> None:
        """A pod that is there was started, whatever is recorded; one that is recorded as running and is not there has ended."""
        if entry.workload.kind is Kind.WORKSPACE:
            return
        latest: dict[int, Seen] = {}
        for seen in pods:
            if seen.namespace == entry.namespace and (seen.index not in latest or seen.attempt > latest[seen.index].attempt):
                latest[seen.index] = seen
        for pod in entry.workload.pods:
            found = latest.get(pod.index)
            if found is not None and self._is_unrecorded(pod, found):
                pod = self._record(entry, pod, found)
            if pod.state not in HOLDING:
                continue
            current = found if found is not None and found.attempt == pod.attempt else None
            if current is None and pod.state is PodState.STARTING:
                self._pods.bring_up(entry, pod.index)
                continue
            self._step(entry, pod, current)
            self._go_on(entry, entry.pod(pod.index), current)

    def _go_on(self, entry: Entry, pod: Pod, seen: Seen | None) -> None:
        """What was under way when the last scheduler ended."""
        if pod.state is PodState.STARTING and seen is not None and seen.node is None:
            self._pods.bring_up(entry, pod.index)
        elif pod.state is PodState.RELEASING and seen is not None and not seen.leaving:
            self._pods.take_down(entry, pod.index, max(0.0, (pod.release_deadline or 0.0) - time.time()))

    @staticmethod
    def _is_unrecorded(pod: Pod, seen: Seen) -> bool:
        return seen.attempt > pod.attempt or (seen.attempt == pod.attempt and pod.state is PodState.PENDING)

    def _record(self, entry: Entry, pod: Pod, seen: Seen) -> Pod:
        placement = manifests.placement_in(seen.placement)
        if placement is None:
            return pod
        again = Pod(index=pod.index, request=pod.request, attempt=seen.attempt, stop_reason=pod.stop_reason)
        started = transitions.started(again, placement, seen.started_at or time.time())
        with contextlib.suppress(Conflict):  # it runs; which simulated GPU is shown for it does not matter then
            self.book.grant(entry, pod.index, placement.node, self.book.would_give(placement))
        self.book.put(entry, transitions.with_pod(entry.workload, started, time.time()))
        self.book.changed(Change("updated", entry.workload.id, pod.index))
        return started

    # what the engine itself wrote

    def submitted(self, item: Json, workload: Workload, spec: WorkloadSpec) -> None:
        """It is known from now on, whether or not the stream was quicker."""
        meta = item["metadata"]
        key, version = (meta["namespace"], meta["name"]), int(meta["resourceVersion"])
        if key in self.book.keys:
            return
        asked = Asked(key[0], key[1], meta["uid"], version, workload, spec)
        self.workloads.note(key, version)
        self.workloads.items[key] = asked
        self._add(asked)

    def forgotten(self, entry: Entry) -> None:
        if self.book.drop(entry.workload.id) is not None:
            self.book.changed(Change("removed", entry.workload.id))
