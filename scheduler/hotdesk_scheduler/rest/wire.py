"""Bodies and queries in, problems out: what callers got wrong becomes one sentence that names it."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from hotdesk_api.errors import Invalid
from hotdesk_api.units import NAME_MAX
from pydantic import BaseModel, ValidationError

MAX_BODY_BYTES = 2 * 1024 * 1024
M = TypeVar("M", bound=BaseModel)
_SHOWN = 80


def parse(model: type[M], body: bytes) -> M:
    """Raises Invalid with a sentence about the first thing that is wrong."""
    try:
        content = json.loads(body or b"null")
    except (ValueError, RecursionError) as error:
        raise Invalid(
            "The request's body is not JSON.", field="body", next_step=f"It is to be one object: {', '.join(model.model_fields)}."
        ) from error
    try:
        return model.model_validate_json(body) if isinstance(content, dict) else model.model_validate(content)
    except ValidationError as error:
        raise _sentence(error, model) from error


def _sentence(error: ValidationError, model: type[BaseModel]) -> Invalid:
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "body"
    value = _shown(first.get("input"))
    kind, context = first["type"], first.get("ctx") or {}
    if kind == "extra_forbidden":
        return Invalid(
            f"There is no member {field} here.", field=field, value=value, next_step=f"Members: {', '.join(model.model_fields)}."
        )
    if kind == "missing":
        return Invalid(f"{field} is missing.", field=field)
    if kind in ("string_pattern_mismatch", "string_too_long") and field in ("name", "name_prefix", "project"):
        return Invalid(
            f"{value} cannot be a {field.replace('_', ' ')}: lower-case letters, digits and '-', a letter first, no '-' last, "
            f"at most {NAME_MAX} characters (DNS-1035).",
            field=field,
            value=value,
            limit=NAME_MAX,
            next_step="Choose a name such as train-1.",
        )
    limit = next((context[name] for name in ("ge", "le", "gt", "lt", "max_length", "expected") if name in context), None)
    return Invalid(f"{field} {value}: {first['msg'].rstrip('.')}.", field=field, value=value, limit=_limit(limit))


def _limit(limit: Any) -> str | int | None:
    return limit if limit is None or isinstance(limit, int) else str(limit)


def _shown(value: Any) -> str:
    """Short, on one line; long values (programs, secrets in environments) are not echoed."""
    text = value if isinstance(value, str) else type(value).__name__ if isinstance(value, dict | list) else str(value)
    text = "".join(letter if letter.isprintable() else "?" for letter in text[: _SHOWN + 1])
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def integer(text: str | None, *, field: str, least: int = 0, most: int = 10**9) -> int | None:
    """A number of the query. Raises Invalid."""
    if text is None or text == "":
        return None
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise Invalid(f"{field} {_shown(text)} is not a whole number from {least} to {most}.", field=field, value=_shown(text), limit=most)
    return value


def seconds(text: str | None, *, field: str) -> float | None:
    """Seconds of the query, not negative. Raises Invalid."""
    if text is None or text == "":
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise Invalid(f"{field} {_shown(text)} is not a number of seconds.", field=field, value=_shown(text))
    return value


def flag(text: str | None) -> bool:
    return (text or "").lower() in {"1", "true", "yes"}
