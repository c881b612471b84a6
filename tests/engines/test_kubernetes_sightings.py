"""What is believed of pods of ours as they are seen: pure but for the book."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hotdesk_api.models import WorkloadSpec
from hotdesk_scheduler.core.model import GpuRequest, Kind, Node, Placement, Pod, PodRequest, PodState, Resources, Share, Workload
from hotdesk_scheduler.engines.kubernetes import manifests
from hotdesk_scheduler.engines.kubernetes.book import Book
from hotdesk_scheduler.engines.kubernetes.entry import Entry
from hotdesk_scheduler.engines.kubernetes.observe import Life, Seen
from hotdesk_scheduler.engines.kubernetes.sightings import Sightings

HALF = Placement("n1", shares=(Share("g0", 500),))
REQUEST = PodRequest(GpuRequest(millis=500))


class Saved:
    def soon(self, entry: Entry) -> None:
        pass


def sightings(kind: Kind, state: PodState) -> tuple[Sightings, Book, Entry]:
    book = Book(version=1)
    book.put_node(Node("n1", gpus=4))
    workload = Workload("id", "job", "team-a", kind, pods=(Pod(0, REQUEST, state, HALF, started_at=1.0),))
    entry = Entry("s", "uid", 1, workload, WorkloadSpec(name="job", project="team-a", image="x"))
    book.add(entry)
    return Sightings(book, None, Saved()), book, entry  # type: ignore[arg-type]  # only what it is asked for


def seen(placement: Placement, **values: Any) -> Seen:
    said = Seen("p", "s", "u", "n1", Life.RUNNING, leaving=False, uses=Resources(), placement=manifests.placement_out(placement))
    return replace(said, **values)


@pytest.mark.parametrize("state", [PodState.RUNNING, PodState.RELEASING])
def test_a_hand_that_writes_a_smaller_share_on_a_pod_that_runs_makes_it_no_smaller(state: PodState) -> None:
    found, _, entry = sightings(Kind.TRAIN, state)
    found.step(entry, entry.pod(0), seen(Placement("n1", shares=(Share("g0", 1),))))
    assert entry.pod(0).placement == HALF


def test_a_pod_that_another_leader_made_is_where_that_one_sent_it() -> None:
    found, _, entry = sightings(Kind.TRAIN, PodState.STARTING)
    elsewhere = Placement("n1", shares=(Share("g1", 500),))
    found.step(entry, entry.pod(0), seen(elsewhere))
    assert entry.pod(0).placement == elsewhere


def test_a_copy_of_a_workspaces_labels_in_another_namespace_is_not_the_workspaces() -> None:
    found, book, _ = sightings(Kind.WORKSPACE, PodState.RUNNING)
    own, copy = (seen(HALF, namespace=space, workload_id="id", uses=Resources(1000, 0, 0)) for space in ("s", "elsewhere"))
    assert found.named(own).workload_id == "id"
    assert found.named(copy).workload_id is None
    book.see(("elsewhere", "p"), found.named(copy))
    assert book.snapshot().nodes[0].foreign.gpu_millis == 1000


@pytest.mark.parametrize(("taken", "is_discarded"), [(500, False), (600, True)])
def test_a_former_leaders_late_share_is_taken_up_only_where_that_gpu_has_room_for_it(taken: int, is_discarded: bool) -> None:
    _, book, entry = sightings(Kind.TRAIN, PodState.PENDING)
    other = Placement("n1", shares=(Share("g0", taken),))
    runs = replace(entry.workload, id="other", name="other", pods=(Pod(0, REQUEST, PodState.RUNNING, other),))
    book.add(replace(entry, uid="other", workload=runs))
    discarded: list[Seen] = []
    pods: Any = SimpleNamespace(discard=discarded.append)
    late = Sightings(book, pods, Saved())  # type: ignore[arg-type]  # only what it is asked for
    late.look(seen(HALF, workload_id="id"), None)
    assert bool(discarded) is is_discarded
    assert entry.pod(0).state is (PodState.PENDING if is_discarded else PodState.RUNNING)


def test_pods_of_a_workload_are_found_by_name_or_label_in_its_namespace_while_they_are_there() -> None:
    _, book, entry = sightings(Kind.TRAIN, PodState.PENDING)
    by_name, by_label = seen(HALF, name="job-0-abcde"), seen(HALF, name="jupyter-alice", workload_id="id")
    others = [seen(HALF, name="job-0-abcde", namespace="elsewhere"), seen(HALF, name="job-two-0-abcde"), seen(HALF, name="bare")]
    for one in (by_name, by_label, *others):
        book.see((one.namespace, one.name), one)
    assert {one.name for one in book.kin_of(entry)} == {"job-0-abcde", "jupyter-alice"}
    book.see(("s", "jupyter-alice"), replace(by_label, workload_id=None))
    book.see(("s", "job-0-abcde"), None)
    assert book.kin_of(entry) == []
