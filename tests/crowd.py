"""A service of which very many workloads wait, and what a burst of submissions costs there: for a test and for `make bench`."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

import desks
from hotdesk_api import calls
from hotdesk_scheduler.decisionlog.writer import DecisionLog
from hotdesk_scheduler.engines.fake import FakeEngine
from hotdesk_scheduler.service.specs import workload_of


@dataclass
class Burst:
    """In CPU seconds of this process, service and client together, so that it does not matter what else the machine does.

    `answers`: from each submission to its answer. `passes`: of the loop meanwhile.
    """

    answers: list[float] = field(default_factory=list)
    passes: int = 0

    @property
    def p99(self) -> float:
        return sorted(self.answers)[len(self.answers) * 99 // 100 - 1]


def engine(queued: int) -> FakeEngine:
    """16 GPUs, and so many one-GPU jobs of two projects: `id-0`, `id-1` …"""
    found = desks.fake_engine()
    for number in range(queued):
        spec = desks.spec(f"old-{number}", project=("team-a", "team-b")[number % 2])
        found.put_workload(workload_of(spec, workload_id=f"id-{number}", name=f"old-{number}", user="alice", now=1000.0 + number), spec)
    return found


async def burst(folder: Path, *, queued: int, submits: int, at_once: int) -> Burst:
    """So many submissions over REST, `at_once` in the air, at a service in which so many wait and whose decisions go on record."""
    found, record = Burst(), DecisionLog(folder / "decisions", most_bytes=1 << 30, most_age_s=3600.0)
    async with desks.running(folder, engine=engine(queued), decision_log=record) as service:
        await desks.until(lambda: len(service.desk.loop.told) == queued - 16)
        client, turns = service.client(), asyncio.Semaphore(at_once)
        await client.call(calls.whoami())  # connected, and all of it imported
        await desks.until(
            lambda: (record.folder / "000001.jsonl").exists() and (record.folder / "000001.jsonl").stat().st_size > 100 * queued
        )
        before = service.desk.loop.passes

        async def submit(number: int) -> None:
            async with turns:
                began = time.process_time()
                await client.call(calls.submit(desks.spec(f"new-{number}")))
                found.answers.append(time.process_time() - began)

        await asyncio.gather(*(submit(number) for number in range(submits)))
        found.passes = service.desk.loop.passes - before
        await desks.until(lambda: len(service.desk.loop.told) == queued - 16 + submits)
    return found
