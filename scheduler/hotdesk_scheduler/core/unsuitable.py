"""Why none of the nodes would ever do: ruled out by type, pool, label or taint, or too small even when empty (scheduling.md 6)."""

from __future__ import annotations

from collections.abc import Sequence

from hotdesk_scheduler.core.advice import join
from hotdesk_scheduler.core.eligible import is_wished, may_use, wanted_types
from hotdesk_scheduler.core.model import WHOLE_GPU, Node, NodeRule, PodRequest, Scarce, Volume
from hotdesk_scheduler.core.quantities import CPU, MEMORY, amount_words, gpu_words, millis_on
from hotdesk_scheduler.core.reasons import Reason, ReasonCode, reason
from hotdesk_scheduler.core.requests import Request
from hotdesk_scheduler.core.rooms import Spot

MOST_LISTED = 4


def no_node(spots: list[Spot], eligible: list[Spot], request: Request) -> Reason | None:
    """None if an empty cluster could take it."""
    return too_large(eligible, request) if eligible else excluded(spots, request)


def excluded(spots: list[Spot], request: Request) -> Reason:
    """No node is ready, of its type, in its pools, and without a taint it does not tolerate: how many fail at what."""
    nodes = [spot.node for spot in spots]
    obstacles: dict[tuple[str, str], int] = {}
    for node in nodes:
        obstacle = _obstacle(node, request)
        obstacles[obstacle] = obstacles.get(obstacle, 0) + 1
    parts: list[str] = []
    for (one, several), count in sorted(obstacles.items(), key=lambda entry: (-entry[1], entry[0])):
        who = "the only node" if len(nodes) == 1 else f"{count} of {len(nodes)} nodes" if not parts else str(count)
        parts.append(f"{who} {one if count == 1 else several}")
    sentence = f"No node may take it: {join(parts)}." if nodes else "There is no node to run it on."
    wishes = " ".join(one for one, _ in obstacles)
    if "node type" in wishes:
        sentence += f" Node types here: {_listed({node.node_type or 'none' for node in nodes})}."
    if "pool" in wishes:
        sentence += f" Pools here: {_listed({node.pool for node in nodes})}."
    return reason(ReasonCode.NODES_EXCLUDED, sentence, nodes=len(nodes), ready=sum(node.ready for node in nodes))


def _obstacle(node: Node, request: Request) -> tuple[str, str]:
    """What rules this node out first, said of one node and of several."""
    workload, project = request.workload, request.account.project
    types = wanted_types(workload, project)
    pools = workload.node_pools or (project.node_pools if project else ())
    bound = f", which project {workload.project} is bound to"
    if types and node.node_type not in types:
        what = f"not of node type {join(types, last='or')}{'' if workload.node_type else bound}"
    elif pools and node.pool not in pools:
        what = f"not in pool {join(pools, last='or')}{'' if workload.node_pools else bound}"
    elif workload.node_terms and not is_wished(node, workload.node_terms):
        what = f"without the labels it asks for ({_rules(workload.node_terms)})"
    elif beyond := [volume.name for volume in workload.volumes if not is_wished(node, volume.terms)]:
        what = f"not where its volume {beyond[0]} lies"
    elif short := [one.what for one in workload.scarce if node.name in one.lacking]:
        return f"does not have {short[0]} free", f"do not have {short[0]} free"
    elif not may_use(node, types=(), pools=(), tolerations=workload.tolerations):
        taints = [f"{t.key}={t.value}" if t.value else t.key for t in node.taints if t.effect in ("NoSchedule", "NoExecute")]
        what = f"the taint {_listed(set(taints))}, which it does not tolerate"
        return f"has {what}", f"have {what}"
    else:
        what = "not ready"
    return f"is {what}", f"are {what}"


def where_volumes_lie(volumes: Sequence[Volume], nodes: Sequence[Node]) -> str:
    """A sentence for each: what else was said is about these nodes alone."""
    said: list[str] = []
    for volume in volumes:
        names = [node.name for node in nodes if is_wished(node, volume.terms)]
        if len(names) == 1:
            said.append(f"Its volume {volume.name} lies on node {names[0]}.")
        elif names:
            said.append(f"Its volume {volume.name} is within reach of {_listed(set(names))} only.")
        else:
            said.append(
                f"Its volume {volume.name} lies where no node is ({_rules(volume.terms)}): an admin brings that node back, or deletes the "
                f"claim {volume.name} with all that is on it."
            )
    return " ".join(said)


def where_it_is_free(scarce: Sequence[Scarce], nodes: Sequence[Node]) -> str:
    """As `where_volumes_lie`, of what is not counted here; `nodes`: those it may use otherwise."""
    said: list[str] = []
    for one in scarce:
        names = [node.name for node in nodes if node.name not in one.lacking]
        if names:
            said.append(f"Only {_listed(set(names))} {'has' if len(names) == 1 else 'have'} {one.what} free for it.")
        elif one.could:
            said.append(f"It gets {one.what} when pods that hold it end; none is stopped for that.")
        else:
            said.append(f"Even when nothing runs there is not {one.what}: ask for less of it, or an admin adds a node that has it.")
    return " ".join(said)


def _rules(terms: Sequence[Sequence[NodeRule]]) -> str:
    """`disk=ssd and no old; or zone>3`."""
    return "; or ".join(join([_rule(rule) for rule in term]) for term in terms[:MOST_LISTED])


def _rule(rule: NodeRule) -> str:
    values = ", ".join(rule.values[:MOST_LISTED])
    words = {"NotIn": f"{rule.key} not {values}", "Exists": rule.key, "DoesNotExist": f"no {rule.key}"}
    return words.get(rule.operator, f"{rule.key}{ {'Gt': '>', 'Lt': '<'}.get(rule.operator, '=') }{values}")


def _listed(words: set[str]) -> str:
    shown = sorted(words)[:MOST_LISTED]
    return join([*shown, f"{len(words) - len(shown)} more"] if len(words) > len(shown) else shown)


def too_large(spots: list[Spot], request: Request) -> Reason | None:
    """One pod is larger than any node it may use, or all pods together than all of these nodes, even if they were empty."""
    for pod in {pod.request: None for pod in request.pods}:
        found = _pod_too_large(spots, pod)
        if found:
            return found
    if len(request.pods) > 1 and len({pod.request for pod in request.pods}) == 1:
        return _gang_too_large(spots, request)
    return None


def _pod_too_large(spots: list[Spot], pod: PodRequest) -> Reason | None:
    gpu = pod.gpu
    needed = gpu.whole or (0 if gpu.is_none else gpu.devices)
    largest = max(spots, key=lambda s: (s.node.gpus, -s.order))
    if needed > largest.node.gpus:
        where = f"the largest node it may use, {largest.node.name}, has {largest.node.gpus}"
        asked = gpu_words(needed * WHOLE_GPU)
        sentence = f"One pod asks for {asked} on one node, and {where if largest.node.gpus else 'no node it may use has a GPU'}."
        return reason(ReasonCode.NO_NODE_LARGE_ENOUGH, sentence, asked=needed, largest=largest.node.gpus, node=largest.node.name)
    if gpu.memory_mib and all(s.node.gpu_memory_mib < gpu.memory_mib for s in spots):
        most = max(s.node.gpu_memory_mib for s in spots)
        known = f"the largest GPU it may use has {most} MiB" if most else "no node it may use says how much memory its GPUs have"
        sentence = f"It asks for {gpu.memory_mib} MiB of one GPU's memory, and {known}."
        return reason(ReasonCode.NO_NODE_LARGE_ENOUGH, sentence, asked_mib=gpu.memory_mib, largest_mib=most)
    for resource, asked_for, has in (
        (CPU, pod.cpu_millis, max(s.node.cpu_millis for s in spots)),
        (MEMORY, pod.memory_mib, max(s.node.memory_mib for s in spots)),
    ):
        if asked_for > has:
            sentence = (
                f"One pod asks for {amount_words(asked_for, resource)}, and no node it may use has more than "
                f"{amount_words(has, resource)}, even when it is empty."
            )
            return reason(ReasonCode.NO_NODE_LARGE_ENOUGH, sentence, asked=asked_for, largest=has)
    if not any(_pods_when_empty(spot.node, pod) for spot in spots):
        what = [amount_words(pod.cpu_millis, CPU), amount_words(pod.memory_mib, MEMORY)]
        if needed:
            what.insert(0, gpu_words(needed * WHOLE_GPU) if gpu.whole else f"a part of {gpu_words(needed * WHOLE_GPU)}")
        sentence = f"One pod asks for {join(what)} together, and no single node it may use has all of that, even when it is empty."
        return reason(ReasonCode.NO_NODE_LARGE_ENOUGH, sentence, asked=needed, largest=largest.node.gpus, node=largest.node.name)
    return None


def _gang_too_large(spots: list[Spot], request: Request) -> Reason | None:
    count, most = len(request.pods), 0
    for spot in spots:
        most += _pods_when_empty(spot.node, request.pods[0].request)
        if most >= count:
            return None
    where = f"the {len(spots)} nodes it may use have" if len(spots) > 1 else f"{spots[0].node.name}, the only node it may use, has"
    empty = "they are empty" if len(spots) > 1 else "it is empty"
    sentence = f"Its {count} pods start together or not at all, and {where} room for {most} of them, even when {empty}."
    return reason(ReasonCode.GANG_DOES_NOT_FIT, sentence, fit=most, pods=count, fit_when_empty=most)


def _pods_when_empty(node: Node, pod: PodRequest) -> int:
    """How many such pods an empty node takes at most."""
    gpu = pod.gpu
    rooms = [node.max_pods] if node.max_pods is not None else []
    rooms += [node.cpu_millis // pod.cpu_millis] if pod.cpu_millis else []
    rooms += [node.memory_mib // pod.memory_mib] if pod.memory_mib else []
    if gpu.whole:
        rooms.append(node.gpus // gpu.whole)
    elif not gpu.is_none:
        millis = millis_on(gpu, node.gpu_memory_mib)
        each = WHOLE_GPU // millis if millis else 0
        rooms.append(node.gpus * each // gpu.devices if node.gpus >= gpu.devices else 0)
    return max(0, min(rooms, default=1 << 30))
