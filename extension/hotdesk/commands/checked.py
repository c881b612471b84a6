"""A wire model from what was typed, or one sentence about the first thing that is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from hotdesk_api.errors import Invalid
from hotdesk_api.units import NAME_MAX
from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)


def bad_name(name: str, what: str, *, field: str = "name") -> Invalid:
    """DNS-1035: these names become host names and directories."""
    shown = name if len(name) <= NAME_MAX else name[:NAME_MAX] + "…"
    suggestion = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-").lstrip("0123456789-")[:NAME_MAX].rstrip("-")
    return Invalid(
        f"{what} {shown} cannot be used: lower-case letters, digits and -, a letter first, no - at the end, at most {NAME_MAX}.",
        field=field,
        value=shown,
        limit=NAME_MAX,
        next_step=f"Write for example {suggestion or 'job-1'}.",
    )


def checked(model: type[Model], wanted: Mapping[str, Any]) -> Model:
    """Members that are None or empty are left out. Raises Invalid."""
    try:
        return model.model_validate({member: value for member, value in wanted.items() if value not in (None, [], {}, "")})
    except ValidationError as error:
        first = error.errors()[0]
        member = ".".join(str(part) for part in first["loc"]) or model.__name__
        shown = str(first["input"])[:100]
        if first["type"] in ("string_pattern_mismatch", "string_too_long") and member in ("name", "name_prefix", "project"):
            raise bad_name(shown, f"The {member.replace('_', ' ')}", field=member) from None
        raise Invalid(f"{member} {shown} cannot be used: {first['msg'][0].lower()}{first['msg'][1:]}.", field=member, value=shown) from None
