"""Projects and departments as their resources say: which of them are taken, and whose a namespace is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from hotdesk_scheduler.core.model import Department, Project
from hotdesk_scheduler.engines.base import Change
from hotdesk_scheduler.engines.kubernetes import acceptance, namespaces, objects, resources
from hotdesk_scheduler.engines.kubernetes.acceptance import Acceptance
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError, until_it_works
from hotdesk_scheduler.engines.kubernetes.book import Book
from hotdesk_scheduler.engines.kubernetes.codec import Json
from hotdesk_scheduler.engines.kubernetes.watch import Informer, Key

log = logging.getLogger(__name__)


class Projects:
    """They lie in `namespace`; where workloads live is `prefix` and the project's name, unless it says another namespace.

    `came()` hears of a new project, `moved()` of a namespace that is a project's only now; both once `begin()` has said that all is listed.
    """

    def __init__(
        self,
        api: Api,
        book: Book,
        accepted: Acceptance,
        *,
        namespace: str,
        prefix: str,
        reservations: str,
        came: Callable[[], None],
        moved: Callable[[], None],
    ) -> None:
        self._api = api
        self._book = book
        self._acceptance = accepted
        self._namespace = namespace
        self._prefix = prefix
        self._reservations = reservations
        self._came = came
        self._moved = moved
        self._has_begun = False
        self._project_of: dict[str, str] = {}
        self._items: dict[str, Json] = {}
        self._making: set[asyncio.Task[None]] = set()
        here = resources.path
        self.projects: Informer[tuple[Project, str]] = Informer(api, here("Project", namespace), self._read_project, self._project)
        self.departments: Informer[Department] = Informer(api, here("Department", namespace), self._read_department, self._department)

    def begin(self) -> None:
        self._has_begun = True
        self._judge()

    async def stop(self) -> None:
        for task in tuple(self._making):
            task.cancel()
        await self.projects.stop()
        await self.departments.stop()

    def of(self, kind: str) -> Informer[Any]:
        """`Project` or `Department`."""
        return self.projects if kind == "Project" else self.departments

    # whose a namespace is

    def namespace_of(self, project: str) -> str:
        """Where a project's workloads live."""
        known = self.projects.items.get((self._namespace, project))
        return known[1] if known else self._prefix + project

    def owner_of(self, namespace: str) -> str | None:
        """The project whose workloads live there."""
        owner = self._project_of.get(namespace)
        return owner if owner in self._book.projects else None

    def project_in(self, namespace: str) -> str | None:
        """As its owner, or the last one if that is gone and no other has asked for it."""
        return self._project_of.get(namespace)

    def known_namespaces(self) -> list[str]:
        """Of those that are gone as well."""
        return sorted(self._project_of)

    def why_not(self, namespace: str, *, is_named: bool) -> str:
        """Why none can live there; empty if one can."""
        return namespaces.why_not(namespace, own=self._namespace, reservations=self._reservations, is_named=is_named)

    # as they are read

    def _read_project(self, item: Json) -> tuple[Project, str] | None:
        name = item["metadata"]["name"]
        self._items[name] = item
        try:
            project, named = resources.read_project(item)
            namespace = named or self._prefix + project.name
            problem = self.why_not(namespace, is_named=named is not None)
            problem = problem and f"{problem} Delete this project, and make it with another name or spec.namespace."
        except Exception as error:  # a person's hand may have written anything
            problem = acceptance.sentence(error, "Project", item)
        if problem:
            self._acceptance.say("Project", item, problem)
            return self.projects.items.get((self._namespace, name))
        return project, namespace

    def _read_department(self, item: Json) -> Department | None:
        try:
            department = resources.read_department(item)
        except Exception as error:  # as above
            self._acceptance.say("Department", item, acceptance.sentence(error, "Department", item))
            return self.departments.items.get((self._namespace, item["metadata"]["name"]))
        self._acceptance.say("Department", item, "")
        return department

    # what becomes of them

    def _project(self, key: Key, new: tuple[Project, str] | None, old: tuple[Project, str] | None) -> None:
        """A namespace is one project's, the first one's; for the workloads there it stays so until another project asks for it."""
        name = key[1]
        if new is None:
            self._book.projects.pop(name, None)
            self._items.pop(name, None)
        elif (owner := self.owner_of(new[1])) in (None, name) or self._was_first(new[0], self._book.projects[owner or ""]):
            if owner not in (None, name):
                self._book.projects.pop(owner or "")
            self._book.projects[name] = new[0]
            if self._project_of.get(new[1]) != name:
                self._project_of[new[1]] = name
                self._make_room(name, new[1])
        self._judge()
        self._book.changed(Change("project", sentence=name))
        if old is None and self._has_begun:
            self._came()

    def _was_first(self, one: Project, other: Project) -> bool:
        """Listed in no order, the one that was accepted has it; times of creation are whole seconds."""
        ages = [(not acceptance.is_accepted(self._items.get(each.name, {})), each.created_at, each.name) for each in (one, other)]
        return not self._has_begun and ages[0] < ages[1]

    def _department(self, key: Key, new: Department | None, old: Department | None) -> None:
        if new is None:
            self._book.departments.pop(key[1], None)
        else:
            self._book.departments[key[1]] = new
        self._judge()
        self._book.changed(Change("project", sentence=key[1]))

    def _judge(self) -> None:
        """Whether each project can be what it says it is; known when everything was listed."""
        if not self._has_begun:
            return
        for (_, name), (project, namespace) in tuple(self.projects.items.items()):
            item = self._items.get(name)
            if item is None or resources.spec_problem(item):
                continue
            problem = ""
            if name not in self._book.projects:
                if self.owner_of(namespace) is None:  # whose it was is gone
                    self._project((self._namespace, name), (project, namespace), None)
                    return
                owner = self.owner_of(namespace)
                problem = f"Namespace {namespace} is project {owner}'s. Delete this one, and make it with another spec.namespace."
            elif project.department is not None and project.department not in self._book.departments:
                problem = (
                    f"There is no department {project.department}; until there is, this project stands beside the departments. "
                    f"Make it (runai department create {project.department}), or name another one in spec.department."
                )
            self._acceptance.say("Project", item, problem)

    def _make_room(self, project: str, namespace: str) -> None:
        """Its namespace, also for a project that was written by hand; and workloads may have been there before their project."""

        async def work() -> None:
            if self._has_begun:
                self._moved()
            try:
                await until_it_works(lambda: objects.add_project_namespace(self._api, namespace, project), gives_up=lambda: False)
            except ApiError as error:
                log.error("namespace.refused namespace=%s error=%s", namespace, error)

        task = asyncio.create_task(work(), name=f"namespace {namespace}")
        self._making.add(task)
        task.add_done_callback(self._making.discard)
