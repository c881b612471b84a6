"""The garbage collector is out of the way of a decision, and back afterwards."""

from __future__ import annotations

import gc

import pytest
from hotdesk_scheduler import collector


def test_the_collector_rests_during_a_decision_and_works_again_after_one_that_fails() -> None:
    with pytest.raises(ZeroDivisionError), collector.paused():
        decide_badly()
    assert gc.isenabled()


def decide_badly() -> None:
    assert not gc.isenabled()
    raise ZeroDivisionError


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with collector.paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
