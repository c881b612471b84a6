"""Kubernetes' quantities (`500m`, `1.5Gi`) as integers. Pure. Amounts asked for are rounded up, so that sums never promise too much."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal

_SUFFIXES = {
    **{"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1)},
    **{letter: Decimal(1000) ** (power + 1) for power, letter in enumerate("kMGTPE")},
    **{f"{letter}i": Decimal(1024) ** (power + 1) for power, letter in enumerate("KMGTPE")},
}
_MOST = 2**63 - 1
"""Kubernetes has none above it."""


def amount(text: object) -> Decimal:
    """Raises ValueError if it is no quantity."""
    found = _amount(text)
    if not (found.is_finite() and -_MOST <= found <= _MOST):
        raise ValueError(f"{str(text)[:40]!r} is not a quantity")
    return found


def _amount(text: object) -> Decimal:
    said = str(text).strip()
    number = said.rstrip("numkKMGTPEi")
    try:
        return Decimal(number) * _SUFFIXES[said[len(number) :]]
    except (ArithmeticError, KeyError):
        try:
            return Decimal(said)  # 1e3 and 1E3
        except ArithmeticError:
            raise ValueError(f"{said[:40]!r} is not a quantity") from None


def cpu_millis(text: object) -> int:
    return int((amount(text) * 1000).to_integral_value(ROUND_CEILING))


def memory_mib(text: object) -> int:
    return int((amount(text) / 2**20).to_integral_value(ROUND_CEILING))
