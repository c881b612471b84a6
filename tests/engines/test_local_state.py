"""The state's database: read back as it was written, only what changed is written, a thousand workloads cost little."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa
from engine_world import Local, half
from hotdesk_api.models import WorkloadSpec
from hotdesk_scheduler.core.model import (
    Department,
    GpuRequest,
    Kind,
    Pod,
    PodRequest,
    PodState,
    Project,
    Quota,
    Toleration,
    Workload,
)
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines.local.processes import ProcessId
from hotdesk_scheduler.engines.local.runs import Held, Run
from hotdesk_scheduler.engines.local.state import Batch, State


def _state(tmp_path: Path) -> State:
    state = State(tmp_path / "state.db")
    state.open()
    return state


def _write(state: State, batch: Batch) -> None:
    state.write(batch)
    state.apply(batch)


def _workload(number: int = 1) -> Workload:
    pod = Pod(
        0, PodRequest(GpuRequest(millis=500), cpu_millis=250), PodState.RUNNING, half(), started_at=2.5,
        stop_reason=Reason(ReasonCode.RECLAIMED, "For team-b.", (("by", "b1"), ("gpus", 2))),
    )  # fmt: skip
    return Workload(
        id=f"id{number}", name=f"job-{number}", project="team-a", kind=Kind.HPO, user="ada", pods=(pod, Pod(1, PodRequest())),
        created_at=1.25, completions=4, tolerations=(Toleration(key="a", operator="Exists"),), node_pools=("x", "y"),
    )  # fmt: skip


def test_everything_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    state = _state(tmp_path)
    workload, spec = (
        _workload(),
        WorkloadSpec(name="job-1", project="team-a", image="bash", args=["ü", "\udcff".encode("utf-8", "replace").decode()]),
    )
    run = Run("token", "n", "boot", devices=(Held(3, 500, "g"),), ports=((8888, 41000),), shim=ProcessId(5, 6, "boot"))
    project = Project("team-a", gpu=Quota(4000, None), weight=2000, train_node_types=("dgx1",))
    _write(state, Batch({workload.id: workload}, {workload.id: spec}, {(workload.id, 0): run}, {"team-a": project}, {"d": Department("d")}))
    state.close()
    again = _state(tmp_path)
    assert again.workloads == {workload.id: workload}
    assert again.specs[workload.id].model_dump() == spec.model_dump()
    assert again.runs == {(workload.id, 0): run}
    assert again.projects == {"team-a": project}
    assert again.departments == {"d": Department("d")}
    assert again.version == state.version == 1
    again.close()


def test_what_is_gone_is_gone_after_a_restart(tmp_path: Path) -> None:
    state = _state(tmp_path)
    workload = _workload()
    _write(state, Batch({workload.id: workload}, {workload.id: WorkloadSpec(name="job-1", project="team-a")}, projects={"p": Project("p")}))
    _write(state, Batch({workload.id: replace(workload, pods=workload.pods[:1])}))
    assert _reopened(state).workloads[workload.id].pods == workload.pods[:1]
    _write(state, Batch({workload.id: None}, projects={"p": None}))
    again = _reopened(state)
    assert (again.workloads, again.projects, again.runs) == ({}, {}, {})


def _reopened(state: State) -> State:
    again = State(state.path)
    again.open()
    again.close()
    return again


def test_only_rows_that_changed_are_written(tmp_path: Path) -> None:
    state = _state(tmp_path)
    workload = _workload()
    _write(state, Batch({workload.id: workload}, {workload.id: WorkloadSpec(name="job-1", project="team-a")}))
    written: list[str] = []
    assert state._database is not None
    sa.event.listen(state._database, "before_cursor_execute", lambda *event: written.append(str(event[2]).split("(")[0].strip()))
    changed = replace(workload, pods=(workload.pods[0], replace(workload.pods[1], state=PodState.STARTING)))
    _write(state, Batch({workload.id: changed}))
    assert written == ["INSERT INTO pods", "INSERT INTO facts"]
    state.close()


async def test_a_thousand_workloads_cost_little(local: Local) -> None:
    """Sizes that a slow machine passes too; the figures themselves are `make bench`'s."""
    for number in range(1000):
        await local.submit(f"job-{number}", image="bash", command=["true"])
    began = time.process_time()
    for _ in range(100):
        local.engine.snapshot()
    assert time.process_time() - began < 0.5
    await local.restart()
    assert len(local.engine.snapshot().workloads) == 1000
