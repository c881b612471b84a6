"""Typed in, outcome out: finds the function of a verb. Functions live in `jobs`, `cluster`, `reach`, `account`, loaded when first used."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from hotdesk_api.errors import HotdeskError, Invalid, NotFound

from hotdesk.answers import Outcome
from hotdesk.commands.flags import Verb
from hotdesk.commands.parse import Typed, closest
from hotdesk.session import Session

Action = Callable[[Session, Typed], Outcome]


def action_of(verb: Verb) -> Action:
    module, _, function = verb.action.partition(".")
    return cast(Action, getattr(import_module(f"hotdesk.commands.{module}"), function))


def perform(session: Session, typed: Typed) -> Outcome:
    """Do what was typed. Raises `hotdesk_api.errors.HotdeskError`."""
    if typed.verb.later:
        raise Invalid(
            f"`{typed.verb.title}` is for {typed.verb.later}, which this version of Hotdesk does not have yet. Nothing was done.",
            next_step="`help` lists what there is.",
        )
    session.url = typed.text("url") or session.url
    session.token = typed.text("token") or session.token
    return action_of(typed.verb)(session, typed)


def with_projects(session: Session, typed: Typed, error: NotFound) -> NotFound:
    """What is not there, in a project that is not there either (or not ours): told so, with those one is in, the likeliest first."""
    asked = str(error.value) if error.field == "project" and error.value else typed.text("project")
    if not asked:
        return error
    from hotdesk_api import calls

    try:
        mine = [project.name for project in session.client.call(calls.projects()).items]
    except HotdeskError:
        return error
    if asked in mine:
        return error
    sentence = error.sentence if error.field == "project" else f"There is no project {asked} that you are a member of."
    return NotFound(f"{sentence} Yours: {', '.join(closest(asked, mine)) or 'none'}.", field="project", value=asked)
