"""Into a job: its log, a command inside it, a shell."""

from __future__ import annotations

from datetime import UTC, datetime

from hotdesk_api.errors import Invalid
from hotdesk_api.units import parse_duration_s

from hotdesk.answers import InsideJob, LogStream
from hotdesk.commands.parse import Typed
from hotdesk.session import Session

SHELL = ["/bin/sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi"]


def logs(session: Session, typed: Typed) -> LogStream:
    project, name = session.project_of(typed), typed.words[0]
    pieces = session.client.logs(
        project,
        name,
        tail=_tail(typed.text("tail")),
        since_s=_since_s(session, typed),
        follow=typed.on("follow"),
        timestamps=typed.on("timestamps"),
        pod=typed.text("pod"),
    )
    return LogStream(project, name, pieces, typed.on("follow"))


def _tail(text: str | None) -> int | None:
    if text is None or text == "-1":
        return None
    if not text.isascii() or not text.isdigit():
        raise Invalid(f"--tail {text} is not a number of lines.", field="tail", value=text, next_step="Write for example --tail 10.")
    return int(text)


def _since_s(session: Session, typed: Typed) -> float | None:
    since, moment = typed.text("since"), typed.text("since-time")
    if since and moment:
        raise Invalid("--since and --since-time are two ways to say the same.", field="since", next_step="Use one of them.")
    if moment:
        try:
            at = datetime.fromisoformat(moment)
        except ValueError:
            raise Invalid(
                f"--since-time {moment} is not a time.",
                field="since-time",
                value=moment,
                next_step="Write for example 2026-05-01T08:00:00Z.",
            ) from None
        return max(0.0, session.now() - (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
    return float(parse_duration_s(since, field="--since")) if since else None


def _pod(text: str | None) -> int | None:
    """A pod's index, or its name, which ends in it (`hpo1-2`)."""
    if text is None:
        return None
    index = text.rpartition("-")[2]
    if not index.isascii() or not index.isdigit():
        raise Invalid(
            f"--pod {text} is neither a pod's index nor its name.", field="pod", value=text, next_step="`describe job` lists the pods."
        )
    return int(index)


def execute(session: Session, typed: Typed) -> InsideJob:
    return InsideJob(
        session.project_of(typed),
        typed.words[0],
        list(typed.rest or ()),
        stdin=typed.on("stdin"),
        tty=typed.on("tty"),
        pod=_pod(typed.text("pod")),
    )


def bash(session: Session, typed: Typed) -> InsideJob:
    pod = _pod(typed.text("pod"))
    return InsideJob(session.project_of(typed), typed.words[0], list(SHELL), stdin=True, tty=True, pod=pod, is_shell=True)
