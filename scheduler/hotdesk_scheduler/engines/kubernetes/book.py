"""What the engine knows, in memory: workloads (`entry`), projects, nodes, pods seen; snapshots of it; who listens.

The API server is behind it: what is written there is read back after a restart, what is decided here is written as soon as it answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace

from hotdesk_api.errors import Conflict, NotFound

from hotdesk_scheduler.core.model import (
    HOLDING,
    Department,
    Kind,
    Node,
    Placement,
    Pod,
    PodState,
    Project,
    Resources,
    Snapshot,
    Workload,
)
from hotdesk_scheduler.engines.base import Change
from hotdesk_scheduler.engines.kubernetes import devices
from hotdesk_scheduler.engines.kubernetes.entry import Entry, Member
from hotdesk_scheduler.engines.kubernetes.extras import Amounts, Extras
from hotdesk_scheduler.engines.kubernetes.manifests import pod_name
from hotdesk_scheduler.engines.kubernetes.observe import Seen
from hotdesk_scheduler.engines.kubernetes.statuses import Held
from hotdesk_scheduler.engines.kubernetes.watch import Key

_NONE = Resources()


class Book:
    """`changed()` after every change: the version grows and the listeners hear of it.

    `reservations` and `sharers` go by (node, group of the core); `left` hears when a pod gives up a share.
    """

    def __init__(self, *, version: int) -> None:
        self.entries: dict[str, Entry] = {}
        self.keys: dict[Key, str] = {}
        self._names: dict[tuple[str, str], str] = {}
        self.projects: dict[str, Project] = {}
        self.departments: dict[str, Department] = {}
        self.nodes: dict[str, Node] = {}
        self.pods: dict[Key, Seen] = {}
        self.reservations: dict[Key, Seen] = {}
        self.sharers: dict[Key, set[tuple[str, int]]] = {}
        self.extras = Extras()
        self.left: Callable[[Entry, Pod], None] = lambda entry, pod: None
        self._pods_on: dict[str, set[Key]] = {}
        self._kin: dict[tuple[str, str], set[Key]] = {}
        self._members: dict[str, tuple[str, int]] = {}
        self._asking: set[str] = set()
        self._granted: dict[str, set[tuple[str, int]]] = {}
        self._stale_nodes: set[str] = set()
        self._version = version
        self._snapshot: Snapshot | None = None
        self._listeners: list[asyncio.Queue[Change | None]] = []

    def entry(self, workload_id: str) -> Entry:
        try:
            return self.entries[workload_id]
        except KeyError:
            raise NotFound(f"There is no workload {workload_id}.", field="id", value=workload_id) from None

    def named(self, project: str, name: str) -> Entry | None:
        return self.entries.get(self._names.get((project, name), ""))

    def rename(self, entry: Entry, name: str) -> None:
        self._forget_name(entry.workload)
        entry.workload, entry.spec = replace(entry.workload, name=name), entry.spec.model_copy(update={"name": name})
        self._names[entry.workload.project, name] = entry.workload.id

    def _forget_name(self, workload: Workload) -> None:
        """Unless it is another's by now."""
        if self._names.get((workload.project, workload.name)) == workload.id:
            del self._names[workload.project, workload.name]

    def add(self, entry: Entry) -> None:
        self.entries[entry.workload.id] = entry
        self.keys[entry.key] = entry.workload.id
        self._names[entry.workload.project, entry.workload.name] = entry.workload.id
        for pod in entry.workload.pods:
            self._note(entry, None, pod)

    def drop(self, workload_id: str) -> Entry | None:
        entry = self.entries.pop(workload_id, None)
        if entry is not None:
            self.keys.pop(entry.key, None)
            self._forget_name(entry.workload)
            for index in tuple(entry.members):
                self.leave(entry, index)
            for pod in entry.workload.pods:
                self._note(entry, pod, None)
        return entry

    def member(self, uid: str) -> tuple[Entry, int] | None:
        """The workload that a pod of others belongs to, and its index there."""
        workload_id, index = self._members.get(uid, ("", 0))
        entry = self.entries.get(workload_id)
        return (entry, index) if entry is not None else None

    def join(self, entry: Entry, index: int, member: Member) -> None:
        entry.members[index] = member
        self._members[member.uid] = (entry.workload.id, index)
        if member.extras:
            self._asking.add(entry.workload.id)
            self.extras.is_stale = True
        self._recount_where(self.pods.get((entry.namespace, member.name)))

    def leave(self, entry: Entry, index: int) -> None:
        member = entry.members.pop(index, None)
        if member is not None:
            self._members.pop(member.uid, None)
            if member.extras:
                self.extras.is_stale = True
                if not any(one.extras for one in entry.members.values()):
                    self._asking.discard(entry.workload.id)
            self._recount_where(self.pods.get((entry.namespace, member.name)))

    def put(self, entry: Entry, workload: Workload) -> None:
        """The workload's new value; nodes where that changes who holds what are counted again."""
        for old, new in _pairs(entry.workload.pods, workload.pods):
            if old is not new:
                self._note(entry, old, new)
        entry.workload = workload

    def _note(self, entry: Entry, old: Pod | None, new: Pod | None) -> None:
        if new is None or new.state not in HOLDING:
            entry.forget_broken((old or new).index)  # type: ignore[union-attr]  # one of them is there
        if _counted_of(old) != _counted_of(new):
            self._stale_nodes.update(pod.placement.node for pod in (old, new) if pod and pod.placement)
        before, after = _shares_of(old), _shares_of(new)
        if before == after:
            return
        one = entry.workload.id, (old or new).index  # type: ignore[union-attr]  # one of them is there
        for key in before - after:
            self.sharers.get(key, set()).discard(one)
        for key in after - before:
            self.sharers.setdefault(key, set()).add(one)
        if old is not None and before - after:
            self.left(entry, old)

    def see(self, key: Key, seen: Seen | None) -> None:
        """A pod of whoever's is there, has changed or is gone."""
        old = self.pods.pop(key, None)
        if old is not None:
            for mark in _marks(key, old):
                kin = self._kin[mark]
                kin.discard(key)
                if not kin:
                    del self._kin[mark]
        self._see_extras(seen, old)
        if old is None or seen is None or _counted(old) != _counted(seen):  # most news of a pod changes no count
            self._recount_where(old)
            self._recount_where(seen)
        if old is not None and old.node:
            self._pods_on.get(old.node, set()).discard(key)
        if seen is not None:
            self.pods[key] = seen
            for mark in _marks(key, seen):
                self._kin.setdefault(mark, set()).add(key)
            if seen.node:
                self._pods_on.setdefault(seen.node, set()).add(key)
        for one in (old, seen):
            if one is not None and one.node and one.reservation:
                self._reserve(one.node, one.reservation.group)

    def _see_extras(self, seen: Seen | None, old: Seen | None) -> None:
        if old is not None and (seen is None or seen.uid != old.uid):
            self.extras.give_back(old.uid)
        if seen is not None:
            self.extras.see(seen.uid, seen.node, seen.extras, holds=seen.holds)

    def _reserve(self, node: str, group: str) -> None:
        """One stands for a shared GPU: where they are made now, if one is there."""
        there = (self.pods[key] for key in self._pods_on.get(node, ()))
        found = [seen for seen in there if seen.reservation and seen.reservation.group == group]
        self.reservations.pop((node, group), None)
        if found:
            self.reservations[node, group] = min(found, key=lambda seen: (seen.reservation.is_elsewhere, seen.uid))  # type: ignore[union-attr]  # as asked

    def _recount_where(self, seen: Seen | None) -> None:
        if seen is not None and seen.node:
            self._stale_nodes.add(seen.node)
            self.extras.is_stale |= bool(self._asking)

    def seen_of(self, entry: Entry, pod: Pod) -> Seen | None:
        """The object of a pod of a workload."""
        if entry.is_claimed:
            member = entry.members.get(pod.index)
            return self.pods.get((entry.namespace, member.name)) if member else None
        if entry.workload.kind is Kind.WORKSPACE:  # the hub named it
            return next((seen for seen in self.kin_of(entry) if seen.workload_id == entry.workload.id), None)
        return self.pods.get((entry.namespace, pod_name(entry.workload, entry.uid, pod)))

    def kin_of(self, entry: Entry) -> list[Seen]:
        """Pods in its namespace whose name or label could make them the workload's."""
        keys = {key for mark in (entry.workload.name, f"id/{entry.workload.id}") for key in self._kin.get((entry.namespace, mark), ())}
        return [self.pods[key] for key in keys]

    def grant(self, entry: Entry, index: int, node: str, held: tuple[Held, ...]) -> None:
        """Remember which devices of a node a pod holds, as long as it does."""
        entry.grants[index] = held
        self._granted.setdefault(node, set()).add((entry.workload.id, index))

    def held_on(self, node: str) -> list[Held]:
        """Devices of a node that pods of ours hold."""
        found: list[Held] = []
        for workload_id, index in tuple(self._granted.get(node, ())):
            entry = self.entries.get(workload_id)
            pod = next((one for one in entry.workload.pods if one.index == index), None) if entry else None
            if entry and pod and pod.state in HOLDING and pod.placement and pod.placement.node == node:
                found.extend(entry.grants.get(index, ()))
            else:
                self._granted[node].discard((workload_id, index))
        return found

    def would_give(self, placement: Placement) -> tuple[Held, ...]:
        """GPUs of a simulated node for a pod that starts now (`Conflict`: not free). Of a real one the device plugin chooses: none."""
        node = self.nodes.get(placement.node)
        if node is None:
            raise Conflict(f"There is no node {placement.node} any more.", field="placement", value=placement.node)
        return devices.assign(placement, node.gpus, self.held_on(node.name)) if node.simulated else ()

    def is_reserved(self, placement: Placement | None) -> bool:
        """Whether it has shares of GPUs that are set aside by reservation pods. Nodes that are played have no device plugin."""
        node = self.nodes.get(placement.node) if placement and placement.shares else None
        return node is not None and not node.simulated

    def recount(self) -> bool:
        """What pods that are not counted as ours hold on each node, and which shared GPUs broke; whether that is any news."""
        news = False
        for name in self._stale_nodes & self.nodes.keys():
            node = self._with_its_pods(self.nodes[name])
            if node != self.nodes[name]:
                self.nodes[name] = node
                news = True
        self._stale_nodes.clear()
        return news

    def put_node(self, node: Node) -> None:
        self.nodes[node.name] = self._with_its_pods(node)

    def _with_its_pods(self, node: Node) -> Node:
        """With what pods there use beyond what the core sees as taken, and shared GPUs that take nobody more: broken, or held elsewhere.

        Pods that say to be the same one, as copies do, share its room.
        """
        uses: dict[tuple[str, int] | None, Resources] = {}
        pods, closed = 0, set()
        for key in self._pods_on.get(node.name, ()):
            seen = self.pods[key]
            if seen.reservation and self._stands(seen) and (seen.broken or seen.reservation.is_elsewhere):
                closed.add(seen.reservation.group)
            if seen.holds:
                pods += 1
                whose, use = self._whose(seen), self._use(seen)
                uses[whose] = _sum(uses[whose], use) if whose in uses else use
        beyond = _NONE
        for whose, use in uses.items():
            room = self._room(whose, node.name)
            pods -= room is not None
            beyond = _sum(beyond, _over(use, room or _NONE))
        return replace(node, foreign=beyond, foreign_pods=pods, closed_groups=tuple(sorted(closed)))

    def _use(self, seen: Seen) -> Resources:
        """Of a reservation pod the GPU is the core's as long as somebody shares it, and everybody else's loss until it is gone."""
        if seen.reservation and self._stands(seen) and self.sharers.get((seen.node or "", seen.reservation.group)):
            return replace(seen.uses, gpu_millis=0)
        return seen.uses

    def _stands(self, seen: Seen) -> bool:
        return seen.reservation is not None and self.reservations.get((seen.node or "", seen.reservation.group)) is seen

    def _whose(self, seen: Seen) -> tuple[str, int] | None:
        """The pod of a workload that it says to be: id and index."""
        if seen.workload_id is None:
            known = self.member(seen.uid)
            return (known[0].workload.id, known[1]) if known else None
        pod = self._pod(seen.workload_id, seen.index)
        return (seen.workload_id, seen.index) if pod is not None and pod.attempt == seen.attempt else None

    def _room(self, whose: tuple[str, int] | None, node: str) -> Resources | None:
        """What the core sees as taken there by a pod of a workload; None if it sees none there. Shared GPUs are their reservation pods'."""
        pod = self._pod(*whose) if whose else None
        if pod is None or pod.state not in HOLDING or pod.placement is None or pod.placement.node != node:
            return None
        return Resources(pod.placement.whole * 1000, pod.request.cpu_millis, pod.request.memory_mib)

    def _pod(self, workload_id: str, index: int) -> Pod | None:
        entry = self.entries.get(workload_id)
        try:
            return entry.pod(index) if entry else None
        except NotFound:
            return None

    def pod_of(self, workload_id: str, pod: Pod) -> str:
        """Name of the Pod object that is marked as this attempt; empty if none is there."""
        seen = (one for one in self.pods.values() if one.workload_id == workload_id)
        return next((one.name for one in seen if (one.index, one.attempt) == (pod.index, pod.attempt)), "")

    def _renew_scarce(self) -> bool:
        """Of workloads that wait: which nodes have too little of what the core does not count; whether that is any news."""
        self.extras.begin(self._would_come_back)
        news = False
        for entry in [self.entries[workload_id] for workload_id in self._asking]:
            if not any(pod.state is PodState.PENDING for pod in entry.workload.pods):
                continue
            scarce = self.extras.scarce(entry.workload, {index: one.extras for index, one in entry.members.items()})
            if scarce != entry.workload.scarce:
                self.put(entry, replace(entry.workload, scarce=scarce))
                news = True
        return news

    def _would_come_back(self, node: str) -> list[Amounts]:
        """Where no GPU is free before somebody is stopped: what each that can be would leave. Of shared ones nobody knows."""
        there = [self.pods[key] for key in self._pods_on.get(node, ())]
        holding = [seen for seen in there if seen.holds and seen.uses.gpu_millis and not seen.reservation]
        if node not in self.nodes or sum(seen.uses.gpu_millis for seen in holding) < self.nodes[node].gpus * 1000:
            return []
        whose = [(seen, self._whose(seen)) for seen in holding]
        return [seen.extras for seen, one in whose if one is not None and self.entries[one[0]].workload.preemptible]

    def snapshot(self) -> Snapshot:
        is_news = bool(self._stale_nodes) and self.recount()
        if (self.extras.is_stale and self._renew_scarce()) or is_news:
            self._version += 1
            self._snapshot = None
        if self._snapshot is None:
            self._snapshot = Snapshot(
                version=self._version,
                nodes=tuple(self.nodes.values()),
                departments=tuple(self.departments.values()),
                projects=tuple(self.projects.values()),
                workloads=tuple(entry.workload for entry in self.entries.values()),
            )
        return self._snapshot

    def changed(self, change: Change) -> None:
        self._version += 1
        self._snapshot = None
        self.tell(change)

    def tell(self, change: Change) -> None:
        for queue in self._listeners:
            queue.put_nowait(change)

    async def listen(self) -> AsyncIterator[Change]:
        queue: asyncio.Queue[Change | None] = asyncio.Queue()
        self._listeners.append(queue)
        try:
            while (change := await queue.get()) is not None:
                yield change
        finally:
            self._listeners.remove(queue)

    def close(self) -> None:
        for queue in self._listeners:
            queue.put_nowait(None)


def _pairs(old: tuple[Pod, ...], new: tuple[Pod, ...]) -> list[tuple[Pod | None, Pod | None]]:
    """Each pod before and after. One that leaves a gang of others leaves a gap, so that place does not say which is which."""
    if len(old) == len(new) and all(one.index == other.index for one, other in zip(old, new, strict=True)):
        return [(one, other) for one, other in zip(old, new, strict=True) if one is not other]
    before, after = {pod.index: pod for pod in old}, {pod.index: pod for pod in new}
    return [(before.get(index), after.get(index)) for index in {**before, **after}]


def _sum(one: Resources, other: Resources) -> Resources:
    return Resources(one.gpu_millis + other.gpu_millis, one.cpu_millis + other.cpu_millis, one.memory_mib + other.memory_mib)


def _over(use: Resources, room: Resources) -> Resources:
    gpu, cpu, memory = use.gpu_millis - room.gpu_millis, use.cpu_millis - room.cpu_millis, use.memory_mib - room.memory_mib
    return Resources(max(0, gpu), max(0, cpu), max(0, memory))


def _counted(seen: Seen) -> object:
    """What of a pod says how much of a node is others', and which of its shared GPUs broke."""
    broken = seen.broken if seen.reservation else ()
    return seen.holds, seen.node, seen.uses, seen.uid, seen.workload_id, seen.index, seen.attempt, seen.reservation, broken


def _counted_of(pod: Pod | None) -> object:
    """What of a workload's pod says how much of a node is its own."""
    return (pod.state in HOLDING, pod.attempt, pod.placement, pod.request) if pod is not None else None


def _shares_of(pod: Pod | None) -> frozenset[Key]:
    """The shared GPUs it has a part of: (node, group)."""
    if pod is None or pod.placement is None or not pod.placement.shares or pod.state not in HOLDING:
        return frozenset()
    return frozenset((pod.placement.node, share.group) for share in pod.placement.shares)


def _marks(key: Key, seen: Seen) -> Iterator[tuple[str, str]]:
    """Under what `kin_of` finds a pod: the name of the workload that its own name gives (`manifests.pod_name`), and its label."""
    yield key[0], key[1].rpartition("-")[0].rpartition("-")[0]
    if seen.workload_id:
        yield key[0], f"id/{seen.workload_id}"
