"""Where pods go, in a researcher's words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import World, node, q
from hotdesk_scheduler.core.model import GpuRequest, NodeRule, Placement, Policy, Resources, Share, Taint, Toleration, Volume


def test_a_job_goes_to_the_fullest_node_that_takes_it() -> None:
    world = World(node("n1", 8), node("n2", 8), node("n3", 8), a=24)
    world.runs("a", 5, on="n2")
    world.runs("a", 7, on="n3")
    name = world.asks("a", 2)
    world.settle()
    assert world.node_of(name) == "n2"


def test_spread_takes_the_emptiest_node() -> None:
    world = World(node("n1", 8), node("n2", 8), policy=Policy(grace_s=0, placement="spread"), a=16)
    world.runs("a", 4, on="n1")
    name = world.asks("a", 1)
    world.settle()
    assert world.node_of(name) == "n2"


def test_cpu_only_work_avoids_gpu_nodes() -> None:
    world = World(node("gpu", 8), node("plain", 0), a=1)
    name = world.asks("a", 0)
    world.settle()
    assert world.node_of(name) == "plain"


def test_a_gang_prefers_one_node() -> None:
    world = World(node("n1", 2), node("n2", 2), node("n3", 4), a=8)
    gang = world.asks("a", 1, pods=4)
    world.settle()
    assert {world.node_of(gang, i) for i in range(4)} == {"n3"}


def test_a_gang_prefers_one_pool() -> None:
    world = World(node("n1", 2, pool="x"), node("n2", 2, pool="y"), node("n3", 2, pool="y"), a=8)
    gang = world.asks("a", 2, pods=2)
    world.settle()
    assert {world.node_of(gang, i) for i in range(2)} == {"n2", "n3"}


def test_pools_are_tried_in_the_order_listed() -> None:
    world = World(node("n1", 1, pool="x"), node("n2", 1, pool="y"), a=2)
    first = world.asks("a", 1, node_pools=("y", "x"))
    second = world.asks("a", 1, node_pools=("y", "x"))
    world.settle()
    assert (world.node_of(first), world.node_of(second)) == ("n2", "n1")


def test_a_node_type_and_a_projects_affinity_are_kept() -> None:
    world = World(node("n1", 2, node_type="old"), node("n2", 2, node_type="new"), a=q(4, train_node_types=("new",)))
    train, asked = world.asks("a", 1), world.asks("a", 1, node_type="old")
    world.settle()
    assert (world.node_of(train), world.node_of(asked)) == ("n2", "n1")


@pytest.mark.parametrize(
    ("toleration", "starts"),
    [
        ((), False),
        ((Toleration("gpu", "Equal", "yes"),), True),
        ((Toleration("gpu", "Exists"),), True),
        ((Toleration("", "Exists"),), True),
        ((Toleration("gpu", "Equal", "no"),), False),
    ],
)
def test_a_taint_needs_a_toleration(toleration: tuple[Toleration, ...], starts: bool) -> None:
    world = World(node("n1", 2, taints=(Taint("gpu", "yes"),)), a=2)
    name = world.asks("a", 1, tolerations=toleration)
    world.settle()
    assert (name in world.running()) is starts


def test_memory_requests_join_a_gpu_with_enough_left() -> None:
    world = World(node("n1", 2, gpu_memory_mib=16_000), a=2)
    first, second, third = (world.asks("a", 0, gpu_memory_mib=mib) for mib in (10_000, 8_000, 6_000))
    world.settle()
    assert world.group_of(first) == world.group_of(third) != world.group_of(second)


def test_a_closed_shared_gpu_takes_nobody_more_and_is_free_when_the_last_one_has_left() -> None:
    world = World(node("n1", 3, closed_groups=("g0",)), a=4)
    first = world.runs("a", 0.25, group="g0")
    second = world.asks("a", 0.25)
    world.settle()
    assert (world.group_of(first), world.group_of(second)) == ("g0", "g1")
    big = world.asks("a", 2)
    world.settle()
    assert big not in world.running()
    world.delete(first)
    world.settle()
    assert big in world.running()


def test_a_place_that_is_kept_on_a_shared_gpu_that_closes_is_given_up() -> None:
    world = World(node("n1", 1), node("n2", 1), a=2)
    world.runs("a", 0.25, group="g0")
    name = world.asks("a", 0.5)
    workload = world.get(name)
    kept = replace(workload.pods[0], nominated=Placement("n1", shares=(Share("g0", 500),)))
    world.engine.put_workload(replace(workload, pods=(kept,)))
    world.engine.put_node(node("n1", 1, closed_groups=("g0",)))
    world.settle()
    assert world.node_of(name) == "n2"


def test_a_gang_of_unequal_shares_leaves_a_closed_gpu_alone_as_well() -> None:
    world = World(node("n1", 2, closed_groups=("g0",)), a=2)
    world.runs("a", 0.1, group="g0")
    gang = world.workload("a", 0.5, pods=2)
    unequal = replace(gang.pods[1], request=replace(gang.pods[1].request, gpu=GpuRequest(millis=300)))
    world.engine.put_workload(replace(gang, pods=(gang.pods[0], unequal)))
    world.settle()
    places = [pod.placement for pod in world.get(gang.name).pods]
    assert [share.group for place in places if place for share in place.shares] == ["g1", "g1"]


def test_the_same_fraction_on_two_devices() -> None:
    world = World(node("n1", 2), a=2)
    world.runs("a", 0.5, group="g")
    pair = world.workload("a", 0.5)
    request = pair.pods[0].request
    pods = (replace(pair.pods[0], request=replace(request, gpu=replace(request.gpu, devices=2))),)
    world.engine.put_workload(replace(pair, pods=pods))
    world.settle()
    place = world.get(pair.name).pods[0].placement
    assert place is not None
    assert len({share.group for share in place.shares}) == 2


def test_pods_per_node_are_counted() -> None:
    world = World(node("n1", 8, max_pods=2), a=8)
    for _ in range(3):
        world.asks("a", 1)
    world.settle()
    assert world.used("a") == 2


def test_pods_of_others_count_among_the_pods_of_a_node() -> None:
    world = World(node("n1", 8, max_pods=3, foreign_pods=2), a=8)
    for _ in range(2):
        world.asks("a", 1)
    world.settle()
    assert world.used("a") == 1


def test_what_others_hold_on_a_node_is_not_ours() -> None:
    world = World(node("n1", 2, foreign=Resources(gpu_millis=1000)), a=2)
    for _ in range(2):
        world.asks("a", 1)
    world.settle()
    assert world.used("a") == 1


def test_a_gang_of_unequal_pods_finds_the_only_way_to_place_it() -> None:
    """Largest first on the fullest node would put the 4 beside nothing that fits."""
    world = World(node("n1", 6), node("n2", 7), a=13)
    name = world.asks("a", 3, pods=4)
    gang = world.get(name)
    largest = replace(gang.pods[0], request=replace(gang.pods[0].request, gpu=GpuRequest(whole=4)))
    world.engine.put_workload(replace(gang, pods=(largest, *gang.pods[1:])))
    world.settle()
    assert world.pods_running(name) == 4
    assert [world.node_of(name, index) for index in range(4)].count("n1") == 2


def test_a_workload_runs_only_where_all_of_its_volumes_are_within_reach() -> None:
    world = World(*(node(f"n{number}", 1, labels={"zone": f"z{number}"}) for number in (1, 2, 3)), a=3)
    near = [
        Volume(f"v{number}", tuple((NodeRule("zone", "In", (f"z{one}",)),) for one in zones))
        for number, zones in enumerate(((1, 2), (2, 3)))
    ]
    name = world.asks("a", 1, volumes=tuple(near))
    world.settle()
    assert world.node_of(name) == "n2"


@pytest.mark.parametrize(
    ("rule", "nodes"),
    [
        (NodeRule("zone", "In", ("1", "3")), "n1"),
        (NodeRule("zone", "NotIn", ("1",)), "n2 n3"),
        (NodeRule("zone", "Exists"), "n1 n2"),
        (NodeRule("zone", "DoesNotExist"), "n3"),
        (NodeRule("zone", "Gt", ("1",)), "n2"),
        (NodeRule("zone", "Lt", ("2",)), "n1"),
        (NodeRule("metadata.name", "In", ("n3",)), "n3"),
    ],
)
def test_only_nodes_for_which_a_rule_about_their_labels_holds_are_used(rule: NodeRule, nodes: str) -> None:
    world = World(node("n1", 1, labels={"zone": "1"}), node("n2", 1, labels={"zone": "2"}), node("n3", 1), a=3)
    for _ in range(3):
        world.asks("a", 1, node_terms=((rule,),))
    world.settle()
    used = {pod.placement.node for workload in world.snapshot().workloads for pod in workload.pods if pod.placement}
    assert " ".join(sorted(used)) == nodes
