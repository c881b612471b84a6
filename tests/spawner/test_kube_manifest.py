"""What KubeSpawner's options ask the scheduler for, and what a grant makes of KubeSpawner's own pod."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

import pytest
from hotdesk_api.errors import Invalid
from hotdesk_api.models import Grant, NodeRuleSpec, PodGrant, TolerationSpec, WorkloadSpec
from hotdesk_scheduler.engines.kubernetes import extras, nodes, observe
from hotdesk_spawner import QueuedSpawner, manifest, options
from hotdesk_spawner.kube import HotdeskKubeSpawner
from kubespawner import KubeSpawner
from kubespawner.objects import make_pod

WISH = options.spec_of(options.Wish("team-a"), user="alice", server="")
GPU = manifest.GPU


def spawner(**given: Any) -> Any:
    """KubeSpawner's traits as they are when nobody sets them, and these."""
    nodes_of = ("node_selector", "node_affinity_required", "tolerations")
    names = (*nodes_of, "extra_resource_limits", "extra_resource_guarantees", "cpu_guarantee", "mem_guarantee")
    traits = KubeSpawner.class_traits()
    plain = {name: traits[name].default() for name in (*names, *manifest.UNHEEDED, "image")}
    return SimpleNamespace(**{**plain, **given})


def asked(spec: WorkloadSpec = WISH, **given: Any) -> WorkloadSpec:
    return manifest.with_options(spec, spawner(**given))


def granted(**given: Any) -> Grant:
    marks = {"namespace": "hotdesk-team-a", "labels": {"hotdesk.io/workload-id": "w"}, "annotations": {"hotdesk.io/placement": "{}"}}
    pod = PodGrant.model_validate({**marks, "cpu_millis": 500, "memory_mib": 1024, **given})
    return Grant(node="n1", environment={}, gpu_millis=1000 * pod.gpus, simulated=False, tier="", pod=pod)


def placed(grant: Grant, *, memory_is_limit: bool = False, **given: Any) -> dict[str, Any]:
    """The pod's container's resources; the pod's own values are checked by `test_a_pod_goes…`."""
    pod = make_pod(name="jupyter-alice", cmd=["x"], port=8888, image="i", logger=logging.getLogger(), **given)
    manifest.place(pod, grant, memory_is_limit=memory_is_limit)
    resources = pod.spec.containers[0].resources
    return {"requests": resources.requests, "limits": resources.limits}


def test_the_kube_class_queues_before_it_starts_and_is_known_to_jupyterhub_by_name() -> None:
    assert HotdeskKubeSpawner.__mro__.index(QueuedSpawner) < HotdeskKubeSpawner.__mro__.index(KubeSpawner)
    (found,) = entry_points(group="jupyterhub.spawners", name="hotdesk-kube")
    assert found.load() is HotdeskKubeSpawner


def test_labels_of_types_and_pools_are_those_the_scheduler_reads() -> None:
    assert (manifest.TYPE_LABELS, manifest.POOL_LABELS) == (nodes.TYPE_LABELS, nodes.POOL_LABELS)
    assert (manifest.GPU, manifest.SCHEDULER) == (extras.GPU, observe.SCHEDULER)


def test_what_the_wish_leaves_open_is_as_kubespawner_is_configured() -> None:
    found = asked(cpu_guarantee=0.5, mem_guarantee=256_000_000, image="torch:3", extra_resource_limits={GPU: "2"})
    assert (found.cpu_millis, found.memory_mib, found.image, found.gpu_millis) == (500, 245, "torch:3", 2000)


def test_what_the_wish_says_comes_before_the_profile() -> None:
    wish = options.spec_of(options.Wish("team-a", gpu_millis=500, cpu_millis=100, memory_mib=64), user="alice", server="")
    found = asked(wish, cpu_guarantee=4, mem_guarantee=2**30, extra_resource_limits={GPU: 1})
    assert (found.gpu_millis, found.cpu_millis, found.memory_mib) == (500, 100, 64)
    by_memory = options.spec_of(options.Wish("team-a", gpu_memory_mib=8192), user="alice", server="")
    assert asked(by_memory, extra_resource_limits={GPU: 1}).gpu_millis == 0


def test_node_selectors_and_tolerations_go_to_the_scheduler() -> None:
    tolerations = {"b": {"key": "x", "operator": "Exists"}, "a": {"key": "team", "value": "a", "effect": "NoSchedule"}}
    found = asked(node_selector={"hotdesk.io/type": "A100", "runai/node-pool": "big"}, tolerations=tolerations)
    assert (found.node_type, found.node_pools) == ("A100", ["big"])
    assert found.tolerations == [TolerationSpec(key="team", value="a", effect="NoSchedule"), TolerationSpec(key="x", operator="Exists")]


def test_nodes_are_chosen_by_any_label_and_by_required_affinity() -> None:
    ssd = NodeRuleSpec(key="disk", values=["ssd"])
    pool = NodeRuleSpec(key="hotdesk.io/pool", values=["big"])
    assert asked(node_selector={"hotdesk.io/pool": "big", "disk": "ssd"}).node_terms == [[ssd, pool]], "to the letter, as the kubelet"
    zones = {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}, {"key": "old", "operator": "DoesNotExist"}]}
    named = {"match_fields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    found = asked(node_selector={"disk": "ssd"}, node_affinity_required={"2": named, "1": zones, "3": {"matchExpressions": []}})
    zone = [NodeRuleSpec(key="zone", operator="NotIn", values=["a"]), NodeRuleSpec(key="old", operator="DoesNotExist")]
    assert found.node_terms == [[ssd, *zone], [ssd, NodeRuleSpec(key="metadata.name", values=["n1"])]]
    assert asked().node_terms == []


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"node_affinity_required": [{"matchExpressions": []}]}, "node_affinity_required"),
        ({"pod_anti_affinity_required": [{}]}, "pod_anti_affinity_required"),
        ({"extra_resource_limits": {GPU: "0.5"}}, GPU),
    ],
)
def test_what_the_scheduler_would_not_heed_is_refused_with_what_would_work(given: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        asked(**given)
    assert caught.value.field == field
    assert caught.value.next_step


def test_a_profiles_own_options_are_the_profiles_also_when_they_are_named_like_ours() -> None:
    assert manifest.options_of({"profile_options": {"gpu": {}}}) == {"profile", "gpu", "gpu--unlisted-choice"}
    assert not manifest.options_of(None)


def test_a_pod_goes_where_it_was_granted_and_keeps_its_own_labels() -> None:
    pod = make_pod(name="p", cmd=["x"], port=8888, image="i", labels={"component": "s"}, annotations={"a": "b"}, logger=logging.getLogger())
    manifest.place(pod, granted(), memory_is_limit=False)
    assert (pod.spec.node_name, pod.spec.scheduler_name, pod.metadata.namespace) == ("n1", "hotdesk", "hotdesk-team-a")
    assert pod.metadata.labels == {"component": "s", "hotdesk.io/workload-id": "w"}
    assert pod.metadata.annotations == {"a": "b", "hotdesk.io/placement": "{}"}


def test_who_was_granted_a_gpu_or_a_share_of_one_tolerates_that_nodes_are_kept_for_gpus() -> None:
    own = {"key": "team", "operator": "Exists"}
    for millis, keys in ((0, ["team"]), (500, ["team", GPU]), (1000, ["team", GPU])):
        pod = make_pod(name="p", cmd=["x"], port=8888, image="i", tolerations=[own], logger=logging.getLogger())
        manifest.place(pod, granted().model_copy(update={"gpu_millis": millis}), memory_is_limit=False)
        assert [one.key for one in pod.spec.tolerations] == keys


def test_it_may_use_exactly_what_was_granted() -> None:
    profile: dict[str, Any] = {
        "extra_resource_limits": {GPU: "4"},
        "extra_resource_guarantees": {GPU: "4"},
        "cpu_guarantee": 9,
        "mem_guarantee": 1,
    }
    found = placed(granted(gpus=1), **profile)
    assert found["requests"] == {GPU: "1", "cpu": "500m", "memory": "1024Mi"}
    assert found["limits"] == {GPU: "1"}
    assert GPU not in placed(granted(), **profile)["limits"], "a share of a GPU is not one of the device plugin's"


def test_limits_stay_as_configured_unless_less_was_configured_than_granted() -> None:
    assert placed(granted(), cpu_limit=2, mem_limit=2**31)["limits"] == {"cpu": 2, "memory": 2**31}
    assert placed(granted(), cpu_limit=0.1, mem_limit=2**20)["limits"] == {"cpu": "500m", "memory": "1024Mi"}
    assert placed(granted(), mem_limit=2**31, memory_is_limit=True)["limits"] == {"memory": "1024Mi"}


def test_a_share_is_read_from_its_config_map_whatever_was_configured() -> None:
    grant = granted(config_map="desk-gpu", config_keys=["GPU_PORTION", "NVIDIA_VISIBLE_DEVICES"])
    environment = {"NVIDIA_VISIBLE_DEVICES": "all", "LR": "0.1"}
    pod = make_pod(name="jupyter-alice", cmd=["x"], port=8888, image="i", logger=logging.getLogger(), env=environment)
    manifest.place(pod, grant, memory_is_limit=False)
    found = {one.name: one for one in pod.spec.containers[0].env}
    assert found["LR"].value == "0.1"
    for name in ("GPU_PORTION", "NVIDIA_VISIBLE_DEVICES"):
        refers = found[name].value_from.config_map_key_ref
        assert (found[name].value, refers.name, refers.key) == (None, "desk-gpu", name)
    assert len(found) == len(pod.spec.containers[0].env)


def test_claims_are_those_that_the_pods_volumes_name_in_either_spelling() -> None:
    data = {"name": "data", "persistent_volume_claim": {"claim_name": "shared", "read_only": True}}
    volumes = [{"name": "home", "persistentVolumeClaim": {"claimName": "home-ada"}}, data, {"name": "tmp", "emptyDir": {}}]
    assert manifest.claims_of(volumes) == ["home-ada", "shared"]
    assert manifest.claims_of([]) == []


def seen_pod(state: dict[str, Any], *, phase: str = "Running", restarts: int = 0, policy: str = "OnFailure", **more: Any) -> dict[str, Any]:
    status = {"name": "notebook", "state": state, "restartCount": restarts, **more}
    beside = {"name": "beside", "state": {"terminated": {"exitCode": 1}}, "restartCount": 9}
    return {"metadata": {}, "spec": {"restartPolicy": policy}, "status": {"phase": phase, "containerStatuses": [beside, status]}}


def run_of(seconds: int, code: int = 1) -> dict[str, Any]:
    return {"exitCode": code, "startedAt": "2026-01-01T10:00:00Z", "finishedAt": f"2026-01-01T10:{seconds // 60:02}:{seconds % 60:02}Z"}


BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff"}}


@pytest.mark.parametrize(
    "pod",
    [
        seen_pod({"running": {}}),
        seen_pod({"terminated": run_of(9)}, policy="Never"),
        seen_pod({"terminated": run_of(9, code=0)}),
        seen_pod({"terminated": run_of(9)}, phase="Failed"),
        seen_pod({"waiting": {"reason": "ContainerCreating"}}),
        {**seen_pod({"terminated": run_of(9)}), "metadata": {"deletionTimestamp": "2026-01-01T10:00:00Z"}},
        {"metadata": {}, "spec": {}, "status": {"phase": "Running"}},
    ],
)
def test_of_most_pods_their_own_state_says_whether_the_workspace_is_over(pod: dict[str, Any]) -> None:
    assert manifest.ended_in_running_pod(pod) is None


@pytest.mark.parametrize(
    ("pod", "starts_again"),
    [
        (seen_pod({"terminated": run_of(9)}), True),
        (seen_pod({"terminated": run_of(9, code=0)}, policy="Always"), True),
        (seen_pod(BACK_OFF, restarts=1, lastState={"terminated": run_of(2)}), True),
        (seen_pod(BACK_OFF, restarts=50, lastState={"terminated": run_of(2000)}), True),
        (seen_pod(BACK_OFF, restarts=manifest.MOST_CRASHES, lastState={"terminated": run_of(2)}), False),
        (seen_pod(BACK_OFF, restarts=manifest.MOST_CRASHES, lastState={"terminated": {"exitCode": 1, "startedAt": None}}), False),
    ],
)
def test_a_server_that_its_node_starts_again_is_not_over_until_it_never_lives_long(pod: dict[str, Any], starts_again: bool) -> None:
    ended = manifest.ended_in_running_pod(pod)
    assert ended is not None
    assert ended.starts_again is starts_again
