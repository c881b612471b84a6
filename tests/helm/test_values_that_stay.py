"""A value by which what runs is found again: a change is refused while something does. The real helm on a real API server."""

from __future__ import annotations

import pytest
from cluster.running import Cluster
from helm_chart import CHART, LEAST, ChartError, Json, helm, why_no_helm
from hotdesk_scheduler.engines.kubernetes import crds
from hotdesk_scheduler.engines.kubernetes.resources import API_VERSION

pytestmark = pytest.mark.skipif(why_no_helm() is not None, reason=str(why_no_helm()))
# Without what belongs to the whole cluster, which other tests have too.
_VALUES: Json = {**LEAST, "crds": {"install": False}, "rbac": {"create": False}}


class Release:
    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.helm("install", values=_VALUES)

    def helm(self, verb: str, values: Json) -> str:
        place = ("-n", self.namespace, "--kubeconfig", str(self.cluster.kubeconfig))
        return helm(verb, "gpus", str(CHART), *place, values=values)

    def upgrade(self, **changed: object) -> str:
        return self.helm("upgrade", {**_VALUES, **changed})

    def add_project(self, name: str, **spec: str) -> None:
        self.cluster.apply(
            {"apiVersion": API_VERSION, "kind": "Project", "metadata": {"name": name}, "spec": spec}, namespace=self.namespace
        )


@pytest.fixture
def release(cluster: Cluster, namespace: str) -> Release:
    for file in crds.FILES:
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
    cluster.kubectl("wait", "--for=condition=Established", "crd/projects.hotdesk.io")
    return Release(cluster, namespace)


def test_prefix_stays_while_there_are_projects_in_namespaces_of_it(release: Release) -> None:
    release.upgrade(projectPrefix="a-")
    release.add_project("old", namespace="there-already")
    release.upgrade(projectPrefix="b-")
    release.add_project("team-a")
    with pytest.raises(ChartError) as refused:
        release.upgrade(projectPrefix="c-")
    assert (
        "projectPrefix cannot change from b- to c- while there are projects, such as team-a: what runs there and the homes stay in "
        "b-team-a, and would be lost sight of. Leave it as it was, or delete the projects first."
    ) in str(refused.value)
    release.upgrade(projectPrefix="b-", replicas=3)
