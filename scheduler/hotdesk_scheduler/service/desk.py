"""What callers may ask of the scheduler, one method a wish: checked, done through the engine, recorded. `rest` only translates."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import secrets
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hotdesk_api import models
from hotdesk_api.errors import Conflict, Refused, Unavailable
from hotdesk_api.units import format_gpus

from hotdesk_scheduler import collector
from hotdesk_scheduler.core import explain
from hotdesk_scheduler.core.displaced import Displaced
from hotdesk_scheduler.core.history import Usage
from hotdesk_scheduler.core.model import HOLDING, Phase, Placement, PodState, Policy, Workload
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.decisionlog.writer import DecisionLog
from hotdesk_scheduler.engines.base import Engine, Mirror
from hotdesk_scheduler.metrics import Metrics
from hotdesk_scheduler.records import PastUse, Records
from hotdesk_scheduler.service import specs
from hotdesk_scheduler.service.callers import Caller, no_such_workload
from hotdesk_scheduler.service.feed import Feed
from hotdesk_scheduler.service.hub import Hub
from hotdesk_scheduler.service.loop import MAX_BREATH_S, Loop
from hotdesk_scheduler.service.past import Past
from hotdesk_scheduler.service.pausing import Pausing
from hotdesk_scheduler.service.recorder import Recorder, event_out
from hotdesk_scheduler.service.submissions import Submissions
from hotdesk_scheduler.service.verbs import FIRST_BACK_OFF_S, MAX_BACK_OFF_S, Clock
from hotdesk_scheduler.service.views import STEP, Entry, Views, reason_of, reason_out, with_trouble
from hotdesk_scheduler.service.workspaces import Patience, Workspaces

log = logging.getLogger(__name__)

RESUMABLE = frozenset({Phase.SUSPENDED, Phase.STOPPED, Phase.TIMED_OUT, Phase.ACTIVE})
FINAL = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.TIMED_OUT, Phase.STOPPED})


class Desk:
    """Owns loop, views, feed, workspaces and records of one engine. `open()`, then `start()`; `stop()` leaves pods running."""

    def __init__(
        self,
        engine: Engine,
        records: Records,
        *,
        policy: Policy,
        hub: Hub | None = None,
        report_key: bytes | None = None,
        clock: Clock = time.time,
        tick_s: float = 30.0,
        patience: Patience | None = None,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        seed_marker: Path | None = None,
        pause_file: Path | None = None,
        decision_log: DecisionLog | None = None,
        mirror: Mirror | None = None,
        history_half_life_s: float = 604_800.0,
    ) -> None:
        self.engine = engine
        self.records = records
        self.decision_log = decision_log
        self._mirror = mirror
        self.clock = clock
        self.feed = Feed()
        self.recorder = Recorder(engine, records, self.feed, mirror, clock=clock)
        self.views = Views(engine)
        self.metrics = Metrics(self)
        self.workspaces = Workspaces(engine, hub, clock=clock, patience=patience or Patience())
        self.past = Past(half_life_s=history_half_life_s, keep=self._keep_past) if policy.history_weight else None
        self._news = asyncio.Event()
        self.loop = Loop(
            engine,
            policy,
            clock=clock,
            tick_s=tick_s,
            announce=self.recorder.announce,
            after_pass=self._after_pass,
            news=self._news.set,
            observe_s=self.metrics.observe_pass,
            record=decision_log.add if decision_log else lambda cycle: None,
            past=self.past.look if self.past else lambda snapshot, now: (),
        )
        self._explainer = explain.Explainer(self.loop.memory)
        self.seed_marker = seed_marker
        self.pausing = Pausing(engine, pause_file)
        self._submissions = Submissions(engine, clock=clock, new_id=new_id)
        self._report_key = report_key or secrets.token_bytes(32)
        self.api_url = ""
        engine.pod_environment = self.pod_environment
        self._recalling: asyncio.Task[None] | None = None
        self._progress: dict[str, models.Progress] = {}
        self._telling: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read everything back; nothing is decided yet."""
        await self.engine.open()
        await self.records.open()
        if self.decision_log is not None:  # after the engine: whose state directory it is, is settled by then
            self.decision_log.open()
        if self.past is not None and not await self._recalled(self.past):
            self._recalling = asyncio.create_task(self._recall(self.past), name="past-use")
        self.loop.policy = replace(self.loop.policy, paused=await self.pausing.recall())
        self.views.catch_up(self.engine.snapshot())

    async def start(self) -> None:
        self._telling = asyncio.create_task(self._keep_told(), name="desk-tells")
        await self.loop.start()
        await self.workspaces.start()

    async def stop(self) -> None:
        self.feed.close()
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
        if self._recalling is not None:
            self._recalling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._recalling
        await self.workspaces.stop()
        await self.loop.stop()
        if self.decision_log is not None:
            await asyncio.to_thread(self.decision_log.close)
        await self.records.close()
        await self.engine.close()

    async def refreshed(self) -> Views:
        """All views, up to date; made in steps, as a queue that moves up renews all of its places, and others want answers meanwhile."""
        for _ in self.views.renewing(self.engine.snapshot(), self.loop.holds, self._progress):
            await asyncio.sleep(0)
        return self.views

    async def _keep_told(self) -> None:
        """Tell those who listen what has changed. Views are made when somebody looks or listens."""
        while True:
            await self._news.wait()
            self._news.clear()
            if not len(self.feed):
                self._forget(self.views.news()[1])
                continue
            began = time.perf_counter()
            try:
                await self._tell()
            except Exception:  # the next change tells again
                log.exception("desk.telling_failed")
            await asyncio.sleep(min(MAX_BREATH_S, time.perf_counter() - began))  # at most half of the time

    async def _tell(self) -> None:
        await self.refreshed()
        changed, removed = self.views.news()
        version = self.engine.snapshot().version
        self._forget(removed)
        self.feed.workloads(version, (), removed)
        for first in range(0, len(changed), STEP):
            self.feed.workloads(version, changed[first : first + STEP], ())
            await asyncio.sleep(0)

    def _forget(self, removed: Sequence[models.WorkloadOut]) -> None:
        for view in removed:
            self._progress.pop(view.id, None)

    def _look(self, workload_id: str) -> Entry | None:
        self.views.catch_up(self.engine.snapshot())
        return self.views.look(workload_id, self.loop.hold, self._progress)

    def find(self, project: str, name: str) -> Entry | None:
        """By name, whoever asks."""
        self.views.catch_up(self.engine.snapshot())
        workload_id = self.views.id_of(project, name)
        return None if workload_id is None else self._look(workload_id)

    def _after_pass(self) -> None:
        if self._mirror is not None:
            self._mirror.show_holds({workload_id: told.reason for workload_id, told in self.loop.told.items()})
        self._news.set()
        self.workspaces.wake()

    async def _recalled(self, past: Past) -> bool:
        """Take up past use as it was kept; whether that could be read."""
        try:
            kept = await self.records.past_use()
        except Unavailable:
            return False
        if kept:
            past.restore(kept.at, kept.gpu_nanos)
        else:
            past.nothing_before()
        return True

    async def _recall(self, past: Past) -> None:
        """Until the database can be read nothing is written over what is kept there."""
        delay_s = FIRST_BACK_OFF_S
        while True:
            await asyncio.sleep(delay_s)
            if await self._recalled(past):
                return
            delay_s = min(MAX_BACK_OFF_S, delay_s * 2)

    def _keep_past(self, at: float, usage: Usage) -> None:
        self.records.add(PastUse(at, usage))

    def problems(self) -> list[str]:
        """What /readyz shows; empty = all is well."""
        recording = self.decision_log.problem if self.decision_log else None
        return [problem for problem in (self.loop.problem, self.records.problem, recording, self.workspaces.problem) if problem]

    # looking

    def visible_projects(self, caller: Caller) -> list[str]:
        caller.require_read()
        everything = caller.hosts_workspaces  # the spawner shows each person's projects on the workspace form
        return sorted(project.name for project in self.engine.snapshot().projects if everything or caller.is_member(project.name))

    def entry(self, caller: Caller, project: str, name: str) -> Entry:
        """Raises NotFound also for what the caller may not see."""
        caller.require_read()
        entry = self.find(project, name)
        if entry is None or not caller.may_see(entry.workload):
            raise no_such_workload(project, name)
        return entry

    def detail(self, caller: Caller, entry: Entry) -> models.WorkloadDetail:
        mine = caller.admin or caller.name == entry.workload.user or caller.hosts_workspaces
        return self.views.detail(entry, grant=caller.hosts_workspaces, secrets=mine)

    async def events(self, caller: Caller, project: str, name: str) -> models.EventList:
        entry = self.entry(caller, project, name)
        return models.EventList(items=[event_out(event) for event in await self.records.events(entry.workload.id)])

    def why(self, caller: Caller, project: str, name: str) -> models.Explanation:
        entry = self.entry(caller, project, name)
        with collector.paused():
            found = explanation_out(self._explainer.why(self.loop.snapshot(), self.loop.policy, self.clock(), entry.workload.id))
        return found.model_copy(update={"sentence": with_trouble(found.sentence, self.views.trouble(entry.workload.id))})

    async def what_if(self, caller: Caller, spec: models.WorkloadSpec) -> models.Explanation:
        user = await self._submissions.checked(caller, spec)
        name = spec.name or self._submissions.next_name(spec)
        workload = specs.workload_of(spec, workload_id="what-if", name=name, user=user, now=self.clock())
        with collector.paused():
            found = self._explainer.what_if(self.loop.snapshot(), self.loop.policy, self.clock(), workload, naming=self._named)
        return explanation_out(found)

    def _named(self, places: Sequence[Placement]) -> str:
        """Free places by the indexes of their GPUs, where the engine can tell: `GPU 3`, `0.5 of GPU 0`."""
        if len(places) != 1 or not places[0].gpu_millis:
            return explain.words(places)
        try:
            given = self.engine.would_give(places[0])
        except Conflict:
            return explain.words(places)
        which = f"GPU{'s' if len(given) > 1 else ''} {', '.join(str(device.index) for device in given)}"
        return which if places[0].whole else f"{format_gpus(places[0].shares[0].millis)} of {which}"

    # submitting

    async def submit(self, caller: Caller, spec: models.WorkloadSpec) -> Entry:
        user = await self._submissions.checked(caller, spec)
        if spec.kind == "workspace":
            workload, is_new = await self.workspaces.enter(user, spec, lambda: self._submissions.submit(spec, user))
            if not is_new:
                return self._entry_of(workload.id)
        else:
            workload = await self._submissions.submit(spec, user)
        asked = format_gpus(spec.gpu_millis) if not spec.gpu_memory_mib else f"{spec.gpu_memory_mib} MiB of a GPU"
        self.recorder.audit(
            caller, "submit", project=spec.project, subject=workload.name, message=f"{spec.kind}, GPU {asked}, image {spec.image}"
        )
        self.recorder.asked(workload, "Submitted", f"{user} submitted {workload.name}.", user=user)
        self.loop.wake()
        self._news.set()
        return self._entry_of(workload.id)

    def _entry_of(self, workload_id: str) -> Entry:
        entry = self._look(workload_id)
        if entry is None:
            raise Conflict("It was removed at the same moment.", field="name")
        return entry

    # changing

    async def delete(self, caller: Caller, project: str, name: str) -> None:
        entry = self.entry(caller, project, name)
        caller.require_change(entry.workload)
        reason = Reason(ReasonCode.OWNER_DELETED, f"{caller.name} deleted it.")
        await self.engine.set_phase(entry.workload.id, Phase.DELETING, reason, self.clock())
        self._changed(caller, "delete", entry.workload)

    async def suspend(self, caller: Caller, project: str, name: str) -> Entry:
        entry = self.entry(caller, project, name)
        caller.require_change(entry.workload)
        self._require_not_a_workspace(entry, "suspended")
        phase = entry.workload.phase
        if phase in FINAL or phase is Phase.DELETING:
            raise Conflict(f"{name} has ended ({entry.view.status}), so it cannot be suspended.", field="workload", value=name)
        if phase is not Phase.SUSPENDED:
            reason = Reason(ReasonCode.SUSPENDED, f"{caller.name} suspended it; `runai resume {name} -p {project}` lets it go on.")
            await self.engine.set_phase(entry.workload.id, Phase.SUSPENDED, reason, self.clock())
            self._changed(caller, "suspend", entry.workload)
        return self._entry_of(entry.workload.id)

    async def resume(self, caller: Caller, project: str, name: str) -> Entry:
        entry = self.entry(caller, project, name)
        caller.require_change(entry.workload)
        self._require_not_a_workspace(entry, "resumed")
        if entry.workload.phase not in RESUMABLE:
            raise Conflict(
                f"{name} is {entry.view.status}; only what is suspended or stopped can be resumed.",
                field="workload",
                value=name,
                next_step="Submit it again.",
            )
        if entry.workload.phase is not Phase.ACTIVE:
            await self.engine.set_phase(entry.workload.id, Phase.ACTIVE, None, self.clock())
            self._changed(caller, "resume", entry.workload)
        return self._entry_of(entry.workload.id)

    def _require_not_a_workspace(self, entry: Entry, what: str) -> None:
        if entry.workload.kind == "workspace":
            raise Conflict(
                f"{entry.view.name} is a workspace, which cannot be {what} from here.",
                field="workload",
                value=entry.view.name,
                next_step="Stop and start it on the hub's page.",
            )

    async def report_pod(self, caller: Caller, project: str, name: str, report: models.PodReport) -> Entry:
        caller.require_host()
        entry = self.entry(caller, project, name)
        if entry.workload.kind != "workspace":
            raise Refused(f"{name} is no workspace; its process is the scheduler's own.", field="workload", value=name)
        await self.workspaces.report(entry.workload, PodState(report.state), report.exit_code)
        self.loop.wake()
        return self._entry_of(entry.workload.id)

    def _changed(self, caller: Caller, action: str, workload: Workload) -> None:
        self.recorder.audit(caller, action, project=workload.project, subject=workload.name)
        past = {"delete": "deleted", "suspend": "suspended", "resume": "resumed"}[action]
        self.recorder.asked(workload, past.capitalize(), f"{caller.name} {past} {workload.name}.", user=caller.name)
        self.loop.wake()
        self._news.set()
        self.workspaces.wake()

    # progress

    def pod_environment(self, workload: Workload) -> Mapping[str, str]:
        """What the service adds to each pod: where it answers, and a token that is good for the workload's progress only."""
        if not self.api_url:
            return {}
        return {"HOTDESK_API_URL": self.api_url, "HOTDESK_REPORT_TOKEN": self.report_token(workload.id)}

    def report_token(self, workload_id: str) -> str:
        return "report-" + hmac.new(self._report_key, workload_id.encode(), hashlib.sha256).hexdigest()

    def is_report_token(self, project: str, name: str, token: str) -> bool:
        found = self.find(project, name)
        return found is not None and hmac.compare_digest(token.encode(), self.report_token(found.workload.id).encode())

    def report_progress(self, caller: Caller | None, project: str, name: str, progress: models.Progress) -> None:
        """By the job itself (caller None: its token was checked) or by somebody who may go inside it. What is not set stays."""
        entry = self.find(project, name) if caller is None else self.entry(caller, project, name)
        if entry is None:
            raise no_such_workload(project, name)
        if caller is not None:
            caller.require_inside(entry.workload)
        if entry.workload.phase is Phase.ACTIVE and any(pod.state in HOLDING for pod in entry.workload.pods):
            before = self._progress.get(entry.workload.id, models.Progress())
            self._progress[entry.workload.id] = before.model_copy(update=progress.model_dump(exclude_unset=True))
            self._news.set()


def displaced_out(one: Displaced) -> models.Displaced:
    return models.Displaced(name=one.name, project=one.project, reason=reason_of(one.reason))


def explanation_out(found: explain.Explanation) -> models.Explanation:
    return models.Explanation(
        sentence=found.sentence,
        starts_now=found.starts_now,
        node=found.node,
        gpus=found.gpus,
        reason=reason_out(found.reason),
        queue_position=found.queue_position,
        quota_millis=found.quota_millis,
        fair_share_millis=found.fair_share_millis,
        used_millis=found.used_millis,
        asked_millis=found.asked_millis,
        would_stop=[displaced_out(one) for one in found.would_stop],
        would_move=[displaced_out(one) for one in found.would_move],
        what_would_help=found.what_would_help,
        left_s=found.left_s,
        queue_length=found.queue_length,
        held_by=dict(found.held_by),
        stopped=reason_out(found.stopped),
    )
