"""What a job's own GPUs show as used: `top job` must tell the figures of now, and nobody else's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hotdesk_api.models import WorkloadSpec
from hotdesk_scheduler.core.model import Kind, Node, Placement, Pod, PodRequest, PodState, Share, Workload
from hotdesk_scheduler.engines.base import Device
from hotdesk_scheduler.engines.local import usage
from hotdesk_scheduler.engines.local.grants import Grants
from hotdesk_scheduler.engines.local.runs import Held, Run
from hotdesk_scheduler.engines.local.state import State


class Measured:
    """A machine with one real GPU, whose figures the test sets."""

    simulated = False
    percent = 10.0

    def nodes(self) -> tuple[Node, ...]:
        return (Node("here", gpus=1, gpu_memory_mib=32768),)

    def devices(self, node: str) -> tuple[Device, ...]:
        return (Device(0, "GPU-1", "V100", 32768, False, self.percent, 1000),)


def _running(placement: Placement) -> tuple[Workload, Pod]:
    pod = Pod(0, PodRequest(), PodState.RUNNING, placement)
    return Workload(id="id1", name="job", project="team-a", kind=Kind.TRAIN, user="ada", pods=(pod,), created_at=1.0), pod


@pytest.fixture
def machine() -> Measured:
    return Measured()


def _used(machine: Measured, tmp_path: Path, held: Held) -> list[float | None]:
    state = State(tmp_path / "state.db")
    state.specs["id1"] = WorkloadSpec(project="team-a", image="bash")
    grants = Grants(state, machine, state_dir=tmp_path, log_bytes=1, log_files=1)
    workload, pod = _running(Placement("here", whole=1) if held.millis == 1000 else Placement("here", shares=(Share("g", held.millis),)))
    run = Run("token", "here", "boot", devices=(held,))
    shown = []
    for machine.percent in (10.0, 90.0):
        (device,) = grants.details(workload, pod, run).devices
        shown.append(device.utilisation_percent)
    return shown


def test_a_whole_gpus_figures_are_those_of_now(machine: Measured, tmp_path: Path) -> None:
    assert _used(machine, tmp_path, Held(0, 1000)) == [10.0, 90.0]


def test_what_a_shared_gpu_does_is_not_told_as_one_jobs_own(machine: Measured, tmp_path: Path) -> None:
    assert _used(machine, tmp_path, Held(0, 500, "g")) == [None, None]


def test_simulated_shares_add_up_to_what_their_gpu_shows() -> None:
    device = Device(0, "GPU-SIM-1", "V100", 32768, True)
    (one, pod), (two, _) = _running(Placement("here")), _running(Placement("here"))
    two = replace(two, id="id2", kind=Kind.INTERACTIVE)
    runs = [Run("a", "here", "boot", devices=(Held(0, 500, "g"),)), Run("b", "here", "boot", devices=(Held(0, 300, "g"),))]
    holding = [(one, pod, runs[0]), (two, pod, runs[1])]
    own = [usage.of_pod(workload, pod, run, [device])[0] for workload, pod, run in holding]
    (whole,) = usage.simulated("here", [device], holding)
    assert whole.memory_used_mib == sum(each.memory_used_mib or 0 for each in own)
    assert all(0 < (each.memory_used_mib or 0) <= 32768 * run.millis_of(0) // 1000 for each, run in zip(own, runs, strict=True))
    assert usage.of_pod(one, replace(pod, state=PodState.STARTING), runs[0], [device]) == (device,)
