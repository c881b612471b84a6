"""The chart on a real node, with images of what our Dockerfiles install: from nothing to workspaces and jobs, upgraded and taken away."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from cluster.node_image import node_image_of
from cluster.python_image import REPOSITORY, image_of
from cluster.real_node import NODE, import_image
from cluster.running import Cluster, KubectlError
from helm_chart import CHART, Json, asked_by, granted_to, helm, render, why_no_helm
from hotdesk_api import calls
from hotdesk_api.client import Client
from hotdesk_api.errors import HotdeskError
from hotdesk_scheduler.engines.kubernetes import crds
from kube_world import NODES
from people import Person
from scheduler_fixture import ALICE, CALLERS
from story import FOUR_TEAMS, QUOTAS, InNotebook, play_four_teams
from websocket import WebSocketException
from workspaces import Kernel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.skipif(why_no_helm() is not None, reason=str(why_no_helm()))]
_KINDS = (
    "deployments,services,poddisruptionbudgets,networkpolicies,secrets,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings"
)
_DEFINITIONS = tuple(definition["metadata"]["name"] for definition in crds.definitions())
_IMAGES = {"scheduler": "scheduler", "hub": "hub", "notebook": "extension"}
_POOL = "hotdesk.io/pool"
_PROXY = "app.kubernetes.io/component=proxy"
_PATIENCE_S = 180.0


@dataclass(frozen=True, slots=True)
class Release:
    cluster: Cluster
    namespace: str

    def space(self, project: str) -> str:
        """Where its workloads live."""
        return f"{self.namespace}-{project}"

    def helm(self, *arguments: str, values: Json | None = None) -> str:
        where = ("-n", self.namespace, "--kubeconfig", str(self.cluster.kubeconfig))
        return helm(*arguments, *where, values=values, timeout_s=300)

    def whole(self) -> Json:
        """Values of all of Hotdesk: `research` and the four teams, `demo` in all of them."""
        own = {"tag": "1", "pullPolicy": "Never"}
        by_hand = {"storageClass": "by-hand"}
        return {
            **self.alone(),
            "tokens": {"existingSecret": ""},
            "hub": {
                "image": {"repository": "localhost/hub", **own},
                "members": {"research": ["demo", "bob"], **{project: ["demo"] for project in QUOTAS}},
                "database": by_hand,
            },
            "proxy": {"image": {"repository": "localhost/proxy", **own}},
            "workspaces": {"image": {"repository": "localhost/notebook", **own}, "home": by_hand, "nodeSelector": {_POOL: "real"}},
        }

    def alone(self) -> Json:
        """Values of the scheduler without a hub."""
        return {
            "image": {"repository": "localhost/scheduler", "tag": "1", "pullPolicy": "Never"},
            "hub": {"enabled": False},
            "tokens": {"existingSecret": "tokens"},
            "projectPrefix": f"{self.namespace}-",
            "seedProjects": {"research": "4", **{project: str(quota // 1000) for project, quota in QUOTAS.items()}},
            "settings": {"HOTDESK_GRACE_S": "1"},
            "nodeSelector": {"kubernetes.io/hostname": NODE},
        }

    def address(self, service: str) -> str:
        """Of the Service, as this machine reaches it."""
        return "http://" + str(self.cluster.get("service", service, "-n", self.namespace)["spec"]["clusterIP"])

    def password(self, key: str) -> str:
        """As the notes say to read it."""
        text = self.cluster.kubectl("get", "secret", "hotdesk-hub", "-n", self.namespace, "-o", f"jsonpath={{.data.{key}}}")
        return base64.b64decode(text).decode()

    def pods(self, namespace: str, labels: str) -> list[Json]:
        found: list[Json] = self.cluster.get("pods", "-n", namespace, "-l", labels)["items"]
        return found

    def pod_of(self, user: str) -> Json:
        """Of the person's workspace in `research`; empty if there is none."""
        pods = self.pods(self.space("research"), f"hub.jupyter.org/username={user}")
        return pods[0] if pods else {}

    def leader(self) -> str:
        """Its pod; empty between two."""
        found = self.pods(self.namespace, "hotdesk.io/leads=true")
        return str(found[0]["metadata"]["name"]) if len(found) == 1 else ""

    def running(self) -> dict[str, str]:
        """Pods of all projects that run, by name: their ids."""
        spaces = [self.space(project) for project in ("research", *QUOTAS)]
        pods = [pod for space in spaces for pod in self.cluster.get("pods", "-n", space)["items"]]
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods if pod["status"]["phase"] == "Running"}

    def until(self, what: str, holds: object) -> None:
        self.cluster.wait_until(what, holds, timeout_s=_PATIENCE_S)  # type: ignore[arg-type]  # any that can be called

    def volume(self, namespace: str, claim: str) -> None:
        """A folder of this machine for a claim: nobody provides volumes here."""
        folder = self.cluster.folder / "volumes" / f"{namespace}-{claim}"
        folder.mkdir(parents=True)
        folder.chmod(0o777)  # the kubelet gives a folder of the host to nobody
        spec = {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "by-hand",
            "claimRef": {"namespace": namespace, "name": claim},
            "hostPath": {"path": str(folder)},
        }
        meta = {"name": folder.name, "labels": {"test.hotdesk.io/namespace": self.namespace}}
        self.cluster.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": meta, "spec": spec})


@pytest.fixture
def release(real_cluster: Cluster, real_namespace: str, tmp_path: Path) -> Iterator[Release]:
    if real_cluster.external:
        pytest.skip("KUBECONFIG names another cluster: our image cannot be put on its nodes")
    for name, folder in _IMAGES.items():
        import_image(real_cluster.folder, image_of(REPOSITORY / folder / "Dockerfile", f"localhost/{name}:1"))
    import_image(real_cluster.folder, node_image_of(REPOSITORY / "hub" / "proxy" / "Dockerfile", "localhost/proxy:1"))
    (tmp_path / "tokens.json").write_text(json.dumps(CALLERS))
    real_cluster.kubectl("create", "secret", "generic", "tokens", "-n", real_namespace, f"--from-file={tmp_path / 'tokens.json'}")
    # What engine tests on this cluster leave and each puts again: Helm takes over nothing that others made, nothing runs on played nodes.
    real_cluster.kubectl("delete", "nodes", *NODES, "--ignore-not-found", timeout_s=90)
    real_cluster.kubectl("delete", "customresourcedefinitions", *_DEFINITIONS, "--ignore-not-found", "--timeout=60s", timeout_s=90)
    real_cluster.kubectl("label", "node", NODE, f"{_POOL}=real")
    real_cluster.add_nodes(2, owner=real_namespace, labels={_POOL: "played", "nvidia.com/gpu.memory": "32768"})
    made = Release(real_cluster, real_namespace)
    yield made
    made.helm("uninstall", "hotdesk", "--ignore-not-found")
    real_cluster.kubectl("label", "node", NODE, f"{_POOL}-")
    for space in [made.space(project) for project in ("research", *QUOTAS, "reservations")]:
        with contextlib.suppress(KubectlError):  # it was never made
            for name in real_cluster.kubectl("get", "workloads", "-n", space, "-o", "name").split():
                real_cluster.kubectl("patch", name, "-n", space, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
        real_cluster.end_test(space)
    real_cluster.kubectl("delete", "persistentvolumes", "-l", f"test.hotdesk.io/namespace={real_namespace}", "--wait=false")


def test_from_nothing_to_workspaces_and_jobs_that_outlive_upgrade_and_uninstall(release: Release) -> None:
    _install(release)
    demo = Person(release.address("hotdesk-proxy"), "demo", release.password("user-password"))
    kernel = _open_workspace(release, demo)
    _run_a_job(release, InNotebook(demo))
    play_four_teams(InNotebook(demo), on=" --node-pools played")
    _start_after_a_bad_start(release)

    before = release.running()
    _upgrade(release)
    _lose_the_leader(release)
    _lose_the_proxy(release)
    again = _connected_again(release, demo, kernel)
    assert again.run("print(kept)").text == "in memory\n"
    assert release.running() == before

    assert asked_by(release.cluster, release.namespace, "hotdesk-hub") == (granted_to(render(release.whole()), "hub"), set())
    demo.close()
    release.until("the workspace's pod is gone", lambda: not release.pod_of("demo"))
    _uninstall(release, {name: uid for name, uid in before.items() if not name.startswith("jupyter-demo")})
    _install_the_scheduler_alone(release)


def _install(release: Release) -> None:
    release.volume(release.namespace, "hotdesk-hub")
    notes = release.helm("install", "hotdesk", str(CHART), "--wait", "--timeout", "240s", values=release.whole())
    assert "hub, proxy and 2 schedulers, of which one leads" in notes
    assert "jsonpath='{.data.user-password}'" in notes
    own = release.pods(release.namespace, "app.kubernetes.io/instance=hotdesk")
    assert [one["restartCount"] for pod in own for one in pod["status"]["containerStatuses"]] == [0, 0, 0, 0]
    release.helm("test", "hotdesk", "--timeout", "240s")


def _open_workspace(release: Release, demo: Person) -> Kernel:
    """On half a GPU, in a home that is kept; what runs in it knows its share, its project and no secret of the hub's."""
    release.volume(release.space("research"), "home-demo")
    assert "research" in demo.browse().get("/hub/spawn").text
    answer = demo.ask(project="research", gpu="0.5")
    assert answer.status_code in (201, 202), answer.text
    release.until("the workspace is ready", demo.is_ready)
    assert "jupyter-config-data" in demo.browse().get("/user/demo/lab").text
    kernel = demo.kernel()
    kernel.run("kept = 'in memory'")
    seen = kernel.run("import os; open('there', 'w').write('kept'); print(dict(os.environ), os.getcwd(), os.getuid())").text
    assert "'NVIDIA_VISIBLE_DEVICES': 'GPU-fake-" in seen
    assert f"'HOTDESK_API_URL': 'http://hotdesk.{release.namespace}.svc:80'" in seen
    assert "/home/jovyan 1000" in seen
    assert (release.cluster.folder / "volumes" / f"{release.space('research')}-home-demo" / "there").read_text() == "kept"
    assert [key for key in ("admin-password", "user-password", "proxy-token", "spawner-token") if release.password(key) in seen] == []
    return kernel


def _run_a_job(release: Release, notebook: InNotebook) -> None:
    job = "submit hello -i localhost/busybox:1 --image-pull-policy Never -g 0.5 --node-pools real"
    shown = notebook.line(f"{job} --command -- sh -c 'echo on $NVIDIA_VISIBLE_DEVICES; sleep 3600'")
    assert "submitted successfully" in shown
    own = notebook.kernel.run("print(os.environ['NVIDIA_VISIBLE_DEVICES'])").text.strip()
    release.until("it runs on the other half of the workspace's GPU", lambda: f"on {own}" in notebook.line("logs hello"))
    assert "Running" in notebook.line("list")
    notebook.kernel.run("%%runai submit cell --node-pools real\nprint('the cell says', 6 * 7)")
    release.until("the cell ran", lambda: "the cell says 42" in notebook.line("logs cell"))
    pods = release.pods(release.space("research"), "hotdesk.io/workload=cell")
    assert [pod["spec"]["containers"][0]["image"] for pod in pods] == ["localhost/notebook:1"]
    notebook.line("delete hello cell")
    release.until("both are gone", lambda: not release.pods(release.space("research"), "hotdesk.io/workload in (hello,cell)"))


def _start_after_a_bad_start(release: Release) -> None:
    """A claim that got no volume has lost its node, as a failed provisioning leaves it: the next start names it again."""
    bob = Person(release.address("hotdesk-proxy"), "bob", release.password("user-password"))
    claim = ("persistentvolumeclaim", "home-bob", "-n", release.space("research"))
    bob.ask(project="research", gpu="0")
    release.until("the pod waits for its volume", lambda: release.pod_of("bob"))
    bob.close()
    release.cluster.kubectl("annotate", *claim, "volume.kubernetes.io/selected-node-")
    release.until("the hub starts it anew", lambda: bob.ask(project="research", gpu="0").status_code in {201, 202})
    release.until("the pod waits again", lambda: release.pod_of("bob"))
    assert release.cluster.get(*claim)["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == NODE
    release.volume(release.space("research"), "home-bob")
    release.until("the workspace is ready", bob.is_ready)


def _upgrade(release: Release) -> None:
    """Hub, scheduler and proxy start anew."""
    changed = release.whole() | {"podAnnotations": {"test.hotdesk.io/upgraded": "yes"}}
    release.helm("upgrade", "hotdesk", str(CHART), "--wait", "--timeout", "240s", values=changed)
    password = release.password("user-password")

    def is_ready() -> bool:
        with contextlib.suppress(AssertionError, httpx.TransportError):  # a new proxy knows no way until the hub has looked after it
            again = Person(release.address("hotdesk-proxy"), "demo", password)
            try:
                return again.is_ready()
            finally:
                again.http.close()
        return False

    release.until("people log in again, and the hub knows the workspace", is_ready)


def _lose_the_leader(release: Release) -> None:
    release.until("one leads", release.leader)
    before = release.leader()
    release.cluster.kubectl("delete", "pod", before, "-n", release.namespace, "--force", "--grace-period=0")
    release.until("another one leads", lambda: release.leader() not in ("", before))


def _lose_the_proxy(release: Release) -> None:
    lost = release.pods(release.namespace, _PROXY)[0]["metadata"]
    release.cluster.kubectl("delete", "pod", lost["name"], "-n", release.namespace, "--force", "--grace-period=0")
    release.until("another proxy answers", lambda: any(_is_ready(pod, not_=lost["uid"]) for pod in release.pods(release.namespace, _PROXY)))


def _is_ready(pod: Json, *, not_: str) -> bool:
    conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", ())}
    return pod["metadata"]["uid"] != not_ and conditions.get("Ready") == "True"


def _connected_again(release: Release, demo: Person, kernel: Kernel) -> Kernel:
    """As JupyterLab goes on trying, while a new proxy does not know the ways to workspaces yet."""
    found: list[Kernel] = []

    def is_connected() -> bool:
        with contextlib.suppress(OSError, ValueError, WebSocketException):  # no proxy, or one that sends it to the hub
            found.append(Kernel(f"{demo.hub_url}/user/demo/", demo.token, kernel.kernel_id, connect_timeout_s=5))
        return bool(found)

    release.cluster.wait_until("the workspace answers again", is_connected, timeout_s=60)
    return found[0]


def _uninstall(release: Release, running: dict[str, str]) -> None:
    """What the notes say stays, and nothing else."""
    release.helm("uninstall", "hotdesk", "--wait")
    assert release.running() == running
    assert not release.cluster.kubectl("get", _KINDS, "-A", "-l", "app.kubernetes.io/instance=hotdesk", "-o", "name").split()
    claims = release.cluster.kubectl("get", "persistentvolumeclaims", "-A", "-l", "app.kubernetes.io/instance=hotdesk", "-o", "name")
    assert claims.split() == ["persistentvolumeclaim/hotdesk-hub"]


def _install_the_scheduler_alone(release: Release) -> None:
    """Without a hub, over what an earlier release left: it finds what runs."""
    notes = release.helm("install", "hotdesk", str(CHART), "--wait", "--timeout", "240s", values=release.alone())
    assert "2 replicas, of which one leads" in notes
    release.helm("test", "hotdesk", "--timeout", "240s")
    name = FOUR_TEAMS[1].split()[1]
    release.until("it says what runs", lambda: _status(release, name) == "Running")


def _status(release: Release, name: str) -> str:
    """As the API says it; empty while nobody answers."""
    with contextlib.suppress(HotdeskError):
        return str(Client(release.address("hotdesk"), ALICE).call(calls.workload("team-a", name)).status)
    return ""
