"""observe -> review to a fixpoint -> snapshot -> decide -> verify -> apply, for ever (design.md 1 and 4.1).

Woken by the engine's changes, by lifecycle's next deadline and by a slow safety tick. A verb that fails becomes an event; a
pass that fails is logged, shown in /readyz and tried again with back-off. The loop itself never ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from hotdesk_api.errors import HotdeskError

from hotdesk_scheduler.core import invariants, lifecycle
from hotdesk_scheduler.core.decide import decide
from hotdesk_scheduler.core.model import Phase, Pod, Policy, Snapshot, Workload
from hotdesk_scheduler.core.plan import (
    Decision,
    Finish,
    Hold,
    LifecycleDecision,
    Move,
    Nominate,
    Plan,
    Remove,
    Requeue,
    Start,
    Stop,
)
from hotdesk_scheduler.engines.base import Change, Engine
from hotdesk_scheduler.records import Event

log = logging.getLogger(__name__)

MAX_REVIEWS = 50
FIRST_BACK_OFF_S = 0.5
MAX_BACK_OFF_S = 30.0
PLAN_ATTEMPTS = 5
TOLD = frozenset({"exited", "released", "lost", "failed_verb", "node"})
SHORT_PASS_S = 0.005
MAX_BREATH_S = 0.25

Clock = Callable[[], float]
Announce = Callable[[Event], None]
Decide = Callable[[Snapshot, Policy, float], Plan]


class BrokenPlan(Exception):
    """The core returned a plan that its own invariants refuse: nothing of it is applied."""


@dataclass(slots=True)
class Retry:
    """A decision that could not be carried out: when it is tried again, and what went wrong."""

    not_before: float
    pause_s: float
    error: str
    failed_at_pass: int


class Loop:
    """`holds` and `fair_shares` are of the last plan; `problem` says what is wrong with the last pass, if anything."""

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        *,
        clock: Clock = time.time,
        tick_s: float = 30.0,
        announce: Announce = lambda event: None,
        after_pass: Callable[[], None] = lambda: None,
        observe_s: Callable[[float], None] = lambda seconds: None,
        decide: Decide = decide,
    ) -> None:
        self._engine = engine
        self.policy = policy
        self._clock = clock
        self._tick_s = tick_s
        self._announce = announce
        self._after_pass = after_pass
        self._observe_s = observe_s
        self._decide = decide
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._not_before: float | None = None
        self._retries: dict[tuple[str, str, int | None], Retry] = {}
        self._last_pass_s = 0.0
        self.holds: dict[str, Hold] = {}
        self.fair_shares: dict[str, int] = {}
        self.problem: str | None = None
        self.passes = 0
        self.last_pass_at: float | None = None

    async def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._listen(), name="loop-listens"),
            asyncio.create_task(self._run(), name="loop-runs"),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def wake(self) -> None:
        self._wake.set()

    async def _listen(self) -> None:
        """Every change wakes; the stream is taken up again if it breaks."""
        while True:
            try:
                async for change in self._engine.changes():
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
        workload = _find(self._engine.snapshot(), change.workload_id)
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
            try:
                await self.run_pass()
                self.problem, back_off_s = self._unfinished(), 0.0
            except Exception as error:  # logged, shown in /readyz, retried
                log.exception("loop.pass_failed")
                self.problem = f"The last scheduling pass failed: {type(error).__name__}: {error}"
                back_off_s = min(MAX_BACK_OFF_S, back_off_s * 2 or FIRST_BACK_OFF_S)
                await asyncio.sleep(back_off_s)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._pause_s())
            await asyncio.sleep(self._last_pass_s)  # at most half of the time is spent on deciding; the rest answers requests

    def _unfinished(self) -> str | None:
        failing = [retry for retry in self._retries.values() if retry.failed_at_pass == self.passes]
        if not failing:
            return None
        return f"{len(failing)} decisions could not be carried out and are tried again; one of them: {failing[-1].error}"

    def _pause_s(self) -> float:
        retries = [retry.not_before for retry in self._retries.values()]
        due = [at for at in (self._not_before, self._deadline(), *retries) if at is not None]
        return max(0.01, min(self._tick_s, min(due, default=float("inf")) - self._clock()))

    def _deadline(self) -> float | None:
        return lifecycle.next_wakeup(self._engine.snapshot(), self.policy, self._clock())

    async def run_pass(self) -> None:
        """One cycle. A stale plan is thrown away whole and computed again."""
        begun = time.perf_counter()
        await self._review()
        for _ in range(PLAN_ATTEMPTS):
            snapshot = self._engine.snapshot()
            plan = self._decide(snapshot, self.policy, self._clock())
            problems = invariants.check(snapshot, plan)
            if problems:
                raise BrokenPlan("; ".join(str(problem) for problem in problems))
            if self._engine.snapshot().version == plan.version:
                break
        self._note(plan, snapshot)
        for decision in plan.decisions:
            await self._guarded(partial(self._apply, decision, snapshot), decision)
        self.passes += 1
        self._retries = {key: retry for key, retry in self._retries.items() if retry.failed_at_pass == self.passes}
        self.last_pass_at = self._clock()
        self._after_pass()
        took_s = time.perf_counter() - begun
        self._last_pass_s = min(took_s, MAX_BREATH_S) if took_s > SHORT_PASS_S else 0.0
        self._observe_s(took_s)

    def _note(self, plan: Plan, snapshot: Snapshot) -> None:
        """Remember holds and shares; a workload whose main reason changed gets an event."""
        holds = {decision.workload_id: decision for decision in plan.decisions if isinstance(decision, Hold)}
        by_id: dict[str, Workload] = {}
        for workload_id, hold in holds.items():
            before = self.holds.get(workload_id)
            if before is None or before.reason.code is not hold.reason.code:
                by_id = by_id or {workload.id: workload for workload in snapshot.workloads}
                self._event(by_id[workload_id], "Waiting", hold.reason.sentence)
        self.holds = holds
        self.fair_shares = dict(plan.fair_shares)

    async def _review(self) -> None:
        """Lifecycle's decisions until there are none left."""
        self._not_before = None
        for _ in range(MAX_REVIEWS):
            now = self._clock()
            snapshot = self._engine.snapshot()
            due = []
            for decision in lifecycle.review(snapshot, self.policy, now):
                if isinstance(decision, Requeue) and decision.not_before > now:
                    self._not_before = min(self._not_before or decision.not_before, decision.not_before)
                else:
                    due.append(decision)
            if not due:
                return
            done = [await self._guarded(partial(self._review_one, decision, snapshot, now), decision) for decision in due]
            if not any(done):
                return

    async def _guarded(self, verb: Callable[[], Awaitable[None]], decision: Decision | LifecycleDecision) -> bool:
        """Whether it was done. A verb that fails is an event of its workload and tried again later; the others go on."""
        key = (type(decision).__name__, decision.workload_id, getattr(decision, "index", None))
        retry = self._retries.get(key)
        if retry is not None and self._clock() < retry.not_before:
            retry.failed_at_pass = self.passes + 1
            return False
        try:
            await verb()
        except Exception as error:  # whatever an engine raises
            pause_s = min(MAX_BACK_OFF_S, retry.pause_s * 2 if retry else FIRST_BACK_OFF_S)
            self._retries[key] = Retry(self._clock() + pause_s, pause_s, f"{key[0]}: {error}", self.passes + 1)
            self._log_failure(decision, error, first=retry is None)
            return False
        self._retries.pop(key, None)
        return True

    def _log_failure(self, decision: Decision | LifecycleDecision, error: Exception, *, first: bool) -> None:
        verb, expected = type(decision).__name__, isinstance(error, HotdeskError)
        log.log(
            logging.WARNING if expected else logging.ERROR,
            "verb.failed verb=%s workload=%s error=%s",
            verb,
            decision.workload_id,
            error,
            exc_info=None if expected or not first else error,
        )
        workload = _find(self._engine.snapshot(), decision.workload_id)
        if workload is not None and first:
            self._event(workload, "FailedVerb", f"Could not {verb.lower()} it: {error} It is tried again.", kind="Warning")

    async def _review_one(self, decision: LifecycleDecision, snapshot: Snapshot, now: float) -> None:
        engine = self._engine
        if isinstance(decision, Remove):
            await engine.forget(decision.workload_id)
            log.info("workload.removed workload=%s", decision.workload_id)
        elif isinstance(decision, Finish):
            await engine.set_phase(decision.workload_id, Phase(decision.phase), decision.reason, now)
            workload = _find(snapshot, decision.workload_id)
            log.info("workload.finished workload=%s phase=%s", decision.workload_id, decision.phase)
            if workload is not None:
                text = decision.reason.sentence if decision.reason else f"It is {decision.phase}."
                self._event(workload, camel(decision.phase), text, kind="Warning" if decision.phase == Phase.FAILED else "Normal")
        elif isinstance(decision, Requeue):
            await engine.requeue_pod(decision.workload_id, decision.index)
            log.info("pod.requeued workload=%s index=%s", decision.workload_id, decision.index)
        elif isinstance(decision, Stop):
            await self._stop(decision, snapshot, now)
        else:
            assert_never(decision)

    async def _apply(self, decision: Decision, snapshot: Snapshot) -> None:
        """Carry out one decision, unless its pod is no longer what the plan was made for."""
        if isinstance(decision, Hold):
            return
        planned = _pod(snapshot, decision.workload_id, decision.index)
        current = _pod(self._engine.snapshot(), decision.workload_id, decision.index)
        if planned is None or current is None or current.state is not planned.state:
            log.info("decision.stale workload=%s index=%s", decision.workload_id, decision.index)
            self._wake.set()
            return
        now = self._clock()
        if isinstance(decision, Start):
            await self._start(decision, now)
        elif isinstance(decision, Nominate):
            await self._engine.nominate(decision.workload_id, decision.index, decision.placement)
        elif isinstance(decision, Stop):
            await self._stop(decision, snapshot, now)
        elif isinstance(decision, Move):
            await self._engine.nominate(decision.workload_id, decision.index, decision.placement)
            await self._stop(
                Stop(decision.workload_id, decision.index, decision.reason, decision.grace_s, decision.beneficiary), snapshot, now
            )
        else:
            assert_never(decision)

    async def _start(self, decision: Start, now: float) -> None:
        workload = _find(self._engine.snapshot(), decision.workload_id)
        if workload is None or workload.phase is not Phase.ACTIVE:
            self._wake.set()
            return
        await self._engine.start_pod(decision.workload_id, decision.index, decision.placement, now)
        log.info("workload.started workload=%s index=%s node=%s", decision.workload_id, decision.index, decision.placement.node)
        self._event(workload, "Scheduled", f"Pod {workload.name}-{decision.index} starts on {decision.placement.node}.")

    async def _stop(self, decision: Stop, snapshot: Snapshot, now: float) -> None:
        await self._engine.stop_pod(decision.workload_id, decision.index, decision.reason, decision.grace_s, now)
        log.info("workload.%s workload=%s index=%s by=%s", decision.reason.code, decision.workload_id, decision.index, decision.beneficiary)
        workload = _find(snapshot, decision.workload_id)
        if workload is not None:
            self._event(workload, camel(decision.reason.code), decision.reason.sentence)

    def _event(self, workload: Workload, reason: str, message: str, *, kind: str = "Normal") -> None:
        self._announce(
            Event(
                at=self._clock(),
                type=kind,
                reason=reason,
                message=message,
                project=workload.project,
                workload=workload.name,
                workload_id=workload.id,
                user=workload.user,
            )
        )


def camel(words: str) -> str:
    """`stale_gang` -> `StaleGang`, as events are named."""
    return "".join(word.capitalize() for word in words.split("_"))


def _find(snapshot: Snapshot, workload_id: str | None) -> Workload | None:
    return next((workload for workload in snapshot.workloads if workload.id == workload_id), None)


def _pod(snapshot: Snapshot, workload_id: str, index: int) -> Pod | None:
    workload = _find(snapshot, workload_id)
    return None if workload is None else next((pod for pod in workload.pods if pod.index == index), None)
