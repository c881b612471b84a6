"""Answers for programs: JSON and YAML with the fixed keys of the wire models, times in UTC; or names, one a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

_PLAIN_KEY = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def as_json(data: BaseModel) -> str:
    return data.model_dump_json(indent=2) + "\n"


def as_python(data: BaseModel) -> Any:
    """The same keys as parsed values; a list model gives its list of items."""
    values = data.model_dump(mode="json")
    return values["items"] if set(values) <= {"items", "next"} and "items" in values else values


def _scalar(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _yaml(value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            name = key if _PLAIN_KEY.match(key) else _scalar(key)
            yield from _member(f"{indent}{name}:", inner, indent + "  ")
    elif isinstance(value, list) and value:
        for inner in value:
            lines = list(_yaml(inner, indent + "  "))
            yield f"{indent}- {lines[0].lstrip()}"
            yield from lines[1:]
    else:
        yield f"{indent}{_scalar(value)}"


def _member(start: str, value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        yield start
        yield from _yaml(value, indent)
    else:
        yield f"{start} {_scalar(value)}"


def as_yaml(data: BaseModel) -> str:
    """Strings are quoted as JSON quotes them, which YAML reads the same."""
    return "\n".join(_yaml(data.model_dump(mode="json"), "")) + "\n"
