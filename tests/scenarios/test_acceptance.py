"""The acceptance cases of the rule book, one test each, in our own words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import World, millis, node, q
from hotdesk_scheduler.core.model import Kind, Policy
from hotdesk_scheduler.core.plan import Stop
from hotdesk_scheduler.core.reasons import ReasonCode


def test_a_limit_on_the_project_holds_the_second_job() -> None:
    world = World(node(gpus=4), a=q(2, limit=2))
    first, second = world.asks("a", 2), world.asks("a", 2)
    world.settle()
    assert world.running() == [first]
    assert world.hold(second).code is ReasonCode.OVER_PROJECT_LIMIT


def test_a_limit_on_the_department_holds_the_second_job() -> None:
    world = World(node(gpus=4), departments={"d": q(2, limit=2)}, a=q(2, department="d"))
    first, second = world.asks("a", 2), world.asks("a", 2)
    world.settle()
    assert world.running() == [first]
    assert world.hold(second).code is ReasonCode.OVER_DEPARTMENT_LIMIT


def test_non_preemptible_work_stays_within_quota() -> None:
    world = World(node(gpus=4), a=1)
    notebook = world.asks("a", 2, fixed=True)
    world.settle()
    assert world.hold(notebook).code is ReasonCode.NON_PREEMPTIBLE_OVER_QUOTA


def test_non_preemptible_work_stays_within_the_departments_quota() -> None:
    world = World(node(gpus=4), departments={"d": q(1)}, a=q(2, department="d"))
    notebook = world.asks("a", 2, fixed=True)
    world.settle()
    assert world.hold(notebook).code is ReasonCode.NON_PREEMPTIBLE_OVER_QUOTA


@pytest.mark.parametrize("weight", [1, 0])
def test_idle_capacity_is_lent(weight: int) -> None:
    world = World(node(gpus=2), a=q(1, weight))
    world.asks("a", 1, fixed=True)
    world.asks("a", 1)
    world.settle()
    assert world.used("a") == 2


def test_two_projects_take_turns_in_one_pass() -> None:
    world = World(node(gpus=4), a=1, b=1)
    for project in "aaabbb":
        world.asks(project)
    world.cycle()
    assert (world.used("a"), world.used("b")) == (2, 2)


def test_the_project_with_more_quota_gets_the_only_gpu() -> None:
    world = World(node(gpus=1), a=1, b=2)
    world.asks("a", fixed=True)
    world.asks("b", fixed=True)
    world.settle()
    assert world.running() == ["b1"]


def test_with_equal_quota_the_older_project_gets_the_only_gpu() -> None:
    world = World(node(gpus=1), a=1, b=1)
    world.asks("b", fixed=True)
    world.asks("a", fixed=True)
    world.settle()
    assert world.running() == ["a1"]


def test_a_gang_starts_whole_or_not_at_all() -> None:
    world = World(node(gpus=2), a=4)
    gang = world.asks("a", 2, pods=2)
    world.settle()
    assert world.pods_running(gang) == 0
    assert world.hold(gang).code is ReasonCode.GANG_DOES_NOT_FIT


def test_a_gang_starts_over_two_nodes() -> None:
    world = World(node("n1", 1), node("n2", 1), a=2)
    gang = world.asks("a", 1, pods=2)
    world.settle()
    assert world.pods_running(gang) == 2


def test_a_gang_waits_together_for_what_is_being_released() -> None:
    world = World(node(gpus=4), a=4)
    leaving = world.runs("a", 1)
    world.delete(leaving)
    gang = world.asks("a", 2, pods=2)
    behind = world.asks("a", 1)
    world.cycle()
    assert world.pods_running(gang) == 0
    assert world.hold(gang).code is ReasonCode.WAITING_FOR_RELEASE
    world.settle()
    assert world.running() == [gang]
    assert world.pending() == [behind]


def test_fractions_join_the_fullest_gpu_that_fits() -> None:
    world = World(node(gpus=2), a=2)
    old = world.runs("a", 0.5, group="g")
    first, second, third, fourth = (world.asks("a", gpu) for gpu in (0.6, 0.5, 0.5, 0.3))
    world.settle()
    assert world.group_of(second) == world.group_of(old)
    assert world.group_of(fourth) == world.group_of(first) != "g"
    assert world.pending() == [third]


def test_reclaim_to_the_fair_share_stops_the_smallest_that_is_enough() -> None:
    world = World(node(gpus=4), a=q(1, 3), b=q(2, 1))
    world.runs("a", 1)
    world.runs("a", 0.5, group="g")
    world.runs("b", 2)
    world.runs("b", 0.5, group="g")
    asks = world.asks("a", 0.5)
    world.settle()
    assert asks in world.running()
    assert world.stopped == ["b2"]


def test_reclaim_stops_a_whole_workload_and_it_does_not_bounce_back() -> None:
    world = World(node(gpus=2), a=q(1, 1), b=q(1, 1))
    world.runs("a", 2)
    world.asks("b", 1)
    world.settle()
    assert world.running() == ["b1"]
    assert world.hold("a1").code is ReasonCode.FAIR_SHARE_REACHED


def test_nobody_reclaims_beyond_the_own_share() -> None:
    world = World(node(gpus=4), a=q(2, 2), b=q(1, 1))
    world.runs("a", 1)
    world.runs("a", 2)
    world.runs("b", 1)
    world.asks("b", 1)
    world.settle()
    assert world.stopped == []


def test_the_worst_offender_pays() -> None:
    world = World(node(gpus=4), a=q(1, 1), c=q(0, 0), b=q(1, 1))
    world.runs("a", 2)
    world.runs("a", 1)
    world.runs("c", 1)
    world.asks("b", 1)
    world.settle()
    assert world.stopped == ["c1"]


def test_non_preemptible_work_is_safe_from_reclaim() -> None:
    world = World(node(gpus=2), departments={"d1": q(1), "d2": q(1)}, a=q(1, department="d1"), b=q(1, department="d2"))
    world.runs("a", 1)
    world.runs("a", 1, fixed=True)
    world.asks("b", 1, fixed=True)
    world.settle()
    assert world.stopped == ["a1"]
    assert world.running() == ["a2", "b1"]


def test_a_blocked_head_does_not_block() -> None:
    world = World(node(gpus=2), a=q(0, 0), b=q(1, 1))
    world.runs("a", 2)
    head = world.asks("b", 2, fixed=True)
    behind = world.asks("b", 1, fixed=True)
    world.settle()
    assert world.running() == [behind]
    assert world.hold(head).code is ReasonCode.NON_PREEMPTIBLE_OVER_QUOTA


def test_inside_a_department_its_own_project_pays() -> None:
    world = World(
        node("n1", 3), node("n2", 3), departments={"d1": q(3), "d2": q(3)},
        a=q(3, department="d1"), b=q(2, department="d2"), c=q(1, department="d2"),
    )  # fmt: skip
    world.runs("a", 3)
    world.runs("b", 2, on="n2")
    world.runs("b", 1, on="n2")
    world.asks("c", 1)
    world.settle()
    assert world.stopped == ["b2"]


def test_an_elastic_workload_gives_exactly_one_pod() -> None:
    world = World(node(gpus=2), a=q(1, 1), b=q(1, 1))
    elastic = world.runs("a", 1, pods=2, min_pods=1)
    world.asks("b", 1)
    world.settle()
    assert world.pods_running(elastic) == 1
    assert world.pods_running("b1") == 1
    assert [d.index for plan in world.plans for d in plan.decisions if isinstance(d, Stop)] == [1]


def test_a_rigid_gang_stops_whole() -> None:
    world = World(node("n1", 1), node("n2", 1), a=q(1, 1), b=q(1, 1))
    gang = world.runs("a", 1, pods=2, on=("n1", "n2"))
    world.asks("b", 1)
    world.settle()
    assert world.pods_running(gang) == 0
    assert world.stopped == [gang, gang]


def test_a_notebook_preempts_only_what_it_needs() -> None:
    world = World(node(gpus=2), a=2)
    world.runs("a", 0.5, group="g")
    world.runs("a", 0.5, group="g")
    world.runs("a", 1)
    world.asks("a", 1, fixed=True)
    world.settle()
    assert world.stopped == ["a3"]


def test_equal_priority_never_preempts() -> None:
    world = World(node(gpus=1), a=1)
    world.runs("a", 1)
    world.asks("a", 1)
    world.settle()
    assert world.stopped == []


def test_nothing_stops_for_a_notebook_that_quota_forbids() -> None:
    world = World(node(gpus=4), a=3)
    for gpu in (1, 2, 1):
        world.runs("a", gpu)
    world.asks("a", 4, fixed=True)
    world.settle()
    assert world.stopped == []


def test_nothing_stops_for_what_cannot_fit() -> None:
    world = World(node("n1", 2), node("n2", 2), a=4)
    world.runs("a", 1)
    world.runs("a", 2, on="n2")
    world.asks("a", 4, fixed=True)
    world.settle()
    assert world.stopped == []


def test_consolidation_moves_one_of_two() -> None:
    world = World(node("n1", 2), node("n2", 2), a=4)
    world.runs("a", 1, on="n1")
    world.runs("a", 1, on="n2")
    world.asks("a", 2)
    world.settle()
    assert world.running() == ["a1", "a2", "a3"]
    assert world.node_of("a1") == world.node_of("a2")


def test_notebooks_are_not_moved() -> None:
    world = World(node("n1", 2), node("n2", 2), a=4)
    world.runs("a", 1, on="n1", fixed=True)
    world.runs("a", 1, on="n2", fixed=True)
    world.asks("a", 2)
    world.settle()
    assert world.running() == ["a1", "a2"]
    assert world.hold("a3").code is ReasonCode.FRAGMENTED


def test_two_halves_are_merged_for_a_whole_gpu() -> None:
    world = World(node(gpus=2), a=2)
    world.runs("a", 0.5, group="x")
    world.runs("a", 0.5, group="y")
    world.asks("a", 1)
    world.settle()
    assert world.running() == ["a1", "a2", "a3"]


def test_a_stale_gang_stops_after_the_grace() -> None:
    world = World(node("n1", 1), a=2)
    gang = world.runs("a", 1, pods=2, on=["n1"])
    world.settle()
    assert world.pods_running(gang) == 1
    world.now += 61
    world.settle()
    assert world.stopped == [gang]
    assert world.pods_running(gang) == 0


def test_a_minimum_run_time_protects_until_it_is_over() -> None:
    world = World(node(gpus=1), policy=Policy(grace_s=0, min_runtime_s=30), a=0, b=1)
    young = world.runs("a", 1, started_s_ago=10)
    world.asks("b", 1)
    world.settle()
    assert world.running() == [young]
    assert world.hold("b1").code is ReasonCode.VICTIMS_PROTECTED
    world.now += 30
    world.settle()
    assert world.running() == ["b1"]


def test_two_teams_share_four_gpus_and_a_deletion_starts_the_next_of_the_same_team() -> None:
    world = World(node("n1", 2), node("n2", 2), a=1, b=1)
    for _ in range(4):
        world.asks("a")
    world.settle()
    assert world.used("a") == 4
    for _ in range(4):
        world.asks("b")
    world.settle()
    assert (world.used("a"), world.used("b")) == (2, 2)
    world.delete("b2")
    world.settle()
    assert (world.used("a"), world.used("b")) == (2, 2)
    assert "b3" in world.running()


def test_an_exact_fit_is_stopped_before_one_that_overshoots() -> None:
    world = World(node("n1", 2), node("n2", 2), a=2, b=2)
    world.runs("a", 2, on="n1")
    world.runs("a", 1, on="n2")
    world.runs("b", 1, on="n2")
    world.asks("b", 1)
    world.settle()
    assert world.stopped == ["a2"]


def test_the_four_teams_of_the_guide() -> None:
    world = World(node("n1", 8), node("n2", 8), a=4, b=2, c=2, d=8)
    notebooks = {"a": (1,), "b": (0.6, 0.4), "c": (0.5, 0.3, 0.2), "d": ()}
    trains = {"a": (1, 2), "b": (1, 2), "c": (2, 1), "d": (4,)}
    fixed = []
    for project in "abcd":
        for gpu in notebooks[project]:
            fixed.append(world.asks(project, gpu, fixed=True))
            world.settle()
        for gpu in trains[project]:
            world.asks(project, gpu)
            world.settle()
    assert [world.used(p) for p in "abcd"] == [4, 4, 4, 4]
    assert world.pending() == []
    world.asks("d", 2)
    world.settle()
    world.asks("d", 2)
    world.settle()
    assert [world.used(p) for p in "abcd"] == [4, 2, 2, 8]
    assert len(world.pending("b")) == len(world.pending("c")) == 1
    assert not set(world.stopped) & {*fixed, "a2", "a3"}
    for project in "aabc":
        world.asks(project, 2)
    world.settle()
    world.delete("d1", "d2", "d3")
    world.settle()
    assert [world.used(p) for p in "abcd"] == [8, 4, 4, 0]
    assert len(world.pending("b")) == len(world.pending("c")) == 1


def test_hpo_runs_three_at_a_time_and_gives_one_back() -> None:
    world = World(node(gpus=4), a=2, b=2)
    hpo = world.workload("a", 1, pods=3, min_pods=1, kind=Kind.HPO, completions=12, parallelism=3)
    world.engine.put_workload(hpo)
    world.settle()
    assert world.pods_running(hpo.name) == 3
    world.asks("b", 2)
    world.settle()
    assert world.pods_running(hpo.name) == 2
    world.delete("b1")
    done = 0
    while world.get(hpo.name).succeeded < 12:
        assert world.pods_running(hpo.name) <= 3
        running = [pod.index for pod in world.get(hpo.name).pods if pod.state.value == "running"]
        world.finish(hpo.name, running[0])
        done += 1
        world.settle()
    assert done == 12
    assert world.get(hpo.name).phase.value == "succeeded"


def test_a_distributed_job_is_all_or_none_and_a_lost_node_requeues_it_whole() -> None:
    world = World(node("n1", 1), node("n2", 1), node("n3", 1), a=3)
    gang = world.asks("a", 1, pods=3, kind=Kind.MPI)
    world.settle()
    assert world.pods_running(gang) == 3
    world.engine.lose_node("n2")
    world.settle()
    assert world.pods_running(gang) == 0
    world.engine.return_node("n2")
    world.settle()
    assert world.pods_running(gang) == 3


def test_exact_fit_again_with_one_node() -> None:
    world = World(node(gpus=4), a=q(2, 2), b=q(2, 2))
    world.runs("a", 1)
    world.runs("a", 2)
    world.runs("b", 1)
    world.asks("b", 1)
    world.settle()
    assert world.stopped == ["a1"]


def test_quota_yields_only_to_quota() -> None:
    world = World(node(gpus=7), a=q(2, 2), b=q(1, 1))
    world.runs("a", 4)
    world.runs("b", 3)
    world.asks("a", 1)
    world.settle()
    assert world.stopped == []


def test_preempting_does_not_grow_a_project_beyond_its_share() -> None:
    world = World(node(gpus=3), a=q(1, 0), b=q(2, 1))
    world.runs("a", 1)
    world.runs("b", 1)
    world.asks("a", 2, priority=90)
    world.settle()
    assert world.stopped == []


def test_one_stops_and_one_moves() -> None:
    world = World(node("n1", 4), node("n2", 4), a=4, b=4)
    world.runs("a", 2, on="n1")
    world.runs("a", 2, on="n2")
    world.runs("a", 1, on="n2")
    world.asks("b", 4)
    world.settle()
    assert world.stopped == ["a3"]
    assert world.running() == ["a1", "a2", "b1"]


def test_a_notebook_gets_its_hole() -> None:
    world = World(node("n1", 2), node("n2", 2), a=2, b=2)
    world.runs("a", 1, on="n1")
    world.runs("a", 1, on="n2")
    world.asks("b", 2, fixed=True)
    world.settle()
    assert world.running() == ["a1", "a2", "b1"]
    assert world.stopped == []


def test_what_was_just_started_is_taken_back_before_anything_running_is_stopped() -> None:
    world = World(node(gpus=2), policy=replace(Policy(grace_s=0), min_runtime_s=0), a=q(0, 0), b=q(2, 1))
    world.runs("a", 1)
    world.asks("a", 1)
    world.asks("b", 1)
    world.settle()
    assert world.stopped == []
    assert world.running() == ["a1", "b1"]


def test_millis_are_exact() -> None:
    assert millis(0.1) == 100
    assert (millis(0.1) or 0) + (millis(0.2) or 0) <= (millis(0.3) or 0)
