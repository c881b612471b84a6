"""The numbers beside an explanation, in words."""

from __future__ import annotations

from hotdesk_api.explained import numbers
from hotdesk_api.models import Displaced, Explanation, ReasonOut


def stopped(name: str, **told: int) -> Displaced:
    return Displaced(name=name, project="a", reason=ReasonOut(code="reclaimed", sentence="", numbers=dict(told)))


def test_pods_of_a_workload_that_goes_on_are_counted() -> None:
    shown = numbers(Explanation(sentence="", would_stop=[stopped("a1"), stopped("a2", pods=1), stopped("a3", pods=2)]))
    assert shown["WOULD STOP"] == "a1 of a (reclaimed), 1 pod of a2 of a (reclaimed), 2 pods of a3 of a (reclaimed)"
