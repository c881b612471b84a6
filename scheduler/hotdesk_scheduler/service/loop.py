"""observe -> review to a fixpoint -> snapshot -> decide -> verify -> apply, for ever (design.md 1 and 4.1).

Woken by the engine's changes, by lifecycle's next deadline and by a slow safety tick. A verb that fails becomes an event; a
pass that fails is logged, shown in /readyz and tried again with back-off. The loop itself never ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hotdesk_scheduler import collector
from hotdesk_scheduler.core import invariants, lifecycle
from hotdesk_scheduler.core.books import Books
from hotdesk_scheduler.core.deadlines import Deadlines
from hotdesk_scheduler.core.decide import decide
from hotdesk_scheduler.core.history import Usage
from hotdesk_scheduler.core.line import Told, told_of
from hotdesk_scheduler.core.memory import Memory
from hotdesk_scheduler.core.mix import Learner
from hotdesk_scheduler.core.model import Policy, Snapshot
from hotdesk_scheduler.core.plan import Hold, Plan, Requeue
from hotdesk_scheduler.core.reasons import ReasonCode
from hotdesk_scheduler.core.stirring import Stirring
from hotdesk_scheduler.decisionlog.cycles import DECIDE, REVIEW, Cycle, failure
from hotdesk_scheduler.engines.base import Change, Engine
from hotdesk_scheduler.records import Event
from hotdesk_scheduler.service.verbs import FIRST_BACK_OFF_S, MAX_BACK_OFF_S, Announce, Clock, Verbs, camel

log = logging.getLogger(__name__)

MAX_REVIEWS = 50
PLAN_ATTEMPTS = 5
FREES_NOTHING = frozenset({"started"})
LATER_S = 1.0
TOLD = frozenset({"exited", "released", "lost", "failed_verb", "node"})
SHORT_PASS_S = 0.005
MAX_BREATH_S = 0.25
BREATHS = 3

Decide = Callable[[Snapshot, Policy, float], Plan]


class BrokenPlan(Exception):
    """The core returned a plan that its own invariants refuse: nothing of it is applied."""


class Loop:
    """`told`, `holds`, `fair_shares` and `weights` are of the last plan; `problem` says what is wrong with the last pass, if anything."""

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        *,
        clock: Clock = time.time,
        tick_s: float = 30.0,
        announce: Announce = lambda event: None,
        after_pass: Callable[[], None] = lambda: None,
        news: Callable[[], None] = lambda: None,
        observe_s: Callable[[float], None] = lambda seconds: None,
        decide: Decide | None = None,
        record: Callable[[Cycle], None] = lambda cycle: None,
        past: Callable[[Snapshot, float], Usage] = lambda snapshot, now: (),
    ) -> None:
        self._engine = engine
        self.policy = policy
        self._clock = clock
        self._tick_s = tick_s
        self._announce = announce
        self._after_pass = after_pass
        self._news = news
        self._observe_s = observe_s
        self.memory = Memory()
        self._books = Books()
        self._deadlines = Deadlines()
        self._decide: Decide = decide or self._decide_warm
        self._record = record
        self._past = past
        self._learner = Learner()
        self._stirring = Stirring()
        self._wake = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._not_before: float | None = None
        self._reviewed_at = float("-inf")
        self._verbs = Verbs(engine, clock=clock, announce=announce, wake=self.wake)
        self._breath_s = 0.0
        self._last: Cycle | None = None
        self._holds: dict[str, Hold] | None = {}
        self.told: Mapping[str, Told] = {}
        self.fair_shares: dict[str, int] = {}
        self.weights: dict[str, int] = {}
        self.problem: str | None = None
        self.passes = 0
        self.last_pass_at: float | None = None

    async def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._listen(), name="loop-listens"),
            asyncio.create_task(self._run(), name="loop-runs"),
        ]

    async def stop(self) -> None:
        if self._later is not None:
            self._later.cancel()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def wake(self) -> None:
        self._wake.set()

    def _wake_later(self) -> None:
        """Who looks sees it at once."""
        self._news()
        if self._later is None or self._later.when() <= asyncio.get_running_loop().time():
            self._later = asyncio.get_running_loop().call_later(LATER_S, self._wake.set)

    async def _listen(self) -> None:
        """Every change wakes, those that make no room for others a little later; the stream is taken up again if it breaks."""
        while True:
            try:
                async for change in self._engine.changes():
                    if change.kind in FREES_NOTHING:
                        self._wake_later()
                    else:
                        self._wake.set()
                    self._tell(change)
            except Exception:  # the loop must outlive whatever an engine's stream does
                log.exception("loop.changes_failed")
            await asyncio.sleep(1)
            self._wake.set()

    def _tell(self, change: Change) -> None:
        """What the engine saw happen, as an event of the workload."""
        if not change.sentence or change.kind not in TOLD:
            return
        workload = self._engine.find(change.workload_id) if change.workload_id else None
        failed = change.kind in {"failed_verb", "lost"}
        log.log(logging.WARNING if failed else logging.INFO, "workload.%s workload=%s", change.kind, change.workload_id)
        self._announce(
            Event(
                at=self._clock(),
                type="Warning" if failed else "Normal",
                source=self._engine.name,
                reason=camel(change.kind),
                message=change.sentence,
                project=workload.project if workload else None,
                workload=workload.name if workload else None,
                workload_id=change.workload_id,
                user=workload.user if workload else None,
            )
        )

    async def _run(self) -> None:
        back_off_s = 0.0
        while True:
            self._wake.clear()
            begun = time.perf_counter()
            try:
                await self.run_pass()
                self.problem, back_off_s = self._verbs.problem, 0.0
                pause_s = self._pause_s()
            except Exception as error:  # logged, shown in /readyz, retried
                log.exception("loop.pass_failed")
                self.problem = f"The last scheduling pass failed: {type(error).__name__}: {error}"
                back_off_s = min(MAX_BACK_OFF_S, back_off_s * 2 or FIRST_BACK_OFF_S)
                breath_s = max(FIRST_BACK_OFF_S, BREATHS * (time.perf_counter() - begun))
                await asyncio.sleep(breath_s)
                await self._pause(back_off_s - breath_s)  # what changes may be what it failed by
                continue
            await self._pause(pause_s)
            await asyncio.sleep(self._breath_s)  # a quarter of the time is for deciding; the rest answers requests

    async def _pause(self, most_s: float) -> None:
        """Until something wakes it, or so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):  # wait_for would swallow a stop() in the moment of a wake()
                await self._wake.wait()

    def _pause_s(self) -> float:
        due = [at for at in (self._not_before, self._deadline(), self._verbs.retry_at()) if at is not None]
        return max(0.01, min(self._tick_s, min(due, default=float("inf")) - self._clock()))

    def _deadline(self) -> float | None:
        """Of what was not due yet when it was reviewed."""
        return self._deadlines.next(self._engine.snapshot(), self.policy, self._reviewed_at)

    async def run_pass(self) -> None:
        """One cycle. A stale plan is thrown away whole and computed again."""
        begun = time.perf_counter()
        self._verbs.next_round()
        await self._review()
        for _ in range(PLAN_ATTEMPTS):
            snapshot, now = self.snapshot(), self._clock()
            plan, problems = self._planned(snapshot, now)
            if problems:
                self.memory.forget()
                self._record(Cycle(DECIDE, snapshot, self.policy, now, plan, broken="; ".join(str(problem) for problem in problems)))
                await self._give_up_kept_places(snapshot, "; ".join(str(problem) for problem in problems))
                continue
            if self._engine.snapshot().version == plan.version:
                break
        else:
            self._wake.set()  # it changes faster than it can be planned: look again at once, apply nothing that is stale
            return
        self._last = Cycle(DECIDE, snapshot, self.policy, now, plan)
        self._record(self._last)
        self._note(plan)
        for decision in plan.acts:
            await self._verbs.apply(decision, snapshot)
        self.passes += 1
        self.last_pass_at = self._clock()
        self._after_pass()
        took_s = time.perf_counter() - begun
        self._breath_s = min(took_s * BREATHS, MAX_BREATH_S) if took_s > SHORT_PASS_S else 0.0
        self._observe_s(took_s)

    def _decide_warm(self, snapshot: Snapshot, policy: Policy, now: float) -> Plan:
        return decide(snapshot, policy, now, self.memory)

    def _planned(self, snapshot: Snapshot, now: float) -> tuple[Plan, Sequence[object]]:
        """The plan, and what the invariants have against it. What brings the core down is on record too."""
        try:
            with collector.paused():
                plan = self._decide(snapshot, self.policy, now)
                return plan, invariants.check(snapshot, plan, self._books)
        except Exception as error:
            self._record(Cycle(DECIDE, snapshot, self.policy, now, failure(error)))
            raise

    async def _give_up_kept_places(self, snapshot: Snapshot, problems: str) -> None:
        """Without what earlier plans kept, the next one can do right; a broken plan is our fault. Raises BrokenPlan if nothing is kept."""
        kept = [(workload.id, pod.index) for workload in snapshot.workloads for pod in workload.pods if pod.nominated]
        if not kept:
            raise BrokenPlan(problems)
        log.error("plan.broken problems=%s kept_places_given_up=%d", problems, len(kept))
        for workload_id, index in kept:
            await self._engine.nominate(workload_id, index, None)

    def snapshot(self) -> Snapshot:
        """The engine's, with the mix of requests seen so far and with past use: what decisions and forecasts are made from."""
        snapshot = self._engine.snapshot()
        return replace(snapshot, mix=self._learner.look(snapshot.workloads), usage=self._past(snapshot, self._clock()))

    def _note(self, plan: Plan) -> None:
        """Remember what is told and shares; a workload whose main reason changed gets an event, but not each one for a pause of all."""
        before, self.told = self.told, told_of(plan)
        for workload_id, told in self.told.items():
            old = before.get(workload_id)
            if (old is None or old.reason.code is not told.reason.code) and told.reason.code is not ReasonCode.PAUSED:
                self._verbs.event(self._books.workloads[workload_id], "Waiting", told.reason.sentence)
        self._holds = None
        self.fair_shares = dict(plan.fair_shares)
        self.weights = dict(plan.weights)

    @property
    def last_plan(self) -> Plan | None:
        """The plan of the last pass."""
        return self._last.answer if self._last is not None and isinstance(self._last.answer, Plan) else None

    @property
    def holds(self) -> Mapping[str, Hold]:
        """By workload. Places in the queue are counted when somebody looks, and what he saw goes on record."""
        if self._holds is None:
            assert self._last is not None
            self._holds = {hold.workload_id: hold for hold in self.last_plan.holds} if self.last_plan else {}
            self._record(replace(self._last, again=True))
        return self._holds

    def hold(self, workload_id: str) -> Hold | None:
        """The hold of one workload; nothing is counted for one that is not held."""
        return self.holds[workload_id] if workload_id in self.told else None

    async def _review(self) -> None:
        """Lifecycle's decisions until there are none left."""
        self._not_before = None
        for _ in range(MAX_REVIEWS):
            now = self._reviewed_at = self._clock()
            snapshot = self._engine.snapshot()
            due = []
            reviewed = lifecycle.review(self._stirring.of(snapshot), self.policy, now)
            for decision in reviewed:
                if isinstance(decision, Requeue) and decision.not_before > now:
                    self._not_before = min(self._not_before or decision.not_before, decision.not_before)
                else:
                    due.append(decision)
            if not due:
                return
            self._record(Cycle(REVIEW, snapshot, self.policy, now, reviewed))
            done = [await self._verbs.review(decision, snapshot, now) for decision in due]
            if not any(done):
                return
