"""A scenario file that says what cannot be is answered with a sentence that says where, never with a traceback or a guess."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hotdesk_scheduler.simulate import main

NODE = {"name": "n1", "gpus": 2, "gpu_memory_mib": 16384, "cpu_millis": 8000, "memory_mib": 16000}


def scenario(workload: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    body = {"name": "w", "project": "a", "pods": [{"gpu": 1}], **(workload or {})}
    return {"name": "s", "nodes": [NODE], "projects": [{"name": "a", "gpu_quota": 2}], "workloads": [body], **more}


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        (json.dumps([1]), "FILE, line 1, is not a scenario: an object is needed."),
        ('{"name": "s"', "FILE, line 1, is not JSON: Expecting ',' delimiter: line 1 column 13 (char 12)."),
        ("\ud800", "FILE cannot be read: it is not UTF-8."),
        (scenario(nodes=[{"name": "n1", "gpus": "two"}]), "Scenario s, node n1: gpus 'two' is not a whole number."),
        (scenario(nodes=[{"gpus": 2}]), "Scenario s, node: 'name' is missing."),
        (scenario(nodes=["n1"]), "Scenario s, node: 'n1' is not an object."),
        (scenario(nodes=[NODE, NODE]), "Scenario s: there are two nodes n1."),
        (scenario({"project": "b"}), "Scenario s, workload w: there is no project b; known: a."),
        (scenario(projects=[{"name": "a", "department": "d"}]), "Scenario s, project a: there is no department d."),
        (scenario(projects=[{"name": "a", "gpu_quota": 0.1234}]), "Scenario s, project a: gpu_quota 0.1234 has more than three decimals."),
        (scenario({"pods": [{"gpu": 0.1234}]}), "Scenario s, workload w: gpu 0.1234 has more than three decimals."),
        (scenario({"pods": [{"gpu": 1.5}]}), "Scenario s, workload w: gpu 1.5: above one only whole numbers can be asked for."),
        (scenario({"pods": [{"gpu": -1}]}), "Scenario s, workload w: gpu -1 is less than nothing."),
        (scenario({"pods": [{"gpu": "many"}]}), "Scenario s, workload w: gpu 'many' is not a number."),
        (
            scenario({"pods": [{"gpu": 1, "state": "asleep"}]}),
            "Scenario s, workload w: there is no state 'asleep'; known: pending, running, releasing.",
        ),
        (scenario({"pods": [{"gpu": 1, "state": "running"}]}), "Scenario s, workload w: 'node' is missing."),
        (scenario({"pods": [{"gpu": 1, "state": "running", "node": "n9"}]}), "Scenario s, workload w: there is no node n9; known: n1."),
        (scenario({"kind": "dance"}), "Scenario s, workload w: 'dance' is not a valid Kind."),
        (scenario(steps=[{"submit": {"name": "x", "project": "b"}}]), "Scenario s, workload x: there is no project b; known: a."),
        (scenario(steps=[{"dance": 1}]), "Scenario s: there is no step 'dance'."),
        (scenario(policy={"speed": 9}), "Scenario s: there is no policy setting 'speed'; known: max_moves"),
    ],
)
def test_what_cannot_be_is_said_with_its_place(tmp_path: Path, written: str | dict[str, Any], answer: str) -> None:
    file = tmp_path / "s.jsonl"
    text = written if isinstance(written, str) else json.dumps(written)
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(SystemExit) as refused:
        main([str(file)])
    assert str(refused.value).replace(str(file), "FILE").startswith(answer)


def test_a_negative_number_of_cycles_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path / "s.jsonl"), "--cycles", "-1"])
    assert "--cycles: -1 is not a number of cycles" in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_ends_it_quietly(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text("\n".join(json.dumps(scenario(name=f"s{i}")) for i in range(50)), encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "-m", "hotdesk_scheduler.cli", "simulate", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
