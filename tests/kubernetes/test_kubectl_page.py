"""What `docs/kubectl.md` tells people to apply is taken, and means what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # ships no types
from engine_world import eventually
from hotdesk_scheduler.core.model import GpuRequest, Kind
from kube_world import Kube

PAGE = Path(__file__).parents[2] / "docs" / "kubectl.md"


def resources_of(page: str) -> list[dict[str, Any]]:
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [item for block in blocks for item in yaml.safe_load_all(block)]


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
