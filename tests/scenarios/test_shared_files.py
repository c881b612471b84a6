"""The scenario files beside the checkout, where they are: all pass, but those listed with their reason in README.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hotdesk_scheduler.simulate import main, play

README = Path(__file__).with_name("README.md")


def expected_to_fail() -> set[str]:
    """The first column of the README's table."""
    return set(re.findall(r"^\| `([a-z0-9-]+)` \|", README.read_text(encoding="utf-8"), flags=re.MULTILINE))


@pytest.mark.parametrize("file", ["runai-guides.jsonl", "peer-cases.jsonl"])
def test_every_scenario_comes_out_as_expected_or_is_listed(shared: Path, file: str) -> None:
    """A listed case that passes fails this test too: the list stays true."""
    found = {}
    for line in (shared / "scenarios" / file).read_text(encoding="utf-8").splitlines():
        scenario = json.loads(line)
        found[scenario["name"]] = play(scenario).failures
    failed = {name for name, failures in found.items() if failures}
    listed = expected_to_fail() & set(found)
    assert {name: found[name] for name in failed - listed} == {}, "not listed in README.md"
    assert listed - failed == set(), "listed in README.md, but passing"


def test_simulate_prints_one_line_a_scenario_and_what_others_can_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = {"name": "n1", "gpus": 1, "gpu_memory_mib": 16384, "cpu_millis": 8000, "memory_mib": 16000}
    steps = [
        {"submit": {"name": "first", "project": "a", "pods": [{"gpu": 1}]}},
        {"submit": {"name": "second", "project": "a", "pods": [{"gpu": 1}]}},
        {"expect": {"workloads": {"first": {"all": "running"}}, "projects": {"a": {"gpu": 1, "pending": 1}}}},
        {"complete": ["first"]},
        {"expect": {"workloads": {"second": {"all": "running"}}}},
    ]
    scenario = {
        "name": "one-after-the-other",
        "nodes": [node],
        "projects": [{"name": "a", "gpu_quota": 1}],
        "workloads": [],
        "steps": steps,
    }
    file = tmp_path / "s.jsonl"
    file.write_text(json.dumps(scenario))
    assert main([str(file)]) == 0
    assert capsys.readouterr().out == "ok one-after-the-other\n1 passed, 0 failed\n"
    assert main([str(file), "--json", "--time"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["ok"]
    assert out["pods"]["second-0"] == {"state": "running", "node": "n1", "gpu": {"whole": 1}}
    assert out["workloads"]["second"]["state"] == "running"
    assert out["projects"]["a"]["gpu_millis"] == out["projects"]["a"]["quota_millis"] == 1000
    kinds = [(d["kind"], d["workload"]) for d in out["decisions"]]
    assert kinds[0] == ("start", "first")
    assert ("hold", "second") in kinds
    assert len(out["decide_ms"]) == out["cycles"]


def test_simulate_says_what_was_expected_and_what_came_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = {"name": "nothing-there", "nodes": [], "projects": [{"name": "a"}], "workloads": [], "steps": [{"expect": {"running": 1}}]}
    file = tmp_path / "s.jsonl"
    file.write_text(json.dumps(scenario))
    assert main([str(file)]) == 1
    assert capsys.readouterr().out == "FAIL nothing-there: running should be 1, is 0\n0 passed, 1 failed\n"
