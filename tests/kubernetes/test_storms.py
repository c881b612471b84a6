"""Bad days of a whole installation: real schedulers, real control plane, work that comes and goes. No pod twice, no GPU twice."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.control_plane import ControlPlane
from cluster.programs import why_not_built
from hotdesk_scheduler.engines.kubernetes import crds, resources
from hotdesk_scheduler.engines.kubernetes.api import ApiError
from storm import LEASE_S, Storm, start_plane, storm

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of these tests alone: they break it."""
    if reason := why_not_built(1):
        pytest.skip(f"no Kubernetes here: {reason}")
    plane = start_plane(tmp_path_factory.mktemp("plane"))
    yield plane
    plane.stop()


async def test_schedulers_killed_again_and_again_in_the_middle_of_things(plane: ControlPlane, tmp_path: Path) -> None:
    async with storm(plane, tmp_path, seed=1) as world, world.churn():
        for number in range(5):
            await asyncio.sleep(world.random.uniform(0.2, 1.5))
            leader = await world.until(world.leader, "somebody leading")
            await world.kill(leader)
            if number == 2:
                for one in world.schedulers:
                    one.kill()
        await world.until(world.leader, "somebody leading")


async def test_a_leader_that_was_asleep_for_longer_than_its_lease_does_nothing_when_it_wakes(plane: ControlPlane, tmp_path: Path) -> None:
    async with storm(plane, tmp_path, seed=2, lease_s=LEASE_S) as world, world.churn():
        sleeper = await world.until(world.leader, "somebody leading")
        process = sleeper.process
        world.signal(sleeper, signal.SIGSTOP)
        await _another_leads(world, sleeper)
        await asyncio.sleep(1)  # the new one gives out what the sleeper thinks is his to give
        world.signal(sleeper, signal.SIGCONT)
        await asyncio.to_thread(process.wait, 30)
        assert "another scheduler" in world.logs().lower()


async def test_the_api_server_is_killed_and_what_etcd_knew_of_the_past_is_compacted(plane: ControlPlane, tmp_path: Path) -> None:
    async with storm(plane, tmp_path, seed=3) as world, world.churn():
        for _ in range(2):
            await world.submit("team-b", runs_for="100ms")
            plane.processes.send("kube-apiserver", signal.SIGKILL)
            _compact(plane)
            plane.processes.start_again("kube-apiserver")
            await world.until(lambda: world.api.get("/version"), "the API server answering again")
        await world.until(world.leader, "somebody leading")
        assert "watch.expired" in world.logs()


async def test_etcd_stands_still_for_longer_than_a_lease_and_is_slow_afterwards(plane: ControlPlane, tmp_path: Path) -> None:
    async with storm(plane, tmp_path, seed=4, lease_s=LEASE_S) as world, world.churn():
        plane.processes.send("etcd", signal.SIGSTOP)
        await asyncio.sleep(LEASE_S + 3)
        plane.processes.send("etcd", signal.SIGCONT)
        for _ in range(10):
            await asyncio.sleep(0.15)
            plane.processes.send("etcd", signal.SIGSTOP)
            await asyncio.sleep(world.random.uniform(0.1, 0.5))
            plane.processes.send("etcd", signal.SIGCONT)
        await world.until(world.leader, "somebody leading")


async def _another_leads(world: Storm, former: Any) -> None:
    async def other() -> bool:
        found = await world.leader()
        return found is not None and found is not former

    await world.until(other, "the other one taking over")


def _compact(plane: ControlPlane) -> None:
    """As the API server asks etcd to every five minutes."""

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(f"{plane.etcd}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    revision = ask("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
    ask("/v3/kv/compaction", {"revision": revision, "physical": True})


async def test_definitions_lose_their_rules_and_are_deleted_while_schedulers_run(plane: ControlPlane, tmp_path: Path) -> None:
    async with storm(plane, tmp_path, seed=5) as world:
        leader = await world.until(world.leader, "somebody leading")
        await _without_rules(world, "workloads", "projects")
        there = world.there("team-b")
        nonsense: dict[str, dict[str, Any]] = {
            "nothing": {},
            "words": {"image": 5, "gpuMillis": "many"},
            "negative": {"image": "x", "gpuMillis": -1},
        }
        for name, spec in nonsense.items():
            await world.write("Workload", there, name, spec)
        await world.write("Project", world.namespace, "debts", {"gpu": {"quota": -5}})
        await world.write("Project", world.namespace, "poem", {"gpu": "all of them", "weight": {}})
        paths = [resources.path("Workload", there, name) for name in nonsense]
        for path in (*paths, *(resources.path("Project", world.namespace, name) for name in ("debts", "poem"))):
            await _refused(world, path)
            await world.api.delete(path)
        await crds.install(world.api)
        assert await world.leader() is leader
        await _delete_definition(world, "workloads")
        await world.until(lambda: _is_empty(world), "what ran having ended")
        before = len(_complaints(world))
        await asyncio.sleep(5)
        assert len(_complaints(world)) - before < 25, _complaints(world)[before:]
        await _delete_definition(world, "projects")
        await crds.install(world.api)
        assert await world.leader() is leader
        for name in ("team-a", "team-b"):
            await world.write("Project", world.namespace, name, {"gpu": {"quota": 12_000}})
        await world.fill()
        assert await world.leader() is leader
        assert "loop.pass_failed" not in world.logs()


async def _without_rules(world: Storm, *plurals: str) -> None:
    """As somebody does with `kubectl edit crd` who wants his object in at any price; the columns go as well."""
    for plural in plurals:
        path = f"{_DEFINITIONS}/{plural}.hotdesk.io"
        definition = await world.api.get(path)
        version = definition["spec"]["versions"][0]
        version["schema"] = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        version.pop("additionalPrinterColumns", None)
        await world.api.put(path, definition)


async def _delete_definition(world: Storm, plural: str) -> None:
    path = f"{_DEFINITIONS}/{plural}.hotdesk.io"
    await world.api.delete(path)

    async def is_gone() -> bool:
        try:
            await world.api.get(path)
        except ApiError as error:
            return error.status == 404
        return False

    await world.until(is_gone, f"the definition of {plural} being gone")


async def _refused(world: Storm, path: str) -> None:
    """It says what is wrong with it."""

    async def is_so() -> bool:
        conditions = (await world.api.get(path)).get("status", {}).get("conditions", [])
        return any(one["type"] == "Accepted" and one["status"] == "False" and one["message"] for one in conditions)

    await world.until(is_so, f"{path} saying what is wrong with it")


async def _is_empty(world: Storm) -> bool:
    return not world.history.alive


def _complaints(world: Storm) -> list[str]:
    return [line for line in world.logs().splitlines() if " WARNING " in line or " ERROR " in line]
