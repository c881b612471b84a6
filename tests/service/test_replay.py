"""`replay`: a real service's record gives the same decisions again, byte for byte; what was tampered with is found."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import scheduler_fixture
from hotdesk_api import calls, models
from hotdesk_api.client import Client
from hotdesk_scheduler import cli
from hotdesk_scheduler.core.mix import ENOUGH
from hotdesk_scheduler.decisionlog import reader, segments
from hotdesk_scheduler.decisionlog.reader import Recorded
from scheduler_fixture import Scheduler

WITHIN_S = 120.0
SECRETS = ("hidden-in-a-variable", "hidden-in-a-command", "alice-token", "admin-token")


def submit(client: Client, name: str, project: str, gpus: float = 1) -> None:
    command = ["sh", "-c", f"exec sleep 1000 # {SECRETS[1]}"]
    spec = models.WorkloadSpec(
        name=name, project=project, image="python", gpu_millis=int(gpus * 1000), command=command, environment={"PLAIN": SECRETS[0]}
    )
    client.call(calls.submit(spec))


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come to hold"
        time.sleep(0.05)


def statuses(client: Client, project: str) -> dict[str, str]:
    return {item.name: item.status for item in client.call(calls.workloads(project=project)).items}


def lived_through(real: Scheduler) -> None:
    """Enough requests for a mix, a reclaim with its notice, a deletion, kill -9 and a restart, work to its end."""
    alice, bob = real.client(real.alice), real.client(real.bob)
    submit(bob, "lent-1", "team-b", 8)
    submit(bob, "lent-2", "team-b", 6)
    until(lambda: set(statuses(bob, "team-b").values()) == {"Running"})
    submit(alice, "owner", "team-a", 4)
    until(lambda: statuses(alice, "team-a")["owner"] == "Running")
    real.kill()
    real.start()
    for number in range(ENOUGH):
        submit(alice, f"small-{number}", "team-a", 0.5)
    until(lambda: any(item.reason for item in alice.call(calls.workloads(project="team-a")).items))
    alice.call(calls.delete("team-a", "owner"))
    until(lambda: "owner" not in statuses(alice, "team-a"))
    until(lambda: list(statuses(alice, "team-a").values()).count("Running") >= 8)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of segments that a real service left behind."""
    with scheduler_fixture.scheduler(tmp_path_factory.mktemp("replayed"), more=("--grace-s", "1", "--tick-s", "5")) as real:
        lived_through(real)
        real.end()
        return real.state / "scheduler" / "decisions"


def copied(record: Path, folder: Path, change: Callable[[list[bytes]], list[bytes]] = lambda lines: lines) -> Path:
    """The record, its last segment's lines changed."""
    folder.mkdir()
    *rest, last = segments.listed(record)
    for segment in rest:
        (folder / segment.path.name).write_bytes(segment.path.read_bytes())
    with last.opened() as file:
        lines = change(file.read().splitlines(keepends=True))
    (folder / f"{last.number:06}.jsonl").write_bytes(b"".join(lines))
    return folder


def replayed(*arguments: str | Path) -> int:
    return cli.main(["replay", *map(str, arguments)])


def cycles(record: Path) -> list[Recorded]:
    return [item for segment in reader.found(record) for item in reader.read(segment) if isinstance(item, Recorded)]


@pytest.mark.slow
def test_a_real_services_record_gives_the_same_decisions_again(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = cycles(record)
    for how in ([], ["--cold"]):
        assert replayed(record.parents[1], *how) == 0
        assert capsys.readouterr().out == f"{len(found)} cycles, all the same\n"
    assert len(segments.listed(record)) == 2, "one before the restart, one after it"
    kinds = {decision["kind"] for item in found for decision in item.answer.decisions}
    assert kinds >= {"start", "stop", "remove", "requeue"}
    assert any(decision.get("reason", {}).get("code") == "reclaimed" for item in found for decision in item.answer.decisions)
    assert found[-1].snapshot.mix is not None
    assert found[-1].policy.reserve_after_s == 600.0
    assert any(item.answer.holds for item in found)


@pytest.mark.slow
def test_no_command_variable_or_token_is_on_record(record: Path) -> None:
    files = [gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes() for path in record.iterdir()]
    assert files
    assert not [secret for secret in SECRETS if any(secret.encode() in text for text in files)]
    assert {path.stat().st_mode & 0o777 for path in record.iterdir()} == {0o600}


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["0", "1"])
def test_another_process_prints_the_very_same_trace(record: Path, seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed(record, "--trace") == 0
    here = capsys.readouterr().out
    there = subprocess.run(
        [sys.executable, "-m", "hotdesk_scheduler.cli", "replay", str(record), "--trace"],
        capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, timeout=120, encoding="utf-8",
    ).stdout  # fmt: skip
    assert there == here
    assert "start owner-0 on" in here
    assert ": reclaimed: " in here
    assert "for owner: reclaimed" in here


@pytest.mark.slow
def test_a_decision_that_was_tampered_with_is_shown_beside_what_is_decided(
    record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = next(d["placement"]["node"] for item in cycles(record) for d in item.answer.decisions if d["kind"] == "start")
    changed = -1

    def elsewhere(lines: list[bytes]) -> list[bytes]:
        nonlocal changed
        changed = next(i for i, line in enumerate(lines) if b'"kind":"start"' in line)
        lines[changed] = lines[changed].replace(b'"kind":"start"', b'"kind":"nominate"', 1)
        return lines

    assert replayed(copied(record, tmp_path / "log", elsewhere)) == 1
    out = capsys.readouterr().out
    assert node.rpartition("-")[0] in out
    assert "on record: keep a place for small-" in out
    assert "now: start small-" in out
    assert out.endswith("cycles, 1 different\n")


@pytest.mark.slow
def test_a_sentence_or_a_number_that_was_tampered_with_is_found(record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said_otherwise(lines: list[bytes]) -> list[bytes]:
        index = next(i for i, line in enumerate(lines) if b'"holds":[{' in line)
        before, mark, holds = lines[index].partition(b'"holds":[{')
        lines[index] = before + mark + holds.replace(b'"sentence":"', b'"sentence":"Well, ', 1)
        return lines

    assert replayed(copied(record, tmp_path / "log", said_otherwise)) == 1
    assert "Well, " in capsys.readouterr().out


@pytest.mark.slow
def test_an_input_that_was_tampered_with_is_found(record: Path, tmp_path: Path) -> None:
    def a_smaller_node(lines: list[bytes]) -> list[bytes]:
        return [line.replace(b'"gpus":8', b'"gpus":2', 1) if number == 1 else line for number, line in enumerate(lines)]

    assert replayed(copied(record, tmp_path / "log", a_smaller_node)) == 1


@pytest.mark.slow
def test_a_record_cut_in_the_middle_of_a_line_is_the_same_up_to_there_and_says_so(
    record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(record, tmp_path / "log", lambda lines: [*lines[:-1], lines[-1][: len(lines[-1]) // 2]])
    assert replayed(folder) == 0
    out = capsys.readouterr().out
    assert "ends in the middle of line" in out
    assert out.endswith(f"{len(cycles(record)) - 1} cycles, all the same\n")


@pytest.mark.slow
def test_one_cycle_one_time_and_a_workloads_why_can_be_asked_for(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = cycles(record)[-1]
    assert replayed(record, "--cycle", str(last.number), "--json") == 0
    one, total = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (one["cycle"], one["at"], one["same"]) == (last.number, last.now, True)
    assert total == {"cycles": 1, "different": [], "notes": [], "skipped": 0}
    assert replayed(record, "--since", str(last.now), "--until", str(last.now)) == 0
    same_time = sum(item.now == last.now for item in cycles(record))  # once more if somebody looked at the queue
    assert capsys.readouterr().out == f"{same_time} cycle{'s' if same_time > 1 else ''}, all the same\n"
    waiting = next(item for item in cycles(record) if item.answer.holds)
    name = next(w.name for w in waiting.snapshot.workloads if w.id in waiting.answer.holds)
    assert replayed(record, "--cycle", str(waiting.number), "--explain", name) == 0
    assert f"/{name}: " in capsys.readouterr().out
    assert replayed(record, "--explain", "nobody") == 1
    assert "No workload nobody is on record in the cycles looked at." in capsys.readouterr().out
    assert replayed(record, "--since", "9999999999") == 1
    assert "No cycle" in capsys.readouterr().out


@pytest.mark.slow
def test_what_if_a_project_had_more_shows_what_would_have_been_decided(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed(record, "--quota", "team-b=16", "--quota", "team-a=0") == 0
    out = capsys.readouterr().out
    assert "decided otherwise" in out
    assert "fair share of team-b" in out
    assert replayed(record, "--quota", "team-x=1") == 1
    assert "team-a, team-b" in capsys.readouterr().err


def test_without_a_place_the_services_own_state_directory_is_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTDESK_STATE", str(tmp_path / "mine"))
    assert replayed() == 2
    assert str(tmp_path / "mine") in capsys.readouterr().err


def test_a_place_without_a_record_and_bad_flags_are_answered_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed(tmp_path) == 2
    assert "state directory" in capsys.readouterr().err
    for flags in (["--quota", "many"], ["--since", "soon"]):
        with pytest.raises(SystemExit):
            replayed(tmp_path, *flags)
        assert "write" in capsys.readouterr().err
