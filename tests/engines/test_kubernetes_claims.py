"""What pods of others ask for, read from the pod (pure); the table in docs/pods-of-others.md names all of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hotdesk_scheduler.core.eligible import is_wished
from hotdesk_scheduler.core.model import GpuRequest, Kind, Node, NodeRule, Placement, PodRequest, Resources, Share
from hotdesk_scheduler.engines.kubernetes import claims, groups, manifests, nodes
from hotdesk_scheduler.engines.kubernetes.claims import Claim, read_claim
from hotdesk_scheduler.engines.kubernetes.groups import Group, size_in
from hotdesk_scheduler.engines.kubernetes.observe import Life, Seen

DOCUMENT = Path(__file__).parents[2] / "docs" / "pods-of-others.md"


def claim(*, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **spec: Any) -> Claim:
    meta = {"name": "p", "namespace": "space", "uid": "u", "creationTimestamp": "2026-05-01T08:00:00Z"}
    marks = {"labels": labels or {}, "annotations": annotations or {}}
    found = read_claim({"metadata": {**meta, **marks}, "spec": {"schedulerName": "hotdesk", "containers": [{"name": "c"}], **spec}})
    assert found is not None
    return found


def test_pods_of_other_schedulers_are_not_ours() -> None:
    meta = {"name": "p", "namespace": "space", "uid": "u", "creationTimestamp": "2026-05-01T08:00:00Z"}
    assert read_claim({"metadata": meta, "spec": {"schedulerName": "default-scheduler", "containers": [{"name": "c"}]}}) is None


@pytest.mark.parametrize(
    ("labels", "spec", "is_so"),
    [
        ({}, {}, (50, True, Kind.TRAIN)),
        ({"priorityClassName": "build"}, {}, (100, False, Kind.INTERACTIVE)),
        ({"priorityClassName": "interactive-preemptible"}, {}, (75, True, Kind.INTERACTIVE)),
        ({}, {"priorityClassName": "inference", "priority": 125}, (125, False, Kind.INFERENCE)),
        ({}, {"priorityClassName": "our-own", "priority": 70}, (70, True, Kind.TRAIN)),
        ({}, {"priorityClassName": "system-node-critical", "priority": 2_000_001_000}, (1000, True, Kind.TRAIN)),
        ({"priorityClassName": "train", "kai.scheduler/preemptibility": "non-preemptible"}, {}, (50, False, Kind.TRAIN)),
        ({"priorityClassName": "build", "hotdesk.io/priority": "60", "hotdesk.io/preemptible": "true"}, {}, (60, True, Kind.INTERACTIVE)),
    ],
)
def test_priority_classes_give_priority_preemption_and_kind_and_what_is_said_comes_first(
    labels: dict[str, str], spec: dict[str, Any], is_so: tuple[int, bool, Kind]
) -> None:
    found = claim(labels=labels, **spec)
    assert (found.priority, found.preemptible, found.kind) == is_so


def test_project_user_and_pool_are_read_as_runai_and_kai_write_them() -> None:
    found = claim(labels={"runai/queue": "team-a", "project": "other", "user": "bob", "kai.scheduler/node-pool": "a100"})
    assert (found.project, found.project_by, found.user, found.node_pools) == ("team-a", "runai/queue", "bob", ("a100",))
    assert claim(labels={"project": "team-a"}).project_by == claims.ANY_PROJECT


@pytest.mark.parametrize(
    ("marks", "spec", "group"),
    [
        ({"hotdesk.io/pod-group": "g", "hotdesk.io/pod-group-size": "4"}, {}, Group("g", 4)),
        ({"pod-group-name": "g"}, {}, Group("g", None, "/apis/scheduling.run.ai/v2alpha2/namespaces/space/podgroups/g")),
        (
            {"pod-group.scheduling.sigs.k8s.io/name": "g", "pod-group.scheduling.sigs.k8s.io/min-available": "2"},
            {},
            Group("g", 2),
        ),
        (
            {"scheduling.k8s.io/group-name": "g", "scheduling.volcano.sh/group-min-member": "9"},
            {},
            Group("g", 9, "/apis/scheduling.volcano.sh/v1beta1/namespaces/space/podgroups/g"),
        ),
        (
            {},
            {"schedulingGroup": {"podGroupName": "g"}},
            Group("g", None, "/apis/scheduling.k8s.io/v1beta1/namespaces/space/podgroups/g"),
        ),
        ({}, {}, None),
    ],
)
def test_groups_are_read_in_the_words_of_whoever_made_them(marks: dict[str, str], spec: dict[str, Any], group: Group | None) -> None:
    assert claim(labels=marks, **spec).group == group
    assert claim(annotations=marks, **spec).group == group


def test_node_affinity_and_node_selector_are_terms_of_rules() -> None:
    expressions = [{"key": "zone", "operator": "In", "values": ["a", "b"]}, {"key": "old", "operator": "DoesNotExist"}]
    terms = [{"matchExpressions": expressions}, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}, {}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    ssd = NodeRule("disk", "In", ("ssd",))
    found = claim(affinity=affinity, nodeSelector={"disk": "ssd", "hotdesk.io/pool": "p", "run.ai/type": "dgx"})
    always = (ssd, NodeRule("hotdesk.io/pool", "In", ("p",)), NodeRule("run.ai/type", "In", ("dgx",)))
    first = (*always, NodeRule("zone", "In", ("a", "b")), NodeRule("old", "DoesNotExist"))
    assert found.node_terms == (first, (*always, NodeRule("metadata.name", "In", ("n1",))))
    assert (found.node_type, found.node_pools) == ("dgx", ("p",)), "and a kubelet takes them to the letter"
    assert claim(nodeSelector={"disk": "ssd"}).node_terms == ((ssd,),)
    nobody: dict[str, Any] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}}
    assert not is_wished(Node("n1"), claim(affinity=nobody).node_terms)
    assert claim().node_terms == ()


@pytest.mark.parametrize("size", ["", "0", "-1", "1.5", "four", "\u0664"])
def test_a_size_that_is_none_is_refused_with_a_sentence(size: str) -> None:
    problem = claim(annotations={"hotdesk.io/pod-group": "g", "hotdesk.io/pod-group-size": size}).problem
    assert "is no size of a pod group: hotdesk.io/pod-group-size says" in problem


@pytest.mark.parametrize("name", ["../../secrets", "..", "a/b", "a b", "-a", "a\n", "\u00e9", "a" * 254])
def test_a_group_that_no_object_could_be_called_is_refused_with_a_sentence(name: str) -> None:
    """Its workload could not be reached by that name, and its PodGroup's path would lead elsewhere."""
    for marks in ({"pod-group-name": name}, {"hotdesk.io/pod-group": name, "hotdesk.io/pod-group-size": "2"}):
        found = claim(annotations=marks)
        assert found.group is None
        assert found.problem.startswith(f"{name[:40]!r} is no name of a pod group")
    assert claim(labels={"pod-group-name": "My_group.1"}).problem == ""


def test_claims_are_those_that_volumes_name_and_those_that_the_cluster_makes_for_ephemeral_ones() -> None:
    named = [{"name": name, "persistentVolumeClaim": {"claimName": "data"}} for name in ("a", "b")]
    template = {"spec": {"accessModes": ["ReadWriteOnce"]}}
    volumes = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}, *named, {"name": "c", "emptyDir": {}}]
    assert claim(volumes=volumes).volume_claims == ("data", "p-scratch")
    assert claim().volume_claims == ()


NONSENSE = (
    "",
    "0",
    "-1",
    "nan",
    "inf",
    "-Infinity",
    "1e400",
    "1e5000",
    "1e9999999",
    "1e-9999999",
    "1e-9",
    "5",
    "½",
    "\u0663",
    "1Gi",
    "9" * 5000,
    "lots",
    "0x10",
    "1_000",
    "-0.5",
)


@pytest.mark.parametrize(
    "name", ["gpu-fraction", "gpu-memory", claims.PRIORITY, groups.SIZE, groups.GROUP, claims.CLASS, claims.PREEMPTIBLE]
)
def test_whatever_an_annotation_says_the_pod_is_read(name: str) -> None:
    for value in NONSENSE:
        found = claim(annotations={groups.GROUP: "g", name: value})
        assert 0 <= found.priority <= 1000


def test_a_whole_gpu_is_asked_of_the_device_plugin_and_not_as_a_fraction() -> None:
    """A pod that asks its node for none would be given none."""
    for value in ("1", "1.0"):
        found = claim(annotations={"gpu-fraction": value})
        assert found.request.gpu.is_none
        assert "let a container ask for nvidia.com/gpu: 1" in found.problem
    assert claim(annotations={"gpu-fraction": "0.5"}).request.gpu == GpuRequest(millis=500)
    assert "is no share of a GPU" in claim(annotations={"gpu-fraction": "0.0001"}).problem


def test_the_same_share_of_several_gpus_is_asked_for_by_their_number() -> None:
    assert claim(annotations={"gpu-fraction": "0.5", claims.DEVICES: "2"}).request.gpu == GpuRequest(millis=500, devices=2)
    assert claim(annotations={"gpu-memory": "2000", claims.DEVICES: "3"}).request.gpu == GpuRequest(memory_mib=2000, devices=3)
    assert claim(annotations={claims.DEVICES: "many"}).problem == "", "it says nothing without a share"
    for number in ("", "0", "-1", "1.5", "many", "9" * 5000, "00000010000000", "1001", "\u0663"):
        found = claim(annotations={"gpu-fraction": "0.5", claims.DEVICES: number})
        assert (found.request.gpu, "is no number of GPUs" in found.problem) == (GpuRequest(), True)


@pytest.mark.parametrize("share", ["", "0", "-0.5", "1.5", "2", "1n", "1e-9999999", "1e5000", "1e9999999", "nan", "lots"])
def test_a_fraction_that_is_none_is_told_and_not_taken_for_no_gpu(share: str) -> None:
    found = claim(annotations={"gpu-fraction": share})
    assert found.request.gpu == GpuRequest()
    assert found.problem.startswith(f"{share!r} is no share of a GPU:")


@pytest.mark.parametrize("memory", ["", "0", "-5Gi", "1.5", "1e3", "1e-9999999", "1e5000", "1e9999999", "9" * 40, "nan", "lots"])
def test_gpu_memory_that_no_gpu_has_any_part_of_is_told(memory: str) -> None:
    """A number of five thousand digits stopped every pass: it could not be said in the sentence about the largest GPU."""
    found = claim(annotations={"gpu-memory": memory})
    assert found.request.gpu == GpuRequest()
    assert found.problem.startswith(f"{memory[:40]!r} is no share of a GPU:")


def test_gpu_memory_is_in_mib_or_has_a_unit() -> None:
    for text, mib in (("4096", 4096), ("4Gi", 4096), ("1G", 954), ("4294967296", 2**32), ("8589934592k", 8_192_000)):
        assert claim(annotations={"gpu-memory": text}).request.gpu == GpuRequest(memory_mib=mib)


@pytest.mark.parametrize(
    ("asked", "said", "holds"),
    [
        ({"whole": 4}, Placement("n1", whole=4), 4000),
        ({"whole": 4}, Placement("n1", whole=0), 4000),
        ({"whole": 4}, Placement("n1", shares=(Share("g", 1),)), 4000),
        ({"millis": 500}, Placement("n1", shares=(Share("g", 500),)), 500),
        ({"millis": 500}, Placement("n1", shares=(Share("g", 1),)), 500),
        ({"memory_mib": 8192}, Placement("n1", shares=(Share("g", 250),)), 250),
        ({"memory_mib": 8192}, Placement("n1", shares=(Share("g", 1),)), 250),
        ({"memory_mib": 65536}, Placement("n1", shares=(Share("g", 1),)), 1000),
        ({"millis": 500}, Placement("n1", shares=(Share("g", 500), Share("h", 500))), 500),
        ({"whole": 4}, Placement("n2", whole=4), 4000),
    ],
)
def test_a_pod_holds_what_it_asks_for_whatever_a_hand_wrote_about_its_place(asked: dict[str, int], said: Placement, holds: int) -> None:
    there = Seen("p", "space", "u", "n1", Life.RUNNING, leaving=False, uses=Resources(), placement=manifests.placement_out(said))
    asks = replace(claim(), request=PodRequest(GpuRequest(**asked)))
    found = claims.pod_of(there, asks, 0, 1.0, Node("n1", gpus=4, gpu_memory_mib=32768))
    assert found.placement is not None
    assert (found.placement.node, found.placement.gpu_millis) == ("n1", holds)


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ({"minMember": 3}, 3),
        ({"schedulingPolicy": {"gang": {"minCount": 5}}}, 5),
        ({"schedulingPolicy": {"basic": {}}}, 1),
        ({"minMember": "3"}, None),
        ({"minMember": 0}, None),
        ({}, None),
    ],
)
def test_a_pod_group_says_how_many_start_together(spec: dict[str, Any], size: int | None) -> None:
    assert size_in({"spec": spec}) == size


def test_the_document_names_all_that_is_understood() -> None:
    text = DOCUMENT.read_text()
    words = [*claims.PROJECTS, claims.ANY_PROJECT, *claims.USERS, claims.PRIORITY, claims.PREEMPTIBLE, claims.PREEMPTIBILITY, claims.CLASS]
    words += [*claims._CLASSES, *groups._NAMES, *groups._SIZES, *nodes.TYPE_LABELS, *nodes.POOL_LABELS]
    assert [word for word in words if f"`{word}`" not in text] == []
    for name, (priority, _, _) in claims._CLASSES.items():
        assert f"`{name}` {priority}" in text
