"""Nodes with less than is held there: a GPU broke, CPU went to the system, pods of others came. They stop nobody and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import World, gpu_request, node, q
from hotdesk_scheduler.core import invariants
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.model import Node, Placement, Pod, PodRequest, Resources, Share
from hotdesk_scheduler.core.packing import pack
from hotdesk_scheduler.core.placement import fits_in, on_spot
from hotdesk_scheduler.core.plan import Plan, Start
from hotdesk_scheduler.core.rooms import BOTH, LATER
from hotdesk_scheduler.core.slots import slots

ONE_BROKE = node("n1", 3)
SHORT_OF_CPU = node("n1", 4, cpu_millis=3_500)
MORE_OF_OTHERS = node("n1", 4, max_pods=4, foreign_pods=1)
SHRUNK = pytest.mark.parametrize("shrunk", [ONE_BROKE, SHORT_OF_CPU, MORE_OF_OTHERS], ids=["gpus", "cpu", "pods"])


def shrunk_world(shrunk: Node, **projects: object) -> World:
    """Four jobs of one GPU and one core each, on a node that had just as much and now is like this."""
    world = World(node("n1", 4, cpu_millis=4_000, max_pods=4), **projects)  # type: ignore[arg-type]  # quotas, as World takes them
    for _ in range(4):
        world.runs("a", 1, cpu_millis=1_000)
    world.engine.put_node(shrunk)
    return world


@SHRUNK
def test_nobody_is_stopped_because_a_node_became_smaller(shrunk: Node) -> None:
    world = shrunk_world(shrunk, a=4)
    assert len(world.settle().running()) == 4


@SHRUNK
def test_work_is_reclaimed_there_until_it_holds_no_more_than_there_is(shrunk: Node) -> None:
    world = shrunk_world(shrunk, a=0, b=2)
    mine = world.asks("b", 1, cpu_millis=1_000)
    world.settle()
    assert mine in world.running()
    assert len(world.running("a")) == 2


@SHRUNK
def test_work_is_preempted_there_until_it_holds_no_more_than_there_is(shrunk: Node) -> None:
    world = shrunk_world(shrunk, a=4)
    mine = world.asks("a", 1, priority=90, cpu_millis=1_000)
    world.settle()
    assert len(world.running()) == 3
    assert mine in world.running()


def test_work_without_gpus_starts_on_a_node_that_lacks_gpus() -> None:
    world = World(node("n1", 2), a=4)
    for _ in range(2):
        world.runs("a", 1)
    world.engine.put_node(node("n1", 1))
    cpu_only = world.asks("a", 0)
    world.settle()
    assert cpu_only in world.running()


def test_a_node_that_lacks_a_gpu_is_as_full_as_one_that_has_none_free() -> None:
    world = World(node("n1", 1, cpu_millis=2_000), node("n2", 2, cpu_millis=8_000), a=4)
    world.runs("a", 1, on="n1")
    for _ in range(2):
        world.runs("a", 1, on="n2")
    world.engine.put_node(node("n2", 1, cpu_millis=8_000))
    cpu_only = world.asks("a", 0)
    world.settle()
    assert world.node_of(cpu_only) == "n1"  # the fuller one


def test_a_kept_place_that_takes_no_gpu_stays_kept_on_a_node_that_lacks_gpus() -> None:
    world = World(node("n1", 2, cpu_millis=2_000), a=q(4), b=q(4))
    world.runs("a", 1, cpu_millis=100)
    world.runs("a", 1, cpu_millis=100)
    leaves = world.runs("a", 0, cpu_millis=1_800)
    world.engine.put_node(node("n1", 1, cpu_millis=2_000))
    waits = world.asks("b", 0, cpu_millis=1_800)
    world.engine.automatic = False
    world.delete(leaves)
    world.decide()
    world.engine.put_workload(replace(world.get(waits), pods=(replace(world.get(waits).pods[0], nominated=Placement("n1")),)))
    assert not [decision for decision in world.decide().acts if decision.workload_id == waits]


def test_a_shared_gpu_of_a_node_that_lacks_one_takes_as_many_as_ever() -> None:
    world = World(node("n1", 2), a=4)
    world.runs("a", 1)
    first = world.runs("a", 0.5, group="g0")
    world.engine.put_node(node("n1", 1))
    second = world.asks("a", 0.25)
    third = world.asks("a", 0.5)
    world.settle()
    assert world.running() == sorted(["a1", first, second])
    assert world.group_of(second) == "g0"
    assert "pods as it may" not in world.hold(third).sentence


def test_parts_of_several_shared_gpus_are_found_on_a_node_that_lacks_one() -> None:
    world = World(node("n1", 3), a=9)
    world.runs("a", 1)
    world.runs("a", 0.5, group="g0")
    world.runs("a", 0.5, group="g1")
    world.engine.put_node(node("n1", 2))
    both = world.asks("a", 0.5)
    pod = world.get(both).pods[0]
    world.engine.put_workload(replace(world.get(both), pods=(replace(pod, request=PodRequest(gpu_request(0.5, devices=2))),)))
    world.settle()
    assert both in world.running()


def test_every_way_to_look_for_a_place_agrees_about_a_node_that_lacks_a_gpu() -> None:
    world = World(node("n1", 2), a=4)
    world.runs("a", 1)
    world.runs("a", 0.5, group="g0")
    world.engine.put_node(node("n1", 1))
    spot = Ledger(world.snapshot(), world.policy, world.now).spots[0]
    assert spot.later.free_gpus == -1
    for gpus, fits in ((0, True), (0.5, True), (0.7, False), (1, False)):
        request = PodRequest(gpu_request(gpus), 100, 100)
        ways = (
            on_spot(spot, request, BOTH) is not None,
            fits_in(spot.later, spot, request),
            slots(spot.later, spot, request) > 0,
            pack([Pod(0, request)], [spot], BOTH) is not None,
        )
        assert ways == (fits,) * 4, gpus


def test_unequal_pods_are_packed_onto_the_others_beside_a_node_that_lacks_gpus() -> None:
    world = World(node("n1", 2), node("n2", 2), a=4)
    for _ in range(2):
        world.runs("a", 1)
    world.engine.put_node(node("n1", 0))
    spots = Ledger(world.snapshot(), world.policy, world.now).spots
    pods = [Pod(0, PodRequest(gpu_request(1), 200)), Pod(1, PodRequest(gpu_request(1), 100))]
    assert pack(pods, spots, LATER) is not None


@pytest.mark.timeout(20)
def test_a_pod_that_asks_for_parts_of_more_gpus_than_there_are_is_not_given_a_name_for_each() -> None:
    world = World(node("n1", 2), a=None)
    spot = Ledger(world.snapshot(), world.policy, world.now).spots[0]
    request = PodRequest(gpu_request(0.5, devices=10**12))
    assert on_spot(spot, request, BOTH) is None
    assert pack([Pod(0, request)], [spot], BOTH) is None


# --- how plans are judged --------------------------------------------------------------------------------------------------------------


def judged(world: World, request: PodRequest, placement: Placement) -> list[str]:
    """What is said against a plan that starts one more such pod there."""
    workload = world.workload("a", name="more")
    world.engine.put_workload(replace(workload, pods=(Pod(0, request),)))
    snapshot = world.snapshot()
    return invariants.check(snapshot, Plan(snapshot.version, (Start("more", 0, placement),)), told=False)


def test_a_plan_that_makes_an_overfull_node_fuller_is_refused_by_what_it_takes_there() -> None:
    world = World(node("n1", 2, cpu_millis=2_000, memory_mib=2_000, max_pods=3), a=9)
    world.runs("a", 1, cpu_millis=1_000, memory_mib=1_000)
    world.runs("a", 0.5, group="g0", cpu_millis=1_000, memory_mib=1_000)
    lacks_gpu = node("n1", 1, cpu_millis=9_000, memory_mib=9_000, max_pods=3)
    cases = (
        (lacks_gpu, PodRequest(), Placement("n1"), ""),
        (lacks_gpu, PodRequest(gpu_request(0.5)), Placement("n1", shares=(Share("g0", 500),)), ""),
        (lacks_gpu, PodRequest(gpu_request(1)), Placement("n1", 1), "has 1 GPUs, 2 are held whole and 1 shared"),
        (lacks_gpu, PodRequest(gpu_request(0.5)), Placement("n1", shares=(Share("g1", 500),)), "1 are held whole and 2 shared"),
        (lacks_gpu, PodRequest(gpu_request(0.7)), Placement("n1", shares=(Share("g0", 700),)), "g0 on n1 holds 1200"),
        (replace(lacks_gpu, cpu_millis=1_500), PodRequest(), Placement("n1"), ""),
        (replace(lacks_gpu, cpu_millis=1_500), PodRequest(cpu_millis=1), Placement("n1"), "1500 CPU millis, 2001 are held"),
        (replace(lacks_gpu, foreign=Resources(memory_mib=8_000)), PodRequest(), Placement("n1"), ""),
        (replace(lacks_gpu, foreign=Resources(memory_mib=8_000)), PodRequest(memory_mib=1), Placement("n1"), "2001 are held"),
        (replace(lacks_gpu, foreign_pods=2), PodRequest(), Placement("n1"), "takes 3 pods, 3 are there"),
    )
    for smaller, request, placement, problem in cases:
        world.engine.put_node(smaller)
        found = judged(world, request, placement)
        assert bool(found) == bool(problem), found
        assert all(problem in one for one in found), found
        assert len(found) == (2 if problem else 0)  # now and later
