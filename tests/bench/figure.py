"""One figure of `make bench`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One measured value. `bar` None: told for information. Lower is better for all of them."""

    name: str
    value: float
    unit: str
    bar: float | None = None

    @property
    def holds(self) -> bool:
        return self.bar is None or self.value <= self.bar
