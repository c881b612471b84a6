"""A wire model from what was typed, or one sentence about the first thing that is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from hotdesk_api.errors import Invalid
from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)


def checked(model: type[Model], wanted: Mapping[str, Any]) -> Model:
    """Members that are None or empty are left out. Raises Invalid."""
    try:
        return model.model_validate({member: value for member, value in wanted.items() if value not in (None, [], {}, "")})
    except ValidationError as error:
        first = error.errors()[0]
        member = ".".join(str(part) for part in first["loc"]) or model.__name__
        shown = str(first["input"])[:100]
        raise Invalid(f"{member} {shown} cannot be used: {first['msg'][0].lower()}{first['msg'][1:]}.", field=member, value=shown) from None
