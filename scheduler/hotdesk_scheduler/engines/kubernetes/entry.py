"""One workload as the engine keeps it in memory, and the pods of others that it may be made of."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hotdesk_api.errors import NotFound
from hotdesk_api.models import WorkloadSpec

from hotdesk_scheduler.core.model import Pod, Volume, Workload
from hotdesk_scheduler.core.reasons import Reason
from hotdesk_scheduler.engines.kubernetes.codec import NOTHING
from hotdesk_scheduler.engines.kubernetes.extras import Amounts
from hotdesk_scheduler.engines.kubernetes.statuses import Held
from hotdesk_scheduler.engines.kubernetes.watch import Key


@dataclass(slots=True)
class Member:
    """A pod of others that is one of a workload's; `told`: why it waits, as it was last told; `volumes`: what its claims tie it to."""

    name: str
    uid: str
    told: str = ""
    volumes: tuple[Volume, ...] = ()
    extras: Amounts = ()


@dataclass(slots=True, eq=False)
class Entry:
    """One workload: its resource (`version` as last written or read, `said` its status) and the core's value, which may be ahead of that.

    `members`: pods of others that it is made of, by index; `maker`: what would make them again, as kubectl names it.
    `broken`: which of the `errors` are of GPUs that broke. `told`: pods of a workspace whose ConfigMap lies ready for the hub's pod.
    """

    namespace: str
    uid: str
    version: int
    workload: Workload
    spec: WorkloadSpec
    grants: dict[int, tuple[Held, ...]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    broken: dict[int, str] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)
    hold: Reason | None = None
    explained_at: float = 0.0
    written: object = None
    said: int = NOTHING
    is_saving: bool = False
    is_claimed: bool = False
    members: dict[int, Member] = field(default_factory=dict)
    maker: str = ""
    suspended: bool = False
    deleting: bool = False
    saving: asyncio.Lock = field(default_factory=asyncio.Lock)
    turns: dict[int, asyncio.Lock] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """Pods of others may be named like our workloads."""
        return self.namespace, f"claimed/{self.workload.id}" if self.is_claimed else self.workload.name

    def turn(self, index: int) -> asyncio.Lock:
        """What is done about one pod is done one thing after the other."""
        return self.turns.setdefault(index, asyncio.Lock())

    def forget_broken(self, index: int) -> None:
        """It has no GPU any more."""
        sentence = self.broken.pop(index, None)
        if sentence is not None and self.errors.get(index) == sentence:
            del self.errors[index]

    def worth_writing(self) -> object:
        return self.workload, self.hold, tuple(sorted(self.errors.items()))

    def pod(self, index: int) -> Pod:
        pods = self.workload.pods
        if 0 <= index < len(pods) and pods[index].index == index:
            return pods[index]
        for pod in pods:
            if pod.index == index:
                return pod
        raise NotFound(f"{self.workload.name} has no pod {index}.", field="pod", value=index)
