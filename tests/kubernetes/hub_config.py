"""A real hub for tests on a cluster that kwok plays: no proxy; in place of a notebook, whatever answers at PRETENDED_SERVER."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlparse

from hotdesk_hub.on_cluster import configure
from pretended_hub import NoProxy, PretendedSpawner

c: Any = get_config()  # type: ignore[name-defined]  # noqa: F821  JupyterHub runs this file
POOL = os.environ["NODE_POOL"]


c.JupyterHub.services = [{"name": "tests", "api_token": os.environ["TESTS_TOKEN"]}]
c.JupyterHub.load_roles = [{"name": "tests", "services": ["tests"], "scopes": ["admin:users", "admin:servers", "access:servers"]}]
configure(
    c,
    scheduler_url=os.environ["SCHEDULER_URL"],
    scheduler_token=os.environ["SCHEDULER_TOKEN"] * 4,
    spawner_token=os.environ["SCHEDULER_TOKEN"],
)
assert c.JupyterHub.spawner_class == "hotdesk-kube"
c.JupyterHub.spawner_class = PretendedSpawner
c.JupyterHub.proxy_class = NoProxy
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.hub_bind_url = os.environ["HUB_URL"]
c.JupyterHub.bind_url = "http://127.0.0.1:" + str(urlparse(os.environ["HUB_URL"]).port)
c.JupyterHub.db_url = "sqlite:///hub.sqlite"
c.JupyterHub.cleanup_proxy = False
c.JupyterHub.load_groups = {
    "team-a": {"users": ["alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi"]},
    "team-b": {"users": ["alice"]},
}

c.KubeSpawner.image = "notebook:1"
c.KubeSpawner.cmd = ["jupyterhub-singleuser"]
c.KubeSpawner.node_selector = {"hotdesk.io/pool": POOL}
c.KubeSpawner.start_timeout = 120
c.KubeSpawner.poll_interval = 1
c.KubeSpawner.mem_guarantee = "256M"
c.KubeSpawner.storage_pvc_ensure = True
c.KubeSpawner.storage_class = "nobody-provisions-this"
c.KubeSpawner.storage_capacity = "1Gi"
c.KubeSpawner.pvc_name_template = "home-{username}"
c.KubeSpawner.volumes = [{"name": "home", "persistentVolumeClaim": {"claimName": "{pvc_name}"}}]
c.KubeSpawner.volume_mounts = [{"name": "home", "mountPath": "/home/jovyan"}]
ONE_GPU = {"image": "big:2", "extra_resource_limits": {"nvidia.com/gpu": "1"}, "mem_limit": "2G"}
c.KubeSpawner.profile_list = [
    {"display_name": "Plain", "slug": "plain", "default": True},
    {"display_name": "Big", "slug": "big", "kubespawner_override": ONE_GPU},
    {
        "display_name": "Chosen",
        "slug": "chosen",
        "profile_options": {"image": {"display_name": "Image", "choices": {"torch": {"kubespawner_override": {"image": "torch:3"}}}}},
    },
    {"display_name": "Elsewhere", "slug": "elsewhere", "kubespawner_override": {"node_selector": {"disk": "ssd"}}},
    {"display_name": "Slow", "slug": "slow", "kubespawner_override": {"extra_annotations": {"test.hotdesk.io/waits": "PodInitializing"}}},
    {"display_name": "Local", "slug": "local", "kubespawner_override": {"storage_class": f"{POOL}-local"}},
    {
        "display_name": "Crash",
        "slug": "crash",
        "kubespawner_override": {"extra_annotations": {"test.hotdesk.io/runs-for": "4s", "test.hotdesk.io/exit-code": "3"}},
    },
]
