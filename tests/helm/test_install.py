"""The chart on a real node, with an image of this repository's scheduler: installed, upgraded and taken away while a job runs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster.python_image import REPOSITORY, image_of
from cluster.real_node import import_image
from cluster.running import Cluster
from helm_chart import CHART, Json, helm, why_no_helm
from hotdesk_api import calls, models
from hotdesk_api.client import Client
from hotdesk_api.errors import HotdeskError
from hotdesk_scheduler.engines.kubernetes import crds
from kube_world import NODES
from scheduler_fixture import ALICE, CALLERS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.skipif(why_no_helm() is not None, reason=str(why_no_helm()))]
_KINDS = (
    "deployments,services,poddisruptionbudgets,networkpolicies,secrets,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings"
)
_DEFINITIONS = tuple(definition["metadata"]["name"] for definition in crds.definitions())


@dataclass(frozen=True, slots=True)
class Release:
    cluster: Cluster
    namespace: str

    @property
    def projects(self) -> str:
        """Where the workloads of team-a live."""
        return f"{self.namespace}-team-a"

    def helm(self, *arguments: str, values: Json | None = None) -> str:
        where = ("-n", self.namespace, "--kubeconfig", str(self.cluster.kubeconfig))
        return helm(*arguments, *where, values=values, timeout_s=240)

    def values(self, **more: object) -> Json:
        return {
            "image": {"repository": "localhost/scheduler", "tag": "1", "pullPolicy": "Never"},
            "tokens": {"existingSecret": "tokens"},
            "projectPrefix": f"{self.namespace}-",
            "seedProjects": {"team-a": "4"},
            **more,
        }

    def client(self) -> Client:
        address = self.cluster.get("service", "hotdesk", "-n", self.namespace)["spec"]["clusterIP"]
        return Client(f"http://{address}", ALICE)

    def status(self, name: str) -> str:
        """As the API says it; empty while nobody answers."""
        with contextlib.suppress(HotdeskError):
            return str(self.client().call(calls.workload("team-a", name)).status)
        return ""

    def projects_known(self) -> int:
        with contextlib.suppress(HotdeskError):
            return len(self.client().call(calls.projects()).items)
        return 0

    def pods(self, namespace: str, labels: str) -> list[Json]:
        found: list[Json] = self.cluster.get("pods", "-n", namespace, "-l", labels)["items"]
        return found

    def leader(self) -> str:
        """Its pod; empty between two."""
        found = self.pods(self.namespace, "hotdesk.io/leads=true")
        return str(found[0]["metadata"]["name"]) if len(found) == 1 else ""


@pytest.fixture
def release(real_cluster: Cluster, real_namespace: str, tmp_path: Path) -> Iterator[Release]:
    if real_cluster.external:
        pytest.skip("KUBECONFIG names another cluster: our image cannot be put on its nodes")
    import_image(real_cluster.folder, image_of(REPOSITORY / "scheduler" / "Dockerfile", "localhost/scheduler:1"))
    (tmp_path / "tokens.json").write_text(json.dumps(CALLERS))
    real_cluster.kubectl("create", "secret", "generic", "tokens", "-n", real_namespace, f"--from-file={tmp_path / 'tokens.json'}")
    # What engine tests on this cluster leave and each puts again: Helm takes over nothing that others made, nothing runs on played nodes.
    real_cluster.kubectl("delete", "nodes", *NODES, "--ignore-not-found", timeout_s=90)
    real_cluster.kubectl("delete", "customresourcedefinitions", *_DEFINITIONS, "--ignore-not-found", "--timeout=60s", timeout_s=90)
    made = Release(real_cluster, real_namespace)
    yield made
    made.helm("uninstall", "hotdesk", "--ignore-not-found")
    for name in real_cluster.kubectl("get", "workloads", "-n", made.projects, "-o", "name", "--ignore-not-found").split():
        real_cluster.kubectl("patch", name, "-n", made.projects, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    real_cluster.end_test(made.projects)


def test_installed_upgraded_failed_over_and_removed_while_a_job_runs(release: Release) -> None:
    cluster, namespace = release.cluster, release.namespace
    notes = release.helm("install", "hotdesk", str(CHART), "--wait", "--timeout", "180s", values=release.values())
    assert "2 replicas, of which one leads" in notes
    release.helm("test", "hotdesk", "--timeout", "180s")

    image = {"image": "localhost/busybox:1", "image_pull_policy": "Never"}
    job = models.WorkloadSpec.model_validate(
        {**image, "name": "job", "project": "team-a", "gpu_millis": 1000, "command": ["sleep", "3600"]}
    )
    cluster.wait_until("the project is there", lambda: release.projects_known() == 1)
    release.client().call(calls.submit(job))
    cluster.wait_until("the job runs", lambda: release.status("job") == "Running")
    (pod,) = release.pods(release.projects, "hotdesk.io/workload=job")
    given = cluster.kubectl("exec", pod["metadata"]["name"], "-n", release.projects, "--", "env")
    assert "NVIDIA_VISIBLE_DEVICES=GPU-fake-" in given
    assert f"HOTDESK_API_URL=http://hotdesk.{namespace}.svc:80" in given

    changed = release.values(settings={"HOTDESK_GRACE_S": "5"})
    release.helm("upgrade", "hotdesk", str(CHART), "--wait", "--timeout", "180s", values=changed)
    cluster.wait_until("the new release says that it runs", lambda: release.status("job") == "Running")

    before = release.leader()
    cluster.kubectl("delete", "pod", before, "-n", namespace, "--force", "--grace-period=0")
    cluster.wait_until("another one leads", lambda: release.leader() not in ("", before) and release.status("job") == "Running")

    release.helm("uninstall", "hotdesk", "--wait")
    (same,) = release.pods(release.projects, "hotdesk.io/workload=job")
    assert (same["metadata"]["uid"], same["status"]["phase"]) == (pod["metadata"]["uid"], "Running")
    assert cluster.get("workload", "job", "-n", release.projects)["metadata"]["name"] == "job"
    assert not cluster.kubectl("get", _KINDS, "-A", "-l", "app.kubernetes.io/instance=hotdesk", "-o", "name").split()
