"""How one decision is carried out through the engine: told as an event, logged, and tried again later if the engine fails."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from hotdesk_api.errors import HotdeskError

from hotdesk_scheduler.core.model import Phase, Pod, Snapshot, Workload
from hotdesk_scheduler.core.plan import Decision, Finish, Hold, LifecycleDecision, Move, Nominate, Remove, Requeue, Start, Stop
from hotdesk_scheduler.engines.base import Engine
from hotdesk_scheduler.records import Event

log = logging.getLogger(__name__)

FIRST_BACK_OFF_S = 0.5
MAX_BACK_OFF_S = 30.0

Clock = Callable[[], float]
Announce = Callable[[Event], None]


@dataclass(slots=True)
class Retry:
    """A decision that could not be carried out: when it is tried again, and what went wrong."""

    not_before: float
    pause_s: float
    error: str
    failed_in_round: int


class Verbs:
    """`wake` is called when a decision turned out to be stale. A round is one pass of the loop."""

    def __init__(self, engine: Engine, *, clock: Clock, announce: Announce, wake: Callable[[], None]) -> None:
        self._engine = engine
        self._clock = clock
        self._announce = announce
        self._wake = wake
        self._round = 0
        self._retries: dict[tuple[str, str, int | None], Retry] = {}
        self._seen: Snapshot | None = None
        self._by_id: dict[str, Workload] = {}

    def next_round(self) -> None:
        """Forget what did not fail again in the round that ends: it is done, or nobody wants it any more."""
        self._retries = {key: retry for key, retry in self._retries.items() if retry.failed_in_round == self._round}
        self._round += 1

    @property
    def problem(self) -> str | None:
        """What /readyz shows of decisions that could not be carried out in this round."""
        failing = [retry for retry in self._retries.values() if retry.failed_in_round == self._round]
        if not failing:
            return None
        return f"{len(failing)} decisions could not be carried out and are tried again; one of them: {failing[-1].error}"

    def retry_at(self) -> float | None:
        return min((retry.not_before for retry in self._retries.values()), default=None)

    async def review(self, decision: LifecycleDecision, snapshot: Snapshot, now: float) -> bool:
        """Carry out a decision of lifecycle; whether that was done."""
        return await self._guarded(partial(self._review_one, decision, snapshot, now), decision)

    async def apply(self, decision: Decision, snapshot: Snapshot) -> bool:
        """Carry out a decision of the plan made for `snapshot`; whether that was done."""
        return await self._guarded(partial(self._apply, decision, snapshot), decision)

    async def _guarded(self, verb: Callable[[], Awaitable[None]], decision: Decision | LifecycleDecision) -> bool:
        """Whether it was done. A verb that fails is an event of its workload and tried again later; the others go on."""
        key = (type(decision).__name__, decision.workload_id, getattr(decision, "index", None))
        retry = self._retries.get(key)
        # a clock that was set back makes it due at once, rather than as much later
        if retry is not None and 0 < retry.not_before - self._clock() <= retry.pause_s:
            retry.failed_in_round = self._round
            return False
        try:
            await verb()
        except Exception as error:  # whatever an engine raises
            pause_s = min(MAX_BACK_OFF_S, retry.pause_s * 2 if retry else FIRST_BACK_OFF_S)
            self._retries[key] = Retry(self._clock() + pause_s, pause_s, f"{key[0]}: {error}", self._round)
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
        workload = self._engine.find(decision.workload_id)
        if workload is not None and first:
            self.event(workload, "FailedVerb", f"Could not {verb.lower()} it: {error} It is tried again.", kind="Warning")

    async def _review_one(self, decision: LifecycleDecision, snapshot: Snapshot, now: float) -> None:
        engine = self._engine
        planned, current = self._of(snapshot).get(decision.workload_id), engine.find(decision.workload_id)
        if planned is None or current is None or current.phase is not planned.phase:
            self._wake()  # its owner was quicker; what is due now is seen by the next review
            return
        if isinstance(decision, Remove):
            await engine.forget(decision.workload_id)
            log.info("workload.removed workload=%s", decision.workload_id)
        elif isinstance(decision, Finish):
            await engine.set_phase(decision.workload_id, Phase(decision.phase), decision.reason, now)
            log.info("workload.finished workload=%s phase=%s", decision.workload_id, decision.phase)
            text = decision.reason.sentence if decision.reason else "It has done all of its work."
            self.event(planned, camel(decision.phase), text, kind="Warning" if decision.phase == Phase.FAILED else "Normal")
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
        planned = pod_of(self._of(snapshot).get(decision.workload_id), decision.index)
        current = pod_of(self._engine.find(decision.workload_id), decision.index)
        if planned is None or current is None or current.state is not planned.state:
            log.info("decision.stale workload=%s index=%s", decision.workload_id, decision.index)
            self._wake()
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
        workload = self._engine.find(decision.workload_id)
        if workload is None or workload.phase is not Phase.ACTIVE:
            self._wake()
            return
        await self._engine.start_pod(decision.workload_id, decision.index, decision.placement, now)
        log.info("workload.started workload=%s index=%s node=%s", decision.workload_id, decision.index, decision.placement.node)
        self.event(workload, "Scheduled", f"Pod {workload.name}-{decision.index} starts on {decision.placement.node}.")

    async def _stop(self, decision: Stop, snapshot: Snapshot, now: float) -> None:
        await self._engine.stop_pod(decision.workload_id, decision.index, decision.reason, decision.grace_s, now)
        log.info("workload.%s workload=%s index=%s by=%s", decision.reason.code, decision.workload_id, decision.index, decision.beneficiary)
        workload = self._of(snapshot).get(decision.workload_id)
        if workload is not None:
            self.event(workload, camel(decision.reason.code), decision.reason.sentence)

    def _of(self, snapshot: Snapshot) -> Mapping[str, Workload]:
        """The snapshot's workloads by id; all decisions of a pass are about the same one."""
        if self._seen is not snapshot:
            self._seen, self._by_id = snapshot, {workload.id: workload for workload in snapshot.workloads}
        return self._by_id

    def event(self, workload: Workload, reason: str, message: str, *, kind: str = "Normal") -> None:
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


def pod_of(workload: Workload | None, index: int) -> Pod | None:
    return None if workload is None else next((pod for pod in workload.pods if pod.index == index), None)
