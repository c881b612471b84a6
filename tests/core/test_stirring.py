"""Whom lifecycle need not look at: nobody for whom it would have decided anything."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from builders import World, node
from hotdesk_scheduler.core import lifecycle
from hotdesk_scheduler.core.stirring import Stirring
from hypothesis import given, settings
from random_worlds import SEEDS, QuickWorld, a_history


class Reviewed(QuickWorld):
    """A world that compares both reviews in every cycle, and counts what they decided."""

    decided = 0

    def __init__(self, *nodes: Any, **more: Any) -> None:
        super().__init__(*nodes, **more)
        self.stirring = Stirring()

    def compare(self) -> None:
        whole = lifecycle.review(self.snapshot(), self.policy, self.now)
        assert lifecycle.review(self.stirring.of(self.snapshot()), self.policy, self.now) == whole
        Reviewed.decided += len(whole)

    async def _review(self) -> bool:
        self.compare()
        moved = await super()._review()
        self.compare()
        return moved


@settings(max_examples=100)
@given(seed=SEEDS)
def _both_review_alike(seed: int) -> None:
    world = a_history(seed, kind=Reviewed)
    assert isinstance(world, Reviewed)
    world.compare()


def test_in_any_history_those_who_stir_are_reviewed_as_everybody_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reviewed, "decided", 0)
    _both_review_alike()
    assert Reviewed.decided > 100


def test_a_limit_in_time_that_comes_later_stirs_who_was_quiet() -> None:
    world = World(node("n1", 2), a=2)
    world.runs("a", 1, fixed=True, started_s_ago=500.0)
    stirring = Stirring()
    assert stirring.of(world.snapshot()).workloads == ()
    project = world.snapshot().projects[0]
    asyncio.run(world.engine.put_project(replace(project, interactive_time_limit_s=100.0)))
    assert len(stirring.of(world.snapshot()).workloads) == 1
    assert lifecycle.review(stirring.of(world.snapshot()), world.policy, world.now)


def test_who_is_gone_is_forgotten() -> None:
    world = World(node("n1", 2), a=2)
    stirring = Stirring()
    for number in range(4000):
        waiting = world.workload("a", 1, name=f"w{number}")
        stirring.of(replace(world.snapshot(), workloads=(waiting,)))
    assert len(stirring._quiet) < 1100
