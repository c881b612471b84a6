"""What the chart renders and the engine makes, against what several versions of Kubernetes take; fields unknown to them are refused."""

from __future__ import annotations

import copy
import re
from functools import cache as once
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # ships no types
from cluster.schemas import HTTP_ROUTE, KUBERNETES, Source, closed, schema_of, why_not_fetched
from helm_chart import CHART, LEAST, MATRIX, ROUTE, Json, only, render, why_no_helm
from hotdesk_api.models import NodeRuleSpec, Port, TolerationSpec, WorkloadSpec
from hotdesk_scheduler.core.model import Department, GpuRequest, Kind, Placement, Pod, PodRequest, Project, Toleration, Workload
from hotdesk_scheduler.engines.kubernetes import crds, manifests, resources
from jsonschema import Draft7Validator

pytestmark = [
    pytest.mark.skipif(why_no_helm() is not None, reason=str(why_no_helm())),
    pytest.mark.skipif(why_not_fetched() is not None, reason=f"the schemas are {why_not_fetched()}"),
]
_OVERLAY = CHART.parent / "overlay-z2jh"
_VERSIONS = [pytest.param(source, id=source.version) for source in KUBERNETES]


@once
def _validator(source: Source, kind: str) -> Draft7Validator:
    schema = schema_of(source)
    assert kind in schema["kinds"], f"Kubernetes {source.version} does not know {kind}"
    return Draft7Validator({"definitions": schema["definitions"], "$ref": f"#/definitions/{schema['kinds'][kind]}"})


@once
def _route_validator() -> Draft7Validator:
    return _of_definition(yaml.safe_load_all(HTTP_ROUTE.file.read_text()), "v1")


def _of_definition(documents: Any, version: str) -> Draft7Validator:
    """Of a custom resource: what its definition says, and nothing more."""
    (definition,) = (one for one in documents if one and one["kind"] == "CustomResourceDefinition")
    (schema,) = (one["schema"]["openAPIV3Schema"] for one in definition["spec"]["versions"] if one["name"] == version)
    schema["properties"]["metadata"] = {"type": "object"}
    return Draft7Validator(closed(schema))


def faults(item: Json, source: Source) -> list[str]:
    """Each with the path to it; none if that version takes the object."""
    kind = f"{item['apiVersion']} {item['kind']}"
    validator = _route_validator() if kind == "gateway.networking.k8s.io/v1 HTTPRoute" else _validator(source, kind)
    return [f"{kind} {item['metadata']['name']}: {error.json_path}: {error.message}" for error in validator.iter_errors(item)]


@pytest.mark.parametrize("case", [*MATRIX, "route"])
def test_every_version_takes_every_object_of_the_chart_as_it_is(case: str) -> None:
    items = render({**MATRIX, "route": ROUTE}[case])
    assert len({item["kind"] for item in items}) > 5
    for source in KUBERNETES:
        assert [fault for item in items for fault in faults(item, source)] == []


def test_every_version_takes_what_is_added_to_a_zero_to_jupyterhub_release() -> None:
    items = [item for name in ("rights.yaml", "isolation.yaml") for item in yaml.safe_load_all((_OVERLAY / name).read_text())]
    assert {item["kind"] for item in items} == {"ClusterRole", "NetworkPolicy"}
    items += render(yaml.safe_load((_OVERLAY / "scheduler.yaml").read_text()), release="hotdesk", namespace="jhub")
    for source in KUBERNETES:
        assert [fault for item in items for fault in faults(item, source)] == []


def test_the_scheduler_beside_a_zero_to_jupyterhub_release_has_its_token_and_is_let_in() -> None:
    items = render(yaml.safe_load((_OVERLAY / "scheduler.yaml").read_text()), release="hotdesk", namespace="jhub")
    pod = only(items, "Deployment")["spec"]["template"]
    told = {one["name"]: one.get("value", one.get("valueFrom")) for one in pod["spec"]["containers"][0]["env"]}
    assert told["JUPYTERHUB_API_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "hub.services.hotdesk.apiToken"}}
    assert told["HOTDESK_ADVERTISE_URL"].startswith("http://hotdesk.jhub."), "what values.yaml takes for its address"
    assert pod["metadata"]["labels"]["hub.jupyter.org/network-access-hub"] == "true"
    assert pod["metadata"]["labels"]["app.kubernetes.io/name"] == "hotdesk", "whom rights.yaml means"


@pytest.mark.parametrize("source", _VERSIONS)
def test_objects_that_are_wrong_are_found(source: Source) -> None:
    """Otherwise the test above says nothing."""
    good = only(render(LEAST), "Deployment")
    assert faults(good, source) == []
    unknown, missing, wrong = copy.deepcopy(good), copy.deepcopy(good), copy.deepcopy(good)
    unknown["spec"]["template"]["spec"]["containers"][0]["imagePolicy"] = "Always"
    del missing["spec"]["selector"]
    wrong["spec"]["replicas"] = "2"
    assert ["imagePolicy" in fault for fault in faults(unknown, source)] == [True]
    assert ["'selector' is a required property" in fault for fault in faults(missing, source)] == [True]
    assert ["$.spec.replicas" in fault for fault in faults(wrong, source)] == [True]


def test_routes_that_are_wrong_are_found() -> None:
    route = only(render(ROUTE), "HTTPRoute")
    route["spec"]["rules"][0]["backends"] = route["spec"]["rules"][0].pop("backendRefs")
    assert ["'backends' was unexpected" in fault for fault in faults(route, KUBERNETES[0])] == [True]


def test_oldest_version_that_is_tried_is_the_oldest_the_chart_names() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    oldest = re.fullmatch(r">=(\d+\.\d+)\.0-0", chart["kubeVersion"])
    assert oldest is not None
    assert KUBERNETES[0].version.startswith(f"v{oldest[1]}.")
    assert len({source.version.rpartition(".")[0] for source in KUBERNETES}) >= 4


def _engines_objects() -> list[Json]:
    """A workload with everything a pod can be asked for; and what it lies in."""
    asked = {"image_pull_policy": "Always", "command": ["python"], "args": ["-u"], "working_dir": "/work", "large_shm": True}
    more = {"environment": {"A": "1"}, "labels": {"team": "a"}, "annotations": {"note": "b"}, "memory_mib": 2048, "cpu_millis": 500}
    spec = WorkloadSpec.model_validate(
        {
            **asked,
            **more,
            "name": "job",
            "project": "team-a",
            "image": "x:1",
            "ports": [Port(container=8080)],
            "tolerations": [TolerationSpec(key="gpu", operator="Exists", effect="NoSchedule")],
            "node_terms": [[NodeRuleSpec(key="disk", values=["ssd"]), NodeRuleSpec(key="old", operator="DoesNotExist")]],
        }
    )
    request = PodRequest(GpuRequest(whole=2), cpu_millis=500, memory_mib=2048)
    pod = Pod(0, request, placement=Placement("node-1", whole=2), started_at=1.5)
    tolerations = (Toleration(key="gpu", operator="Exists", effect="NoSchedule"),)
    workload = Workload(id="id-1", name="job", project="team-a", kind=Kind.TRAIN, pods=(pod,), tolerations=tolerations, created_at=1.0)
    variables = manifests.identity(workload, pod)
    made = manifests.pod_object(workload, spec, pod, uid="u-1", namespace="hotdesk-team-a", variables=variables, program="job-program")
    return [
        made,
        resources.workload_object(workload, spec, "hotdesk-team-a"),
        resources.project_object(Project("team-a"), "hotdesk", None),
        resources.department_object(Department("physics"), "hotdesk"),
    ]


@pytest.mark.parametrize("source", _VERSIONS)
def test_every_version_takes_what_the_engine_makes(source: Source) -> None:
    pod, *customs = _engines_objects()
    assert faults(pod, source) == []
    own = {definition["spec"]["names"]["kind"]: definition for definition in crds.definitions()}
    for item in customs:
        validator = _of_definition([copy.deepcopy(own[item["kind"]])], item["apiVersion"].rpartition("/")[2])
        assert [error.message for error in validator.iter_errors(item)] == []
