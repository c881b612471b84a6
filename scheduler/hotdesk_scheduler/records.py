"""History that is the same under every engine: events of workloads, the audit (who did what), past use. SQLite here, PostgreSQL by URL.

Writing never holds up scheduling: rows wait in memory (bounded) until the database takes them; while it does not, `problem` says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import sqlalchemy as sql
from hotdesk_api.errors import Unavailable

log = logging.getLogger(__name__)

KEEP_ROWS = 200_000
MAX_WAITING = 20_000
EVENTS_SHOWN = 500
PRUNE_EVERY = 2_000
CLOSE_S = 3.0
_SECRET = re.compile(r"(?i)\b((?:bearer|token)\s+|[\w-]*(?:token|secret|passw(?:or)?d|api_?key)[\w-]*\s*[=:]\s*)([^\s,;'\"]+)")

_tables = sql.MetaData()
_events = sql.Table(
    "events",
    _tables,
    sql.Column("id", sql.Integer, primary_key=True),
    sql.Column("at", sql.Float, nullable=False),
    sql.Column("type", sql.String(8), nullable=False),
    sql.Column("source", sql.String(40), nullable=False),
    sql.Column("reason", sql.String(60), nullable=False),
    sql.Column("message", sql.Text, nullable=False),
    sql.Column("project", sql.String(63)),
    sql.Column("workload", sql.String(63)),
    sql.Column("workload_id", sql.String(64), index=True),
    sql.Column("user", sql.String(255)),
)
_audit = sql.Table(
    "audit",
    _tables,
    sql.Column("id", sql.Integer, primary_key=True),
    sql.Column("at", sql.Float, nullable=False),
    sql.Column("user", sql.String(255), nullable=False),
    sql.Column("action", sql.String(40), nullable=False),
    sql.Column("project", sql.String(63)),
    sql.Column("subject", sql.String(255)),
    sql.Column("outcome", sql.String(40), nullable=False),
    sql.Column("message", sql.Text, nullable=False),
)
_past_use = sql.Table(
    "past_use",
    _tables,
    sql.Column("project", sql.String(63), primary_key=True),
    sql.Column("gpu_nanos", sql.BigInteger, nullable=False),
    sql.Column("at", sql.Float, nullable=False),
)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a workload or the cluster; `message` is a sentence for people."""

    at: float
    reason: str
    message: str
    type: str = "Normal"
    source: str = "scheduler"
    project: str | None = None
    workload: str | None = None
    workload_id: str | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """Who did what, and how it was answered."""

    at: float
    user: str
    action: str
    outcome: str = "done"
    project: str | None = None
    subject: str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class PastUse:
    """What each project has used of late (billionths of a GPU, `core/history.py`), as of a time; the newest takes the older's place."""

    at: float
    gpu_nanos: tuple[tuple[str, int], ...]


Record = Event | Audit | PastUse


def redacted(text: str) -> str:
    """Without the values of what looks like a secret, at most 2,000 characters; without NUL, which PostgreSQL takes nowhere."""
    return _SECRET.sub(r"\1***", text.replace("\0", ""))[:2000]


class Records:
    """`open()` first; `add` never waits and never raises."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._database: sql.Engine | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._waiting: deque[Record] = deque(maxlen=MAX_WAITING)
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._written = 0
        self.problem: str | None = None

    async def open(self) -> None:
        self._task = asyncio.create_task(self._write_forever(), name="records")

    async def close(self) -> None:
        """Writes what waits, if the database takes it within a few seconds. What is just being written is never written twice."""
        self._closing.set()
        self._wake.set()
        with contextlib.suppress(Exception):
            if self._task is not None:
                await asyncio.wait_for(self._task, CLOSE_S)
            await asyncio.wait_for(self._flush(), CLOSE_S)
        if self._database is not None:
            self._database.dispose()
        self._thread.shutdown(wait=False)

    def add(self, row: Record) -> None:
        self._waiting.append(row)
        self._wake.set()

    async def events(self, workload_id: str) -> Sequence[Event]:
        """The newest of one workload, oldest first; also those not written yet."""
        waiting = [row for row in self._waiting if isinstance(row, Event) and row.workload_id == workload_id]
        try:
            written = await asyncio.get_running_loop().run_in_executor(self._thread, self._read, workload_id)
        except (sql.exc.SQLAlchemyError, OSError) as error:
            self._failed(error)
            written = []
        late = [row for row in waiting if row not in written]
        return (written + late)[-EVENTS_SHOWN:]

    async def past_use(self) -> PastUse | None:
        """As it was written last; None if it never was. Unavailable if it cannot be read."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._read_past_use)
        except (sql.exc.SQLAlchemyError, OSError) as error:
            raise Unavailable(self._failed(error)) from error

    def _read_past_use(self) -> PastUse | None:
        with self._opened().connect() as connection:
            rows = connection.execute(sql.select(_past_use).order_by(_past_use.c.project)).all()
        return PastUse(max(row.at for row in rows), tuple((row.project, row.gpu_nanos) for row in rows)) if rows else None

    def _opened(self) -> sql.Engine:
        if self._database is None:
            database = _database(self._url)
            if database.dialect.name == "sqlite":
                if database.url.database and database.url.database != ":memory:":
                    Path(database.url.database).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                sql.event.listen(database, "connect", _wal)
            _tables.create_all(database)
            self._database = database
        return self._database

    def _read(self, workload_id: str) -> list[Event]:
        query = sql.select(_events).where(_events.c.workload_id == workload_id).order_by(_events.c.id.desc()).limit(EVENTS_SHOWN)
        with self._opened().connect() as connection:
            rows = connection.execute(query).mappings().all()
        return [Event(**{name: value for name, value in row.items() if name != "id"}) for row in reversed(rows)]

    async def _write_forever(self) -> None:
        delay_s = 0.0
        while not self._closing.is_set():
            await self._wake.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(delay_s, 0.05)):
                    await self._closing.wait()
            self._wake.clear()
            try:
                await self._flush()
                delay_s = 0.0
            except (sql.exc.SQLAlchemyError, OSError) as error:
                self._failed(error)
                self._wake.set()
                delay_s = min(30.0, delay_s * 2 or 1.0)

    async def _flush(self) -> None:
        rows = list(self._waiting)
        if not rows:
            return
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, rows)
        for row in rows:
            if self._waiting and self._waiting[0] is row:
                self._waiting.popleft()
        if self.problem:
            log.info("records.recovered")
        self.problem = None

    def _failed(self, error: Exception) -> str:
        sentence = f"Events and audit cannot be written or read: {getattr(error, 'orig', None) or error}. Work goes on."
        if self.problem != sentence:
            log.error("records.failed error=%s", sentence)
        self.problem = sentence
        return sentence

    def _write(self, rows: Sequence[Record]) -> None:
        events = [_fitting(_events, row) for row in rows if isinstance(row, Event)]
        audits = [_fitting(_audit, row) for row in rows if isinstance(row, Audit)]
        with self._opened().begin() as connection:
            if events:
                connection.execute(_events.insert(), events)
            if audits:
                connection.execute(_audit.insert(), audits)
            if past := [row for row in rows if isinstance(row, PastUse)]:
                connection.execute(_past_use.delete())
                if values := [{"project": name, "gpu_nanos": nanos, "at": past[-1].at} for name, nanos in past[-1].gpu_nanos]:
                    connection.execute(_past_use.insert(), values)
            self._written += len(rows)
            if self._written >= PRUNE_EVERY:
                self._written = 0
                for table in (_events, _audit):
                    newest = connection.execute(sql.select(sql.func.max(table.c.id))).scalar() or 0
                    connection.execute(table.delete().where(table.c.id <= newest - KEEP_ROWS))


def _database(text: str) -> sql.Engine:
    """PostgreSQL is spoken to with the driver that comes with us, also where its URL names none. OSError without a driver."""
    url = sql.make_url(text)
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    try:
        return sql.create_engine(url)
    except ImportError as error:
        raise OSError(f"what speaks {url.drivername} is not installed here ({error})") from error


def _fitting(table: sql.Table, row: Event | Audit) -> dict[str, object]:
    """As its columns take it: PostgreSQL refuses what is too long, and with it all that is written in the same breath."""
    found: dict[str, object] = asdict(row) | {"message": redacted(row.message)}
    for column in table.columns:
        value = found.get(column.name)
        if isinstance(value, str):
            found[column.name] = value.replace("\0", "")[: getattr(column.type, "length", None)]
    return found


def _wal(connection: object, _record: object) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]  # sqlite3's connection, which SQLAlchemy types as object
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()
