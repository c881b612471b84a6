"""The chart: valid whatever the values, nothing more than it says, refused with a sentence where it could not work."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import fields

import pytest
import yaml  # type: ignore[import-untyped]  # ships no types
from cluster.running import Cluster
from helm_chart import CHART, ELSEWHERE, LEAST, MATRIX, PLACED, ROUTE, ChartError, Json, helm, only, render, why_no_helm
from hotdesk_api.units import NAME_MAX, NAME_PATTERN, parse_quota
from hotdesk_api.version import VERSION
from hotdesk_scheduler.engines.kubernetes.resources import PROJECT_LABEL
from hotdesk_scheduler.settings import Settings, parse_seed_projects, variable_of
from jupyterhub.app import COOKIE_SECRET_BYTES, JupyterHub
from jupyterhub.authenticators.shared import SharedPasswordAuthenticator

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
    assert route["spec"]["rules"][0]["backendRefs"] == [{"name": "rel-hotdesk-proxy", "port": 80}]
    alone = only(render({**ROUTE, **LEAST}), "HTTPRoute")
    assert alone["spec"]["rules"][0]["backendRefs"] == [{"name": "rel-hotdesk", "port": 80}]


def test_ingress_shows_the_proxy_and_without_a_hub_the_scheduler() -> None:
    for values, service in (({}, "rel-hotdesk-proxy"), (LEAST, "rel-hotdesk")):
        (rule,) = only(render({**values, "ingress": {"enabled": True}}), "Ingress")["spec"]["rules"]
        assert rule["http"]["paths"][0]["backend"] == {"service": {"name": service, "port": {"name": "http"}}}


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
        ({"hub": {"enabled": False}}, "Nobody can tell who calls"),
        ({"hub": {"enabled": False, "apiUrl": "http://hub:8081/hub/api"}}, "hub.serviceToken.existingSecret is missing"),
        ({"hub": ELSEWHERE}, "hub.apiUrl names another hub"),
        ({"tokens": {"existingSecret": "tokens"}}, "tokens.existingSecret is for use without a hub"),
        ({"hub": {"database": {"type": "url"}}}, "hub.database.existingSecret is missing"),
        ({"hub": {"config": {"jupyterhub": {}}}}, "does not match pattern"),
        ({**LEAST, "replica": 2}, "'replica' not allowed"),
        ({**LEAST, "replicas": 0}, "minimum: got 0, want 1"),
        ({"hub": {"apiUrl": "hub:8081"}}, "does not match pattern"),
        ({**LEAST, "settings": {"GRACE": "60"}}, "value must be one of 'HOTDESK_STATE'"),
        ({**LEAST, "settings": {"HOTDESK_GRACE_S": "0.5"}}, "does not match pattern"),
        ({**LEAST, "settings": {"HOTDESK_NOPE": "x"}}, "value must be one of 'HOTDESK_STATE'"),
        ({**LEAST, "seedProjects": {"Team_A": 4}}, "does not match pattern"),
        ({**LEAST, "seedProjects": {"team-" + "a" * 59: 4}}, "maxLength"),
        ({**LEAST, "seedProjects": {"reservations": 4}}, "seedProjects.reservations would have the namespace hotdesk-reservations"),
        ({**LEAST, "seedProjects": {"gpus": 4}, "reservations": {"namespace": "hotdesk-gpus"}}, "which is not for projects"),
        ({**LEAST, "seedProjects": {"system": 4}, "projectPrefix": "kube-"}, "which is not for projects"),
        ({**LEAST, "seedProjects": {"desk": 4}, "projectPrefix": "hot"}, "which is not for projects"),
        ({**LEAST, "httpRoute": {"enabled": True}}, "minItems"),
        ({"podLabels": {"app.kubernetes.io/name": "gpus"}}, "at '/podLabels/app.kubernetes.io~1name': false schema"),
        ({"podLabels": {"hotdesk.io/leads": "true"}}, "at '/podLabels/hotdesk.io~1leads': false schema"),
    ],
)
def test_values_that_cannot_work_are_refused_with_the_reason(values: Json, says: str) -> None:
    with pytest.raises(ChartError, match=says):
        render(values)


@pytest.mark.parametrize("case", ["least", "hub", "placed"])
def test_settings_that_the_chart_sets_itself_are_refused_with_what_to_do_instead(case: str) -> None:
    """Twice in one container, Kubernetes takes the last and the chart goes by its own."""
    values = {**MATRIX[case], "reservations": {"namespace": "elsewhere"}, "settings": {}}
    made = {name for name in _variables(render(values), "scheduler") if name.startswith("HOTDESK_")}
    assert made
    for name in made:
        with pytest.raises(ChartError, match=rf"settings\.{name} is what this chart sets itself: (set|leave|install) "):
            render({**values, "settings": {name: "x"}})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("HOTDESK_NAMESPACE_PREFIX", "settings.HOTDESK_NAMESPACE_PREFIX is what this chart sets itself: set projectPrefix."),
        ("HOTDESK_TOKENS", "settings.HOTDESK_TOKENS is what this chart sets itself: set tokens.existingSecret."),
        ("HOTDESK_STATE", "settings.HOTDESK_STATE is what this chart sets itself: leave it out."),
    ],
)
def test_who_repeats_a_variable_of_the_charts_reads_what_to_do(name: str, says: str) -> None:
    with pytest.raises(ChartError) as refused:
        render({**LEAST, "settings": {name: "x"}})
    assert says in str(refused.value)


def test_settings_are_those_the_scheduler_knows() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    known = [variable_of(item.name) for item in fields(Settings)]
    assert schema["settings"]["propertyNames"]["enum"] == [name for name in known if name.startswith("HOTDESK_")]
    assert schema["seedProjects"]["propertyNames"] == {"pattern": NAME_PATTERN, "maxLength": NAME_MAX}


@pytest.mark.parametrize("quota", [4, 0, -1, 2.5, 0.1, 0.333, 1.001, 999_999.999, "4", "0.125", "-1", "unlimited", "none", 1_000_000])
def test_quotas_of_the_first_projects_are_taken_as_numbers_and_as_text(quota: str | float) -> None:
    given = _variables(render({**LEAST, "seedProjects": {"team-a": quota}}), "scheduler")["HOTDESK_SEED_PROJECTS"]["value"]
    assert parse_seed_projects(given) == [("team-a", parse_quota(str(quota)))]


@pytest.mark.parametrize("quota", [-4, -0.5, 0.0001, 4.0005, 1_000_001, "-4", "four", "4 GPUs", "1.2345", "nan", "4,team-b=2"])
def test_quotas_of_the_first_projects_that_the_scheduler_would_refuse_or_misread_are_refused(quota: str | float) -> None:
    with pytest.raises(ChartError, match=r"seedProjects/team-a"):
        render({**LEAST, "seedProjects": {"team-a": quota}})


def test_every_value_is_described() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert sorted(_paths(values)) == sorted(set(_described(schema)) & set(_paths(values)))
    assert not set(_described(schema)) - set(_paths(values)) - {"global"}


def _paths(values: Json, above: str = "") -> Iterator[str]:
    for name, value in values.items():
        inside = isinstance(value, dict) and value and name not in ("podLabels", "resources")
        yield from _paths(value, f"{above}{name}.") if inside else [above + name]


def _described(schema: Json, above: str = "") -> Iterator[str]:
    for name, value in schema["properties"].items():
        if "properties" in value:
            yield from _described(value, f"{above}{name}.")
        elif value["description"]:
            yield above + name


@pytest.mark.parametrize("case", ["least", "whole"])
def test_pods_have_no_rights_they_do_not_need(case: str) -> None:
    items = render(MATRIX[case])
    pods = [item["spec"]["template"]["spec"] for item in items if item["kind"] == "Deployment"]
    pods.append(only(items, "Pod")["spec"])
    assert len(pods) == (4 if case == "whole" else 2)
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
    speaks = {pod["containers"][0]["name"]: pod["automountServiceAccountToken"] for pod in pods}
    assert {name for name, is_mounted in speaks.items() if is_mounted} == {"scheduler", "hub"} & set(speaks)


def test_what_teams_may_do_is_bound_to_nobody_by_the_chart_and_can_be_left_out() -> None:
    def names(values: Json, kind: str) -> set[str]:
        return {item["metadata"]["name"] for item in render(values) if item["kind"] == kind}

    own = {"hotdesk:rel-hotdesk", "hotdesk:rel-hotdesk-hub"}
    assert names({}, "ClusterRole") == own | {"hotdesk:rel-hotdesk-view", "hotdesk:rel-hotdesk-edit"}
    assert {item["roleRef"]["name"] for item in render({}) if item["kind"] == "ClusterRoleBinding"} == own
    assert names({"rbac": {"aggregateClusterRoles": False}}, "ClusterRole") == own
    assert names({"rbac": {"create": False}}, "ClusterRole") == set()


def test_whole_is_placed_where_the_values_say() -> None:
    items = render(MATRIX["whole-own"])
    pods = [item["spec"]["template"]["spec"] for item in items if item["kind"] == "Deployment"] + [only(items, "Pod")["spec"]]
    for pod in pods:
        assert {name: pod[name] for name in ("nodeSelector", "tolerations", "schedulerName")} == {
            name: PLACED[name] for name in ("nodeSelector", "tolerations", "schedulerName")
        }


def test_hub_proxy_and_scheduler_are_told_of_each_other() -> None:
    items = render({"hub": {"baseUrl": "/gpu/"}}, namespace="there")
    scheduler, hub, proxy = (_variables(items, part) for part in ("scheduler", "hub", "proxy"))
    told = json.loads(
        only([one for one in items if one["metadata"]["name"] == "rel-hotdesk-hub-config"], "Secret")["stringData"]["values.json"]
    )
    assert scheduler["JUPYTERHUB_API_URL"]["value"] == "http://rel-hotdesk-hub.there.svc:8081/gpu/hub/api"
    assert scheduler["JUPYTERHUB_SERVICE_PREFIX"]["value"] == "/gpu/services/hotdesk/"
    assert (told["hubUrl"], told["schedulerUrl"]) == ("http://rel-hotdesk-hub.there.svc:8081", "http://rel-hotdesk.there.svc:80")
    assert told["proxyApiUrl"] == "http://rel-hotdesk-proxy-api.there.svc:8001"
    assert scheduler["JUPYTERHUB_API_TOKEN"]["valueFrom"] == hub["HOTDESK_HUB_SCHEDULER_TOKEN"]["valueFrom"]
    assert proxy["CONFIGPROXY_AUTH_TOKEN"]["valueFrom"] == hub["CONFIGPROXY_AUTH_TOKEN"]["valueFrom"]
    services = {item["metadata"]["name"] for item in items if item["kind"] == "Service"}
    assert services == {"rel-hotdesk", "rel-hotdesk-hub", "rel-hotdesk-proxy", "rel-hotdesk-proxy-api"}


def test_scheduler_beside_a_hub_elsewhere_knows_below_which_path_it_is_shown() -> None:
    given = _variables(render(MATRIX["hub"]), "scheduler")
    assert given["JUPYTERHUB_SERVICE_PREFIX"]["value"] == "/jhub/services/hotdesk/"


def test_hub_starts_anew_when_its_settings_change_and_the_proxy_does_not() -> None:
    before, after = (render({"hub": {"members": {"team-a": names}}}) for names in (["alice"], ["alice", "bob"]))
    same = {part: _template(before, part) == _template(after, part) for part in ("scheduler", "hub", "proxy")}
    assert same == {"scheduler": True, "hub": False, "proxy": True}


def _template(items: list[Json], part: str) -> Json:
    found: Json = only(items, "Deployment", part)["spec"]["template"]
    return found


def _variables(items: list[Json], part: str) -> Json:
    return {item["name"]: item for item in _template(items, part)["spec"]["containers"][0]["env"]}


def test_definitions_are_the_engines_own_and_outlive_the_release() -> None:
    engines = CHART.parent.parent / "scheduler" / "hotdesk_scheduler" / "engines" / "kubernetes" / "crds"
    own = {item["metadata"]["name"]: item for item in map(yaml.safe_load, (path.read_text() for path in engines.glob("*.yaml")))}
    rendered = {item["metadata"]["name"]: item for item in render(LEAST) if item["kind"] == "CustomResourceDefinition"}
    assert {name: item["spec"] for name, item in rendered.items()} == {name: item["spec"] for name, item in own.items()}
    assert all(item["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for item in rendered.values())


def test_chart_installs_the_version_it_comes_with() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == VERSION
    items = render({})
    images = [_template(items, part)["spec"]["containers"][0]["image"] for part in ("scheduler", "hub", "proxy")]
    assert all(image.endswith(f":{VERSION}") for image in images)


def test_no_secret_is_in_the_pods_command_or_variables() -> None:
    given = _variables(render(MATRIX["hub"]), "scheduler")
    for name in ("JUPYTERHUB_API_TOKEN", "HOTDESK_RECORDS_URL"):
        assert "secretKeyRef" in given[name]["valueFrom"]
    assert given["HOTDESK_SEED_PROJECTS"]["value"] == "team-a=4,team-b=2.5"
    whole = render({})
    secrets = {value for item in whole if item["kind"] == "Secret" for value in item.get("data", {}).values()}
    assert len(secrets) == 7
    pods = json.dumps([item for item in whole if item["kind"] in ("Deployment", "Pod", "ConfigMap")])
    assert not [value for value in secrets if value in pods or base64.b64decode(value).decode("latin1") in pods]


def test_who_cannot_look_up_what_was_made_before_gives_all_secrets_and_every_rendering_is_the_same() -> None:
    first, second = (render(MATRIX["whole-own"]) for _ in range(2))
    assert first == second
    (keys,) = (one for one in only(first, "Deployment", "scheduler")["spec"]["template"]["spec"]["volumes"] if one["name"] == "secrets")
    assert keys["projected"]["sources"] == [{"secret": {"name": "kept-elsewhere"}}]


def test_secret_that_the_readme_makes_has_all_that_the_hub_takes() -> None:
    (lines,) = re.findall(r"^    (kubectl create secret(?:.*\\\n)*.*)", (CHART.parent / "README.md").read_text(), re.MULTILINE)
    done = subprocess.run(["bash", "-c", _PRETENDED + lines], capture_output=True, text=True, timeout=60, check=True)
    made = dict(line.removeprefix("--from-literal=").split("=") for line in done.stdout.splitlines() if "=" in line)
    hub = _variables(render({"hub": {"existingSecret": "hotdesk-own"}}), "hub")
    keys = {one["valueFrom"]["secretKeyRef"]["key"] for one in hub.values() if "secretKeyRef" in one.get("valueFrom", {})}
    assert made.keys() == keys | {"report.key"}
    assert len(JupyterHub(cookie_secret=made["cookie-secret"]).cookie_secret) == COOKIE_SECRET_BYTES
    SharedPasswordAuthenticator(admin_password=made["admin-password"], user_password=made["user-password"])
    assert len(made["report.key"]) >= 32


def test_passwords_are_needed_for_the_charts_own_log_in_alone() -> None:
    for values, needed in (({}, True), (MATRIX["whole-own"], False)):
        hub = _variables(render(values), "hub")
        for name in ("HOTDESK_HUB_ADMIN_PASSWORD", "HOTDESK_HUB_USER_PASSWORD"):
            assert hub[name]["valueFrom"]["secretKeyRef"].get("optional", False) is not needed
        assert "optional" not in hub["JPY_COOKIE_SECRET"]["valueFrom"]["secretKeyRef"]


@pytest.mark.parametrize("case", MATRIX)
def test_every_variable_is_a_setting_of_the_scheduler(case: str) -> None:
    known = {variable_of(item.name) for item in fields(Settings)}
    assert set(_variables(render(MATRIX[case]), "scheduler")) - known == set()


@pytest.mark.parametrize(("part", "ways"), [("scheduler", ["ingress"]), ("hub", ["ingress", "egress"]), ("proxy", ["egress"])])
def test_workspaces_and_jobs_are_reached_and_heard_in_a_namespace_that_was_there_before_its_project(part: str, ways: list[str]) -> None:
    """Only namespaces that Hotdesk makes have its label; its pods have it everywhere."""
    policy = only(render({}), "NetworkPolicy", part)["spec"]
    label = {"matchExpressions": [{"key": PROJECT_LABEL, "operator": "Exists"}]}
    for way in ways:
        peers = [peer for rule in policy[way] for peer in rule.get("from" if way == "ingress" else "to", [])]
        assert {"namespaceSelector": label} in peers
        assert {"namespaceSelector": {}, "podSelector": label} in peers


@pytest.mark.parametrize(
    ("values", "is_open"),
    [
        ({}, False),
        ({"ingress": {"enabled": True}}, False),  # it shows the proxy
        (LEAST, False),
        ({**LEAST, "ingress": {"enabled": True}}, True),
        ({**LEAST, **ROUTE}, True),
        ({"service": {"type": "NodePort"}}, True),
    ],
)
def test_scheduler_that_is_shown_outside_of_the_cluster_may_be_called_from_there(values: Json, is_open: bool) -> None:
    (rule,) = only(render(values), "NetworkPolicy", "scheduler")["spec"]["ingress"]
    assert ("from" not in rule) is is_open


_PRETENDED = r"""
kubectl() { printf '%s\n' "kubectl" "$@"; if [ "$1" = apply ]; then cat; fi; printf 'secret' >&2; }
hotdesk() { printf '%s\n' "hotdesk" "$@"; }
pip() { printf '%s\n' "pip" "$@"; }
base64() { cat; }
"""


def _notes(values: Json) -> str:
    return helm("install", "rel", str(CHART), "--dry-run=client", "-n", "hotdesk", values=values).partition("\nNOTES:\n")[2]


@pytest.mark.parametrize(
    ("hub", "who"),
    [
        ({}, "Log in as admin,"),
        ({"admins": ["carla"]}, "Log in as carla,"),
        ({"config": {"Authenticator": {"admin_users": ["root"]}}}, "Log in as root,"),
        ({"config": {"SharedPasswordAuthenticator": {"admin_users": ["root"]}}}, "Log in as root,"),
        ({"extraConfig": {"own": "pass"}}, "Log in (unless hub.extraConfig has another log-in, or other admins) as admin,"),
        ({"config": {"JupyterHub": {"authenticator_class": "pam"}}}, "Log in as `pam` has it"),
    ],
)
def test_notes_say_who_can_log_in_as_an_administrator(hub: Json, who: str) -> None:
    assert who in _notes({"hub": hub})


@pytest.mark.parametrize("case", ["whole", "whole-own", "whole-temporary", "least", "hub"])
def test_commands_of_the_notes_work_as_they_are_copied(case: str) -> None:
    """Each line by itself, with the blanks before it."""
    lines = [line for line in _notes(MATRIX[case]).splitlines() if line.startswith("     ") and not line.lstrip().startswith(("http", "%"))]
    assert len(lines) >= (1 if case == "whole-own" else 3)
    said = ""
    for line in lines:
        done = subprocess.run(["bash", "-c", _PRETENDED + line], capture_output=True, text=True, timeout=60, check=True)
        assert set(done.stderr.replace("secret", "")) <= {"\n"}, line
        said += done.stdout
    assert yaml.safe_load(said[said.index("{apiVersion") :].splitlines()[0])["spec"] == {"gpu": {"quota": 4000}}
    if case in ("least", "hub"):
        assert r"GPUS:.status.allocatable.nvidia\.com/gpu" in said
        assert said.index("pip\ninstall\n.\n") < said.index("hotdesk\nlogin\n")  # no index has it: the name is anybody's there


@pytest.mark.parametrize("release", ["a.b", "1", "9-hotdesk", "1" * 53, "a" * 44 + ".b", "hotdesk.1"])
def test_names_are_those_services_may_have_whatever_the_releases_is(release: str, cluster: Cluster, namespace: str) -> None:
    items = [item for item in render({}, release=release, namespace=namespace) if item["kind"] in ("Service", "Deployment")]
    assert len(items) == 7
    assert all(item["metadata"]["name"][0].isalpha() for item in items)  # older versions of Kubernetes want it so
    cluster.kubectl("create", "--dry-run=server", "--validate=strict", "-n", namespace, "-f", "-", given=_list(items))


@pytest.mark.parametrize("release", ["a" * 53, "hotdesk-" + "b" * 45, "c" * 44 + "-" + "c" * 8])
def test_names_are_short_enough_for_services_however_long_the_releases_is(release: str) -> None:
    names = {item["metadata"]["name"] for item in render({}, release=release) if item["kind"] == "Service"}
    assert len(names) == 4
    assert all(len(name) <= 63 and "--" not in name and "hotdesk" in name for name in names), names


def test_place_of_a_workspace_is_kept_longer_than_its_start_may_take() -> None:
    given = _variables(render({"workspaces": {"startTimeoutS": 900}}), "scheduler")
    assert given["HOTDESK_GRANT_S"]["value"] == "960"
    own = render({"settings": {"HOTDESK_GRANT_S": "1200"}, "hub": {"config": {"KubeSpawner": {"start_timeout": 900}}}})
    (only_one,) = (one for one in _template(own, "scheduler")["spec"]["containers"][0]["env"] if one["name"] == "HOTDESK_GRANT_S")
    assert only_one["value"] == "1200"
    assert "HOTDESK_GRANT_S" not in _variables(render(LEAST), "scheduler")


_LONG: Json = {"start_timeout": 900}


@pytest.mark.parametrize(
    "values",
    [
        {"hub": {"config": {"Spawner": _LONG}}},
        {"hub": {"config": {"KubeSpawner": _LONG, "HotdeskKubeSpawner": {"start_timeout": 60}}}},
        {"workspaces": {"profiles": [{"display_name": "Small"}, {"display_name": "Large", "kubespawner_override": _LONG}]}},
        {"workspaces": {"profiles": [{"profile_options": {"image": {"choices": {"large": {"kubespawner_override": _LONG}}}}}]}},
    ],
    ids=["Spawner", "KubeSpawner", "profile", "choice"],
)
def test_place_of_a_workspace_is_kept_longer_than_its_start_may_take_wherever_that_is_said(values: Json) -> None:
    assert _variables(render(values), "scheduler")["HOTDESK_GRANT_S"]["value"] == "960"
