"""What would let a waiting workload start, as values: the sentence is made from them, and tests apply them and see it start.

An advice is one or more helps that have to come together. It is meant for when it is the workload's turn: nothing else that waits
takes what it frees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from hotdesk_scheduler.core.model import WHOLE_GPU, Department, GpuRequest, Pod, PodState, Project, Quota, Snapshot, Workload
from hotdesk_scheduler.core.quantities import CPU, GPU, amount_words, gpu_words

NAMED = 3


class HelpKind(StrEnum):
    """Every kind of help there is. `clause` says it, `applied` does it."""

    END_WORK = "end_work"
    RAISE_QUOTA = "raise_quota"
    RAISE_LIMIT = "raise_limit"
    AS_PREEMPTIBLE = "as_preemptible"
    FEWER_GPUS = "fewer_gpus"
    FEWER_PODS = "fewer_pods"
    ANY_NODE = "any_node"
    WAIT = "wait"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Help:
    """`amount` is the quota or limit to raise to, GPU thousandths of a pod, a number of pods, or seconds, as the kind says.

    `name` is the project or department meant; `workloads` are (id, name, project) of what has to end.
    """

    kind: HelpKind
    amount: int = 0
    resource: int = GPU
    name: str = ""
    is_department: bool = False
    workloads: tuple[tuple[str, str, str], ...] = ()


Advice = tuple[Help, ...]


def join(words: Sequence[str], *, last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    if not words:
        return "nobody"
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def sentence(advices: Iterable[Advice], *, in_turn: bool) -> str:
    """`It starts when a1 of a ends, as preemptible, or with 1 GPU.`; empty if nothing is known to help."""
    ways = [_way(advice) for advice in advices]
    if not ways:
        return ""
    start = "In its turn it starts" if in_turn else "It starts"
    return f"{start} {ways[0]}." if len(ways) == 1 else f"{start} {', '.join(ways[:-1])}, or {ways[-1]}."


def _way(advice: Advice) -> str:
    how = [_how(help_) for help_ in advice if _how(help_)]
    when = [_event(help_) for help_ in advice if not _how(help_)]
    return " ".join([*how, f"when {join(when)}"] if when else how)


def _how(help_: Help) -> str:
    """How it is submitted or when at last; empty for what has to happen first."""
    if help_.kind is HelpKind.AS_PREEMPTIBLE:
        return "as preemptible"
    if help_.kind is HelpKind.FEWER_GPUS:
        return f"with {gpu_words(help_.amount)}"
    if help_.kind is HelpKind.FEWER_PODS:
        return f"with {help_.amount} pod{'s' if help_.amount > 1 else ''}"
    if help_.kind is HelpKind.ANY_NODE:
        return "if it may use nodes of any type and pool"
    return f"in {help_.amount} s at the latest" if help_.kind is HelpKind.WAIT else ""


def _event(help_: Help) -> str:
    if help_.kind in (HelpKind.END_WORK, HelpKind.RELEASE):
        return f"{names(help_.workloads)} {'ends' if len(help_.workloads) == 1 else 'end'}"
    what = "quota" if help_.kind is HelpKind.RAISE_QUOTA else "limit"
    if help_.resource != GPU:
        what = f"{'CPU' if help_.resource == CPU else 'memory'} {what}"
    whose = f"{'department' if help_.is_department else 'project'} {help_.name}"
    return f"the {what} of {whose} is raised to {amount_words(help_.amount, help_.resource)}"


def names(workloads: Sequence[tuple[str, str, str]]) -> str:
    """`a1 of a`, `a1 and a2 of a`, `a1 of a and b1 of b`; at most three are named."""
    shown = workloads if len(workloads) <= NAMED + 1 else workloads[:NAMED]
    by_project: dict[str, list[str]] = {}
    for _, name, project in shown:
        by_project.setdefault(project, []).append(name)
    words = [f"{join(found)} of {project}" for project, found in by_project.items()]
    left = len(workloads) - len(shown)
    return join([*words, f"{left} more"] if left else words)


# --- done ----------------------------------------------------------------------------------------------------------------------------


def applied(snapshot: Snapshot, workload_id: str, advice: Advice) -> Snapshot:
    """The snapshot after somebody followed the advice (waiting apart: that is time)."""
    for help_ in advice:
        snapshot = _applied(snapshot, workload_id, help_)
    return snapshot


def _applied(snapshot: Snapshot, workload_id: str, help_: Help) -> Snapshot:
    if help_.kind is HelpKind.END_WORK:
        gone = {found[0] for found in help_.workloads}
        return replace(snapshot, workloads=tuple(w for w in snapshot.workloads if w.id not in gone))
    if help_.kind is HelpKind.RELEASE:
        return replace(snapshot, workloads=tuple(_released(w) for w in snapshot.workloads))
    if help_.kind in (HelpKind.RAISE_QUOTA, HelpKind.RAISE_LIMIT):
        return _raised(snapshot, help_)
    return replace(snapshot, workloads=tuple(_changed(w, help_) if w.id == workload_id else w for w in snapshot.workloads))


def _released(workload: Workload) -> Workload:
    pods = (replace(p, state=PodState.STOPPED, placement=None) if p.state is PodState.RELEASING else p for p in workload.pods)
    return replace(workload, pods=tuple(pods))


def _raised(snapshot: Snapshot, help_: Help) -> Snapshot:
    if help_.is_department:
        departments = (_department(d, help_) if d.name == help_.name else d for d in snapshot.departments)
        return replace(snapshot, departments=tuple(departments))
    return replace(snapshot, projects=tuple(_project(p, help_) if p.name == help_.name else p for p in snapshot.projects))


def _project(project: Project, help_: Help) -> Project:
    if help_.resource == GPU:
        return replace(project, gpu=_quota(project.gpu, help_))
    if help_.resource == CPU:
        return replace(project, cpu=_quota(project.cpu, help_))
    return replace(project, memory=_quota(project.memory, help_))


def _department(department: Department, help_: Help) -> Department:
    if help_.resource == GPU:
        return replace(department, gpu=_quota(department.gpu, help_))
    if help_.resource == CPU:
        return replace(department, cpu=_quota(department.cpu, help_))
    return replace(department, memory=_quota(department.memory, help_))


def _quota(old: Quota, help_: Help) -> Quota:
    return replace(old, quota=help_.amount) if help_.kind is HelpKind.RAISE_QUOTA else replace(old, limit=help_.amount)


def _changed(workload: Workload, help_: Help) -> Workload:
    if help_.kind is HelpKind.AS_PREEMPTIBLE:
        return replace(workload, preemptible=True)
    if help_.kind is HelpKind.ANY_NODE:
        return replace(workload, node_type=None, node_pools=())
    if help_.kind is HelpKind.FEWER_GPUS:
        return replace(workload, pods=tuple(with_gpu(pod, help_.amount) for pod in workload.pods))
    if help_.kind is HelpKind.FEWER_PODS:
        return replace(workload, pods=workload.pods[: help_.amount], min_pods=help_.amount)
    return workload


def with_gpu(pod: Pod, millis: int) -> Pod:
    """The pod asking for so many thousandths: whole GPUs, or less than one."""
    whole, rest = divmod(millis, WHOLE_GPU)
    return replace(pod, request=replace(pod.request, gpu=GpuRequest(millis=rest) if rest else GpuRequest(whole=whole)))
