"""Core values as the API server keeps them: camelCase members, RFC 3339 times, only what is not the default. Pure.

`gpu_millis` is `gpuMillis`, `started_at` (seconds since the epoch) is `startedAt`, RFC 3339; the numbers of a reason are a map.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

Json = dict[str, Any]

_TIMES = ("_at", "_since", "_deadline")
_PLAIN_MAPS = frozenset({"environment", "labels", "annotations", "numbers"})
_FRACTION = re.compile(r"\.[0-9]+")
_CAPITAL = re.compile(r"[A-Z]")


def fingerprint(value: Json | None) -> int:
    """Equal for equal values, in this process."""
    return hash(json.dumps(value or {}, sort_keys=True))


NOTHING = fingerprint(None)


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def snake(name: str) -> str:
    return _CAPITAL.sub(lambda found: "_" + found[0].lower(), name)


def time_out(seconds: float) -> str:
    """RFC 3339, with as many digits as `time_in` needs for the same number."""
    exact = Decimal(repr(float(seconds)))
    whole = math.floor(exact)
    fraction = f"{exact - whole:f}"[1:] if exact != whole else ""
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"


def time_in(text: str) -> float:
    """Raises ValueError."""
    found = _FRACTION.search(text)  # datetime would cut it after microseconds
    fraction = Decimal(f"0{found[0]}") if found else 0
    whole = int(datetime.fromisoformat(_FRACTION.sub("", text, count=1)).timestamp())
    datetime.fromtimestamp(whole, UTC)  # in the year 10000 of ours it could not be told
    return float(whole + fraction)


def micro_time(seconds: float) -> str:
    """With exactly six digits, as Kubernetes' MicroTime wants it (Leases, Events)."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def encode(value: Any, *, leave_out: Sequence[str] = ()) -> Any:
    """A frozen core value as JSON, without the members that have their default."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            camel(item.name): _encode_member(item.name, found)
            for item in fields(value)
            if item.name not in leave_out and (found := getattr(value, item.name)) != _default(item)
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (list, tuple)):
        return [encode(one) for one in value]
    return value


def _encode_member(name: str, value: Any) -> Any:
    if name.endswith(_TIMES) and isinstance(value, (int, float)):
        return time_out(value)
    if name == "numbers":
        return dict(value)
    return encode(value)


def _default(item: Field[Any]) -> Any:
    if item.default_factory is not MISSING:
        return item.default_factory()
    return item.default  # MISSING equals no value


def members(data: Any) -> Any:
    """JSON as pydantic takes it for a core value or a wire model: snake_case members, times as seconds."""
    if isinstance(data, list):
        return [members(one) for one in data]
    if not isinstance(data, dict):
        return data
    found: Json = {}
    for key, value in data.items():
        name = snake(key)
        if name == "numbers" and isinstance(value, dict):
            found[name] = sorted(value.items())
        elif name in _PLAIN_MAPS:
            found[name] = value
        elif name.endswith(_TIMES) and isinstance(value, str):
            found[name] = time_in(value)
        else:
            found[name] = members(value)
    return found
