"""What makes a hub on Kubernetes Hotdesk's: workspaces are pods that wait in the scheduler's queue. Over whatever else configures the hub.

The namespace, addresses, log-in and all of `c.KubeSpawner…` stay the hub's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from aiohttp import ClientTimeout
from hotdesk_spawner.shared import why_stopped
from traitlets.config.loader import LazyConfigValue

from hotdesk_hub import handlers, roles
from hotdesk_hub.config import AT_ONCE_S, PAGES, POLL_INTERVAL_S

_ANSWER_WITHIN = ClientTimeout(total=20, sock_connect=5, sock_read=10)
INIT_SPAWNERS_S = 1  # a pod that is still coming must not hold up the hub's start


def configure(
    c: Any,
    *,
    scheduler_url: str,
    scheduler_token: str,
    spawner_token: str,
    workspace_scheduler_url: str = "",
    admins: Sequence[str] = (),
    namespace: str = "",
) -> None:
    """`scheduler_url`: as the hub reaches it. The tokens are kept in a Secret, so that they hold over restarts of the hub.

    Services and roles that are there stay; one that is called like ours is added to. `namespace`: the hub's, where `hub_connect_url`
    names a Service that workspaces in other namespaces are to reach too.
    """
    c.JupyterHub.spawner_class = "hotdesk-kube"
    c.QueuedSpawner.scheduler_url = scheduler_url
    c.QueuedSpawner.scheduler_token = spawner_token
    c.QueuedSpawner.workspace_scheduler_url = workspace_scheduler_url
    c.KubeSpawner.poll_interval = POLL_INTERVAL_S
    c.Spawner.server_token_scopes = roles.NOTEBOOK_SCOPES
    c.Spawner.consecutive_failure_limit = 0  # JupyterHub 5 counts refusals as failures; a hub that exits loses everybody's place
    _trust_no_old_connection(c)
    c.JupyterHub.custom_scopes.update(roles.CUSTOM_SCOPES)
    c.JupyterHub.load_roles = roles.added(_items(c, "load_roles"), roles.roles(admins=list(admins)))
    c.JupyterHub.services = with_services(
        _items(c, "services"),
        [
            {"name": roles.SERVICE, "url": scheduler_url, "api_token": scheduler_token, "oauth_no_confirm": True, "display": False},
            {"name": roles.SPAWNER_SERVICE, "api_token": spawner_token, "display": False},
        ],
    )
    c.JupyterHub.cleanup_servers = False  # a hub that stops leaves workspaces running
    c.JupyterHub.allow_named_servers = True
    c.JupyterHub.concurrent_spawn_limit = 0  # a queued workspace is a pending spawn; the queue has no such limit
    c.JupyterHub.init_spawners_timeout = INIT_SPAWNERS_S
    if "default_url" not in c.JupyterHub:
        c.JupyterHub.default_url = f"{c.JupyterHub.get('base_url', '/').rstrip('/')}/hub/home"  # logging in alone starts nothing
    c.JupyterHub.tornado_settings.update({"slow_spawn_timeout": AT_ONCE_S})
    c.JupyterHub.template_paths.insert(0, str(PAGES))
    c.JupyterHub.template_vars.update({"hotdesk_simulated": "", "hotdesk_why_stopped": why_stopped})
    c.JupyterHub.extra_handlers.extend(handlers.HANDLERS)
    if namespace and "hub_connect_url" in c.JupyterHub:
        c.JupyterHub.hub_connect_url = known_everywhere(c.JupyterHub.hub_connect_url, namespace)


def _trust_no_old_connection(c: Any) -> None:
    """A pod that goes may take its end of a connection with it without a word: JupyterHub 6 would ask there for 300 s, nobody logs in."""
    c.JupyterHubHTTPClient.session_options = {"timeout": _ANSWER_WITHIN}
    c.JupyterHubHTTPClient.connector_options = {"force_close": True}


def known_everywhere(url: str, namespace: str) -> str:
    """Of a Service: its short name is known in its own namespace alone."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if not host or "." in host or ":" in host:
        return url
    return parts._replace(netloc=parts.netloc.replace(host, f"{host}.{namespace}", 1)).geturl()


def _items(c: Any, name: str) -> list[dict[str, Any]]:
    """What a list of JupyterHub's is so far; others may have only added to it."""
    value = c.JupyterHub[name]
    return list(value.get_value([]) if isinstance(value, LazyConfigValue) else value)


def with_services(there: list[dict[str, Any]], ours: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One service of each name: one of ours is there with what they say of it."""
    known = {service["name"]: service for service in there}
    kept = [service for service in there if service["name"] not in {own["name"] for own in ours}]
    return [*kept, *({**own, **known.get(own["name"], {})} for own in ours)]
