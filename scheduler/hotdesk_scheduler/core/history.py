"""Past use: how it fades, and how it corrects over-quota weights (scheduling.md 3.3). Integers only.

The past use of a project is the mean of what it held, in billionths of a GPU, over a past that fades: what was held one half-life
ago counts half. What is guaranteed is never touched; of those who compete for the rest, who used more than his weight gets less.

    weights 1:1, k = 0.4; A held 6 GPUs of late, B none     ->  u = 1 and 0 of a half each
    A: 0.5 + 0.4 (0.5 - 1) = 0.3, B: 0.5 + 0.4 (0.5 - 0) = 0.7   (written with their old sum: 0.6 and 1.4)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt

from hotdesk_scheduler.core.model import HOLDING, Snapshot

Usage = tuple[tuple[str, int], ...]
"""Past use by project, in billionths of a GPU, sorted by name."""

NANOS = 1_000_000
"""Billionths in a thousandth."""
_BITS = 64
_ONE = 1 << _BITS
_STEPS = 24


def _roots_of_a_half() -> tuple[int, ...]:
    """2^-(1/2), 2^-(1/4), … as parts of `_ONE`."""
    roots = [_ONE >> 1]
    for _ in range(_STEPS):
        roots.append(isqrt(roots[-1] << _BITS))
    return tuple(roots[1:])


_ROOTS = _roots_of_a_half()


def left_after(elapsed_ms: int, half_life_ms: int) -> int:
    """What is left of the past after so long, as parts of 2^64: a half after each half-life."""
    halves, rest = divmod((max(0, elapsed_ms) << _STEPS) // half_life_ms, 1 << _STEPS)
    left = _ONE >> min(halves, _BITS)
    for place, root in enumerate(_ROOTS, 1):
        if rest >> (_STEPS - place) & 1:
            left = left * root >> _BITS
    return left


def faded(usage: Usage, held: Mapping[str, int], *, elapsed_ms: int, half_life_ms: int) -> Usage:
    """Past use after an interval during which each project held so much on average (`held`, billionths of a GPU)."""
    left = left_after(elapsed_ms, half_life_ms)
    before = dict(usage)
    now = {name: (before.get(name, 0) * left + held.get(name, 0) * (_ONE - left)) >> _BITS for name in {*before, *held}}
    return tuple(sorted((name, used) for name, used in now.items() if used))


def together(first: Usage, second: Usage) -> Usage:
    """The sum of two."""
    sums = dict(first)
    for name, used in second:
        sums[name] = sums.get(name, 0) + used
    return tuple(sorted(sums.items()))


def allocation(snapshot: Snapshot) -> dict[str, int]:
    """Thousandths of a GPU that each project holds."""
    held: dict[str, int] = {}
    for workload in snapshot.workloads:
        millis = sum(pod.placement.gpu_millis for pod in workload.pods if pod.state in HOLDING and pod.placement)
        if millis:
            held[workload.project] = held.get(workload.project, 0) + millis
    return held


def corrected(weights: Sequence[int], used: Sequence[int], k_millis: int) -> list[int]:
    """The weights of those who compete, corrected: `max(0, w + k (w - u))` with w and u as parts of their sums.

    In a unit of their own, in which the uncorrected weights would be `w * scale(used)`; at least one is above 0.
    """
    weight, use = sum(weights), sum(used)
    if not k_millis or not use:
        return list(weights)
    return [max(0, w * use * 1000 + k_millis * (w * use - u * weight)) for w, u in zip(weights, used, strict=True)]


def scale(used: Sequence[int], k_millis: int) -> int:
    """What `corrected` has multiplied by: divide by it to see a corrected weight beside the written one."""
    return sum(used) * 1000 if k_millis and sum(used) else 1
