"""A workspace's place in the scheduler's queue: enter it (or find it again), wait for the grant, tell what became of it, leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from hotdesk_api import calls
from hotdesk_api.client import AsyncClient
from hotdesk_api.errors import Conflict, HotdeskError, NotFound, Refused, Unavailable
from hotdesk_api.models import FINAL_STATUSES, Grant, PodReport, WorkloadDetail, WorkloadOut, WorkloadSpec

FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 2.0
ENTER_PATIENCE_S = 60.0  # a scheduler that restarts is back well within this
CLEAR_PATIENCE_S = 20.0
_WISH = ("gpu_millis", "gpu_memory_mib", "cpu_millis", "memory_mib", "preemptible", "owner", "server_name")
_ON_A_CLUSTER = ("image", "node_type", "node_pools", "tolerations", "node_terms", "volume_claims")
Ending = Literal["stopped", "failed", "succeeded"]


class Retry:
    """Growing pauses until patience ends; patience None never ends."""

    def __init__(self, patience_s: float | None = None) -> None:
        self._pause_s = FIRST_RETRY_S
        self._deadline = None if patience_s is None else asyncio.get_running_loop().time() + patience_s

    @property
    def spent(self) -> bool:
        return self._deadline is not None and asyncio.get_running_loop().time() >= self._deadline

    async def pause(self) -> None:
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_RETRY_S)


def _same_wish(found: WorkloadDetail, spec: WorkloadSpec) -> bool:
    return all(getattr(found.spec, name) == getattr(spec, name) for name in (*_WISH, *_ON_A_CLUSTER))


def _can_be_taken_up(found: WorkloadDetail) -> bool:
    """It waits, or is granted and nobody has started it: a hub that died left it."""
    return found.status == "Pending" or (found.grant is not None and found.status == "ContainerCreating")


class Place:
    """`project` and `name` say which workload it is, `id` which of those that had the name.

    `running`: its process was reported as started.
    """

    def __init__(self, client: AsyncClient, *, project: str, name: str, running: bool = False) -> None:
        self._client = client
        self.project = project
        self.name = name
        self.id: str | None = None
        self.running = running
        self.held = running  # there is, or may be, something to give back

    async def enter(self, spec: WorkloadSpec, out_of_touch: Callable[[str], None]) -> WorkloadDetail:
        """Submit, or take up again what waits already under this name with the same wish. Raises HotdeskError when refused."""
        self.held = True  # also if we are cancelled before the answer comes
        try:
            entered = await self._enter(spec, out_of_touch)
        except HotdeskError:
            self.held = False  # refused: what has this name is not ours to end
            raise
        self.id = entered.id
        return entered

    async def _enter(self, spec: WorkloadSpec, out_of_touch: Callable[[str], None]) -> WorkloadDetail:
        retry = Retry(ENTER_PATIENCE_S)
        while True:
            try:
                entered = await self._client.call(calls.submit(spec))
                self.project, self.name = entered.project, entered.name
                return entered
            except Conflict as conflict:
                found = await self._taken_up(spec)
                if found:
                    return found
                if retry.spent:
                    raise conflict
            except Unavailable as error:
                if retry.spent:
                    raise
                out_of_touch(error.sentence)
            await retry.pause()

    async def _taken_up(self, spec: WorkloadSpec) -> WorkloadDetail | None:
        """What holds the name if it can be ours; otherwise it is cleared away (the hub knows that it does not run)."""
        try:
            found = await self._client.call(calls.workload(self.project, self.name))
        except NotFound:
            return None
        if found.spec.owner != spec.owner or (found.spec.server_name or "") != (spec.server_name or ""):
            raise Refused(
                f"The name {self.name} is taken in {self.project} by another workload of {found.user}.",
                field="name",
                value=self.name,
                next_step=f"Delete it (`runai delete {self.name} -p {self.project}`), or open the workspace under another server name.",
            )
        if _same_wish(found, spec) and _can_be_taken_up(found):
            return found
        if found.status not in FINAL_STATUSES and found.status != "Pending":
            await self._report("stopped", None)
        await self._delete()
        return None

    async def grant(self, entered: WorkloadDetail, *, tell: Callable[[WorkloadOut], None], out_of_touch: Callable[[str], None]) -> Grant:
        """Wait, as long as it takes, telling every change. Raises Refused if the scheduler ends it instead."""
        retry = Retry()
        if entered.grant:
            return entered.grant
        if entered.reason or entered.queue_position:
            tell(entered)
        while True:
            try:
                async for event in self._client.events(project=self.project, workload=self.name):
                    retry = Retry()
                    if event.kind == "removed" and event.name in (None, self.name):
                        raise self._ended(None)
                    if event.kind == "workload" and event.workload and event.workload.name == self.name:
                        found = await self._granted(event.workload, tell)
                        if found:
                            return found
            except NotFound as error:
                raise self._ended(None) from error
            except Unavailable as error:
                out_of_touch(error.sentence)
            await retry.pause()

    async def _granted(self, workload: WorkloadOut, tell: Callable[[WorkloadOut], None]) -> Grant | None:
        if workload.status in FINAL_STATUSES or workload.status == "Deleting":
            raise self._ended(workload)
        if workload.status in {"Pending", "Suspended"}:
            tell(workload)
            return None
        return (await self._client.call(calls.workload(self.project, self.name))).grant

    def _ended(self, workload: WorkloadOut | None) -> Refused:
        why = workload.reason.sentence if workload and workload.reason else "It was deleted from the queue."
        return Refused(
            f"The workspace was not started. {why}", field="workspace", value=self.name, next_step="Open it again when you like."
        )

    async def started(self) -> None:
        """Tell that the grant was taken up, however long the scheduler is away. Raises HotdeskError if the grant is gone."""
        retry = Retry()
        while True:
            try:
                await self._report("running", None)
            except Unavailable:
                await retry.pause()
            else:
                self.running = True
                return

    async def leave(self, ending: Ending, exit_code: int | None) -> str | None:
        """Give the share back. Answers why the scheduler had it stopped, None if it had not. Raises Unavailable when out of touch."""
        why = None
        if not self.held:
            return None
        try:
            if self.id or self.running:
                found = await self._client.call(calls.workload(self.project, self.name))
                if self.id not in (None, found.id):
                    return None  # it was opened again meanwhile
                if self.running:  # why, is asked before the end is told: then it only waits, or is gone
                    why = found.reason.sentence if found.reason and found.reason.code in STOPPED_BY_THE_SCHEDULER else None
                    await self._report(ending, exit_code)
            if ending != "failed":
                await self._delete()  # a crash stays in the list until it is opened again, so that `describe` can tell
        except (NotFound, Conflict):
            pass  # the scheduler has noticed by itself
        return why

    async def _report(self, state: Literal["running", "stopped", "failed", "succeeded"], exit_code: int | None) -> WorkloadDetail:
        return await self._client.call(calls.report_pod(self.project, self.name, PodReport(state=state, exit_code=exit_code)))

    async def _delete(self) -> None:
        try:
            await self._client.call(calls.delete(self.project, self.name))
        except NotFound:
            pass  # gone, which is what was asked


STOPPED_BY_THE_SCHEDULER = frozenset({"reclaimed", "preempted", "moved", "time_limit", "idle_limit", "node_lost", "owner_deleted"})
