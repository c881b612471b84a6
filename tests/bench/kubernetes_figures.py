"""The scheduler on a cluster of 500 nodes with 8 GPUs each that kwok plays, beside what the API server itself can do in the same run."""

from __future__ import annotations

import asyncio
import os
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
from cluster.programs import why_not_built
from figure import Figure
from large_cluster import GPUS, Caller, Large, job, large, until
from scheduler_fixture import Scheduler

NODES = int(os.environ.get("HOTDESK_BENCH_NODES", "500"))  # fewer while developing; the bars are for 500
QUEUED_PER_NODE = 20
RECLAIMS = 5
PROJECTS = f"team-a={NODES * GPUS // 4},team-b={NODES * GPUS // 4},team-g={NODES * GPUS // 2}"


@dataclass(frozen=True)
class Took:
    """Seconds from the first request until all pods run, and the CPU time of all programs in it."""

    running: float
    cpu: float


def kubernetes() -> Iterator[Figure]:
    """Submission, reclaim, gangs and memory on a large cluster."""
    reason = why_not_built(1)
    if reason:
        print(f"kubernetes: skipped, {reason}")
        return
    found: list[Figure] = []
    try:
        asyncio.run(_measure(found))
    except Exception:  # what was measured until then is told, and the rest does not hold
        traceback.print_exc()
        found.append(Figure("kubernetes: broke off before the end", 1, "times", bar=0))
    yield from found


async def _measure(found: list[Figure]) -> None:
    """Adds to `found` as it goes."""
    async with large(NODES, f"bench-{os.getpid()}") as world:
        raw = await _raw(world, "raw")
        found.append(Figure(f"{_all()} pods created on their nodes, all running (the API server alone)", raw.running, "s"))
        found += await _submitted(world, raw)
        again = await _raw(world, "raw-again")  # in turns: the machine may be a slower or a quicker one by now
        found.append(Figure(f"{_all()} pods created on their nodes once more", again.running, "s"))
        await _held_then_let_go(world, again, found)


def _all() -> int:
    return NODES * GPUS


def _id(scheduler: Scheduler) -> int:
    assert scheduler.process is not None
    return scheduler.process.pid


async def _raw(world: Large, name: str) -> Took:
    world.cluster.add_namespace(world.namespace(name))
    cpu = world.cpu_s()
    begun = time.perf_counter()
    async with world.watched(world.pods_path(name), "status.phase=Running") as running:
        await world.create_pods(name, _all())
        took = Took(await running.until(came=_all()) - begun, world.cpu_s() - cpu)
    await world.delete_pods(name)
    return took


async def _submitted(world: Large, raw: Took) -> list[Figure]:
    """All of them through REST while they are scheduled."""
    async with world.installed("one", PROJECTS) as (scheduler, caller):
        before, cpu = await world.requests_about_workloads(), world.cpu_s(_id(scheduler))
        begun = time.perf_counter()
        async with world.watched(world.pods_path("team-a"), "status.phase=Running") as running:
            await caller.submit([job(f"job-{number}", "team-a") for number in range(_all())])
            took = Took(await running.until(came=_all()) - begun, world.cpu_s(_id(scheduler)) - cpu)
        await _until_listed(caller, _all())
        listed = time.perf_counter() - begun
        await world.until_told()
        told = time.perf_counter() - begun
        requests = (await world.requests_about_workloads() - before) / _all()
    await world.delete_pods("team-a")
    return [
        Figure(f"{_all()} workloads submitted over REST, all running", max(took.running, listed), "s"),
        Figure("submitted over REST against the API server alone", max(took.running, listed) / raw.running, "x", bar=2.5),
        Figure("the same in CPU time of all programs together", took.cpu / raw.cpu, "x"),
        Figure("the same until every status and event is written", told / raw.running, "x"),
        Figure("requests to the API server for each started workload", requests, "requests", bar=6),
    ]


async def _held_then_let_go(world: Large, raw: Took, found: list[Figure]) -> None:
    """Scheduling is paused while they are submitted; then, on the full cluster, everything else."""
    async with world.installed("two", PROJECTS) as (scheduler, caller):
        await caller.call("PUT", "/v1/scheduling", '{"paused": true, "why": "bench"}')
        await caller.submit([job(f"job-{number}", "team-a") for number in range(_all())])
        async with world.watched(world.pods_path("team-a"), "status.phase=Running") as running:
            begun, cpu = time.perf_counter(), world.cpu_s(_id(scheduler))
            await caller.call("PUT", "/v1/scheduling", '{"paused": false}')
            took = Took(await running.until(came=_all()) - begun, world.cpu_s(_id(scheduler)) - cpu)
        await _until_listed(caller, _all())
        listed = time.perf_counter() - begun
        found += [
            Figure("scheduling let go, all running, against the API server alone", max(took.running, listed) / raw.running, "x", bar=1.5),
            Figure("scheduling let go, in CPU time of all programs together", took.cpu / raw.cpu, "x"),
        ]
        await world.until_told()
        found += await _reclaims(world, caller)
        found += [await _verdict(caller)]
        found += await _long_queue(world, scheduler, caller)
        found += [await _gang(world, caller)]


async def _until_listed(caller: Caller, wanted: int) -> None:
    async def all_run() -> bool:
        items = (await caller.call("GET", "/v1/workloads"))["items"]
        return [item["status"] for item in items].count("Running") >= wanted

    await until(all_run, "all being listed as running")


async def _reclaims(world: Large, caller: Caller) -> list[Figure]:
    """One GPU at a time for a project within its quota; the cluster is full of what was lent to another one."""
    notices, bindings = [], []
    for number in range(RECLAIMS):
        async with world.watched(world.pods_path("team-a")) as lent, world.watched(world.pods_path("team-b")) as owned:
            begun = time.perf_counter()
            await caller.submit([job(f"mine-{number}", "team-b")])
            notices.append(await lent.until(leaving=1) - begun)
            gone = await lent.until(went=1)
            bindings.append(await owned.until(came=1) - gone)
        await world.until_told()
    return [
        Figure(f"reclaim of one GPU: submit to the victim's notice, worst of {RECLAIMS}", max(notices), "s", bar=1.0),
        Figure(f"reclaim of one GPU: victim gone to the new pod bound, worst of {RECLAIMS}", max(bindings), "s", bar=1.0),
    ]


async def _verdict(caller: Caller) -> Figure:
    """Of a gang of more pods than there are nodes, and of one beyond its project's share."""
    took = []
    for name, project, pods in (("too-wide", "team-b", NODES + 1), ("too-much", "team-a", NODES)):
        begun = time.perf_counter()
        await caller.submit([job(name, project, workers=pods, gpu_millis=GPUS * 1000)])

        async def has_reason(project: str = project, name: str = name) -> bool:
            reason = (await caller.call("GET", f"/v1/workloads/{project}/{name}"))["reason"]
            return bool(reason) and reason["code"] not in ("queued", "waiting_for_release")

        await until(has_reason, f"the verdict on {name}", pause_s=0.02)
        took.append(time.perf_counter() - begun)
        await caller.call("DELETE", f"/v1/workloads/{project}/{name}")
    return Figure("verdict on a gang that cannot start, on the full cluster, worst of 2", max(took), "s", bar=2.0)


async def _long_queue(world: Large, scheduler: Scheduler, caller: Caller) -> list[Figure]:
    """So many more wait: written as resources by the administrator, as GitOps would."""
    queued = QUEUED_PER_NODE * NODES
    await world.write_workloads([job(f"more-{number}", "team-a") for number in range(queued)])
    listings = []

    async def all_wait() -> bool:
        begun = time.perf_counter()
        items = (await caller.call("GET", "/v1/workloads"))["items"]
        listings.append(time.perf_counter() - begun)
        return [item["status"] == "Pending" and item["reason"]["code"] != "queued" for item in items].count(True) >= queued

    await until(all_wait, "all of the queue having a reason", pause_s=1.0)
    await world.until_told()
    for _ in range(3):
        await all_wait()
    begun = time.perf_counter()
    await caller.submit([job("one-more", "team-a")])
    answered = time.perf_counter() - begun
    resident = psutil.Process(_id(scheduler)).memory_info().rss / 2**20
    what = f"with {_all()} running and {queued} queued"
    return [
        Figure(f"scheduler's resident memory {what}", resident, "MiB", bar=600),
        Figure(f"list of all of them over REST {what}", min(listings[-3:]), "s"),
        Figure(f"one submission answered {what}", answered, "s", bar=1.0),
    ]


async def _gang(world: Large, caller: Caller) -> Figure:
    """Half of the nodes, whole, over what runs there one GPU at a time."""
    async with world.watched(world.pods_path("team-g")) as gang:
        begun = time.perf_counter()
        await caller.submit([job("gang", "team-g", workers=NODES // 2, gpu_millis=GPUS * 1000)])
        took = await gang.until(came=NODES // 2) - begun
    return Figure(f"a gang of {NODES // 2} pods x {GPUS} GPUs bound, over {_all()} pods and a long queue", took, "s", bar=60)
