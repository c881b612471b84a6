"""One cluster has one Hotdesk: a second installation is refused before it changes anything. The real helm on a real API server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from cluster.running import Cluster
from helm_chart import CHART, LEAST, ChartError, Json, helm, only, render, why_no_helm

pytestmark = pytest.mark.skipif(why_no_helm() is not None, reason=str(why_no_helm()))
# Other tests on this cluster put definitions that are no release's.
_VALUES: Json = {**LEAST, "crds": {"install": False}}
_RELEASE = "gpus"


@dataclass(frozen=True, slots=True)
class Place:
    cluster: Cluster
    namespace: str

    def helm(self, *arguments: str, values: Json | None = None) -> str:
        return helm(*arguments, "-n", self.namespace, "--kubeconfig", str(self.cluster.kubeconfig), values=values)

    def install(self, *more: str, values: Json = _VALUES, release: str = _RELEASE) -> str:
        return self.helm("install", release, str(CHART), *more, values=values)

    def uninstall(self) -> None:
        self.helm("uninstall", _RELEASE, "--ignore-not-found")

    def is_there(self, kind: str, name: str) -> bool:
        return bool(self.cluster.kubectl("get", kind, name, "-n", self.namespace, "--ignore-not-found"))


@pytest.fixture
def first(cluster: Cluster, namespace: str) -> Iterator[Place]:
    made = Place(cluster, namespace)
    try:
        made.install()
        yield made
    finally:
        made.uninstall()


@pytest.fixture
def elsewhere(cluster: Cluster) -> Iterator[Place]:
    """A namespace that is not there yet."""
    other = Place(cluster, f"test-{uuid.uuid4().hex[:8]}")
    try:
        yield other
    finally:
        if other.is_there("namespace", other.namespace):
            other.uninstall()
            cluster.end_test(other.namespace)


@pytest.mark.parametrize("install", [True, False], ids=["its definitions", "definitions of others"])
def test_second_is_told_where_the_first_one_is_and_changes_nothing(first: Place, elsewhere: Place, install: bool) -> None:
    with pytest.raises(ChartError) as refused:
        elsewhere.install("--create-namespace", values={**_VALUES, "crds": {"install": install}})
    assert (
        f"This cluster has a Hotdesk already, in namespace {first.namespace}; two would place the same pods. Change that one "
        f"(helm upgrade {_RELEASE} -n {first.namespace}), or take it away first (helm uninstall {_RELEASE} -n {first.namespace})."
    ) in str(refused.value)
    assert not elsewhere.is_there("namespace", elsewhere.namespace)
    assert not elsewhere.is_there("clusterrole", f"{elsewhere.namespace}:{_RELEASE}-hotdesk")


def test_another_release_in_the_same_namespace_is_a_second_one(first: Place) -> None:
    with pytest.raises(ChartError, match=f"helm upgrade {_RELEASE} -n {first.namespace}"):
        first.install(release="more")
    assert not first.is_there("deployment", "more-hotdesk")


def test_release_is_upgraded_as_often_as_wanted_and_installed_again(first: Place) -> None:
    for replicas in (1, 3):
        first.helm("upgrade", _RELEASE, str(CHART), values={**_VALUES, "replicas": replicas})
        assert first.cluster.get("deployment", f"{_RELEASE}-hotdesk", "-n", first.namespace)["spec"]["replicas"] == replicas
    first.uninstall()
    first.install()


def test_once_the_first_is_taken_away_another_may_come(first: Place, elsewhere: Place) -> None:
    first.uninstall()
    elsewhere.install("--create-namespace")
    assert elsewhere.is_there("deployment", f"{_RELEASE}-hotdesk")


def test_roles_that_were_left_behind_are_no_installation(elsewhere: Place, namespace: str) -> None:
    """As a namespace leaves them that was deleted with all that was in it."""
    left = only(render(LEAST, namespace=namespace), "ClusterRoleBinding")
    elsewhere.cluster.apply(left)
    try:
        elsewhere.install("--create-namespace")
    finally:
        elsewhere.cluster.kubectl("delete", "clusterrolebinding", left["metadata"]["name"])


def test_who_has_rights_in_one_namespace_alone_can_install_there(cluster: Cluster, namespace: str) -> None:
    """Definitions and roles are an administrator's then, and so is it to know what else is on the cluster."""
    cluster.kubectl("create", "rolebinding", "theirs", "--clusterrole=admin", "--user=erin", "-n", namespace)
    place = Place(cluster, namespace)
    place.install("--kube-as-user", "erin", values={**_VALUES, "rbac": {"create": False}})
    assert place.is_there("deployment", f"{_RELEASE}-hotdesk")
