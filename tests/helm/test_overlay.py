"""`helm/overlay-z2jh` over a Zero-to-JupyterHub release, run as its hub runs it: in its Python, with its mounted files and its rights."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]  # ships no types
from cluster.running import Cluster
from helm_chart import Json, why_no_helm
from hotdesk_scheduler.engines.kubernetes import crds
from kube_hub import Hub, clean, free_port, is_ready, pretended_notebook
from scheduler_fixture import Scheduler
from z2jh_release import (
    NEEDS,
    OVERLAY,
    SOURCES,
    CannotInstallError,
    add_packages,
    chart_files,
    chart_objects,
    checkout,
    documented_files,
    python_of_hub,
)

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600)]
BASE = "/jupyter"
TESTS = Path(__file__).parent.parent


class SchedulerOfHub(Scheduler):
    """Who calls is what the hub says: no file of tokens."""

    def command(self) -> list[str]:
        given = super().command()
        at = given.index("--tokens")
        return given[:at] + given[at + 2 :]


class Release(Hub):
    """That hub."""

    def token_of(self, service: str) -> str:
        return (self.folder / "files" / "secret" / f"hub.services.{service}.apiToken").read_text()

    def as_scheduler_knows(self, user: str) -> Json:
        """Asked with the token of the hub's spawner. Empty if there is none."""
        headers = {"Authorization": f"Bearer {self.token_of('hotdesk-spawner')}"}
        path = f"{self.scheduler.url}/v1/workloads/team-a/workspace-{user}"
        answer = httpx.get(path, headers=headers, timeout=30, trust_env=False)
        found: Json = answer.json() if answer.status_code == 200 else {}
        return found

    def pod_in(self, namespace: str, user: str) -> Json:
        """Empty if there is none."""
        found = self.cluster.get("pods", "-n", namespace, "-l", "component=singleuser-server")["items"]
        return next((item for item in found if item["metadata"]["name"] == f"jupyter-{user}"), {})


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return python_of_hub()
    except CannotInstallError as reason:
        pytest.skip(f"what is in that chart's hub image cannot be installed here: {reason}")


@pytest.fixture(scope="module")
def packages(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_packages(python, tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="module", params=SOURCES)
def release(
    request: pytest.FixtureRequest, cluster: Cluster, python: Path, packages: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    if request.param == "chart" and checkout() is None:
        pytest.skip("no checkout of that chart's repository here: Z2JH=FOLDER names one")
    if request.param == "chart" and why_no_helm():
        pytest.skip(str(why_no_helm()))
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    cluster.add_namespace(namespace)
    folder = tmp_path_factory.mktemp("release")
    try:
        with pretended_notebook() as notebook:
            yield from _release(request.param, cluster, namespace, folder, str(python), packages, notebook)
    finally:
        for project in ("team-a", "science"):
            clean(cluster, f"{namespace}-{project}")
        clean(cluster, namespace)
        cluster.kubectl("delete", "clusterrole", "hotdesk-z2jh-hub", "--ignore-not-found", "--wait=false")
        cluster.kubectl("delete", "clusterrolebinding", f"{namespace}-hotdesk-z2jh-hub", "--ignore-not-found", "--wait=false")


def _release(source: str, cluster: Cluster, namespace: str, folder: Path, python: str, packages: Path, notebook: str) -> Iterator[Release]:
    for file in crds.FILES:
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
    cluster.kubectl("wait", "--for=condition=Established", *(f"crd/{kind}.hotdesk.io" for kind in ("projects", "departments", "workloads")))
    cluster.add_nodes(1, owner=namespace, gpus=3, labels={"hotdesk.io/pool": namespace, "nvidia.com/gpu.memory": "32768"})
    _add_projects(cluster, namespace)
    names = ["--namespace", namespace, "--namespace-prefix", f"{namespace}-", "--kubeconfig", str(cluster.kubeconfig)]
    more = ["--engine", "kubernetes", *names, "--grace-s", "1"]
    scheduler = SchedulerOfHub(folder / "scheduler", "", "", more=more, port=free_port())
    hub = Release(cluster, scheduler, namespace, folder, notebook, python=python, base_path=BASE)
    files = folder / "files"
    if source == "documented":
        documented_files(files, namespace, scheduler_url=scheduler.url)
    else:
        chart_files(files, chart_objects(folder, namespace, custom={"hotdesk": {"schedulerUrl": scheduler.url}}))
    scheduler.environment = {"JUPYTERHUB_API_URL": f"{hub.url}{BASE}/hub/api", "JUPYTERHUB_API_TOKEN": hub.token_of("hotdesk")}
    hub.config = files / "jupyterhub_config.py"
    hub.environment = {
        "KUBECONFIG": str(_limited(cluster, namespace, folder)),
        "PYTHONPATH": f"{packages}:{TESTS}",
        "Z2JH_FILES": str(files),
        "POD_NAMESPACE": namespace,
        "HUB_SERVICE_PORT": "8081",
        "PROXY_API_SERVICE_PORT": "8001",
        "CONFIGPROXY_AUTH_TOKEN": "x",
    }
    try:
        scheduler.start()
        hub.start()
        hub.until(lambda: is_ready(scheduler), "the scheduler being ready")
        yield hub
    finally:
        hub.end()
        scheduler.end()


def _add_projects(cluster: Cluster, namespace: str) -> None:
    """Of science the namespace is the hub's: what people had before is there, such as dave's home."""
    specs = {"team-a": {"gpu": {"quota": 2000}}, "science": {"gpu": {"quota": 1000}, "namespace": namespace}}
    projects = [
        {"apiVersion": "hotdesk.io/v1alpha1", "kind": "Project", "metadata": {"name": name}, "spec": spec} for name, spec in specs.items()
    ]
    room = {"accessModes": ["ReadWriteOnce"], "storageClassName": "nobody-provisions-this", "resources": {"requests": {"storage": "5Gi"}}}
    home = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "claim-dave"}, "spec": room}
    cluster.apply(*projects, home, namespace=namespace)


def _limited(cluster: Cluster, namespace: str, folder: Path) -> Path:
    """For the account of that chart's hub: what it grants in its own namespace, and what our manifest adds."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "hub"}}
    rules = [
        {
            "apiGroups": [""],
            "resources": ["pods", "persistentvolumeclaims", "secrets", "services"],
            "verbs": ["get", "watch", "list", "create", "delete"],
        },
        {"apiGroups": [""], "resources": ["events"], "verbs": ["get", "watch", "list"]},
    ]
    rbac = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": {"name": "hub"}, "rules": rules}
    subject = {"kind": "ServiceAccount", "name": "hub", "namespace": namespace}
    theirs = {"apiVersion": f"{rbac}/v1", "kind": "RoleBinding", "metadata": {"name": "hub"}, "subjects": [subject]}
    theirs["roleRef"] = {"apiGroup": rbac, "kind": "Role", "name": "hub"}
    cluster.apply(account, role, theirs, namespace=namespace)
    cluster.kubectl("apply", "-n", namespace, "-f", str(OVERLAY / "rights.yaml"))
    cluster.kubectl(
        "create",
        "clusterrolebinding",
        f"{namespace}-hotdesk-z2jh-hub",
        "--clusterrole=hotdesk-z2jh-hub",
        f"--serviceaccount={namespace}:hub",
    )
    config: Json = json.loads(cluster.kubeconfig.read_text())
    token = cluster.kubectl("create", "token", "hub", "-n", namespace).strip()
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path = folder / "hub.kubeconfig"
    path.write_text(json.dumps(config))
    return path


def variables(pod: Json) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in pod["spec"]["containers"][0]["env"]}


def test_a_workspace_of_that_release_waits_in_the_queue_and_starts_with_the_settings_it_had(release: Release) -> None:
    release.open("alice", project="team-a", gpu="2")
    release.open("bob", wait=False, project="team-a", gpu="2", memory="1G")
    release.until(lambda: release.as_scheduler_knows("bob").get("reason"), "why it waits")
    assert not release.pod("bob")
    release.close("alice")
    release.until(lambda: release.is_ready("bob"), "bob's turn")
    pod = release.pod("bob")
    container, told = pod["spec"]["containers"][0], variables(pod)

    assert pod["metadata"]["namespace"] == release.space()
    assert (pod["spec"]["schedulerName"], pod["spec"]["nodeName"]) == ("hotdesk", f"{release.namespace}-0")
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2", "memory": "1Gi"}
    assert told["JUPYTERHUB_API_URL"] == f"http://hub.{release.namespace}:8081{BASE}/hub/api"
    assert told["HOTDESK_API_URL"] == release.scheduler.url

    assert container["image"] == "registry.example.org/science:7"
    assert pod["spec"]["nodeSelector"] == {"hotdesk.io/pool": release.namespace}
    assert {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["spec"]["tolerations"]
    assert (told["MLFLOW"], told["LICENCE"]) == ("http://mlflow", {"secretKeyRef": {"name": "licence", "key": "key"}})
    assert container["lifecycle"]["postStart"]["exec"]["command"] == ["sh", "-c", "cp -n /etc/skel/* ."]
    assert (container["securityContext"]["runAsUser"], pod["spec"]["securityContext"]["fsGroup"]) == (1000, 100)
    assert pod["metadata"]["labels"]["team"] == "science"
    assert pod["metadata"]["labels"]["hub.jupyter.org/network-access-hub"] == "true"
    assert pod["metadata"]["annotations"]["note"] == "theirs"
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/home/ada", "/data"}
    claim = release.cluster.get("persistentvolumeclaim", "claim-bob", "-n", release.space())
    assert claim["spec"]["resources"]["requests"]["storage"] == "5Gi"

    answer = httpx.get(f"{release.scheduler.url}/v1/workloads?project=team-a", headers=_bearer(told), timeout=30, trust_env=False)
    assert [item["name"] for item in answer.json()["items"]] == ["workspace-bob"], answer.text
    release.close("bob")
    release.until(lambda: not release.as_scheduler_knows("bob"), "its share's return")


def _bearer(told: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {told['JUPYTERHUB_API_TOKEN']}"}


def test_homes_of_before_stay_in_a_project_whose_namespace_is_the_hubs(release: Release) -> None:
    before = release.cluster.get("persistentvolumeclaim", "claim-dave", "-n", release.namespace)["metadata"]["uid"]
    release.open("dave", project="science", profile="big")
    pod = release.pod_in(release.namespace, "dave")
    assert (pod["spec"]["containers"][0]["image"], pod["spec"]["schedulerName"]) == ("big:2", "hotdesk")
    claims = [volume["persistentVolumeClaim"]["claimName"] for volume in pod["spec"]["volumes"] if "persistentVolumeClaim" in volume]
    assert claims == ["claim-dave"]
    assert release.cluster.get("persistentvolumeclaim", "claim-dave", "-n", release.namespace)["metadata"]["uid"] == before
    release.close("dave")


def test_who_logs_in_finds_their_own_pages_with_the_queues_form(release: Release) -> None:
    with release.browser("carol") as page:
        assert "Closed on Friday" in page.get("/hub/home").text
        shown = page.get("/hub/spawn/carol").text
        assert "team-a — quota 2" in shown
        assert 'value="big"' in shown


def test_many_refusals_do_not_make_that_hub_exit(release: Release) -> None:
    """It comes with a limit of five failures, and JupyterHub 5 counts refusals as such."""
    for _ in range(6):
        answer = release.api.post("/users/carol/server", json={"project": "nobodys"})
        assert answer.status_code in {202, 403, 422}, answer.text
        release.until(lambda: not release.server("carol"), "the refusal")
    assert release.log.count("Error starting carol's server: HTTP 4") >= 6, "each of them is one"
    assert "consecutive spawns failed" not in release.log
    release.open("carol", project="team-a", gpu="0")
    release.close("carol")


def test_roles_and_services_of_that_release_are_still_there(release: Release) -> None:
    held = set(release.api.get("/users/ann").json()["roles"])
    assert {"admin", "hotdesk-admin", "user"} <= held
    with release.browser("bob") as page:
        token = page.post("/hub/api/users/bob/tokens", json={"scopes": ["shares!user"]}, headers=_xsrf(page))
    assert token.status_code == 201, "what the role `user` held before is held still"
    assert any("shares" in scope for scope in token.json()["scopes"])


def _xsrf(page: httpx.Client) -> dict[str, str]:
    return {"X-XSRFToken": page.cookies.get("_xsrf", path=f"{BASE}/hub/") or "", "Referer": f"{page.base_url}/hub/home"}


def test_manifests_choose_the_pods_they_mean(release: Release) -> None:
    """Policies are not enforced here: at least their labels are those of the hub's pods."""
    release.open("carol", project="team-a", gpu="0")
    labels = release.pod("carol")["metadata"]["labels"]
    policies = {item["metadata"]["name"]: item["spec"] for item in _policies()}
    of_hub = policies["hotdesk-z2jh-hub"]
    peers = [of_hub["egress"][1]["to"][0], of_hub["ingress"][0]["from"][0], *(policies[f"hotdesk-z2jh-{name}"] for name in _OF_WORKSPACES)]
    for peer in peers:
        assert peer["podSelector"]["matchLabels"].items() <= labels.items()
        assert {one["key"] for one in peer["podSelector"].get("matchExpressions", [])} <= labels.keys()
    release.close("carol")


def test_hub_gets_the_same_rights_in_projects_namespaces_as_that_of_our_own_chart() -> None:
    own = (OVERLAY.parent / "hotdesk" / "templates" / "hub-rbac.yaml").read_text().partition("rules:\n")[2].partition("---")[0]
    (role,) = (item for item in yaml.safe_load_all((OVERLAY / "rights.yaml").read_text()) if item["kind"] == "ClusterRole")
    assert role["rules"] == yaml.safe_load(own)


def test_readme_names_what_the_packages_need() -> None:
    assert f"pip download --no-deps -d build/needs {' '.join(NEEDS)} " in (OVERLAY / "README.md").read_text()


_OF_WORKSPACES = ("workspaces", "isolation")


def _policies() -> Iterator[Json]:
    for name in ("rights.yaml", "isolation.yaml"):
        items = yaml.safe_load_all((OVERLAY / name).read_text())
        yield from (item for item in items if item["kind"] == "NetworkPolicy")
