"""What must outlive the scheduler, twice: rows in SQLite, and in front of them the core's frozen values, so that reading costs nothing.

`write(batch)` commits what differs, and only rows that differ; `apply(batch)` then shows it in memory. Memory never runs ahead of the
disk: when the disk is full the batch is refused whole (`Unavailable`), and both stay as they were. Rows hold JSON of the core's values,
so a new optional field there needs no new column here. synchronous=FULL: what was answered as submitted is there after a power cut.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from hotdesk_api.errors import Unavailable
from hotdesk_api.models import WorkloadSpec
from pydantic import TypeAdapter
from sqlalchemy.dialects.sqlite import insert

from hotdesk_scheduler.core.model import HOLDING, Department, Pod, Project, Workload
from hotdesk_scheduler.engines.base import Change
from hotdesk_scheduler.engines.local.runs import Run

T = TypeVar("T")
Key = tuple[str, int]
SCHEMA = 1
RESERVE_BYTES = 4 * 2**20
RESERVE_AGAIN_S = 10.0

_meta = sa.MetaData()
_facts = sa.Table("facts", _meta, sa.Column("name", sa.String, primary_key=True), sa.Column("value", sa.Integer))
_projects = sa.Table("projects", _meta, sa.Column("name", sa.String, primary_key=True), sa.Column("body", sa.LargeBinary))
_departments = sa.Table("departments", _meta, sa.Column("name", sa.String, primary_key=True), sa.Column("body", sa.LargeBinary))
_workloads = sa.Table(
    "workloads",
    _meta,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("project", sa.String, nullable=False),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("spec", sa.LargeBinary, nullable=False),
    sa.UniqueConstraint("project", "name"),
)
_pods = sa.Table(
    "pods",
    _meta,
    sa.Column("workload_id", sa.String, primary_key=True),
    sa.Column("pod_index", sa.Integer, primary_key=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("run", sa.LargeBinary),
)

_workload = TypeAdapter(Workload)
_pod = TypeAdapter(Pod)
_run = TypeAdapter(Run)
_project = TypeAdapter(Project)
_department = TypeAdapter(Department)


@dataclass(slots=True)
class Batch:
    """One transaction: new values by key (None = gone), and the changes to tell once it is durable."""

    workloads: dict[str, Workload | None] = field(default_factory=dict)
    specs: dict[str, WorkloadSpec] = field(default_factory=dict)
    runs: dict[Key, Run] = field(default_factory=dict)
    projects: dict[str, Project | None] = field(default_factory=dict)
    departments: dict[str, Department | None] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)


class State:
    """The mirror (public attributes, to be read only) and its database."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reserve = path.with_name(path.name + ".reserve")
        self.version = 0
        self.workloads: dict[str, Workload] = {}
        self.specs: dict[str, WorkloadSpec] = {}
        self.runs: dict[Key, Run] = {}
        self.projects: dict[str, Project] = {}
        self.departments: dict[str, Department] = {}
        self.names: dict[tuple[str, str], str] = {}
        self._database: sa.Engine | None = None
        self._has_reserve = False
        self._reserve_tried_at = -RESERVE_AGAIN_S

    def open(self) -> None:
        """Create or read everything back. Raises `Unavailable` when that cannot be."""
        try:
            self._open()
        except Unavailable:
            if not self.free_reserve():
                raise
            self._open()  # SQLite needs a few pages to open at all
        self.keep_reserve()

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite keeps this mode for its -wal and -shm
            self._database = sa.create_engine(
                sa.URL.create("sqlite", database=str(self.path)), poolclass=sa.StaticPool, connect_args={"check_same_thread": False}
            )
            sa.event.listen(self._database, "connect", _set_pragmas)
            with self._database.begin() as connection:
                _meta.create_all(connection)
                self._read(connection)
        except (sa.exc.DBAPIError, OSError) as error:
            self.close()
            raise _unavailable(error, self.path) from error

    def close(self) -> None:
        if self._database is not None:
            self._database.dispose()
            self._database = None

    def _read(self, connection: sa.Connection) -> None:
        facts = {row.name: row.value for row in connection.execute(sa.select(_facts))}
        if facts.setdefault("schema", SCHEMA) > SCHEMA:
            raise Unavailable(
                f"{self.path} was written by a newer Hotdesk (schema {facts['schema']}, this one knows {SCHEMA}).",
                next_step="Start that version, or give this one another state directory.",
            )
        self.version = facts.get("version", 0)
        self.projects = {name: _project.validate_json(body) for name, body in connection.execute(sa.select(_projects))}
        self.departments = {name: _department.validate_json(body) for name, body in connection.execute(sa.select(_departments))}
        pods: dict[str, list[Pod]] = {}
        for workload_id, index, body, run in connection.execute(sa.select(_pods).order_by(_pods.c.workload_id, _pods.c.pod_index)):
            pods.setdefault(workload_id, []).append(_pod.validate_json(body))
            if run:
                self.runs[workload_id, index] = _run.validate_json(run)
        for row in connection.execute(sa.select(_workloads.c.id, _workloads.c.body, _workloads.c.spec)):
            workload = replace(_workload.validate_json(row.body), pods=tuple(pods.get(row.id, ())))
            self.workloads[row.id] = workload
            self.specs[row.id] = WorkloadSpec.model_validate_json(row.spec)
            self.names[workload.project, workload.name] = row.id

    def write(self, batch: Batch) -> None:
        """Commit the batch, or raise `Unavailable` and leave everything as it was. Blocking; one at a time."""
        assert self._database is not None
        try:
            with self._database.begin() as connection:
                for table, rows in ((_projects, batch.projects), (_departments, batch.departments)):
                    _write_named(connection, table, rows)
                for workload_id, workload in batch.workloads.items():
                    self._write_workload(connection, workload_id, workload, batch)
                self._write_pods(connection, batch)
                _upsert(connection, _facts, [{"name": "version", "value": self.version + 1}, {"name": "schema", "value": SCHEMA}])
        except (sa.exc.DBAPIError, OSError) as error:
            raise _unavailable(error, self.path) from error

    def _write_workload(self, connection: sa.Connection, workload_id: str, workload: Workload | None, batch: Batch) -> None:
        if workload is None:
            connection.execute(sa.delete(_pods).where(_pods.c.workload_id == workload_id))
            connection.execute(sa.delete(_workloads).where(_workloads.c.id == workload_id))
            return
        old = self.workloads.get(workload_id)
        if old is None or replace(old, pods=()) != replace(workload, pods=()):
            spec = batch.specs.get(workload_id) or self.specs[workload_id]
            row = {
                "id": workload_id,
                "project": workload.project,
                "name": workload.name,
                "body": _workload.dump_json(replace(workload, pods=()), exclude_defaults=True),
                "spec": spec.model_dump_json(exclude_defaults=True).encode(),
            }
            _upsert(connection, _workloads, [row])
        kept = {pod.index for pod in workload.pods}
        gone = [pod.index for pod in old.pods if pod.index not in kept] if old else []
        if gone:
            connection.execute(sa.delete(_pods).where(_pods.c.workload_id == workload_id, _pods.c.pod_index.in_(gone)))

    def _write_pods(self, connection: sa.Connection, batch: Batch) -> None:
        """Pods that changed, or whose run did."""
        rows = []
        for workload_id in {*batch.workloads, *(key[0] for key in batch.runs)}:
            workload = batch.workloads.get(workload_id, self.workloads.get(workload_id))
            if workload is None:
                continue
            old = {pod.index: pod for pod in self.workloads[workload_id].pods} if workload_id in self.workloads else {}
            for pod in workload.pods:
                key = (workload_id, pod.index)
                run = batch.runs.get(key) or self.runs.get(key)
                if old.get(pod.index) != pod or key in batch.runs:
                    rows.append(
                        {
                            "workload_id": workload_id,
                            "pod_index": pod.index,
                            "body": _pod.dump_json(pod, exclude_defaults=True),
                            "run": _run.dump_json(run, exclude_defaults=True) if run else None,
                        }
                    )
        _upsert(connection, _pods, rows)

    def apply(self, batch: Batch) -> None:
        """Show a written batch in memory."""
        self.version += 1
        _merge(self.projects, batch.projects)
        _merge(self.departments, batch.departments)
        self.specs.update(batch.specs)
        self.runs.update(batch.runs)
        for workload_id, workload in batch.workloads.items():
            if workload is not None:
                self.names[workload.project, workload.name] = workload_id
                self.workloads[workload_id] = workload
            elif old := self.workloads.pop(workload_id, None):
                self.names.pop((old.project, old.name), None)
                self.specs.pop(workload_id, None)
                for pod in old.pods:
                    self.runs.pop((workload_id, pod.index), None)

    def holding(self) -> Iterable[tuple[Workload, Pod, Run]]:
        """Every pod that holds a placement, with what it was given."""
        for workload in self.workloads.values():
            for pod in workload.pods:
                if pod.state in HOLDING and (run := self.runs.get((workload.id, pod.index))):
                    yield workload, pod, run

    def keep_reserve(self) -> None:
        """A file of a few MiB that `free_reserve` gives back to a full disk, so that the ends of pods can still be recorded."""
        if self._has_reserve or time.monotonic() - self._reserve_tried_at < RESERVE_AGAIN_S:
            return
        self._reserve_tried_at = time.monotonic()
        try:
            descriptor = os.open(self.reserve, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            finally:
                os.close(descriptor)
            self._has_reserve = True
        except OSError:
            self.free_reserve()  # the disk is full now; it is made again after a later write that succeeds

    def free_reserve(self) -> bool:
        """True if there was something to free."""
        self._has_reserve = False
        try:
            had = self.reserve.stat().st_size > 0
            self.reserve.unlink()
        except OSError:
            return False
        return had


def _set_pragmas(connection: Any, _record: object) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000", "cache_size=-4000"):
        connection.execute(f"PRAGMA {pragma}")


def _upsert(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        statement = insert(table)
        keys = [column.name for column in table.primary_key]
        values = {column.name: statement.excluded[column.name] for column in table.columns if column.name not in keys}
        connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=values), rows)


def _write_named(connection: sa.Connection, table: sa.Table, rows: Mapping[str, Any]) -> None:
    adapter: TypeAdapter[Any] = _project if table is _projects else _department
    for name, value in rows.items():
        if value is None:
            connection.execute(sa.delete(table).where(table.c.name == name))
        else:
            _upsert(connection, table, [{"name": name, "body": adapter.dump_json(value, exclude_defaults=True)}])


def _merge(mirror: dict[str, T], new: Mapping[str, T | None]) -> None:
    for name, value in new.items():
        if value is None:
            mirror.pop(name, None)
        else:
            mirror[name] = value


def _unavailable(error: Exception, path: Path) -> Unavailable:
    said = str(error.orig) if isinstance(error, sa.exc.DBAPIError) else str(error)
    full = "full" in said or "No space left" in said
    return Unavailable(
        f"The scheduler's database could not be written: {'the disk is full' if full else said} ({path}). Nothing was changed.",
        next_step="Free some space on that disk and try again." if full else "Check that disk and try again.",
    )
