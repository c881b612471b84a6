"""`make down` without a scheduler: every pod ends with its grace, the next start knows it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest
from engine_world import Local, half
from hotdesk_api.errors import Conflict
from hotdesk_scheduler.core.model import GpuRequest, Kind, PodState
from hotdesk_scheduler.engines.local.shutdown import stop_everything


async def test_everything_is_stopped_and_written_down(local: Local) -> None:
    jobs = [await local.submit(f"job{number}", gpu=GpuRequest(millis=500)) for number in range(3)]
    desk = await local.submit("desk", kind=Kind.WORKSPACE, image="")
    for number, workload_id in enumerate(jobs):
        await local.run(workload_id, placement=half(f"g{number}"))
    await local.start(desk)
    await local.engine.report_pod(desk, 0, PodState.RUNNING, 1.0)
    await local.submit("waits")
    await local.engine.close()
    assert await asyncio.to_thread(stop_everything, local.state_dir) == 4
    assert not [
        process for process in psutil.process_iter(["cmdline"]) if str(local.directory) in " ".join(process.info["cmdline"] or ())[10:]
    ]
    await local.restart_after_close()
    for workload_id in [*jobs, desk]:
        pod = local.pod(workload_id)
        assert pod.state is PodState.STOPPED
        assert pod.stop_reason is not None
        assert "shut down" in pod.stop_reason.sentence
    assert local.pod("id-waits").state is PodState.PENDING


async def test_nothing_is_stopped_under_a_scheduler_that_runs(local: Local) -> None:
    workload_id = await local.submit("job")
    await local.run(workload_id)
    with pytest.raises(Conflict, match="pid"):
        await asyncio.to_thread(stop_everything, local.state_dir)
    assert local.pod(workload_id).state is PodState.RUNNING


def test_where_there_never_was_a_scheduler_nothing_happens(tmp_path: Path) -> None:
    assert stop_everything(tmp_path / "state") == 0
    assert not (tmp_path / "state").exists()
