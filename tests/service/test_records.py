"""Events and audit: kept in order, bounded, without secrets, and never in the way of scheduling."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import desks
import pytest
from hotdesk_api import calls
from hotdesk_api.errors import Unauthorized
from hotdesk_scheduler import records
from hotdesk_scheduler.records import Audit, Event, Records, redacted


def event(number: int, workload_id: str = "one", message: str = "It happened.") -> Event:
    return Event(at=float(number), reason=f"R{number}", message=message, workload_id=workload_id)


async def test_events_come_back_in_order_also_those_not_written_yet(tmp_path: Path) -> None:
    book = Records(f"sqlite:///{tmp_path / 'records.db'}")
    await book.open()
    for number in range(3):
        book.add(event(number))
    book.add(event(9, "two"))
    assert [row.reason for row in await book.events("one")] == ["R0", "R1", "R2"]
    await desks.until(lambda: not book._waiting)
    book.add(event(3))
    assert [row.reason for row in await book.events("one")] == ["R0", "R1", "R2", "R3"]
    await book.close()
    again = Records(f"sqlite:///{tmp_path / 'records.db'}")
    assert [row.reason for row in await again.events("one")] == ["R0", "R1", "R2", "R3"]
    await again.close()


async def test_old_rows_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "KEEP_ROWS", 50)
    monkeypatch.setattr(records, "PRUNE_EVERY", 10)
    book = Records(f"sqlite:///{tmp_path / 'records.db'}")
    await book.open()
    for number in range(300):
        book.add(event(number))
        if number % 20 == 0:
            await desks.until(lambda: not book._waiting)
    await desks.until(lambda: not book._waiting)
    found = await book.events("one")
    assert len(found) <= 80
    assert found[-1].reason == "R299"
    await book.close()


async def test_what_cannot_be_written_waits_in_bounds_and_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_WAITING", 5)
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    book = Records(f"sqlite:///{blocked / 'records.db'}")
    await book.open()
    for number in range(9):
        book.add(event(number))
    await desks.until(lambda: book.problem)
    assert [row.reason for row in await book.events("one")] == ["R4", "R5", "R6", "R7", "R8"]
    blocked.unlink()
    await desks.until(lambda: book.problem is None)
    assert len(await book.events("one")) == 5
    await book.close()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("token 12345 was used", "token *** was used"),
        ("-e WANDB_API_KEY=xyz -e N=5", "-e WANDB_API_KEY=*** -e N=5"),
        ("password: hunter2, user: me", "password: ***, user: me"),
        ("It waits for 2 GPUs.", "It waits for 2 GPUs."),
    ],
)
def test_secrets_are_taken_out(text: str, shown: str) -> None:
    assert redacted(text) == shown


async def test_who_did_what_is_audited_without_tokens(tmp_path: Path) -> None:
    async with desks.running(tmp_path) as service:
        alice = service.client()
        await alice.call(calls.submit(desks.spec("one", environment={"API_KEY": "s3cret"})))
        await alice.call(calls.delete("team-a", "one"))
        for _ in range(3):
            with pytest.raises(Unauthorized):
                await service.client("guess").call(calls.whoami())
    database = sqlite3.connect(tmp_path / "records.db")
    rows = database.execute("select user, action, outcome, subject from audit order by id").fetchall()
    assert rows == [("alice", "submit", "done", "one"), ("alice", "delete", "done", "one"), ("?", "login", "refused", "127.0.0.1")]
    database.close()
    assert b"s3cret" not in (tmp_path / "records.db").read_bytes()
    assert b"guess" not in (tmp_path / "records.db").read_bytes()


async def test_an_audit_row_never_blocks(tmp_path: Path) -> None:
    book = Records("sqlite:////dev/full/x/records.db")
    await book.open()
    for number in range(1000):
        book.add(Audit(float(number), "alice", "submit"))
    await desks.until(lambda: book.problem)
    await book.close()


async def test_what_is_being_written_when_the_service_ends_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Records(f"sqlite:///{tmp_path}/records.db")
    write, begun = book._write, threading.Event()

    def slowly(rows: Sequence[Event | Audit]) -> None:
        begun.set()
        time.sleep(0.3)  # a slow disk: the service ends meanwhile
        write(rows)

    monkeypatch.setattr(book, "_write", slowly)
    await book.open()
    book.add(Audit(1.0, "alice", "submit"))
    await asyncio.to_thread(begun.wait, 10)
    book.add(Audit(2.0, "alice", "delete"))
    await book.close()
    actions = sqlite3.connect(tmp_path / "records.db").execute("select action from audit order by id").fetchall()
    assert actions == [("submit",), ("delete",)]
