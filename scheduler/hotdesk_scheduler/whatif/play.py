"""Plays a trace: the service's own decisions on the fake engine, from one event in time to the next.

What happens by itself is a submit, a job's end, the end of a notice, a deadline of the lifecycle. After each the cluster is looked at
until it rests. A job that is stopped for others starts again from its last checkpoint; what it holds during its notice does not count
as work. Same input, same story: no clock, no chance.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

from hotdesk_api.errors import HotdeskError, Invalid
from hotdesk_api.models import WorkloadSpec

from hotdesk_scheduler import collector
from hotdesk_scheduler.core import history, lifecycle
from hotdesk_scheduler.core.deadlines import Deadlines
from hotdesk_scheduler.core.decide import cycle, decide
from hotdesk_scheduler.core.memory import Memory
from hotdesk_scheduler.core.mix import Learner
from hotdesk_scheduler.core.model import Phase, Pod, PodState, Policy, Snapshot, Workload
from hotdesk_scheduler.core.plan import Act, Finish, Move, Nominate, Remove, Requeue, Start, Stop
from hotdesk_scheduler.engines.fake import FakeEngine
from hotdesk_scheduler.whatif.cluster import Cluster, model_of
from hotdesk_scheduler.whatif.trace import Job

EPOCH = 1_000_000_000
MOST_CYCLES = 100
HISTORY_STEP_MS = 600_000


@dataclass(frozen=True, slots=True)
class Rules:
    """How a trace is played: the scheduler's policy, how often jobs write checkpoints (0: never), how past use fades."""

    policy: Policy = field(default_factory=Policy)
    checkpoint_every_ms: int = 600_000
    half_life_ms: int = 7 * 86_400_000


@dataclass(slots=True)
class Course:
    """What became of one job, in milliseconds since the first submit; `held_ms` is how long it held its GPUs."""

    job: Job
    first_start_ms: int | None = None
    end_ms: int | None = None
    held_ms: int = 0
    preempted: int = 0
    moved: int = 0
    why_waiting: str = ""
    kept_ms: int = 0
    started_ms: int | None = None
    stopping: bool = False
    attempt: int = 0

    @property
    def lost_ms(self) -> int:
        """How long it held GPUs for work that did not count."""
        return self.held_ms - (self.job.duration_ms if self.end_ms is not None else 0)


@dataclass(frozen=True, slots=True)
class Sample:
    """From this moment on: thousandths of GPUs held and jobs that wait, by project in the cluster's order."""

    at_ms: int
    held: tuple[int, ...]
    waiting: tuple[int, ...]


@dataclass(slots=True)
class Story:
    """Everything that happened. `served` and `entitled` (thousandths of a GPU x ms) are over the time the project had jobs."""

    cluster: Cluster
    courses: list[Course]
    samples: list[Sample] = field(default_factory=list)
    served: dict[str, int] = field(default_factory=dict)
    entitled: dict[str, int] = field(default_factory=dict)
    end_ms: int = 0
    cycles: int = 0


Progress = Callable[[int], None]


def play(cluster: Cluster, jobs: Sequence[Job], rules: Rules, *, path: Path | None = None, progress: Progress = lambda done: None) -> Story:
    """The whole trace. `progress` hears how many jobs have ended. Raises Invalid for a job that names a GPU model no node has."""
    return asyncio.run(Play(cluster, jobs, rules, path=path, progress=progress).run())


class Play:
    """One run: the engine, the time, and what is due next."""

    def __init__(self, cluster: Cluster, jobs: Sequence[Job], rules: Rules, *, path: Path | None, progress: Progress) -> None:
        self._rules = rules
        self._policy = rules.policy
        self._deadlines = Deadlines()
        self._progress = progress
        self._engine = FakeEngine(cluster.nodes, projects=cluster.projects, departments=cluster.departments, runs_workspaces=True)
        self._spec = WorkloadSpec(project="trace")
        self._learner = Learner()
        self._memory = Memory()
        self._now_ms = 0
        self._courses = {f"{number:07d}": Course(job) for number, job in enumerate(jobs)}
        self._coming = [(_workload(cluster, key, c.job, path), key) for key, c in self._courses.items()][::-1]
        self._ends: list[tuple[int, str, int]] = []
        self._releases: list[tuple[int, str]] = []
        self._names = [project.name for project in cluster.projects]
        self._held = dict.fromkeys(self._names, 0)
        self._waiting = dict.fromkeys(self._names, 0)
        self._fair: dict[str, int] = {}
        self._usage: history.Usage = ()
        self._touched: set[str] = set()
        self._ended = 0
        self.story = Story(
            cluster, list(self._courses.values()), served=dict.fromkeys(self._names, 0), entitled=dict.fromkeys(self._names, 0)
        )  # fmt: skip

    async def run(self) -> Story:
        most = 10_000 + 200 * len(self._courses)
        while (due := self._next_ms()) is not None:
            self._pass_time(due)
            await self._happen()
            await self._look()
            most -= 1
            if not most:
                raise HotdeskError(
                    "The jobs do not come to an end: some are stopped again and again before their first checkpoint.",
                    next_step="Give a shorter --checkpoint-every, or a --min-runtime.",
                )
        for hold in decide(self._snapshot(), self._policy, self._now).holds if any(self._waiting.values()) else ():
            self._courses[hold.workload_id].why_waiting = hold.reason.sentence
        return self.story

    # --- time --------------------------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        return EPOCH + self._now_ms / 1000

    def _next_ms(self) -> int | None:
        """When something happens next: nobody waits for a deadline in a cluster that is empty."""
        due = [self._courses[self._coming[-1][1]].job.submit_ms] if self._coming else []
        due += [self._ends[0][0]] if self._ends else []
        due += [self._releases[0][0]] if self._releases else []
        deadline = self._deadlines.next(self._engine.snapshot(), self._policy, self._now)
        if deadline is not None:
            due.append(max(self._now_ms + 1, ceil((deadline - EPOCH) * 1000)))
        if self._policy.history_weight and any(self._waiting.values()) and any(self._held.values()):
            due.append(self._now_ms + HISTORY_STEP_MS)
        return min(due, default=None)

    def _pass_time(self, until_ms: int) -> None:
        elapsed = until_ms - self._now_ms
        for name in self._names if elapsed else ():
            if self._held[name] or self._waiting[name]:
                self.story.served[name] += self._held[name] * elapsed
                self.story.entitled[name] += self._fair.get(name, 0) * elapsed
        if self._policy.history_weight and elapsed:
            held = {name: millis * history.NANOS for name, millis in self._held.items() if millis}
            self._usage = history.faded(self._usage, held, elapsed_ms=elapsed, half_life_ms=self._rules.half_life_ms)
        self._now_ms = until_ms
        self._engine.now = self._now

    # --- what happens by itself --------------------------------------------------------------------------------------------------

    async def _happen(self) -> None:
        while self._ends and self._ends[0][0] <= self._now_ms:
            _, key, attempt = heapq.heappop(self._ends)
            course = self._courses[key]
            if course.attempt == attempt and not course.stopping:
                self._end(key, course)
        await self._release_due()
        while self._coming and self._courses[self._coming[-1][1]].job.submit_ms <= self._now_ms:
            workload, key = self._coming.pop()
            self._engine.put_workload(workload, self._spec)
            self._waiting[workload.project] += 1
            self._touched.add(key)

    def _end(self, key: str, course: Course) -> None:
        for index in range(course.job.pods):
            self._engine.exit_pod(key, index)
        self._let_go(course)
        course.end_ms = self._now_ms
        self._touched.add(key)
        self._ended += 1
        self._progress(self._ended)

    async def _release_due(self) -> None:
        """Whose notice is over is gone, and waits again."""
        while self._releases and self._releases[0][0] <= self._now_ms:
            key = heapq.heappop(self._releases)[1]
            course = self._courses[key]
            for index in range(course.job.pods):
                await self._engine.report_pod(key, index, PodState.STOPPED, self._now)
            self._let_go(course)
            self._waiting[course.job.project] += 1
            self._touched.add(key)

    def _let_go(self, course: Course) -> None:
        assert course.started_ms is not None
        self._held[course.job.project] -= course.job.gpu_millis
        course.held_ms += self._now_ms - course.started_ms
        course.started_ms, course.stopping = None, False
        course.attempt += 1

    # --- what is decided ---------------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Review, decide and apply until nothing moves."""
        for _ in range(MOST_CYCLES):
            await self._review()
            if not any(self._waiting.values()):
                self._fair = dict.fromkeys(self._names, 0) | self._held
                break
            if not await self._apply(self._decide()):
                break
            await self._release_due()
        self._note()

    async def _review(self) -> None:
        """The lifecycle of what changed since the last look; nothing else can be due, as no limit in time is set here."""
        while self._touched:
            workloads = [found for key in sorted(self._touched) if (found := self._engine.find(key))]
            self._touched.clear()
            snapshot = replace(self._engine.snapshot(), workloads=tuple(workloads))
            for decision in lifecycle.review(snapshot, self._policy, self._now):
                match decision:
                    case Requeue():
                        await self._engine.requeue_pod(decision.workload_id, decision.index)
                    case Finish():
                        await self._engine.set_phase(decision.workload_id, Phase(decision.phase), decision.reason, self._now)
                        await self._engine.forget(decision.workload_id)
                    case Stop() | Remove():
                        raise AssertionError(f"nothing here is stopped by the lifecycle: {decision}")

    def _snapshot(self) -> Snapshot:
        snapshot = self._engine.snapshot()
        return replace(snapshot, mix=self._learner.look(snapshot.workloads), usage=self._usage)

    def _decide(self) -> tuple[Act, ...]:
        """What `decide` does. Why the others wait is asked once, at the end: telling it takes longer than deciding."""
        self.story.cycles += 1
        with collector.paused():
            ledger, requests = cycle(self._snapshot(), self._policy, self._now, self._memory)
            self._fair = {name: account.fair[0] for name, account in ledger.projects.items()}
            acts = tuple(ledger.decisions.values())
            self._memory.keep(ledger, requests)
        return acts

    async def _apply(self, acts: Sequence[Act]) -> bool:
        """Carry out what was decided; whether anything was."""
        for decision in acts:
            match decision:
                case Start():
                    await self._start(decision)
                case Stop():
                    await self._stop(decision)
                case Move():
                    await self._engine.nominate(decision.workload_id, decision.index, decision.placement)
                    await self._stop(decision)
                case Nominate():
                    await self._engine.nominate(decision.workload_id, decision.index, decision.placement)
        return bool(acts)

    async def _start(self, start: Start) -> None:
        course = self._courses[start.workload_id]
        await self._engine.start_pod(start.workload_id, start.index, start.placement, self._now)
        await self._engine.report_pod(start.workload_id, start.index, PodState.RUNNING, self._now)
        if course.started_ms is not None:
            return
        course.started_ms = self._now_ms
        if course.first_start_ms is None:
            course.first_start_ms = self._now_ms
        self._held[course.job.project] += course.job.gpu_millis
        self._waiting[course.job.project] -= 1
        heapq.heappush(self._ends, (self._now_ms + course.job.duration_ms - course.kept_ms, start.workload_id, course.attempt))

    async def _stop(self, stop: Stop | Move) -> None:
        course = self._courses[stop.workload_id]
        await self._engine.stop_pod(stop.workload_id, stop.index, stop.reason, stop.grace_s, self._now)
        if course.stopping:
            return
        assert course.started_ms is not None
        course.stopping = True
        course.preempted += isinstance(stop, Stop)
        course.moved += isinstance(stop, Move)
        every, worked = self._rules.checkpoint_every_ms, course.kept_ms + self._now_ms - course.started_ms
        course.kept_ms = worked // every * every if every else 0
        heapq.heappush(self._releases, (self._now_ms + round(stop.grace_s * 1000), stop.workload_id))

    def _note(self) -> None:
        sample = Sample(self._now_ms, tuple(self._held.values()), tuple(self._waiting.values()))
        samples = self.story.samples
        if samples and samples[-1].at_ms == self._now_ms:
            samples.pop()
        if not samples or (samples[-1].held, samples[-1].waiting) != (sample.held, sample.waiting):
            samples.append(sample)
            self.story.end_ms = self._now_ms


def _workload(cluster: Cluster, key: str, job: Job, path: Path | None) -> Workload:
    try:
        model = model_of(cluster, job.gpu_model)
    except ValueError as error:
        raise Invalid(f"{path or 'The trace'}, line {job.line}: {error}.", field="gpu_model", value=job.gpu_model) from error
    return Workload(
        id=key,
        name=job.name,
        project=job.project,
        kind=job.kind,
        user=job.user,
        priority=job.priority,
        preemptible=job.preemptible,
        min_pods=job.pods,
        pods=tuple(Pod(index, job.request) for index in range(job.pods)),
        created_at=EPOCH + job.submit_ms / 1000,
        node_type=model,
    )
