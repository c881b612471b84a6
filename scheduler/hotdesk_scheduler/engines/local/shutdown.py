"""`make down` when no scheduler runs (any more): end every pod of a state directory, with its grace, and write down that it ended."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from hotdesk_api.errors import Unavailable

from hotdesk_scheduler.core.model import HOLDING, Kind, PodState, Workload
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines.local.devices import NoDevices
from hotdesk_scheduler.engines.local.engine import LocalConfig, LocalEngine

STOPPED = Reason(ReasonCode.OWNER_STOPPED, "Hotdesk was shut down; this starts again with it.")
STOPPED_WORKSPACE = Reason(ReasonCode.OWNER_STOPPED, "Hotdesk was shut down; start the workspace again from the hub.")


def stop_everything(state_dir: Path, *, grace_s: float = 10.0) -> int:
    """How many pods were stopped. `Conflict` if a scheduler (that is no orphan) still works there; 0 if there never was one."""
    if not (state_dir / "scheduler" / "state.db").exists():
        return 0
    return asyncio.run(_stop(LocalEngine(LocalConfig(state_dir), backend=NoDevices(), starts=False), grace_s))


async def _stop(engine: LocalEngine, grace_s: float) -> int:
    await engine.open()
    try:
        listener = engine.changes()
        pods = _holding(engine)
        for workload, index in pods:
            hosted = workload.kind is Kind.WORKSPACE
            await engine.stop_pod(workload.id, index, STOPPED_WORKSPACE if hosted else STOPPED, grace_s, time.time())
            if hosted:  # the hub that ran it is down: its process is gone
                await engine.report_pod(workload.id, index, PodState.STOPPED, time.time())
        try:
            async with asyncio.timeout(grace_s + 30):
                while _holding(engine):
                    await anext(listener)
        except TimeoutError:
            left = ", ".join(f"{one.project}/{one.name}" for one, _ in _holding(engine))
            raise Unavailable(f"Not everything could be stopped within {grace_s + 30:.0f} s: {left}.", next_step="Try again.") from None
        return len(pods)
    finally:
        await engine.close()


def _holding(engine: LocalEngine) -> list[tuple[Workload, int]]:
    return [(one, pod.index) for one in engine.snapshot().workloads for pod in one.pods if pod.state in HOLDING]
