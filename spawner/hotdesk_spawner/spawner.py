"""The mixin that makes any JupyterHub spawner wait for its share: queue in the pre-spawn hook, start with the grant, tell the end.

JupyterHub calls, in this order: `run_pre_spawn_hook` (unbounded and cancellable: here we queue), `start` (bounded by start_timeout),
later `poll`, and at every end, also of a cancelled or failed spawn, `run_post_stop_hook`: here the share goes back. A hub that shuts
down cancels its tasks without that last call, so a queued workspace keeps its place over a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from hotdesk_api import calls
from hotdesk_api.client import AsyncClient
from hotdesk_api.errors import HotdeskError, Unavailable
from hotdesk_api.models import Grant, ProjectOut, WorkloadSpec
from jupyterhub.spawner import Spawner
from jupyterhub.utils import maybe_future
from traitlets import Unicode, default

from hotdesk_spawner import form, options, progress
from hotdesk_spawner.place import Ending, Place, Retry
from hotdesk_spawner.refusal import refusal
from hotdesk_spawner.shared import client_for, forget_end, in_background, tell_end, why_stopped
from hotdesk_spawner.telling import Teller

REPORT_PATIENCE_S = 120.0
_refused_form: ContextVar[Mapping[str, str] | None] = ContextVar("refused form", default=None)
"""What somebody sent and is shown again, to be corrected. By request, whose task has a context of its own: who sends it may be an admin
for another user, and the page may be made by another of that user's spawners."""


class QueuedSpawner(Spawner):  # type: ignore[misc]  # JupyterHub ships no types
    """First in the bases, before the spawner that starts things: `class My(QueuedSpawner, KubeSpawner)`, or `queued(KubeSpawner)`."""

    scheduler_url = Unicode(help="Where the scheduler answers REST /v1, as the hub reaches it.").tag(config=True)
    scheduler_token = Unicode(help="API token of the hub's service that holds custom:hotdesk:workspaces:host.").tag(config=True)
    workspace_scheduler_url = Unicode(help="Where workspaces reach the scheduler; empty: as the hub does.").tag(config=True)

    own_variables: frozenset[str] = frozenset({"HOME", "USER", "LOGNAME", "SHELL"})  # where the base spawner knows better than the grant

    def __init__(self, *arguments: Any, **traits: Any) -> None:
        super().__init__(*arguments, **traits)
        self._board = progress.Board()
        self._place: Place | None = None
        self._grant: Grant | None = None
        self._exit_status: int | None = None
        self._asked_to_stop = False
        self._waiting = False

    @property
    def ready(self) -> bool:
        """Not before it was started. JupyterHub takes a server whose waiting was interrupted for ready until it has been stopped."""
        return bool(super().ready) and not self._waiting

    @property
    def client(self) -> AsyncClient:
        return client_for(self.scheduler_url, self.scheduler_token)

    # the form

    @property
    def groups(self) -> list[str]:
        return sorted(group.name for group in self.user.groups)

    async def projects(self) -> list[ProjectOut]:
        """Those the person may use: the groups' projects, all of them for an admin."""
        found = (await self.client.call(calls.projects())).items
        return [project for project in found if self.user.admin or project.name in self.groups]

    @default("options_form")
    def _default_options_form(self) -> Any:
        return lambda spawner: spawner.render_form()

    async def render_form(self) -> str:
        """The form with live numbers; without them, and saying so, when the scheduler is away."""
        try:
            projects, nodes, cluster = await asyncio.gather(
                self.projects(), self.client.call(calls.nodes()), self.client.call(calls.cluster())
            )
        except HotdeskError as error:
            return form.render([], names=self.groups, last=self._last_choice(), problem=str(error), user=self.user.name)
        return form.render(projects, last=self._last_choice(), nodes=nodes.items, simulated=cluster.simulated, user=self.user.name)

    async def explain(self, fields: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """For the form while it is filled in: the project's numbers, and whether this would start now. Raises HotdeskError."""
        names = [project.name for project in await self.projects()]
        wish = options.read(options.from_form(fields), projects=names)
        spec = options.spec_of(wish, user=self.user.name, server=self.name)
        project, plan = await asyncio.gather(self.client.call(calls.project(wish.project)), self.client.call(calls.what_if(spec)))
        return {"numbers": form.numbers(project), "starts_now": plan.starts_now, "sentence": form.plan_in_words(plan)}

    def _last_choice(self) -> Mapping[str, Any]:
        if refused := _refused_form.get():
            return refused
        saved = getattr(getattr(self, "orm_spawner", None), "user_options", None)
        return saved if isinstance(saved, Mapping) else {}

    def _read_form(self, fields: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        try:
            chosen = options.from_form(fields)
            options.read(chosen, projects=self.groups or [str(chosen.get("project", ""))])
        except HotdeskError as error:
            if not (self.user.admin and error.field == "project"):  # an admin may use projects without being in their groups
                _refused_form.set(options.typed(fields))
                raise refusal(error) from error
        return chosen

    @default("options_from_form")
    def _default_options_from_form(self) -> Any:
        return self._read_form

    @default("apply_user_options")
    def _default_apply_user_options(self) -> Any:
        return lambda spawner, user_options: None  # they are read, checked and answered in the pre-spawn hook, on every hub version

    # waiting

    async def run_pre_spawn_hook(self) -> None:
        """Wait for the share. Anything that is wrong with the wish is a refusal with a sentence."""
        await maybe_future(super().run_pre_spawn_hook())
        self._board.clear()
        self._asked_to_stop, self._exit_status, self._waiting = False, None, True
        try:
            await self._wait_for_grant()
        except HotdeskError as error:
            raise refusal(error) from error
        finally:
            self._board.close()

    async def _wait_for_grant(self) -> None:
        names = [project.name for project in await self._projects_patiently()]
        wish, spec = await self.asked(names)
        self._board.put(progress.asked(options.in_words(wish)))
        place = Place(self.client, project=spec.project, name=str(spec.name))
        forget_end(self.user.name, self.name)
        self._place = place  # from here on the place is given back at every end
        entered = await place.enter(spec, self._out_of_touch)
        teller = Teller(self.client, self._board)
        keeping_up = asyncio.ensure_future(teller.keep_up())
        try:
            self._grant = await place.grant(entered, tell=teller.told, out_of_touch=self._out_of_touch)
        finally:
            keeping_up.cancel()
        self._board.put(progress.granted(self._grant))

    async def asked(self, projects: Sequence[str]) -> tuple[options.Wish, WorkloadSpec]:
        """What the user options come to; `projects` are the person's. Raises HotdeskError."""
        wish = options.read(self.user_options or {}, projects=projects)
        return wish, options.spec_of(wish, user=self.user.name, server=self.name)

    async def _projects_patiently(self) -> list[ProjectOut]:
        retry = Retry(REPORT_PATIENCE_S)
        while True:
            try:
                return await self.projects()
            except Unavailable as error:
                if retry.spent:
                    raise
                self._out_of_touch(error.sentence)
                await retry.pause()

    def _out_of_touch(self, sentence: str) -> None:
        self._board.put(progress.out_of_touch(sentence))

    async def progress(self) -> AsyncIterator[progress.Event]:
        """Our events from the beginning, then the base spawner's. JupyterHub adds the end."""
        async for event in self._board.follow():
            yield event
        async for event in super().progress():
            yield event

    # running

    async def start(self) -> Any:
        url = await super().start()
        self._waiting = False
        if self._place:
            in_background(self._tell_started(self._place))
        return url

    async def _tell_started(self, place: Place) -> None:
        try:
            await place.started()
        except HotdeskError as error:
            self.log.error("workspace.grant_gone workload=%s/%s: %s", place.project, place.name, error)
            await maybe_future(self.stop())  # it may not run on a share that is not its own; the hub's next poll notices

    def get_env(self) -> dict[str, str]:
        env: dict[str, str] = super().get_env()
        own_path, url = env.get("PATH", ""), self.workspace_scheduler_url or self.scheduler_url
        if self._place and self._grant:
            env |= {name: value for name, value in self._grant.environment.items() if name not in self.own_variables}
            env |= {"HOTDESK_PROJECT": self._place.project, "HOTDESK_WORKSPACE": self._place.name}
            first = self._grant.environment.get("PATH")
            if first:  # without a PATH of ours an image keeps its own
                env["PATH"] = f"{first}:{own_path}" if own_path else first
        env["HOTDESK_API_URL"] = url
        return env

    async def poll(self) -> int | None:
        status: int | None = await super().poll()
        if status is not None and self._exit_status is None:
            self._exit_status = status
        return status

    async def stop(self, now: bool = False) -> None:
        self._asked_to_stop = True
        await maybe_future(super().stop(now))

    async def run_post_stop_hook(self) -> None:
        """Whatever ended, and however: the share goes back."""
        place, self._place, self._grant = self._place, None, None
        self._board.close()
        if place:
            ending: Ending = "stopped" if self._asked_to_stop or not place.running else "failed" if self._exit_status else "succeeded"
            await self._leave(place, ending)
        await maybe_future(super().run_post_stop_hook())

    async def _leave(self, place: Place, ending: Ending) -> None:
        code = None if ending == "stopped" else self._exit_status
        try:
            self._remember(await place.leave(ending, code))
        except Unavailable:
            tell_end(self.user.name, self.name, self._leave_later(place, ending, code))
        except HotdeskError as error:
            self.log.error("workspace.leave_failed workload=%s/%s: %s", place.project, place.name, error)

    async def _leave_later(self, place: Place, ending: Ending, code: int | None) -> None:
        retry = Retry(REPORT_PATIENCE_S)
        while not retry.spent:
            await retry.pause()
            try:
                self._remember(await place.leave(ending, code))
            except Unavailable:
                continue
            except HotdeskError as error:
                self.log.error("workspace.leave_failed workload=%s/%s: %s", place.project, place.name, error)
            return

    def _remember(self, why: str | None) -> None:
        if why:
            why_stopped[self.user.name, self.name] = why
        else:
            why_stopped.pop((self.user.name, self.name), None)

    # what outlives the hub

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state()
        if self._place:
            state["hotdesk"] = {"project": self._place.project, "name": self._place.name, "id": self._place.id}
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        saved = state.get("hotdesk")
        if saved:  # state is saved only once the server was started
            known = {name: saved[name] for name in ("project", "name", "id", "running") if name in saved}  # a later version may say more
            self._place = _LazyPlace(self, **known)


class _LazyPlace(Place):
    """A place known from the hub's database, before there is an event loop to make a client in."""

    def __init__(self, spawner: QueuedSpawner, *, project: str, name: str, id: str | None = None, running: bool = True) -> None:
        self._spawner = spawner
        self.project, self.name, self.id, self.running, self.held = project, name, id, running, True

    @property
    def _client(self) -> AsyncClient:  # type: ignore[override]  # looked up when used
        return self._spawner.client


def queued(base: type) -> type[QueuedSpawner]:
    """The queueing class for any other spawner class: `c.JupyterHub.spawner_class = queued(KubeSpawner)`."""
    return type(f"Queued{base.__name__}", (QueuedSpawner, base), {"__module__": __name__})
