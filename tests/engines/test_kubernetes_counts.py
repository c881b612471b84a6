"""What pods of others hold on each node: counted again only where a change may have touched it, and never wrong for that."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hotdesk_api.models import WorkloadSpec
from hotdesk_scheduler.core.model import GpuRequest, Kind, Node, Placement, Pod, PodRequest, PodState, Resources, Share, Workload
from hotdesk_scheduler.engines.kubernetes.book import Book
from hotdesk_scheduler.engines.kubernetes.entry import Entry, Member
from hotdesk_scheduler.engines.kubernetes.observe import Life, Seen
from hotdesk_scheduler.engines.kubernetes.reservation import Reservation

NODES, WORKLOADS, PODS = ("n1", "n2"), ("a", "b"), ("p", "q", "r")


def some_pod(chance: Random, index: int) -> Pod:
    request = PodRequest(GpuRequest(whole=1), chance.choice((0, 500)), 64)
    shares = chance.choice(((), (Share("g0", 500),)))
    placement = Placement(chance.choice(NODES), whole=chance.choice((0, 1, 2)), shares=shares)
    state = chance.choice((PodState.PENDING, PodState.STARTING, PodState.RUNNING, PodState.STOPPED))
    return Pod(index, request, state, chance.choice((None, placement, placement)), attempt=chance.choice((0, 0, 1)))


def some_sight(chance: Random, name: str) -> Seen:
    return Seen(
        name,
        "s",
        f"{name}-{chance.choice((1, 2))}",
        chance.choice((None, *NODES)),
        chance.choice((Life.COMING, Life.RUNNING, Life.RUNNING, Life.FAILED)),
        leaving=False,
        uses=Resources(chance.choice((0, 1000, 2000)), 700, 100),
        workload_id=chance.choice((None, *WORKLOADS)),
        index=chance.choice((0, 0, 1)),
        attempt=chance.choice((0, 0, 1)),
        reservation=chance.choice((None, None, Reservation("g0", "GPU-1"))),
    )


def step(book: Book, chance: Random) -> None:
    """One of the changes that the engine makes."""
    workload, name = chance.choice(WORKLOADS), chance.choice(PODS)
    entry, seen = book.entries.get(workload), book.pods.get(("s", name))
    match chance.choice(("see", "see", "renew", "gone", "put", "put", "drop", "join", "leave")):
        case "see":
            book.see(("s", name), some_sight(chance, name))
        case "renew" if seen is not None:
            one = some_sight(chance, name)
            field = chance.choice(("life", "uses", "uid", "workload_id", "index", "attempt", "reservation", "node"))
            book.see(("s", name), replace(seen, **{field: getattr(one, field)}))
        case "gone":
            book.see(("s", name), None)
        case "put" if entry is None:
            spec = WorkloadSpec(name=workload, project="team-a", image="x")
            book.add(
                Entry(
                    "s",
                    workload,
                    1,
                    Workload(workload, workload, "team-a", Kind.TRAIN, pods=(some_pod(chance, 0), some_pod(chance, 1))),
                    spec,
                )
            )
        case "put" if entry is not None:
            pods = list(entry.workload.pods)
            index = chance.choice((0, 1))
            other = some_pod(chance, index)
            field = chance.choice(("state", "placement", "attempt", "request"))
            pods[index] = replace(pods[index], **{field: getattr(other, field)})
            book.put(entry, replace(entry.workload, pods=tuple(pods)))
        case "drop":
            book.drop(workload)
        case "join" if entry is not None and seen is not None:
            book.join(entry, chance.choice((0, 1)), Member(name, seen.uid))
        case "leave" if entry is not None:
            book.leave(entry, chance.choice((0, 1)))


@pytest.mark.parametrize("seed", range(100))
def test_what_others_hold_is_after_every_change_what_counting_all_anew_finds(seed: int) -> None:
    chance, book = Random(seed), Book(version=1)
    for name in NODES:
        book.put_node(Node(name, gpus=8))
    for _ in range(300):
        step(book, chance)
        counted = {node.name: (node.foreign, node.foreign_pods) for node in book.snapshot().nodes}
        for node in tuple(book.nodes.values()):
            book.put_node(node)
        assert counted == {node.name: (node.foreign, node.foreign_pods) for node in book.nodes.values()}
