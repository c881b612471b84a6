"""The hub of a Zero-to-JupyterHub release as far as its documentation says how values become configuration. Written for these tests.

`singleuser.*` sets KubeSpawner's options, `hub.services` and `hub.loadRoles` become lists, `hub.config` is merged into `c`, and
`hub.extraConfig` is run last, in the order of its names, with `c` and the functions of `z2jh` in scope.
"""

import os
import sys
from pathlib import Path
from typing import Any

c: Any = get_config()  # noqa: F821  JupyterHub runs this file
sys.path.insert(0, str(Path(__file__).parent))

from z2jh import get_config, get_name, get_secret_value  # type: ignore[import-not-found]  # noqa: E402 - found beside this file

HUB = get_config("hub", {})
USER = get_config("singleuser", {})

c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.JupyterHub.cleanup_servers = False
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0}
c.JupyterHub.hub_bind_url = "http://:8081"
c.JupyterHub.hub_connect_url = f"http://{get_name('hub')}:{os.environ['HUB_SERVICE_PORT']}"
c.JupyterHub.base_url = HUB.get("baseUrl", "/")
c.JupyterHub.concurrent_spawn_limit = 64
c.JupyterHub.allow_named_servers = HUB.get("allowNamedServers", False)
c.JupyterHub.template_paths = HUB.get("templatePaths", [])
c.JupyterHub.template_vars = HUB.get("templateVars", {})
c.JupyterHub.cookie_secret = get_secret_value("hub.config.JupyterHub.cookie_secret")
c.Spawner.consecutive_failure_limit = 5

kube = c.KubeSpawner
kube.namespace = os.environ["POD_NAMESPACE"]
kube.common_labels = {"app": "jupyterhub", "app.kubernetes.io/name": "jupyterhub", "app.kubernetes.io/managed-by": "kubespawner"}
kube.image = f"{USER['image']['name']}:{USER['image']['tag']}"
kube.start_timeout = USER.get("startTimeout", 300)
kube.environment = USER.get("extraEnv", {})
kube.extra_labels = {"hub.jupyter.org/network-access-hub": "true", **USER.get("extraLabels", {})}
kube.extra_annotations = USER.get("extraAnnotations", {})
kube.node_selector = USER.get("nodeSelector", {})
kube.tolerations = [
    {"key": "hub.jupyter.org/dedicated", "operator": "Equal", "value": "user", "effect": "NoSchedule"},
    *USER.get("extraTolerations", []),
]
kube.lifecycle_hooks = USER.get("lifecycleHooks", {})
kube.uid, kube.fs_gid = USER.get("uid", 1000), USER.get("fsGid", 100)
kube.mem_guarantee, kube.mem_limit = USER["memory"]["guarantee"], USER["memory"]["limit"]
kube.profile_list = USER.get("profileList", [])
if get_config("scheduling.userScheduler.enabled", True):
    kube.scheduler_name = get_name("user-scheduler")
if get_config("scheduling.userPods.nodeAffinity.matchNodePurpose", "prefer") == "require":
    kube.node_affinity_required.append(
        {"matchExpressions": [{"key": "hub.jupyter.org/node-purpose", "operator": "In", "values": ["user"]}]}
    )

storage = USER["storage"]
kube.storage_pvc_ensure = True
kube.storage_class, kube.storage_capacity = storage["dynamic"]["storageClass"], storage["capacity"]
home = "volume-{user_server}"
kube.volumes = {home: {"name": home, "persistentVolumeClaim": {"claimName": "{pvc_name}"}}, **storage.get("extraVolumes", {})}
kube.volume_mounts = {home: {"name": home, "mountPath": storage["homeMountPath"]}, **storage.get("extraVolumeMounts", {})}

c.Spawner.cmd = "jupyterhub-singleuser"
c.Spawner.default_url = USER.get("defaultUrl", "")
c.JupyterHub.services = []
c.JupyterHub.load_roles = []
for key, service in HUB.get("services", {}).items():
    said = {name: value for name, value in service.items() if name != "apiToken"}
    c.JupyterHub.services.append({"name": key, **said, "api_token": get_secret_value(f"hub.services.{key}.apiToken")})
for key, role in HUB.get("loadRoles", {}).items():
    c.JupyterHub.load_roles.append({"name": key, **role})

for section, settings in HUB.get("config", {}).items():
    c[section].update(settings)
for _, text in sorted(HUB.get("extraConfig", {}).items()):
    exec(text)
