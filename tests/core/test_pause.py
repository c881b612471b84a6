"""Scheduling paused: nothing starts, nothing gives way, and who waits is told by whom it was paused."""

from __future__ import annotations

from dataclasses import replace

from builders import World, node
from hotdesk_scheduler.core import explain
from hotdesk_scheduler.core.decide import decide
from hotdesk_scheduler.core.memory import Memory
from hotdesk_scheduler.core.model import Policy
from hotdesk_scheduler.core.reasons import Reason, ReasonCode

PAUSED = Reason(ReasonCode.PAUSED, "Scheduling is paused by ann since 2026-01-05 08:00 UTC; it goes on when an admin resumes it.")


def test_in_a_pause_nothing_starts_and_everybody_who_waits_is_told_who_paused() -> None:
    world = World(node(gpus=8), a=4, b=4, policy=Policy(grace_s=0, paused=PAUSED))
    names = [world.asks("a"), world.asks("b", 2), world.asks("a", 4, pods=3), world.asks("b", 0.5)]
    world.settle()
    assert world.running() == []
    assert [world.hold(name) for name in names] == [PAUSED] * 4
    world.policy = Policy(grace_s=0)
    world.settle()
    assert world.running() == ["a1", "b1", "b2"]


def test_in_a_pause_nobody_gives_way_and_what_runs_ends_as_ever() -> None:
    world = World(node(gpus=2), a=0, b=2, policy=Policy(grace_s=0, paused=PAUSED))
    ends, lent = world.runs("a"), world.runs("a")
    owner = world.asks("b", 2)
    world.settle()
    assert world.running() == [ends, lent]
    world.finish(ends)
    world.settle()
    assert world.running() == [lent]
    assert world.hold(owner) == PAUSED
    world.policy = Policy(grace_s=0)
    world.settle()
    assert world.running() == [owner]


def test_a_place_that_was_kept_before_the_pause_is_not_taken_in_it() -> None:
    world = World(node(gpus=1), a=0, b=1)
    world.runs("a")
    owner = world.asks("b")
    world.cycle()  # the lender is stopped, its place is kept for the owner
    assert world.get(owner).pods[0].nominated is not None
    world.policy = replace(world.policy, paused=PAUSED)
    world.settle()
    assert world.running() == []
    assert world.hold(owner) == PAUSED
    world.policy = replace(world.policy, paused=None)
    world.settle()
    assert world.running() == [owner]


def test_with_a_memory_of_before_the_pause_the_plan_is_the_same() -> None:
    world = World(node(gpus=2), a=1, b=1)
    world.runs("a")
    world.runs("a")
    world.asks("b")
    memory, snapshot = Memory(), world.snapshot()
    before = decide(snapshot, world.policy, world.now, memory)
    assert before.acts
    paused = replace(world.policy, paused=PAUSED)
    warm = decide(snapshot, paused, world.now, memory)
    assert warm.acts == ()
    assert list(warm.holds) == list(decide(snapshot, paused, world.now).holds)
    assert decide(snapshot, world.policy, world.now, memory).acts == before.acts


def test_why_says_it_too() -> None:
    world = World(node(gpus=2), a=1)
    name = world.asks("a")
    found = explain.explain(world.snapshot(), replace(world.policy, paused=PAUSED), world.now, name)
    assert found.starts_now is False
    assert PAUSED.sentence in found.sentence
