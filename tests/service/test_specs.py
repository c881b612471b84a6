"""From what is submitted to what is scheduled: the defaults of each kind."""

from __future__ import annotations

from typing import Any

import desks
import pytest
from builders import World, node
from hotdesk_api.errors import Invalid
from hotdesk_api.models import TolerationSpec, WorkloadSpec
from hotdesk_scheduler.core.model import GpuRequest, Kind, Toleration, Workload
from hotdesk_scheduler.service import specs
from hotdesk_scheduler.service.specs import generated_name, pod_request, workload_of


def built(spec: WorkloadSpec) -> Workload:
    return workload_of(spec, workload_id="id", name="n", user="alice", now=1.0)


@pytest.mark.parametrize(
    ("wishes", "priority", "preemptible"),
    [
        ({}, 50, True),
        ({"kind": "interactive"}, 100, False),
        ({"kind": "interactive", "preemptible": True}, 75, True),
        ({"kind": "workspace"}, 100, False),
        ({"kind": "workspace", "preemptible": True}, 75, True),
        ({"preemptible": False}, 50, False),
        ({"priority": 3}, 3, True),
        ({"kind": "interactive", "priority": 3}, 3, False),
    ],
)
def test_priority_and_preemptibility_follow_the_kind_unless_said(wishes: dict[str, object], priority: int, preemptible: bool) -> None:
    workload = built(desks.spec("n", **wishes))  # type: ignore[arg-type]  # the table's values are the spec's
    assert (workload.priority, workload.preemptible) == (priority, preemptible)


def test_gpus_become_whole_ones_a_fraction_or_memory() -> None:
    assert pod_request(desks.spec(gpus=2)).gpu == GpuRequest(whole=2)
    assert pod_request(desks.spec(gpus=0.3)).gpu == GpuRequest(millis=300)
    assert pod_request(desks.spec(gpus=0, gpu_memory_mib=5000)).gpu == GpuRequest(memory_mib=5000)
    assert pod_request(desks.spec(gpus=0)).gpu.is_none


def test_a_job_without_gpu_still_asks_for_something_that_is_limited() -> None:
    request = pod_request(desks.spec(gpus=0))
    assert request.cpu_millis > 0
    assert request.memory_mib > 0


def test_completions_make_an_hpo_of_independent_pods() -> None:
    workload = built(desks.spec("n", parallelism=3, completions=12))
    assert (workload.kind, len(workload.pods), workload.min_pods, workload.completions) == (Kind.HPO, 3, 1, 12)
    assert len(built(desks.spec("n", parallelism=3, completions=2)).pods) == 2


def test_workers_are_a_gang() -> None:
    workload = built(desks.spec("n", kind="mpi", workers=4))
    assert (len(workload.pods), workload.min_pods) == (4, 4)


@pytest.mark.parametrize("wishes", [{"gpus": 2}, {"gpus": 0.5}, {"gpus": 0, "gpu_memory_mib": 500}])
def test_who_asks_for_a_gpu_tolerates_that_nodes_are_kept_for_gpus(wishes: dict[str, Any]) -> None:
    own = TolerationSpec(key="team", value="a")
    assert built(desks.spec("n", tolerations=[own], **wishes)).tolerations == (
        Toleration("team", "Equal", "a"),
        Toleration("nvidia.com/gpu", "Exists"),
    )
    assert built(desks.spec("n", gpus=0)).tolerations == ()


def test_generated_names_take_the_first_free_number() -> None:
    assert generated_name(None, set()) == "job-0"
    assert generated_name(None, {"job-0", "job-1"}) == "job-2"
    assert generated_name("train", {"job-0"}, 7) == "train-7"
    assert len(generated_name("x" * 63, set())) <= 63


@pytest.mark.parametrize(
    ("wishes", "sentence"),
    [
        ({"cpu_millis": 500_000}, "No node has 500 CPU cores: the largest, n2, has 80 CPU cores. Ask for at most 80 CPU cores;"),
        ({"memory_mib": 600_000}, "No node has 600000 MiB of memory: the largest, n2, has 512000 MiB of memory. Ask for"),
        ({"gpus": 0, "gpu_memory_mib": 40_000}, "No node has 40000 MiB of memory on one GPU: the largest, n2, has 32768 MiB"),
    ],
)
def test_what_no_node_has_is_refused_in_words(wishes: dict[str, Any], sentence: str) -> None:
    snapshot = World(node("n1", 2), node("n2", 2), a=2).snapshot()
    with pytest.raises(Invalid) as refused:
        specs._check_fits_a_node(desks.spec("n", **wishes), snapshot)
    assert str(refused.value).startswith(sentence)


def test_memory_of_gpus_that_tell_none_is_refused_with_another_way_to_ask() -> None:
    snapshot = World(node("n1", 2, gpu_memory_mib=0), a=2).snapshot()
    with pytest.raises(Invalid) as refused:
        specs._check_fits_a_node(desks.spec("n", gpus=0, gpu_memory_mib=4096), snapshot)
    assert str(refused.value).startswith("Nothing here tells how much memory a GPU has. Ask for a part of one, such as -g 0.5.")
