"""Workloads and everything below them, except streams (streams.py) and shells (shell.py)."""

from __future__ import annotations

from hotdesk_api import models
from hotdesk_api.errors import Invalid

from hotdesk_scheduler.rest import wire
from hotdesk_scheduler.rest.base import Handler
from hotdesk_scheduler.service.views import Entry

MAX_PAGE = 10_000


def _wanted(entry: Entry, *, project: str | None, kind: str | None, status: str | None, user: str | None) -> bool:
    view = entry.view
    return (
        project in (None, view.project)
        and kind in (None, view.kind)
        and (status is None or view.status.lower() == status.lower())
        and user in (None, view.user)
    )


class Workloads(Handler):
    async def get(self) -> None:
        """Sorted by project, then name; `after` is the `next` of the page before."""
        self.caller.require_read()
        views = await self.desk.refreshed()
        filters = {name: self.query(name) for name in ("project", "kind", "status", "user")}
        limit = wire.integer(self.query("limit"), field="limit", least=1, most=MAX_PAGE)
        after = _cursor(self.query("after"))
        found: list[Entry] = []
        following: str | None = None
        for entry in views:
            if not (self.caller.may_see(entry.workload) and _wanted(entry, **filters)):
                continue
            if after is not None and (entry.workload.project, entry.workload.name) <= after:
                continue
            if limit is not None and len(found) == limit:
                following = f"{found[-1].workload.project}/{found[-1].workload.name}"
                break
            found.append(entry)
        items = b",".join(entry.json for entry in found)
        tail = b"null" if following is None else b'"' + following.encode() + b'"'
        self.answer_json(b'{"items":[' + items + b'],"next":' + tail + b"}")

    async def post(self) -> None:
        entry = await self.desk.submit(self.caller, self.parsed(models.WorkloadSpec))
        self.answer(self.desk.detail(self.caller, entry), 201)


def _cursor(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    project, slash, name = text.partition("/")
    if not slash:
        raise Invalid("`after` is the `next` of the page before.", field="after", value=text[:80])
    return project, name


class Workload(Handler):
    async def get(self, project: str, name: str) -> None:
        """`touch=1` by the hub's spawner: it still waits for this workspace."""
        entry = self.desk.entry(self.caller, project, name)
        if self.caller.hosts_workspaces and wire.flag(self.query("touch")):
            self.desk.workspaces.touch(entry.workload.id)
        self.answer(self.desk.detail(self.caller, entry))

    async def delete(self, project: str, name: str) -> None:
        await self.desk.delete(self.caller, project, name)
        self.no_content()


class Suspend(Handler):
    async def post(self, project: str, name: str) -> None:
        self.answer(self.desk.detail(self.caller, await self.desk.suspend(self.caller, project, name)))


class Resume(Handler):
    async def post(self, project: str, name: str) -> None:
        self.answer(self.desk.detail(self.caller, await self.desk.resume(self.caller, project, name)))


class Events(Handler):
    async def get(self, project: str, name: str) -> None:
        self.answer(await self.desk.events(self.caller, project, name))


class Explain(Handler):
    async def get(self, project: str, name: str) -> None:
        self.answer(self.desk.why(self.caller, project, name))


class WhatIf(Handler):
    async def post(self) -> None:
        self.answer(await self.desk.what_if(self.caller, self.parsed(models.WorkloadSpec)))


class Pod(Handler):
    async def put(self, project: str, name: str) -> None:
        entry = await self.desk.report_pod(self.caller, project, name, self.parsed(models.PodReport))
        self.answer(self.desk.detail(self.caller, entry))


class Progress(Handler):
    """The one route that also takes a job's own HOTDESK_REPORT_TOKEN."""

    public = True

    async def put(self, project: str, name: str) -> None:
        if self.desk.is_report_token(project, name, self.token()):
            self.desk.report_progress(None, project, name, self.parsed(models.Progress))
        else:
            caller = await self.identify()
            self.desk.report_progress(caller, project, name, self.parsed(models.Progress))
        self.no_content()
