"""Workspaces as pods, on a real API server with a real hub: they wait, start where they are placed, and are found again."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from cluster.running import Cluster
from hotdesk_spawner.kube import HotdeskKubeSpawner
from hotdesk_spawner.manifest import MOST_CRASHES
from kube_hub import Hub, hub_on, pretended_notebook

pytestmark = [pytest.mark.slow, pytest.mark.e2e]
POLL_EVERY_S = 1  # hub_config.py
AT_ONCE_S = 10  # on a busy machine; the grace is 30


@pytest.fixture(scope="module")
def hub(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.add_namespace(name)
    try:
        with hub_on(cluster, name, tmp_path_factory.mktemp("hub")) as running:
            yield running
    finally:
        cluster.end_test(name)


def container(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod["spec"]["containers"][0]
    return found


def variables(pod: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in container(pod)["env"]}


def test_it_waits_without_a_pod_and_starts_where_it_is_placed_with_its_share(hub: Hub) -> None:
    hub.open("alice", project="team-a", gpu="4", memory="1G")
    hub.open("bob", wait=False, project="team-a", gpu="0.5")
    hub.until(lambda: hub.workload("bob").get("reason"), "why it waits")
    assert not hub.pod("bob")
    assert hub.workload("bob")["status"] == "Pending"
    first = hub.pod("alice")
    amounts = container(first)["resources"]
    assert amounts["limits"] == {"nvidia.com/gpu": "4", "memory": "1Gi"}
    assert amounts["requests"]["memory"] == "1Gi"
    assert first["spec"]["nodeName"].startswith(hub.namespace)
    assert first["metadata"]["labels"]["hotdesk.io/workload-id"] == hub.workload("alice")["id"]
    assert variables(first)["RUNAI_NUM_OF_GPUS"] == "4"
    assert "PATH" not in variables(first), "the image's own holds"
    hub.close("alice")
    assert not hub.pod("alice")
    hub.until(lambda: hub.is_ready("bob"), "bob's turn")
    second = hub.pod("bob")
    assert "nvidia.com/gpu" not in container(second)["resources"].get("limits", {})
    assert variables(second)["GPU_PORTION"] == "0.5"
    assert variables(second)["NVIDIA_VISIBLE_DEVICES"].startswith("GPU-SIM-")
    hub.until(lambda: hub.workload("bob")["status"] == "Running", "the scheduler knowing it")
    hub.close("bob")
    hub.until(lambda: not hub.workload("bob"), "its share's return")


def test_profiles_images_and_their_gpus_go_on_working(hub: Hub) -> None:
    hub.open("carol", project="team-a", profile="big")
    pod = hub.pod("carol")
    assert container(pod)["image"] == "big:2"
    assert container(pod)["resources"]["limits"] == {"nvidia.com/gpu": "1", "memory": "2147483648"}
    assert pod["spec"]["nodeSelector"] == {"hotdesk.io/pool": hub.namespace}
    assert (hub.workload("carol")["gpu_millis_allocated"], hub.workload("carol")["image"]) == (1000, "big:2")
    hub.close("carol")
    hub.open("carol", project="team-a", profile="chosen", image="torch")
    assert container(hub.pod("carol"))["image"] == "torch:3"
    hub.close("carol")


def test_a_profile_chooses_nodes_by_any_label_and_waits_for_one_that_has_it(hub: Hub) -> None:
    hub.open("carol", wait=False, project="team-a", profile="elsewhere")
    found = hub.until(lambda: hub.workload("carol").get("reason"), "why it waits")
    assert "without the labels it asks for (disk=ssd and " in found["sentence"]
    hub.cluster.kubectl("label", "node", f"{hub.namespace}-0", "disk=ssd")
    hub.until(lambda: hub.is_ready("carol"), "its start")
    pod = hub.pod("carol")
    assert (pod["spec"]["nodeName"], pod["spec"]["nodeSelector"]["disk"]) == (f"{hub.namespace}-0", "ssd")
    hub.close("carol")


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"profile": "nothing"}, "No such profile: nothing"),
        ({"colour": "red"}, "no option colour"),
    ],
)
def test_what_cannot_be_heeded_is_refused_with_a_sentence(hub: Hub, wish: dict[str, str], sentence: str) -> None:
    answer = hub.api.post("/users/dave/server", json={"project": "team-a", **wish})
    assert sentence in (answer.text if answer.status_code >= 400 else hub.watch("dave").says(sentence))
    hub.until(lambda: not hub.server("dave"), "the refused one's end")
    assert not hub.workload("dave")


def test_a_hub_killed_in_the_middle_of_a_spawn_finds_the_pod_again(hub: Hub) -> None:
    hub.open("dave", wait=False, project="team-a", gpu="1", profile="slow")
    pod = hub.until(lambda: hub.pod("dave"), "the pod")
    hub.kill()
    hub.start()
    hub.cluster.kubectl("annotate", "pod", "jupyter-dave", "-n", hub.space(), "test.hotdesk.io/waits-")
    hub.until(lambda: hub.is_ready("dave"), "the workspace found again")
    assert hub.pod("dave")["metadata"]["uid"] == pod["metadata"]["uid"]
    hub.until(lambda: hub.workload("dave")["status"] == "Running", "the scheduler being told")
    hub.kill()
    hub.start()
    hub.until(lambda: hub.is_ready("dave"), "the running workspace found again")
    assert hub.pod("dave")["metadata"]["uid"] == pod["metadata"]["uid"]
    hub.close("dave")
    assert not hub.pod("dave")
    hub.until(lambda: not hub.workload("dave"), "its share's return")


def test_a_pod_that_never_came_while_the_hub_was_away_gives_its_share_back(hub: Hub) -> None:
    hub.open("erin", wait=False, project="team-a", gpu="1", profile="slow")
    hub.until(lambda: hub.pod("erin"), "the pod")
    hub.kill()
    hub.cluster.kubectl("delete", "pod", "jupyter-erin", "-n", hub.space(), "--force", "--grace-period=0")
    hub.start()
    hub.until(lambda: not hub.server("erin"), "the hub seeing that it is gone")
    hub.until(lambda: not hub.workload("erin"), "its share's return")


def test_a_workspace_that_was_coming_when_the_hub_was_killed_can_be_stopped_and_opened_again(hub: Hub) -> None:
    hub.open("dave", wait=False, project="team-a", gpu="1", profile="slow")
    hub.until(lambda: hub.pod("dave"), "the pod")
    hub.kill()
    hub.start()
    assert hub.api.delete("/users/dave/server").status_code in {202, 204}
    hub.until(lambda: not hub.server("dave"), "its end")
    assert not hub.pod("dave")
    hub.until(lambda: not hub.workload("dave"), "its share's return")
    hub.open("dave", project="team-a", gpu="1")
    hub.close("dave")


@contextlib.contextmanager
def servers_that_can_end(hub: Hub) -> Iterator[Callable[[], None]]:
    """Those of this test; call what it gives, and nobody answers at their addresses."""
    answering = hub.notebook
    with contextlib.ExitStack() as own:
        hub.kill()
        hub.notebook = own.enter_context(pretended_notebook())
        hub.start()
        yield own.close
    hub.kill()
    hub.notebook = answering
    hub.start()


def end_slowly(hub: Hub, user: str) -> None:
    hub.cluster.kubectl("annotate", "pod", f"jupyter-{user}", "-n", hub.space(), "test.hotdesk.io/stops-in=10m")


def end_now(hub: Hub, user: str) -> None:
    hub.cluster.kubectl("delete", "pod", f"jupyter-{user}", "-n", hub.space(), "--force", "--grace-period=0")


def ask_to_stop(hub: Hub, user: str) -> None:
    with contextlib.suppress(httpx.HTTPError):  # the hub is killed before it answers
        hub.api.delete(f"/users/{user}/server")


def test_a_workspace_that_its_user_was_stopping_when_the_hub_was_killed_ends_as_stopped(hub: Hub) -> None:
    with servers_that_can_end(hub) as end_servers, ThreadPoolExecutor() as beside:
        hub.open("erin", project="team-a", gpu="1")
        end_slowly(hub, "erin")
        beside.submit(ask_to_stop, hub, "erin")
        hub.until(lambda: "deletionTimestamp" in hub.pod("erin")["metadata"], "the pod being told")
        hub.kill()
        end_servers()
        hub.start()
        assert hub.server("erin")["pending"] == "stop"
        end_now(hub, "erin")
        hub.until(lambda: not hub.server("erin"), "its end")
        hub.until(lambda: not hub.workload("erin"), "its share's return, and no failure")


def test_a_pod_that_is_ending_when_the_hub_comes_is_not_asked_whether_it_answers(hub: Hub) -> None:
    with servers_that_can_end(hub) as end_servers:
        hub.open("frank", project="team-a", gpu="1")
        end_slowly(hub, "frank")
        hub.until(lambda: hub.workload("frank")["status"] == "Running", "the scheduler knowing it")
        hub.kill()
        hub.cluster.kubectl("delete", "pod", "jupyter-frank", "-n", hub.space(), "--wait=false")
        end_servers()
        hub.start()
        assert hub.server("frank")["pending"] == "check"
        end_now(hub, "frank")
        hub.until(lambda: not hub.server("frank"), "its end")
        assert "frank's server never showed up" not in hub.log
        hub.until(lambda: not hub.workload("frank").get("gpu_millis_allocated"), "its share's return")


def test_each_projects_namespace_has_its_own_claim_and_keeps_it(hub: Hub) -> None:
    hub.open("alice", project="team-a", gpu="0")
    first = hub.claim("alice", "team-a")
    assert first["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == hub.pod("alice")["spec"]["nodeName"]
    hub.close("alice")
    assert hub.claim("alice", "team-a"), "the home is kept"
    hub.open("alice", project="team-b", gpu="0")
    assert hub.pod("alice", "team-b")
    assert hub.claim("alice", "team-b")["metadata"]["uid"] != first["metadata"]["uid"]
    hub.close("alice")
    hub.open("alice", project="team-a", gpu="0")
    assert hub.claim("alice", "team-a")["metadata"]["uid"] == first["metadata"]["uid"]
    hub.close("alice")


def event(name: str, uid: str, said: str, *, seconds_ago: float = 0) -> dict[str, Any]:
    when = (datetime.now(UTC) - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{uuid.uuid4().hex[:8]}"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid},
        "type": "Normal",
        "reason": "Told",
        "message": said,
        "firstTimestamp": when,
        "lastTimestamp": when,
    }


def tell(hub: Hub, project: str, one: dict[str, Any]) -> None:
    one["involvedObject"]["namespace"] = one["metadata"]["namespace"] = hub.space(project)
    hub.cluster.kubectl("create", "-n", hub.space(project), "-f", "-", given=json.dumps(one))


def test_progress_shows_events_of_its_own_pod_only(hub: Hub) -> None:
    tell(hub, "team-a", event("jupyter-frank", "an-earlier-one", "of the pod before", seconds_ago=60))
    hub.open("frank", wait=False, project="team-a", gpu="0", profile="slow")
    pod = hub.until(lambda: hub.pod("frank"), "the pod")
    tell(hub, "team-b", event("jupyter-frank", "somebody-elses", "of another namespace"))
    tell(hub, "team-a", event("jupyter-frank", "an-earlier-one", "killed at last"))
    tell(hub, "team-a", event("jupyter-frank", pod["metadata"]["uid"], "of this pod"))
    page = hub.watch("frank")
    page.says("of this pod")
    hub.cluster.kubectl("annotate", "pod", "jupyter-frank", "-n", hub.space(), "test.hotdesk.io/waits-")
    hub.until(lambda: page.events[-1].get("ready"), "the stream's end")
    said = " ".join(page.messages)
    assert "Placed on" in said
    for other in ("of the pod before", "of another namespace", "killed at last"):
        assert other not in said
    hub.close("frank")


def test_a_server_that_crashes_is_told_as_a_failure_and_gives_its_share_back(hub: Hub) -> None:
    hub.open("erin", project="team-a", gpu="1", profile="crash")
    hub.until(lambda: not hub.server("erin"), "the hub seeing that it is gone")
    found = hub.until(lambda: hub.workload("erin") if hub.workload("erin").get("status") == "Failed" else None, "the report")
    assert found["gpu_millis_allocated"] == 0
    assert found["pods"][0]["exit_code"] == 3
    hub.open("erin", project="team-a", gpu="0")
    hub.close("erin")


def test_a_stop_takes_no_longer_than_the_server_does_which_has_time_to_write_what_it_holds(hub: Hub) -> None:
    hub.open("carol", project="team-a", gpu="1")
    asked_at = time.monotonic()
    hub.close("carol")
    assert time.monotonic() - asked_at < AT_ONCE_S
    hub.open("carol", project="team-a", gpu="1")
    hub.cluster.kubectl("annotate", "pod", "jupyter-carol", "-n", hub.space(), "test.hotdesk.io/stops-in=3s")
    asked_at = time.monotonic()
    with ThreadPoolExecutor() as beside:
        beside.submit(hub.close, "carol")
        given_s = hub.until(lambda: hub.pod("carol")["metadata"].get("deletionGracePeriodSeconds"), "the pod being told")
    assert given_s == HotdeskKubeSpawner.grace_s.default_value
    assert 3 <= time.monotonic() - asked_at < 3 + AT_ONCE_S


def test_the_form_has_the_queues_part_and_kubespawners_profiles(hub: Hub) -> None:
    with hub.browser("dave") as page:
        shown = page.get("/hub/spawn/dave").text
        assert "team-a — quota 4" in shown
        assert 'value="chosen"' in shown
        sent = {"project": "team-a", "gpu_mode": "whole", "gpus": "1", "profile": "chosen", "profile-option-chosen--image": "torch"}
        page.post("/hub/spawn/dave", data={**sent, "_xsrf": page.cookies.get("_xsrf", path="/hub/") or ""})
    hub.until(lambda: hub.is_ready("dave"), "the workspace")
    shown_pod = container(hub.pod("dave"))
    assert (shown_pod["image"], shown_pod["resources"]["limits"]["nvidia.com/gpu"]) == ("torch:3", "1")
    hub.close("dave")


def set_state(hub: Hub, user: str, state: dict[str, Any], **more: Any) -> None:
    """Of the server in its pod, as its kubelet would write it; the pod itself runs on."""
    status = {"name": "notebook", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state, **more}
    patch = json.dumps({"status": {"phase": "Running", "containerStatuses": [status]}})
    hub.cluster.kubectl("patch", "pod", f"jupyter-{user}", "-n", hub.space(), "--subresource=status", "--type=merge", "-p", patch)


def test_a_server_that_its_node_starts_again_keeps_its_share_and_one_that_only_crashes_gives_it_back(hub: Hub) -> None:
    hub.open("grace", project="team-a", gpu="1")
    pod = hub.pod("grace")
    run = {"exitCode": 137, "startedAt": "2026-01-01T10:00:00Z", "finishedAt": "2026-01-01T10:00:02Z"}
    set_state(hub, "grace", {"terminated": run})
    time.sleep(5 * POLL_EVERY_S)
    set_state(hub, "grace", {"waiting": {"reason": "CrashLoopBackOff"}}, restartCount=1, lastState={"terminated": run})
    time.sleep(5 * POLL_EVERY_S)
    assert hub.is_ready("grace")
    assert hub.pod("grace")["metadata"]["uid"] == pod["metadata"]["uid"]
    assert hub.workload("grace")["gpu_millis_allocated"] == 1000
    set_state(hub, "grace", {"waiting": {"reason": "CrashLoopBackOff"}}, restartCount=MOST_CRASHES, lastState={"terminated": run})
    hub.until(lambda: not hub.server("grace"), "the hub seeing that it will not come up")
    found = hub.until(lambda: hub.workload("grace") if hub.workload("grace").get("status") == "Failed" else None, "the report")
    assert (found["gpu_millis_allocated"], found["pods"][0]["exit_code"]) == (0, 137)
    assert not hub.pod("grace")


def provide(hub: Hub, user: str) -> None:
    """As the provisioner of node-local storage does, once it is told to and where: a volume that only that node reaches."""
    asked = "volume.kubernetes.io/storage-provisioner"
    claim = hub.until(lambda: found if asked in (found := hub.claim(user))["metadata"]["annotations"] else None, "its volume asked for")
    node = claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"]
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": claim["spec"]["storageClassName"],
        "claimRef": {"namespace": hub.space(), "name": f"home-{user}", "uid": claim["metadata"]["uid"]},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        "local": {"path": "/played"},
    }
    hub.cluster.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"{hub.namespace}-{user}"}, "spec": spec})
    hub.until(lambda: hub.claim(user)["status"]["phase"] == "Bound", "the claim being bound")


def test_a_workspace_whose_home_lies_on_one_node_starts_there_again_or_says_that_it_waits_for_it(hub: Hub) -> None:
    storage = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": f"{hub.namespace}-local"}}
    hub.cluster.apply({**storage, "provisioner": "test.hotdesk.io/played", "volumeBindingMode": "WaitForFirstConsumer"})
    try:
        hub.open("heidi", project="team-a", gpu="0", profile="local")
        home = hub.pod("heidi")["spec"]["nodeName"]
        provide(hub, "heidi")
        hub.close("heidi")
        limits = {"limits": {"nvidia.com/gpu": "8"}}
        hog = {"nodeName": home, "containers": [{"name": "main", "image": "x", "resources": limits}]}
        hub.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hog"}, "spec": hog}, namespace=hub.namespace)
        hub.open("heidi", wait=False, project="team-a", gpu="1", profile="local")
        words = f"Its volume home-heidi lies on node {home}."
        hub.until(lambda: words in ((hub.workload("heidi").get("reason") or {}).get("sentence") or ""), "why it waits")
        assert not hub.pod("heidi")
        hub.cluster.kubectl("delete", "pod", "hog", "-n", hub.namespace, "--force", "--grace-period=0")
        hub.until(lambda: hub.is_ready("heidi"), "its start")
        assert hub.pod("heidi")["spec"]["nodeName"] == home
        hub.close("heidi")
    finally:
        hub.cluster.kubectl("delete", "storageclass", f"{hub.namespace}-local", "--wait=false")
        hub.cluster.kubectl("delete", "persistentvolume", f"{hub.namespace}-heidi", "--ignore-not-found", "--wait=false")
