"""What a placed pod is given: devices and ports, the environment of its share, its directory and its command line."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotdesk_api.errors import Conflict

from hotdesk_scheduler.core.model import WHOLE_GPU, Kind, Node, Placement, Pod, Workload
from hotdesk_scheduler.engines.base import Device, PodDetails
from hotdesk_scheduler.engines.local import assign, catalog, environment, processes, runs, usage
from hotdesk_scheduler.engines.local.devices import DeviceBackend
from hotdesk_scheduler.engines.local.runs import Held, Run
from hotdesk_scheduler.engines.local.state import Key, State


class Grants:
    """Reads state and devices; writes nothing but the directories and files of the pod it describes."""

    def __init__(self, state: State, backend: DeviceBackend, *, state_dir: Path, log_bytes: int, log_files: int) -> None:
        self.added: Callable[[Workload], Mapping[str, str]] = lambda workload: {}
        self._state = state
        self._backend = backend
        self._state_dir = state_dir
        self._log = {"log_bytes": log_bytes, "log_count": log_files}
        self._usage: tuple[int, dict[str, Sequence[Device]]] = (-1, {})
        self._details: dict[Key, tuple[Pod, Run, PodDetails]] = {}
        self.nodes: tuple[Node, ...] = backend.nodes()

    def new_run(self, workload: Workload, pod: Pod, placement: Placement, token: str) -> Run:
        """`Conflict` if the placement does not fit what is held now."""
        if placement.node not in {node.name for node in self.nodes}:
            raise Conflict(f"There is no node {placement.node} any more.", field="placement", value=placement.node)
        held = [run for _, _, run in self._state.holding()]
        given = self._assigned(placement, held)
        shared = any(one.millis < WHOLE_GPU for one in given)
        return Run(
            token=token,
            node=placement.node,
            boot_id=processes.boot_id(),
            tier="" if not given else "simulated" if self._backend.simulated else "cooperative" if shared else "exclusive",
            devices=given,
            memory_mib=pod.request.gpu.memory_mib,
            ports=assign.ports(self._ports(workload), {host for run in held for _, host in run.ports}),
        )

    def _assigned(self, placement: Placement, held: Sequence[Run]) -> tuple[Held, ...]:
        known = self._backend.devices(placement.node)
        return assign.devices(placement, [one.index for one in known], (run for run in held if run.node == placement.node))

    def would_give(self, placement: Placement) -> Sequence[Device]:
        """`Conflict` if the placement does not fit what is held now."""
        indexes = {one.index for one in self._assigned(placement, [run for _, _, run in self._state.holding()])}
        return [device for device in self._backend.devices(placement.node) if device.index in indexes]

    def _ports(self, workload: Workload) -> list[tuple[int, int | None]]:
        """Asked for in the spec, and those the image serves anyway."""
        spec = self._state.specs[workload.id]
        asked: list[tuple[int, int | None]] = [(port.container, port.host) for port in spec.ports]
        if workload.kind is Kind.WORKSPACE:
            return asked
        return asked + [(port, None) for port in catalog.find(spec).ports if port not in {container for container, _ in asked}]

    def environment(self, workload: Workload, pod: Pod, run: Run) -> dict[str, str]:
        """What the pod's processes are started with; a grant hands the same to the hub's spawner."""
        return {**self._own_environment(workload, pod, run), **self.added(workload)}

    def _own_environment(self, workload: Workload, pod: Pod, run: Run) -> dict[str, str]:
        spec = self._state.specs[workload.id]
        own = {
            **environment.base(self._state_dir, workload.user),
            **catalog.find(spec).environment,
            **environment.identity(workload, pod.index, run.node),
            **environment.share(run, self.devices_of(run)),
            **environment.ports(run),
        }
        return environment.layered(own, spec.environment)

    def plan(self, workload: Workload, pod: Pod, run: Run) -> dict[str, Any]:
        """What `run.json` holds. Called in a thread; makes the home and the program's file. Raises OSError on a full disk."""
        spec = self._state.specs[workload.id]
        home = self.home(workload.user)
        run_dir = self.run_dir((workload.id, pod.index), pod)
        runs.make_private(run_dir)
        _forget_attempts(run_dir.parent, before=pod.attempt - 1)
        program = run_dir / "program" if spec.program is not None else None
        if program is not None:
            runs.write_private(program, (spec.program or "").encode())
        return {
            "argv": catalog.command_line(spec, catalog.find(spec), program),
            "environment": {**self.environment(workload, pod, run), processes.TOKEN_VARIABLE: run.token},
            "working_dir": str(home / spec.working_dir if spec.working_dir else home),
            **self._log,
        }

    def inside(self, workload: Workload, pod: Pod, run: Run) -> tuple[dict[str, str], Path]:
        """The environment and directory the pod's own program was started with."""
        plan = runs.read_plan(self.run_dir((workload.id, pod.index), pod))
        if plan is not None:
            return dict(plan["environment"]), Path(plan["working_dir"])
        return self.environment(workload, pod, run), self.home(workload.user)

    def home(self, user: str) -> Path:
        """The user's home, made if it is not there."""
        home = environment.home_of(self._state_dir, user)
        runs.make_private(home)
        return home

    def run_dir(self, key: Key, pod: Pod) -> Path:
        return runs.directory(self._state_dir, key[0], key[1], pod.attempt)

    def details(self, workload: Workload, pod: Pod, run: Run) -> PodDetails:
        """Of a pod that holds its place. Kept until pod or run change, except for what the service adds: that changes with its restarts."""
        key = (workload.id, pod.index)
        kept = self._details.get(key)
        if kept is None or kept[0] is not pod or kept[1] is not run:
            kept = (pod, run, self._describe(workload, pod, run))
            self._details[key] = kept
        return kept[2] if self._backend.simulated else replace(kept[2], devices=self._in_use(workload, pod, run))

    def _describe(self, workload: Workload, pod: Pod, run: Run) -> PodDetails:
        return PodDetails(
            devices=self._in_use(workload, pod, run),
            environment=self._own_environment(workload, pod, run),
            pid=run.child.pid if run.child else None,
            ports=dict(run.ports),
            tier=run.tier,
            error=run.error,
        )

    def _in_use(self, workload: Workload, pod: Pod, run: Run) -> tuple[Device, ...]:
        """Its devices with what it uses of them. Of a real GPU that others share only the sum is measured: that is nobody's figure."""
        held = self.devices_of(run)
        if self._backend.simulated:
            return usage.of_pod(workload, pod, run, held)
        whole = {one.index for one in run.devices if one.millis == WHOLE_GPU}
        return tuple(one if one.index in whole else replace(one, utilisation_percent=None, memory_used_mib=None) for one in held)

    def drop(self, workload_id: str) -> None:
        self._details = {key: kept for key, kept in self._details.items() if key[0] != workload_id}

    def devices_of(self, run: Run) -> tuple[Device, ...]:
        known = {device.index: device for device in self._backend.devices(run.node)}
        return tuple(known[held.index] for held in run.devices if held.index in known)

    def devices(self, node: str) -> Sequence[Device]:
        """With what they are used for: measured on real ones, following from who runs there on simulated ones."""
        if not self._backend.simulated:
            return self._backend.devices(node)
        version, used = self._usage
        if version != self._state.version:
            used = {one.name: usage.simulated(one.name, self._backend.devices(one.name), self._state.holding()) for one in self.nodes}
            self._usage = (self._state.version, used)
        return used.get(node, ())


def _forget_attempts(directory: Path, *, before: int) -> None:
    """A pod keeps the files of its last two attempts: this one's, and those that say why there is this one."""
    for old in directory.iterdir():
        if old.name.isdigit() and int(old.name) < before:
            shutil.rmtree(old, ignore_errors=True)
