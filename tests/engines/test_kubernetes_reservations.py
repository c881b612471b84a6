"""Reservation pods and what pods are told of their share, as values: pure functions of the Kubernetes engine."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hotdesk_api.models import WorkloadSpec
from hotdesk_scheduler.core.model import GpuRequest, Kind, Node, Placement, Pod, PodRequest, PodState, Project, Resources, Share, Workload
from hotdesk_scheduler.engines.kubernetes import manifests, nodes, observe, reservation
from hotdesk_scheduler.engines.kubernetes.book import Book
from hotdesk_scheduler.engines.kubernetes.entry import Entry, Member
from hotdesk_scheduler.engines.kubernetes.health import Health
from hotdesk_scheduler.engines.kubernetes.observe import Life, Seen
from hotdesk_scheduler.engines.kubernetes.reservation import Reservation, Reserved, Told

HALF = Placement("n1", shares=(Share("g0", 500),))
RUNS = Pod(0, PodRequest(GpuRequest(millis=500)), PodState.RUNNING, HALF)


def test_its_name_is_the_same_for_the_same_shared_gpu_only() -> None:
    assert reservation.pod_name("n1", "g0") == reservation.pod_name("n1", "g0")
    others = {reservation.pod_name(*key) for key in (("n1", "g0"), ("n1", "g1"), ("n2", "g0"), ("n" * 200, "g0"))}
    assert len(others) == 4
    assert all(len(name) <= 63 for name in others)


def status(**container: Any) -> dict[str, Any]:
    meta = {"name": "gpu-n1-1", "namespace": "r", "annotations": {reservation.GROUP: "g0"}}
    return {"metadata": meta, "status": {"initContainerStatuses": [container]}}


def test_the_device_is_what_its_init_container_said_at_its_end() -> None:
    assert reservation.read(status(state={"terminated": {"exitCode": 0, "message": "GPU-1\n"}})) == Reservation("g0", "GPU-1")
    assert reservation.read(status(state={"running": {}})) == Reservation("g0")
    assert reservation.read({"metadata": {"name": "somebody", "namespace": "r"}}) is None


def test_a_hand_that_takes_off_or_changes_its_mark_makes_it_no_other_ones() -> None:
    made = reservation.pod_object("n1", "g0", namespace="r", image="x")
    for notes in ({}, {reservation.GROUP: "g9"}, None):
        assert reservation.read({**made, "metadata": {**made["metadata"], "annotations": notes}}) == Reservation("g0")


def test_what_it_could_not_find_out_is_its_trouble_also_while_it_waits_for_the_next_try() -> None:
    end = {"terminated": {"exitCode": 1, "message": "it saw no GPU where it expected one"}}
    waits = {"waiting": {"reason": "CrashLoopBackOff"}}
    assert reservation.read(status(state=waits, lastState=end)) == Reservation("g0", trouble="it saw no GPU where it expected one")


@pytest.mark.parametrize(
    ("variable", "tool", "said"),
    [
        ("GPU-fake-0", "", "GPU-fake-0"),
        ("MIG-1a2b", "", "MIG-1a2b"),
        ("void", "GPU-9c", "GPU-9c"),
        ("all", "GPU-1\\nGPU-2", None),
        ("", "", None),
    ],
)
def test_it_says_the_one_device_it_sees_and_nothing_when_that_is_not_one(
    tmp_path: Path, variable: str, tool: str, said: str | None
) -> None:
    """The script itself, with what NVIDIA's plugin gives by variable, or with its tool alone (CDI)."""
    log = tmp_path / "log"
    script = reservation.SAY.replace("/dev/termination-log", str(log)).replace("sleep 2; ", "")
    if tool:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\nprintf '{tool}\\n'\n")
        program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.defpath}", "NVIDIA_VISIBLE_DEVICES": variable}
    done = subprocess.run([shutil.which("sh") or "sh", "-c", script], env=environment, check=False, timeout=60)
    assert (done.returncode == 0) == (said is not None)
    assert log.read_text() == said if said else "expected one" in log.read_text()


def test_a_share_is_told_as_the_local_engine_tells_it() -> None:
    found = reservation.variables((Share("g0", 250),), ["GPU-1"], 32768)
    assert found["NVIDIA_VISIBLE_DEVICES"] == found["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert (found["GPU_PORTION"], found["RUNAI_GPU_MEMORY_LIMIT"], found["HOTDESK_TIER"]) == ("0.25", "8192", "cooperative")
    assert found["CUPY_GPU_MEMORY_LIMIT"] == str(8192 * 2**20)


def test_of_memory_that_nobody_told_no_amount_is_made_up() -> None:
    found = reservation.variables((Share("g0", 500),), ["GPU-1"], 0)
    assert "HOTDESK_GPU_MEMORY_MIB" not in found
    assert (found["CUPY_GPU_MEMORY_LIMIT"], found["XLA_CLIENT_MEM_FRACTION"]) == ("50%", "0.50")


def test_what_is_noted_on_a_pod_reads_back() -> None:
    held = (Reserved("uid-1", "GPU-1"), Reserved("uid-2", "MIG-2"))
    assert reservation.reserved_in(reservation.reserved_out(held)) == held
    assert reservation.reserved_in(None) == reservation.reserved_in("nonsense") == ()


def test_a_grant_names_the_config_map_of_its_share_and_the_reservation_it_counts_on() -> None:
    told = Told("desk-gpu", {"GPU_PORTION": "0.5"}, (Reserved("uid-1", "GPU-1"),))
    grant = manifests.grant(Workload("id", "desk", "team-a", Kind.WORKSPACE), RUNS, "hotdesk-team-a", told)
    assert (grant.config_map, grant.config_keys, grant.gpus) == ("desk-gpu", ["GPU_PORTION"], 0)
    assert grant.annotations[observe.RESERVED] == "uid-1=GPU-1"


def test_an_annotation_says_whether_a_node_is_simulated_and_kwoks_are_if_nothing_does() -> None:
    played = {"kwok.x-k8s.io/node": "fake"}
    for notes, simulated in ((played, True), ({}, False), ({**played, "hotdesk.io/simulated": "false"}, False)):
        item = {"metadata": {"name": "n", "annotations": notes}}
        assert nodes.read_node(item).simulated is simulated
    assert nodes.read_node({"metadata": {"name": "n", "annotations": {"hotdesk.io/simulated": "true"}}}).simulated


def test_devices_that_the_kubelet_calls_unhealthy_are_read() -> None:
    devices = [{"resourceID": "GPU-1", "health": "Unhealthy"}, {"resourceID": "GPU-2", "health": "Healthy"}]
    containers = [{"name": "main", "allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": devices}]}]
    item = {
        "metadata": {"name": "p", "namespace": "s", "uid": "u"},
        "spec": {"containers": []},
        "status": {"phase": "Running", "containerStatuses": containers},
    }
    assert observe.read_pod(item).broken == ("GPU-1",)


# --- the book


def seen(name: str, **values: Any) -> Seen:
    return Seen(name, "r", f"uid-{name}", "n1", Life.RUNNING, leaving=False, uses=Resources(1000, 0, 0), **values)


def book() -> tuple[Book, Entry]:
    found = Book(version=1)
    found.put_node(Node("n1", gpus=4))
    found.projects["team-a"] = Project("team-a")
    workload = Workload("id", "job", "team-a", Kind.TRAIN, pods=(RUNS,))
    entry = Entry("s", "uid", 1, workload, WorkloadSpec(name="job", project="team-a", image="x"))
    found.add(entry)
    return found, entry


def foreign(of: Book) -> int:
    return of.snapshot().nodes[0].foreign.gpu_millis


def test_a_reservations_gpu_is_counted_once_while_it_is_shared_and_as_somebody_elses_until_it_is_gone() -> None:
    found, entry = book()
    left: list[int] = []
    found.left = lambda one, pod: left.append(pod.index)
    found.see(("r", "gpu"), seen("gpu", reservation=Reservation("g0", "GPU-1")))
    assert foreign(found) == 0
    ended = Pod(0, RUNS.request, PodState.STOPPED, HALF)
    found.put(entry, Workload("id", "job", "team-a", Kind.TRAIN, pods=(ended,)))
    assert (foreign(found), left) == (1000, [0])
    found.see(("r", "gpu"), None)
    assert foreign(found) == 0
    assert found.reservations == {}


def test_who_shares_is_forgotten_with_its_workload() -> None:
    found, _ = book()
    assert found.sharers == {("n1", "g0"): {("id", 0)}}
    found.drop("id")
    assert found.sharers[("n1", "g0")] == set()


def test_a_pod_that_leaves_a_gang_gives_up_its_own_share_and_the_others_keep_theirs() -> None:
    found, entry = book()
    gang = [replace(RUNS, index=index) for index in range(3)]
    found.put(entry, replace(entry.workload, pods=tuple(gang)))
    found.put(entry, replace(entry.workload, pods=(gang[0], gang[2])))
    assert found.sharers[("n1", "g0")] == {("id", 0), ("id", 2)}
    found.put(entry, replace(entry.workload, pods=()))
    assert found.sharers[("n1", "g0")] == set()


class Saved:
    def __init__(self) -> None:
        self.names: list[str] = []

    def soon(self, entry: Entry) -> None:
        self.names.append(entry.workload.name)


def test_who_shares_a_gpu_that_broke_says_so_until_it_is_well_again() -> None:
    found, entry = book()
    saved = Saved()
    health = Health(found, saved)  # type: ignore[arg-type]  # only what it is asked for
    well, broken = (seen("gpu", reservation=Reservation("g0", "GPU-1"), broken=bad) for bad in ((), ("GPU-1",)))
    for one in (well, broken, broken):
        found.see(("r", "gpu"), one)
        health.look(one)
    assert entry.errors[0].startswith("GPU GPU-1, which it uses, is reported broken by n1")
    sentence = entry.errors.pop(0)  # as at its start
    health.look(broken)
    assert entry.errors == {0: sentence}
    found.see(("r", "gpu"), well)
    health.look(well)
    assert entry.errors == {}
    assert saved.names == ["job", "job", "job"]


def test_of_two_reservations_of_one_shared_gpu_that_where_they_are_made_now_counts_and_the_other_is_somebody_elses() -> None:
    found, _ = book()
    elsewhere, here = Reservation("g0", "GPU-2", is_elsewhere=True), Reservation("g0", "GPU-1")
    for name, one in (("old", elsewhere), ("gpu", here)):
        found.see(("r", name), seen(name, reservation=one))
    assert (found.reservations["n1", "g0"].reservation, foreign(found)) == (here, 1000)
    assert found.snapshot().nodes[0].closed_groups == ()
    found.see(("r", "gpu"), None)
    assert (found.reservations["n1", "g0"].reservation, foreign(found)) == (elsewhere, 0)
    assert found.snapshot().nodes[0].closed_groups == ("g0",)


def test_a_shared_gpu_that_broke_is_closed_until_it_is_well_again() -> None:
    found, _ = book()
    for broken, closed in (((), ()), (("GPU-1",), ("g0",)), ((), ())):
        found.see(("r", "gpu"), seen("gpu", reservation=Reservation("g0", "GPU-1"), broken=broken))
        assert found.snapshot().nodes[0].closed_groups == closed


@pytest.mark.parametrize(
    ("kind", "others", "advice"),
    [
        (Kind.TRAIN, False, "; stop and resume it to get another one."),
        (Kind.WORKSPACE, False, "; stop it and start it again from the hub to get another one."),
        (Kind.TRAIN, True, "; delete its pod (kubectl delete pod p -n s) and have it made again to get another one."),
    ],
)
def test_how_to_get_another_gpu_than_the_broken_one_is_what_its_owner_can_do(kind: Kind, others: bool, advice: str) -> None:
    found, entry = book()
    found.put(entry, replace(entry.workload, kind=kind))
    if others:
        found.join(entry, 0, Member("p", "u"))
    found.see(("r", "gpu"), seen("gpu", reservation=Reservation("g0", "GPU-1"), broken=("GPU-1",)))
    Health(found, Saved()).look(found.pods["r", "gpu"])  # type: ignore[arg-type]  # as above
    assert entry.errors[0].endswith(advice)
