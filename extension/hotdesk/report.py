"""From inside a job: `report.progress(0.3)`, `report.metrics(loss=0.1)`. Best effort: a job never fails or slows because of it."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import quote, urlsplit

LIMIT_S = 2.0
LEAST_S = 0.5
MOST_S = 30.0
SERVER_ERRORS = 500
_ENVIRONMENT = ("HOTDESK_API_URL", "HOTDESK_REPORT_TOKEN", "RUNAI_PROJECT", "RUNAI_JOB_NAME")


class Reporter:
    """Sends the newest values from a thread, at most every half second; what is older than the newest is left out.

    What could not be sent (a scheduler that restarts) is tried again, at longer and longer intervals, until something newer replaces it.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._lock = threading.Condition()
        self._waiting: dict[str, object] = {}
        self._thread: threading.Thread | None = None
        self._busy = False

    @property
    def works(self) -> bool:
        """False outside a Hotdesk job: calls then do nothing."""
        return all(self._environment.get(name) for name in _ENVIRONMENT)

    def put(self, values: Mapping[str, object], metrics: Mapping[str, float] | None = None) -> None:
        if not self.works:
            return
        with self._lock:
            self._waiting |= values
            if metrics:
                known = self._waiting.get("metrics")
                self._waiting["metrics"] = (known if isinstance(known, dict) else {}) | dict(metrics)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hotdesk-report", daemon=True)
                self._thread.start()
            self._lock.notify_all()

    def flush(self, timeout_s: float = LIMIT_S) -> None:
        """Wait until what was reported is sent (or its time is over)."""
        with self._lock:
            self._lock.wait_for(lambda: not self._waiting and not self._busy, timeout_s)

    def _run(self) -> None:
        pause_s = LEAST_S
        while True:
            with self._lock:
                self._lock.wait_for(lambda: bool(self._waiting))
                values, self._waiting = self._waiting, {}
                self._busy = True
            again = self._failed_for_now(values)
            pause_s = min(2 * pause_s, MOST_S) if again else LEAST_S
            with self._lock:
                if again:
                    self._waiting = values | self._waiting
                self._busy = False
                self._lock.notify_all()
            time.sleep(pause_s)

    def _failed_for_now(self, values: Mapping[str, object]) -> bool:
        try:
            return send(self._environment, values) >= SERVER_ERRORS
        except (OSError, HTTPException):
            return True
        except ValueError:
            return False  # the address itself is nonsense: best effort ends here


def send(environment: Mapping[str, str], values: Mapping[str, object]) -> int:
    """One PUT of progress; the answer's status."""
    url, token, project, name = (environment[variable] for variable in _ENVIRONMENT)
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=LIMIT_S)
    try:
        path = f"{parts.path.rstrip('/')}/v1/workloads/{quote(project, safe='')}/{quote(name, safe='')}/progress"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request("PUT", path, json.dumps(values), headers)
        return connection.getresponse().status
    finally:
        connection.close()


_reporter = Reporter(os.environ)


def progress(done: float, message: str = "") -> None:
    """How far the job is, 0 to 1 (more is taken as 1), with an optional sentence."""
    share = min(1.0, max(0.0, float(done)))
    if share == share:  # not a number is not a progress
        _reporter.put({"progress": share, "message": message[:500]})
        if share >= 1.0:
            _reporter.flush()


def metrics(**values: float) -> None:
    """Named numbers, such as loss and accuracy; the newest of each counts."""
    finite = {name: float(value) for name, value in values.items() if float("-inf") < float(value) < float("inf")}
    _reporter.put({}, finite)


def flush(timeout_s: float = LIMIT_S) -> None:
    """Wait until everything reported is sent; for the last line of a short program."""
    _reporter.flush(timeout_s)
