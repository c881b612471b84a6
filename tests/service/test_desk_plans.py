"""What a plan for a spec that is not submitted says: on which GPUs it would start."""

from __future__ import annotations

from pathlib import Path

import pytest
import scheduler_fixture
from hotdesk_api import calls, models


def spec(name: str, gpu_millis: int) -> models.WorkloadSpec:
    return models.WorkloadSpec(name=name, project="team-a", image="ubuntu", command=["sleep", "infinity"], gpu_millis=gpu_millis)


@pytest.mark.slow
def test_a_dry_run_names_the_gpus_it_would_start_on(tmp_path: Path) -> None:
    with scheduler_fixture.scheduler(tmp_path) as running:
        client = running.client()
        client.call(calls.submit(spec("two", 2000)))
        client.call(calls.submit(spec("half", 500)))
        for _ in client.events(project="team-a", workload="half"):
            if client.call(calls.workload("team-a", "half")).status == "Running":
                break
        (device,) = client.call(calls.workload("team-a", "half")).pods[0].devices
        joins = client.call(calls.what_if(spec("joins", 300)))
        assert joins.gpus == f"0.3 of GPU {device.index}"
        assert joins.sentence == f"Starts now on {joins.node} (0.3 of GPU {device.index})."
        taken = {d.index for name in ("two", "half") for d in client.call(calls.workload("team-a", name)).pods[0].devices}
        whole = client.call(calls.what_if(spec("whole", 2000)))
        free = [index for index in range(8) if index not in taken][:2]
        assert whole.gpus == f"GPUs {free[0]}, {free[1]}"
        client.call(calls.submit(spec("whole", 2000)))
        for _ in client.events(project="team-a", workload="whole"):
            if client.call(calls.workload("team-a", "whole")).status == "Running":
                break
        assert [d.index for d in client.call(calls.workload("team-a", "whole")).pods[0].devices] == free
