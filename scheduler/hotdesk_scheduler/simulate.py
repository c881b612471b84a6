"""`hotdesk-scheduler simulate FILE…`: scenario files on the fake engine and a virtual clock.

One line a scenario (`ok NAME` / `FAIL NAME: …`) and a closing count; `--json` the final states, `--trace` every decision with its
reason, `--time` how long `decide()` took. The format is `hotdesk-scenario/1`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotdesk_scheduler import collector, fill, trace
from hotdesk_scheduler.core import invariants, lifecycle
from hotdesk_scheduler.core.decide import decide
from hotdesk_scheduler.core.memory import Memory
from hotdesk_scheduler.core.model import Phase, PodState, Policy
from hotdesk_scheduler.core.plan import Decision, Finish, Hold, LifecycleDecision, Move, Nominate, Plan, Remove, Requeue, Start, Stop
from hotdesk_scheduler.core.reasons import Reason, ReasonCode
from hotdesk_scheduler.engines.fake import FakeEngine
from hotdesk_scheduler.expectations import Json, Matcher, reason_out
from hotdesk_scheduler.scenarios import EPOCH, World, read_policy, reading

MOST_CYCLES = 60
CYCLE_S = 1.0


@dataclass(slots=True)
class Outcome:
    """What came of one scenario; `decisions` in the order taken."""

    name: str
    failures: list[str] = field(default_factory=list)
    cycles: int = 0
    decisions: list[Json] = field(default_factory=list)
    decide_ms: list[float] = field(default_factory=list)
    pods: Json = field(default_factory=dict)
    workloads: Json = field(default_factory=dict)
    projects: Json = field(default_factory=dict)


class Run:
    """One scenario being played: the engine, the clock, and what was decided so far."""

    def __init__(self, scenario: Json, *, keep_decisions: bool = True) -> None:
        self.scenario = scenario
        with reading(scenario, ""):
            self.policy: Policy = read_policy(scenario.get("policy") or {})
        self.now = EPOCH
        self.world = World(scenario)
        self.engine: FakeEngine = self.world.engine
        self.outcome = Outcome(str(scenario.get("name", "unnamed")))
        self.memory = Memory()
        self.holds: dict[str, Reason] = {}
        self.fair: dict[str, int] = {}
        self.keep_decisions = keep_decisions
        self.stopped: set[str] = set()

    # --- cycles ------------------------------------------------------------------------------------------------------------------

    async def cycle(self) -> bool:
        """What was stopping is gone, what was starting runs; then review, decide, verify, apply. Whether anything moved."""
        self.outcome.cycles += 1
        self.engine.now = self.now
        moved = self.engine.settle()
        moved |= await self._review()
        moved |= await self._apply(self._decide())
        self.now += CYCLE_S
        return moved

    def _decide(self) -> Plan:
        snapshot = self.engine.snapshot()
        began = time.perf_counter()
        with collector.paused():
            plan = decide(snapshot, self.policy, self.now, self.memory)
        self.outcome.decide_ms.append(round((time.perf_counter() - began) * 1000, 3))
        self.outcome.failures.extend(f"cycle {self.outcome.cycles}: {broken}" for broken in invariants.check(snapshot, plan))
        self.holds = {hold.workload_id: hold.reason for hold in plan.holds}
        self.fair = dict(plan.fair_shares)
        return plan

    async def _review(self) -> bool:
        moved = False
        for _ in range(MOST_CYCLES):
            due = lifecycle.review(self.engine.snapshot(), self.policy, self.now)
            if not due:
                break
            moved = True
            for decision in due:
                await self._apply_lifecycle(decision)
        return moved

    async def _apply_lifecycle(self, decision: LifecycleDecision) -> None:
        self._note(decision)
        match decision:
            case Requeue():
                await self.engine.requeue_pod(decision.workload_id, decision.index)
            case Finish():
                await self.engine.set_phase(decision.workload_id, Phase(decision.phase), decision.reason, self.now)
            case Remove():
                await self.engine.forget(decision.workload_id)
            case Stop():
                await self._stop(decision)

    async def _apply(self, plan: Plan) -> bool:
        moved = False
        for decision in plan.decisions:
            self._note(decision)
            moved |= not isinstance(decision, Hold)
            match decision:
                case Start():
                    await self.engine.start_pod(decision.workload_id, decision.index, decision.placement, self.now)
                case Stop():
                    await self._stop(decision)
                case Move():
                    await self.engine.nominate(decision.workload_id, decision.index, decision.placement)
                    await self.engine.stop_pod(decision.workload_id, decision.index, decision.reason, decision.grace_s, self.now)
                case Nominate():
                    await self.engine.nominate(decision.workload_id, decision.index, decision.placement)
        return moved

    async def _stop(self, stop: Stop) -> None:
        workload = self.world.workload(stop.workload_id)
        if workload.phase is Phase.ACTIVE:
            self.stopped.add(workload.name)
        await self.engine.stop_pod(stop.workload_id, stop.index, stop.reason, stop.grace_s, self.now)

    def _note(self, decision: Decision | LifecycleDecision) -> None:
        if self.keep_decisions:
            self.outcome.decisions.append(trace.described(self.outcome.cycles, decision, self.world.workload))

    # --- playing -----------------------------------------------------------------------------------------------------------------

    async def play(self, cycles: int | None) -> Outcome:
        """Steps, each settled; or a number of cycles, matched, and matched again after each of the stable ones."""
        if "steps" in self.scenario:
            await self.settle()
            for step in self.scenario["steps"]:
                await self._step(step)
        else:
            await self._cycles(cycles if cycles is not None else int(self.scenario.get("cycles", 2)))
        self._finish()
        return self.outcome

    async def _cycles(self, cycles: int) -> None:
        expect = self.scenario.get("expect") or {}
        for _ in range(cycles):
            await self.cycle()
        self._match(expect)
        for _ in range(int(self.scenario.get("stable_cycles", 0))):
            await self.cycle()
            self._match(expect)

    async def settle(self) -> None:
        for _ in range(MOST_CYCLES):
            if not await self.cycle():
                return
        self.outcome.failures.append(f"does not come to rest within {MOST_CYCLES} cycles")

    async def _step(self, step: Json) -> None:
        for verb, value in step.items():
            if verb == "expect":
                self._match(value)
                continue
            await self._do(verb, value)
            await self.settle()

    async def _do(self, verb: str, value: Any) -> None:
        self.engine.now = self.now
        if verb == "submit":
            await self.engine.submit(self.world.read(value, now=self.now, age_s=0.0), self.world.spec)
        elif verb == "delete":
            for name in value:
                await self._delete(name)
        elif verb == "complete":
            for name in value:
                workload = self.world.named(name)
                for pod in workload.pods:
                    if pod.state is PodState.RUNNING:
                        self.engine.exit_pod(workload.id, pod.index)
        elif verb == "delete_one_running":
            running = [w for w in self.engine.snapshot().workloads if w.project == value and lifecycle.status(w) == "Running"]
            if running:
                await self._delete(max(running, key=lambda w: (w.created_at, w.name)).name)
        elif verb == "node_lost":
            self.engine.lose_node(value)
        elif verb == "advance_s":
            self.now += value
        else:
            raise SystemExit(f"Scenario {self.outcome.name}: there is no step {verb!r}.")

    async def _delete(self, name: str) -> None:
        reason = Reason(ReasonCode.OWNER_DELETED, "It was deleted by its owner.")
        await self.engine.set_phase(self.world.named(name).id, Phase.DELETING, reason, self.now)

    # --- matching ----------------------------------------------------------------------------------------------------------------

    def _match(self, expect: Json) -> None:
        for failure in Matcher(self.world, self.stopped).failures(expect):
            if failure not in self.outcome.failures:
                self.outcome.failures.append(failure)

    def _finish(self) -> None:
        """Final states, for `--json`."""
        quotas = {p.name: p.gpu.quota for p in self.engine.snapshot().projects}
        matcher = Matcher(self.world, self.stopped)
        self.outcome.pods = matcher.pods
        for workload in self.world.all():
            reason = self.holds.get(workload.id) or workload.phase_reason
            self.outcome.workloads[workload.name] = {
                "state": matcher.state(workload.name),
                "project": workload.project,
                "reason": reason_out(reason),
            }
        for name, quota in quotas.items():
            self.outcome.projects[name] = {
                "gpu_millis": matcher.gpu_millis(name),
                "quota_millis": quota,
                "fair_share_millis": self.fair.get(name),
            }


def play(scenario: Json, *, cycles: int | None = None) -> Outcome:
    """Play one scenario to its end."""
    return asyncio.run(Run(scenario).play(cycles))


def _cycles(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a number of cycles")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hotdesk-scheduler simulate",
        description="Play scenario files on a virtual cluster.",
        epilog="simulate --jobs JOBS.csv plays a trace of jobs instead, as it is and as it would be; simulate --jobs --help says more.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="hotdesk-scenario/1, one JSON object a line; - reads standard input")
    parser.add_argument(
        "--fill", action="store_true", help="the files are NODES.csv ARRIVALS.csv: fill a cluster, say what stays unallocated"
    )
    parser.add_argument(
        "--policy", choices=fill.POLICIES, default=fill.POLICIES[0], help="with --fill: how to place (default: as the service)"
    )
    parser.add_argument("--json", action="store_true", help="print the final states, one object a scenario")
    parser.add_argument("--trace", action="store_true", help="print every decision with its reason")
    parser.add_argument("--cycles", type=_cycles, metavar="N", help="number of cycles, instead of the scenario's")
    parser.add_argument("--time", action="store_true", help="time decide() alone, one figure a cycle")
    parser.add_argument("--only", metavar="NAME", help="play only the scenario of this name")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The `simulate` subcommand; 0 if every scenario came out as expected, else 1."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if any(word == "--jobs" or word.startswith("--jobs=") for word in arguments):
        from hotdesk_scheduler.whatif import command  # reads nodes, which scenarios do not need

        return command.main(arguments)
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.fill:
        if len(options.files) != 2:
            parser.error("--fill takes two files: NODES.csv ARRIVALS.csv")
        return fill.run(*map(Path, options.files), policy=options.policy, as_json=options.json)
    passed = failed = 0
    for name in options.files:
        for scenario in _read(name):
            if options.only and scenario.get("name") != options.only:
                continue
            outcome = play(scenario, cycles=options.cycles)
            passed += not outcome.failures
            failed += bool(outcome.failures)
            _print(outcome, options)
    if not options.json:
        print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _read(name: str) -> Iterator[Json]:
    try:
        text = sys.stdin.read() if name == "-" else open(name, encoding="utf-8").read()  # noqa: SIM115  # read at once
    except OSError as error:
        raise SystemExit(f"{name} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SystemExit(f"{name} cannot be read: it is not UTF-8.") from error
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                scenario = json.loads(line)
            except ValueError as error:
                raise SystemExit(f"{name}, line {number}, is not JSON: {error}.") from error
            if not isinstance(scenario, dict):
                raise SystemExit(f"{name}, line {number}, is not a scenario: an object is needed.")
            yield scenario


def _print(outcome: Outcome, options: argparse.Namespace) -> None:
    if options.json:
        body = {
            "name": outcome.name,
            "ok": not outcome.failures,
            "failures": outcome.failures,
            "cycles": outcome.cycles,
            "pods": outcome.pods,
            "workloads": outcome.workloads,
            "projects": outcome.projects,
            "decisions": [decision for decision in outcome.decisions if decision["kind"] not in trace.QUIET],
        }
        print(json.dumps({**body, "decide_ms": outcome.decide_ms} if options.time else body))
        return
    if options.trace:
        for decision in outcome.decisions:
            print(trace.line(decision))
    print(f"FAIL {outcome.name}: {'; '.join(outcome.failures)}" if outcome.failures else f"ok {outcome.name}")
    if options.time:
        print(f"   decide_ms {' '.join(f'{ms:.1f}' for ms in outcome.decide_ms)}")
