"""JupyterHub's configuration in the chart's hub: its values (a file), its passwords and tokens (variables), then what the operator wrote.

Rendered by helm/hotdesk/templates/hub-secrets.yaml. What Hotdesk itself needs is `on_cluster`'s.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hotdesk_api.units import parse_duration_s
from jupyterhub.app import JupyterHub
from traitlets import TraitError
from traitlets.config.loader import LazyConfigValue

from hotdesk_hub import on_cluster, roles
from hotdesk_hub.config import ADMIN, QUIET_LAB, run_own_text

VALUES = Path("/etc/hotdesk/values.json")
HUB_PORT = 8081
_LOOK_AT_PROXY_S = 15  # how long workspaces may be out of reach after another proxy has come; JupyterHub's own is 300
_ANSWERS_WITHIN_S = 60  # from when its pod runs; JupyterHub's own 30 is short for a server that starts from a slow disk
_OURS = "shared-password"
Values = Mapping[str, Any]


def configure(c: Any, *, values_file: Path = VALUES, environment: Mapping[str, str] = os.environ) -> None:
    values = json.loads(values_file.read_text())
    c.Spawner = c.KubeSpawner  # one section under both names: JupyterHub writes the first, and what stands in the second would win
    _hub(c, values, environment)
    _log_in(c, values["admins"], environment)
    c.JupyterHub.load_groups = {project: {"users": members} for project, members in values["members"].items()}
    _workspaces(c, values["workspaces"])
    if values["graceS"]:
        c.HotdeskKubeSpawner.grace_s = parse_duration_s(values["graceS"])
    on_cluster.configure(
        c,
        scheduler_url=values["schedulerUrl"],
        scheduler_token=environment["HOTDESK_HUB_SCHEDULER_TOKEN"],
        spawner_token=environment["HOTDESK_HUB_SPAWNER_TOKEN"],
    )
    for name, settings in values["config"].items():
        for setting, value in settings.items():
            add(c[name], setting, value)
    for name, text in sorted(values["extraConfig"].items()):
        run_own_text(text, c, name=f"hub.extraConfig.{name}")
    del c["Spawner"]  # traitlets goes through both names, and what was appended to a list would be there twice
    _let_in(c)
    _administer(c)


def add(section: Any, setting: str, value: Any) -> None:
    """Lists and mappings are added to what is there: who names a service does not mean that ours goes. A command is one thing.

    Of roles and services there is one of each name.
    """
    there = section.get(setting)
    if setting == "cmd":
        section[setting] = value
    elif setting == "load_roles":
        section[setting] = roles.added(there, value)
    elif setting == "services":
        section[setting] = on_cluster.with_services(value, there)
    elif isinstance(value, list) and isinstance(there, list | LazyConfigValue):
        there.extend(value)
    elif (isinstance(value, list) and isinstance(there, set)) or (isinstance(value, dict) and isinstance(there, dict | LazyConfigValue)):
        there.update(value)
    else:
        section[setting] = value


def _hub(c: Any, values: Values, environment: Mapping[str, str]) -> None:
    c.JupyterHub.base_url = values["baseUrl"]
    c.JupyterHub.hub_bind_url = f"http://:{HUB_PORT}"
    c.JupyterHub.hub_connect_url = values["hubUrl"]
    c.JupyterHub.db_url = _with_driver(environment.get("HOTDESK_HUB_DATABASE_URL") or "sqlite:///jupyterhub.sqlite")
    c.JupyterHub.cleanup_proxy = False  # a hub that stops leaves the ways to workspaces
    c.JupyterHub.last_activity_interval = _LOOK_AT_PROXY_S
    c.ConfigurableHTTPProxy.should_start = False
    c.ConfigurableHTTPProxy.api_url = values["proxyApiUrl"]


def _with_driver(url: str) -> str:
    """PostgreSQL is spoken to with the driver that is in the image, also where its URL names none."""
    scheme, mark, rest = url.partition("://")
    return f"postgresql+psycopg://{rest}" if mark and scheme in ("postgres", "postgresql") else url


def _log_in(c: Any, admins: Sequence[str], environment: Mapping[str, str]) -> None:
    """Until an operator chooses another: one password for admins, one for everybody else, made by the chart."""
    c.JupyterHub.authenticator_class = _OURS
    c.Authenticator.admin_users = set(admins)
    c.SharedPasswordAuthenticator.admin_password = environment.get("HOTDESK_HUB_ADMIN_PASSWORD")
    c.SharedPasswordAuthenticator.user_password = environment.get("HOTDESK_HUB_USER_PASSWORD")


def _let_in(c: Any) -> None:
    """By our own log-in whoever knows the password, unless it was said otherwise; a project's members are another question."""
    said = [*c.Authenticator, *c.SharedPasswordAuthenticator]
    if c.JupyterHub.authenticator_class == _OURS and not any(setting.startswith("allow") for setting in said):
        c.Authenticator.allow_all = True


def _administer(c: Any) -> None:
    """Who was named, for any log-in or this one; otherwise our own has ADMIN. In another one, whoever calls himself that is not ours."""
    is_ours = c.JupyterHub.authenticator_class == _OURS
    named = [c[name] for name in _sections_of(c.JupyterHub.authenticator_class) if name in c and "admin_users" in c[name]]
    admins = set().union(*(_people(section.admin_users) for section in named)) or ({ADMIN} if is_ours else set())
    for section in named:
        section.admin_users = admins  # in each: that of a class wins over Authenticator's
    for role in c.JupyterHub.load_roles:
        if role["name"] == roles.ADMINS:
            role["users"] = sorted({*role.get("users", ()), *admins})


def _sections_of(log_in: Any) -> Sequence[str]:
    """Those that JupyterHub reads for it: what is left of another log-in names people of that one."""
    try:
        sections: Sequence[str] = JupyterHub.authenticator_class.validate(None, log_in).section_names()
    except (ImportError, AttributeError, TraitError):  # JupyterHub will say so
        return ["Authenticator"]
    return sections


def _people(named: Any) -> set[str]:
    return set(named.get_value(set()) if isinstance(named, LazyConfigValue) else named)


def _workspaces(c: Any, values: Values) -> None:
    spawner = c.KubeSpawner
    spawner.image = values["image"]
    spawner.image_pull_policy = values["imagePullPolicy"]
    spawner.cmd = values["command"] or None
    spawner.args = list(QUIET_LAB)
    spawner.default_url = values["defaultUrl"]
    spawner.environment = values["environment"]
    spawner.node_selector = values["nodeSelector"]
    spawner.tolerations = values["tolerations"]
    spawner.profile_list = values["profiles"]
    spawner.start_timeout = values["startTimeoutS"]
    spawner.http_timeout = _ANSWERS_WITHIN_S
    spawner.uid = spawner.gid = spawner.fs_gid = values["user"]
    spawner.pod_security_context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    spawner.container_security_context = {"capabilities": {"drop": ["ALL"]}}
    spawner.cpu_guarantee = values["cpu"]["guarantee"] or None
    spawner.cpu_limit = values["cpu"]["limit"] or None
    spawner.mem_guarantee = values["memory"]["guarantee"] or None
    spawner.mem_limit = values["memory"]["limit"] or None
    _home(spawner, values["home"])


def _home(spawner: Any, home: Values) -> None:
    volume: dict[str, Any] = {"name": "home", "emptyDir": {}}
    if home["type"] == "claim":
        spawner.storage_pvc_ensure = True
        spawner.delete_pvc = False  # a home in each project: who goes leaves them to the projects, and the hub may delete none
        spawner.pvc_name_template = "home-{username}"
        spawner.storage_capacity = home["capacity"]
        spawner.storage_class = home["storageClass"] or None
        volume = {"name": "home", "persistentVolumeClaim": {"claimName": "{pvc_name}"}}
    spawner.volumes = [volume]
    spawner.volume_mounts = [{"name": "home", "mountPath": home["path"]}]
    spawner.working_dir = home["path"]
