"""Shared GPUs on a real kubelet with a real device plugin: who shares sees the same device, nobody else does; what breaks is said."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster.real_node import NODE
from cluster.running import Cluster
from hotdesk_scheduler.core.model import GpuRequest, Placement, PodState, Share
from kube_world import Json, Kube, kube_world

pytestmark = pytest.mark.slow
HALF = GpuRequest(millis=500)
LOOP = "echo mine $NVIDIA_VISIBLE_DEVICES $GPU_PORTION $HOTDESK_TIER; trap 'exit 0' TERM; while :; do sleep 0.1; done"


@pytest.fixture
async def real(real_cluster: Cluster, tmp_path: Path) -> AsyncIterator[Kube]:
    if real_cluster.external:
        pytest.skip("KUBECONFIG names another cluster: its nodes have not our images")
    async with kube_world(real_cluster, tmp_path, reservation_image="localhost/busybox:1", reservation_patience_s=60.0) as world:
        yield world
        assert not (await _reservations(world)), "nothing stays set aside"


def shell() -> dict[str, Any]:
    return {"image": "localhost/busybox:1", "image_pull_policy": "Never", "command": ["sh", "-c", LOOP]}


async def submit(real: Kube, name: str, gpu: GpuRequest) -> str:
    return await real.submit(name, gpu=gpu, **shell())


async def share(real: Kube, name: str, group: str) -> str:
    workload_id = await submit(real, name, HALF)
    await real.start(workload_id, placement=Placement(NODE, shares=(Share(group, 500),)))
    return workload_id


async def words(real: Kube, workload_id: str) -> list[str]:
    """What the pod said of itself: its devices, its part, its tier."""
    await real.until(workload_id, PodState.RUNNING)
    text = await real.says(workload_id, "mine")
    return text.split()[1:]


async def until(holds: Callable[[], Awaitable[Any]], what: str, within_s: float = 60.0) -> None:
    give_up = time.monotonic() + within_s
    while not await holds():
        assert time.monotonic() < give_up, f"{what} did not happen"
        await asyncio.sleep(0.1)


async def _reservations(real: Kube) -> list[Json]:
    found: list[Json] = (await real.api.get(f"/api/v1/namespaces/{real.namespace}-reservations/pods"))["items"]
    return found


async def stop_all(real: Kube, *ids: str) -> None:
    for one in ids:
        await real.stop(one, grace_s=1)
    for one in ids:
        await real.until(one, PodState.STOPPED)

    async def gone() -> bool:
        return not await _reservations(real)

    await until(gone, "the reservation being gone")


async def make_other(real: Kube, name: str, gpus: int) -> str:
    """A pod of somebody else, for the cluster's own scheduler."""
    limits = {"nvidia.com/gpu": str(gpus)}
    container = {"name": "main", "image": "localhost/busybox:1", "command": ["sh", "-c", LOOP], "resources": {"limits": limits}}
    spec: Json = {"containers": [{**container, "imagePullPolicy": "Never"}], "terminationGracePeriodSeconds": 1}
    spec["nodeSelector"] = {"kubernetes.io/hostname": NODE}
    path = f"/api/v1/namespaces/{real.namespace}-team-a/pods"
    await real.api.create(path, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    return f"{path}/{name}"


async def test_who_shares_sees_one_device_others_never_do_and_what_breaks_is_said(real: Kube, real_cluster: Cluster) -> None:
    first, second = await share(real, "first", "g0"), await share(real, "second", "g0")
    whole = await submit(real, "whole", GpuRequest(whole=3))
    await real.start(whole, placement=Placement(NODE, whole=3))
    (shared, part, tier), again, theirs = await words(real, first), await words(real, second), await words(real, whole)
    assert again == [shared, part, tier]
    assert (part, tier) == ("0.5", "cooperative")
    assert len({shared, *theirs[0].split(",")}) == 4
    assert [one.uuid for one in real.engine.details(first, 0).devices] == [shared]
    (held,) = await _reservations(real)
    inside = ("-n", held["metadata"]["namespace"], "-c", "hold", "--", "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES")
    seen_inside = real_cluster.kubectl("exec", held["metadata"]["name"], *inside)
    assert seen_inside.strip() == shared, "what holds it was given what it reported"

    other = await make_other(real, "third", 1)

    async def is_unschedulable() -> bool:
        conditions = (await real.api.get(other))["status"].get("conditions", [])
        return any(one["reason"] == "Unschedulable" and "nvidia.com/gpu" in one["message"] for one in conditions if one.get("reason"))

    await until(is_unschedulable, "the other scheduler finding it taken")
    await _breaks(real, real_cluster, shared=shared, sharers=(first, second), whole=whole, whole_uuid=theirs[0].split(",")[0])
    await stop_all(real, first, second)

    async def has_it() -> bool:
        return bool((await real.api.get(other))["status"]["phase"] == "Running")

    await until(has_it, "the other scheduler getting what was given back")
    third = await share(real, "third-share", "g0")
    failed = await real.until(third, PodState.FAILED)
    assert failed.stop_reason is not None
    assert f"No GPU of {NODE} could be set aside for sharing: Its node would not start it" in failed.stop_reason.sentence
    await stop_all(real, whole)
    await real.api.delete(other)


async def _breaks(real: Kube, cluster: Cluster, *, shared: str, sharers: tuple[str, str], whole: str, whole_uuid: str) -> None:
    file = Path(cluster.folder / "gpu-unhealthy")
    file.write_text(f"{shared}\n{whole_uuid}\n")
    try:
        for one, uuid in ((sharers[0], shared), (sharers[1], shared), (whole, whole_uuid)):
            sentence = f"GPU {uuid}, which it uses, is reported broken"
            await until(partial(_says, real, one, sentence), f"{one} saying so", 90)
        status = await real.status("first", lambda status: "reported broken" in status["message"])
        assert any("reported broken" in one["message"] for one in status["conditions"])
    finally:
        file.unlink()
    for one in (*sharers, whole):
        await until(partial(_says, real, one, ""), f"{one} being well again", 90)
    assert real.pod(sharers[0]).state is PodState.RUNNING


async def _says(real: Kube, workload_id: str, words: str) -> bool:
    error = real.engine.details(workload_id, 0).error
    return words in error if words else not error
