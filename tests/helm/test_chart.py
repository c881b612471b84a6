"""The chart: valid whatever the values, nothing more than it says, refused with a sentence where it could not work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # ships no types
from cluster.running import Cluster
from helm_chart import CHART, LEAST, MATRIX, ROUTE, ChartError, Json, helm, only, render, why_no_helm
from hotdesk_api.version import VERSION
from hotdesk_scheduler.settings import Settings, variable_of

pytestmark = pytest.mark.skipif(why_no_helm() is not None, reason=str(why_no_helm()))


@pytest.mark.parametrize("case", [*MATRIX, "route"])
def test_chart_has_no_fault_that_helm_knows(case: str) -> None:
    helm("lint", "--strict", str(CHART), values={**MATRIX, "route": ROUTE}[case])


@pytest.mark.parametrize("case", MATRIX)
def test_api_server_takes_every_object_as_it_is(case: str, cluster: Cluster, namespace: str) -> None:
    """Unknown and double fields are refused too."""
    items = render(MATRIX[case], namespace=namespace)
    cluster.kubectl(
        "create", "--dry-run=server", "--validate=strict", "-n", namespace, "-f", "-", given=_list(_with_names(items, namespace))
    )


def _list(items: list[Json]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def _with_names(items: list[Json], namespace: str) -> list[Json]:
    """Definitions may be installed by other tests: under another group they are new."""
    text = json.dumps(items).replace("hotdesk.io", f"{namespace}.io")
    found: list[Json] = json.loads(text)
    return found


def test_route_names_gateway_host_and_service() -> None:
    """The Gateway API's definitions are not part of Kubernetes, so no API server of ours checks it."""
    route = only(render(ROUTE), "HTTPRoute")
    assert route["spec"]["parentRefs"] == [{"name": "gateway"}]
    assert route["spec"]["hostnames"] == ["gpu.example.org"]
    assert route["spec"]["rules"][0]["backendRefs"] == [{"name": "rel-hotdesk", "port": 80}]


@pytest.mark.parametrize("version", ["1.30.0", "1.33.0", "1.37.0"])
def test_chart_is_the_same_on_every_version_it_names(version: str) -> None:
    newest = _without_key(render(MATRIX["hub"]))
    assert _without_key(render(MATRIX["hub"], kube_version=version)) == newest


def _without_key(items: list[Json]) -> list[Json]:
    """The key is drawn anew at every rendering without a cluster."""
    return [item for item in items if item["kind"] != "Secret"]


def test_older_kubernetes_is_refused() -> None:
    with pytest.raises(ChartError, match=r"kubeVersion"):
        render(LEAST, kube_version="1.29.0")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "Nobody can tell who calls"),
        ({"hub": {"apiUrl": "http://hub:8081/hub/api"}}, "hub.serviceToken.existingSecret is missing"),
        ({**LEAST, "replica": 2}, "'replica' not allowed"),
        ({**LEAST, "replicas": 0}, "minimum: got 0, want 1"),
        ({**LEAST, "hub": {"apiUrl": "hub:8081"}}, "does not match pattern"),
        ({**LEAST, "settings": {"GRACE": "60"}}, "does not match pattern"),
        ({**LEAST, "httpRoute": {"enabled": True}}, "minItems"),
    ],
)
def test_values_that_cannot_work_are_refused_with_the_reason(values: Json, says: str) -> None:
    with pytest.raises(ChartError, match=says):
        render(values)


def test_every_value_is_described() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert sorted(_paths(values)) == sorted(set(_described(schema)) & set(_paths(values)))
    assert not set(_described(schema)) - set(_paths(values)) - {"global"}


def _paths(values: Json, above: str = "") -> Iterator[str]:
    for name, value in values.items():
        inside = isinstance(value, dict) and value and name != "podLabels" and above + name != "resources"
        yield from _paths(value, f"{above}{name}.") if inside else [above + name]


def _described(schema: Json, above: str = "") -> Iterator[str]:
    for name, value in schema["properties"].items():
        if "properties" in value:
            yield from _described(value, f"{above}{name}.")
        elif value["description"]:
            yield above + name


def test_pods_have_no_rights_they_do_not_need() -> None:
    items = render(LEAST)
    pods = [only(items, "Deployment")["spec"]["template"]["spec"], only(items, "Pod")["spec"]]
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
    assert pods[1]["automountServiceAccountToken"] is False


def test_definitions_are_the_engines_own_and_outlive_the_release() -> None:
    engines = CHART.parent.parent / "scheduler" / "hotdesk_scheduler" / "engines" / "kubernetes" / "crds"
    own = {item["metadata"]["name"]: item for item in map(yaml.safe_load, (path.read_text() for path in engines.glob("*.yaml")))}
    rendered = {item["metadata"]["name"]: item for item in render(LEAST) if item["kind"] == "CustomResourceDefinition"}
    assert {name: item["spec"] for name, item in rendered.items()} == {name: item["spec"] for name, item in own.items()}
    assert all(item["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for item in rendered.values())


def test_chart_installs_the_version_it_comes_with() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == VERSION
    image = only(render(LEAST), "Deployment")["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image.endswith(f":{VERSION}")


def test_no_secret_is_in_the_pods_command_or_variables() -> None:
    container = only(render(MATRIX["hub"]), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    given: dict[str, Any] = {item["name"]: item for item in container["env"]}
    for name in ("JUPYTERHUB_API_TOKEN", "HOTDESK_RECORDS_URL"):
        assert "secretKeyRef" in given[name]["valueFrom"]
    assert container["args"] == ["serve"]
    assert given["HOTDESK_SEED_PROJECTS"]["value"] == "team-a=4,team-b=2.5"


@pytest.mark.parametrize("case", MATRIX)
def test_every_variable_is_a_setting_of_the_scheduler(case: str) -> None:
    container = only(render(MATRIX[case]), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    known = {variable_of(item.name) for item in fields(Settings)}
    assert {item["name"] for item in container["env"]} - known == set()
