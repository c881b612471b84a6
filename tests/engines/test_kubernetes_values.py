"""Core values as resources and back, pods as they are read and written: pure functions of the Kubernetes engine."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # ships no types
from hotdesk_api.errors import Conflict, Invalid
from hotdesk_api.models import NodeRuleSpec, Port, TolerationSpec, WorkloadSpec
from hotdesk_scheduler.core.model import (
    Department,
    GpuRequest,
    Kind,
    NodeRule,
    Phase,
    Placement,
    Pod,
    PodRequest,
    PodState,
    Project,
    Quota,
    Resources,
    Share,
    Taint,
    Toleration,
    Volume,
    Workload,
)
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines.kubernetes import (
    check,
    codec,
    crds,
    devices,
    manifests,
    namespaces,
    nodes,
    observe,
    progress,
    quantity,
    resources,
    statuses,
)
from hotdesk_scheduler.engines.kubernetes.observe import Life
from hotdesk_scheduler.engines.kubernetes.statuses import Held
from hypothesis import given
from hypothesis import strategies as st

REASON = Reason(ReasonCode.RECLAIMED, "Its place was given back.", (("asked", 3), ("by", "team-b")))
PLACE = Placement("node-1", shares=(Share("g1", 500),))
names = st.text("abcdefghij", min_size=1, max_size=8)
counts = st.integers(0, 10_000)
rules = st.builds(NodeRule, key=names, operator=st.sampled_from(("In", "Exists")), values=st.lists(names, max_size=2).map(tuple))
terms = st.lists(st.lists(rules, max_size=2).map(tuple), max_size=2).map(tuple)
requests = st.builds(
    PodRequest,
    gpu=st.one_of(
        st.builds(GpuRequest, whole=st.integers(0, 16)),
        st.builds(GpuRequest, millis=st.integers(1, 999), devices=st.integers(1, 3)),
        st.builds(GpuRequest, memory_mib=st.integers(1, 80_000)),
    ),
    cpu_millis=counts,
    memory_mib=counts,
)
quotas = st.builds(Quota, quota=st.none() | counts, limit=st.none() | counts)
times = st.none() | st.floats(0, 4_000_000_000)
placements = st.none() | st.just(PLACE) | st.builds(Placement, node=names, whole=st.integers(0, 8))
reasons = st.none() | st.just(REASON)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    pods = [
        Pod(
            index=index,
            request=draw(requests),
            state=draw(st.sampled_from(PodState)),
            placement=draw(placements),
            nominated=draw(placements),
            started_at=draw(times),
            ended_at=draw(times),
            exit_code=draw(st.none() | st.integers(-1, 255)),
            attempt=draw(st.integers(0, 9)),
            release_deadline=draw(times),
            stop_reason=draw(reasons),
        )
        for index in range(draw(st.integers(0, 4)))
    ]
    return Workload(
        id="id-1",
        name="job",
        project="team-a",
        kind=draw(st.sampled_from(Kind)),
        user=draw(names),
        priority=draw(counts),
        preemptible=draw(st.booleans()),
        min_pods=draw(st.integers(0, 4)),
        pods=tuple(pods),
        created_at=float(draw(st.integers(0, 4_000_000_000))),
        phase=draw(st.sampled_from(Phase)),
        phase_reason=draw(reasons),
        finished_at=draw(times),
        parallelism=draw(st.none() | st.integers(1, 9)),
        completions=draw(st.none() | st.integers(1, 9)),
        succeeded=draw(counts),
        failures=draw(counts),
        backoff_limit=draw(counts),
        ttl_after_finish_s=draw(st.none() | counts.map(float)),
        node_type=draw(st.none() | names),
        node_pools=tuple(draw(st.lists(names, max_size=2))),
        tolerations=tuple(draw(st.lists(st.builds(Toleration, key=names, value=names), max_size=2))),
        node_terms=draw(terms),
        volumes=tuple(draw(st.lists(st.builds(Volume, name=names, terms=terms), max_size=2))),
        short_of_gang_since=draw(times),
        lost_node=draw(st.booleans()),
    )


def stored(body: dict[str, Any], status: dict[str, Any] | None = None) -> dict[str, Any]:
    """As the API server gives it back."""
    meta = {**body["metadata"], "uid": "u-1", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {**body, "metadata": meta, **({"status": status} if status is not None else {})}


@given(workloads())
def test_a_workload_comes_back_as_it_was_written(workload: Workload) -> None:
    spec = WorkloadSpec(name="job", project="team-a", image="bash")
    grants = {pod.index: (Held(0, 500, "g1"),) for pod in workload.pods[:1]}
    item = stored(resources.workload_object(workload, spec, "ns"), statuses.status_object(workload, grants))
    asked = resources.read_workload(item, "team-a")
    assert asked.workload == workload
    assert asked.spec == spec
    assert asked.grants == grants


def test_everything_that_can_be_asked_for_comes_back_names_of_variables_included() -> None:
    spec = WorkloadSpec(
        name="job",
        project="team-a",
        kind="hpo",
        command=["a b"],
        environment={"camelCase": "x", "snake_case": "y", "startedAt": "z"},
        labels={"a-b/cD": "v"},
        annotations={"x_y": "v"},
        tolerations=[TolerationSpec(key="k", operator="Exists")],
        node_terms=[[NodeRuleSpec(key="disk", values=["ssd"]), NodeRuleSpec(key="cloud.example/camelCase", operator="Exists")]],
        ports=[Port(container=80, host=8080)],
        gpu_memory_mib=4000,
        ttl_after_finish_s=60,
        large_shm=True,
        server_name="",
    )
    item = stored({"metadata": {"name": "job", "namespace": "ns"}, "spec": resources.spec_object(spec)})
    assert resources.read_spec(item, "team-a") == spec


@given(st.floats(1_700_000_000, 1_900_000_000))
def test_a_time_comes_back_to_the_last_bit_and_as_kubernetes_writes_it(at: float) -> None:
    assert codec.time_in(codec.time_out(at)) == at
    assert codec.time_in(codec.micro_time(at)) == pytest.approx(at, abs=1e-6, rel=0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "1970-01-01T00:00:00Z"),
        (12.5, "1970-01-01T00:00:12.5Z"),
        (-0.25, "1969-12-31T23:59:59.75Z"),
        (1795285894.5835001, "2026-11-21T18:31:34.5835001Z"),
    ],
)
def test_a_time_has_the_digits_it_needs(seconds: float, text: str) -> None:
    assert codec.time_out(seconds) == text
    assert codec.time_in(text) == seconds


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:00"])
def test_a_time_that_could_not_be_told_again_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="is out of range"):
        codec.time_in(text)


@given(quotas, quotas, st.booleans(), times)
def test_projects_and_departments_come_back_as_they_were_written(gpu: Quota, cpu: Quota, over: bool, at: float | None) -> None:
    project = Project("p", "d", gpu, cpu, over_quota=over, interactive_time_limit_s=at, created_at=1.0, node_pools=("a",))
    assert resources.read_project(stored(resources.project_object(project, "ns", "other"))) == (project, "other")
    department = Department("d", gpu, cpu, quota_is_sum=over, created_at=1.0)
    assert resources.read_department(stored(resources.department_object(department, "ns"))) == department


@pytest.mark.parametrize("request_", [{"cpuMillis": -1000}, {"memoryMib": -1}, {"gpu": {"whole": -8}}], ids=str)
def test_a_hand_cannot_write_that_a_pod_gives_what_it_should_ask_for(request_: codec.Json) -> None:
    """It would be subtracted from what its project and its node have in use."""
    meta = {"name": "by-hand", "namespace": "hotdesk-team-a", "uid": "u", "resourceVersion": "1"}
    item = {"metadata": meta, "spec": {"image": "bash", "scheduling": {"kind": "train", "podRequests": [request_]}}}
    with pytest.raises(ValueError, match=r"not a (GPU|pod's) request"):
        resources.read_workload(item, "team-a")


def test_the_schemas_know_every_field_that_is_written_and_no_other() -> None:
    schemas = {one["spec"]["names"]["kind"]: _spec_of(one) for one in crds.definitions()}
    asked = {codec.camel(name) for name in WorkloadSpec.model_fields} - {"name", "namePrefix", "project"}
    assert set(schemas["Workload"]) == asked | {"scheduling", "suspended", "user"}
    kept = {codec.camel(item.name) for item in fields(resources.Scheduling)} | {"pods", "request"}
    assert set(schemas["Workload"]["scheduling"]["properties"]) == kept
    assert set(schemas["Project"]) == {codec.camel(item.name) for item in fields(Project)} - {"name"} | {"namespace"}
    assert set(schemas["Department"]) == {codec.camel(item.name) for item in fields(Department)} - {"name"}
    status = yaml.safe_load(crds.FILES[-1].read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    records = status["properties"]["pods"]["items"]["properties"]
    assert set(records) == {codec.camel(item.name) for item in fields(Pod)} - {"request"} | {"devices"}
    assert set(records["state"]["enum"]) == {state.value for state in PodState}
    assert set(status["properties"]["phase"]["enum"]) == {phase.value for phase in Phase}


def _spec_of(definition: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return found


@pytest.mark.parametrize(
    ("text", "millis"), [("2", 2000), ("100m", 100), ("0.5", 500), ("1e1", 10_000), (3, 3000), ("1500u", 2), ("1k", 1_000_000)]
)
def test_cpu_is_counted_in_thousandths_rounded_up(text: object, millis: int) -> None:
    assert quantity.cpu_millis(text) == millis


@pytest.mark.parametrize(("text", "mib"), [("1Gi", 1024), ("1G", 954), ("128974848", 123), ("1", 1), ("512Mi", 512), (0, 0), ("2e9", 1908)])
def test_memory_is_counted_in_mib_rounded_up(text: object, mib: int) -> None:
    assert quantity.memory_mib(text) == mib


@pytest.mark.parametrize("text", ["", "x", "1Zi", "Gi", "1.2.3", "nan", "-inf", "1e19", "-1e5000", "1e9999999", "9e999999E"])
def test_what_is_no_quantity_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        quantity.amount(text)


def ask(cpu: str = "0", gpus: int = 0, **more: Any) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu}, "limits": {"nvidia.com/gpu": str(gpus)} if gpus else {}}, **more}


def sidecar(cpu: str, gpus: int = 0) -> dict[str, Any]:
    return ask(cpu, gpus, restartPolicy="Always")


@pytest.mark.parametrize(
    ("spec", "gpu_millis", "cpu_millis", "memory_mib"),
    [
        ({"containers": [ask("1", 1), ask("500m")], "initContainers": [ask("4")], "overhead": {"cpu": "100m"}}, 1000, 4100, 0),
        ({"containers": [ask("1", 1)], "initContainers": [sidecar("2", 1)]}, 2000, 3000, 0),
        ({"containers": [ask("1")], "initContainers": [sidecar("2"), ask("4", 1), sidecar("1")]}, 1000, 6000, 0),
        ({"containers": [ask("1")], "initContainers": [ask("4"), sidecar("2")]}, 0, 4000, 0),
        ({"containers": [ask("1", 1)], "resources": {"requests": {"cpu": "32", "memory": "64Gi"}}}, 1000, 32000, 65536),
    ],
    ids=["the largest first one", "a sidecar", "a first one beside a sidecar", "a first one before a sidecar", "the pod as a whole"],
)
def test_a_pod_takes_the_most_there_is_of_it_at_a_moment(spec: dict[str, Any], gpu_millis: int, cpu_millis: int, memory_mib: int) -> None:
    """As in https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers."""
    assert observe.requested(spec) == Resources(gpu_millis=gpu_millis, cpu_millis=cpu_millis, memory_mib=memory_mib)


def test_a_cordoned_node_takes_nothing_new_and_stays_ready() -> None:
    item = {
        "metadata": {"name": "n", "labels": {"run.ai/type": "dgx", "nvidia.com/gpu.memory": "81920", "nvidia.com/gpu.product": "A100"}},
        "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoExecute"}]},
        "status": {
            "allocatable": {"cpu": "8", "memory": "1048577Ki", "nvidia.com/gpu": "2", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "10.1.2.3"}],
        },
    }
    node = nodes.read_node(item)
    assert (node.gpus, node.memory_mib, node.gpu_memory_mib, node.gpu_model, node.node_type) == (2, 1024, 81920, "A100", "dgx")
    assert (node.ready, node.address) == (True, "10.1.2.3")
    assert Taint("node.kubernetes.io/unschedulable", "", "NoSchedule") in node.taints
    assert not nodes.devices(node)


def seen(**values: Any) -> observe.Seen:
    uses = observe.requested({"containers": []})
    return observe.Seen(
        **{"name": "p", "namespace": "ns", "uid": "u", "node": "n", "life": Life.RUNNING, "leaving": False, "uses": uses, **values}
    )


def pod(state: PodState, **values: Any) -> Pod:
    return Pod(0, PodRequest(), state=state, placement=PLACE, **values)


@pytest.mark.parametrize(
    ("before", "sight", "then"),
    [
        (PodState.STARTING, seen(life=Life.COMING), PodState.STARTING),
        (PodState.STARTING, seen(), PodState.RUNNING),
        (PodState.STARTING, seen(life=Life.STUCK, why=REASON), PodState.RELEASING),
        (PodState.RUNNING, seen(life=Life.SUCCEEDED, exit_code=0), PodState.SUCCEEDED),
        (PodState.RUNNING, seen(life=Life.FAILED, exit_code=1), PodState.FAILED),
        (PodState.RUNNING, seen(life=Life.FADED, why=REASON), PodState.LOST),
        (PodState.RUNNING, seen(leaving=True), PodState.RELEASING),
        (PodState.RUNNING, None, PodState.LOST),
        (PodState.RELEASING, seen(leaving=True), PodState.RELEASING),
        (PodState.RELEASING, seen(life=Life.FAILED, exit_code=143), PodState.STOPPED),
        (PodState.RELEASING, None, PodState.STOPPED),
        (PodState.PENDING, seen(), PodState.PENDING),
        (PodState.LOST, seen(), PodState.LOST),
    ],
)
def test_what_is_seen_of_a_pod_makes_its_next_state(before: PodState, sight: observe.Seen | None, then: PodState) -> None:
    assert progress.after(pod(before), sight, 5.0).state is then


def test_what_could_not_start_has_failed_when_it_is_gone() -> None:
    why = Reason(ReasonCode.IMAGE_OR_VOLUME_ERROR, "Its image cannot be had.")
    stuck = progress.after(pod(PodState.STARTING), seen(life=Life.STUCK, why=why), 5.0)
    gone = progress.after(stuck, None, 6.0)
    assert (gone.state, gone.stop_reason, gone.ended_at) == (PodState.FAILED, why, 6.0)


def test_a_program_that_fails_is_not_excused_by_an_earlier_attempt_that_the_cluster_would_not_make() -> None:
    refused = Reason(ReasonCode.START_REFUSED, "Its pod cannot be made for 5 minutes.")
    running = pod(PodState.RUNNING, attempt=1, stop_reason=refused)
    failed = progress.after(running, seen(life=Life.FAILED, exit_code=1), 5.0)
    assert failed.stop_reason is None
    assert progress.changed_workload(Workload("id", "job", "p", Kind.TRAIN, pods=(running,)), failed, 5.0).failures == 1


def test_who_took_its_place_is_still_known_when_it_fails_later() -> None:
    reclaimed = Reason(ReasonCode.RECLAIMED, "For team-b.")
    assert progress.after(pod(PodState.RUNNING, stop_reason=reclaimed), seen(life=Life.FAILED), 5.0).stop_reason == reclaimed


def test_no_news_leaves_the_same_pod() -> None:
    running = pod(PodState.RUNNING)
    assert progress.after(running, seen(), 5.0) is running


def test_a_placement_is_read_from_an_annotation_and_nonsense_is_none() -> None:
    assert manifests.placement_in(manifests.placement_out(PLACE)) == PLACE
    for text in (None, "", "{}", "[1]", '{"node": 1, "shares": [{}]}', "nonsense", "[" * 100_000, '{"a":' * 900 + "1" + "}" * 900):
        assert manifests.placement_in(text) is None
    shares = (f'"shares":[{{"group":"g","millis":{millis}}}]' for millis in (-7000, 0, 1001, "1e999"))
    for members in ('"whole":-3', '"whole":1e999', '"whole":NaN', *shares):
        assert manifests.placement_in(f'{{"node":"n",{members}}}') is None


def test_a_pod_has_another_name_for_every_attempt_and_every_creation() -> None:
    workload = Workload("id", "job", "p", Kind.TRAIN)
    first = pod(PodState.STARTING)
    found = {manifests.pod_name(workload, uid, replace(first, attempt=attempt)) for uid in ("u", "v") for attempt in (0, 1)}
    assert len(found) == 4


def test_shares_of_one_group_are_on_one_device_and_whole_gpus_on_free_ones() -> None:
    held = devices.assign(PLACE, 3, [])
    assert devices.assign(PLACE, 3, held) == held
    assert devices.assign(Placement("n", whole=2), 3, held) == (Held(1, 1000), Held(2, 1000))
    with pytest.raises(Conflict):
        devices.assign(Placement("n", whole=3), 3, held)
    with pytest.raises(Conflict):
        devices.assign(PLACE, 3, [*held, *held])


def test_reserved_variables_unknown_types_and_no_image_are_refused_with_a_next_step() -> None:
    for spec, field in (
        (WorkloadSpec(project="p"), "image"),
        (WorkloadSpec(project="p", image="x", node_type="dgx"), "node_type"),
        (WorkloadSpec(project="p", image="x", node_pools=["b"]), "node_pools"),
        (WorkloadSpec(project="p", image="x", environment={"JOB_NAME": "y"}), "environment"),
    ):
        with pytest.raises(Invalid) as caught:
            check.check(spec, [])
        assert caught.value.field == field
        assert caught.value.next_step


@pytest.mark.parametrize(
    ("place", "told"),
    [(Placement("node-1"), "void"), (Placement("node-1", whole=1), None), (PLACE, None)],
)
def test_who_has_no_gpu_is_shown_none_whatever_the_image_says(place: Placement, told: str | None) -> None:
    """Images of CUDA set the variable to `all`; of whole GPUs the device plugin tells, of shares their ConfigMap."""
    pod = Pod(0, PodRequest(), PodState.STARTING, place)
    job = Workload("id-1", "job", "team-a", Kind.TRAIN, "alice", pods=(pod,), created_at=0.0)
    spec = WorkloadSpec(project="team-a", image="nvidia/cuda", environment={"NVIDIA_VISIBLE_DEVICES": "all"})
    made = manifests.pod_object(job, spec, pod, uid="u", namespace="ns", variables=manifests.identity(job, pod))
    found = {one["name"]: one["value"] for one in made["spec"]["containers"][0]["env"]}
    assert found.get("NVIDIA_VISIBLE_DEVICES") == told


@pytest.mark.parametrize(
    ("namespace", "is_named", "says"),
    [
        ("hotdesk-reservations", False, "is for the pods that set GPUs aside for sharing"),
        ("hotdesk-reservations", True, "is for the pods that set GPUs aside for sharing"),
        ("hotdesk-system", False, "is where Hotdesk itself is installed"),
        ("hotdesk-system", True, ""),
        ("kube-system", True, "is Kubernetes' own"),
        ("kube-public", False, "is Kubernetes' own"),
        ("default", True, "is Kubernetes' own"),
        ("hotdesk-team-a", False, ""),
        ("kubeflow", True, ""),
    ],
)
def test_no_project_lives_where_gpus_are_set_aside_or_kubernetes_itself_does_nor_by_accident_where_hotdesk_does(
    namespace: str, is_named: bool, says: str
) -> None:
    found = namespaces.why_not(namespace, own="hotdesk-system", reservations="hotdesk-reservations", is_named=is_named)
    assert (says in found) if says else found == ""
