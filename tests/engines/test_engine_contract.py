"""The engine contract, the same for every engine (engines/base.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_world import NODE, RECLAIMED, World, eventually, half, heard
from hotdesk_api.errors import Conflict, HotdeskError, NotFound
from hotdesk_api.models import WorkloadSpec
from hotdesk_scheduler.core.model import Department, GpuRequest, Kind, Phase, Placement, PodState, Project
from hotdesk_scheduler.core.reasons import Reason, ReasonCode


async def test_what_was_submitted_is_in_the_snapshot(world: World) -> None:
    before = world.engine.snapshot().version
    workload_id = await world.submit("job")
    after = world.engine.snapshot()
    assert after.version > before
    assert [one.name for one in after.workloads] == ["job"]
    assert world.engine.spec(workload_id).name == "job"


async def test_a_workload_is_found_by_its_id_as_the_snapshot_has_it(world: World) -> None:
    workload_id = await world.submit("job")
    assert world.engine.find(workload_id) is world.engine.snapshot().workloads[0]
    assert world.engine.find("nobody") is None


async def test_an_unchanged_engine_gives_the_same_snapshot(world: World) -> None:
    await world.submit("job")
    assert world.engine.snapshot() is world.engine.snapshot()


async def test_a_name_is_taken_only_once_in_a_project(world: World) -> None:
    await world.submit("job")
    twin = world.workload("job")
    with pytest.raises(Conflict, match="job"):
        await world.engine.submit(replace(twin, id="id-other"), WorkloadSpec(name="job", project="team-a", image="bash"))


async def test_submitting_the_same_workload_twice_is_once(world: World) -> None:
    workload_id = await world.submit("job")
    await world.submit("job")
    assert [one.id for one in world.engine.snapshot().workloads] == [workload_id]


async def test_an_unknown_workload_is_not_found(world: World) -> None:
    with pytest.raises(NotFound):
        world.engine.spec("nobody")
    with pytest.raises(HotdeskError):
        await world.engine.start_pod("nobody", 0, Placement(NODE), 1.0)


async def test_projects_and_departments_come_and_go(world: World) -> None:
    await world.engine.put_department(Department("physics"))
    await world.engine.put_project(Project("team-b", department="physics"))
    snapshot = world.engine.snapshot()
    assert {one.name for one in snapshot.projects} == {"team-a", "team-b"}
    assert [one.name for one in snapshot.departments] == ["physics"]
    await world.engine.delete_project("team-b")
    await world.engine.delete_project("team-b")
    await world.engine.delete_department("physics")
    snapshot = world.engine.snapshot()
    assert {one.name for one in snapshot.projects} == {"team-a"}
    assert snapshot.departments == ()


async def test_first_projects_are_made_once_where_there_is_none(world: World) -> None:
    first = [Project("team-b"), Project("team-c")]
    assert await world.engine.seed_projects(first) == []
    await world.engine.delete_project("team-a")
    assert await world.engine.seed_projects(first) == ["team-b", "team-c"]
    await world.engine.delete_project("team-c")
    assert await world.engine.seed_projects(first) == []
    assert [one.name for one in world.engine.snapshot().projects] == ["team-b"]


async def test_a_pod_starts_runs_and_succeeds(world: World) -> None:
    workload_id = await world.submit("job", gpu=GpuRequest(millis=500))
    await world.start(workload_id, placement=half())
    assert world.pod(workload_id).state in (PodState.STARTING, PodState.RUNNING)
    running = await world.until(workload_id, PodState.RUNNING)
    assert running.placement == half()
    assert running.started_at
    await world.end(workload_id)
    ended = await world.until(workload_id, PodState.SUCCEEDED)
    assert ended.exit_code == 0
    assert ended.ended_at is not None


async def test_a_pod_that_fails_is_counted_with_its_exit_code(world: World) -> None:
    workload_id = await world.submit("job")
    await world.run(workload_id)
    await world.end(workload_id, code=3)
    assert (await world.until(workload_id, PodState.FAILED)).exit_code == 3
    workload = world.find(workload_id)
    assert workload is not None
    assert workload.failures == 1


async def test_completions_are_counted_and_the_next_one_starts(world: World) -> None:
    workload_id = await world.submit("sweep", kind=Kind.HPO, completions=2)
    await world.run(workload_id)
    await world.end(workload_id)
    await world.until(workload_id, PodState.SUCCEEDED)
    await world.engine.requeue_pod(workload_id, 0)
    workload = world.find(workload_id)
    assert workload is not None
    assert workload.succeeded == 1
    assert world.pod(workload_id).state is PodState.PENDING
    await world.run(workload_id)


async def test_starting_twice_starts_once(world: World) -> None:
    workload_id = await world.submit("job")
    await world.start(workload_id)
    await world.start(workload_id, placement=Placement("dgx1-2"))
    placement = (await world.until(workload_id, PodState.RUNNING)).placement
    assert placement == Placement(NODE)


async def test_a_stopped_pod_releases_its_place_and_says_why(world: World) -> None:
    workload_id = await world.submit("job")
    await world.run(workload_id)
    await world.stop(workload_id)
    await world.stop(workload_id)
    stopped = await world.until(workload_id, PodState.STOPPED)
    assert stopped.stop_reason == RECLAIMED
    assert stopped.release_deadline is None


async def test_a_stopped_pod_waits_again_under_its_next_attempt(world: World) -> None:
    workload_id = await world.submit("job")
    await world.run(workload_id)
    await world.stop(workload_id)
    await world.until(workload_id, PodState.STOPPED)
    await world.engine.requeue_pod(workload_id, 0)
    await world.engine.requeue_pod(workload_id, 0)
    pod = world.pod(workload_id)
    assert (pod.state, pod.attempt, pod.placement, pod.stop_reason) == (PodState.PENDING, 1, None, RECLAIMED)
    await world.run(workload_id)


async def test_stopping_what_does_not_run_does_nothing(world: World) -> None:
    workload_id = await world.submit("job")
    await world.stop(workload_id)
    assert world.pod(workload_id).state is PodState.PENDING


async def test_a_nomination_is_kept_until_the_pod_starts(world: World) -> None:
    workload_id = await world.submit("job", gpu=GpuRequest(millis=500))
    await world.engine.nominate(workload_id, 0, half())
    assert world.pod(workload_id).nominated == half()
    await world.run(workload_id, placement=half())
    assert world.pod(workload_id).nominated is None


async def test_suspended_and_resumed_a_pod_waits_again(world: World) -> None:
    workload_id = await world.submit("job")
    await world.run(workload_id)
    reason = Reason(ReasonCode.SUSPENDED, "ada suspended it.")
    await world.engine.set_phase(workload_id, Phase.SUSPENDED, reason, 10.0)
    assert world.pod(workload_id).state is PodState.RUNNING
    await world.stop(workload_id)
    await world.until(workload_id, PodState.STOPPED)
    await world.engine.set_phase(workload_id, Phase.ACTIVE, None, 20.0)
    workload = world.find(workload_id)
    assert workload is not None
    assert (workload.phase, workload.phase_reason, world.pod(workload_id).state) == (Phase.ACTIVE, None, PodState.PENDING)


async def test_a_final_phase_has_its_time(world: World) -> None:
    workload_id = await world.submit("job")
    await world.engine.set_phase(workload_id, Phase.FAILED, None, 12.0)
    workload = world.find(workload_id)
    assert workload is not None
    assert (workload.phase, workload.finished_at) == (Phase.FAILED, 12.0)


async def test_a_forgotten_workload_is_gone_and_its_name_free(world: World) -> None:
    workload_id = await world.submit("job")
    await world.engine.forget(workload_id)
    await world.engine.forget(workload_id)
    assert world.find(workload_id) is None
    assert await world.submit("job") == workload_id


async def test_a_workspace_is_granted_and_then_lives_by_reports(world: World) -> None:
    workload_id = await world.submit("desk", kind=Kind.WORKSPACE, gpu=GpuRequest(millis=500), image="")
    await world.start(workload_id, placement=half())
    assert world.pod(workload_id).state is PodState.STARTING
    assert world.engine.details(workload_id, 0).devices
    await world.engine.report_pod(workload_id, 0, PodState.RUNNING, 5.0)
    assert world.pod(workload_id).state is PodState.RUNNING
    await world.stop(workload_id)
    assert world.pod(workload_id).state is PodState.RELEASING
    await world.engine.report_pod(workload_id, 0, PodState.RUNNING, 6.0)
    assert world.pod(workload_id).state is PodState.RELEASING
    await world.engine.report_pod(workload_id, 0, PodState.SUCCEEDED, 7.0, 0)
    assert world.pod(workload_id).state is PodState.STOPPED


async def test_a_workspace_that_fails_by_itself_has_failed(world: World) -> None:
    workload_id = await world.submit("desk", kind=Kind.WORKSPACE, image="")
    await world.start(workload_id)
    await world.engine.report_pod(workload_id, 0, PodState.FAILED, 7.0, 1)
    pod = world.pod(workload_id)
    assert (pod.state, pod.exit_code) == (PodState.FAILED, 1)


async def test_every_change_is_told_to_every_listener(world: World) -> None:
    first, second = await heard(world.engine), await heard(world.engine)
    workload_id = await world.submit("job")
    await world.run(workload_id)
    await world.end(workload_id)
    await world.until(workload_id, PodState.SUCCEEDED)
    await eventually(lambda: any(change.kind == "exited" for change in first), "the end being told")
    kinds = [change.kind for change in first]
    assert kinds.index("submitted") < kinds.index("started") < kinds.index("exited")
    await eventually(lambda: second == first, "both listeners hearing the same")


async def test_unknown_node_types_are_refused_with_the_valid_ones(world: World) -> None:
    with pytest.raises(HotdeskError, match="quantum"):
        await world.engine.check(WorkloadSpec(name="job", project="team-a", image="bash", node_type="quantum"))


async def test_a_command_runs_inside_a_running_pod_only(world: World) -> None:
    workload_id = await world.submit("job")
    with pytest.raises(Conflict):
        await world.engine.exec(workload_id, 0, ["echo", "hello"], tty=False)
    await world.run(workload_id)
    session = await world.engine.exec(workload_id, 0, ["echo", "hello"], tty=False)
    item = await session.read()
    assert item is not None
    assert b"hello" in item[1]
    await session.write(b"")
    assert await session.wait() == 0
    await session.close()
