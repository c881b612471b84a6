"""What pods ask for beside GPUs, CPU and memory: read as kube-scheduler counts it, and never given twice."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hotdesk_api.models import WorkloadSpec
from hotdesk_scheduler.core.model import GpuRequest, Kind, Node, Placement, Pod, PodRequest, PodState, Resources, Scarce, Workload
from hotdesk_scheduler.engines.base import Change
from hotdesk_scheduler.engines.kubernetes.book import Book
from hotdesk_scheduler.engines.kubernetes.entry import Entry, Member
from hotdesk_scheduler.engines.kubernetes.extras import Extras, allocatable, further, what_words
from hotdesk_scheduler.engines.kubernetes.observe import Life, Seen

HCA = (("rdma/hca", 1),)


def container(asks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": asks}, **more}


@pytest.mark.parametrize(
    ("spec", "amounts"),
    [
        ({"containers": [container({"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"})]}, {}),
        ({"containers": [container({"ephemeral-storage": "1Ki"}), container({"ephemeral-storage": "2Ki"})]}, {"ephemeral-storage": 3072}),
        ({"containers": [{"name": "c", "resources": {"limits": {"rdma/hca": "2"}}}]}, {"rdma/hca": 2}),
        ({"containers": [container({"rdma/hca": "0"})]}, {}),
        ({"containers": [container({"a/b": "1"})], "initContainers": [container({"a/b": "3"})]}, {"a/b": 3}),
        ({"containers": [container({"a/b": "1"})], "initContainers": [container({"a/b": "3"}, restartPolicy="Always")]}, {"a/b": 4}),
        ({"containers": [container({})], "overhead": {"cpu": "1", "ephemeral-storage": "5"}}, {"ephemeral-storage": 5}),
        ({"containers": [container({})], "resources": {"requests": {"hugepages-2Mi": "4Mi"}}}, {"hugepages-2Mi": 2**22}),
        (
            {"containers": [container({}, ports=[{"hostPort": 80}, {"hostPort": 80, "protocol": "UDP"}, {"containerPort": 9}])]},
            {"host port 80/TCP": 1, "host port 80/UDP": 1},
        ),
        ({"containers": [container({})], "initContainers": [container({}, ports=[{"hostPort": 80}])]}, {}),
    ],
)
def test_it_is_read_as_kube_scheduler_counts_it(spec: dict[str, Any], amounts: dict[str, int]) -> None:
    assert dict(further(spec)) == amounts


def test_amounts_are_told_as_people_write_them() -> None:
    assert what_words("rdma/hca", 2) == "2 rdma/hca"
    assert what_words("ephemeral-storage", 5 * 2**40) == "5Ti of ephemeral-storage"
    assert what_words("ephemeral-storage", 1000) == "1000 of ephemeral-storage"
    assert what_words("host port 80/TCP", 1) == "host port 80/TCP"


def extras(**there: int) -> Extras:
    found = Extras()
    for node, count in there.items():
        found.put_node(node, {"rdma/hca": count})
    return found


def test_of_two_pods_sent_to_one_node_that_has_it_once_one_gets_it_and_keeps_it_until_it_is_gone() -> None:
    found = extras(n1=1)
    assert (found.take("a", "n1", HCA), found.take("b", "n1", HCA)) == ("", "1 rdma/hca")
    found.see("a", None, HCA, holds=False)  # news of it before it is there
    assert found.take("b", "n1", HCA) == "1 rdma/hca"
    found.see("a", "n1", HCA, holds=True)
    assert found.take("a", "n1", HCA) == "", "its own part is no obstacle"
    found.see("a", "n1", HCA, holds=False)
    assert found.take("b", "n1", HCA) == ""


def test_a_host_port_is_had_once_on_each_node_and_what_no_node_names_is_nowhere() -> None:
    found = extras(n1=1, n2=1)
    port = (("host port 80/TCP", 1),)
    assert [found.take(uid, node, port) for uid, node in (("a", "n1"), ("b", "n2"), ("c", "n1"))] == ["", "", "host port 80/TCP"]
    assert found.take("d", "n1", (("other/thing", 1),)) == "1 other/thing"
    assert allocatable({"cpu": "4", "pods": "110", "ephemeral-storage": "1Ki", "rdma/hca": "2"}) == {
        "ephemeral-storage": 1024,
        "rdma/hca": 2,
    }


def gang(pods: int, least: int, running: int = 0) -> Workload:
    states = [PodState.RUNNING] * running + [PodState.PENDING] * (pods - running)
    made = tuple(Pod(index, PodRequest(), state, Placement("n1")) for index, state in enumerate(states))
    return Workload("id", "g", "team-a", Kind.TRAIN, min_pods=least, pods=made)


@pytest.mark.parametrize(
    ("workload", "there", "said"),
    [
        (gang(1, 1), {"n1": 1, "n2": 1}, ()),
        (gang(1, 1), {"n1": 1, "n2": 0}, (Scarce("1 rdma/hca", ("n2",)),)),
        (gang(1, 1), {"n1": 0, "n2": 0}, (Scarce("1 rdma/hca", ("n1", "n2"), could=False),)),
        (gang(3, 3), {"n1": 2, "n2": 1}, ()),
        (gang(3, 3), {"n1": 1, "n2": 1}, (Scarce("1 rdma/hca for each of 3 pods", ("n1", "n2"), could=False),)),
        (gang(3, 2), {"n1": 1, "n2": 1}, ()),
        (gang(3, 3, running=1), {"n1": 1, "n2": 1}, ()),
    ],
)
def test_a_gang_finds_enough_for_as_many_as_start_together_or_nothing(
    workload: Workload, there: dict[str, int], said: tuple[Scarce, ...]
) -> None:
    assert extras(**there).scarce(workload, dict.fromkeys(range(len(workload.pods)), HCA)) == said


def waiting(book: Book, name: str, gpus: int = 0) -> Entry:
    workload = Workload(name, name, "team-a", Kind.TRAIN, pods=(Pod(0, PodRequest(GpuRequest(whole=gpus))),))
    entry = Entry("s", name, 0, workload, WorkloadSpec(name=name, project="team-a", image="x"), is_claimed=True)
    book.add(entry)
    book.join(entry, 0, Member(name, name, extras=HCA))
    return entry


def pod(name: str, node: str | None, life: Life = Life.RUNNING) -> Seen:
    return Seen(name, "s", name, node, life, leaving=False, uses=Resources(), extras=HCA)


def test_who_waits_is_told_of_what_others_take_and_give_back_and_nothing_once_it_waits_no_more() -> None:
    book = Book(version=1)
    book.put_node(Node("n1"))
    book.extras.put_node("n1", {"rdma/hca": 1})
    entry = waiting(book, "w")
    assert book.snapshot().workloads[0].scarce == ()
    before = book.snapshot()
    book.see(("s", "x"), pod("x", "n1"))
    assert book.snapshot().workloads[0].scarce == (Scarce("1 rdma/hca", ("n1",)),)
    assert book.snapshot().version > before.version
    book.see(("s", "x"), pod("x", "n1", Life.SUCCEEDED))
    assert book.snapshot().workloads[0].scarce == ()
    book.see(("s", "x"), pod("x", "n1"))
    book.see(("s", "x"), None)
    assert book.snapshot().workloads[0].scarce == ()
    book.drop(entry.workload.id)
    book.extras.put_node("n1", None)
    book.changed(Change("removed"))
    assert book.snapshot().workloads == ()


def runs(book: Book, name: str, *, preemptible: bool, holds: bool = True) -> None:
    """On a whole GPU of n1."""
    request = PodRequest(GpuRequest(whole=1))
    pods = (Pod(0, request, PodState.RUNNING, Placement("n1", 1)),)
    workload = Workload(name, name, "team-a", Kind.TRAIN, pods=pods, preemptible=preemptible)
    book.add(Entry("s", name, 0, workload, WorkloadSpec(name=name, project="team-a", image="x"), is_claimed=True))
    book.join(book.entry(name), 0, Member(name, name, extras=HCA if holds else ()))
    seen = replace(pod(name, "n1"), uses=Resources(1000), extras=HCA if holds else ())
    book.see(("s", name), seen)


@pytest.mark.parametrize(
    ("first", "second", "asks", "is_lacking"),
    [
        ({"preemptible": True}, {"preemptible": True}, 1, False),
        ({"preemptible": True}, {"preemptible": False}, 1, False),
        ({"preemptible": False}, {"preemptible": False}, 1, True),
        ({"preemptible": True}, {"preemptible": True, "holds": False}, 1, True),  # the other one may be the one that is stopped
        ({"preemptible": True}, {"preemptible": True}, 0, True),  # it would start beside them
        ({"preemptible": True}, None, 1, True),  # a GPU is free: it would start there now
    ],
)
def test_what_can_be_stopped_where_no_gpu_is_free_keeps_nobody_from_his_right(
    first: dict[str, bool], second: dict[str, bool] | None, asks: int, is_lacking: bool
) -> None:
    book = Book(version=1)
    book.put_node(Node("n1", gpus=2))
    entry = waiting(book, "w", gpus=asks)
    runs(book, "one", **first)
    if second is not None:
        runs(book, "two", **second)
    has = sum(one is not None and one.get("holds", True) for one in (first, second))
    book.extras.put_node("n1", {"rdma/hca": has})
    book.snapshot()
    assert bool(entry.workload.scarce) is is_lacking


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_no_node_gives_more_than_it_has_and_all_comes_back(seed: int) -> None:
    chance, found, there = Random(seed), extras(n1=2, n2=1), {"n1": 2, "n2": 1}
    on: dict[str, str] = {}
    for _ in range(300):
        uid, node = chance.choice("abcde"), chance.choice(("n1", "n2"))
        match chance.choice(("take", "take", "bound", "ended", "back", "news")):
            case "take":
                free = there[node] - sum(one == node for other, one in on.items() if other != uid)
                assert (found.take(uid, node, HCA) == "") is (free > 0)
                on.pop(uid, None)
                if free > 0:
                    on[uid] = node
            case "bound" if uid in on:
                found.see(uid, on[uid], HCA, holds=True)
            case "ended" if uid in on:
                found.see(uid, on.pop(uid), HCA, holds=False)
            case "back":
                found.give_back(uid)
                on.pop(uid, None)
            case "news":
                found.see(uid, None, HCA, holds=False)
