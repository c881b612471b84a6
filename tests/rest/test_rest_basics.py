"""The thin line through everything: a job is submitted, runs, is listed, read and deleted."""

from __future__ import annotations

from pathlib import Path

import desks
import pytest
from hotdesk_api import calls
from hotdesk_api.errors import NotFound


async def test_a_job_is_submitted_runs_is_listed_and_deleted(tmp_path: Path) -> None:
    async with desks.running(tmp_path) as service:
        alice = service.client()
        made = await alice.call(calls.submit(desks.spec("hyper1")))
        assert (made.name, made.user, made.type, made.status) == ("hyper1", "alice", "Train", "Pending")
        await desks.until_status(alice, "hyper1", "Running")
        listed = await alice.call(calls.workloads(project="team-a"))
        assert [(item.name, item.gpu_millis_allocated) for item in listed.items] == [("hyper1", 1000)]
        await alice.call(calls.delete("team-a", "hyper1"))
        await desks.until(lambda: not service.desk.engine.snapshot().workloads)
        with pytest.raises(NotFound):
            await alice.call(calls.workload("team-a", "hyper1"))


async def test_it_answers_below_the_hubs_prefix_too(tmp_path: Path) -> None:
    async with desks.running(tmp_path) as service:
        me = await service.client(url=service.url + "/services/hotdesk").call(calls.whoami())
        assert (me.name, me.projects, me.default_project) == ("alice", ["team-a"], "team-a")
