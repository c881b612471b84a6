"""For whom lifecycle can have anything to do, without looking at everybody in every cycle: most workloads wait or just run."""

from __future__ import annotations

from dataclasses import replace

from hotdesk_scheduler.core.lifecycle import is_quiet
from hotdesk_scheduler.core.model import Project, Snapshot, Workload


class Stirring:
    """Remembers who was quiet. Core values are frozen, so who is the same value in the same projects is quiet still."""

    def __init__(self) -> None:
        self._quiet: dict[str, Workload] = {}
        self._projects: tuple[Project, ...] = ()

    def of(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with those workloads alone for which `lifecycle.review` may have something: it reviews both alike."""
        quiet = self._quiet
        if snapshot.projects != self._projects or len(quiet) > 2 * len(snapshot.workloads) + 1000:
            quiet.clear()
            self._projects = snapshot.projects
        projects = {project.name: project for project in snapshot.projects}
        stirring = []
        for workload in [w for w in snapshot.workloads if quiet.get(w.id) is not w]:
            if is_quiet(workload, projects.get(workload.project)):
                quiet[workload.id] = workload
            else:
                stirring.append(workload)
        return replace(snapshot, workloads=tuple(stirring))
