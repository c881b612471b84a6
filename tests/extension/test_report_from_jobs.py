"""`hotdesk.report` inside a job: its progress reaches the list; outside, or with nobody listening, it does nothing and never fails."""

from __future__ import annotations

import http.server
import json
import threading
from typing import Any

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
    reporter.put({"progress": 0.5}, {"loss": 1.0})
    reporter.flush(5)


def test_what_could_not_be_sent_is_sent_when_the_scheduler_is_back() -> None:
    heard: list[Any] = []

    class Restarting(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard.append(body)
            self.send_response(503 if len(heard) == 1 else 204)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Restarting)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    reporter = report.Reporter({"HOTDESK_API_URL": url, "HOTDESK_REPORT_TOKEN": "t", "RUNAI_PROJECT": "p", "RUNAI_JOB_NAME": "n"})
    reporter.put({"progress": 0.5})
    wait_until(lambda: len(heard) == 2, "the second try")
    server.shutdown()
    server.server_close()
    assert heard == [{"progress": 0.5}, {"progress": 0.5}]
