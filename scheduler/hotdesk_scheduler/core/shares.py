"""Fair shares: what each department and project may have, per resource (scheduling.md 3).

The theory: everyone first gets what it is guaranteed and asks for; the rest goes out in proportion to over-quota weights, never
more than somebody asks for, and what a satisfied one leaves is divided again. GPUs go out whole, by largest remainder.

    capacity 8; A: quota 2, weight 1, wants 6; B: quota 2, weight 3, wants 6
    guaranteed 2 + 2, the rest is 4, weights 1:3  ->  A 2 + 1 = 3, B 2 + 3 = 5
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.quantities import RESOURCES, UNIT, UNLIMITED, Vector


@dataclass(frozen=True, slots=True)
class Claim:
    """What one sibling brings to the division of one resource; `wants` is `min(limit, requested)`. Claims come oldest first."""

    quota: int
    wants: int
    weight: int
    priority: int = 0


def divide(capacity: int, claims: Sequence[Claim], unit: int = 1) -> list[int]:
    """The fair share of each claim, in the order given (oldest first: ties go to the older); sums to at most the capacity.

    Only parts of unlimited quotas may take the sum above it: a queue must not shrink others' CPU.
    """
    shares = _guaranteed(capacity, claims)
    rest = max(0, capacity - sum(shares))
    weights = [claim.weight for claim in claims] if any(claim.weight for claim in claims) else [1] * len(claims)
    for priority in sorted({claim.priority for claim in claims}, reverse=True):
        hungry = [i for i, c in enumerate(claims) if c.priority == priority and c.wants > shares[i] and weights[i]]
        given = _pour(rest, [claims[i].wants - shares[i] for i in hungry], [weights[i] for i in hungry], unit)
        for i, amount in zip(hungry, given, strict=True):
            shares[i] += amount
        rest -= sum(given)
    return shares


def _guaranteed(capacity: int, claims: Sequence[Claim]) -> list[int]:
    parts = [min(claim.quota, claim.wants) for claim in claims]
    limited = [i for i, claim in enumerate(claims) if claim.quota < UNLIMITED]
    promised = sum(parts[i] for i in limited)
    if promised <= capacity:
        return parts
    scaled = _proportional(capacity, [parts[i] for i in limited])
    for i, part in zip(limited, scaled, strict=True):
        parts[i] = part
    return parts


def _proportional(capacity: int, parts: Sequence[int]) -> list[int]:
    """Scale parts down to sum to capacity, by largest remainder, ties to the earlier."""
    whole = sum(parts)
    shares = [part * capacity // whole for part in parts]
    left = capacity - sum(shares)
    by_remainder = sorted(range(len(parts)), key=lambda i: -(parts[i] * capacity % whole))
    for i in by_remainder[:left]:
        shares[i] += 1
    return shares


def _pour(rest: int, wants: Sequence[int], weights: Sequence[int], unit: int) -> list[int]:
    """Divide `rest` by weight, nobody beyond its want, what a satisfied one leaves divided again; then in units, by largest remainder."""
    given = [0] * len(wants)
    active = list(range(len(wants)))
    while active and rest:
        weight = sum(weights[i] for i in active)
        satisfied = [i for i in active if wants[i] * weight <= rest * weights[i]]
        if not satisfied:
            return _in_units(rest, given, active, wants=wants, weights=weights, unit=unit)
        for i in satisfied:
            given[i] = wants[i]
        rest -= sum(wants[i] for i in satisfied)
        active = [i for i in active if i not in set(satisfied)]
    return given


def _in_units(rest: int, given: list[int], active: Sequence[int], *, wants: Sequence[int], weights: Sequence[int], unit: int) -> list[int]:
    """Nobody is satisfied by its proportional part: whole units by largest remainder, what is below one unit last."""
    weight = sum(weights[i] for i in active)
    for i in active:
        given[i] = rest * weights[i] // (weight * unit) * unit
    left = rest - sum(given[i] for i in active)
    by_remainder = sorted(active, key=lambda i: -(rest * weights[i] % (weight * unit)))
    while left:
        before = left
        for i in by_remainder:
            amount = min(unit, left, wants[i] - given[i])
            given[i] += amount
            left -= amount
        if left == before:
            break
    return given


Correction = Callable[[Account], int]


def assign(top: Sequence[Account], capacity: Vector, corrected: Correction = lambda account: account.weight) -> None:
    """Set `fair` and `share` (allocatable) of every account from its `requested`, top-down. `corrected` may weigh past use."""
    for account in top:
        if account.children:
            account.requested = [sum(min(c.limit[r], c.requested[r]) for c in account.children) for r in RESOURCES]
    _level(top, capacity, corrected)
    for account in top:
        if account.children:
            _level(account.children, (account.fair[0], account.fair[1], account.fair[2]), corrected)


def _level(accounts: Sequence[Account], capacity: Vector, corrected: Correction) -> None:
    for r in RESOURCES:
        claims = [Claim(a.quota[r], min(a.limit[r], a.requested[r]), corrected(a), a.priority) for a in accounts]
        for account, fair in zip(accounts, divide(capacity[r], claims, UNIT[r]), strict=True):
            account.fair[r] = fair
            account.share[r] = min(account.limit[r], max(account.quota[r], fair))
