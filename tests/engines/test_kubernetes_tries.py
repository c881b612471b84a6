"""What the API server fails to do or refuses, in sentences; the times are the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hotdesk_scheduler.engines.kubernetes import tries
from hotdesk_scheduler.engines.kubernetes.api import ApiError
from hotdesk_scheduler.engines.kubernetes.tries import GivenUpError, Tries

BROKEN = ApiError(500, "InternalError", 'failed calling webhook "images.example.org".')


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "TOLD_AFTER_S", 0.3)
    monkeypatch.setattr(tries, "GIVEN_UP_AFTER_S", 1.0)


async def tried(answers: Iterator[ApiError | None], *, ends: bool = True) -> list[str]:
    """What is told until an answer is good (None). After the last one it is broken."""
    told: list[str] = []

    async def call() -> bool:
        answer = next(answers, BROKEN)
        if answer is not None:
            raise answer
        return True

    await Tries("It cannot be made", told.append, ends=ends).until_it_works(call, gives_up=lambda: False)
    return told


async def test_a_server_that_fails_for_a_moment_is_not_told() -> None:
    assert await tried(iter([BROKEN, None])) == []


async def test_one_that_fails_on_is_told_with_since_when_and_what_it_says() -> None:
    first, *_ = await tried(iter([BROKEN, BROKEN, BROKEN, None]))
    assert first.startswith("It cannot be made; it has been tried again and again since ")
    assert first.endswith(' UTC: the API server answers 500 failed calling webhook "images.example.org".')


async def test_one_that_fails_for_long_is_given_up_unless_it_has_to_be_done() -> None:
    with pytest.raises(GivenUpError, match=r"^It cannot be made for \d+ s: the API server answers 500 failed calling webhook"):
        await tried(iter([]))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            await tried(iter([]), ends=False)


async def test_a_server_that_is_away_is_waited_for_in_silence() -> None:
    away = ApiError(0, "ClientConnectorError", "Cannot connect")
    assert await tried(iter([away, away, away, away, None])) == []


def test_who_refuses_is_named_with_the_next_step() -> None:
    who, what = "system:serviceaccount:hotdesk:hotdesk", "Its pod cannot be deleted"
    lacks = f'pods "x" is forbidden: User "{who}" cannot delete resource "pods" in API group "" in the namespace "hotdesk-a"'
    assert tries.refused(what, ApiError(403, "Forbidden", lacks), "deletes it") == (
        "Its pod cannot be deleted: Hotdesk has no right to delete pods in namespace hotdesk-a. An admin grants it to "
        f"{who}: the chart's role has all that is needed (rbac.create). It is tried again every 30 s."
    )
    rule = 'admission webhook "keep.example.org" denied the request: not today'
    assert tries.refused(what, ApiError(422, "Invalid", rule), "deletes it: kubectl delete pod x -n a") == (
        f"Its pod cannot be deleted: a rule of the cluster refuses it: {rule}. An admin changes that rule, or deletes it: "
        "kubectl delete pod x -n a. It is tried again every 30 s."
    )
