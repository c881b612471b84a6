"""GPUs that their kubelet calls broken: the workloads that use them say so, for as long as it is so.

Kubelets from 1.36 on name the devices of a container (`allocatedResourcesStatus`). Of older ones only the node's number of GPUs is known.
"""

from __future__ import annotations

from hotdesk_scheduler.core.model import HOLDING, Pod
from hotdesk_scheduler.engines.base import Change
from hotdesk_scheduler.engines.kubernetes.book import Book, Entry
from hotdesk_scheduler.engines.kubernetes.observe import Seen
from hotdesk_scheduler.engines.kubernetes.saving import Saving


class Health:
    """`look` after news of a pod: of one that uses a GPU, or of a reservation pod, for all who share it."""

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
        sentence, before = self._sentence(entry.pod(index), own), entry.broken.get(index, "")
        if sentence == before:
            return
        if before and entry.errors.get(index) == before:
            del entry.errors[index]
        if sentence:
            entry.errors[index] = entry.broken[index] = sentence
        else:
            del entry.broken[index]
        self._saving.soon(entry)
        self._book.changed(Change("failed_verb" if sentence else "updated", entry.workload.id, index, sentence))

    def _sentence(self, pod: Pod, own: tuple[str, ...]) -> str:
        if pod.state not in HOLDING or pod.placement is None:
            return ""
        node = pod.placement.node
        held = [self._book.reservations.get((node, share.group)) for share in pod.placement.shares]
        broken = [*own, *(device for seen in held if seen for device in seen.broken)]
        if not broken:
            return ""
        which = f"GPU {broken[0]}, which it uses, is" if len(broken) == 1 else f"GPUs {', '.join(broken)}, which it uses, are"
        return f"{which} reported broken by {node}; stop and resume it to get another one."
