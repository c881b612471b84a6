"""The record of decisions: what was asked and answered comes back as it was, whatever happens to the disk."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import desks
import pytest
from builders import World, node, q
from hotdesk_api import calls
from hotdesk_api.errors import Invalid
from hotdesk_scheduler import replay
from hotdesk_scheduler.core import lifecycle
from hotdesk_scheduler.core.decide import decide
from hotdesk_scheduler.core.line import Holds
from hotdesk_scheduler.core.memory import Memory
from hotdesk_scheduler.core.mix import Learner
from hotdesk_scheduler.core.model import GpuRequest, PodRequest, Policy, Snapshot
from hotdesk_scheduler.core.plan import Plan
from hotdesk_scheduler.decisionlog import reader, segments
from hotdesk_scheduler.decisionlog.cycles import DECIDE, FACTS, REVIEW, Cycle, plain
from hotdesk_scheduler.decisionlog.encoder import Encoder, runs
from hotdesk_scheduler.decisionlog.reader import Note, Recorded
from hotdesk_scheduler.decisionlog.writer import DecisionLog
from hotdesk_scheduler.service.loop import BrokenPlan, Loop
from hypothesis import given, settings
from random_worlds import SEEDS, QuickWorld, a_history

POLICY = Policy(grace_s=0, reserve_after_s=600.0, history_weight=1.0)


def busy_world() -> World:
    """Everything a decision can be about: fractions, a gang, an elastic one, a reclaim, kept places, a queue of equal and unequal ones."""
    world = World(
        node("n1", 4, labels={"zone": "a"}), node("n2", 4, closed_groups=("g",)), node("n3", 2, pool="other"), policy=POLICY,
        departments={"d": q(6)}, a={**q(4), "department": "d"}, b={**q(2), "department": "d"}, c=q(0, weight=1),
    )  # fmt: skip
    world.runs("c", 1, on="n1")
    world.runs("c", 1, on="n1")
    world.runs("c", 0.5, on="n2", group="g")
    for number in range(12):
        world.asks("abc"[number % 3], [1, 0.3, 2][number % 3])
    world.asks("a", 2, pods=2)
    world.asks("b", 1, pods=3, min_pods=1)
    world.asks("c", 16)
    return world


def history(cycles: int = 8) -> Iterator[Cycle]:
    """Cycles of a world in which things are submitted, end, are deleted and are changed by an admin."""
    world, learner = busy_world(), Learner()
    for request, count in ((PodRequest(), 30), (PodRequest(cpu_millis=10), 40)):
        learner.note(request, count=count)
    for number in range(cycles):
        reviewed = tuple(lifecycle.review(world.snapshot(), world.policy, world.now))
        if reviewed:
            yield Cycle(REVIEW, world.snapshot(), world.policy, world.now, reviewed)
        past = (("a", 10**25 * number), ("b", 10**24)) if number > 1 else ()
        snapshot = replace(world.snapshot(), mix=learner.mix if number > 2 else None, usage=past)
        yield Cycle(DECIDE, snapshot, world.policy, world.now, decide(snapshot, world.policy, world.now))
        world.cycle()
        if number == 2:
            world.delete(world.running()[0])
            world.asks("a", 1)
        if number == 4:
            world.policy = replace(world.policy, placement="spread")
            project = next(p for p in world.snapshot().projects if p.name == "b")
            asyncio.run(world.engine.put_project(replace(project, priority=3)))
            world.engine.lose_node("n3")


def written(cycles: list[Cycle], folder: Path, *, segment_bytes: int = 1 << 20, most_bytes: int = 1 << 30) -> Path:
    book = DecisionLog(folder, most_bytes=most_bytes, most_age_s=3600.0, segment_bytes=segment_bytes)
    book.open()
    for cycle in cycles:
        book.add(cycle)
    book.close()
    assert book.problem is None
    return folder


def read_back(folder: Path) -> list[Recorded | Note]:
    return [item for segment in reader.found(folder) for item in reader.read(segment)]


def unordered(snapshot: Snapshot) -> list[object]:
    keyed = [sorted(getattr(snapshot, name), key=repr) for name in ("nodes", "departments", "projects", "workloads")]
    return [*keyed, snapshot.version, snapshot.mix, snapshot.usage]


def holds_of(cycle: Cycle) -> Holds:
    assert isinstance(cycle.answer, Plan)
    assert isinstance(cycle.answer.holds, Holds)
    return cycle.answer.holds


@pytest.mark.parametrize("somebody_looks", [True, False])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 1])
def test_what_was_asked_and_answered_comes_back_as_it_was(tmp_path: Path, segment_bytes: int, somebody_looks: bool) -> None:
    asked = list(history()) * 4
    for cycle in asked if somebody_looks else ():
        if cycle.step == DECIDE:
            len(holds_of(cycle))
    found = read_back(written(asked, tmp_path / "log", segment_bytes=segment_bytes))
    assert (len(segments.listed(tmp_path / "log")) == 1) == (segment_bytes > 1)
    assert {cycle.step for cycle in asked} == {DECIDE, REVIEW}
    assert all(isinstance(item, Recorded) for item in found)
    recorded = [item for item in found if isinstance(item, Recorded)]
    assert [item.number for item in recorded] == list(range(1, len(asked) + 1))
    for cycle, item in zip(asked, recorded, strict=True):
        assert (item.step, item.policy, item.now) == (cycle.step, cycle.policy, cycle.now)
        if cycle.step == DECIDE:
            assert unordered(item.snapshot) == unordered(cycle.snapshot)
            assert item.answer.in_order == (somebody_looks or not item.answer.holds)
        assert item.answer.text() == plain(cycle.answer).text(in_order=item.answer.in_order)


def test_the_order_of_the_queue_is_on_record_once_somebody_has_looked() -> None:
    asked = [cycle for cycle in history() if cycle.step == DECIDE]
    encoder = Encoder()
    for cycle in asked:
        first = json.loads(encoder.line(cycle))
        assert holds_of(cycle).counted is None
        assert first["in_order"] is False
        looked_at = [hold.workload_id for hold in holds_of(cycle)]
        again = json.loads(encoder.line(replace(cycle, again=True)))
        assert again["again"] is True
        assert "in_order" not in again
        assert "workloads" not in again
        assert len(looked_at) == sum(length for _, length in again["queue"])
        assert encoder.line(replace(cycle, again=True)) == b""


def test_every_part_of_a_snapshot_is_recorded() -> None:
    """A field that is added to it is on record by itself; this fails if one is not."""
    cycle = next(history())
    line = json.loads(Encoder().line(replace(cycle, snapshot=replace(cycle.snapshot, mix=Learner().mix or None, usage=(("a", 7),)))))
    assert {item.name for item in fields(Snapshot)} - {"mix"} <= set(line)


def test_every_part_of_a_plan_is_recorded() -> None:
    """A new one wants its word in `FACTS`, or to be written as decisions and holds are."""
    assert {item.name for item in fields(Plan)} == {"version", "acts", "holds", *FACTS}
    cycle = next(history())
    assert isinstance(cycle.answer, Plan)
    other = replace(cycle, answer=replace(cycle.answer, weights=(("a", 7),)))
    assert json.loads(Encoder().line(other))["weights"] == {"a": 7}
    assert plain(other.answer).text() != plain(cycle.answer).text()


def test_what_changes_nothing_and_decides_nothing_is_not_written(tmp_path: Path) -> None:
    world = World(node("n1", 1), a=1)
    world.runs("a", 1)
    world.asks("a", 1)
    snapshot = world.snapshot()
    same = [Cycle(DECIDE, replace(snapshot, version=n), POLICY, world.now + n, decide(snapshot, POLICY, world.now)) for n in range(20)]
    assert len(read_back(written(same, tmp_path / "log"))) == 1


def test_a_line_says_only_what_changed() -> None:
    world = World(*[node(f"n{i}", 8) for i in range(20)], a=160)
    for number in range(600):
        world.asks("a", 8 if number % 2 else 4)
    encoder = Encoder()
    sizes = []
    for _ in range(4):
        snapshot = world.snapshot()
        sizes.append(len(encoder.line(Cycle(DECIDE, snapshot, POLICY, world.now, decide(snapshot, POLICY, world.now)))))
        world.cycle()
        world.delete(world.running()[0])
    assert sizes[-1] * 10 < sizes[0]


def test_runs_are_neighbours() -> None:
    assert runs([0, 1, 2, 7, 9, 10]) == [[0, 3], [7, 1], [9, 2]]


def test_files_are_private_compressed_when_done_and_bounded(tmp_path: Path) -> None:
    folder = written(list(history()) * 12, tmp_path / "log", segment_bytes=1, most_bytes=8000)
    files = sorted(folder.iterdir())
    assert (folder.stat().st_mode & 0o777, {file.stat().st_mode & 0o777 for file in files}) == (0o700, {0o600})
    assert [file.suffix for file in files[:-1]] == [".gz"] * (len(files) - 1)
    assert sum(file.stat().st_size for file in files[:-1]) <= 8000
    assert int(files[0].name[:6]) > 1
    numbers = [item.number for item in read_back(folder) if isinstance(item, Recorded)]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert numbers[0] > 1


def test_what_is_too_old_goes_when_a_new_segment_begins(tmp_path: Path) -> None:
    folder = written(list(history(3)), tmp_path / "log")
    first = segments.listed(folder)[0].path
    os.utime(first, (1.0, 1.0))
    written(list(history(3)), folder)
    assert [segment.number for segment in segments.listed(folder)] == [2]


def test_a_restart_goes_on_counting_in_a_segment_of_its_own(tmp_path: Path) -> None:
    folder = written(list(history(3)), tmp_path / "log")
    before = len(read_back(folder))
    written(list(history(3)), folder)
    assert [segment.number for segment in segments.listed(folder)] == [1, 2]
    assert [item.number for item in read_back(folder) if isinstance(item, Recorded)] == list(range(1, 2 * before + 1))


def test_a_record_cut_in_the_middle_of_a_line_is_good_up_to_there(tmp_path: Path) -> None:
    folder = written(list(history()), tmp_path / "log")
    file = segments.listed(folder)[0].path
    whole = read_back(folder)
    file.write_bytes(file.read_bytes()[:-40])
    *rest, note = read_back(folder)
    assert len(rest) == len(whole) - 1
    assert isinstance(note, Note)
    assert not note.damaged
    assert f"middle of line {len(whole) + 1}" in note.sentence
    written(list(history(2)), folder)  # the service starts again: the cut line is kept as it is, and counting goes on
    assert [item.number for item in read_back(folder) if isinstance(item, Recorded)][: len(rest)] == list(range(1, len(rest) + 1))


def test_a_damaged_line_is_named_and_later_segments_are_still_read(tmp_path: Path) -> None:
    folder = written(list(history()), tmp_path / "log")
    file = segments.listed(folder)[0].path
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:3], b'{"step": "decide", "queue": [[5, 99]]}\n', *lines[3:]]))
    written(list(history(2)), folder)
    found = read_back(folder)
    notes = [item for item in found if isinstance(item, Note)]
    assert [note.damaged for note in notes] == [True]
    assert "line 4" in notes[0].sentence
    assert isinstance(found[-1], Recorded)


def test_a_record_of_another_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "000001.jsonl"
    file.write_text('{"hotdesk_decisions": 99, "hotdesk": "7.0", "first_cycle": 1}\n')
    with pytest.raises(Invalid, match=r"format 99.*reads format 4.*7\.0"):
        read_back(tmp_path)
    file.write_text("something else\n")
    with pytest.raises(Invalid, match="not a record"):
        read_back(tmp_path)


def test_a_folder_without_a_record_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="state directory"):
        reader.found(tmp_path)


def test_a_folder_that_cannot_be_written_is_a_problem_until_it_can_and_what_is_missing_is_counted(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    asked = list(history(3))
    book = DecisionLog(blocked / "log", most_bytes=1 << 20, most_age_s=3600.0, retry_s=0.0)
    book.open()
    book.add(asked[0])
    _until(lambda: book.problem is not None)
    assert "Scheduling goes on" in str(book.problem)
    blocked.unlink()
    book.add(asked[1])
    _until(lambda: book.problem is None)
    book.close()
    found = read_back(blocked / "log")
    assert [(item.number, item.skipped) for item in found if isinstance(item, Recorded)] == [(1, 1)]


def test_a_full_disk_in_the_middle_of_a_line_costs_that_line_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [cycle for cycle in history(6) if cycle.step == DECIDE]
    write, left = os.write, 9000

    def onto_a_small_disk(descriptor: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(28, "No space left on device")
        done = write(descriptor, data[:left])
        left -= done
        return done

    monkeypatch.setattr("hotdesk_scheduler.decisionlog.writer.os.write", onto_a_small_disk)
    book = DecisionLog(tmp_path / "log", most_bytes=1 << 20, most_age_s=3600.0, retry_s=0.0)
    book.open()
    for cycle in asked:
        book.add(cycle)
    _until(lambda: book.problem is not None and not book._waiting)
    assert "No space left" in str(book.problem)
    left = 1 << 30
    book.add(asked[0])
    _until(lambda: book.problem is None)
    book.close()
    found = read_back(tmp_path / "log")
    assert not [item for item in found if isinstance(item, Note) and item.damaged]
    last = found[-1]
    assert isinstance(last, Recorded)
    assert last.skipped > 0
    assert last.answer.text() == plain(asked[0].answer).text(in_order=False)


def test_when_the_disk_is_slow_cycles_are_left_out_and_a_pass_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotdesk_scheduler.decisionlog.writer.MAX_WAITING", 10)
    book = DecisionLog(tmp_path / "log", most_bytes=1 << 20, most_age_s=3600.0)
    cycle = next(history(1))
    for number in range(15):  # nothing writes yet
        book.add(replace(cycle, now=cycle.now + number, broken=f"no {number}"))
    book.open()
    book.close()
    recorded = [item for item in read_back(tmp_path / "log") if isinstance(item, Recorded)]
    assert len(recorded) == 10
    assert recorded[0].skipped == 5


def test_a_compressed_segment_that_ends_early_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    folder = written(list(history()), tmp_path / "log")
    file = segments.listed(folder)[0].path
    packed = gzip.compress(file.read_bytes())
    file.unlink()
    (folder / "000001.jsonl.gz").write_bytes(packed[:-100])
    note = read_back(folder)[-1]
    assert isinstance(note, Note)
    assert "any further" in note.sentence or "middle of line" in note.sentence


def test_the_record_counts_no_queue_that_nobody_looked_at(tmp_path: Path) -> None:
    asked = [cycle for cycle in history() if cycle.step == DECIDE]
    written(asked, tmp_path / "log")
    assert [holds_of(cycle).counted for cycle in asked] == [None] * len(asked)


class Recording(QuickWorld):
    """A world whose decisions go on record, made with reservations and for a mix of requests, as a service makes them."""

    def __init__(self, *nodes: Any, **more: Any) -> None:
        super().__init__(*nodes, **more)
        self.policy = replace(self.policy, reserve_after_s=50.0)
        self.asked: list[Cycle] = []
        self.learner = Learner()
        self.learner.note(PodRequest(GpuRequest(whole=2)), count=60)

    async def _review(self) -> bool:
        reviewed = tuple(lifecycle.review(self.snapshot(), self.policy, self.now))
        if reviewed:
            self.asked.append(Cycle(REVIEW, self.snapshot(), self.policy, self.now, reviewed))
        return await super()._review()

    def decide(self) -> Plan:
        snapshot = replace(self.snapshot(), mix=self.learner.look(self.snapshot().workloads))
        self.plan = decide(snapshot, self.policy, self.now)
        self.asked.append(Cycle(DECIDE, snapshot, self.policy, self.now, self.plan))
        return self.plan


@settings(max_examples=60)
@given(seed=SEEDS)
def test_any_history_comes_back_and_is_decided_the_same_again(seed: int) -> None:
    world = a_history(seed, kind=Recording)
    assert isinstance(world, Recording)
    encoder, memory = Encoder(), Memory()
    written_ones = [(cycle, line) for cycle in world.asked if (line := encoder.line(cycle))]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "000001.jsonl"
        file.write_bytes(segments.head(first_cycle=1, at=0.0, made_by="test") + b"".join(line for _, line in written_ones))
        for (cycle, _), recorded in zip(written_ones, read_back(Path(folder)), strict=True):
            assert isinstance(recorded, Recorded)
            assert recorded.answer.text() == plain(cycle.answer).text()
            assert replay.answer(recorded).text() == recorded.answer.text()
            assert replay.answer(recorded, memory).text() == recorded.answer.text()


def crashes(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
    raise RuntimeError("a bug")


async def test_what_brings_the_core_down_and_what_its_invariants_refuse_is_on_record_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Cycle] = []
    with pytest.raises(RuntimeError):
        await Loop(desks.fake_engine(), Policy(), decide=crashes, record=asked.append).run_pass()
    monkeypatch.setattr("hotdesk_scheduler.core.invariants.check", lambda *_: ["two workloads on one GPU"])
    with pytest.raises(BrokenPlan):
        await Loop(desks.fake_engine(), Policy(), record=asked.append).run_pass()
    assert [(cycle.answer if isinstance(cycle.answer, str) else "a plan", cycle.broken) for cycle in asked] == [
        ("RuntimeError: a bug", ""),
        ("a plan", "two workloads on one GPU"),
    ]


async def test_a_crash_on_record_that_is_no_more_is_shown_by_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Cycle] = []
    with pytest.raises(RuntimeError):
        await Loop(desks.fake_engine(), Policy(), decide=crashes, record=asked.append).run_pass()
    assert replay.main([str(written(asked, tmp_path / "log"))]) == 1
    out = capsys.readouterr().out
    assert "on record: failed: RuntimeError: a bug\n        now: a plan was made\n" in out


async def test_a_record_that_cannot_be_written_is_shown_in_readyz_and_work_goes_on(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file where the folder should be")
    book = DecisionLog(tmp_path / "blocked" / "log", most_bytes=1 << 20, most_age_s=3600.0)
    async with desks.running(tmp_path, decision_log=book) as service:
        alice = service.client()
        await alice.call(calls.submit(desks.spec("one")))
        await desks.until_status(alice, "one", "Running")
        await desks.until(lambda: book.problem)
        assert service.desk.problems() == [book.problem]


def _until(holds: object, within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():  # type: ignore[operator]  # a callable
        assert time.monotonic() < deadline
        time.sleep(0.005)
