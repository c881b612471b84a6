"""Who asks, and what they may do. The rules are here once; `rest` only finds out who it is.

Members of a project with the submit scope manage all its workloads (it is the team's quota that is used); a shell inside a
workload (exec, bash) is for its owner and admins, since it would act with the owner's files and keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotdesk_api.errors import NotFound, Refused

from hotdesk_scheduler.core.model import Workload


@dataclass(frozen=True, slots=True)
class Scopes:
    """The custom scopes' names; each of the ladder includes those before it."""

    service: str = "hotdesk"

    @property
    def read(self) -> str:
        return f"custom:{self.service}:jobs:read"

    @property
    def submit(self) -> str:
        return f"custom:{self.service}:jobs:submit"

    @property
    def admin(self) -> str:
        return f"custom:{self.service}:jobs:admin"

    @property
    def host(self) -> str:
        return f"custom:{self.service}:workspaces:host"


@dataclass(frozen=True, slots=True)
class Caller:
    """`groups` are the hub's; a project's members are the group of its name. `service` True: a program, not a person."""

    name: str
    groups: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    service: bool = False
    names: Scopes = Scopes()

    @property
    def admin(self) -> bool:
        return self.names.admin in self.scopes

    @property
    def may_submit(self) -> bool:
        return self.admin or self.names.submit in self.scopes

    @property
    def hosts_workspaces(self) -> bool:
        return self.names.host in self.scopes

    @property
    def may_read(self) -> bool:
        return self.may_submit or self.hosts_workspaces or self.names.read in self.scopes

    def is_member(self, project: str) -> bool:
        return self.admin or project in self.groups

    def may_see(self, workload: Workload) -> bool:
        return self.is_member(workload.project) or (self.hosts_workspaces and workload.kind == "workspace")

    def require_read(self) -> None:
        self._require(self.may_read, self.names.read, "read anything here")

    def require_submit(self) -> None:
        self._require(self.may_submit, self.names.submit, "submit or change workloads")

    def require_admin(self, what: str = "create, change or delete projects") -> None:
        self._require(self.admin, self.names.admin, what)

    def require_host(self) -> None:
        self._require(self.hosts_workspaces, self.names.host, "host workspaces")

    def require_change(self, workload: Workload) -> None:
        """Delete, suspend, resume: project members with the submit scope; a workspace by its owner, admins and the hub's spawner alone."""
        if self.hosts_workspaces and workload.kind == "workspace":
            return
        self.require_submit()
        if workload.kind == "workspace" and not (self.admin or workload.user == self.name):
            raise Refused(
                f"{workload.name} is the workspace of {workload.user}; only its owner or an admin may stop it.",
                field="workload",
                value=workload.name,
                next_step=f"Ask {workload.user}, or an admin.",
            )

    def require_inside(self, workload: Workload) -> None:
        """A shell inside: the owner or an admin."""
        self.require_submit()
        if not (self.admin or workload.user == self.name):
            raise Refused(
                f"{workload.name} belongs to {workload.user}; only its owner or an admin may open a shell in it.",
                field="workload",
                value=workload.name,
                next_step=f"Read its log with `runai logs {workload.name} -p {workload.project}`, or ask {workload.user}.",
            )

    def _require(self, allowed: bool, scope: str, what: str) -> None:
        if not allowed:
            raise Refused(
                f"The token of {self.name} may not {what}: it lacks the scope {scope}.",
                field="scope",
                limit=scope,
                next_step="Ask for a token with that scope on the hub's token page, or ask an admin.",
            )


def no_such_workload(project: str, name: str) -> NotFound:
    """The one answer for what does not exist and for what the caller may not know of."""
    return NotFound(
        f"There is no workload {name} in project {project}.",
        field="workload",
        value=name,
        next_step=f"`runai list -p {project}` shows those there are.",
    )


def no_such_project(name: str) -> NotFound:
    return NotFound(
        f"There is no project {name} that you are a member of.", field="project", value=name, next_step="`runai list projects` shows yours."
    )
