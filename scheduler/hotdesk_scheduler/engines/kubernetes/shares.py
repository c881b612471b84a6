"""Which GPUs a placed pod has, and what it is told of them: devices, variables, tier, a workspace's grant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hotdesk_api.errors import Conflict

from hotdesk_scheduler.core.model import HOLDING, Kind, Placement, Pod, Workload
from hotdesk_scheduler.engines.base import Device, PodDetails
from hotdesk_scheduler.engines.kubernetes import manifests, nodes
from hotdesk_scheduler.engines.kubernetes.book import Book, Entry
from hotdesk_scheduler.engines.kubernetes.resources import Held


class Shares:
    """Reads the book. `added`: the variables that the service adds."""

    def __init__(self, book: Book, *, added: Callable[[Workload], Mapping[str, str]]) -> None:
        self._book = book
        self._added = added

    def details(self, workload_id: str, index: int) -> PodDetails:
        entry = self._book.entry(workload_id)
        pod = entry.pod(index)
        error = entry.errors.get(index, "")
        if pod.state not in HOLDING or pod.placement is None:
            return PodDetails(error=error)
        held = entry.grants.get(index, ())
        environment = {**manifests.layered(self._own(entry, pod), entry.spec.environment), **self._added(entry.workload)}
        return PodDetails(
            devices=self._given(pod.placement.node, held),
            environment=environment,
            tier=self._tier(pod, held),
            error=error,
            grant=manifests.grant(entry.workload, pod, entry.namespace) if entry.workload.kind is Kind.WORKSPACE else None,
        )

    def devices(self, node: str) -> Sequence[Device]:
        found = self._book.nodes.get(node)
        return nodes.devices(found) if found else ()

    def would_give(self, placement: Placement) -> Sequence[Device]:
        held = self._book.would_give(placement)
        if not held:
            raise Conflict(f"Which GPUs of {placement.node} it gets is up to that node.", field="placement", value=placement.node)
        return self._given(placement.node, held)

    def _given(self, node: str, held: Sequence[Held]) -> tuple[Device, ...]:
        known = {device.index: device for device in self.devices(node)}
        return tuple(known[one.index] for one in held if one.index in known)

    def _tier(self, pod: Pod, held: Sequence[Held]) -> str:
        if pod.placement is None or not pod.placement.gpu_millis:
            return ""
        return "simulated" if held else "exclusive"

    def _own(self, entry: Entry, pod: Pod) -> dict[str, str]:
        assert pod.placement is not None
        held = entry.grants.get(pod.index, ())
        devices = self._given(pod.placement.node, held)
        tier = self._tier(pod, held)
        return {**manifests.identity(entry.workload, pod), **(manifests.share(held, devices, tier) if len(devices) == len(held) else {})}

    def variables(self, entry: Entry, pod: Pod) -> Mapping[str, str]:
        return {**self._own(entry, pod), **self._added(entry.workload)}
