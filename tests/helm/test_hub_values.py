"""What the chart's values come to in its hub: the rendered file, as the hub's pod reads it, in JupyterHub's own classes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from helm_chart import MATRIX, Json, render, why_no_helm
from hotdesk_api.errors import Invalid
from hotdesk_hub import chart, first_admin, roles
from hotdesk_scheduler.settings import Settings
from hotdesk_spawner.kube import HotdeskKubeSpawner
from jupyterhub import orm
from jupyterhub.app import JupyterHub
from jupyterhub.auth import PAMAuthenticator
from jupyterhub.authenticators.shared import SharedPasswordAuthenticator
from traitlets.config import Config, Configurable

pytestmark = pytest.mark.skipif(why_no_helm() is not None, reason=str(why_no_helm()))
_SECRETS = {
    "HOTDESK_HUB_ADMIN_PASSWORD": "a" * 40,
    "HOTDESK_HUB_USER_PASSWORD": "u" * 40,
    "HOTDESK_HUB_SCHEDULER_TOKEN": "s" * 40,
    "HOTDESK_HUB_SPAWNER_TOKEN": "p" * 40,
}


def _configured(values: Json, folder: Path, *, secrets: Mapping[str, str] = _SECRETS, **more: str) -> Any:
    (secret,) = (item for item in render(values) if item["kind"] == "Secret" and item["metadata"]["name"] == "rel-hotdesk-hub-config")
    file = folder / "values.json"
    file.write_text(secret["stringData"]["values.json"])
    c = Config()
    imports, calls = secret["stringData"]["jupyterhub_config.py"].split("\n\n")
    exec(imports, {})  # what it imports is there
    assert calls.split() == ["configure(get_config())", "take_back(get_config())"]
    chart.configure(c, values_file=file, environment={**secrets, **more})
    return c


async def _administrators(values: Json, folder: Path) -> set[str]:
    """Of a hub that starts with these values, on the database of the one before."""
    c = _configured(values, folder, HOTDESK_HUB_DATABASE_URL=f"sqlite:///{folder}/hub.sqlite")
    c.JupyterHub.cookie_secret = b"x" * 32
    c.ConfigurableHTTPProxy.auth_token = "p" * 40
    first_admin.take_back(c)
    hub = _hub(c)
    nothing = folder / "nothing.py"
    nothing.touch()
    await hub.initialize(["-f", str(nothing)])
    found = {user.name for user in hub.db.query(orm.User) if user.admin or "admin" in {role.name for role in user.roles}}
    hub.db.close()
    return found


def _hub(c: Any) -> JupyterHub:
    return JupyterHub(config=c)


def _spawner(c: Any) -> HotdeskKubeSpawner:
    """With its settings, and without looking for a cluster."""
    made = HotdeskKubeSpawner.__new__(HotdeskKubeSpawner)
    Configurable.__init__(made, config=c)
    return made


@pytest.mark.parametrize("case", [case for case in MATRIX if case.startswith("whole")])
def test_every_setting_is_one_that_jupyterhub_knows(case: str, tmp_path: Path) -> None:
    c = _configured(MATRIX[case], tmp_path)
    known = {
        "JupyterHub": JupyterHub,
        "KubeSpawner": HotdeskKubeSpawner,
        "Spawner": HotdeskKubeSpawner,
        "QueuedSpawner": HotdeskKubeSpawner,
    }
    for name, kind in known.items():
        assert set(c[name]) - set(kind.class_traits(config=True)) == set(), name


def test_hub_listens_on_all_addresses_and_is_called_by_its_service(tmp_path: Path) -> None:
    c = _configured({}, tmp_path)
    hub = _hub(c)
    assert hub.hub_bind_url == "http://:8081"
    assert hub.hub_connect_url.startswith("http://rel-hotdesk-hub")
    assert "hub_ip" not in c.JupyterHub


def test_hub_starts_workspaces_from_the_values(tmp_path: Path) -> None:
    workspaces = {
        "home": {"storageClass": "fast", "capacity": "5Gi"},
        "cpu": {"limit": 4},
        "memory": {"guarantee": "1G"},
        "nodeSelector": {"hotdesk.io/pool": "people"},
        "environment": {"A": "b"},
    }
    spawner = _spawner(_configured({"workspaces": workspaces}, tmp_path))
    assert (spawner.image, spawner.cmd) == ("ghcr.io/hotdesk/notebook:0.1.0", ["jupyterhub-singleuser"])
    assert (spawner.cpu_guarantee, spawner.cpu_limit, spawner.mem_guarantee, spawner.mem_limit) == (0.1, 4, 2**30, None)
    assert (spawner.storage_class, spawner.storage_capacity, spawner.node_selector) == ("fast", "5Gi", {"hotdesk.io/pool": "people"})
    assert spawner.environment == {"A": "b"}
    assert spawner.scheduler_url == "http://rel-hotdesk.hotdesk.svc:80"
    assert (spawner.uid, spawner.fs_gid, spawner.default_url) == (1000, 1000, "/lab")


def test_server_whose_pod_runs_is_not_waited_for_as_long_as_an_image_that_is_pulled(tmp_path: Path) -> None:
    """After a restart the hub asks every server whether it answers, and stops none before that is settled."""
    spawner = _spawner(_configured({"workspaces": {"startTimeoutS": 900}}, tmp_path))
    assert (spawner.start_timeout, spawner.http_timeout) == (900, 60)
    settings = {"hub": {"config": {"KubeSpawner": {"http_timeout": 120}}}}
    assert _spawner(_configured(settings, tmp_path)).http_timeout == 120


def _graces(values: Json, folder: Path) -> int:
    grace_s: int = _spawner(_configured(values, folder)).delete_grace_period
    return grace_s


def test_workspace_that_is_stopped_has_the_schedulers_grace_to_write_what_it_holds(tmp_path: Path) -> None:
    assert _graces({}, tmp_path) == Settings().grace_s
    assert _graces({"settings": {"HOTDESK_GRACE_S": "2m"}}, tmp_path) == 120
    assert _graces({"hub": {"config": {"KubeSpawner": {"delete_grace_period": 5}}}}, tmp_path) == 5


def test_grace_ends_before_kubespawner_gives_a_stop_up(tmp_path: Path) -> None:
    """Then the share would go back while the pod still runs."""
    assert _graces({"settings": {"HOTDESK_GRACE_S": "600"}}, tmp_path) == 230
    assert _graces({"hub": {"config": {"KubeSpawner": {"start_timeout": 20}}}}, tmp_path) == 10
    assert _graces({"workspaces": {"startTimeoutS": 10}}, tmp_path) == 1


def test_first_log_in_is_by_passwords_that_the_chart_makes(tmp_path: Path) -> None:
    log_in = SharedPasswordAuthenticator(config=_configured({}, tmp_path))
    assert (log_in.admin_users, log_in.allow_all) == ({"admin"}, True)
    assert (log_in.admin_password, log_in.user_password) == ("a" * 40, "u" * 40)


@pytest.mark.parametrize("section", ["Authenticator", "SharedPasswordAuthenticator"])
@pytest.mark.parametrize(("said", "let_in"), [({"allow_all": False}, []), ({"allowed_users": ["alice"]}, ["alice"])], ids=str)
async def test_operator_says_whom_the_first_log_in_lets_in(section: str, said: Json, let_in: list[str], tmp_path: Path) -> None:
    log_in = SharedPasswordAuthenticator(config=_configured({"hub": {"config": {section: said}}}, tmp_path))
    tried = {name: await log_in.get_authenticated_user(None, {"username": name, "password": "u" * 40}) for name in ("alice", "bob")}
    assert [name for name, came in tried.items() if came] == let_in


def test_another_log_in_needs_no_passwords_of_ours(tmp_path: Path) -> None:
    tokens = {name: value for name, value in _SECRETS.items() if name.endswith("TOKEN")}
    _hub(_configured({"hub": PAM[0]}, tmp_path, secrets=tokens))


def _managers(c: Any) -> list[str]:
    (role,) = (role for role in _hub(c).load_roles if role["name"] == "hotdesk-admin")
    users: list[str] = role["users"]
    return users


PAM: list[Json] = [
    {"config": {"JupyterHub": {"authenticator_class": "pam"}}},
    {"extraConfig": {"own": "c.JupyterHub.authenticator_class = 'pam'"}},
]


@pytest.mark.parametrize("hub", PAM, ids=["setting", "python"])
def test_another_log_in_makes_nobody_an_admin_and_lets_nobody_in_by_itself(hub: Json, tmp_path: Path) -> None:
    """Whoever calls himself admin there is not ours."""
    c = _configured({"hub": hub}, tmp_path)
    log_in = PAMAuthenticator(config=c)
    assert (_hub(c).authenticator_class, log_in.admin_users, log_in.allow_all) == (PAMAuthenticator, set(), False)
    assert _managers(c) == []
    named = _configured({"hub": {"admins": ["carla"], **hub}}, tmp_path)
    assert (PAMAuthenticator(config=named).admin_users, _managers(named)) == ({"carla"}, ["carla"])


def test_admin_of_the_first_log_in_manages_projects(tmp_path: Path) -> None:
    assert _managers(_configured({}, tmp_path)) == ["admin"]


@pytest.mark.parametrize(
    "named",
    [
        {"config": {"Authenticator": {"admin_users": ["dora"]}}},
        {"extraConfig": {"own": "c.Authenticator.admin_users.add('dora')"}},
        {"extraConfig": {"own": "c.Authenticator.admin_users = ['carla', 'dora']"}},
        {"config": {"SharedPasswordAuthenticator": {"admin_users": ["dora"]}}},
        {"extraConfig": {"own": "c.SharedPasswordAuthenticator.admin_users.add('dora')"}},
    ],
    ids=["setting", "added", "replaced", "of the log-in itself", "added to the log-in itself"],
)
def test_admins_named_in_the_hubs_own_settings_manage_projects_too(named: Json, tmp_path: Path) -> None:
    c = _configured({"hub": {"admins": ["carla"], **named}}, tmp_path)
    assert (sorted(SharedPasswordAuthenticator(config=c).admin_users), _managers(c)) == (["carla", "dora"], ["carla", "dora"])


def test_admins_of_another_log_in_are_those_named_for_it_and_for_all(tmp_path: Path) -> None:
    config = {
        "JupyterHub": {"authenticator_class": "pam"},
        "LocalAuthenticator": {"admin_users": ["dora"]},
        "SharedPasswordAuthenticator": {"admin_users": ["erin"]},
    }
    c = _configured({"hub": {"admins": ["carla"], "config": config}}, tmp_path)
    assert (sorted(PAMAuthenticator(config=c).admin_users), _managers(c)) == (["carla", "dora"], ["carla", "dora"])


@pytest.mark.parametrize("log_in", ["dummy", "google"], ids=["installed", "not installed here"])
def test_admins_of_a_log_in_that_is_not_in_use_are_nobody_special(log_in: str, tmp_path: Path) -> None:
    """Whoever has that name at the one in use is somebody else."""
    config = {
        "JupyterHub": {"authenticator_class": log_in},
        "Authenticator": {"admin_users": ["carla"]},
        "GitHubOAuthenticator": {"admin_users": ["bob"]},
    }
    c = _configured({"hub": {"config": config}}, tmp_path)
    (role,) = (role for role in c.JupyterHub.load_roles if role["name"] == roles.ADMINS)
    assert (role["users"], c.Authenticator.admin_users) == (["carla"], {"carla"})
    assert c.GitHubOAuthenticator.admin_users == ["bob"]


def test_home_of_who_is_deleted_is_left_to_the_project_whatever_the_hub_may(tmp_path: Path) -> None:
    assert _spawner(_configured({}, tmp_path)).delete_pvc is False


def test_operators_settings_are_added_to_ours_or_replace_them(tmp_path: Path) -> None:
    config = {
        "JupyterHub": {"services": [{"name": "culler", "admin": True}], "tornado_settings": {"headers": {}}, "default_url": "/hub/spawn"},
        "KubeSpawner": {"volumes": [{"name": "data", "emptyDir": {}}], "start_timeout": 99},
    }
    c = _configured({"hub": {"config": config}}, tmp_path)
    hub, spawner = _hub(c), _spawner(c)
    assert [service["name"] for service in hub.services] == ["culler", "hotdesk", "hotdesk-spawner"]
    assert set(hub.tornado_settings) == {"slow_spawn_timeout", "headers"}
    assert hub.default_url == "/hub/spawn"
    assert [volume["name"] for volume in spawner.volumes] == ["home", "data"]
    assert spawner.start_timeout == 99


def test_roles_and_services_called_like_ours_are_there_once_with_what_the_operator_says_of_them(tmp_path: Path) -> None:
    """JupyterHub does not start with a role twice; of a service it takes the last, and the scheduler's token was lost."""
    said = {
        "load_roles": [
            {"name": "user", "scopes": ["self", "shares!user"]},
            {"name": "hotdesk-admin", "groups": ["ops"]},
            {"name": "theirs"},
        ],
        "services": [{"name": "hotdesk", "display": True}, {"name": "theirs", "api_token": "x" * 40}],
    }
    hub = _hub(_configured({"hub": {"config": {"JupyterHub": said}}}, tmp_path))
    found = {role["name"]: role for role in hub.load_roles}
    assert len(found) == len(hub.load_roles) == 5
    assert {"self", "shares!user", roles.SUBMIT} <= set(found["user"]["scopes"])
    assert (found["hotdesk-admin"]["groups"], found["hotdesk-admin"]["users"]) == (["ops"], ["admin"])
    services = {service["name"]: service for service in hub.services}
    assert len(services) == len(hub.services) == 3
    assert (services["hotdesk"]["display"], services["hotdesk"]["api_token"]) == (True, "s" * 40)


def test_settings_of_a_spawner_hold_as_jupyterhub_writes_them_and_as_kubespawner_does(tmp_path: Path) -> None:
    config = {
        "Spawner": {"default_url": "/tree", "mem_limit": "8G", "start_timeout": 900, "environment": {"A": "1"}},
        "KubeSpawner": {"environment": {"B": "2"}},
    }
    values = {"hub": {"config": config, "extraConfig": {"own": "c.Spawner.cpu_limit = 3"}}, "workspaces": {"environment": {"C": "3"}}}
    c = _configured(values, tmp_path)
    spawner = _spawner(c)
    assert (spawner.default_url, spawner.mem_limit, spawner.start_timeout, spawner.cpu_limit) == ("/tree", 8 * 2**30, 900, 3)
    assert spawner.environment == {"A": "1", "B": "2", "C": "3"}
    assert spawner.server_token_scopes == _spawner(_configured({}, tmp_path)).server_token_scopes


@pytest.mark.parametrize("section", ["Spawner", "KubeSpawner"])
def test_command_of_an_image_takes_the_place_of_ours(section: str, tmp_path: Path) -> None:
    c = _configured({"hub": {"config": {section: {"cmd": ["start-singleuser.py"]}}}}, tmp_path)
    assert _spawner(c).cmd == ["start-singleuser.py"]


def test_python_of_the_operator_runs_last_in_the_order_of_its_names(tmp_path: Path) -> None:
    texts = {"b": "c.KubeSpawner.image += '-b'", "a": "c.KubeSpawner.image = 'own'"}
    assert _configured({"hub": {"extraConfig": texts}}, tmp_path).KubeSpawner.image == "own-b"
    with pytest.raises(Invalid, match=r"hub\.extraConfig\.a failed: NameError"):
        _configured({"hub": {"extraConfig": {"a": "nonsense"}}}, tmp_path)


async def test_admin_of_the_first_log_in_is_nobody_special_once_another_is_chosen(tmp_path: Path) -> None:
    """JupyterHub gives the right, and never takes it back."""
    another = {"config": {"JupyterHub": {"authenticator_class": "dummy"}, "Authenticator": {"allow_all": True}}}
    assert await _administrators({"hub": {"members": {"team-a": ["admin"]}}}, tmp_path) == {"admin"}
    assert await _administrators({"hub": {**another, "admins": ["carla"]}}, tmp_path) == {"carla"}
    assert await _administrators({"hub": another}, tmp_path) == {"carla"}, "who was made one otherwise stays"
    assert await _administrators({"hub": {**another, "admins": ["admin"]}}, tmp_path) == {"admin", "carla"}


async def test_hub_starts_on_a_database_that_is_named_by_its_file_alone(tmp_path: Path) -> None:
    """As JupyterHub takes it."""
    file = tmp_path / "own.sqlite"
    values = {"hub": {"config": {"JupyterHub": {"db_url": str(file)}}}}
    assert await _administrators(values, tmp_path) == await _administrators(values, tmp_path) == {"admin"}
    assert file.exists()


@pytest.mark.parametrize("section", ["KubeSpawner", "Spawner", "HotdeskKubeSpawner"])
def test_what_the_operator_appends_to_a_list_is_there_once(section: str, tmp_path: Path) -> None:
    """The API server refuses a pod with two containers of one name."""
    texts = {"a": f"c.{section}.init_containers.append({{'name': 'hello', 'image': 'x'}})", "b": f"c.{section}.env_keep.append('TZ')"}
    spawner = _spawner(_configured({"hub": {"extraConfig": texts}}, tmp_path))
    assert [container["name"] for container in spawner.init_containers] == ["hello"]
    assert spawner.env_keep.count("TZ") == 1


@pytest.mark.parametrize("section", ["Auth0OAuthenticator", "My_Authenticator"])
def test_any_class_has_settings(section: str, tmp_path: Path) -> None:
    c = _configured({"hub": {"config": {section: {"client_id": "hotdesk"}}}}, tmp_path)
    assert c[section].client_id == "hotdesk"


def test_members_and_database_are_those_of_the_values(tmp_path: Path) -> None:
    c = _configured({"hub": {"members": {"team-a": ["alice"]}}}, tmp_path)
    assert _hub(c).load_groups == {"team-a": {"users": ["alice"]}}
    assert _hub(c).db_url == "sqlite:///jupyterhub.sqlite"
    elsewhere = _configured({}, tmp_path, HOTDESK_HUB_DATABASE_URL="postgresql+psycopg://hub@db/hub")
    assert _hub(elsewhere).db_url == "postgresql+psycopg://hub@db/hub"
    by_its_short_name = _configured({}, tmp_path, HOTDESK_HUB_DATABASE_URL="postgresql://hub@db/hub")
    assert sqlalchemy.create_engine(_hub(by_its_short_name).db_url).driver == "psycopg"


def test_secrets_are_not_in_the_file_of_values(tmp_path: Path) -> None:
    _configured({}, tmp_path)
    written = (tmp_path / "values.json").read_text()
    assert json.loads(written)["admins"] == []
    assert not [value for value in _SECRETS.values() if value in written]
