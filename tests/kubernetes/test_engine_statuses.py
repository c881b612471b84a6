"""Statuses while much happens: what is not written yet, what a hand writes."""

from __future__ import annotations

import pytest
from engine_world import eventually
from hotdesk_scheduler.core.model import GpuRequest, Phase
from hotdesk_scheduler.engines.kubernetes import turns
from hotdesk_scheduler.engines.kubernetes.turns import Rank
from kube_world import Kube


@pytest.fixture
def endless_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statuses that nobody waits for are never written."""
    monkeypatch.setattr(turns, "CALM_S", 1000.0)
    monkeypatch.setitem(turns.TRICKLE_S, Rank.STATUS, 1000.0)


@pytest.mark.usefixtures("endless_burst")
async def test_in_a_burst_the_next_leader_knows_what_was_done_and_what_failed_before_the_last_attempt(kube: Kube) -> None:
    batch, flaky = await kube.submit("batch", completions=3), await kube.submit("flaky")
    for attempt in range(2):
        for one, code in ((batch, 0), (flaky, 1)):
            await kube.run(one)
            await kube.end(one, code=code)
            await eventually(lambda one=one, attempt=attempt: sum(counted(kube, one)) == attempt + 1)  # type: ignore[misc]  # bound now
            await kube.engine.requeue_pod(one, 0)
    for one in (batch, flaky):
        await kube.run(one)
    assert (counted(kube, batch), counted(kube, flaky)) == ((2, 0), (0, 2))
    await kube.kill()
    await kube.take_over()
    assert (counted(kube, batch), counted(kube, flaky)) == ((2, 0), (0, 2))
    assert {kube.pod(one).attempt for one in (batch, flaky)} == {2}


def counted(kube: Kube, workload_id: str) -> tuple[int, int]:
    found = kube.engine._book.entry(workload_id).workload
    return found.succeeded, found.failures


async def test_what_a_hand_writes_into_a_status_is_overwritten(kube: Kube) -> None:
    job = await kube.submit("job", gpu=GpuRequest(whole=1))
    await kube.run(job)
    await kube.status("job", lambda status: status["status"] == "Running")
    for _ in range(3):
        await kube.api.merge(
            f"{kube.resource_path('job')}/status", {"status": {"status": "Failed", "phase": "failed", "message": "by hand"}}
        )
        await kube.status("job", lambda status: status["status"] == "Running" and status["phase"] == "active")
    assert kube.engine._book.entry(job).workload.phase is Phase.ACTIVE
