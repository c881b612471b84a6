"""`hotdesk.report` inside a job: its progress reaches the list; outside, or with nobody listening, it does nothing and never fails."""

from __future__ import annotations

import time

import pytest
from hotdesk import report
from seats import Desk, wait_until

PROGRAM = """
import time
from hotdesk import report
report.progress(0.25, "epoch 1 of 4")
report.metrics(loss=0.5)
time.sleep(600)
"""


def test_progress_of_a_job_is_in_the_list(desk: Desk, job: str) -> None:
    desk.ok("submit", job, "-i", "python", "-g", "0.5", "--command", "--", "python", "-c", PROGRAM)
    wait_until(lambda: bool(desk.data("describe", "job", job)["progress"] == 0.25), "a quarter done")
    assert desk.data("describe", "job", job)["message"] == "epoch 1 of 4"
    assert "25%" in desk.ok("list", "-o", "wide")


def test_outside_a_job_nothing_happens() -> None:
    assert not report.Reporter({}).works
    report.progress(0.5)
    report.metrics(loss=1.0)
    report.flush(0.1)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense", "http://"])
def test_nobody_listening_is_no_reason_to_fail(url: str) -> None:
    job = {"HOTDESK_API_URL": url, "HOTDESK_REPORT_TOKEN": "t", "RUNAI_PROJECT": "p", "RUNAI_JOB_NAME": "n"}
    reporter = report.Reporter(job)
    began = time.monotonic()
    reporter.put({"progress": 0.5}, {"loss": 1.0})
    assert time.monotonic() - began < 1, "reporting does not hold the job up"
    reporter.flush(5)
