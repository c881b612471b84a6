"""Past use in the service: looked at now and then, kept over restarts, shown where it counts."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import desks
import pytest
from builders import World, node, q
from hotdesk.render.cluster import weight
from hotdesk_api import calls
from hotdesk_api.models import ProjectOut
from hotdesk_scheduler import serve, settings
from hotdesk_scheduler.core.model import Policy
from hotdesk_scheduler.records import PastUse, Records
from hotdesk_scheduler.service.past import STEP_S, Past
from seats import RUNAI

GPU = 1_000_000_000
DAY_S = 86_400.0


def one_project_on_two_gpus() -> World:
    world = World(node(gpus=4), a=q(0, 1), b=q(0, 1))
    world.runs("a", 2)
    return world


def test_what_is_held_becomes_past_use() -> None:
    world, past = one_project_on_two_gpus(), Past(half_life_s=DAY_S)
    assert past.look(world.snapshot(), 0.0) == ()
    assert past.look(world.snapshot(), STEP_S - 1) == ()
    assert past.look(world.snapshot(), DAY_S) == (("a", GPU),)


def test_it_is_the_same_however_often_somebody_looks() -> None:
    world = one_project_on_two_gpus()
    seldom, often = Past(half_life_s=DAY_S), Past(half_life_s=DAY_S)
    for hour in (0, 24):
        seldom.look(world.snapshot(), hour * 3600.0)
    for minute in range(24 * 60 + 1):
        often.look(world.snapshot(), minute * 60.0)
    assert dict(often.look(world.snapshot(), DAY_S))["a"] == pytest.approx(dict(seldom.usage)["a"], rel=1e-4)


def test_a_clock_that_goes_back_neither_adds_nor_takes() -> None:
    world, past = one_project_on_two_gpus(), Past(half_life_s=DAY_S)
    past.restore(1000.0, (("a", GPU),))
    assert past.look(world.snapshot(), 500.0) == (("a", GPU),)
    assert past.look(world.snapshot(), 510.0) == (("a", GPU),)


def test_what_was_kept_and_could_not_be_read_at_first_is_added_and_not_written_over() -> None:
    """a had used a GPU when the service stopped; a day without running, one of two halves of it seen before the database answers."""
    kept: list[tuple[float, object]] = []
    world, past = one_project_on_two_gpus(), Past(half_life_s=DAY_S, keep=lambda at, usage: kept.append((at, usage)))
    for at in (DAY_S, 2 * DAY_S):
        past.look(world.snapshot(), at)
    assert kept == []
    past.restore(DAY_S, (("a", GPU), ("b", 2 * GPU)))
    assert past.usage == (("a", GPU * 3 // 2), ("b", GPU))
    past.look(world.snapshot(), 3 * DAY_S)
    assert kept == [(3 * DAY_S, (("a", GPU * 7 // 4), ("b", GPU // 2)))]


def test_where_nothing_was_ever_kept_it_is_kept_from_the_first_look() -> None:
    kept: list[float] = []
    world, past = one_project_on_two_gpus(), Past(half_life_s=DAY_S, keep=lambda at, usage: kept.append(at))
    past.nothing_before()
    past.look(world.snapshot(), 0.0)
    past.look(world.snapshot(), DAY_S)
    assert kept == [DAY_S]


async def test_a_service_whose_database_cannot_be_read_at_its_start_takes_up_the_past_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotdesk_scheduler.service.desk.FIRST_BACK_OFF_S", 0.01)
    book = Records(f"sqlite:///{tmp_path / 'there' / 'records.db'}")
    await book.open()
    book.add(PastUse(time.time(), (("team-a", 5 * GPU),)))
    await book.close()
    away = tmp_path / "away"
    (tmp_path / "there").rename(away)
    (tmp_path / "there").write_text("a file where the folder should be")
    url = f"sqlite:///{tmp_path / 'there' / 'records.db'}"
    async with desks.running(tmp_path, policy=Policy(history_weight=0.4), records_url=url) as running:
        past = running.desk.past
        assert past is not None
        assert dict(past.usage) == {}
        (tmp_path / "there").unlink()
        away.rename(tmp_path / "there")
        await desks.until(lambda: bool(past.usage))
        assert [name for name, _ in past.usage] == ["team-a"]


async def test_it_is_kept_and_read_back(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'records.db'}"
    book = Records(url)
    await book.open()
    assert await book.past_use() is None
    for at in (1.0, 2.0):
        book.add(PastUse(at, (("a", int(at)), ("b", 90_000 * GPU))))
    book.add(PastUse(3.0, (("b", 7),)))
    await book.close()
    again = Records(url)
    assert await again.past_use() == PastUse(3.0, (("b", 7),))
    await again.close()


def typed(home: Path, url: str, *words: str) -> str:
    """What `runai WORDS` says to alice."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "HOTDESK_API_URL": url, "HOTDESK_TOKEN": "alice-token"}
    return subprocess.run([*RUNAI, *words], env=environment, capture_output=True, text=True, check=True, timeout=120).stderr


async def test_a_service_that_starts_again_remembers_and_shows_what_the_weight_is_now(tmp_path: Path) -> None:
    policy = Policy(grace_s=0, history_weight=0.4)
    book = Records(f"sqlite:///{tmp_path / 'records.db'}")
    await book.open()
    book.add(PastUse(time.time(), (("team-a", GPU),)))
    await book.close()
    async with desks.running(tmp_path, policy=policy) as running:
        admin = running.client("admin-token")
        for project in desks.projects(team_a=0, team_b=0):
            await running.engine.put_project(replace(project, weight=1000))
            for number in range(3):
                await admin.call(calls.submit(desks.spec(f"job-{number}", project=project.name, gpus=8)))
        await desks.until(lambda: bool(running.desk.loop.weights))
        found = {project.name: project for project in (await admin.call(calls.projects())).items}
        assert found["team-a"].gpu_over_quota_weight_now == 600
        assert found["team-b"].gpu_over_quota_weight_now == 1400
        said = await asyncio.to_thread(typed, tmp_path, running.url, "config", "project", "team-a")
        assert "Its over-quota weight is 1, now 0.6 because of past use.\n" in said
        assert said.splitlines()[-1] in await asyncio.to_thread(typed, tmp_path, running.url, "config", "project")


def test_the_settings_reach_the_policy() -> None:
    chosen = replace(settings.Settings(), history_weight=0.25)
    assert serve.policy(chosen).history_weight == 0.25
    assert serve.policy(settings.Settings()).history_weight == 0


def test_the_weight_is_shown_as_it_is_now_only_where_past_use_changed_it() -> None:
    project = ProjectOut(
        name="a", gpu_quota_millis=4000, gpu_limit_millis=None, gpu_over_quota_weight=1000, gpu_millis_allocated=0,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    assert weight(project) == "1"
    assert weight(project.model_copy(update={"gpu_over_quota_weight_now": 1000})) == "1"
    assert weight(project.model_copy(update={"gpu_over_quota_weight_now": 600})) == "1, now 0.6 because of past use"
    unwritten = project.model_copy(update={"gpu_over_quota_weight": None, "gpu_over_quota_weight_now": 600})
    assert weight(unwritten) == "4, now 0.6 because of past use"
