"""Hotdesk from Python: `submit()` gives a `Job`; `jobs()`, `projects()`, `nodes()`, `whoami()` give what is there."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hotdesk_api import calls
from hotdesk_api.errors import Invalid
from hotdesk_api.models import WorkloadDetail, WorkloadOut, WorkloadSpec
from hotdesk_api.units import parse_cpu_millis, parse_gpus, parse_memory_mib

from hotdesk.commands.checked import checked
from hotdesk.commands.submit import UNNAMED_PULL_POLICY
from hotdesk.listing import Listing
from hotdesk.render import cluster, html, plain
from hotdesk.render import jobs as views
from hotdesk.render import why as told
from hotdesk.render.view import View
from hotdesk.session import Session
from hotdesk.settings import program_image

if TYPE_CHECKING:
    from hotdesk_api.models import Explanation, Me, NodeOut, ProjectOut

Amount = str | int | float | Decimal


class Job:
    """One submitted job. What it tells is asked for anew each time; `await job` waits for its end without blocking the kernel."""

    def __init__(self, session: Session, seen: WorkloadOut) -> None:
        self._session = session
        self._seen = seen
        self.project, self.name = seen.project, seen.name

    def __repr__(self) -> str:
        return f"<Job {self.project}/{self.name}: {self._seen.status}>"

    def refresh(self) -> WorkloadDetail:
        """Everything the scheduler knows of it now."""
        self._seen = detail = self._session.client.call(calls.workload(self.project, self.name))
        return detail

    @property
    def state(self) -> str:
        """Its status now: Pending, Running, Succeeded …"""
        return self.refresh().status

    @property
    def finished(self) -> bool:
        from hotdesk.watch import reached

        return reached(self.refresh(), "finished")

    def why(self) -> Why:
        """Why it waits, or where it runs: a sentence (`str()`) with the numbers behind it."""
        return Why(self._session.client.call(calls.why(self.project, self.name)))

    def logs(self, *, tail: int | None = None, since_s: float | None = None, timestamps: bool = False) -> str:
        """What it has printed so far."""
        pieces = self._session.client.logs(self.project, self.name, tail=tail, since_s=since_s, timestamps=timestamps)
        return b"".join(pieces).decode(errors="replace")

    def follow(self) -> Iterator[str]:
        """What it prints, line by line, until it ends."""
        rest = b""
        for piece in self._session.client.logs(self.project, self.name, follow=True):
            *lines, rest = (rest + piece).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
        if rest:
            yield rest.decode(errors="replace")

    def wait(self, *, until: str = "finished", timeout_s: float | None = None) -> Job:
        """Wait until it is `finished` (or `running`). Raises WaitTimeout after `timeout_s`."""
        from hotdesk.watch import wait_for

        self._seen = wait_for(self._session.client, self.project, self.name, until=_checked_until(until), timeout_s=timeout_s)
        return self

    def __await__(self) -> Generator[Any, None, Job]:
        return self._wait_async().__await__()

    async def _wait_async(self) -> Job:
        from hotdesk.watch import wait_for_async

        self._seen = await wait_for_async(*self._session.settings.reachable(), self.project, self.name)
        return self

    def delete(self) -> None:
        self._session.client.call(calls.delete(self.project, self.name))

    def suspend(self) -> None:
        self._seen = self._session.client.call(calls.suspend(self.project, self.name))

    def resume(self) -> None:
        self._seen = self._session.client.call(calls.resume(self.project, self.name))

    def _view(self) -> View:
        return views.card(self._seen, now=self._session.now())

    def _repr_html_(self) -> str:
        return html.whole(self._view())

    def _ipython_display_(self) -> None:
        """In a notebook it is shown live: the display follows the job to its end."""
        from hotdesk.widgets import show_live

        self.refresh()
        show_live(self._session, self._seen)


def _checked_until(until: str) -> str:
    if until not in ("running", "finished"):
        raise Invalid(
            f"until={until!r} is not something to wait for.", field="until", value=until, next_step="Wait for 'running' or 'finished'."
        )
    return until


class Why:
    """An explanation that prints as its sentence and shows its numbers in a notebook."""

    def __init__(self, explanation: Explanation) -> None:
        self.explanation = explanation

    def __str__(self) -> str:
        return self.explanation.sentence

    def __repr__(self) -> str:
        return plain.body(told.explanation(self.explanation)).rstrip("\n")

    def _repr_html_(self) -> str:
        return html.whole(told.explanation(self.explanation))


def _amount(amount: Amount) -> str:
    """`0.1 + 0.2` is meant as 0.3: floats are read with the three decimals that GPUs have, if that changes nothing visible."""
    if isinstance(amount, float) and abs(amount - round(amount, 3)) < 1e-9:
        amount = round(amount, 3)
    return str(amount)


def submit(
    *,
    image: str = "",
    name: str | None = None,
    project: str | None = None,
    gpu: Amount = 0,
    gpu_memory: str | None = None,
    cpu: Amount | None = None,
    memory: str | None = None,
    command: Sequence[str] = (),
    args: Sequence[str] = (),
    program: str | None = None,
    environment: Mapping[str, str] | None = None,
    interactive: bool = False,
    **more: Any,
) -> Job:
    """Submit a job. Amounts are written as after the flags (`gpu="0.5"`, `memory="4G"`).

    `program` is source text to run instead of a command, without `image` in `python`, on a cluster in the workspace's own image; `more`
    are further members of `hotdesk_api.models.WorkloadSpec`, such as `node_type`, `priority`, `working_dir`.
    """
    session = Session()
    _check_members(more)
    if isinstance(command, str) or isinstance(args, str):
        raise Invalid(
            "command and args are lists of words.", field="command", next_step="Write for example command=['python', 'train.py']."
        )
    if gpu_memory is not None and gpu:
        raise Invalid(
            "gpu and gpu_memory are two ways to ask for the same.", field="gpu_memory", value=gpu_memory, next_step="Use one of them."
        )
    wanted: dict[str, Any] = {
        "name": name,
        "project": session.project(project),
        "kind": "interactive" if interactive else None,
        "image": image or (program_image() if program is not None else ""),
        "command": list(command),
        "args": list(args),
        "program": program,
        "environment": dict(environment or {}),
        "gpu_millis": parse_gpus(_amount(gpu), field="gpu"),
        "gpu_memory_mib": parse_memory_mib(gpu_memory, field="gpu_memory") if gpu_memory else None,
        "cpu_millis": parse_cpu_millis(_amount(cpu), field="cpu") if cpu is not None else None,
        "memory_mib": parse_memory_mib(memory, field="memory") if memory else None,
        **({"image_pull_policy": UNNAMED_PULL_POLICY} if program is not None and not image else {}),
        **more,
    }
    if not wanted["image"]:
        raise Invalid(
            "submit needs an image.", field="image", next_step="For example image='python'; `%runai list images` shows the known ones."
        )
    return Job(session, session.client.call(calls.submit(checked(WorkloadSpec, wanted))))


def _check_members(more: Mapping[str, Any]) -> None:
    from hotdesk.commands.parse import unknown

    for member in more:
        if member not in WorkloadSpec.model_fields:
            raise unknown("an argument of hotdesk.submit", member, sorted(WorkloadSpec.model_fields))


def job(name: str, *, project: str | None = None) -> Job:
    """A job that is already there."""
    session = Session()
    return Job(session, session.client.call(calls.workload(session.project(project), name)))


def jobs(*, project: str | None = None, everywhere: bool = False) -> Listing[Job]:
    """The jobs of a project (or of all one may see)."""
    session = Session()
    chosen = None if everywhere else session.project(project)
    found = session.client.call(calls.workloads(project=chosen)).items
    return Listing((Job(session, item) for item in found), view=views.job_list(found, project=chosen, now=session.now()))


def projects() -> Listing[ProjectOut]:
    found = Session().client.call(calls.projects()).items
    return Listing(found, view=cluster.project_list(found, current=None))


def nodes() -> Listing[NodeOut]:
    found = Session().client.call(calls.nodes()).items
    return Listing(found, view=cluster.node_list(found))


def whoami() -> Me:
    return Session().me
