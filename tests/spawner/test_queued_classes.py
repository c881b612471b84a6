"""The mixin works over any spawner class."""

from __future__ import annotations

from hotdesk_spawner import HotdeskSpawner, LocalWorkspaces, QueuedSpawner, queued
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
