"""Pods of others in the book: each is a workload of one pod, or with the others of its group one workload that starts together.

Nothing of it is kept but what its pods say: after a restart it is read from them again. A pod that ends leaves its workload, and a
workload ends with its last pod; what made them makes the next ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from hotdesk_api.errors import Conflict

from hotdesk_scheduler.core.model import HOLDING, Phase, Pod, PodState, Workload
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines import transitions
from hotdesk_scheduler.engines.base import Change
from hotdesk_scheduler.engines.kubernetes import claims, groups, progress
from hotdesk_scheduler.engines.kubernetes.api import Api
from hotdesk_scheduler.engines.kubernetes.book import Book
from hotdesk_scheduler.engines.kubernetes.claims import Claim
from hotdesk_scheduler.engines.kubernetes.entry import Entry, Member
from hotdesk_scheduler.engines.kubernetes.groups import Group
from hotdesk_scheduler.engines.kubernetes.observe import Life, Seen
from hotdesk_scheduler.engines.kubernetes.sizes import Sizes
from hotdesk_scheduler.engines.kubernetes.volumes import Found, Looks
from hotdesk_scheduler.engines.kubernetes.watch import Key

_ENDED = (Life.SUCCEEDED, Life.FAILED, Life.FADED)
RETELL_S = 0.5
"""A gang that grows says so on the pods that are there already this much later: not once for each pod that comes."""

MOST_AGES = 1000


@dataclass(slots=True)
class Gang:
    """`maker_uid`: of its first pod. `since`: when the oldest pod it is made of was created. `said_at`: the PodGroup that says its size."""

    entry: Entry
    maker_uid: str
    next_index: int = 0
    since: float = float("inf")
    said_at: str = ""

    def had(self, seen: Seen, claim: Claim) -> bool:
        """Whether a pod that has ended was one of it: the same made it; of bare pods, it was there together with another one."""
        if claim.maker_uid or self.maker_uid:
            return claim.maker_uid == self.maker_uid
        return seen.ended_at is not None and seen.ended_at > self.since


class Claimed:
    """`owner_of`: whose own namespace it is. `explain(entry)` says on its pods why they wait, `discard` takes one away."""

    def __init__(
        self,
        api: Api,
        book: Book,
        *,
        owner_of: Callable[[str], str | None],
        explain: Callable[[Entry], None],
        discard: Callable[[Seen], None],
    ) -> None:
        self._book = book
        self._owner_of = owner_of
        self._explain = explain
        self._discard = discard
        self._gangs: dict[Key, Gang] = {}
        self._refused: dict[str, tuple[Seen, Entry]] = {}
        self._ages: dict[str, float] = {}
        self._retelling: dict[str, asyncio.TimerHandle] = {}
        self._sizes = Sizes(api, heard=self._resize, is_wanted=self._is_wanted)
        self._looks = Looks(api, heard=self.look_again, is_wanted=self._is_claim_wanted)

    async def stop(self) -> None:
        for timer in self._retelling.values():
            timer.cancel()
        await self._sizes.stop()
        await self._looks.stop()

    # what is seen

    def look(self, seen: Seen | None, old: Seen | None) -> None:
        """News of a pod that is ours to place."""
        one = seen or old
        assert one is not None
        known = self._book.member(one.uid)
        if seen is None or seen.life in _ENDED or _never_starts(seen):
            self._refused.pop(one.uid, None)
            if known is not None:
                self._end(*known, seen)
        elif known is None:
            self._begin(seen)
        elif old is not None and old.claim != seen.claim and known[0].pod(known[1]).state is PodState.PENDING:
            self._leave(*known)
            self._begin(seen)
        else:
            self._step(*known, seen)

    def look_again(self) -> None:
        """At all that are in no workload, oldest first: there are other projects now, or groups whose size is known."""
        waiting = [(seen.claim.created_at, seen.name, seen) for seen in self._book.pods.values() if seen.claim is not None]
        for _, _, seen in sorted(waiting, key=lambda entry: entry[:2]):
            if self._book.member(seen.uid) is None and seen.life not in _ENDED:
                self._begin(seen)
        done = [seen for _, _, seen in waiting if seen.life is Life.SUCCEEDED and self._book.member(seen.uid) is None]
        for seen in sorted(done, key=lambda one: one.ended_at or 0.0, reverse=True):
            self._count_done(seen)

    def lose(self, node: str) -> None:
        """Its pods leave their workloads; their objects go as well, so that a node that comes back ends what it still runs."""
        for entry in [entry for entry in self._book.entries.values() if entry.is_claimed]:
            for pod in entry.workload.pods:
                if pod.state in HOLDING and pod.placement is not None and pod.placement.node == node:
                    seen = self._book.pods.get((entry.namespace, entry.members[pod.index].name))
                    self._book.tell(Change("lost", entry.workload.id, pod.index, f"Node {node} was lost, and pod {pod.index} with it."))
                    self._book.put(entry, replace(entry.workload, lost_node=True))
                    self._leave(entry, pod.index)
                    if seen is not None:
                        self._discard(seen)

    # into a workload

    def _begin(self, seen: Seen) -> None:
        claim = seen.claim
        if claim is None or _never_starts(seen) or (seen.node is None and seen.gated):
            return
        project = self._project(seen, claim)
        if isinstance(project, Reason):
            self._refuse(seen, claim, project)
        elif (problem := claim.problem or self._untellable(claim)) and seen.node is None:  # nothing we could decide would be right
            self._refuse(seen, claim, Reason(ReasonCode.NODES_EXCLUDED, problem))
        else:
            self._begin_where_its_volumes_lie(seen, claim, project)

    def _begin_where_its_volumes_lie(self, seen: Seen, claim: Claim, project: str) -> None:
        """That is said of one that has no node yet."""
        found = self._looks.of(seen.namespace, claim.volume_claims) if seen.node is None else Found()
        if found is None or found.problem:
            self._refuse(seen, claim, Reason(ReasonCode.IMAGE_OR_VOLUME_ERROR, found.problem) if found else None)
            return
        claim = replace(claim, volumes=found.tied) if found.tied else claim
        if claim.group is not None:
            self._begin_in_gang(seen, claim, project, claim.group)
        else:
            self._begin_alone(seen, claim, project)

    def _untellable(self, claim: Claim) -> str:
        """A share of a GPU that a device plugin gives: the pod has to read from somewhere which one it is."""
        gpu = claim.request.gpu
        if gpu.whole or gpu.is_none or claim.config_map or any(node.gpus and node.simulated for node in self._book.nodes.values()):
            return ""
        return claims.UNTELLABLE

    def _project(self, seen: Seen, claim: Claim) -> str | Reason:
        """Whose it is. A project's own namespace speaks for that project alone; anywhere else the pod says it."""
        own = self._owner_of(seen.namespace)
        if own is not None:
            if claim.project in ("", own) or claim.project_by == claims.ANY_PROJECT:
                return own
            return Reason(
                ReasonCode.UNKNOWN_PROJECT,
                f"Namespace {seen.namespace} is project {own}'s and {claim.project_by} names {claim.project}: leave that out, or make the "
                "pod in a namespace that is no other project's.",
            )
        if not claim.project:
            how = f"label it {claims.PROJECTS[0]}, or make it in a project's namespace"
            return Reason(ReasonCode.UNKNOWN_PROJECT, f"It names no project: {how}.")
        if claim.project not in self._book.projects:
            how = "an admin has to create it, or name another one; it is looked at again then"
            return Reason(ReasonCode.UNKNOWN_PROJECT, f"There is no project {claim.project}, which {claim.project_by} names: {how}.")
        return claim.project

    def _refuse(self, seen: Seen, claim: Claim, why: Reason | None) -> None:
        """It stays out of the queue, and says why (None: that is just being asked)."""
        if seen.node is not None:
            return  # it runs, and counts as somebody else's
        _, entry = self._refused.get(seen.uid, (seen, None))
        if entry is None:
            workload = claims.workload_of(seen.uid, seen.name, claim, claim.project)
            workload = replace(workload, pods=(claims.pod_of(seen, claim, 0, 0.0),))
            entry = Entry(seen.namespace, seen.uid, 0, workload, claims.spec_of(seen.name, claim, claim.project), is_claimed=True)
            entry.members[0] = Member(seen.name, seen.uid)
        self._refused[seen.uid] = (seen, entry)
        entry.hold = why
        if why is not None:
            self._explain(entry)

    def _begin_alone(self, seen: Seen, claim: Claim, project: str) -> None:
        entry = self._entry(seen, claim, project, seen.uid, seen.name)
        self._book.add(entry)
        self._join(entry, 0, seen, claim)
        self._book.changed(Change("submitted", seen.uid))

    def _entry(self, seen: Seen, claim: Claim, project: str, workload_id: str, name: str) -> Entry:
        name = self._free_name(name, project, seen.namespace, workload_id)
        workload = claims.workload_of(workload_id, name, claim, project)
        spec = claims.spec_of(name, claim, project)
        return Entry(seen.namespace, workload_id, 0, workload, spec, is_claimed=True, maker=claim.maker)

    def _free_name(self, name: str, project: str, namespace: str, workload_id: str) -> str:
        """Outside of its project's own namespace, and where the name is another's, it says where it is; or else which it is."""
        names = [name] if self._owner_of(namespace) == project else []
        names.append(f"{name}.{namespace}")
        return next((one for one in names if self._book.named(project, one) is None), f"{name}.{workload_id}")

    def give_way(self, entry: Entry) -> None:
        """A workload of ours has its name now."""
        workload = entry.workload
        self._book.rename(entry, self._free_name(workload.name, workload.project, entry.namespace, workload.id))
        self._book.changed(Change("updated", workload.id))

    def _begin_in_gang(self, seen: Seen, claim: Claim, project: str, group: Group) -> None:
        gang = self._gangs.get((seen.namespace, group.name))
        size = group.size or (self._sizes.of(group.said_at) if group.said_at else 0) or (gang.entry.workload.min_pods if gang else 0)
        if not size:
            asked = group.said_at is not None and self._sizes.of(group.said_at) is None
            self._refuse(seen, claim, None if asked else Reason(ReasonCode.GANG_INCOMPLETE, groups.unknown_size(group)))
            return
        if gang is None:
            gang = self._new_gang(seen, claim, project, group)
        if not group.size and group.said_at:
            gang.said_at = group.said_at
        entry = gang.entry
        if entry.workload.project != project:
            why = f"Group {group.name} is one of project {entry.workload.project}, and this pod names {project}"
            self._refuse(seen, claim, Reason(ReasonCode.UNKNOWN_PROJECT, f"{why}: give it a group of its own."))
        elif entry.workload.phase is Phase.ACTIVE:  # else it comes after that one has ended
            if seen.node is None and not _waits(entry):
                size = 0  # what runs is not stopped for those that come later
            size, age = max(size, entry.workload.min_pods), min(claim.created_at, entry.workload.created_at)
            self._book.put(entry, replace(entry.workload, min_pods=size, created_at=age))
            self._join_gang(gang, seen, claim)
            self._book.changed(Change("updated", entry.workload.id))
            self.retell(entry)

    def _join_gang(self, gang: Gang, seen: Seen, claim: Claim) -> None:
        self._join(gang.entry, gang.next_index, seen, claim)
        gang.next_index += 1
        gang.since = min(gang.since, claim.created_at)

    def _resize(self) -> None:
        """A PodGroup says another size, or one for the first time. What runs is not stopped for it."""
        for gang in self._gangs.values():
            entry, size = gang.entry, self._sizes.known(gang.said_at)
            if size and size != entry.workload.min_pods and _waits(entry):
                self._book.put(entry, replace(entry.workload, min_pods=size))
                self._book.changed(Change("updated", entry.workload.id))
                self.retell(entry)
        self.look_again()

    def _new_gang(self, seen: Seen, claim: Claim, project: str, group: Group) -> Gang:
        made_by = claim.maker_uid or seen.namespace
        workload_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{made_by}/{group.name}"))  # the same after a restart
        gang = Gang(self._entry(seen, claim, project, workload_id, group.name), claim.maker_uid)
        age = self._ages.pop(workload_id, claim.created_at)
        gang.entry.workload = replace(gang.entry.workload, created_at=min(age, claim.created_at))
        self._gangs[seen.namespace, group.name] = gang
        self._book.add(gang.entry)
        self._book.changed(Change("submitted", workload_id))
        return gang

    def _count_done(self, seen: Seen) -> None:
        """A pod that had done its part when we came; for a gang of which others still run."""
        claim = seen.claim
        gang = self._gangs.get((seen.namespace, claim.group.name)) if claim is not None and claim.group is not None else None
        if gang is not None and claim is not None and gang.had(seen, claim):
            self._join_gang(gang, seen, claim)

    def _join(self, entry: Entry, index: int, seen: Seen, claim: Claim) -> None:
        now = time.time()
        pod = claims.pod_of(seen, claim, index, now, self._book.nodes.get(seen.node or ""))
        if (refused := self._refused.pop(seen.uid, None)) is not None:
            refused[1].hold = None  # if that is not written yet, it need not be any more
        self._book.join(entry, index, Member(seen.name, seen.uid, volumes=claim.volumes, extras=seen.extras))
        self._book.put(entry, _tied(entry, transitions.with_another(entry.workload, pod, now)))
        self._give(entry, pod)

    def _give(self, entry: Entry, pod: Pod) -> None:
        """It runs; which simulated GPU is shown for it does not matter then."""
        if pod.placement is not None and pod.state in HOLDING:
            with contextlib.suppress(Conflict):
                self._book.grant(entry, pod.index, pod.placement.node, self._book.would_give(pod.placement))

    def retell(self, entry: Entry) -> None:
        """Soon, on all of its pods that wait."""
        timer = self._retelling.get(entry.workload.id)
        if timer is None:
            self._retelling[entry.workload.id] = asyncio.get_running_loop().call_later(RETELL_S, self._retell, entry)

    def _retell(self, entry: Entry) -> None:
        self._retelling.pop(entry.workload.id, None)
        if entry.hold is not None:
            self._explain(entry)

    # in it, and out of it

    def _step(self, entry: Entry, index: int, seen: Seen) -> None:
        pod, now = entry.pod(index), time.time()
        is_elsewhere = pod.placement is None or pod.placement.node != seen.node
        if seen.node is not None and seen.claim is not None and is_elsewhere:  # bound by an earlier leader, or by hand
            placed = claims.pod_of(seen, seen.claim, index, now, self._book.nodes.get(seen.node))
            self._book.put(entry, transitions.with_pod(entry.workload, placed, now))
            self._give(entry, placed)
            self._book.changed(Change("updated", entry.workload.id, index))
            return
        if seen.why is not None:
            entry.errors[index] = seen.why.sentence
        after = progress.after(pod, seen, now)
        if after is pod:
            return
        if after.state is PodState.RELEASING and not seen.leaving:
            return  # it cannot start, which is its controller's to mend; it holds its place meanwhile
        if after.state is PodState.RUNNING:
            entry.errors.pop(index, None)
        self._book.put(entry, transitions.with_pod(entry.workload, after, now))
        self._book.changed(Change("started" if after.state is PodState.RUNNING else "updated", entry.workload.id, index))

    def _end(self, entry: Entry, index: int, seen: Seen | None) -> None:
        """A pod of a gang that has done its part counts for it as long as the gang is there."""
        pod, now = entry.pod(index), time.time()
        if pod.state is PodState.SUCCEEDED:
            return
        if pod.state in HOLDING:
            self._book.tell(Change("exited" if seen else "released", entry.workload.id, index))
        if seen is not None and seen.life is Life.SUCCEEDED and pod.state is not PodState.RELEASING:
            done = replace(pod, state=PodState.SUCCEEDED, ended_at=seen.ended_at or now, exit_code=0)
            self._book.put(entry, transitions.with_pod(entry.workload, done, now))
            self._book.changed(Change("updated", entry.workload.id, index))
            self._drop_if_done(entry)
        else:
            self._leave(entry, index)

    def _leave(self, entry: Entry, index: int) -> None:
        self._book.leave(entry, index)
        self._book.put(entry, _tied(entry, transitions.without(entry.workload, index, time.time())))
        self._book.changed(Change("updated", entry.workload.id, index))
        self._drop_if_done(entry)
        if entry.workload.id in self._book.entries:
            self.retell(entry)

    def take_in_again(self, entry: Entry, index: int) -> None:
        """Its claims are not what they were when it was taken in."""
        seen = self._book.seen_of(entry, entry.pod(index))
        self._leave(entry, index)
        if seen is not None and seen.claim is not None:
            self._looks.forget(seen.namespace, seen.claim.volume_claims)
            self._begin(seen)

    def _drop_if_done(self, entry: Entry) -> None:
        if any(pod.state is not PodState.SUCCEEDED for pod in entry.workload.pods):
            return
        if not entry.workload.pods and entry.workload.phase is Phase.ACTIVE:
            self._remember_age(entry)
        self.forget(entry)
        self._book.drop(entry.workload.id)
        self._book.changed(Change("removed", entry.workload.id))
        if entry.workload.phase is not Phase.ACTIVE:
            self.look_again()  # pods may have been made meanwhile that were not to end with it

    def _remember_age(self, entry: Entry) -> None:
        """A gang that was stopped keeps its place in the queue: what made it makes it again, under the same id."""
        if entry.maker and any(gang.entry is entry for gang in self._gangs.values()):
            self._ages[entry.workload.id] = entry.workload.created_at
            if len(self._ages) > MOST_AGES:
                del self._ages[next(iter(self._ages))]

    def forget(self, entry: Entry) -> None:
        """The workload is out of the book."""
        if (timer := self._retelling.pop(entry.workload.id, None)) is not None:
            timer.cancel()
        for key, gang in tuple(self._gangs.items()):
            if gang.entry is entry:
                del self._gangs[key]
                for seen in self._book.pods.values():
                    if seen.claim is not None and seen.claim.group is not None and (seen.namespace, seen.claim.group.name) == key:
                        self._sizes.forget(seen.claim.group.said_at or "")

    def _is_wanted(self, path: str) -> bool:
        of = (seen.claim.group for seen, _ in self._refused.values() if seen.claim is not None)
        if any(group is not None and group.said_at == path for group in of):
            return True
        return any(gang.said_at == path and _waits(gang.entry) for gang in self._gangs.values())

    def _is_claim_wanted(self, namespace: str, name: str) -> bool:
        of = (seen for seen, _ in self._refused.values() if seen.namespace == namespace)
        return any(seen.claim is not None and name in seen.claim.volume_claims for seen in of)


def _tied(entry: Entry, workload: Workload) -> Workload:
    """All volumes of its pods count for all of them: it is placed as a whole."""
    volumes = tuple({one.name: one for member in entry.members.values() for one in member.volumes}.values())
    return workload if workload.volumes == volumes else replace(workload, volumes=volumes)


def _never_starts(seen: Seen) -> bool:
    """Deleted before it had a node: it is never bound, however long a finalizer keeps it."""
    return seen.leaving and seen.node is None


def _waits(entry: Entry) -> bool:
    """Nothing of it runs."""
    return all(pod.state is PodState.PENDING for pod in entry.workload.pods)
