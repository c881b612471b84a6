"""What people want of a cluster, as resources of it: projects, departments, workloads. Written before it is answered."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from hotdesk_api.errors import Conflict, Invalid
from hotdesk_api.models import WorkloadSpec

from hotdesk_scheduler.core.model import Department, Phase, Project, Workload
from hotdesk_scheduler.core.reasons import Reason
from hotdesk_scheduler.engines import transitions
from hotdesk_scheduler.engines.base import Change
from hotdesk_scheduler.engines.kubernetes import objects, resources, volumes
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError
from hotdesk_scheduler.engines.kubernetes.book import Book
from hotdesk_scheduler.engines.kubernetes.codec import Json
from hotdesk_scheduler.engines.kubernetes.entry import Entry
from hotdesk_scheduler.engines.kubernetes.intake import Intake
from hotdesk_scheduler.engines.kubernetes.saving import Saving
from hotdesk_scheduler.engines.kubernetes.turns import Rank

SEEDING = f"{resources.GROUP}/seeding"  # on the first of the first projects, as long as others are to come
_ID = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?$")


class Desired:
    """The verbs of `engines.base.Engine` under "desired state". `prefix` + project is the usual namespace of a project."""

    def __init__(self, api: Api, book: Book, intake: Intake, saving: Saving, *, namespace: str, prefix: str) -> None:
        self._api = api
        self._book = book
        self._intake = intake
        self._saving = saving
        self._namespace = namespace
        self._prefix = prefix

    async def put_project(self, project: Project) -> None:
        if self._book.projects.get(project.name) != project:
            await self._put_project(project, {})

    async def seed_projects(self, projects: Sequence[Project]) -> list[str]:
        with objects.told():
            there = (await self._api.get(resources.path("Project", self._namespace)))["items"]
        names = {item["metadata"]["name"] for item in there}
        marked = next((item["metadata"]["name"] for item in there if SEEDING in item["metadata"].get("annotations", {})), None)
        if there and marked is None:
            return []
        missing = [project for project in projects if project.name not in names]
        for project in missing:
            await self._put_project(project, {} if marked else {SEEDING: "true"})
            marked = marked or project.name
        if marked:
            with objects.told():
                await objects.remove_annotation(self._api, resources.path("Project", self._namespace, marked), SEEDING)
        return [project.name for project in missing]

    async def _put_project(self, project: Project, annotations: dict[str, str]) -> None:
        """`annotations` count for one that is not there yet."""
        namespace = self._intake.projects.namespace_of(project.name)
        named = namespace if namespace != self._prefix + project.name else None
        if problem := self._intake.projects.why_not(namespace, is_named=named is not None):
            raise Invalid(problem, field="name", value=project.name, next_step="Choose another name.")
        if (owner := self._intake.projects.owner_of(namespace)) not in (None, project.name):
            raise Conflict(
                f"The namespace {namespace} is project {owner}'s already.",
                field="name",
                value=project.name,
                next_step="Choose another name.",
            )
        with objects.told():
            await objects.add_project_namespace(self._api, namespace, project.name)
            body = resources.project_object(project, self._namespace, named)
            body["metadata"]["annotations"] = annotations
            item = await objects.put(self._api, body)
        self._intake.projects.of("Project").put(item)

    async def delete_project(self, name: str) -> None:
        left = sum(entry.workload.project == name for entry in self._book.entries.values())
        if left:
            raise Conflict(
                f"Project {name} still has {left} workload{'s' if left > 1 else ''}.",
                field="name",
                value=name,
                next_step=f"Delete them first: `runai list -p {name}` shows them.",
            )
        await self._remove("Project", name)

    async def put_department(self, department: Department) -> None:
        if self._book.departments.get(department.name) == department:
            return
        with objects.told():
            item = await objects.put(self._api, resources.department_object(department, self._namespace))
        self._intake.projects.of("Department").put(item)

    async def delete_department(self, name: str) -> None:
        await self._remove("Department", name)

    async def _remove(self, kind: str, name: str) -> None:
        with objects.told():
            await self._api.delete(resources.path(kind, self._namespace, name))
        self._intake.projects.of(kind).remove((self._namespace, name))

    async def submit(self, workload: Workload, spec: WorkloadSpec) -> None:
        if not _ID.match(workload.id):
            raise Invalid(f"{workload.id[:100]!r} cannot be the id of a workload.", field="id", value=workload.id[:100])
        if workload.id in self._book.entries:
            return
        if (namesake := self._book.named(workload.project, workload.name)) is not None and namesake.is_claimed:
            raise _name_taken(workload)
        namespace = self._intake.projects.namespace_of(workload.project)
        with objects.told():
            if spec.volume_claims:
                workload = replace(workload, volumes=await volumes.tied(self._api, namespace, spec.volume_claims))
            await objects.check_program_place(self._api, workload, spec, namespace)
            try:
                async with self._api.turns.take(Rank.SUBMISSION):
                    item = await self._create(workload, spec, namespace)
            except ApiError as error:
                if error.reason != "AlreadyExists":
                    raise
                there = await self._api.get(resources.path("Workload", namespace, workload.name))
                if resources.id_of(there) != workload.id:
                    raise _name_taken(workload) from error
                item = there
            await self._put_program(workload, spec, item)
        self._intake.submitted(item, workload, spec)

    async def _put_program(self, workload: Workload, spec: WorkloadSpec, item: Json) -> None:
        """Refused for good, it takes the workload along: what could not be submitted may not be there."""
        try:
            await objects.put_program(self._api, workload, spec, item)
        except (ApiError, Conflict) as error:
            if isinstance(error, Conflict) or not error.is_passing:
                meta = item["metadata"]
                await objects.remove_workload(self._api, meta["namespace"], meta["name"], meta["uid"])
                self._intake.workloads.remove((meta["namespace"], meta["name"]))
            raise

    async def _create(self, workload: Workload, spec: WorkloadSpec, namespace: str) -> Json:
        """Its project's namespace is made again if somebody deleted it."""
        body = resources.workload_object(workload, spec, namespace)
        try:
            return await self._api.create(resources.path("Workload", namespace), body)
        except ApiError as error:
            if error.status != 404:
                raise
        await objects.add_project_namespace(self._api, namespace, workload.project)
        return await self._api.create(resources.path("Workload", namespace), body)

    async def set_phase(self, workload_id: str, phase: Phase, reason: Reason | None, now: float) -> None:
        entry = self._book.entry(workload_id)
        if entry.workload.phase is phase:
            return
        if not entry.is_claimed and phase in (Phase.SUSPENDED, Phase.ACTIVE):
            await self._wish(entry, suspended=phase is Phase.SUSPENDED)
        if entry.is_claimed:
            _check_claimed(entry, phase)
        self._book.put(entry, transitions.in_phase(entry.workload, phase, reason, now))
        self._book.changed(Change("updated", workload_id))
        await self._saving.now(entry)

    async def _wish(self, entry: Entry, *, suspended: bool) -> None:
        """`spec.suspended` says the same as `runai suspend` and `resume`, so that each can take back the other."""
        if entry.suspended == suspended:
            return
        with objects.told():
            await self._api.merge(resources.path("Workload", entry.namespace, entry.workload.name), {"spec": {"suspended": suspended}})
        entry.suspended = suspended

    async def forget(self, workload_id: str) -> None:
        entry = self._book.entries.get(workload_id)
        if entry is None:
            return
        with objects.told():
            if entry.is_claimed:
                for member in tuple(entry.members.values()):
                    path = f"/api/v1/namespaces/{entry.namespace}/pods/{member.name}"
                    await self._api.delete(path, {"preconditions": {"uid": member.uid}})
            else:
                await objects.remove_workload(self._api, entry.namespace, entry.workload.name, entry.uid)
        if self._book.entries.get(workload_id) is entry:  # else it was forgotten twice, and the next one may have its name by now
            self._intake.workloads.remove(entry.key)
            self._intake.forgotten(entry)


def _check_claimed(entry: Entry, phase: Phase) -> None:
    """What others made may be ended here if nobody makes it again."""
    name, maker = entry.workload.name, entry.maker
    if phase is Phase.SUSPENDED:
        said = f"its {maker}" if maker else "whoever made it"
        next_step = f"Suspend {said}, or delete it: `runai delete {name} -p {entry.workload.project}`."
        if maker.startswith("job "):
            next_step = f'Suspend the Job: kubectl patch {maker} -n {entry.namespace} --type=merge -p \'{{"spec":{{"suspend":true}}}}\'.'
        raise Conflict(f"{name} was made by somebody else, and Hotdesk cannot suspend it.", field="state", value=phase, next_step=next_step)
    if phase is Phase.DELETING and maker:
        raise Conflict(
            f"The pods of {name} are made by {maker}, which would make them again.",
            field="state",
            value=phase,
            next_step=f"Delete that: kubectl delete {maker} -n {entry.namespace}.",
        )


def _name_taken(workload: Workload) -> Conflict:
    return Conflict(
        f"Project {workload.project} already has a workload named {workload.name}.",
        field="name",
        value=workload.name,
        next_step=f"Choose another name, or delete the old one: `runai delete {workload.name} -p {workload.project}`.",
    )
