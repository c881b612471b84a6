"""What is sent to the API server: never anything but what was meant."""

from __future__ import annotations

import pytest
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError
from kubernetes.aio.client import Configuration

SPACE = "/api/v1/namespaces/team-a"


async def status(path: str) -> int:
    api = Api(Configuration(host="http://127.0.0.1:9"))  # nobody listens there
    try:
        with pytest.raises(ApiError) as refused:
            await api.get(path)
        with pytest.raises(ApiError) as of_socket:
            await api.websocket(path, [("a", "b")], ("v5",))
    finally:
        await api.close()
    assert refused.value.status == of_socket.value.status
    return refused.value.status


@pytest.mark.parametrize(
    "name",
    [
        "..",
        ".",
        "",
        "../secrets",
        "../../../secrets?limit=1",
        "%2E%2E",
        "a/../../../secrets",
        "a?x=1",
        "a#b",
        "a b",
        "a\n",
        "\u00e9",
        "a\\b",
    ],
)
async def test_a_name_from_a_pod_leads_to_no_other_object(name: str) -> None:
    assert await status(f"{SPACE}/persistentvolumeclaims/{name}/x") == 404
    assert await status(f"{SPACE}/persistentvolumeclaims/{name}") == 404


@pytest.mark.parametrize(
    "path", ["/version", f"{SPACE}/pods/job-0-1a2b3/eviction", f"{SPACE}/events/a.17f", "/apis/x.io/v1/roles/system:a_B"]
)
async def test_any_name_that_an_object_can_have_is_sent(path: str) -> None:
    assert await status(path) == 0
