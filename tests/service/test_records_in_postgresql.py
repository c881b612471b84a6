"""Events, audit and past use in a real PostgreSQL, where one is installed: it is stricter than SQLite."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import desks
import psycopg
import pytest
from hotdesk_api.errors import Unavailable
from hotdesk_scheduler.records import Audit, Event, PastUse, Records

_NOBODY = 65534


def _program(name: str) -> str:
    found = shutil.which(name) or next(map(str, sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))), None)
    if found is None:
        pytest.skip(f"no PostgreSQL here ({name}): on Debian apt install postgresql")
    return found


@pytest.fixture
def database() -> Iterator[str]:
    """The URL of a server of its own, which listens in its folder alone. It refuses to run as root."""
    initdb, server = _program("initdb"), _program("postgres")
    who = {"user": _NOBODY, "group": _NOBODY, "extra_groups": ()} if os.getuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="hotdesk-pg-"))
    try:
        if who:
            os.chown(folder, _NOBODY, _NOBODY)
        made = [initdb, "-D", str(folder / "data"), "-U", "hotdesk", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(made, check=True, capture_output=True, cwd=folder, **who)  # type: ignore[call-overload]  # who it runs as
        command = [server, "-D", str(folder / "data"), "-k", str(folder), "-c", "listen_addresses=", "-F"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, **who)  # type: ignore[call-overload]  # as above
        try:
            _until_it_answers(folder)
            yield f"postgresql://hotdesk@/postgres?host={folder}"
        finally:
            process.send_signal(signal.SIGINT)  # it does not wait for who is connected
            process.wait(60)
    finally:
        shutil.rmtree(folder)


def _until_it_answers(folder: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(host=str(folder), user="hotdesk", dbname="postgres").close()
            return
        except psycopg.OperationalError:
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)


async def test_what_is_kept_comes_back_to_the_next_scheduler_even_if_a_name_is_too_long_for_it(database: str) -> None:
    book = Records(database)
    await book.open()
    book.add(
        Event(at=1.0, reason="R" * 100, message="a\0b " + "m" * 3000, project="team-a", workload="one", workload_id="id-1", user="u\0")
    )
    book.add(Audit(at=2.0, user="a" * 300, action="submit", subject="s" * 300))
    book.add(PastUse(3.0, (("team-a", 5 * 10**12),)))
    await desks.until(lambda: not book._waiting)
    assert book.problem is None
    await book.close()

    again = Records(database)
    await again.open()
    (row,) = await again.events("id-1")
    assert (row.reason, row.message[:4], row.user) == ("R" * 60, "ab m", "u")
    assert await again.past_use() == PastUse(3.0, (("team-a", 5 * 10**12),))
    await again.close()


async def test_database_that_nothing_here_speaks_to_is_named_and_work_goes_on() -> None:
    book = Records("mysql+nothing_of_the_kind://hotdesk@db/hotdesk")
    await book.open()
    book.add(Event(at=1.0, reason="Started", message="It started.", workload_id="id-1"))
    await desks.until(lambda: book.problem)
    assert [row.reason for row in await book.events("id-1")] == ["Started"]
    await book.close()
    missing = Records("mysql+mysqldb://hotdesk@db/hotdesk")
    with pytest.raises(Unavailable, match=r"mysql\+mysqldb is not installed here"):
        await missing.past_use()
    await missing.close()
