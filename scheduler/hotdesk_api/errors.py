"""One error root. What the caller asked wrong is apart from what failed here; each names the thing, the limit, the value, the next step.

On the wire an error is `application/problem+json` (RFC 9457); `problem()` and `from_problem()` translate both ways.
"""

from __future__ import annotations

from typing import Any


class HotdeskError(Exception):
    """Root of all errors people see. `sentence` is for them; `field`, `limit`, `value`, `next_step` are for programs and details."""

    status = 500
    code = "error"
    exit_code = 1

    def __init__(
        self,
        sentence: str,
        *,
        field: str | None = None,
        limit: str | int | None = None,
        value: str | int | None = None,
        next_step: str | None = None,
    ) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.field = field
        self.limit = limit
        self.value = value
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.sentence} {self.next_step}" if self.next_step else self.sentence


class Invalid(HotdeskError):
    """The request cannot be right: unknown flag, image, project; a value out of range."""

    status = 422
    code = "invalid"
    exit_code = 2


class Refused(HotdeskError):
    """Well formed, but policy or quota says no for good (exit code 3)."""

    status = 403
    code = "refused"
    exit_code = 3


class NotFound(HotdeskError):
    """No such thing, or none that this caller may know of."""

    status = 404
    code = "not_found"


class Conflict(HotdeskError):
    """The name is taken, or the state does not allow it."""

    status = 409
    code = "conflict"


class Unauthorized(HotdeskError):
    """No token, or one that is not valid (any more)."""

    status = 401
    code = "unauthorized"
    exit_code = 3


class TooLarge(HotdeskError):
    """A body or field above its size limit."""

    status = 413
    code = "too_large"
    exit_code = 2


class Unavailable(HotdeskError):
    """The scheduler, the hub or the disk failed; trying again may help."""

    status = 503
    code = "unavailable"


class WaitTimeout(HotdeskError):
    """Waited as long as asked, and it had not come to that state (exit code 4)."""

    status = 504
    code = "wait_timeout"
    exit_code = 4


BY_CODE: dict[str, type[HotdeskError]] = {
    error.code: error for error in (HotdeskError, Invalid, Refused, NotFound, Conflict, Unauthorized, TooLarge, Unavailable, WaitTimeout)
}


def problem(error: HotdeskError) -> dict[str, Any]:
    """The problem+json body of an error; absent members are left out."""
    body: dict[str, Any] = {
        "type": f"urn:hotdesk:{error.code}",
        "title": error.code.replace("_", " "),
        "status": error.status,
        "detail": error.sentence,
    }
    for name in ("field", "limit", "value", "next_step"):
        if getattr(error, name) is not None:
            body[name] = getattr(error, name)
    return body


def from_problem(body: dict[str, Any], status: int = 500) -> HotdeskError:
    """The error a problem+json body stands for; an unknown type becomes the class of its status."""
    code = str(body.get("type", "")).rpartition(":")[2]
    by_status = {kind.status: kind for kind in BY_CODE.values() if kind is not HotdeskError}
    kind = BY_CODE.get(code) or by_status.get(status, HotdeskError)
    return kind(
        str(body.get("detail") or body.get("title") or f"The scheduler answered {status}."),
        field=body.get("field"),
        limit=body.get("limit"),
        value=body.get("value"),
        next_step=body.get("next_step"),
    )
