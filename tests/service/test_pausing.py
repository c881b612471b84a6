"""An admin pauses scheduling over REST and lets it go on; it stays paused over a restart."""

from __future__ import annotations

from pathlib import Path

import desks
import pytest
from hotdesk_api import calls
from hotdesk_api.errors import Refused
from hotdesk_scheduler.service.pausing import Pause, Pausing


async def test_an_admin_pauses_and_resumes_and_who_waits_is_told(tmp_path: Path) -> None:
    async with desks.running(tmp_path) as service:
        root, alice = service.client("admin-token"), service.client()
        said = await root.call(calls.pause("the switches are replaced"))
        assert (said.paused, said.by) == (True, "root")
        await alice.call(calls.submit(desks.spec("job")))
        await desks.until(lambda: service.desk.loop.told)
        reason = (await alice.call(calls.workload("team-a", "job"))).reason
        assert reason is not None
        assert reason.code == "paused"
        assert "paused by root since" in reason.sentence
        assert "(the switches are replaced)" in reason.sentence
        assert (await alice.call(calls.scheduling())).sentence == reason.sentence
        assert reason.sentence in (await alice.call(calls.why("team-a", "job"))).sentence
        assert not (await root.call(calls.resume_scheduling())).paused
        await desks.until(lambda: service.engine.find(service.engine.snapshot().workloads[0].id).pods[0].placement)


async def test_only_admins_pause(tmp_path: Path) -> None:
    async with desks.running(tmp_path) as service:
        with pytest.raises(Refused):
            await service.client().call(calls.pause())
        assert not (await service.client().call(calls.scheduling())).paused


async def test_a_pause_said_twice_is_the_first_one(tmp_path: Path) -> None:
    async with desks.running(tmp_path) as service:
        root = service.client("admin-token")
        first = await root.call(calls.pause("one"))
        assert await root.call(calls.pause("two")) == first


async def test_a_pause_is_read_back_from_its_file_and_is_gone_when_it_was_resumed(tmp_path: Path) -> None:
    file, engine = tmp_path / "paused", desks.fake_engine()
    await Pausing(engine, file).set(Pause("ann", 1_000_000.0, "why not"))
    again = Pausing(engine, file)
    reason = await again.recall()
    assert again.now == Pause("ann", 1_000_000.0, "why not")
    assert reason is not None
    assert reason.sentence.startswith("Scheduling is paused by ann since 1970-01-12 13:46 UTC (why not)")
    await again.set(None)
    assert await Pausing(engine, file).recall() is None


async def test_a_file_that_says_nothing_readable_is_no_pause(tmp_path: Path) -> None:
    for text in ("[3]", '{"by": "ann", "at": "noon"}', '{"by": "ann", "at": 1e30}'):
        (tmp_path / "paused").write_text(text)
        pausing = Pausing(desks.fake_engine(), tmp_path / "paused")
        assert await pausing.recall() is None
        assert pausing.now is None
