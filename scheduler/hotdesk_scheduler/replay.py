"""`hotdesk-scheduler replay [STATE_DIR | LOG …]`: asks the core again what a service asked it, and compares the answers byte for byte.

With `--quota` and the like it asks something else instead and shows what would have been decided otherwise, cycle by cycle: each cycle
starts from what really was, so this tells what a change decides at once, not where it leads.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from hotdesk_api import units
from hotdesk_api.errors import Invalid, NotFound
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from hotdesk_scheduler import collector, settings, trace
from hotdesk_scheduler.core import explain, lifecycle
from hotdesk_scheduler.core.decide import decide
from hotdesk_scheduler.core.memory import Memory
from hotdesk_scheduler.core.model import Snapshot
from hotdesk_scheduler.core.plan import Hold
from hotdesk_scheduler.decisionlog import reader
from hotdesk_scheduler.decisionlog.cycles import DECIDE, FACTS, TOLD, Answer, decision_from, failure, plain
from hotdesk_scheduler.decisionlog.reader import Note, Recorded
from hotdesk_scheduler.expectations import Json

MOST_SHOWN = 3
"""So many differing cycles are shown, and of each so many lines; the rest is counted."""
MOST_LINES = 12


@dataclass(slots=True)
class Outcome:
    """What came of a replay so far."""

    cycles: int = 0
    skipped: int = 0
    different: list[int] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    explained: bool = False
    """Whether the workload to explain is on record in one of the cycles."""


def answer(recorded: Recorded, memory: Memory | None = None) -> Answer:
    """What the core says today to what it was asked then; with a memory of the cycle before, as the service asks."""
    try:
        with collector.paused():
            if recorded.step == DECIDE:
                return plain(decide(recorded.snapshot, recorded.policy, recorded.now, memory))
            return plain(tuple(lifecycle.review(recorded.snapshot, recorded.policy, recorded.now)))
    except Exception as error:  # a crash is an answer too: it is on record as one
        return plain(failure(error))


def with_quotas(snapshot: Snapshot, quotas: Sequence[tuple[str, int | None]]) -> Snapshot:
    """The same cluster with other GPU quotas (thousandths, None = unlimited). Raises NotFound for a project that is not there."""
    known = {project.name: project for project in snapshot.projects}
    for name, quota in quotas:
        if name not in known:
            raise NotFound(f"There is no project {name} in this cycle; there are {', '.join(sorted(known)) or 'none'}.", field="quota")
        known[name] = replace(known[name], gpu=replace(known[name].gpu, quota=quota))
    return replace(snapshot, projects=tuple(known.values()))


def described(recorded: Recorded, given: Answer) -> list[Json]:
    """An answer as `simulate --json` says it; the queue's holds with their place."""
    workloads = {workload.id: workload for workload in recorded.snapshot.workloads}
    found = [trace.described(recorded.number, decision_from(body), workloads.get) for body in given.decisions]
    for position, (workload_id, body) in enumerate(given.holds.items(), 1):
        told = TOLD.validate_python(body)
        hold = Hold(workload_id, told.reason, position, told.helps)
        found.append({**trace.described(recorded.number, hold, workloads.get), "position": position})
    return found


def lines(recorded: Recorded, given: Answer) -> list[str]:
    """The same for people."""
    if given.error:
        return [f"  cycle {recorded.number} failed: {given.error}"]
    return [trace.line(entry) for entry in described(recorded, given)]


def differences(recorded: Recorded, now: Answer) -> Iterator[tuple[str, str]]:
    """(on record, now) for every line that differs: decisions in the order taken, holds by workload, facts by project."""
    pairs = [*_decisions(recorded, now), *_holds(recorded, now), *_facts(recorded.answer, now)]
    if recorded.answer.error or now.error:
        sides = [f"failed: {given.error}" if given.error else "a plan was made" for given in (recorded.answer, now)]
        pairs = [(sides[0], sides[1])]
    yield from ((then or "nothing", here or "nothing") for then, here in pairs if then != here)


def _decisions(recorded: Recorded, now: Answer) -> Iterator[tuple[str, str]]:
    then_left = {_text(body): body for body in recorded.answer.decisions}
    here_left = {_text(body): body for body in now.decisions}
    if list(then_left) != list(here_left) and then_left.keys() == here_left.keys():
        yield "the same decisions in this order", "the same decisions in another order"
    then = {_what(body): body for text, body in then_left.items() if text not in here_left}
    here = {_what(body): body for text, body in here_left.items() if text not in then_left}
    for what in dict.fromkeys([*then, *here]):
        yield tuple(_line(recorded, side[what]) if what in side else "" for side in (then, here))  # type: ignore[misc]  # two of them


def _holds(recorded: Recorded, now: Answer) -> Iterator[tuple[str, str]]:
    workloads = {workload.id: workload for workload in recorded.snapshot.workloads}
    places = [{workload_id: place for place, workload_id in enumerate(given.holds, 1)} for given in (recorded.answer, now)]
    for workload_id in dict.fromkeys([*places[0], *places[1]]):
        is_moved = recorded.answer.in_order and places[0].get(workload_id) != places[1].get(workload_id)
        if recorded.answer.holds.get(workload_id) == now.holds.get(workload_id) and not is_moved:
            continue
        sides = []
        for given, place in zip((recorded.answer, now), places, strict=True):
            if workload_id not in place:
                sides.append("")
                continue
            reason = given.holds[workload_id]["reason"]
            numbers = json.dumps(reason.get("numbers", []))
            name = workloads[workload_id].name if workload_id in workloads else workload_id
            at = f" at place {place[workload_id]}" if recorded.answer.in_order else ""
            sides.append(f"hold {name}{at}: {reason['code']}: {reason['sentence']} {numbers}")
        if sides[0] == sides[1]:
            sides = [f"{side} {json.dumps(given.holds[workload_id])}" for side, given in zip(sides, (recorded.answer, now), strict=True)]
        yield sides[0], sides[1]


def _facts(then: Answer, now: Answer) -> Iterator[tuple[str, str]]:
    for name, word in FACTS.items():
        before, after = then.facts.get(name, {}), now.facts.get(name, {})
        for project in sorted(before.keys() | after.keys()):
            yield (
                f"{word} of {project}: {before[project]}" if project in before else "",
                f"{word} of {project}: {after[project]}" if project in after else "",
            )


def _what(body: Json) -> tuple[object, ...]:
    return body.get("workload_id"), body.get("index")


def _text(body: Json) -> str:
    return json.dumps(body, sort_keys=True)


def _line(recorded: Recorded, body: Json) -> str:
    """A decision in words, and its whole value where words leave something out."""
    workloads = {workload.id: workload for workload in recorded.snapshot.workloads}
    try:
        said = trace.line(trace.described(recorded.number, decision_from(body), workloads.get))
    except ValueError:
        return _text(body)  # tampered with: shown as it is
    words = said.strip().removeprefix(f"cycle {recorded.number} ")
    rest = {name: value for name, value in body.items() if name in ("grace_s", "not_before", "reason", "placement")}
    return f"{words} {_text(rest)}" if rest else words


def when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")


class Replay:
    """One run over the record: which cycles, what is shown of them, and what came out."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.outcome = Outcome()
        self.is_what_if = bool(options.quota)
        self.memory = None if options.cold else Memory()

    def _wanted(self, recorded: Recorded) -> bool:
        wish = self.options
        if wish.cycle is not None and recorded.number != wish.cycle:
            return False
        return (wish.since is None or recorded.now >= wish.since) and (wish.until is None or recorded.now <= wish.until)

    def take(self, item: Recorded | Note) -> None:
        if isinstance(item, Note):
            self.outcome.notes.append(item)
        elif self._wanted(item):
            self._ask(item)

    def _ask(self, recorded: Recorded) -> None:
        self.outcome.cycles += 1
        self.outcome.skipped += recorded.skipped
        asked = replace(recorded, snapshot=with_quotas(recorded.snapshot, self.options.quota)) if self.is_what_if else recorded
        now = answer(asked, self.memory)
        is_same = now.text(in_order=recorded.answer.in_order) == recorded.answer.text()
        if not is_same:
            self.outcome.different.append(recorded.number)
        if self.options.json:
            found = {"cycle": recorded.number, "at": recorded.now, "step": recorded.step, "same": is_same}
            told = {"error": now.error} if now.error else {"decisions": described(asked, now)}
            print(json.dumps({**found, **told, **({"broken": recorded.broken} if recorded.broken else {})}))
            return
        if self.options.trace and not recorded.again:
            for line in lines(asked, now):
                print(line)
            if recorded.broken:
                print(f"  cycle {recorded.number} was not applied: {recorded.broken}")
        if self.options.explain:
            self._explain(asked)
        if not is_same and len(self.outcome.different) <= MOST_SHOWN:
            self._show(recorded, now)

    def _show(self, recorded: Recorded, now: Answer) -> None:
        found = list(differences(recorded, now))
        print(f"cycle {recorded.number}, {when(recorded.now)}:")
        for then, here in found[:MOST_LINES]:
            print(f"  on record: {then}\n  {'then' if self.is_what_if else 'now':>9}: {here}")
        if len(found) > MOST_LINES:
            print(f"  and {len(found) - MOST_LINES} more")

    def _explain(self, recorded: Recorded) -> None:
        """Why it waited at that time, with what would have helped."""
        project, _, name = self.options.explain.rpartition("/")
        for workload in recorded.snapshot.workloads:
            if workload.name != name or project not in ("", workload.project):
                continue
            self.outcome.explained = True
            if recorded.step == DECIDE:
                found = explain.explain(recorded.snapshot, recorded.policy, recorded.now, workload.id)
                place = f" It is number {found.queue_position} of {found.queue_length}." if found.queue_position else ""
                print(f"  cycle {recorded.number} {workload.project}/{workload.name}: {found.sentence}{place}")

    def summary(self) -> str:
        seen, different = self.outcome.cycles, len(self.outcome.different)
        cycles = f"{seen} cycle{'' if seen == 1 else 's'}"
        if not seen:
            return "No cycle is on record there."
        if not different:
            return f"{cycles}, all the same"
        return f"{cycles}, {different} {'decided otherwise' if self.is_what_if else 'different'}"

    @property
    def knows_nobody(self) -> bool:
        """Whether it was asked to explain a workload that is not on record."""
        return bool(self.options.explain) and not self.outcome.explained

    @property
    def exit_code(self) -> int:
        """0: all the same (or a what-if was answered). 1: something differs, or a part of it is damaged, or whom to explain is unknown."""
        is_bad = self.outcome.different and not self.is_what_if
        return 1 if is_bad or self.knows_nobody or not self.outcome.cycles or any(note.damaged for note in self.outcome.notes) else 0


def _moment(text: str) -> float:
    """`2026-11-21T16:00`, seconds since the epoch."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 2026-11-21T16:00 or seconds since 1970") from None


def _quota(text: str) -> tuple[str, int | None]:
    name, sign, quota = text.partition("=")
    try:
        if not sign or not name:
            raise ValueError
        return name, units.parse_quota(quota, field="--quota")
    except (ValueError, Invalid):
        raise argparse.ArgumentTypeError(f"{text!r} is no quota; write PROJECT=GPUS, such as team-a=6") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hotdesk-scheduler replay",
        description="Ask again what a service asked its core, and compare the decisions byte for byte. Exit code 1 if one differs.",
    )
    parser.add_argument(
        "log", nargs="*", type=Path, metavar="LOG", help="a state directory, or files of its scheduler/decisions; default: HOTDESK_STATE"
    )
    parser.add_argument("--trace", action="store_true", help="print every decision with its reason, as simulate --trace does")
    parser.add_argument("--json", action="store_true", help="print one object a cycle, then one that sums up")
    parser.add_argument("--since", type=_moment, metavar="TIME", help="only what was decided then or later, such as 2026-11-21T16:00")
    parser.add_argument("--until", type=_moment, metavar="TIME", help="only what was decided then or before")
    parser.add_argument("--cycle", type=int, metavar="N", help="only this cycle")
    parser.add_argument("--cold", action="store_true", help="decide each cycle from nothing, without what is remembered of the one before")
    parser.add_argument("--explain", metavar="NAME", help="say why this workload (PROJECT/NAME or NAME) waits in each cycle")
    parser.add_argument(
        "--quota",
        type=_quota,
        action="append",
        default=[],
        metavar="PROJECT=GPUS",
        help="what if it had this GPU quota? Shows what differs",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The `replay` subcommand. Raises Invalid for what is no record."""
    options = _parser().parse_args(argv)
    places = options.log or [settings.load(argparse.Namespace()).state_dir]  # HOTDESK_STATE, or where `make up` keeps it
    segments = [segment for place in places for segment in reader.found(place.expanduser())]
    replay = Replay(options)
    console = Console(stderr=True)
    columns = (TextColumn("replay"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    shows_bar = console.is_terminal and not (sys.stdout.isatty() and (options.trace or options.json))
    with Progress(*columns, console=console, transient=True, disable=not shows_bar) as progress:
        sizes = [segment.path.stat().st_size for segment in segments]
        task = progress.add_task("replay", total=sum(sizes))
        for number, segment in enumerate(segments):
            before = sum(sizes[:number])
            for item in reader.read(segment, progress=lambda done, before=before: progress.update(task, completed=before + done)):  # type: ignore[misc]  # a default binds it
                replay.take(item)
    _sum_up(replay)
    return replay.exit_code


def _sum_up(replay: Replay) -> None:
    outcome = replay.outcome
    if replay.options.json:
        found = {"cycles": outcome.cycles, "different": outcome.different, "notes": [note.sentence for note in outcome.notes]}
        print(json.dumps({**found, "skipped": outcome.skipped}))
        return
    for note in outcome.notes:
        print(note.sentence)
    if replay.knows_nobody and outcome.cycles:
        print(f"No workload {replay.options.explain} is on record in the cycles looked at.")
    if outcome.skipped:
        print(f"{outcome.skipped} cycles could not be recorded.")
    print(replay.summary())
