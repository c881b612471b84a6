"""What the fake does beyond the contract that every engine keeps: its pods move when told."""

from __future__ import annotations

import asyncio

from builders import World, node
from hotdesk_scheduler.core.model import Kind, PodState
from hotdesk_scheduler.core.reasons import Reason, ReasonCode


def test_pods_move_only_when_told() -> None:
    world = World(node(gpus=1), a=1)
    name = world.asks("a", 1)
    world.cycle()
    assert world.get(name).pods[0].state is PodState.STARTING
    assert world.engine.settle()
    assert world.get(name).pods[0].state is PodState.RUNNING
    assert not world.engine.settle()


def test_automatic_pods_settle_by_themselves() -> None:
    world = World(node(gpus=1), a=1)
    world.engine.automatic = True
    name = world.asks("a", 1)
    world.cycle()
    assert world.get(name).pods[0].state is PodState.RUNNING


def test_a_workspace_runs_and_ends_when_its_host_says_so() -> None:
    world = World(node(gpus=1), a=1)
    world.engine.runs_workspaces = False
    name = world.asks("a", 1, kind=Kind.WORKSPACE)
    world.cycle()
    assert not world.engine.settle()
    asyncio.run(world.engine.report_pod(name, 0, PodState.RUNNING, world.now))
    assert world.get(name).pods[0].state is PodState.RUNNING
    asyncio.run(world.engine.stop_pod(name, 0, Reason(ReasonCode.OWNER_STOPPED, "Stopped."), 30, world.now))
    assert world.get(name).pods[0].state is PodState.RELEASING
    asyncio.run(world.engine.report_pod(name, 0, PodState.SUCCEEDED, world.now))
    assert world.get(name).pods[0].state is PodState.STOPPED


def test_the_version_grows_with_every_change_and_with_nothing_else() -> None:
    world = World(node(gpus=1), a=1)
    before = world.snapshot().version
    assert world.snapshot().version == before
    world.asks("a", 1)
    assert world.snapshot().version > before
