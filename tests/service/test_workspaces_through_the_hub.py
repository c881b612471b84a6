"""The scheduler's own words with a real hub: its list of servers, and a stop that goes through its API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hotdesk_up
import httpx
import pytest
from hotdesk_api import calls
from people import Person, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
def hotdesk(tmp_path: Path) -> Iterator[hotdesk_up.RunningHotdesk]:
    state = tmp_path / "state"
    try:
        yield hotdesk_up.start(state, simulate="1x4xV100-SXM2-32GB", environment={"HOTDESK_WORKSPACE_POLL_S": "1"})
    finally:
        hotdesk_up.down(state)


def test_a_workspace_deleted_in_the_scheduler_is_stopped_by_its_hub(hotdesk: hotdesk_up.RunningHotdesk) -> None:
    alice = Person(hotdesk.url, "alice", hotdesk.password("alice"))
    alice.open(project="team-a", gpu="0.5")
    client = alice.api()
    ready = httpx.get(f"http://127.0.0.1:{(hotdesk.state / 'scheduler' / 'port').read_text().strip()}/readyz", trust_env=False)
    assert ready.json() == {"ready": True, "problems": []}
    client.call(calls.delete("team-a", "workspace-alice"))
    wait_for(lambda: not alice.servers(), "the hub's stop")
    wait_for(lambda: not alice.workloads(), "the share's return")
    client.close()
    alice.go_home()
