"""What people do with jobs: submit, list, describe, why, delete, suspend, resume, top."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

from hotdesk_api import calls
from hotdesk_api.errors import HotdeskError, Invalid, NotFound, Unauthorized, Unavailable
from hotdesk_api.models import Status, WorkloadList, WorkloadSpec
from hotdesk_api.units import parse_duration_s

from hotdesk.answers import Answer, Outcome, Waiting
from hotdesk.commands.parse import Typed, unknown
from hotdesk.commands.submit import JUPYTER_IMAGE, spec_of
from hotdesk.render import jobs as views
from hotdesk.render import why as told
from hotdesk.session import Session
from hotdesk.settings import program_image

MOST_TOP_JOBS = 100


def submit(session: Session, typed: Typed) -> Outcome:
    timeout = typed.text("timeout")
    timeout_s = parse_duration_s(timeout, field="--timeout") if timeout else None
    if timeout and not typed.text("wait"):
        raise Invalid("--timeout goes with --wait.", field="timeout", value=timeout, next_step="Write --wait running or --wait finished.")
    spec = spec_of(typed, session.project_of(typed), program=session.program, program_image=program_image())
    if typed.on("dry-run"):
        plan = session.client.call(calls.what_if(spec))
        talk = "Nothing was submitted (--dry-run)."
        return Answer(told.explanation(plan), plan, talk=(talk,), names=((plan.node,) if plan.starts_now and plan.node else ()))
    job = session.client.call(calls.submit(spec))
    done = Answer(
        data=job, names=(job.name,), job=(job.project, job.name), talk=(*_submitted(session, typed, spec, job.project, job.name),)
    )
    until = typed.text("wait")
    return Waiting(done, job.project, job.name, until, timeout_s) if until else done


def _submitted(session: Session, typed: Typed, spec: WorkloadSpec, project: str, name: str) -> list[str]:
    lines = [
        f"The job '{name}' has been submitted successfully",
        f"You can run `{session.word} describe job {name} -p {project}` to check the job status",
    ]
    if typed.on("preemptible") and spec.kind != "interactive":
        lines.insert(0, "--preemptible changes nothing here: every training job may be stopped for others and goes on later.")
    elif spec.preemptible:
        lines.insert(0, "This interactive job is preemptible: it may exceed the quota, and be stopped for others.")
    if typed.on("jupyter"):
        ports = ", ".join(str(port.container) for port in spec.ports)
        defaults = f"Jupyter: image {spec.image}, port {ports}, service type {spec.service_type}."
        lines.insert(0, defaults if spec.image == JUPYTER_IMAGE else defaults.replace("Jupyter:", "Jupyter with your image:"))
    try:
        lines.append(told.now_line(session.client.call(calls.why(project, name))))
    except HotdeskError:
        pass  # the job is in; that its state could not be asked for right away changes nothing
    return lines


def list_jobs(session: Session, typed: Typed) -> Answer:
    everywhere = typed.on("all-projects")
    project = None if everywhere else session.project_of(typed)
    status, user = _status(typed.text("status")), typed.text("user")
    found = session.client.call(calls.workloads(project=project, status=status, user=user))
    if project is not None and not found.items:
        session.client.call(calls.project(project))  # an empty list of a project that is not there would mislead
    wide = typed.text("output") == "wide"
    view = views.job_list(found.items, project=project, now=session.now(), wide=wide, word=session.word, some=bool(status or user))
    return Answer(view, found, names=tuple(job.name for job in found.items), changes=(project, None))


def _status(text: str | None) -> str | None:
    """As the table writes it, however it was typed."""
    valid = get_args(Status)
    if text is None:
        return None
    for status in valid:
        if status.lower() == text.lower():
            return str(status)
    raise unknown("a status", text, valid)


def describe(session: Session, typed: Typed) -> Answer:
    project, name = session.project_of(typed), typed.words[0]
    job = session.client.call(calls.workload(project, name))
    if typed.text("output") not in (None, "wide"):
        return Answer(views.describe(job, (), now=session.now()), job, names=(job.name,))
    events, answer = session.client.call(calls.events(project, name)), session.client.call(calls.why(project, name))
    return Answer(views.describe(job, events.items, now=session.now(), answer=answer), job, names=(job.name,))


def why(session: Session, typed: Typed) -> Answer:
    answer = session.client.call(calls.why(session.project_of(typed), typed.words[0]))
    return Answer(told.explanation(answer), answer, names=(typed.words[0],))


def top(session: Session, typed: Typed) -> Answer:
    """Utilisation is in each job's pods, so every running job is asked for, up to a hundred."""
    project = None if typed.on("all-projects") else session.project_of(typed)
    running = session.client.call(calls.workloads(project=project, status="Running")).items
    details = []
    for job in running[:MOST_TOP_JOBS]:
        try:
            details.append(session.client.call(calls.workload(job.project, job.name)))
        except NotFound:
            continue  # gone since the list was made
    talk = (f"The first {MOST_TOP_JOBS} of {len(running)} running jobs.",) if len(running) > MOST_TOP_JOBS else ()
    data = WorkloadList(items=running)
    return Answer(views.top(details, now=session.now()), data, names=tuple(job.name for job in running), talk=talk, changes=(project, None))


def delete(session: Session, typed: Typed) -> Answer:
    project = session.project_of(typed)
    names: Sequence[str] = typed.words
    if typed.on("all"):
        names = _all_names(session, project, names, sure=typed.on("yes"))
    elif not names:
        raise Invalid(
            "delete needs the NAME of a job.", field="NAME", next_step="`list` shows them; `delete --all` deletes all of a project."
        )
    return _each(session, project, names, lambda name: session.client.call(calls.delete(project, name)), "deleted")


def _all_names(session: Session, project: str, named: Sequence[str], *, sure: bool) -> list[str]:
    if named:
        raise Invalid(f"delete --all and the name {named[0]} do not go together.", field="all", next_step="Leave one of them out.")
    found = session.client.call(calls.workloads(project=project))
    names = [job.name for job in found.items if job.kind != "workspace"]
    if names:
        confirm(
            session,
            f"Delete all {len(names)} jobs of project {project} ({', '.join(names[:5])}{' …' if len(names) > 5 else ''})?",
            sure=sure,
        )
    return names


def confirm(session: Session, question: str, *, sure: bool) -> None:
    """Go on only after `yes`, or --yes where nobody can be asked."""
    if sure:
        return
    answer = session.ask(f"{question} [y/N] ", False) if session.confirms else None
    if answer is None:
        raise Invalid(f"{question} Nobody can be asked here, so nothing was done.", field="yes", next_step="Add --yes if you mean it.")
    if answer.strip().lower() not in ("y", "yes"):
        raise HotdeskError("Nothing was done.")


def suspend(session: Session, typed: Typed) -> Answer:
    project = session.project_of(typed)
    return _each(session, project, typed.words, lambda name: session.client.call(calls.suspend(project, name)), "suspended")


def resume(session: Session, typed: Typed) -> Answer:
    project = session.project_of(typed)
    return _each(session, project, typed.words, lambda name: session.client.call(calls.resume(project, name)), "resumed")


def _each(session: Session, project: str, names: Sequence[str], act: Callable[[str], object], done: str) -> Answer:
    """Every name is tried; the ones that fail are told, each with its reason, and make the whole fail."""
    succeeded: list[str] = []
    problems: list[HotdeskError] = []
    for name in dict.fromkeys(names):
        try:
            act(name)
        except (Unavailable, Unauthorized):
            raise
        except HotdeskError as error:
            problems.append(error)
        else:
            succeeded.append(name)
    talk = tuple(f"The job '{name}' has been {done} (project {project})" for name in succeeded)
    code = max((error.exit_code for error in problems), default=0)
    return Answer(names=tuple(succeeded), talk=talk, problems=tuple(problems), exit_code=code)
