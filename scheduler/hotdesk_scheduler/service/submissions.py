"""A submission on its way in: whose it is, whether it can be right, and under which name it goes to the engine."""

from __future__ import annotations

from collections.abc import Callable

from hotdesk_api import models
from hotdesk_api.errors import Conflict, Invalid, Refused

from hotdesk_scheduler.core.model import Workload
from hotdesk_scheduler.engines.base import Engine
from hotdesk_scheduler.service import specs
from hotdesk_scheduler.service.callers import Caller
from hotdesk_scheduler.service.verbs import Clock

NAME_ATTEMPTS = 20
PREFIXES_REMEMBERED = 10_000


class Submissions:
    """Generated numbers grow for as long as the service runs, so that a deleted job's name is not taken again at once."""

    def __init__(self, engine: Engine, *, clock: Clock, new_id: Callable[[], str]) -> None:
        self._engine = engine
        self._clock = clock
        self._new_id = new_id
        self._next_number: dict[tuple[str, str], int] = {}

    async def submit(self, spec: models.WorkloadSpec, user: str) -> Workload:
        """With the name asked for, or a generated one that is free."""
        for _ in range(NAME_ATTEMPTS):
            name = spec.name or self._generated(spec)
            workload = specs.workload_of(spec, workload_id=self._new_id(), name=name, user=user, now=self._clock())
            try:
                await self._engine.submit(workload, spec.model_copy(update={"name": name}))
            except Conflict:
                if spec.name:
                    raise
                continue
            return workload
        raise Conflict(f"No free name was found in project {spec.project}.", field="name", next_step="Give the job a name.")

    def next_name(self, spec: models.WorkloadSpec) -> str:
        """The name that would be generated; nothing is taken."""
        number = self._next_number.get((spec.project, spec.name_prefix or "job"), 0)
        return specs.generated_name(spec.name_prefix, self._names(spec.project), number)

    def _names(self, project: str) -> set[str]:
        return {workload.name for workload in self._engine.snapshot().workloads if workload.project == project}

    def _generated(self, spec: models.WorkloadSpec) -> str:
        name = self.next_name(spec)
        if len(self._next_number) > PREFIXES_REMEMBERED:
            self._next_number.clear()
        self._next_number[spec.project, spec.name_prefix or "job"] = int(name.rpartition("-")[2]) + 1
        return name

    async def checked(self, caller: Caller, spec: models.WorkloadSpec) -> str:
        """Everything that can be wrong with a spec; answers whose it will be."""
        user = self._owner(caller, spec)
        snapshot = self._engine.snapshot()
        specs.check(spec, snapshot)
        await self._engine.check(spec)
        return user

    def _owner(self, caller: Caller, spec: models.WorkloadSpec) -> str:
        """The user it is for, after checking project and membership (on behalf: of the owner)."""
        if spec.kind == "workspace":
            caller.require_host()
            if not spec.owner:
                raise Invalid("A workspace needs its owner.", field="owner")
            member, owner = True, spec.owner  # the spawner, which is the hub itself, has checked the owner's groups
        else:
            caller.require_submit()
            if spec.owner not in (None, caller.name) or spec.server_name is not None:
                raise Refused("owner and server_name are for workspaces, which the hub submits.", field="owner", value=spec.owner)
            member, owner = caller.is_member(spec.project), caller.name
        projects = {project.name for project in self._engine.snapshot().projects}
        if spec.project not in projects or not member:
            mine = [name for name in sorted(projects) if caller.is_member(name)]
            raise Invalid(
                f"There is no project {spec.project} that {owner} is a member of.",
                field="project",
                value=spec.project,
                next_step=f"Projects of {caller.name}: {', '.join(mine)}." if mine else "Ask an admin to add you to a project.",
            )
        return owner
