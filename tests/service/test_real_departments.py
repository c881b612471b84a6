"""A department on the real service and its local engine, through the commands an admin and a researcher type."""

from __future__ import annotations

from pathlib import Path

import pytest
from hotdesk_api import calls
from scheduler_fixture import Scheduler
from seats import Desk, wait_until

pytestmark = pytest.mark.slow
SLEEP = ("-i", "python", "--interactive", "--command", "sleep", "--args", "infinity")


def test_a_departments_limit_holds_work_back_why_says_so_and_a_restart_keeps_it(real: Scheduler, tmp_path: Path) -> None:
    admin, alice, bob = (Desk(real, tmp_path / name, token) for name, token in (("a", real.admin), ("b", real.alice), ("c", real.bob)))
    admin.ok("department", "create", "research", "--limit", "6")
    for project in ("team-a", "team-b"):
        admin.ok("project", "update", project, "--department", "research")
    alice.ok("submit", "first", "-g", "4", *SLEEP)
    alice.until("first", "Running")
    admin.ok("department", "update", "research", "--limit", "5", "--quota", "5")
    bob.ok("submit", "second", "-g", "2", *SLEEP)
    held = "Department research may use at most 5 GPUs and uses 4 GPUs; this asks for 2 GPUs."
    wait_until(lambda: held in bob.ok("why", "second"), "why names the department")
    kept = {"gpu_limit_millis", "gpu_quota_millis", "gpu_quota_is_sum", "projects", "gpu_millis_allocated", "created_at"}
    before = real.client(real.admin).call(calls.department("research")).model_dump(include=kept)
    real.kill()
    real.start()
    assert real.client(real.admin).call(calls.department("research")).model_dump(include=kept) == before
    wait_until(lambda: held in bob.ok("why", "second"), "why names the department")
    assert bob.data("get", "second")["status"] == "Pending"
    admin.ok("department", "update", "research", "--limit", "6", "--quota", "sum")
    bob.until("second", "Running")
