"""News from the API server into the book: nodes, workloads written by others, and what becomes of pods."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from hotdesk_api.models import WorkloadSpec

from hotdesk_scheduler.core.model import HOLDING, Node, Phase, Workload
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines import transitions
from hotdesk_scheduler.engines.base import Change
from hotdesk_scheduler.engines.kubernetes import acceptance, check, resources
from hotdesk_scheduler.engines.kubernetes.acceptance import Acceptance
from hotdesk_scheduler.engines.kubernetes.api import Api
from hotdesk_scheduler.engines.kubernetes.book import Book
from hotdesk_scheduler.engines.kubernetes.claimed import Claimed
from hotdesk_scheduler.engines.kubernetes.claims import read_claim
from hotdesk_scheduler.engines.kubernetes.codec import Json, time_in
from hotdesk_scheduler.engines.kubernetes.entry import Entry
from hotdesk_scheduler.engines.kubernetes.extras import allocatable
from hotdesk_scheduler.engines.kubernetes.health import Health
from hotdesk_scheduler.engines.kubernetes.lost_nodes import LostNodes
from hotdesk_scheduler.engines.kubernetes.marks import Marks
from hotdesk_scheduler.engines.kubernetes.nodes import read_node
from hotdesk_scheduler.engines.kubernetes.observe import Seen, read_pod
from hotdesk_scheduler.engines.kubernetes.pods import Pods
from hotdesk_scheduler.engines.kubernetes.projects import Projects
from hotdesk_scheduler.engines.kubernetes.resources import Asked
from hotdesk_scheduler.engines.kubernetes.saving import Saving
from hotdesk_scheduler.engines.kubernetes.sightings import Sightings
from hotdesk_scheduler.engines.kubernetes.watch import Informer, Key

log = logging.getLogger(__name__)

Resolve = Callable[[WorkloadSpec, str, str, float], Workload]
SYNC_S = 60.0


def _is_over(item: Json) -> bool:
    """We are done with it; others still hold on to it."""
    meta = item["metadata"]
    return "deletionTimestamp" in meta and resources.FINALIZER not in meta.get("finalizers", [])


class Intake:
    """Until all that `start()` waits for has been listed nothing is concluded from what is not there."""

    def __init__(
        self,
        api: Api,
        book: Book,
        pods: Pods,
        saving: Saving,
        *,
        namespace: str,
        prefix: str,
        resolve: Resolve,
        node_patience_s: float,
        is_over: Callable[[], bool],
    ) -> None:
        self.book = book
        self._api = api
        self._saving = saving
        self._reservations = pods.reservations
        self._resolve = resolve
        self._is_adopting = True
        self._sightings = Sightings(book, pods, saving)
        self._lost_nodes = LostNodes(node_patience_s, self._lose)
        self._acceptance = Acceptance(api, is_over)
        self._marks = Marks(api, is_over)
        self.projects = Projects(
            api,
            book,
            self._acceptance,
            namespace=namespace,
            prefix=prefix,
            reservations=pods.reservations.terms.namespace,
            came=self._project_came,
            moved=self._project_moved,
        )
        self.claimed = Claimed(api, book, owner_of=self.projects.owner_of, explain=saving.soon, discard=pods.discard)
        self._health = Health(book, saving)
        self.nodes: Informer[tuple[Node, Mapping[str, int]]] = Informer(api, "/api/v1/nodes", self._read_node, self._node)
        self.pods: Informer[Seen] = Informer(api, "/api/v1/pods", self._read_pod, self._pod)
        self.workloads: Informer[Asked] = Informer(api, resources.path("Workload"), self._read_workload, self._workload)

    async def start(self) -> None:
        """Everything listed, in the order in which it is understood; then what runs is adopted. Raises TimeoutError."""
        async with asyncio.timeout(SYNC_S):
            for wave in ((self.projects.projects, self.projects.departments, self.nodes), (self.workloads,), (self.pods,)):
                for informer in wave:
                    informer.start()
                for informer in wave:
                    await informer.synced.wait()
        self._is_adopting = False
        groups: dict[str, list[Seen]] = {}
        for seen in self.book.pods.values():
            groups.setdefault(seen.workload_id or "", []).append(seen)
        for entry in tuple(self.book.entries.values()):
            self._sightings.adopt(entry, groups.get(entry.workload.id, ()))
        self.claimed.look_again()
        self._reservations.begin()
        self._health.begin()
        self._look_for_lost_nodes()
        self.projects.begin()

    async def stop(self) -> None:
        self._lost_nodes.stop()
        await self._acceptance.stop()
        await self._marks.stop()
        await self.claimed.stop()
        await self.projects.stop()
        for informer in (self.nodes, self.workloads, self.pods):
            await informer.stop()

    # projects

    def _project_came(self) -> None:
        self.claimed.look_again()

    def _project_moved(self) -> None:
        """Workloads may have been there before their project."""
        self.workloads.again()
        self.claimed.look_again()

    # nodes

    def _read_node(self, item: Json) -> tuple[Node, Mapping[str, int]] | None:
        """With its extras."""
        try:
            return read_node(item), allocatable((item.get("status") or {}).get("allocatable") or {})
        except (ValueError, TypeError, KeyError) as error:
            log.error("node.not_readable name=%s error=%s", item["metadata"]["name"], error)
            return self.nodes.items.get(("", item["metadata"]["name"]))

    def _node(self, key: Key, new: tuple[Node, Mapping[str, int]] | None, old: object) -> None:
        name = key[1]
        node, extras = new or (None, None)
        self.book.extras.put_node(name, extras)
        if node is None:
            self.book.nodes.pop(name, None)
        else:
            self.book.put_node(node)
        if not self._is_adopting:
            self._lost_nodes.look(name, node)
        self.book.changed(Change("node"))

    def _look_for_lost_nodes(self) -> None:
        pods = (pod for entry in self.book.entries.values() for pod in entry.workload.pods)
        for name in {pod.placement.node for pod in pods if pod.placement and pod.state in HOLDING}:
            self._lost_nodes.look(name, self.book.nodes.get(name))

    def _lose(self, node: str) -> None:
        self._sightings.lose(node)
        self.claimed.lose(node)

    # workloads

    def _read_workload(self, item: Json) -> Asked | None:
        meta = item["metadata"]
        namespace = meta["namespace"]
        project = self.projects.project_in(namespace)
        if _is_over(item):
            return None
        if project is None:
            self._explain_no_project(item)
            return self._unread(item)
        try:
            return resources.believable(resources.read_workload(item, project, self._resolved(item, project)))
        except Exception as error:  # a person's hand may have written anything
            self._acceptance.say("Workload", item, acceptance.sentence(error, "Workload", item))
            return self._unread(item)

    def _unread(self, item: Json) -> Asked | None:
        """The last readable form counts, but for its deletion, which is always understood; one that nobody runs just goes then."""
        meta = item["metadata"]
        known = self.workloads.items.get((meta["namespace"], meta["name"]))
        if known is not None and known.uid == meta["uid"]:
            return replace(known, deleting="deletionTimestamp" in meta)
        if "deletionTimestamp" in meta:
            self._marks.let_go(item)
        return None

    def _explain_no_project(self, item: Json) -> None:
        """To who wrote it by hand. One that has its finalizer was submitted through Hotdesk: its project was deleted, or it is others'."""
        meta = item["metadata"]
        if self._is_adopting or "deletionTimestamp" in meta or meta.get("finalizers") or item.get("status"):
            return
        known = ", ".join(self.projects.known_namespaces()[:5]) or "none yet"
        problem = f"No project has the namespace {meta['namespace']}. Put it into the namespace of one ({known}), or make the project."
        self._acceptance.say("Workload", item, problem)

    def _resolved(self, item: Json, project: str) -> Workload | None:
        """What one that was written by hand comes to. Raises HotdeskError, and what is not readable raises."""
        if "scheduling" in item["spec"]:
            return None
        spec = resources.read_spec(item, project)
        check.check_alone(spec)
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
            self._marks.put(known, new)
            self._mend_status(known, new)
        elif new is not None:
            self._add(new)

    def _add(self, asked: Asked) -> None:
        if asked.workload.id in self.book.entries:  # a copy, label and all
            asked = replace(asked, workload=replace(asked.workload, id=asked.uid))
        entry = Entry(asked.namespace, asked.uid, asked.version, asked.workload, asked.spec, said=asked.said)
        entry.suspended = entry.workload.phase is Phase.SUSPENDED
        namesake = self.book.named(entry.workload.project, entry.workload.name)
        self.book.add(entry)
        if namesake is not None and namesake.is_claimed:
            self.claimed.give_way(namesake)
        for index, held in asked.grants.items():
            if (placement := entry.pod(index).placement) is not None:
                self.book.grant(entry, index, placement.node, held)
        self.book.changed(Change("submitted", asked.workload.id))
        self._wishes(entry, asked)
        self._marks.put(entry, asked)
        self._mend_status(entry, asked)
        if not self._is_adopting:
            self._sightings.adopt(entry, self._pods_of(entry))

    def _mend_status(self, entry: Entry, asked: Asked) -> None:
        """Written again where it was not readable, says that the workload was not accepted, or was written by somebody else."""
        if asked.status_problem:
            log.warning("status.not_readable workload=%s error=%s", entry.workload.id, asked.status_problem)
        by_others = asked.said != entry.said and not entry.saving.locked()  # what is being written is looked at when it is there
        if asked.status_problem or asked.is_refused or by_others:
            entry.written = None
            self._saving.soon(entry)

    def _pods_of(self, entry: Entry) -> list[Seen]:
        """Also those that were seen before it was."""
        found = []
        for seen in self.book.kin_of(entry):
            if (named := self._sightings.named(seen)).workload_id == entry.workload.id:
                self.book.see((seen.namespace, seen.name), named)
                found.append(named)
        return found

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

    def _read_pod(self, item: Json) -> Seen:
        seen = read_pod(item)
        reserves = self._reservations.read(item) if self.projects.owner_of(seen.namespace) is None else None
        if reserves is not None or seen.namespace == self._reservations.terms.namespace:
            return replace(seen, workload_id=None, reservation=reserves)
        seen = self._sightings.named(seen)
        return seen if seen.workload_id else replace(seen, claim=read_claim(item))

    def _pod(self, key: Key, new: Seen | None, old: Seen | None) -> None:
        self.book.see(key, new)
        one = new or old
        if one is not None and (one.workload_id is not None or one.claim is not None):
            self._api.turns.stir()
        self._tell_of(new, old)
        if new is not None and not self._is_adopting:
            self._health.look(new)

    def _tell_of(self, new: Seen | None, old: Seen | None) -> None:
        """Whoever has to do with such a pod."""
        one = new or old
        if any(seen is not None and seen.reservation is not None for seen in (new, old)):
            self._reservations.news(new, old)
            self.book.changed(Change("node"))
            return
        if new is not None and new.claim is None and old is not None and old.claim is not None and not self._is_adopting:
            self.claimed.look(None, old)  # a hand wrote on it that it is a workload's
        if one is not None and one.claim is not None:
            if not self._is_adopting:
                self.claimed.look(new, old)
            return
        if one is not None and one.workload_id is not None and not self._is_adopting:
            self._sightings.look(new, old)

    # what the engine itself wrote

    def submitted(self, item: Json, workload: Workload, spec: WorkloadSpec) -> None:
        """It is known from now on, whether or not the stream was quicker."""
        meta = item["metadata"]
        key, version = (meta["namespace"], meta["name"]), int(meta["resourceVersion"])
        if key in self.book.keys:
            return
        asked = Asked(key[0], key[1], meta["uid"], version, workload, spec, **resources.marks(item))
        self.workloads.note(key, version)
        self.workloads.items[key] = asked
        self._add(asked)

    def forgotten(self, entry: Entry) -> None:
        if self.book.drop(entry.workload.id) is not None:
            if entry.is_claimed:
                self.claimed.forget(entry)
            self.book.changed(Change("removed", entry.workload.id))
