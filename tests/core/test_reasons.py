"""Golden sentences: for every reason there is, what people read in `runai why` and when their job was stopped, from real decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from builders import START, World, node, q
from hotdesk_scheduler.core import lifecycle
from hotdesk_scheduler.core.model import (
    HOLDING,
    Kind,
    Node,
    NodeRule,
    Phase,
    PodState,
    Policy,
    Quota,
    Resources,
    Scarce,
    Taint,
    Volume,
    Workload,
)
from hotdesk_scheduler.core.plan import Finish, Stop
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines.kubernetes.api import ApiError
from hotdesk_scheduler.engines.kubernetes.tries import GIVEN_UP_AFTER_S, GivenUpError, Tries
from hotdesk_scheduler.engines.local.pods import outcome
from hotdesk_scheduler.engines.local.runs import Exit
from hotdesk_scheduler.service.pausing import Pause
from hotdesk_scheduler.service.views import main_reason

GOLDEN: dict[str, tuple[ReasonCode, str, Callable[[], Reason]]] = {}
Case = Callable[[], Reason]


def golden(code: ReasonCode, sentence: str) -> Callable[[Case], Case]:
    """Registers a case: a world, and the reason its decision gives."""

    def register(case: Case) -> Case:
        assert case.__name__ not in GOLDEN
        GOLDEN[case.__name__] = (code, sentence, case)
        return case

    return register


def held(world: World, name: str) -> Reason:
    world.settle()
    return world.hold(name)


def held_after_one_cycle(world: World, name: str) -> Reason:
    world.cycle()
    return world.hold(name)


def stopped(world: World, name: str) -> Reason:
    world.cycle()
    return world.stop_reasons()[name]


def ended(world: World, name: str) -> Reason:
    """Why lifecycle ended it."""
    asyncio.run(world._review())
    reason = world.get(name).phase_reason
    assert reason is not None
    return reason


def due(world: World) -> Reason:
    """Why lifecycle stops something now."""
    return next(d.reason for d in lifecycle.review(world.snapshot(), world.policy, world.now) if isinstance(d, Stop))


# --- holds: rules ----------------------------------------------------------------------------------------------------------------------


@golden(
    ReasonCode.OVER_PROJECT_LIMIT,
    "Project a may use at most 2 GPUs and uses 2 GPUs; this asks for 1 GPU. It starts when a1 of a ends, "
    "or when the limit of project a is raised to 3 GPUs.",
)
def over_the_projects_limit() -> Reason:
    world = World(node(gpus=4), a=q(2, limit=2))
    world.runs("a", 2)
    return held(world, world.asks("a", 1))


@golden(
    ReasonCode.OVER_PROJECT_LIMIT,
    "Project a may use at most 8 CPU cores and uses 6 CPU cores; this asks for 4 CPU cores. It starts when a1 of a ends, "
    "or when the CPU limit of project a is raised to 10 CPU cores.",
)
def over_a_limit_of_cpu() -> Reason:
    world = World(node(gpus=4), a={**q(2), "cpu": Quota(None, 8000)})
    world.runs("a", 1, cpu_millis=6000)
    return held(world, world.asks("a", 1, cpu_millis=4000))


@golden(
    ReasonCode.OVER_DEPARTMENT_LIMIT,
    "Department d may use at most 2 GPUs and uses 2 GPUs; this asks for 1 GPU. It starts when b1 of b ends, "
    "or when the limit of department d is raised to 3 GPUs.",
)
def over_the_departments_limit() -> Reason:
    world = World(node(gpus=4), departments={"d": q(2, limit=2)}, a=q(1, department="d"), b=q(1, department="d"))
    world.runs("a", 1)
    world.runs("b", 1)
    return held(world, world.asks("a", 1))


@golden(
    ReasonCode.NON_PREEMPTIBLE_OVER_QUOTA,
    "Non-preemptible work never goes over quota: project a has a quota of 1 GPU, non-preemptible work holds 0.5 GPU of it, and this "
    "asks for 1 GPU. It starts when a1 of a ends, as preemptible, when the quota of project a is raised to 1.5 GPUs, or with 0.5 GPU.",
)
def non_preemptible_over_quota() -> Reason:
    world = World(node(gpus=4), a=1)
    world.runs("a", 0.5, fixed=True)
    return held(world, world.asks("a", 1, fixed=True))


@golden(
    ReasonCode.NON_PREEMPTIBLE_OVER_QUOTA,
    "Non-preemptible work never goes over quota: department d has a quota of 1 GPU, non-preemptible work holds 0 GPUs of it, and this "
    "asks for 2 GPUs. It starts as preemptible, when the quota of department d is raised to 2 GPUs, or with 1 GPU.",
)
def non_preemptible_over_the_departments_quota() -> Reason:
    world = World(node(gpus=4), departments={"d": q(1)}, a=q(2, department="d"))
    return held(world, world.asks("a", 2, fixed=True))


@golden(
    ReasonCode.FAIR_SHARE_REACHED,
    "The fair share is reached: project a may have 2 GPUs now (quota 1) and uses 2; this asks for 1 GPU. The rest is held by "
    "b (2 GPUs). It starts when b1 of b ends.",
)
def fair_share_reached() -> Reason:
    world = World(node(gpus=4), a=1, b=1)
    world.runs("a", 2)
    world.runs("b", 2)
    return held(world, world.asks("a", 1))


@golden(
    ReasonCode.FAIR_SHARE_REACHED,
    "The fair share is reached: project a may have 1 GPU now (quota 1) and uses 1; this asks for 0.5 GPU (16384 MiB of one GPU). It starts "
    "when a1 of a ends.",
)
def fair_share_reached_by_what_asks_for_memory() -> Reason:
    world = World(node(gpus=1), a=1)
    world.runs("a", 1)
    return held(world, world.asks("a", gpu_memory_mib=16_384))


@golden(
    ReasonCode.FAIR_SHARE_REACHED,
    "The fair share is reached: department d may have 1 GPU now (quota 1) and uses 1; this asks for 1 GPU. The rest is held by "
    "b (1 GPU) and c (1 GPU). It starts when c1 of c ends.",
)
def fair_share_of_the_department_reached() -> Reason:
    world = World(node(gpus=2), departments={"d": q(1)}, a=q(1, department="d"), b=q(1, department="d"), c=1)
    world.runs("b", 1, fixed=True)
    world.runs("c", 1)
    return held(world, world.asks("a", 1))


@golden(
    ReasonCode.UNKNOWN_PROJECT,
    "There is no project gone (any more). An admin has to create it, or submit this to another project.",
)
def an_unknown_project() -> Reason:
    world = World(node(gpus=1), a=1)
    world.engine.put_workload(Workload(id="x", name="x", project="gone", kind=Kind.TRAIN, pods=world.workload("a").pods))
    return held(world, "x")


# --- holds: no node ever ----------------------------------------------------------------------------------------------------------------


@golden(
    ReasonCode.NO_NODE_LARGE_ENOUGH,
    "One pod asks for 5 GPUs on one node, and the largest node it may use, n2, has 4. It starts with 4 GPUs.",
)
def no_node_has_so_many_gpus() -> Reason:
    world = World(node("n1", 2), node("n2", 4), a=9)
    return held(world, world.asks("a", 5))


@golden(
    ReasonCode.NO_NODE_LARGE_ENOUGH,
    "One pod asks for 4 GPUs on one node, and the largest node it may use, n1, has 2. It starts with 2 GPUs, or if it may use nodes of "
    "any type and pool.",
)
def no_node_of_its_type_has_so_many_gpus() -> Reason:
    world = World(node("n1", 2, node_type="v100"), node("n2", 4, node_type="h200"), a=9)
    return held(world, world.asks("a", 4, node_type="v100"))


@golden(
    ReasonCode.NO_NODE_LARGE_ENOUGH,
    "It asks for 40000 MiB of one GPU's memory, and the largest GPU it may use has 32768 MiB. As it is submitted, it can only wait for "
    "larger or more nodes.",
)
def no_gpu_has_so_much_memory() -> Reason:
    world = World(node(gpus=2), a=2)
    return held(world, world.asks("a", gpu_memory_mib=40_000))


@golden(
    ReasonCode.NO_NODE_LARGE_ENOUGH,
    "It asks for 4000 MiB of one GPU's memory, and no node it may use says how much memory its GPUs have. As it is submitted, it can only "
    "wait for a node that says it (on a cluster, by the label nvidia.com/gpu.memory).",
)
def no_node_tells_its_gpus_memory() -> Reason:
    world = World(node(gpus=2, gpu_memory_mib=0), a=2)
    return held(world, world.asks("a", gpu_memory_mib=4_000))


@golden(
    ReasonCode.NO_NODE_LARGE_ENOUGH,
    "One pod asks for 9 CPU cores, and no node it may use has more than 8 CPU cores, even when it is empty. As it is submitted, it can "
    "only wait for larger or more nodes.",
)
def no_node_has_so_many_cores() -> Reason:
    world = World(node(gpus=2, cpu_millis=8000), a=2)
    return held(world, world.asks("a", 1, cpu_millis=9000))


@golden(
    ReasonCode.NO_NODE_LARGE_ENOUGH,
    "One pod asks for 2 GPUs, 60 CPU cores and 100 MiB of memory together, and no single node it may use has all of that, even when it "
    "is empty. It starts with 1 GPU.",
)
def no_node_has_both() -> Reason:
    world = World(node("n1", 2, cpu_millis=8000), node("n2", 1), a=2)
    return held(world, world.asks("a", 2, cpu_millis=60_000))


@golden(
    ReasonCode.GANG_DOES_NOT_FIT,
    "Its 3 pods start together or not at all, and n1, the only node it may use, has room for 2 of them, even when it is empty. It starts "
    "with 2 pods.",
)
def a_gang_larger_than_the_cluster() -> Reason:
    world = World(node("n1", 2), a=4)
    return held(world, world.asks("a", 1, pods=3))


@golden(
    ReasonCode.NODES_EXCLUDED,
    "No node may take it: the only node is not of node type h200. Node types here: v100. It starts if it may use nodes of any type and "
    "pool.",
)
def no_node_of_that_type() -> Reason:
    world = World(node("n1", 2, node_type="v100"), a=4)
    return held(world, world.asks("a", 1, node_type="h200"))


@golden(
    ReasonCode.NODES_EXCLUDED,
    "No node may take it: 2 of 4 nodes are not in pool lab, 1 has the taint own=b, which it does not tolerate and 1 is not ready. "
    "Pools here: default and lab. As it is submitted, it can only wait for a node that it may use.",
)
def no_node_in_that_pool_without_a_taint() -> Reason:
    nodes = [node("n1"), node("n2"), node("n3", pool="lab", taints=(Taint("own", "b"),)), node("n4", pool="lab", ready=False)]
    world = World(*nodes, a=4)
    world.runs("b", 2, on="n1")
    return held(world, world.asks("a", 4, node_pools=("lab",)))


@golden(
    ReasonCode.NODES_EXCLUDED,
    "No node may take it: the only node is not of node type h200, which project a is bound to. Node types here: v100. As it is submitted, "
    "it can only wait for a node that it may use.",
)
def no_node_its_project_is_bound_to() -> Reason:
    world = World(node("n1", 2, node_type="v100"), a=q(4, train_node_types=("h200",)))
    return held(world, world.asks("a", 1))


# --- holds: no room now ------------------------------------------------------------------------------------------------------------------


@golden(
    ReasonCode.NO_FREE_BLOCK,
    "It asks for 1 GPU, and none is free. The GPUs it could get are held by a (1 GPU), and stopping what may be stopped for it would not "
    "make room. It starts when a1 of a ends.",
)
def held_by_work_that_may_not_be_stopped() -> Reason:
    world = World(node("n1", 1), a=1, b=1)
    world.runs("a", 1, fixed=True)
    return held(world, world.asks("b", 1, fixed=True))


@golden(
    ReasonCode.NO_FREE_BLOCK,
    "It asks for 0.6 GPU, and the most that is left of one is 0.5 on n1. The GPUs it could get are held by a (1 GPU), and stopping what "
    "may be stopped for it would not make room. It starts when a2 of a ends, or with 0.5 GPU.",
)
def too_little_is_left_of_each_gpu() -> Reason:
    world = World(node("n1", 2), a=2)
    world.runs("a", 0.5, group="g1", fixed=True)
    world.runs("a", 0.5, group="g2", fixed=True)
    return held(world, world.asks("a", 0.6, fixed=True))


@golden(
    ReasonCode.NO_FREE_BLOCK,
    "It asks for 2 GPUs on one node, and the largest free block is 1 GPU on n1. The GPUs it could get are held by work outside Hotdesk "
    "(1 GPU), and stopping what may be stopped for it would not make room. It starts with 1 GPU.",
)
def held_by_others_than_us() -> Reason:
    world = World(node("n1", 2, foreign=Resources(gpu_millis=1000)), a=2)
    return held(world, world.asks("a", 2))


@golden(
    ReasonCode.FRAGMENTED,
    "2 GPUs are free, but in pieces: the largest free block is 1 on n1, and this asks for 2 GPUs on one node. What runs beside them "
    "is not preemptible, so it is not moved. It starts when a1 of a ends, or with 1 GPU.",
)
def fragmented() -> Reason:
    world = World(node("n1", 2), node("n2", 2), a=4)
    world.runs("a", 1, on="n1", fixed=True)
    world.runs("a", 1, on="n2", fixed=True)
    return held(world, world.asks("a", 2))


@golden(
    ReasonCode.FRAGMENTED,
    "2 GPUs are free, but in pieces: the largest free block is 1 on n1, and this asks for 2 GPUs on one node. Running work is not moved "
    "here. It starts when a1 of a ends, or with 1 GPU.",
)
def fragmented_where_nothing_is_moved() -> Reason:
    world = World(node("n1", 2), node("n2", 2), policy=Policy(grace_s=0, max_moves=0), a=4)
    world.runs("a", 1, on="n1")
    world.runs("a", 1, on="n2")
    return held(world, world.asks("a", 2))


@golden(
    ReasonCode.GANG_DOES_NOT_FIT,
    "Its 2 pods start together or not at all, and only 1 of them fits now (1 GPU each). The GPUs it could get are held by a (3 GPUs). "
    "It starts when a1 of a ends, or with 1 pod.",
)
def a_gang_behind_others() -> Reason:
    world = World(node("n1", 4), a=4, b=2)
    world.runs("a", 3, fixed=True)
    return held(world, world.asks("b", 1, pods=2))


@golden(
    ReasonCode.GANG_DOES_NOT_FIT,
    "Its 2 pods start together or not at all, and none of them fits now (0.6 GPU each). The GPUs it could get are held by a (2 GPUs). "
    "It starts when a1 of a ends.",
)
def a_gang_of_fractions_behind_others() -> Reason:
    world = World(node("n1", 2), a=2, b=2)
    world.runs("a", 2, fixed=True)
    return held(world, world.asks("b", 0.6, pods=2))


@golden(
    ReasonCode.NO_CPU_OR_MEMORY,
    "It asks for 500 MiB of memory, and no node with enough free GPUs has more than 200 MiB of memory free. Memory there is held by "
    "a (800 MiB of memory). It starts when a1 of a ends.",
)
def short_of_memory() -> Reason:
    world = World(node("n1", 2, memory_mib=1000), a=4)
    world.runs("a", 1, memory_mib=800)
    return held(world, world.asks("a", 1, memory_mib=500))


@golden(
    ReasonCode.NO_CPU_OR_MEMORY,
    "Its 2 pods start together or not at all, and only 1 of them fits now: each asks for 4 CPU cores and 100 MiB of memory beside its "
    "GPUs. CPU there is held by a (2 CPU cores). It starts when a1 of a ends, or with 1 pod.",
)
def a_gang_short_of_cores() -> Reason:
    world = World(node("n1", 4, cpu_millis=8000), a=4)
    world.runs("a", 1, cpu_millis=2000)
    return held(world, world.asks("a", 1, pods=2, cpu_millis=4000))


@golden(ReasonCode.NO_CPU_OR_MEMORY, "Every node with enough free GPUs runs as many pods as it may. It starts when a1 of a ends.")
def a_node_that_runs_as_many_pods_as_it_may() -> Reason:
    world = World(node("n1", 4, max_pods=1), a=4)
    world.runs("a", 1)
    return held(world, world.asks("a", 1))


# --- holds: times ------------------------------------------------------------------------------------------------------------------------


@golden(
    ReasonCode.WAITING_FOR_RELEASE,
    "Its place on n1 is kept while a1 of a shuts down; it starts as soon as that is gone, at the latest when the notice it was given "
    "has run out.",
)
def waiting_for_a_release() -> Reason:
    world = World(node(gpus=1), a=1)
    world.delete(world.runs("a", 1))
    return held_after_one_cycle(world, world.asks("a", 1))


@golden(
    ReasonCode.WAITING_FOR_RELEASE,
    "Its place on n1 is kept while a1 of a and a2 of a shut down; it starts as soon as they are gone, at the latest when the notice "
    "they were given has run out.",
)
def waiting_for_several_to_go() -> Reason:
    world = World(node(gpus=2), a=q(2), policy=Policy(grace_s=60))
    world.runs("a", 1)
    world.runs("a", 1)
    world.delete("a1", "a2")
    asyncio.run(world._review())
    world.asks("a", 2)
    world.decide()
    return world.hold("a3")


@golden(
    ReasonCode.GANG_INCOMPLETE,
    "1 of 4 pods of a1 is there, and they start together or not at all: it waits until the other 3 are made. Look at what makes them if "
    "they do not come.",
)
def others_have_made_the_first_pod_of_a_gang() -> Reason:
    world = World(node("n1", 8), a=8)
    gang = world.asks("a", 1, pods=4)
    world.engine.put_workload(replace(world.get(gang), pods=world.get(gang).pods[2:3]))
    return held(world, gang)


@golden(
    ReasonCode.GANG_INCOMPLETE,
    "3 of 4 pods of a1 are there, and they start together or not at all: it waits until the last one is made. Look at what makes them if "
    "they do not come.",
)
def others_have_made_all_but_one_pod_of_a_gang() -> Reason:
    world = World(node("n1", 8), a=8)
    gang = world.asks("a", 1, pods=4)
    world.engine.put_workload(replace(world.get(gang), pods=world.get(gang).pods[1:]))
    return held(world, gang)


@golden(
    ReasonCode.NODES_EXCLUDED,
    "No node may take it: 2 of 2 nodes are without the labels it asks for (disk=ssd and no old; or zone>3). As it is submitted, it can "
    "only wait for a node that it may use.",
)
def no_node_has_the_labels_it_asks_for() -> Reason:
    world = World(node("n1", 2, labels={"disk": "ssd", "old": "yes"}), node("n2", 2, labels={"zone": "3"}), a=2)
    terms = ((NodeRule("disk", "In", ("ssd",)), NodeRule("old", "DoesNotExist")), (NodeRule("zone", "Gt", ("3",)),))
    return held(world, world.asks("a", 1, node_terms=terms))


def on(name: str) -> Volume:
    return Volume("home-ada", ((NodeRule("kubernetes.io/hostname", "In", (name,)),),))


def with_names(*names: str) -> tuple[Node, ...]:
    return tuple(node(name, 2, labels={"kubernetes.io/hostname": name}) for name in names)


@golden(
    ReasonCode.NO_FREE_BLOCK,
    "It asks for 1 GPU, and none is free. The GPUs it could get are held by b (2 GPUs), and stopping what may be stopped for it would not "
    "make room. Its volume home-ada lies on node n2. It starts when b1 of b ends.",
)
def the_node_where_its_home_lies_is_full() -> Reason:
    world = World(*with_names("n1", "n2"), a=2, b=2)
    world.runs("b", 2, fixed=True, on="n2")
    return held(world, world.asks("a", 1, fixed=True, volumes=(on("n2"),)))


@golden(
    ReasonCode.NODES_EXCLUDED,
    "No node may take it: 2 of 2 nodes are not where its volume home-ada lies. Its volume home-ada lies where no node is "
    "(kubernetes.io/hostname=n9): an admin brings that node back, or deletes the claim home-ada with all that is on it. As it is "
    "submitted, it can only wait for a node that it may use.",
)
def the_node_where_its_home_lies_is_gone() -> Reason:
    world = World(*with_names("n1", "n2"), a=2)
    return held(world, world.asks("a", 1, volumes=(on("n9"),)))


@golden(
    ReasonCode.NODES_EXCLUDED,
    "No node may take it: 2 of 3 nodes are without the labels it asks for (disk=ssd) and 1 is not where its volume home-ada lies. "
    "Its volume home-ada is within reach of n1 and n2 only. As it is submitted, it can only wait for a node that it may use.",
)
def nodes_that_reach_its_volume_are_not_those_it_may_use() -> Reason:
    world = World(*with_names("n1", "n2"), node("n3", 2, labels={"disk": "ssd"}), a=2)
    reach = Volume("home-ada", (on("n1").terms[0], on("n2").terms[0]))
    return held(world, world.asks("a", 1, node_terms=((NodeRule("disk", "In", ("ssd",)),),), volumes=(reach,)))


@golden(
    ReasonCode.NODES_EXCLUDED,
    "No node may take it: 2 of 2 nodes do not have 1 rdma/hca free. It gets 1 rdma/hca when pods that hold it end; none is stopped for "
    "that. As it is submitted, it can only wait for a node that it may use.",
)
def something_not_counted_is_in_use_everywhere() -> Reason:
    world = World(*with_names("n1", "n2"), a=2)
    return held(world, world.asks("a", 1, scarce=(Scarce("1 rdma/hca", ("n1", "n2")),)))


@golden(
    ReasonCode.NODES_EXCLUDED,
    "No node may take it: 2 of 3 nodes do not have 1 rdma/hca free and 1 is without the labels it asks for (no disk). It gets 1 rdma/hca "
    "when pods that hold it end; none is stopped for that. As it is submitted, it can only wait for a node that it may use.",
)
def something_not_counted_is_free_on_a_node_that_it_may_not_use_anyway() -> Reason:
    world = World(*with_names("n1", "n2"), node("n3", 2, labels={"disk": "ssd"}), a=2)
    terms = ((NodeRule("disk", "DoesNotExist", ()),),)
    return held(world, world.asks("a", 1, node_terms=terms, scarce=(Scarce("1 rdma/hca", ("n1", "n2")),)))


@golden(
    ReasonCode.NODES_EXCLUDED,
    "No node may take it: 2 of 2 nodes do not have 5Ti of ephemeral-storage free. Even when nothing runs there is not 5Ti of "
    "ephemeral-storage: ask for less of it, or an admin adds a node that has it. As it is submitted, it can only wait for a node that "
    "it may use.",
)
def there_is_not_so_much_of_something_not_counted() -> Reason:
    world = World(*with_names("n1", "n2"), a=2)
    return held(world, world.asks("a", 1, scarce=(Scarce("5Ti of ephemeral-storage", ("n1", "n2"), could=False),)))


@golden(
    ReasonCode.NO_FREE_BLOCK,
    "It asks for 1 GPU, and none is free. The GPUs it could get are held by b (2 GPUs), and stopping what may be stopped for it would not "
    "make room. Only n2 has host port 8080/TCP free for it. It starts when b1 of b ends.",
)
def the_node_where_something_not_counted_is_free_is_full() -> Reason:
    world = World(*with_names("n1", "n2"), a=2, b=2)
    world.runs("b", 2, fixed=True, on="n2")
    return held(world, world.asks("a", 1, fixed=True, scarce=(Scarce("host port 8080/TCP", ("n1",)),)))


@golden(ReasonCode.WAITING_FOR_RELEASE, "Its own pods are still shutting down; it is queued again when they are gone.")
def its_own_pods_are_stopping() -> Reason:
    world = World(node("n1", 2), policy=Policy(grace_s=60), a=2)
    gang = world.runs("a", 1, pods=2)
    workload = world.get(gang)
    first = replace(workload.pods[0], state=PodState.RELEASING, release_deadline=world.now + 60)
    second = replace(workload.pods[1], state=PodState.PENDING, placement=None, started_at=None)
    world.engine.put_workload(replace(workload, pods=(first, second)))
    world.decide()
    return world.hold(gang)


@golden(
    ReasonCode.VICTIMS_PROTECTED,
    "It may take the place of a1 of a, which started recently: everybody may run for at least 60 s. It starts in 40 s at the latest.",
)
def protected_by_the_minimum_run_time() -> Reason:
    world = World(node(gpus=1), policy=Policy(grace_s=0, min_runtime_s=60), a=0, b=1)
    world.runs("a", 1, started_s_ago=20)
    return held_after_one_cycle(world, world.asks("b", 1))


@golden(
    ReasonCode.VICTIMS_PROTECTED,
    "Nothing that is free suffices, and nobody is stopped for work younger than 60 s: others may be asked to make "
    "way in 40 s. It starts when a1 of a ends.",
)
def too_young_to_have_others_stopped() -> Reason:
    world = World(node(gpus=1), policy=Policy(grace_s=0, preemption_delay_s=60), a=0, b=1)
    world.runs("a", 1)
    return held_after_one_cycle(world, world.asks("b", 1, age_s=20))


@golden(
    ReasonCode.BACKING_OFF,
    "It ended with exit code 2. It is tried again 10 s later (failure 1; 6 retries are allowed). Its logs say why; delete it to stop the "
    "retries.",
)
def backing_off() -> Reason:
    world = World(node(gpus=2), a=2)
    name = world.asks("a", 1)
    world.settle()
    world.finish(name, exit_code=2)
    return held(world, name)


@golden(
    ReasonCode.IMAGE_OR_VOLUME_ERROR,
    "Pod 0 could not be started: the program train.py is not there. It is tried again 20 s later (failure 2; 6 retries are allowed). "
    "Delete it to stop the retries.",
)
def an_image_without_the_program() -> Reason:
    world = World(node(gpus=2), a=2)
    workload = world.get(world.runs("a", 1))
    record = Exit(127, ended_at=START, started_at=START - 10, stopped=False, error="the program train.py is not there")
    state, reason = outcome(workload.pods[0], record, error=f"Pod 0 could not be started: {record.error}")
    pod = replace(workload.pods[0], state=state, stop_reason=reason, ended_at=START, placement=None)
    world.engine.put_workload(replace(workload, pods=(pod,), failures=2))
    return held(world, workload.name)


@golden(
    ReasonCode.BACKING_OFF,
    "Its pod cannot be made for 5 minutes: the API server answers 500 it broke. It gave its place back and is tried again 10 s later; this "
    "does not count as a failure of its own.",
)
def a_cluster_that_makes_no_pod() -> Reason:
    world = World(node(gpus=2), a=2)
    name = world.asks("a", 1)
    world.settle()
    workload = world.get(name)
    pod = replace(workload.pods[0], state=PodState.FAILED, stop_reason=cluster_refuses(), ended_at=START, placement=None)
    world.engine.put_workload(replace(workload, pods=(pod,)))
    return held(world, name)


@golden(ReasonCode.START_REFUSED, "Its pod cannot be made for 5 minutes: the API server answers 500 it broke.")
def cluster_refuses() -> Reason:
    return asyncio.run(given_up())


async def given_up() -> Reason:
    """As pods of a cluster have it (engines/kubernetes/pods.py)."""
    tried, began = Tries("Its pod cannot be made", lambda sentence: None), asyncio.get_running_loop().time() - GIVEN_UP_AFTER_S

    async def breaks() -> None:
        raise ApiError(500, "InternalError", "it broke.")

    tried._since = (began, START)
    with pytest.raises(GivenUpError) as caught:
        await tried.until_it_works(breaks, gives_up=lambda: False)
    return Reason(ReasonCode.START_REFUSED, str(caught.value))


@golden(ReasonCode.QUEUED, "It was just submitted and is looked at next.")
def just_submitted() -> Reason:
    world = World(node(gpus=2), a=2)
    workload = world.get(world.asks("a", 1))
    reason = main_reason(workload, lifecycle.status(workload), None)
    assert reason is not None
    return reason


@golden(
    ReasonCode.PAUSED,
    "Scheduling is paused by ann since 1970-01-12 13:46 UTC (the switches are replaced); it goes on when an admin resumes it.",
)
def scheduling_is_paused() -> Reason:
    paused = Pause("ann", START, "the switches are replaced").reason
    world = World(node(gpus=2), a=2, policy=Policy(grace_s=0, paused=paused))
    return held(world, world.asks("a", 1))


KEPT = Policy(grace_s=0, reserve_after_s=600)


@golden(
    ReasonCode.KEPT_FOR_OTHERS,
    "What is free on n1 is kept for a2 of a, which has waited long; until that has started only work that gives way to it may start "
    "there. In its turn it starts as preemptible.",
)
def kept_for_others() -> Reason:
    world = World(node("n1", 4, node_type="v100"), node("n2", 2, node_type="h200"), policy=KEPT, a=q(4), b=q(2))
    world.runs("b", 1, fixed=True)
    world.asks("a", 4, name="a2", age_s=700)
    return held(world, world.asks("b", 1, fixed=True, node_type="v100", age_s=0))


@golden(
    ReasonCode.KEPT_FOR_OTHERS,
    "What is free on n1 and n2 is kept for a2 of a, which has waited long; until that has started only work that gives way to it may "
    "start there. In its turn it starts as preemptible.",
)
def kept_for_others_on_several_nodes() -> Reason:
    nodes = [node("n1", 4, node_type="v100"), node("n2", 4, node_type="v100"), node("n3", 2, node_type="h200")]
    world = World(*nodes, policy=KEPT, a=q(8), b=q(2))
    world.runs("b", 0.5, on="n1", fixed=True)
    world.runs("b", 0.5, on="n2", fixed=True)
    world.asks("a", 4, name="a2", pods=2, age_s=700)
    return held(world, world.asks("b", 1, fixed=True, node_type="v100", age_s=0))


# --- stops -------------------------------------------------------------------------------------------------------------------------------


@golden(
    ReasonCode.RECLAIMED,
    "Reclaimed by project b for b2: a held 3 GPUs, may have 2 and goes back to 2; b goes from 1 to 2 of the 2 it may have. "
    "It is queued again and keeps its place by age.",
)
def reclaimed_names_both_shares_before_and_after() -> Reason:
    world = World(node(gpus=4), a=2, b=2)
    world.runs("a", 2)
    world.runs("a", 1)
    world.runs("b", 1)
    world.asks("b", 1)
    return stopped(world, "a2")


@golden(
    ReasonCode.PREEMPTED,
    "Preempted by a2 of the same project, which has priority 100 (this has 50). It is queued again and keeps its place by age.",
)
def preempted_names_the_priorities() -> Reason:
    world = World(node(gpus=1), a=1)
    world.runs("a", 1)
    world.asks("a", 1, fixed=True)
    return stopped(world, "a1")


@golden(
    ReasonCode.MOVED,
    "Moved from n2 to n1 so that a3 of project a finds its GPUs together. It starts again there at once, with the same command.",
)
def moved_says_where_to_and_for_whom() -> Reason:
    world = World(node("n1", 2), node("n2", 2), a=4)
    world.runs("a", 1, on="n1")
    world.runs("a", 1, on="n2")
    world.asks("a", 2)
    world.cycle()
    (reason,) = world.stop_reasons().values()
    return reason


@golden(
    ReasonCode.MOVED,
    "Moved to another GPU of n1 so that a3 of project a finds its GPUs together. It starts again there at once, with the same command.",
)
def moved_to_another_gpu_of_the_same_node() -> Reason:
    world = World(node("n1", 2), a=q(2))
    world.runs("a", 0.5, group="g1")
    world.runs("a", 0.5, group="g2")
    world.asks("a", 1, fixed=True)
    world.settle()
    (reason,) = set(world.stop_reasons().values())
    return reason


@golden(
    ReasonCode.STALE_GANG,
    "1 of at least 2 pods have been alive for more than 60 s and the rest found no place; all of it is stopped and queued again to "
    "start together.",
)
def a_stale_gang_says_how_many_were_alive_for_how_long() -> Reason:
    world = World(node("n1", 1), a=2)
    gang = world.runs("a", 1, pods=2, on=["n1"], short_of_gang_since=START - 100)
    world.decide()
    return world.stop_reasons()[gang]


@golden(ReasonCode.NODE_LOST, "A node of this gang was lost and 1 of at least 2 pods are left; all of it starts again together.")
def a_gang_that_lost_a_node() -> Reason:
    world = World(node("n1", 1), node("n2", 1), a=2)
    world.asks("a", 1, pods=2)
    world.settle()
    world.engine.lose_node("n1")
    return due(world)


@golden(ReasonCode.NODE_LOST, "Its node was lost.")
def one_pod_that_lost_its_node() -> Reason:
    world = World(node("n1", 1), a=2)
    name = world.runs("a", 1)
    world.engine.lose_node("n1")
    reason = world.get(name).pods[0].stop_reason
    assert reason is not None
    return reason


@golden(ReasonCode.PROCESS_LOST, "The processes of pod 0 vanished without an exit record (killed from outside, or the machine restarted).")
def a_process_that_vanished() -> Reason:
    world = World(node("n1", 1), a=2)
    state, reason = outcome(world.get(world.runs("a", 1)).pods[0], None)
    assert state is PodState.LOST
    assert reason is not None
    return reason


@golden(ReasonCode.PROCESS_LOST, "Its server vanished without a word; start it again from the hub.")
def a_workspace_that_vanished() -> Reason:
    world = World(node("n1", 1), a=2)
    name = world.runs("a", 1, kind=Kind.WORKSPACE)
    world.engine.lose_pod(name, 0)
    return ended(world, name)


@golden(ReasonCode.TIME_LIMIT, "Project a stops interactive work after 60 s; resume it to start it again.")
def a_limit_in_time() -> Reason:
    world = World(node(gpus=2), a=q(2, interactive_time_limit_s=60))
    return ended(world, world.runs("a", 1, fixed=True))


@golden(ReasonCode.IDLE_LIMIT, "It did not use its GPU for 45 s; project a allows 30 s. Resume it to start it again.")
def a_limit_of_idleness() -> Reason:
    world = World(node(gpus=2), a=q(2, idle_limit_train_s=30))
    return ended(world, world.runs("a", 1, idle_s=45.0))


@golden(ReasonCode.GRANT_NOT_TAKEN_UP, "Its place was granted and not taken up within 600 s, so it was given back.")
def a_grant_that_nobody_took_up() -> Reason:
    world = World(node(gpus=2), a=2)
    workload = world.get(world.runs("a", 1, kind=Kind.WORKSPACE))
    world.engine.runs_workspaces = False
    world.engine.put_workload(replace(workload, pods=(replace(workload.pods[0], state=PodState.STARTING),)))
    return ended(world, workload.name)


@golden(ReasonCode.SUSPENDED, "It was suspended by its owner; resume it to queue it again.")
def suspended() -> Reason:
    world = World(node(gpus=2), a=2)
    asyncio.run(world.engine.set_phase(world.runs("a", 1), Phase.SUSPENDED, None, world.now))
    return due(world)


@golden(ReasonCode.OWNER_DELETED, "It was deleted by its owner.")
def deleted_by_its_owner() -> Reason:
    world = World(node(gpus=2), a=2)
    world.delete(world.runs("a", 1))
    return due(world)


@golden(ReasonCode.OWNER_STOPPED, "Its server was stopped.")
def a_workspace_stopped_by_its_owner() -> Reason:
    world = World(node(gpus=2), a=2)
    workload = world.get(world.runs("a", 1, kind=Kind.WORKSPACE))
    asyncio.run(world.engine.report_pod(workload.id, 0, PodState.STOPPED, world.now))
    return ended(world, workload.name)


@golden(ReasonCode.EXITED, "It ended with exit code 3. Its logs say why.")
def interactive_work_that_failed() -> Reason:
    world = World(node(gpus=2), a=2)
    name = world.runs("a", 1, fixed=True)
    world.finish(name, exit_code=3)
    return ended(world, name)


@golden(
    ReasonCode.RETRIES_SPENT,
    "It ended with exit code 3. It failed twice, and 1 retry is allowed (--backoff-limit). Its logs say why.",
)
def a_train_that_failed_too_often() -> Reason:
    world = World(node(gpus=2), a=2)
    name = world.runs("a", 1, backoff_limit=1, failures=1)
    world.finish(name, exit_code=3)
    return ended(world, name)


@golden(ReasonCode.ENGINE_ERROR, "Pod 0 could not be started: its directory could not be prepared (No space left on device).")
def a_machine_that_could_not_start_it() -> Reason:
    world = World(node(gpus=2), a=2)
    pod = world.get(world.runs("a", 1)).pods[0]
    assert pod.state in HOLDING
    _, reason = outcome(pod, None, error="Pod 0 could not be started: its directory could not be prepared (No space left on device).")
    assert reason is not None
    return reason


@golden(
    ReasonCode.GAVE_WAY,
    "It gave way to a2 of project a, for which these GPUs were kept: that had waited longer than 600 s when this started behind it. It is "
    "queued again and keeps its place by age.",
)
def gave_way_to_who_has_waited_long() -> Reason:
    world = World(node("n1", 2), policy=KEPT, a=q(2, 0), b=q(2, 0))
    world.asks("a", 2, name="a2", age_s=700)
    world.runs("b", 1, started_s_ago=50, age_s=60)
    world.runs("b", 1, started_s_ago=50, age_s=60)
    world.cycle()
    return next(iter(world.stop_reasons().values()))


@pytest.mark.parametrize("case", sorted(GOLDEN))
def test_the_sentence_is(case: str) -> None:
    code, sentence, make = GOLDEN[case]
    reason = make()
    assert (reason.code, reason.sentence) == (code, sentence)
    assert list(reason.numbers) == sorted(reason.numbers)


def test_every_reason_has_a_golden_sentence() -> None:
    assert set(ReasonCode) - {code for code, _, _ in GOLDEN.values()} == set()


def test_no_reason_is_insufficient_resources() -> None:
    assert not any("insufficient" in code.value for code in ReasonCode)


def test_a_failure_that_is_final_is_told_as_the_end_of_the_workload() -> None:
    world = World(node(gpus=2), a=2)
    name = world.runs("a", 1, fixed=True)
    world.finish(name, exit_code=3)
    finish = next(d for d in lifecycle.review(world.snapshot(), world.policy, world.now) if isinstance(d, Finish))
    assert (finish.phase, finish.reason and finish.reason.numbers) == ("failed", (("exit_code", 3),))
