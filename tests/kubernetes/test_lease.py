"""Who leads, on a real API server: nobody's clock is trusted but one's own, and nobody writes who may have been followed by another."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from cluster.running import Cluster
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError
from hotdesk_scheduler.engines.kubernetes.codec import micro_time
from hotdesk_scheduler.engines.kubernetes.lease import NAME, Lease, Terms

YEAR_S = 365 * 86_400.0
TERMS = Terms(lasts_s=10.0, renew_s=3600.0, look_s=0.02)  # the tests' clocks move when told
KEEPING = Terms(lasts_s=30.0, renew_s=0.05, look_s=0.02)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Leases:
    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self.path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{NAME}"

    def lease(self, identity: str, clock: Clock | None = None, terms: Terms = TERMS) -> Lease:
        return Lease(self.api, self.namespace, identity, terms=terms, monotonic=clock or Clock())

    async def spec(self) -> dict[str, Any]:
        return dict((await self.api.get(self.path))["spec"])

    async def write(self, **spec: Any) -> None:
        await self.api.merge(self.path, {"spec": spec})


@pytest.fixture
async def leases(cluster: Cluster) -> AsyncIterator[Leases]:
    api = await Api.connect(cluster.kubeconfig)
    name = f"test-{uuid.uuid4().hex[:8]}"
    await api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield Leases(api, name)
    await api.delete(f"/api/v1/namespaces/{name}")
    await api.close()


async def looks(lease: Lease, times: int = 5) -> bool:
    """Whether it takes it within so many looks."""
    return any([await lease._try() for _ in range(times)])


@pytest.mark.parametrize("skew_s", [-YEAR_S, 0.0, YEAR_S], ids=["long ago", "right", "far ahead"])
async def test_how_late_it_is_by_the_holders_clock_does_not_matter(leases: Leases, skew_s: float) -> None:
    clock = Clock()
    await leases.lease("one").take()
    second = leases.lease("two", clock)
    at = micro_time(1_800_000_000.0 + skew_s)
    await leases.write(renewTime=at, acquireTime=at)
    assert not await looks(second)
    clock.now += TERMS.lasts_s - 1
    await leases.write(renewTime=at)  # no other version: nothing was renewed
    assert not await looks(second)
    clock.now += 2
    assert await looks(second)
    assert (await leases.spec())["holderIdentity"] == "two"


async def test_a_renewal_counts_from_when_it_is_seen(leases: Leases) -> None:
    clock = Clock()
    await leases.lease("one").take()
    second = leases.lease("two", clock)
    for number in range(4):
        assert not await looks(second, 2)
        clock.now += TERMS.lasts_s - 1
        await leases.write(renewTime=micro_time(1_800_000_000.0 + number))


async def test_who_slept_too_long_may_not_write_any_more_even_before_he_looks(leases: Leases) -> None:
    clock = Clock()
    first = leases.lease("one", clock, Terms(lasts_s=10.0, renew_s=2.0, look_s=0.02))
    assert not first.holds()
    await first.take()
    api = leases.api
    assert first.holds()
    clock.now += 7.9
    assert first.holds()
    clock.now += 0.2
    assert not first.holds()
    assert not first.lost.is_set()
    api.may_write = first.holds
    with pytest.raises(ApiError, match="another scheduler may lead"):
        await api.merge(leases.path, {"metadata": {"labels": {"a": "b"}}})
    assert await api.get(leases.path)
    api.may_write = lambda: True


@pytest.mark.parametrize(
    "nonsense",
    [
        {"leaseDurationSeconds": 2_000_000_000},
        {"leaseDurationSeconds": None},
        {"leaseTransitions": None, "renewTime": None, "acquireTime": None},
    ],
    ids=["for ever", "no duration", "no times"],
)
async def test_what_a_hand_wrote_into_it_stops_nobody_for_ever(leases: Leases, nonsense: dict[str, Any]) -> None:
    clock = Clock()
    await leases.lease("one").take()
    await leases.write(**nonsense)
    second = leases.lease("two", clock)
    assert not await looks(second)
    clock.now += 301
    assert await looks(second)


async def test_a_lease_that_is_deleted_is_not_taken_before_its_holder_has_noticed(leases: Leases) -> None:
    clock = Clock()
    first, second = leases.lease("one", terms=KEEPING), leases.lease("two", clock)
    await leases.lease("one").take()
    assert not await looks(second)
    await leases.api.delete(leases.path)
    assert not await looks(second)
    await first.take()  # it makes it again
    assert not await looks(second)
    await leases.api.delete(leases.path)
    for _ in range(500):
        try:
            if (await leases.spec())["holderIdentity"] == "one":
                break
        except ApiError:
            await asyncio.sleep(0.02)
    assert (await leases.spec())["holderIdentity"] == "one"
    assert not first.lost.is_set()
    await first.give_up()
    assert await looks(second)


async def test_who_waited_makes_a_deleted_lease_again_with_what_was_noted_on_it(leases: Leases) -> None:
    clock = Clock()
    await leases.lease("one").take()
    await leases.api.merge(leases.path, {"metadata": {"annotations": {"a": "b"}}})
    second = leases.lease("two", clock)
    assert not await looks(second)
    await leases.api.delete(leases.path)
    clock.now += TERMS.lasts_s + 1
    assert await looks(second)
    assert (await leases.api.get(leases.path))["metadata"]["annotations"] == {"a": "b"}


async def test_who_finds_another_name_in_it_gives_up(leases: Leases) -> None:
    first = leases.lease("one", terms=KEEPING)
    await first.take()
    await leases.write(holderIdentity="a hand")
    await asyncio.wait_for(first.lost.wait(), 30)
    assert not first.holds()
