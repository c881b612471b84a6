"""What a scenario expects against what came out, and how states are written for `simulate --json`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hotdesk_scheduler.core.books import RUNS
from hotdesk_scheduler.core.model import HOLDING, Phase, Placement, PodState, Workload
from hotdesk_scheduler.core.quantities import gpus
from hotdesk_scheduler.core.reasons import Reason
from hotdesk_scheduler.scenarios import World

Json = dict[str, Any]


class Matcher:
    """The world as a scenario's `expect` speaks of it. A pod that is starting counts as running: nothing is left to decide."""

    def __init__(self, world: World, stopped: set[str]) -> None:
        self.world = world
        self.stopped = stopped
        self.pods: dict[str, Json] = {}
        self.by_workload: dict[str, list[Json]] = {}
        for workload in world.all():
            present = world.is_present(workload)
            for pod in workload.pods:
                place = pod.placement if pod.state in HOLDING else None
                out = {"state": _state_word(pod.state) if present else "gone", "node": place.node if place else None, "gpu": gpu_out(place)}
                self.pods[f"{workload.name}-{pod.index}"] = out
                self.by_workload.setdefault(workload.name, []).append(out)

    def state(self, name: str) -> str:
        """One word for the workload: its pods' state, or `mixed` parts as `running` if any runs."""
        workload = self.world.named(name)
        if not self.world.is_present(workload):
            return "gone"
        if workload.phase not in (Phase.ACTIVE, Phase.DELETING):
            return workload.phase.value
        states = {pod["state"] for pod in self.by_workload.get(name, [])}
        return next((s for s in ("running", "releasing", "pending") if s in states), "pending")

    def _active(self) -> list[Workload]:
        return [w for w in self.world.engine.snapshot().workloads if w.phase is Phase.ACTIVE]

    def gpu_millis(self, project: str) -> int:
        total = 0
        for workload in self._active():
            if workload.project == project:
                total += sum(p.placement.gpu_millis for p in workload.pods if p.placement and p.state in RUNS)
        return total

    def pending(self, project: str) -> int:
        return sum(w.project == project and not any(p.state in HOLDING for p in w.pods) for w in self._active())

    def running(self) -> int:
        return sum(any(p.state in RUNS for p in w.pods) for w in self._active())

    def gpus_in_use(self) -> int:
        whole = 0
        groups: set[tuple[str, str]] = set()
        for workload in self.world.engine.snapshot().workloads:
            for pod in workload.pods:
                if pod.placement and pod.state in HOLDING:
                    whole += pod.placement.whole
                    groups |= {(pod.placement.node, share.group) for share in pod.placement.shares}
        return whole + len(groups)

    def failures(self, expect: Json) -> Iterator[str]:
        for name, wanted in (expect.get("workloads") or {}).items():
            yield from self._workload(name, wanted)
        for pod, wanted in (expect.get("pods") or {}).items():
            if pod not in self.pods:
                yield f"pod {pod}: it is not there"
            else:
                yield from self._pod(pod, self.pods[pod], wanted)
        for project, wanted in (expect.get("projects") or {}).items():
            if "gpu" in wanted and (got := self.gpu_millis(project)) != _millis(wanted["gpu"]):
                yield f"{project} should hold {wanted['gpu']} GPUs, holds {gpus(got)}"
            if "pending" in wanted and (count := self.pending(project)) != wanted["pending"]:
                yield f"{project} should have {wanted['pending']} pending workloads, has {count}"
        allocated = sum(self.gpu_millis(p.name) for p in self.world.engine.snapshot().projects)
        if "gpu_allocated" in expect and allocated != _millis(expect["gpu_allocated"]):
            yield f"{expect['gpu_allocated']} GPUs should be allocated, {gpus(allocated)} are"
        for key, got in (("gpus_in_use", self.gpus_in_use()), ("running", self.running())):
            if key in expect and expect[key] != got:
                yield f"{key} should be {expect[key]}, is {got}"
        for name in expect.get("never_stopped") or []:
            if name in self.stopped:
                yield f"{name} should never have been stopped"

    def _workload(self, name: str, wanted: Json) -> Iterator[str]:
        for index, pod in enumerate(self.by_workload.get(name, [])):
            yield from self._pod(f"{name}-{index}", pod, {"state": wanted.get("all"), "node": wanted.get("node")})
        if name not in self.by_workload:
            yield f"{name}: it is not there"

    def _pod(self, name: str, pod: Json, wanted: Json) -> Iterator[str]:
        state = wanted.get("state")
        if state == "releasing" and pod["state"] == "gone":
            return
        if state and pod["state"] != state:
            yield f"{name} should be {state}, is {pod['state']}"
        elif wanted.get("node") and pod["node"] != wanted["node"]:
            yield f"{name} should be on {wanted['node']}, is on {pod['node']}"


def _state_word(state: PodState) -> str:
    return "running" if state is PodState.STARTING else state.value


def _millis(number: float) -> int:
    return round(number * 1000)


def gpu_out(place: Placement | None) -> Json | None:
    """A placement's GPU part as `--json` prints it."""
    if place is None or not (place.whole or place.shares):
        return None
    if place.whole:
        return {"whole": place.whole}
    if len(place.shares) == 1:
        return {"shared": place.shares[0].group, "millis": place.shares[0].millis}
    return {"shared": ",".join(share.group for share in place.shares), "millis": place.shares[0].millis}


def reason_out(reason: Reason | None) -> Json | None:
    return {"code": reason.code.value, "sentence": reason.sentence} if reason else None
