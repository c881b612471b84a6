"""Decisions are values. A plan lists them in the order taken, stamped with the version of the snapshot it was computed from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotdesk_scheduler.core.advice import Advice
from hotdesk_scheduler.core.model import Placement
from hotdesk_scheduler.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class Start:
    """Start this pod there, now."""

    workload_id: str
    index: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class Nominate:
    """Keep this place for the pod (None: give it up) until what is being released there is gone; the workload waits."""

    workload_id: str
    index: int
    placement: Placement | None


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop this pod with notice. `beneficiary` is the workload id it is stopped for, None for limits and broken gangs."""

    workload_id: str
    index: int
    reason: Reason
    grace_s: float
    beneficiary: str | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """Stop this pod and keep `placement` nominated for it (consolidation); it ends running again, never pending."""

    workload_id: str
    index: int
    placement: Placement
    reason: Reason
    grace_s: float
    beneficiary: str | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """Not started, and why. `position` is the place in the cluster's queue, 1 = next; any one of `helps` would let it start."""

    workload_id: str
    reason: Reason
    position: int
    helps: tuple[Advice, ...] = ()


@dataclass(frozen=True, slots=True)
class Requeue:
    """Lifecycle: this ended pod becomes pending again (attempt + 1), not before `not_before`."""

    workload_id: str
    index: int
    not_before: float = 0.0


@dataclass(frozen=True, slots=True)
class Finish:
    """Lifecycle: the workload as a whole has come to `phase`."""

    workload_id: str
    phase: str
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class Remove:
    """Lifecycle: nothing of it is left (deleted, or its time after finishing is over): forget it."""

    workload_id: str


Act = Start | Nominate | Stop | Move
Decision = Act | Hold
LifecycleDecision = Requeue | Finish | Remove | Stop


@dataclass(frozen=True, slots=True)
class Plan:
    """What `decide()` returns: what to do, in the order taken, who is held and why, in the order of the queue, and what each project
    may have (for `why` and `list projects`).

    `holds` may be a `holds.Holds`: its reasons are there, the places in the queue are counted when somebody first looks.
    """

    version: int
    acts: tuple[Act, ...]
    holds: Sequence[Hold] = ()
    fair_shares: tuple[tuple[str, int], ...] = ()
    weights: tuple[tuple[str, int], ...] = ()
    """Over-quota weights of projects as past use leaves them; only where past use counts."""

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """All of it."""
        return (*self.acts, *self.holds)
