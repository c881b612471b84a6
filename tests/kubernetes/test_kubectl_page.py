"""What `docs/kubectl.md` tells people to apply is taken, and means what the page says; a team needs Kubernetes' `edit` for it, no more."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # ships no types
from cluster.running import KubectlError
from engine_world import eventually
from helm_chart import LEAST, Json, render, why_no_helm
from hotdesk_scheduler.core.model import GpuRequest, Kind, Phase
from kube_world import Kube

PAGE = Path(__file__).parents[2] / "docs" / "kubectl.md"
RICHER = {"apiVersion": "hotdesk.io/v1alpha1", "kind": "Project", "metadata": {"name": "team-a"}, "spec": {"gpu": {"quota": 64000}}}
TEAM = ("--as=anna", "--as-group=team-a")  # not the `alice` of the page: whom a workload belongs to is no right


def resources_of(page: str) -> list[Json]:
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [item for block in blocks for item in yaml.safe_load_all(block)]


def commands_of(page: str) -> list[list[str]]:
    """Without `kubectl` itself."""
    return [shlex.split(line, comments=True)[1:] for line in page.splitlines() if line.startswith("    kubectl ")]


async def test_the_resources_of_the_page_become_a_project_with_its_jobs(kube: Kube) -> None:
    for item in resources_of(PAGE.read_text()):
        namespace = item["metadata"].pop("namespace")
        kube.cluster.apply(item, namespace=kube.namespace + namespace.removeprefix("hotdesk"))
    await eventually(lambda: {one.name for one in kube.engine.snapshot().workloads} == {"train1", "build1"}, "both jobs being known")
    snapshot = kube.engine.snapshot()
    found = {one.name: one for one in snapshot.workloads}
    assert {(one.user, one.project) for one in found.values()} == {("alice", "team-a")}
    assert (found["train1"].kind, found["train1"].pods[0].request.gpu) == (Kind.TRAIN, GpuRequest(whole=1))
    assert (found["build1"].kind, found["build1"].pods[0].request.gpu) == (Kind.INTERACTIVE, GpuRequest(millis=500))
    project = next(one for one in snapshot.projects if one.name == "team-a")
    assert (project.department, project.gpu.quota, project.interactive_time_limit_s) == ("research", 4000, 28800)


@pytest.fixture
def teams_roles(kube: Kube) -> Iterator[None]:
    """Those of the chart that add to Kubernetes' own."""
    if why_no_helm():
        pytest.skip(str(why_no_helm()))
    roles = [item for item in render(LEAST, namespace=kube.namespace) if "aggregate-to" in json.dumps(item)]
    kube.cluster.apply(*roles)
    yield
    kube.cluster.kubectl("delete", "clusterrole", *(role["metadata"]["name"] for role in roles))


@pytest.mark.usefixtures("teams_roles")
async def test_a_team_does_what_the_page_shows_with_the_right_to_edit_its_namespace(kube: Kube) -> None:
    space, page = f"{kube.namespace}-team-a", PAGE.read_text()
    (binding, *commands) = [[word.replace("hotdesk-team-a", space) for word in command] for command in commands_of(page)]
    assert [binding[0], *(command[0] for command in commands)] == ["create", "get", "describe", "patch", "delete"]
    kube.cluster.kubectl(*binding)
    kube.cluster.wait_until("Kubernetes' role has what the chart adds", lambda: "create" in granted(kube, TEAM, space).get("workloads", ()))

    jobs = [item for item in resources_of(page) if item["kind"] == "Workload"]
    for item in jobs:
        item["metadata"]["namespace"] = space
        kube.cluster.kubectl("apply", "-f", "-", *TEAM, given=json.dumps(item))
    await eventually(lambda: {one.name for one in kube.engine.snapshot().workloads} == {"train1", "build1"}, "both jobs being known")
    said = [kube.cluster.kubectl(*command, *TEAM, *(["--wait=false"] if command[0] == "delete" else [])) for command in commands]
    assert "train1" in said[0]
    assert "build1" in said[0]
    await eventually(lambda: phase_of(kube, "train1") in (None, Phase.DELETING), "its end")
    with pytest.raises(KubectlError, match="forbidden"):
        kube.cluster.kubectl("apply", "-f", "-", *TEAM, "-n", kube.namespace, given=json.dumps(RICHER))


@pytest.mark.usefixtures("teams_roles")
async def test_nobody_writes_quotas_or_a_status_by_a_right_in_the_namespace_of_a_team(kube: Kube) -> None:
    space = f"{kube.namespace}-team-a"
    for role in ("view", "edit", "admin"):
        kube.cluster.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}er", "-n", space)
    reads, writes = {"get", "list", "watch"}, {"create", "update", "patch", "delete"}
    seen = {"projects": reads, "departments": reads}
    whole = {"workloads": reads | writes, **seen}
    kube.cluster.wait_until("the last of the roles has what the chart adds", lambda: granted(kube, ["--as=adminer"], space) == whole)
    assert granted(kube, ["--as=editer"], space) == whole
    assert granted(kube, ["--as=viewer"], space) == {"workloads": reads, **seen}
    assert granted(kube, ["--as=adminer"], kube.namespace) == {}


def phase_of(kube: Kube, name: str) -> Phase | None:
    return next((one.phase for one in kube.engine.snapshot().workloads if one.name == name), None)


def granted(kube: Kube, who: Sequence[str], namespace: str) -> dict[str, set[str]]:
    """Verbs by resource of ours; subresources have lines of their own."""
    found: dict[str, set[str]] = {}
    for line in kube.cluster.kubectl("auth", "can-i", "--list", *who, "-n", namespace).splitlines():
        if ".hotdesk.io" in line:
            found.setdefault(line.split()[0].replace(".hotdesk.io", ""), set()).update(line[line.rindex("[") + 1 : -1].split())
    return found
