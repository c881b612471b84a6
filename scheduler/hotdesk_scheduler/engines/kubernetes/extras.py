"""What pods ask for beside GPUs, CPU and memory: disk, other devices, ports of their host. How much of it each node has, and who has it.

The core does not count it. It is told which nodes have too little of it free for a workload of others; two pods of one pass may still be
sent to one node, so each takes its part there (`take`) before it is bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from decimal import ROUND_CEILING

from hotdesk_scheduler.core.model import HOLDING, PodState, Scarce, Workload
from hotdesk_scheduler.engines.kubernetes.codec import Json
from hotdesk_scheduler.engines.kubernetes.quantity import amount

GPU = "nvidia.com/gpu"
PORT = "host port "
Amounts = tuple[tuple[str, int], ...]
"""By name, sorted; bytes, or a number of devices. A port that a pod takes of its host is called `host port 8080/TCP`."""

_COUNTED = frozenset({"cpu", "memory", "pods", GPU})
_BYTES = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def further(spec: Json) -> Amounts:
    """As kube-scheduler counts it: containers and sidecars together, or the most there is at a moment of its start; the runtime's own."""
    running, beside, most = Counter(_ports(spec)), Counter[str](), Counter[str]()
    for container in spec["containers"]:
        running += Counter(_amounts(container.get("resources") or {}))
    for container in spec.get("initContainers") or []:
        now = beside + Counter(_amounts(container.get("resources") or {}))
        if container.get("restartPolicy") == "Always":
            beside = now
        most |= now
    whole = ((running + beside) | most) + Counter(_amounts({"requests": spec.get("overhead") or {}}))
    whole |= Counter(_amounts(spec.get("resources") or {}))
    return tuple(sorted(whole.items()))


def _ports(spec: Json) -> dict[str, int]:
    """On whatever address: it is one port of a node."""
    sidecars = [one for one in spec.get("initContainers") or [] if one.get("restartPolicy") == "Always"]
    ports = [port for one in (*spec["containers"], *sidecars) for port in one.get("ports") or [] if port.get("hostPort")]
    return {f"{PORT}{port['hostPort']}/{port.get('protocol', 'TCP')}": 1 for port in ports}


def _amounts(resources: Json) -> dict[str, int]:
    found = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: _whole(found[name]) for name in found if name not in _COUNTED}


def _whole(text: object) -> int:
    return int(amount(text).to_integral_value(ROUND_CEILING))


def allocatable(there: Json) -> dict[str, int]:
    return {name: int(amount(text)) for name, text in there.items() if name not in _COUNTED}


class Extras:
    """`put_node`, `see` and `take` tell of what changes; `is_stale` then. After `begin` `scarce` says what a workload does not find."""

    def __init__(self) -> None:
        self.is_stale = False
        self._there: dict[str, Mapping[str, int]] = {}
        self._taken: dict[str, dict[str, Amounts]] = {}
        self._where: dict[str, str] = {}
        self._sums: dict[str, Counter[str]] = {}
        self._found: dict[tuple[str, int, int, bool], Scarce | None] = {}
        self._left_by: Callable[[str], Iterable[Amounts]] = lambda node: ()
        self._left: dict[str, list[dict[str, int]]] = {}

    def put_node(self, node: str, there: Mapping[str, int] | None) -> None:
        """What it has, or that it is gone."""
        if self._there.get(node) == there:
            return
        self.is_stale = True
        if there is None:
            del self._there[node]
        else:
            self._there[node] = there

    def see(self, uid: str, node: str | None, extras: Amounts, *, holds: bool) -> None:
        """A pod of whoever's; one that is on its way to a node (`take`) holds its part there until it ends or gives it back."""
        if holds and node is not None and extras:
            self._hold(uid, node, extras)
        elif node is not None or not extras:
            self.give_back(uid)

    def give_back(self, uid: str) -> None:
        node = self._where.pop(uid, None)
        if node is not None:
            self._taken[node].pop(uid, None)
            self._changed(node)

    def _hold(self, uid: str, node: str, extras: Amounts) -> None:
        if self._where.get(uid) == node and self._taken[node].get(uid) == extras:
            return
        self.give_back(uid)
        self._where[uid] = node
        self._taken.setdefault(node, {})[uid] = extras
        self._changed(node)

    def _changed(self, node: str) -> None:
        self._sums.pop(node, None)
        self.is_stale = True

    def take(self, uid: str, node: str, extras: Amounts) -> str:
        """Its part of a node, before it is bound there. What there is too little of, if anything is: nothing is taken then."""
        if self._where.get(uid) != node or self._taken[node].get(uid) != extras:
            self.give_back(uid)
        mine = dict(self._taken.get(node, {}).get(uid, ()))
        short = next((what_words(name, count) for name, count in extras if self._free(node, name) + mine.get(name, 0) < count), "")
        if short:
            self.give_back(uid)
        elif extras:
            self._hold(uid, node, extras)
        return short

    def _free(self, node: str, name: str) -> int:
        if node not in self._sums:
            self._sums[node] = _sum(self._taken.get(node, {}).values())
        return self._has(node, name) - self._sums[node][name]

    def _has(self, node: str, name: str) -> int:
        return 1 if name.startswith(PORT) else self._there.get(node, {}).get(name, 0)

    def begin(self, left_by: Callable[[str], Iterable[Amounts]] = lambda node: ()) -> None:
        """What was found before holds no more. `left_by`: what each that has to be stopped before a GPU of a node is free would leave."""
        self.is_stale = False
        self._left_by = left_by
        self._left.clear()
        self._found.clear()

    def _comes_back(self, node: str, name: str, count: int) -> int:
        """Of it, whoever of them is stopped: none if one of them leaves too little."""
        if node not in self._left:
            self._left[node] = [dict(one) for one in self._left_by(node)] if self._taken.get(node) else []
        amounts = [one.get(name, 0) for one in self._left[node]]
        return sum(amounts) if amounts and min(amounts) >= count else 0

    def scarce(self, workload: Workload, asks: Mapping[int, Amounts]) -> tuple[Scarce, ...]:
        """Of what its pods ask for, by index: where too little is free.

        In a gang the most that one of them asks for counts for all, and where there is not enough for as many as start together, there is
        not enough anywhere. What can be stopped where no GPU is free keeps nobody from a GPU: its stop frees both.
        """
        waiting = [pod.index for pod in workload.pods if pod.state is PodState.PENDING]
        missing = workload.min_pods - sum(pod.state in HOLDING or pod.state is PodState.SUCCEEDED for pod in workload.pods)
        most: Counter[str] = Counter()
        for extras in asks.values():
            most |= Counter(dict(extras))
        found = []
        with_gpus = not any(pod.request.gpu.is_none for pod in workload.pods)
        for name, count in sorted(most.items()):
            asking = sum(name in dict(asks.get(index, ())) for index in waiting)
            found.append(self._scarce(name, count, max(1, min(asking, missing)), with_gpus))
        return tuple(one for one in found if one is not None)

    def _scarce(self, name: str, count: int, needed: int, with_gpus: bool) -> Scarce | None:
        key = (name, count, needed, with_gpus)
        if key not in self._found:
            free = {node: self._free(node, name) for node in self._there}
            if with_gpus:
                free = {node: one + self._comes_back(node, name, count) for node, one in free.items()}
            lacking = [node for node in free if free[node] < count]
            if sum(max(0, one) // count for one in free.values()) < needed:
                lacking = list(free)
            could = sum(self._has(node, name) // count for node in free) >= needed
            what = what_words(name, count) + (f" for each of {needed} pods" if needed > 1 else "")
            self._found[key] = Scarce(what, tuple(sorted(lacking)), could=could) if lacking else None
        return self._found[key]


def _sum(amounts: Iterable[Amounts]) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in amounts:
        found.update(dict(one))
    return found


def what_words(name: str, count: int) -> str:
    """`2 rdma/hca`, `5Ti of ephemeral-storage`, `host port 8080/TCP`."""
    if name.startswith(PORT):
        return name
    if "/" in name:
        return f"{count} {name}"
    unit, size = next(((unit, size) for unit, size in _BYTES if count % size == 0), ("", 1))
    return f"{count // size}{unit} of {name}"
