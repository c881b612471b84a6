"""The onlooker of the bad days sees what it is there to see."""

from __future__ import annotations

from typing import Any

import pytest
from history import History


def pod(
    name: str, *, node: str | None = "n1", gpus: int = 1, owner: str = "", index: str = "0", phase: str = "Running", shares: str = ""
) -> Any:
    owners = [{"kind": "Workload", "uid": owner}] if owner else []
    notes = {"hotdesk.io/placement": f'{{"node":"n1","shares":[{shares}]}}'} if shares else {}
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    meta = {
        "name": name,
        "namespace": "t",
        "uid": name,
        "labels": {"hotdesk.io/pod-index": index},
        "annotations": notes,
        "ownerReferences": owners,
    }
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}], **({"nodeName": node} if node else {})}
    return {"metadata": meta, "spec": spec, "status": {"phase": phase}}


def seen(*pods: Any) -> list[str]:
    history = History(8)
    for one in pods:
        history._event("ADDED", one, "7")
    return history.wrong


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        ((pod("a", owner="w"), pod("b", owner="w", node=None)), "workload ('w', '0') has ['t/a', 't/b']"),
        ((pod("a", gpus=8), pod("b")), "n1 holds 9 GPUs"),
        ((pod("a", gpus=8), pod("b", gpus=0, shares='{"group":"g","millis":500}')), "n1 holds 8 GPUs and {'g': 500}"),
        (tuple(pod(name, gpus=0, shares='{"group":"g","millis":600}') for name in "ab"), "{'g': 1200}"),
    ],
    ids=["a pod twice", "a GPU twice", "shared and whole", "shared by too many"],
)
def test_what_may_not_be_is_wrong(pods: tuple[Any, ...], words: str) -> None:
    (wrong,) = seen(*pods)
    assert words in wrong


def test_what_may_be_is_not_wrong() -> None:
    halves = [pod(name, gpus=0, shares='{"group":"g","millis":500}') for name in "xy"]
    assert seen(pod("a", owner="w", gpus=7), pod("b", owner="w", index="1", node="n2", gpus=8), *halves) == []
    assert seen(pod("a", owner="w", gpus=8, phase="Failed"), pod("b", owner="w", gpus=8)) == []


def test_a_pod_that_is_gone_holds_nothing() -> None:
    history = History(8)
    for kind, one in (
        ("ADDED", pod("a", gpus=8, owner="w")),
        ("DELETED", pod("a", gpus=8, owner="w")),
        ("ADDED", pod("b", gpus=8, owner="w")),
    ):
        history._event(kind, one, "7")
    assert history.wrong == []
    assert history.gpus_held() == 8
