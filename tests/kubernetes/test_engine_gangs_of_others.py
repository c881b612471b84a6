"""Pods of others that name a group: one workload, started together, stopped together, made again by what made them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from engine_world import RECLAIMED, eventually
from hotdesk_api.errors import Conflict
from hotdesk_scheduler.core.model import Phase, Placement, PodState, Workload
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines.kubernetes import sizes
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError
from kube_world import Kube
from others import Json, Others

WAITS = Reason(ReasonCode.NO_FREE_BLOCK, "No node has a free GPU.")
GROUP = {"hotdesk.io/pod-group": "g", "hotdesk.io/pod-group-size": "3"}
HERE = Placement("dgx1-1", whole=1)


@pytest.fixture
def others(kube: Kube) -> Others:
    return Others(kube)


def states(workload: Workload | None) -> list[PodState]:
    assert workload is not None
    return [pod.state for pod in workload.pods]


async def until(kube: Kube, workload_id: str, *wanted: PodState) -> Workload:
    """The gang, once its pods are in these states."""

    def there() -> Workload | None:
        found = kube.find(workload_id)
        return found if found is not None and sorted(states(found)) == sorted(wanted) else None

    found: Workload = await eventually(there, f"{workload_id} being {wanted} (it is {kube.find(workload_id)})")
    return found


async def start(kube: Kube, workload: Workload) -> None:
    for pod in workload.pods:
        if pod.state is PodState.PENDING:
            await kube.start(workload.id, pod.index, HERE)


P, S, R, D = PodState.PENDING, PodState.STARTING, PodState.RUNNING, PodState.SUCCEEDED


async def test_bare_pods_of_a_group_are_one_workload_and_all_are_told_why_it_waits(kube: Kube, others: Others) -> None:
    for name in ("one", "two"):
        await others.put(name, annotations={**GROUP, "hotdesk.io/user": "bob"}, gpus=1)
    gang: Workload = await eventually(lambda: (found := others.called("g")) and len(found.pods) == 2 and found, "two of three")
    assert (gang.name, gang.min_pods, gang.user, gang.project) == ("g", 3, "bob", "team-a")
    incomplete = Reason(ReasonCode.GANG_INCOMPLETE, "2 of 3 are there.")
    kube.engine.show_holds({gang.id: incomplete})
    await others.until_told("one", incomplete.sentence)
    await others.until_told("two", incomplete.sentence)
    await others.put("three", annotations=GROUP, gpus=1)
    gang = await until(kube, gang.id, P, P, P)
    kube.engine.show_holds({gang.id: WAITS})
    for name in ("one", "two", "three"):
        await others.until_told(name, WAITS.sentence)
    await start(kube, gang)
    await until(kube, gang.id, R, R, R)
    assert [others.pod_of(gang.id, index) for index in range(3)] == ["one", "two", "three"]
    node = next(node for node in kube.engine.snapshot().nodes if node.name == "dgx1-1")
    assert node.foreign.gpu_millis == 0


async def test_a_scheduler_that_comes_upon_a_gang_half_bound_finishes_it(kube: Kube, others: Others) -> None:
    await others.job("theirs", pods=3, gpus=1, annotations=GROUP)
    gang: Workload = await eventually(lambda: (found := others.called("g")) and len(found.pods) == 3 and found, "the gang")
    first = others.pod_of(gang.id, gang.pods[0].index)
    await kube.run(gang.id, gang.pods[0].index, HERE)
    await kube.restart()
    found = await until(kube, gang.id, R, P, P)
    assert found.short_of_gang_since is not None
    runs = next(pod for pod in found.pods if pod.state is R)
    assert (others.pod_of(gang.id, runs.index), runs.placement) == (first, HERE)
    await start(kube, found)
    await until(kube, gang.id, R, R, R)


async def test_members_that_end_fail_and_are_made_again(kube: Kube, others: Others) -> None:
    await others.job("theirs", pods=3, gpus=1, annotations=GROUP)
    gang: Workload = await eventually(lambda: (found := others.called("g")) and len(found.pods) == 3 and found, "the gang")
    await start(kube, gang)
    gang = await until(kube, gang.id, R, R, R)
    done, fails = (others.pod_of(gang.id, pod.index) for pod in gang.pods[:2])
    await kube.api.merge(f"{others.path}/{done}/status", {"status": {"phase": "Succeeded"}})
    await until(kube, gang.id, D, R, R)
    await kube.api.merge(f"{others.path}/{fails}/status", {"status": {"phase": "Failed"}})
    gang = await until(kube, gang.id, D, R, P)  # the one that is made instead
    await kube.restart()
    gang = await until(kube, gang.id, D, R, P)
    assert gang.short_of_gang_since is not None
    await start(kube, gang)
    gang = await until(kube, gang.id, D, R, R)
    for pod in gang.pods:
        if pod.state is R:
            name = others.pod_of(gang.id, pod.index)
            await kube.api.merge(f"{others.path}/{name}/status", {"status": {"phase": "Succeeded"}})
    await eventually(lambda: kube.find(gang.id) is None, "it being gone")


async def done(others: Others, name: str, finished_at: float) -> None:
    end = {"terminated": {"exitCode": 0, "finishedAt": datetime.fromtimestamp(int(finished_at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}}
    container = {"name": "theirs", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": end}
    await others.kube.api.merge(f"{others.path}/{name}/status", {"status": {"phase": "Succeeded", "containerStatuses": [container]}})


async def test_bare_pods_that_did_their_part_count_for_a_gang_that_waits_again_also_after_a_restart(kube: Kube, others: Others) -> None:
    for name in ("one", "two", "three"):
        await others.put(name, annotations=GROUP, gpus=1)
    gang: Workload = await eventually(lambda: (found := others.called("g")) and len(found.pods) == 3 and found, "the gang")
    await start(kube, gang)
    await until(kube, gang.id, R, R, R)
    await others.put("four", annotations=GROUP, gpus=1)  # while all the others are there
    await until(kube, gang.id, P, R, R, R)
    await done(others, "one", time.time() + 60)
    for name in ("two", "three"):
        await kube.api.merge(f"{others.path}/{name}/status", {"status": {"phase": "Failed"}})
    await until(kube, gang.id, D, P)
    await kube.restart()
    await until(kube, gang.id, D, P)


async def test_a_bare_pod_of_an_earlier_gang_of_that_name_counts_for_no_later_one(kube: Kube, others: Others) -> None:
    await others.put("earlier", annotations=GROUP, gpus=1)
    await eventually(lambda: others.called("g"), "the first gang")
    await done(others, "earlier", time.time())
    await eventually(lambda: others.called("g") is None, "its end")
    await asyncio.sleep(1.1)  # the API server knows whole seconds of creation only
    await others.put("later", annotations=GROUP, gpus=1)
    gang: Workload = await eventually(lambda: others.called("g"), "the second gang")
    await kube.restart()
    assert states(kube.find(gang.id)) == [P]


@pytest.fixture
async def kinds(kube: Kube) -> AsyncIterator[Api]:
    """Two custom resources: one that makes pods by an operator (played by the test), and the PodGroup of the coscheduling plugin."""
    defined = [("kubeflow.org", "PyTorchJob", "pytorchjobs", "v1"), ("scheduling.x-k8s.io", "PodGroup", "podgroups", "v1alpha1")]
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for group, kind, plural, version in defined:
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        one = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        names = {"kind": kind, "plural": plural, "singular": kind.lower()}
        spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [one]}
        marks = {"api-approved.kubernetes.io": "unapproved, experimental-only"}
        meta = {"name": f"{plural}.{group}", "annotations": marks}
        try:
            await kube.api.create(
                path, {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": meta, "spec": spec}
            )
        except ApiError as error:
            if error.status != 409:
                raise
    yield kube.api
    for group, _, plural, _ in defined:
        await kube.api.delete(f"{path}/{plural}.{group}")


async def served(api: Api, path: str, body: Json) -> Json:
    """Created, once the API server serves the kind."""
    for _ in range(200):
        try:
            return await api.create(path, body)
        except ApiError as error:
            if error.status != 404:
                raise
        await asyncio.sleep(0.1)
    raise AssertionError(f"{path} is not served")


async def test_a_custom_resources_pods_start_together_and_again_after_an_eviction(kube: Kube, others: Others, kinds: Api) -> None:
    meta = {"name": "bert", "namespace": others.space}
    made = await served(
        kinds,
        f"/apis/kubeflow.org/v1/namespaces/{others.space}/pytorchjobs",
        {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": meta},
    )
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "bert", "uid": made["metadata"]["uid"], "controller": True}

    async def operate() -> None:
        for name in ("bert-master-0", "bert-worker-0"):
            marks = {"test.hotdesk.io/stops-in": "500ms"}
            await others.put(name, labels={"scheduling.x-k8s.io/pod-group": "bert"}, annotations=marks, owner=owner, gpus=1)

    await operate()
    await others.until_told("bert-worker-0", "Nothing says how many pods of group bert start together")
    await served(
        kinds,
        f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{others.space}/podgroups",
        {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": meta, "spec": {"minMember": 2}},
    )
    gang: Workload = await eventually(lambda: (found := others.called("bert")) and len(found.pods) == 2 and found, "the gang")
    assert gang.min_pods == 2
    with pytest.raises(Conflict, match="made by pytorchjob bert"):
        await kube.engine.set_phase(gang.id, Phase.DELETING, None, 1.0)
    await start(kube, gang)
    gang = await until(kube, gang.id, R, R)
    for pod in gang.pods:
        await kube.engine.stop_pod(gang.id, pod.index, RECLAIMED, 3.0, time.time())
    await eventually(lambda: kube.find(gang.id) is None, "both being gone")
    await asyncio.sleep(1.1)  # the API server knows whole seconds of creation only
    await operate()
    again = await until(kube, gang.id, P, P)
    assert again.created_at == gang.created_at
    await start(kube, again)
    await until(kube, gang.id, R, R)


async def test_a_pod_group_made_smaller_or_larger_counts_as_it_is_now_while_its_pods_wait_and_stops_nothing_that_runs(
    kube: Kube, others: Others, kinds: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "AGAIN_S", 0.3)
    path = f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{others.space}/podgroups"
    meta = {"name": "elastic", "namespace": others.space}
    body = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": meta, "spec": {"minMember": 3}}
    await served(kinds, path, body)
    for name in ("one", "two"):
        await others.put(name, labels={"scheduling.x-k8s.io/pod-group": "elastic"}, gpus=1)
    gang: Workload = await eventually(lambda: (found := others.called("elastic")) and len(found.pods) == 2 and found, "the gang")
    assert gang.min_pods == 3

    async def resized(size: int) -> None:
        await kube.api.merge(f"{path}/elastic", {"spec": {"minMember": size}})

    for size in (2, 5, 2):
        await resized(size)
        await eventually(lambda size=size: (kube.find(gang.id) or gang).min_pods == size, f"its size becoming {size}")  # type: ignore[misc]  # a default is no type
    await start(kube, gang)
    await until(kube, gang.id, R, R)
    await resized(3)
    await asyncio.sleep(1)
    await others.put("three", labels={"scheduling.x-k8s.io/pod-group": "elastic"}, gpus=1)
    for _ in range(2):
        grown = await until(kube, gang.id, P, R, R)
        assert (grown.min_pods, grown.short_of_gang_since) == (2, None), "what runs is not stopped for it"
        await kube.restart()


async def test_a_node_that_is_lost_takes_its_members_and_the_gang_hears_of_it(kube: Kube, others: Others) -> None:
    name = await kube.add_node(f"{kube.namespace}-n", owner=kube.namespace)
    for index in range(3):
        await others.put(f"pod-{index}", annotations=GROUP, gpus=1)
    gang: Workload = await eventually(lambda: (found := others.called("g")) and len(found.pods) == 3 and found, "the gang")
    await kube.start(gang.id, 0, Placement(name, whole=1))
    await kube.start(gang.id, 1, HERE)
    await kube.start(gang.id, 2, HERE)
    await until(kube, gang.id, R, R, R)
    await kube.api.delete(f"/api/v1/nodes/{name}")
    left = await until(kube, gang.id, R, R)
    assert left.lost_node
    assert left.short_of_gang_since is not None
