"""Golden tests of the sentences: what people read in `runai why` and when their job was stopped."""

from __future__ import annotations

import asyncio

from builders import START, World, node, q
from hotdesk_scheduler.core import lifecycle
from hotdesk_scheduler.core.explain import explain, what_if
from hotdesk_scheduler.core.model import Kind, Policy, Workload
from hotdesk_scheduler.core.plan import Stop
from hotdesk_scheduler.core.reasons import Reason, ReasonCode


def held(world: World, name: str) -> Reason:
    world.settle()
    return world.hold(name)


def test_over_the_projects_limit() -> None:
    world = World(node(gpus=4), a=q(2, limit=2))
    world.runs("a", 2)
    assert held(world, world.asks("a", 1)) == Reason(
        ReasonCode.OVER_PROJECT_LIMIT,
        "Project a may use at most 2 GPUs and uses 2 GPUs; this asks for 1 GPU. It starts when a1 of a ends, "
        "or when the limit of project a is raised to 3 GPUs.",
        (("asked", 1000), ("limit", 2000), ("used", 2000)),
    )


def test_over_the_departments_limit() -> None:
    world = World(node(gpus=4), departments={"d": q(2, limit=2)}, a=q(1, department="d"), b=q(1, department="d"))
    world.runs("a", 1)
    world.runs("b", 1)
    assert held(world, world.asks("a", 1)).sentence == (
        "Department d may use at most 2 GPUs and uses 2 GPUs; this asks for 1 GPU. It starts when b1 of b ends, "
        "or when the limit of department d is raised to 3 GPUs."
    )


def test_non_preemptible_over_quota() -> None:
    world = World(node(gpus=4), a=1)
    world.runs("a", 0.5, fixed=True)
    reason = held(world, world.asks("a", 1, fixed=True))
    assert reason.sentence == (
        "Non-preemptible work never goes over quota: project a has a quota of 1 GPU, non-preemptible work holds 0.5 GPU of it, and this "
        "asks for 1 GPU. It starts when a1 of a ends, as preemptible, when the quota of project a is raised to 1.5 GPUs, or with 0.5 GPU."
    )
    assert reason.numbers == (("asked", 1000), ("quota", 1000), ("used", 500))


def test_fair_share_reached() -> None:
    world = World(node(gpus=4), a=1, b=1)
    world.runs("a", 2)
    world.runs("b", 2)
    reason = held(world, world.asks("a", 1))
    assert reason.code is ReasonCode.FAIR_SHARE_REACHED
    assert reason.sentence == (
        "The fair share is reached: project a may have 2 GPUs now (quota 1) and uses 2; this asks for 1 GPU. The rest is held by "
        "b (2 GPUs). It starts when b1 of b ends."
    )


def test_no_node_is_large_enough() -> None:
    world = World(node("n1", 2), node("n2", 4), a=9)
    assert held(world, world.asks("a", 5)).sentence == (
        "One pod asks for 5 GPUs on one node, and the largest node it may use, n2, has 4. It starts with 4 GPUs."
    )


def test_fragmented() -> None:
    world = World(node("n1", 2), node("n2", 2), a=4)
    world.runs("a", 1, on="n1", fixed=True)
    world.runs("a", 1, on="n2", fixed=True)
    reason = held(world, world.asks("a", 2))
    assert reason.code is ReasonCode.FRAGMENTED
    assert reason.sentence == (
        "2 GPUs are free, but in pieces: the largest free block is 1 on n1, and this asks for 2 GPUs on one node. What runs beside them "
        "cannot be moved together. It starts when a1 of a ends, or with 1 GPU."
    )


def test_a_gang_that_does_not_fit() -> None:
    world = World(node("n1", 2), a=4)
    assert held(world, world.asks("a", 1, pods=3)).sentence == (
        "Its 3 pods start together or not at all, and only 2 of them fit now (1 GPU each). Nothing else runs: it is "
        "larger than the cluster. It starts with 2 pods."
    )


def test_no_node_of_that_type() -> None:
    world = World(node("n1", 2, node_type="v100"), a=4)
    reason = held(world, world.asks("a", 1, node_type="h200"))
    assert reason.code is ReasonCode.NODES_EXCLUDED
    assert reason.sentence == (
        "No ready node matches node type h200: 1 of 1 nodes are ready; node types: v100; pools: default. "
        "It starts if it may use nodes of any type and pool."
    )


def test_short_of_memory() -> None:
    world = World(node("n1", 2, memory_mib=1000), a=4)
    world.runs("a", 1, memory_mib=800)
    assert held(world, world.asks("a", 1, memory_mib=500)).sentence == (
        "It asks for 0.1 CPU core and 500 MiB of memory, and no node with enough free GPUs has that free: at most 79.9 CPU cores and "
        "200 MiB of memory. It starts when a1 of a ends."
    )


def test_held_by_work_that_may_not_be_stopped() -> None:
    world = World(node("n1", 1), a=1, b=1)
    world.runs("a", 1, fixed=True)
    assert held(world, world.asks("b", 1, fixed=True)).sentence == (
        "It asks for 1 GPU on one node, and none is free. They are held by a (1 GPU), and nothing of that may be stopped for it. "
        "It starts when a1 of a ends."
    )


def test_waiting_for_a_release() -> None:
    world = World(node(gpus=1), a=1)
    leaving = world.runs("a", 1)
    world.delete(leaving)
    name = world.asks("a", 1)
    world.cycle()
    assert world.hold(name).sentence == (
        "Its place on n1 is kept while a1 of a shuts down; it starts as soon as that is gone, at the latest when the notice it was given "
        "has run out."
    )


def test_waiting_for_several_to_go() -> None:
    world = World(node(gpus=2), a=q(2), policy=Policy(grace_s=60))
    world.runs("a", 1)
    world.runs("a", 1)
    world.delete("a1", "a2")
    asyncio.run(world._review())
    world.asks("a", 2)
    world.decide()
    assert world.hold("a3").sentence == (
        "Its place on n1 is kept while a1 of a and a2 of a shut down; it starts as soon as they are gone, at the latest when the notice "
        "they were given has run out."
    )


def test_protected_by_the_minimum_run_time() -> None:
    world = World(node(gpus=1), policy=Policy(grace_s=0, min_runtime_s=60), a=0, b=1)
    world.runs("a", 1, started_s_ago=20)
    name = world.asks("b", 1)
    world.cycle()
    assert world.hold(name).sentence == (
        "It may take the place of a1 of a, which started recently: everybody may run for at least 60 s. It starts in 40 s at the latest."
    )


def test_too_young_to_have_others_stopped() -> None:
    world = World(node(gpus=1), policy=Policy(grace_s=0, preemption_delay_s=60), a=0, b=1)
    world.runs("a", 1)
    name = world.asks("b", 1, age_s=20)
    world.cycle()
    assert world.hold(name).sentence == (
        "Nothing that is free suffices, and nobody is stopped for work younger than 60 s: others may be asked to make "
        "way in 40 s. It starts when a1 of a ends."
    )


def test_a_gang_behind_others() -> None:
    world = World(node("n1", 4), a=4, b=2)
    world.runs("a", 3, fixed=True)
    assert held(world, world.asks("b", 1, pods=2)).sentence == (
        "Its 2 pods start together or not at all, and only 1 of them fits now (1 GPU each). The GPUs are held by a (3 GPUs). "
        "It starts when a1 of a ends, or with 1 pod."
    )


def test_backing_off_and_own_pods_stopping_are_told() -> None:
    world = World(node(gpus=2), a=2)
    name = world.asks("a", 1)
    world.settle()
    world.finish(name, exit_code=2)
    world.settle()
    assert world.hold(name).sentence == (
        "It failed with exit code 2 (1 of at most 6 retries) and is tried again after a pause. "
        "Its logs say why; delete it to stop the retries."
    )


def test_an_unknown_project() -> None:
    world = World(node(gpus=1), a=1)
    world.engine.put_workload(Workload(id="x", name="x", project="gone", kind=Kind.TRAIN, pods=world.workload("a").pods))
    world.settle()
    assert world.hold("x").sentence == (
        "There is no project gone (any more). An admin has to create it, or submit this to another project."
    )


def test_reclaimed_names_both_shares_before_and_after() -> None:
    world = World(node(gpus=4), a=2, b=2)
    world.runs("a", 2)
    world.runs("a", 1)
    world.runs("b", 1)
    world.asks("b", 1)
    world.cycle()
    assert world.stop_reasons()["a2"].sentence == (
        "Reclaimed by project b for b2: a held 3 GPUs, may have 2 and goes back to 2; b goes from 1 to 2 of the 2 it may have. "
        "It is queued again and keeps its place by age."
    )


def test_preempted_names_the_priorities() -> None:
    world = World(node(gpus=1), a=1)
    world.runs("a", 1)
    world.asks("a", 1, fixed=True)
    world.cycle()
    assert world.stop_reasons()["a1"].sentence == (
        "Preempted by a2 of the same project, which has priority 100 (this has 50). It is queued again and keeps its place by age."
    )


def test_moved_says_where_to_and_for_whom() -> None:
    world = World(node("n1", 2), node("n2", 2), a=4)
    world.runs("a", 1, on="n1")
    world.runs("a", 1, on="n2")
    world.asks("a", 2)
    world.cycle()
    (reason,) = world.stop_reasons().values()
    assert reason.code is ReasonCode.MOVED
    assert reason.sentence == (
        "Moved from n2 to n1 so that a3 of project a finds its GPUs together. It starts again there at once, with the same command."
    )


def test_moved_to_another_gpu_of_the_same_node() -> None:
    world = World(node("n1", 2), a=q(2))
    world.runs("a", 0.5, group="g1")
    world.runs("a", 0.5, group="g2")
    world.asks("a", 1, fixed=True)
    world.settle()
    assert {reason.sentence for reason in world.stop_reasons().values()} == {
        "Moved to another GPU of n1 so that a3 of project a finds its GPUs together. It starts again there at once, with the same command."
    }


def test_why_and_what_if_say_the_same_as_the_plan() -> None:
    world = World(node(gpus=2), a=1, b=1)
    world.runs("a", 2)
    asked = world.workload("b", 1)
    story = what_if(world.snapshot(), world.policy, world.now, asked)
    assert story.starts_now is True
    assert story.would_stop == ("a1 of a",)
    assert (story.quota_millis, story.fair_share_millis, story.used_millis, story.asked_millis) == (1000, 1000, 0, 1000)
    waits = what_if(world.snapshot(), world.policy, world.now, world.workload("b", 2, fixed=True))
    assert waits.starts_now is False
    assert waits.reason is not None
    assert waits.reason.code is ReasonCode.NON_PREEMPTIBLE_OVER_QUOTA
    assert waits.what_would_help is not None
    running = explain(world.snapshot(), world.policy, world.now, "a1")
    assert running.starts_now is None
    assert running.sentence == "It is running on n1 (2 whole GPUs)."
    assert running.used_millis == 2000, "its own GPUs are its project's too"


def test_why_of_what_starts_is_told_in_words() -> None:
    world = World(node(gpus=2), a=2)
    world.asks("a", 1)
    world.cycle()
    assert explain(world.snapshot(), world.policy, world.now, "a1").sentence == "It is starting on n1 (1 whole GPU)."


def test_why_says_who_holds_the_gpus_its_place_in_the_queue_and_who_took_its_place() -> None:
    world = World(node("n1", 2, node_type="v100"), node("n2", 2, node_type="h200"), a=0, b=1)
    name = world.runs("a", 2, on="n1", node_type="v100")
    world.runs("a", 2, on="n2", node_type="h200", fixed=True)
    world.asks("b", 1, node_type="v100", fixed=True)
    waits = world.asks("a", 1, node_type="h200")
    world.settle()
    story = explain(world.snapshot(), world.policy, world.now, name)
    assert story.held_by == (("b", 1000),)
    assert (story.queue_position, story.queue_length) == (1, 2)
    assert story.stopped is not None
    assert story.stopped.code is ReasonCode.RECLAIMED
    assert explain(world.snapshot(), world.policy, world.now, waits).held_by == (("a", 2000),)


def test_what_if_on_free_gpus_says_where() -> None:
    world = World(node("n1", 2), a=1)
    story = what_if(world.snapshot(), world.policy, world.now, world.workload("a", 0.5))
    assert story.sentence == "Starts now on n1 (0.5 of one GPU)."
    assert (story.node, story.gpus) == ("n1", "0.5 of one GPU")


def test_a_gpu_with_less_memory_than_asked_and_a_node_with_fewer_cores() -> None:
    world = World(node(gpus=2, cpu_millis=8000), a=2)
    memory, cores = world.asks("a", gpu_memory_mib=40_000), world.asks("a", 1, cpu_millis=9000)
    assert held(world, memory).sentence == (
        "It asks for 40000 MiB of one GPU's memory, and the largest GPU here has 32768 MiB; more than that never starts here."
    )
    assert world.hold(cores).sentence == (
        "One pod asks for 9 CPU cores, and no node it may use has more than 8 CPU cores, even when it is empty."
    )


def test_limits_in_time_say_the_limit_and_how_to_go_on() -> None:
    world = World(node(gpus=2), a=q(2, interactive_time_limit_s=60, idle_limit_train_s=30))
    session = world.runs("a", 1, fixed=True)
    idle = world.runs("a", 1, idle_s=45.0)
    world.cycle()
    time_limit, idle_limit = world.get(session).phase_reason, world.get(idle).phase_reason
    assert time_limit is not None
    assert idle_limit is not None
    assert (time_limit.code, idle_limit.code) == (ReasonCode.TIME_LIMIT, ReasonCode.IDLE_LIMIT)
    assert time_limit.sentence == "Project a stops interactive work after 60 s; resume it to start it again."
    assert idle_limit.sentence == "It did not use its GPU for 45 s; project a allows 30 s. Resume it to start it again."


def test_no_reason_is_insufficient_resources() -> None:
    assert not any("insufficient" in code.value for code in ReasonCode)


def test_a_gang_that_lost_a_node_says_so() -> None:
    world = World(node("n1", 1), node("n2", 1), a=2)
    world.asks("a", 1, pods=2)
    world.settle()
    world.engine.lose_node("n1")
    (stop,) = [d for d in lifecycle.review(world.snapshot(), world.policy, world.now) if isinstance(d, Stop)]
    assert stop.reason.code is ReasonCode.NODE_LOST
    assert stop.reason.sentence == ("A node of this gang was lost and 1 of at least 2 pods are left; all of it starts again together.")


def test_a_stale_gang_says_how_many_were_alive_for_how_long() -> None:
    world = World(node("n1", 1), a=2)
    gang = world.runs("a", 1, pods=2, on=["n1"], short_of_gang_since=START - 100)
    world.decide()
    reason = world.stop_reasons()[gang]
    assert reason.code is ReasonCode.STALE_GANG
    assert reason.sentence == (
        "1 of at least 2 pods have been alive for more than 60 s and the rest found no place; all of it is stopped and queued again to "
        "start together."
    )
