"""Fair shares: what each department and project may have, per resource (scheduling.md 3).

The theory: everyone first gets what it is guaranteed and asks for; the rest goes out in proportion to over-quota weights, never
more than somebody asks for, and what a satisfied one leaves is divided again. GPUs go out whole, by largest remainder.

    capacity 8; A: quota 2, weight 1, wants 6; B: quota 2, weight 3, wants 6
    guaranteed 2 + 2, the rest is 4, weights 1:3  ->  A 2 + 1 = 3, B 2 + 3 = 5
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hotdesk_scheduler.core import history
from hotdesk_scheduler.core.accounts import Account
from hotdesk_scheduler.core.quantities import GPU, RESOURCES, UNIT, UNLIMITED, Vector


@dataclass(frozen=True, slots=True)
class Claim:
    """What one sibling brings to the division of one resource; `wants` is `min(limit, requested)`. Claims come oldest first.

    `used` is its past use (`history`); it counts only where the division is told how much.
    """

    quota: int
    wants: int
    weight: int
    priority: int = 0
    used: int = 0


def divide(capacity: int, claims: Sequence[Claim], unit: int = 1, k_millis: int = 0) -> list[int]:
    """The fair share of each claim, in the order given (oldest first: ties go to the older); sums to at most the capacity.

    Only parts of unlimited quotas may take the sum above it: a queue must not shrink others' CPU. `k_millis` is how much past use
    counts, in thousandths: it corrects the weights of those who compete for the rest, and is measured among them alone.
    """
    shares = _guaranteed(capacity, claims)
    rest = max(0, capacity - sum(shares))
    weights = _weights(claims)
    for priority in sorted({claim.priority for claim in claims}, reverse=True):
        hungry = [i for i, c in enumerate(claims) if c.priority == priority and c.wants > shares[i] and weights[i]]
        while hungry and rest:
            now = history.corrected([weights[i] for i in hungry], [claims[i].used for i in hungry], k_millis)
            served = [(i, weight) for i, weight in zip(hungry, now, strict=True) if weight]
            given = _pour(rest, [claims[i].wants - shares[i] for i, _ in served], [weight for _, weight in served], unit)
            for (i, _), amount in zip(served, given, strict=True):
                shares[i] += amount
            rest -= sum(given)
            hungry = [i for i, weight in zip(hungry, now, strict=True) if not weight]
    return shares


def _weights(claims: Sequence[Claim]) -> list[int]:
    return [claim.weight for claim in claims] if any(claim.weight for claim in claims) else [1] * len(claims)


def weights_now(capacity: int, claims: Sequence[Claim], k_millis: int) -> list[int]:
    """Each claim's weight as past use leaves it, in the unit of the weights; as written where it does not compete for the rest."""
    shares, shown, weights = _guaranteed(capacity, claims), [claim.weight for claim in claims], _weights(claims)
    for priority in {claim.priority for claim in claims}:
        hungry = [i for i, c in enumerate(claims) if c.priority == priority and c.wants > shares[i] and weights[i]]
        used = [claims[i].used for i in hungry]
        for i, weight in zip(hungry, history.corrected([shown[i] for i in hungry], used, k_millis), strict=True):
            shown[i] = weight // history.scale(used, k_millis)
    return shown


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


@dataclass(frozen=True, slots=True)
class Past:
    """Past use by project (`history.Usage`), and how much it counts, in thousandths; a department's is the sum of its projects'."""

    usage: Mapping[str, int]
    k_millis: int

    def used(self, account: Account) -> int:
        return sum(self.usage.get(a.name, 0) for a in account.children) if account.is_department else self.usage.get(account.name, 0)


NO_PAST = Past({}, 0)


def past(usage: history.Usage, history_weight: float) -> Past:
    """What a snapshot and a policy say about the past; the weight counts to the thousandth."""
    k_millis = round(history_weight * 1000)
    return Past(dict(usage), k_millis) if k_millis and usage else NO_PAST


def assign(top: Sequence[Account], capacity: Vector, past: Past = NO_PAST) -> None:
    """Set `fair`, `share` (allocatable) and `weight_now` of every account from its `requested`, top-down."""
    for account in top:
        if account.children:
            account.requested = [sum(min(c.limit[r], c.requested[r]) for c in account.children) for r in RESOURCES]
    _level(top, capacity, past)
    for account in top:
        if account.children:
            _level(account.children, (account.fair[0], account.fair[1], account.fair[2]), past)


def _level(accounts: Sequence[Account], capacity: Vector, past: Past) -> None:
    used = [past.used(a) for a in accounts] if past.k_millis else [0] * len(accounts)
    for r in RESOURCES:
        claims = [
            Claim(a.quota[r], min(a.limit[r], a.requested[r]), a.weight, a.priority, use) for a, use in zip(accounts, used, strict=True)
        ]
        for account, fair in zip(accounts, divide(capacity[r], claims, UNIT[r], past.k_millis), strict=True):
            account.fair[r] = fair
            account.share[r] = min(account.limit[r], max(account.quota[r], fair))
        if r == GPU:
            shown: Sequence[int | None] = weights_now(capacity[r], claims, past.k_millis) if past.k_millis else [None] * len(accounts)
            for account, weight in zip(accounts, shown, strict=True):
                account.weight_now = weight
