"""What the API server will not do for a while, or for good: said where people look, tried again, and no GPU waits for it for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cluster.running import Cluster
from engine_world import eventually, heard
from hotdesk_api.errors import Unavailable
from hotdesk_scheduler.core import lifecycle
from hotdesk_scheduler.core.model import GpuRequest, Phase, Placement, PodState
from hotdesk_scheduler.core.reasons import ReasonCode
from hotdesk_scheduler.engines.kubernetes import saving, tries
from hotdesk_scheduler.engines.kubernetes.api import ApiError
from kube_world import Json, Kube
from others import Others
from shares_world import foreign, nothing_is_left, reservations, shares_world, start, told, until

RULES = "/apis/admissionregistration.k8s.io/v1"
HERE = Placement("dgx1-1", whole=1)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "TOLD_AFTER_S", 1.0)
    monkeypatch.setattr(tries, "REFUSED_PAUSE_S", 0.5)


def there(kube: Kube) -> Json:
    """Only the test's own namespaces."""
    spaces = [f"{kube.namespace}-team-a", f"{kube.namespace}-reservations"]
    return {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": spaces}]}


@asynccontextmanager
async def a_broken_webhook(kube: Kube, *operations: str, resources: tuple[str, ...] = ("pods",)) -> AsyncIterator[None]:
    """Nobody listens there: the API server answers 500."""
    hook = {
        "name": "images.example.org",
        "clientConfig": {"url": "https://127.0.0.1:1/check"},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": list(operations), "resources": list(resources)}],
        "namespaceSelector": there(kube),
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
    }
    async with _rules(kube, ("validatingwebhookconfigurations", "ValidatingWebhookConfiguration", {"webhooks": [hook]})):
        yield


@asynccontextmanager
async def a_rule_against(kube: Kube, operation: str, resource: str = "pods", group: str = "") -> AsyncIterator[None]:
    """Every such request is refused, for good."""
    matches = [{"apiGroups": [group], "apiVersions": ["*"], "operations": [operation], "resources": [resource]}]
    constraints = {"resourceRules": matches, "namespaceSelector": there(kube)}
    policy = {
        "matchConstraints": constraints,
        "validations": [{"expression": "false", "message": "nothing is taken away here", "reason": "Forbidden"}],
    }
    binding = {"policyName": kube.namespace, "validationActions": ["Deny"]}
    async with _rules(
        kube,
        ("validatingadmissionpolicies", "ValidatingAdmissionPolicy", {"spec": policy}),
        ("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", {"spec": binding}),
    ):
        yield


@asynccontextmanager
async def _rules(kube: Kube, *objects: tuple[str, str, Json]) -> AsyncIterator[None]:
    for plural, kind, body in objects:
        meta = {"name": kube.namespace}
        await kube.api.create(
            f"{RULES}/{plural}", {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": meta, **body}
        )
    try:
        yield
    finally:
        for plural, _, _ in objects:
            await kube.api.delete(f"{RULES}/{plural}/{kube.namespace}")


async def until_refused(ask: Callable[[], Awaitable[object]]) -> None:
    """Rules hold a moment after they were made."""
    give_up = time.monotonic() + 60
    while True:
        try:
            await ask()
        except ApiError as error:
            if error.status != 404:
                return
        assert time.monotonic() < give_up, "the rule does not hold"
        await asyncio.sleep(0.1)


async def try_a_pod(kube: Kube) -> None:
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "try"}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
    await kube.api.request("POST", f"/api/v1/namespaces/{kube.namespace}-team-a/pods", body, params={"dryRun": "All"})


async def try_to_delete(kube: Kube, path: str) -> None:
    await kube.api.request("DELETE", path, params={"dryRun": "All"})


async def test_a_pod_that_a_broken_webhook_keeps_from_being_made_says_so_and_starts_when_it_is_mended(kube: Kube) -> None:
    changes = await heard(kube.engine)
    workload_id = await kube.submit("job", gpu=GpuRequest(whole=1))
    async with a_broken_webhook(kube, "CREATE"):
        await until_refused(lambda: try_a_pod(kube))
        await kube.start(workload_id, placement=HERE)
        before = kube.find(workload_id)
        status = await kube.status("job", lambda found: "failed calling webhook" in found.get("message", ""))
        assert status["message"].startswith("Its pod cannot be made; it has been tried again and again since ")
        assert 'failed calling webhook "images.example.org"' in status["conditions"][0]["message"]
        assert kube.engine.details(workload_id, 0).error == status["message"]
        assert kube.find(workload_id) is not before  # for those who look at it only when it is another one
        await asyncio.sleep(1)
        assert [change.sentence for change in changes if change.kind == "failed_verb"] == [status["message"]]
    await kube.until(workload_id, PodState.RUNNING)
    assert kube.engine.details(workload_id, 0).error == ""
    await kube.status("job", lambda found: found["status"] == "Running" and not found["message"])


async def test_a_pod_that_cannot_be_made_for_long_gives_its_gpu_back_and_waits_again_uncounted(
    kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tries, "GIVEN_UP_AFTER_S", 2.0)
    workload_id = await kube.submit("job", gpu=GpuRequest(whole=1))
    async with a_broken_webhook(kube, "CREATE"):
        await until_refused(lambda: try_a_pod(kube))
        await kube.start(workload_id, placement=HERE)
        failed = await kube.until(workload_id, PodState.FAILED)
        assert failed.stop_reason is not None
        assert failed.stop_reason.code is ReasonCode.START_REFUSED
        assert failed.stop_reason.sentence.startswith("Its pod cannot be made for ")
        assert 'failed calling webhook "images.example.org"' in failed.stop_reason.sentence
        workload = kube.find(workload_id)
        assert workload is not None
        assert workload.failures == 0
        assert lifecycle.retry_at(workload, failed) == (failed.ended_at or 0) + lifecycle.BACKOFF_FIRST_S
        await kube.restart()
        assert kube.find(workload_id) == workload
    await kube.engine.requeue_pod(workload_id, 0)
    await kube.run(workload_id, placement=HERE)
    await kube.end(workload_id, code=3)
    await eventually(lambda: (kube.find(workload_id) or workload).failures == 1, "its own failure being counted")
    assert kube.pod(workload_id).stop_reason is None


async def test_a_gpu_that_cannot_be_set_aside_as_the_api_server_fails_is_no_failure_of_who_asked(cluster: Cluster, tmp_path: Path) -> None:
    async with shares_world(cluster, tmp_path, reservation_patience_s=2.0) as kube, a_broken_webhook(kube, "CREATE"):
        await until_refused(lambda: try_a_pod(kube))
        workload_id = await start(kube, "half", "g0")
        failed = await kube.until(workload_id, PodState.FAILED)
        assert failed.stop_reason is not None
        assert failed.stop_reason.code is ReasonCode.START_REFUSED
        assert 'could be set aside for sharing: the API server answers 500 Internal error occurred: failed calling webhook "images' in (
            failed.stop_reason.sentence
        )
        assert (kube.find(workload_id) or kube.workload("x", failures=1)).failures == 0


async def test_a_stop_that_the_cluster_refuses_says_who_and_is_tried_until_it_is_allowed(kube: Kube) -> None:
    changes = await heard(kube.engine)
    workload_id = await kube.submit("job", gpu=GpuRequest(whole=1))
    await kube.run(workload_id, placement=HERE)
    path = kube.pod_path(workload_id)
    async with a_rule_against(kube, "DELETE"):
        await until_refused(lambda: try_to_delete(kube, path))
        await kube.stop(workload_id, grace_s=0)
        status = await kube.status("job", lambda found: "nothing is taken away here" in found.get("message", ""))
        name = path.rpartition("/")[2]
        assert status["message"].startswith("Its pod cannot be deleted, so its place stays taken: a rule of the cluster refuses it: ")
        assert f"or deletes the pod itself: kubectl delete pod {name} -n {kube.namespace}-team-a. " in status["message"]
        assert status["conditions"][0]["message"] == status["message"]
        await kube.restart()
        await eventually(lambda: kube.engine.details(workload_id, 0).error == status["message"], "it being said again")
        assert kube.pod(workload_id).state is PodState.RELEASING
        assert [change.sentence for change in changes if change.kind == "failed_verb"] == [status["message"]]
    await kube.until(workload_id, PodState.STOPPED)
    assert kube.engine.details(workload_id, 0).error == ""


async def test_an_eviction_that_the_cluster_refuses_is_said_once_and_tried_until_it_is_allowed(kube: Kube) -> None:
    others = Others(kube)
    workload_id = await others.make("theirs", gpus=1)
    await kube.run(workload_id, placement=HERE)
    changes = await heard(kube.engine)
    path = f"{others.path}/theirs"
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "theirs"}, "deleteOptions": {"dryRun": ["All"]}}
    async with a_rule_against(kube, "CREATE", "pods/eviction"):
        await until_refused(lambda: kube.api.create(f"{path}/eviction", body))
        await kube.stop(workload_id, grace_s=0)
        await eventually(lambda: "nothing is taken away here" in kube.engine.details(workload_id, 0).error, "it being said")
        await asyncio.sleep(1.5)
        assert len([change for change in changes if change.kind == "failed_verb"]) == 1
    await eventually(lambda: kube.find(workload_id) is None, "it being gone")


async def test_a_status_that_was_refused_for_a_while_is_written_when_the_rule_is_lifted(
    kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "REFUSED_PAUSE_S", 0.3)
    job = await kube.submit("job", gpu=GpuRequest(whole=1))
    await kube.run(job)
    await kube.status("job", lambda status: status["status"] == "Running")
    async with a_rule_against(kube, "UPDATE", "workloads/status", "hotdesk.io"):
        await until_refused(lambda: try_a_status(kube, "job"))
        await kube.end(job)
        await kube.until(job, PodState.SUCCEEDED)
        with pytest.raises(Unavailable, match="did not take the change of job"):
            await kube.engine.set_phase(job, Phase.SUCCEEDED, None, time.time())
    await kube.status("job", lambda status: status["status"] == "Succeeded")


async def try_a_status(kube: Kube, name: str) -> None:
    path = kube.resource_path(name)
    await kube.api.request("PUT", f"{path}/status", await kube.api.get(path), params={"dryRun": "All"})


async def test_a_shared_gpu_whose_release_is_refused_is_given_back_when_it_is_allowed(cluster: Cluster, tmp_path: Path) -> None:
    async with shares_world(cluster, tmp_path) as kube:
        workload_id = await start(kube, "half", "g0")
        await kube.until(workload_id, PodState.RUNNING)
        (pod,) = await reservations(kube)
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        async with a_rule_against(kube, "DELETE", "*"):
            await until_refused(lambda: try_to_delete(kube, path))
            await kube.end(workload_id)
            await kube.until(workload_id, PodState.SUCCEEDED)
            await asyncio.sleep(2)
            assert (len(await reservations(kube)), len(await told(kube)), foreign(kube).gpu_millis) == (1, 1, 1000)
        await until(kube, lambda: nothing_is_left(kube), "everything being gone")
