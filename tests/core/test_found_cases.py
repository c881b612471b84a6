"""Cases that random histories found, each as small as it got. `World.decide` checks every plan against the invariants."""

from __future__ import annotations

from dataclasses import replace

from builders import World, at_once, node, q
from hotdesk_scheduler.core.model import Placement, PodState, Quota, Share


def on_shared_gpus(world: World, name: str, *groups: str) -> str:
    """A workload of fractions that runs, one pod on each of these shared GPUs of n1."""
    workload = world.get(name)
    places = [Placement("n1", shares=(Share(group, workload.pods[0].request.gpu.millis),)) for group in groups]
    pods = (replace(p, state=PodState.RUNNING, placement=place) for p, place in zip(workload.pods, places, strict=True))
    world.engine.put_workload(replace(workload, pods=tuple(pods)))
    return name


def test_a_gang_that_was_moved_is_not_stopped_in_part_by_the_same_plan() -> None:
    of_x = {"department": "x"}
    world = World(
        node("n1", 4), departments={"x": q(3, 0)}, a=q(1, 1, **of_x), b=q(1, **of_x), c=q(1, 0, over_quota=False, **of_x), d=q(3, **of_x)
    )
    on_shared_gpus(world, world.asks("b", 0.7, priority=40), "g0")
    on_shared_gpus(world, world.asks("d", 0.7, pods=2), "g2", "g3")
    gang = on_shared_gpus(world, world.asks("b", 0.25, pods=3, priority=60), "g0", "g1", "g1")
    world.asks("a", 1, priority=40)
    world.asks("c", 1, fixed=True)
    world.settle()
    assert world.pods_running(gang) in (0, 3)


def test_a_place_kept_for_a_notebook_is_given_up_when_the_quota_is_lowered_meanwhile() -> None:
    world = World(node("n1", 1), a=q(1), b=q(0))
    lent = world.runs("b", 1)
    notebook = world.asks("a", 1, fixed=True)
    world.cycle()
    assert world.get(notebook).pods[0].nominated
    at_once(world.engine.put_project(replace(world.snapshot().projects[0], gpu=Quota(0))))
    world.settle()
    assert world.running() == [lent]
    assert world.pending() == [notebook]
