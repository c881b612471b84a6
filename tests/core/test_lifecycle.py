"""Retries, completions, limits in time, ends and clean-up."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from builders import START, World, node, q
from hotdesk_scheduler.core import lifecycle
from hotdesk_scheduler.core.deadlines import Deadlines
from hotdesk_scheduler.core.model import Kind, Phase, Placement, PodState, Policy
from hotdesk_scheduler.core.plan import Stop
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines import transitions


def one(**more: Any) -> tuple[World, str]:
    """A world with one running job."""
    world = World(node(gpus=2), a=2)
    name = world.asks("a", 1, **more)
    world.settle()
    return world, name


def test_a_job_that_ends_well_has_succeeded() -> None:
    world, name = one()
    world.finish(name)
    world.settle()
    assert world.get(name).phase is Phase.SUCCEEDED
    assert lifecycle.status(world.get(name)) == "Succeeded"


def test_a_failed_train_is_tried_again_after_a_pause_and_says_so() -> None:
    world, name = one()
    world.finish(name, exit_code=3)
    world.settle()
    assert world.pods_running(name) == 0
    assert world.hold(name).code is ReasonCode.BACKING_OFF
    assert "exit code 3" in world.hold(name).sentence
    due = Deadlines().next(world.snapshot(), world.policy, world.now)
    assert due is not None
    world.now = due
    world.settle()
    assert world.pods_running(name) == 1
    assert world.get(name).pods[0].attempt == 1


def test_retries_are_spent_and_then_it_has_failed() -> None:
    world, name = one(backoff_limit=2)
    for _ in range(3):
        world.finish(name, exit_code=1)
        world.settle()
        world.now += 1000
        world.settle()
    found = world.get(name)
    assert found.phase is Phase.FAILED
    assert found.phase_reason is not None
    assert found.phase_reason.code is ReasonCode.RETRIES_SPENT


def test_pauses_double_up_to_five_minutes() -> None:
    world, name = one(backoff_limit=100)
    found = world.get(name)
    pod = replace(found.pods[0], ended_at=0.0)
    pauses = [lifecycle.retry_at(replace(found, failures=n), pod) for n in (1, 2, 3, 6, 50)]
    assert pauses == [10, 20, 40, 300, 300]


def test_pauses_after_starts_that_the_cluster_refuses_double_too_and_begin_anew_after_another_end() -> None:
    world, name = one()
    workload, pod, pauses = world.get(name), world.get(name).pods[0], []
    for _ in range(7):
        why = transitions.start_refused(pod, "Its pod cannot be made.")
        failed = replace(pod, state=PodState.FAILED, ended_at=0.0, stop_reason=why)
        pauses.append(lifecycle.retry_at(transitions.ended(workload, failed, 0.0), failed))
        pod = transitions.started(transitions.again(failed), Placement("n1"), 0.0)
    assert pauses == [10, 20, 40, 80, 160, 300, 300]
    reclaimed = replace(pod, stop_reason=Reason(ReasonCode.RECLAIMED, "For team-b."))
    assert lifecycle.times_refused(replace(pod, stop_reason=transitions.start_refused(reclaimed, "Again."))) == 1


def test_interactive_work_is_not_tried_again() -> None:
    world, name = one(fixed=True)
    world.finish(name, exit_code=137)
    world.settle()
    found = world.get(name)
    assert found.phase is Phase.FAILED
    assert found.phase_reason is not None
    assert "137" in found.phase_reason.sentence


def test_a_lost_pod_is_queued_again() -> None:
    world, name = one()
    world.engine.lose_pod(name, 0)
    world.settle()
    assert world.pods_running(name) == 1
    assert world.get(name).pods[0].attempt == 1
    assert world.get(name).failures == 0


@pytest.mark.parametrize(
    ("state", "exit_code", "phase"),
    [(PodState.STOPPED, 0, Phase.STOPPED), (PodState.FAILED, 1, Phase.FAILED), (PodState.SUCCEEDED, 0, Phase.SUCCEEDED)],
)
def test_a_workspace_ends_with_its_server(state: PodState, exit_code: int, phase: Phase) -> None:
    world, name = one(kind=Kind.WORKSPACE)
    asyncio.run(world.engine.report_pod(name, 0, state, world.now, exit_code))
    world.settle()
    assert world.get(name).phase is phase
    assert world.used("a") == 0


def test_a_lost_workspace_is_stopped_not_started_again() -> None:
    world, name = one(kind=Kind.WORKSPACE)
    world.engine.lose_pod(name, 0)
    world.settle()
    assert world.get(name).phase is Phase.STOPPED


def test_a_grant_that_nobody_takes_up_is_taken_back() -> None:
    world = World(node(gpus=1), policy=Policy(grace_s=0, grant_take_up_s=60), a=1)
    world.engine.runs_workspaces = False
    name = world.asks("a", 1, kind=Kind.WORKSPACE)
    world.cycle()
    assert Deadlines().next(world.snapshot(), world.policy, world.now) == START + 60
    world.now = START + 60
    world.cycle()
    world.engine.runs_workspaces = True
    world.settle()
    found = world.get(name)
    assert found.phase is Phase.STOPPED
    assert found.phase_reason is not None
    assert found.phase_reason.code is ReasonCode.GRANT_NOT_TAKEN_UP


def test_a_time_limit_stops_interactive_work_as_timed_out() -> None:
    world = World(node(gpus=2), a=q(2, interactive_time_limit_s=100.0))
    notebook, train = world.asks("a", 1, fixed=True), world.asks("a", 1)
    world.settle()
    world.now += 100
    world.settle()
    assert world.running() == [train]
    assert lifecycle.status(world.get(notebook)) == "TimedOut"


def test_idle_work_is_stopped_and_unknown_activity_is_not_idle() -> None:
    world = World(node(gpus=2), a=q(2, idle_limit_train_s=60.0))
    idle, unknown = world.asks("a", 1), world.asks("a", 1)
    world.settle()
    world.engine.put_workload(replace(world.get(idle), idle_s=61.0))
    world.settle()
    assert world.running() == [unknown]
    assert world.get(idle).phase is Phase.STOPPED


def test_suspending_stops_and_gives_back_and_resuming_queues_again() -> None:
    world, name = one()
    asyncio.run(world.engine.set_phase(name, Phase.SUSPENDED, None, world.now))
    world.settle()
    assert (lifecycle.status(world.get(name)), world.used("a")) == ("Suspended", 0)
    asyncio.run(world.engine.set_phase(name, Phase.ACTIVE, None, world.now))
    world.settle()
    assert lifecycle.status(world.get(name)) == "Running"


def test_a_deleted_workload_is_forgotten_when_nothing_holds() -> None:
    world, name = one()
    world.delete(name)
    assert lifecycle.status(world.get(name)) == "Deleting"
    world.settle()
    assert world.engine.find(name) is None


def test_a_finished_workload_is_removed_when_its_time_is_over() -> None:
    world, name = one(ttl_after_finish_s=60)
    world.finish(name)
    world.settle()
    due = Deadlines().next(world.snapshot(), world.policy, world.now)
    assert due is not None
    world.now = due
    world.settle()
    assert world.engine.find(name) is None


def test_hpo_pods_are_replaced_until_the_completions_are_done() -> None:
    world = World(node(gpus=4), a=4)
    hpo = world.workload("a", 1, pods=2, min_pods=1, kind=Kind.HPO, parallelism=2, completions=3)
    world.engine.put_workload(hpo)
    world.settle()
    for _ in range(3):
        running = [pod.index for pod in world.get(hpo.name).pods if pod.state is PodState.RUNNING]
        world.finish(hpo.name, running[0])
        world.settle()
    assert world.get(hpo.name).phase is Phase.SUCCEEDED
    assert world.get(hpo.name).succeeded == 3


def test_what_is_left_of_a_gang_stops_when_a_node_is_lost() -> None:
    world = World(node("n1", 1), node("n2", 1), a=2)
    gang = world.asks("a", 1, pods=2)
    world.settle()
    world.engine.lose_node("n1")
    due = lifecycle.review(world.snapshot(), world.policy, world.now)
    reasons = [d.reason.code for d in due if isinstance(d, Stop)]
    assert reasons == [ReasonCode.NODE_LOST]
    world.settle()
    assert world.pods_running(gang) == 0


def test_status_follows_the_pods() -> None:
    world, name = one()
    found = world.get(name)

    def with_state(state: PodState) -> str:
        return lifecycle.status(replace(found, pods=(replace(found.pods[0], state=state),)))

    words = [with_state(s) for s in (PodState.PENDING, PodState.STARTING, PodState.RUNNING, PodState.RELEASING, PodState.LOST)]
    assert words == ["Pending", "ContainerCreating", "Running", "Terminating", "Pending"]
    assert lifecycle.status(replace(found, phase=Phase.STOPPED, phase_reason=Reason(ReasonCode.IDLE_LIMIT, "idle"))) == "Terminating"


def test_the_loop_wakes_when_somebody_has_waited_so_long_that_nodes_are_kept_for_him() -> None:
    world = World(node(gpus=1), policy=Policy(grace_s=0, reserve_after_s=600), a=1, b=1)
    world.asks("a", 1, age_s=0)
    world.cycle()
    world.asks("b", 1, age_s=100)
    assert Deadlines().next(world.snapshot(), world.policy, world.now) == world.now + 500
    assert Deadlines().next(world.snapshot(), Policy(), world.now) is None
    world.now += 500
    assert Deadlines().next(world.snapshot(), world.policy, world.now) is None


def test_who_ran_until_now_has_not_waited_since_it_was_submitted() -> None:
    world = World(node(gpus=1), policy=Policy(grace_s=0, reserve_after_s=600), a=0, b=1)
    lent = world.runs("a", 1, age_s=5000)
    world.asks("b", 1)
    world.settle()
    assert world.pending() == [lent]
    stopped_at = world.get(lent).pods[0].ended_at
    assert stopped_at is not None
    assert lifecycle.waited_long_at(world.get(lent), world.policy) == stopped_at + 600


def test_what_was_suspended_waits_since_it_was_resumed() -> None:
    world = World(node(gpus=1), policy=Policy(grace_s=0, reserve_after_s=600), a=1)
    world.runs("a", 1)
    name = world.asks("a", 1, age_s=5000)
    asyncio.run(world.engine.set_phase(name, Phase.SUSPENDED, None, world.now))
    world.now += 1000
    asyncio.run(world.engine.set_phase(name, Phase.ACTIVE, None, world.now))
    assert lifecycle.waited_long_at(world.get(name), world.policy) == world.now + 600
