"""GPUs that their kubelet calls broken: the workloads that use them say so, for as long as it is so, whoever comes later included.

Kubelets from 1.36 on name the devices of a container (`allocatedResourcesStatus`). Of older ones only the node's number of GPUs is known.
"""

from __future__ import annotations

from dataclasses import replace

from hotdesk_scheduler.core.model import HOLDING, Kind
from hotdesk_scheduler.engines.base import Change
from hotdesk_scheduler.engines.kubernetes.book import Book
from hotdesk_scheduler.engines.kubernetes.entry import Entry
from hotdesk_scheduler.engines.kubernetes.observe import Seen
from hotdesk_scheduler.engines.kubernetes.saving import Saving


class Health:
    """`look` after news of a pod: of one that may use a GPU, or of a reservation pod, for all who share it."""

    def __init__(self, book: Book, saving: Saving) -> None:
        self._book = book
        self._saving = saving

    def begin(self) -> None:
        for seen in tuple(self._book.pods.values()):
            if seen.broken:
                self.look(seen)

    def look(self, seen: Seen) -> None:
        if seen.reservation is not None:
            for workload_id, index in tuple(self._book.sharers.get((seen.node or "", seen.reservation.group), ())):
                self._renew(self._book.entries[workload_id], index, ())
            return
        member = self._book.member(seen.uid)
        if member is not None:
            self._renew(*member, seen.broken)
            return
        entry = self._book.entries.get(seen.workload_id or "")
        if entry is not None and any(pod.index == seen.index and pod.attempt == seen.attempt for pod in entry.workload.pods):
            self._renew(entry, seen.index, seen.broken)

    def _renew(self, entry: Entry, index: int, own: tuple[str, ...]) -> None:
        sentence, before = self._sentence(entry, index, own), entry.broken.get(index, "")
        if sentence == before and (not sentence or index in entry.errors):
            return
        entry.forget_broken(index)
        if sentence:
            entry.errors[index] = entry.broken[index] = sentence
        self._book.put(entry, replace(entry.workload))  # for whoever looks at it only when it is another one
        self._saving.soon(entry)
        self._book.changed(Change("failed_verb" if sentence else "updated", entry.workload.id, index, sentence))

    def _sentence(self, entry: Entry, index: int, own: tuple[str, ...]) -> str:
        pod = entry.pod(index)
        if pod.state not in HOLDING or pod.placement is None:
            return ""
        node = pod.placement.node
        held = [self._book.reservations.get((node, share.group)) for share in pod.placement.shares]
        broken = [*own, *(device for seen in held if seen for device in seen.broken)]
        if not broken:
            return ""
        which = f"GPU {broken[0]}, which it uses, is" if len(broken) == 1 else f"GPUs {', '.join(broken)}, which it uses, are"
        return f"{which} reported broken by {node}; {_another(entry, index)} to get another one."


def _another(entry: Entry, index: int) -> str:
    if (member := entry.members.get(index)) is not None:
        return f"delete its pod (kubectl delete pod {member.name} -n {entry.namespace}) and have it made again"
    return "stop it and start it again from the hub" if entry.workload.kind is Kind.WORKSPACE else "stop and resume it"
