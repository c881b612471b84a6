"""The mixin works over any spawner class."""

from __future__ import annotations

from typing import cast

from hotdesk_api.client import AsyncClient
from hotdesk_api.models import Grant
from hotdesk_spawner import HotdeskSpawner, LocalWorkspaces, QueuedSpawner, queued
from hotdesk_spawner.place import Place
from jupyterhub.spawner import SimpleLocalProcessSpawner


def test_any_spawner_class_can_be_made_to_queue() -> None:
    made = queued(SimpleLocalProcessSpawner)
    assert made.__name__ == "QueuedSimpleLocalProcessSpawner"
    assert made.__mro__.index(QueuedSpawner) < made.__mro__.index(SimpleLocalProcessSpawner)
    assert {"scheduler_url", "scheduler_token", "home_dir_template"} <= set(made.class_trait_names())


def test_the_local_class_queues_before_it_starts() -> None:
    assert HotdeskSpawner.__mro__.index(QueuedSpawner) < HotdeskSpawner.__mro__.index(LocalWorkspaces)


def test_the_base_keeps_its_own_idea_of_who_and_where_unless_local() -> None:
    assert "HOME" in queued(SimpleLocalProcessSpawner).own_variables
    assert not HotdeskSpawner.own_variables


class InAnImage(SimpleLocalProcessSpawner):  # type: ignore[misc]  # JupyterHub ships no types
    """As KubeSpawner: the image has its own PATH."""

    def get_env(self) -> dict[str, str]:
        return {"LANG": "C"}


def test_where_the_base_sets_no_path_the_images_own_holds_unless_the_grant_brings_one() -> None:
    spawner = queued(InAnImage)(scheduler_url="http://scheduler")
    spawner._place = Place(cast(AsyncClient, None), project="team-a", name="workspace-alice")
    for given, path in (({}, None), ({"PATH": "/ours"}, "/ours")):
        spawner._grant = Grant(node="n", environment=given, gpu_millis=0, simulated=False, tier="")
        assert spawner.get_env().get("PATH") == path
    assert spawner.get_env()["HOTDESK_API_URL"] == "http://scheduler"
