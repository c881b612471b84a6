"""`on_cluster.configure` over the configuration of a hub that is somebody's: what is theirs stays, nothing is there twice."""

from __future__ import annotations

from typing import Any

import pytest
from hotdesk_hub import on_cluster, roles
from traitlets.config import Config


def configured(c: Any, **more: Any) -> Any:
    on_cluster.configure(c, scheduler_url="http://hotdesk.jhub", scheduler_token="one", spawner_token="two", **more)
    return c


def named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = (item for item in items if item["name"] == name)
    return found


def test_roles_and_services_of_others_stay() -> None:
    c: Any = Config()
    c.JupyterHub.services = [{"name": "theirs", "api_token": "x"}]
    c.JupyterHub.load_roles = [{"name": "theirs", "scopes": ["users"], "services": ["theirs"]}]
    configured(c)
    assert [service["name"] for service in c.JupyterHub.services] == ["theirs", "hotdesk", "hotdesk-spawner"]
    assert named(c.JupyterHub.load_roles, "theirs") == {"name": "theirs", "scopes": ["users"], "services": ["theirs"]}
    assert roles.SUBMIT in named(c.JupyterHub.load_roles, "user")["scopes"]


def test_roles_called_like_ours_are_added_to_because_jupyterhub_takes_each_name_once() -> None:
    c: Any = Config()
    c.JupyterHub.load_roles = [
        {"name": "user", "scopes": ["self", "shares!user"]},
        {"name": "hotdesk-admin", "users": ["carla"], "groups": ["ops"]},
    ]
    configured(c, admins=["ann", "carla"])
    assert named(c.JupyterHub.load_roles, "user")["scopes"] == ["self", "shares!user", roles.ACCESS, roles.SUBMIT]
    admin = named(c.JupyterHub.load_roles, "hotdesk-admin")
    assert (admin["users"], admin["groups"], admin["scopes"]) == (["carla", "ann"], ["ops"], [roles.ACCESS, roles.ADMIN])


def test_services_called_like_ours_keep_what_they_say() -> None:
    c: Any = Config()
    c.JupyterHub.services = [{"name": "hotdesk", "api_token": "one", "url": "http://elsewhere:80"}]
    configured(c)
    assert named(c.JupyterHub.services, "hotdesk") == {
        "name": "hotdesk",
        "api_token": "one",
        "url": "http://elsewhere:80",
        "oauth_no_confirm": True,
        "display": False,
    }


def test_what_others_have_only_added_to_is_kept() -> None:
    c: Any = Config()
    c.JupyterHub.services.append({"name": "theirs", "api_token": "x"})
    c.JupyterHub.load_roles.append({"name": "user", "scopes": ["self", "shares!user"]})
    configured(c)
    assert named(c.JupyterHub.services, "theirs")
    assert "shares!user" in named(c.JupyterHub.load_roles, "user")["scopes"]


def test_a_hub_answers_at_once_and_is_not_held_up_by_pods_that_are_still_coming() -> None:
    """JupyterHub's own 10 s, for the answer to every start and for its own."""
    hub = configured(Config()).JupyterHub
    assert hub.tornado_settings.get_value({})["slow_spawn_timeout"] <= 1
    assert hub.init_spawners_timeout <= 1


@pytest.mark.parametrize(("base", "home"), [(None, "/hub/home"), ("/", "/hub/home"), ("/jupyter/", "/jupyter/hub/home")])
def test_who_logs_in_comes_to_the_home_page_below_the_hubs_own_path(base: str | None, home: str) -> None:
    c: Any = Config()
    if base:
        c.JupyterHub.base_url = base
    assert configured(c).JupyterHub.default_url == home


def test_a_home_page_that_somebody_chose_stays() -> None:
    c: Any = Config()
    c.JupyterHub.default_url = "/hub/spawn"
    assert configured(c).JupyterHub.default_url == "/hub/spawn"


@pytest.mark.parametrize(
    ("url", "everywhere"),
    [
        ("http://hub:8081", "http://hub.jhub:8081"),
        ("http://hub.other.svc:8081", "http://hub.other.svc:8081"),
        ("https://hub", "https://hub.jhub"),
        ("http://10.0.0.1:8081", "http://10.0.0.1:8081"),
    ],
)
def test_workspaces_of_other_namespaces_reach_the_hub_by_a_name_they_know(url: str, everywhere: str) -> None:
    c: Any = Config()
    c.JupyterHub.hub_connect_url = url
    assert configured(c, namespace="jhub").JupyterHub.hub_connect_url == everywhere


def test_refusals_do_not_make_a_hub_exit() -> None:
    """JupyterHub 5 counts them like failures, and Zero-to-JupyterHub sets 5."""
    c: Any = Config()
    c.Spawner.consecutive_failure_limit = 5
    assert configured(c).Spawner.consecutive_failure_limit == 0
