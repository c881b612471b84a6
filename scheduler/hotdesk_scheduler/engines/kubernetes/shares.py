"""Which GPUs a placed pod has, and what it is told of them: devices, variables, tier, a workspace's grant.

Whole GPUs of a real node are its device plugin's to give; shared ones are what their reservation pods were given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hotdesk_api.errors import Conflict

from hotdesk_scheduler.core.model import HOLDING, Kind, Placement, Pod, PodState, Workload
from hotdesk_scheduler.engines.base import Device, PodDetails
from hotdesk_scheduler.engines.kubernetes import manifests, nodes, reservation
from hotdesk_scheduler.engines.kubernetes.book import Book
from hotdesk_scheduler.engines.kubernetes.entry import Entry
from hotdesk_scheduler.engines.kubernetes.reservation import Reserved, Told
from hotdesk_scheduler.engines.kubernetes.statuses import Held


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
            return PodDetails(error=error, namespace=entry.namespace)
        is_workspace = entry.workload.kind is Kind.WORKSPACE
        is_told = not is_workspace or index in entry.told or pod.state is not PodState.STARTING
        reserved = self._reserved(pod.placement)
        told = self.told(entry, pod, reserved) if reserved else None
        own = {**self.variables(entry, pod), **(told.data if told else {})}
        return PodDetails(
            devices=self._devices_of(entry, pod),
            environment={**manifests.layered(own, entry.spec.environment), **self._added(entry.workload)},
            tier=self._tier(entry, pod),
            error=error,
            namespace=entry.namespace,
            grant=manifests.grant(entry.workload, pod, entry.namespace, told) if is_workspace else None,
            is_ready=is_told and (bool(reserved) or not self._book.is_reserved(pod.placement)),
        )

    def devices(self, node: str) -> Sequence[Device]:
        """Of a simulated node all, of a real one those that are shared now."""
        found = self._book.nodes.get(node)
        if found is None or found.simulated:
            return nodes.devices(found) if found else ()
        shared = sorted((group, seen) for (name, group), seen in self._book.reservations.items() if name == node)
        uuids = [seen.reservation.device for _, seen in shared if seen.reservation and seen.reservation.device and not seen.leaving]
        return tuple(Device(i, uuid, found.gpu_model, found.gpu_memory_mib, simulated=False) for i, uuid in enumerate(uuids))

    def would_give(self, placement: Placement) -> Sequence[Device]:
        held = self._book.would_give(placement)
        if not held:
            raise Conflict(f"Which GPUs of {placement.node} it gets is up to that node.", field="placement", value=placement.node)
        return self._simulated(placement.node, held)

    def told(self, entry: Entry, pod: Pod, reserved: Sequence[Reserved]) -> Told | None:
        """What a pod is to know of the devices reserved for it; None if none are."""
        if not reserved or pod.placement is None:
            return None
        node = self._book.nodes.get(pod.placement.node)
        devices = [one.device for one in reserved]
        data = reservation.variables(pod.placement.shares, devices, node.gpu_memory_mib if node else 0)
        return Told(self.config_map(entry, pod), data, tuple(reserved))

    def variables(self, entry: Entry, pod: Pod) -> Mapping[str, str]:
        """Without those that its ConfigMap tells."""
        held = entry.grants.get(pod.index, ())
        devices = self._devices_of(entry, pod) if held else ()
        share = manifests.share(held, devices, self._tier(entry, pod)) if len(devices) == len(held) else {}
        return {**manifests.identity(entry.workload, pod), **share, **self._added(entry.workload)}

    def config_map(self, entry: Entry, pod: Pod) -> str:
        """A pod of others names its own: its environment refers to it already."""
        if not entry.is_claimed:
            return manifests.config_map_name(entry.workload, entry.uid, pod)
        seen = self._book.seen_of(entry, pod)
        return seen.claim.config_map if seen and seen.claim else ""

    def _reserved(self, placement: Placement) -> tuple[Reserved, ...]:
        """() as long as one of them has not said which device it was given."""
        if not self._book.is_reserved(placement):
            return ()
        seen = [self._book.reservations.get((placement.node, share.group)) for share in placement.shares]
        found = [Reserved(one.uid, one.reservation.device) for one in seen if one and one.reservation and one.reservation.device]
        return tuple(found) if len(found) == len(placement.shares) else ()

    def _devices_of(self, entry: Entry, pod: Pod) -> tuple[Device, ...]:
        assert pod.placement is not None
        if not self._book.is_reserved(pod.placement):
            return self._simulated(pod.placement.node, entry.grants.get(pod.index, ()))
        known = {device.uuid: device for device in self.devices(pod.placement.node)}
        return tuple(known[one.device] for one in self._reserved(pod.placement) if one.device in known)

    def _simulated(self, node: str, held: Sequence[Held]) -> tuple[Device, ...]:
        found = self._book.nodes.get(node)
        return nodes.devices(found, [one.index for one in held]) if found is not None else ()

    def _tier(self, entry: Entry, pod: Pod) -> str:
        if pod.placement is None or not pod.placement.gpu_millis:
            return ""
        if self._book.is_reserved(pod.placement):
            return reservation.TIER if self._reserved(pod.placement) else ""
        return "simulated" if entry.grants.get(pod.index) else "exclusive"
