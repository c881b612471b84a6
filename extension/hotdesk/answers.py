"""What a command answers, before anybody decides how it looks: a view for people, data for programs, and talk about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hotdesk.render.view import View

if TYPE_CHECKING:
    from hotdesk_api.errors import HotdeskError
    from pydantic import BaseModel


@dataclass(slots=True)
class Answer:
    """`names` are what `-o name` prints, and what a pipe gets from commands without a view. `talk` are sentences about what was done."""

    view: View | None = None
    data: BaseModel | None = None
    names: tuple[str, ...] = ()
    text: str | None = None
    talk: tuple[str, ...] = ()
    problems: tuple[HotdeskError, ...] = ()
    job: tuple[str, str] | None = None
    changes: tuple[str | None, str | None] | None = None
    exit_code: int = 0


@dataclass(slots=True)
class LogStream:
    """Pieces of a job's log, as they come."""

    project: str
    name: str
    pieces: Iterator[bytes]
    follow: bool = False


@dataclass(slots=True)
class InsideJob:
    """A command to run inside a job, with our terminal if `tty`."""

    project: str
    name: str
    argv: list[str] = field(default_factory=list)
    stdin: bool = False
    tty: bool = False
    pod: int | None = None
    is_shell: bool = False


@dataclass(slots=True)
class Waiting:
    """Submitted (`done` says it), and now to be waited for until it is running or finished."""

    done: Answer
    project: str
    name: str
    until: str
    timeout_s: float | None


Outcome = Answer | LogStream | InsideJob | Waiting
