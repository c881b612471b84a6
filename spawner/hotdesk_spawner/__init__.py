"""Quota-aware spawners: a workspace waits in the scheduler's queue before it starts."""

from hotdesk_spawner.local import HotdeskSpawner, LocalWorkspaces
from hotdesk_spawner.spawner import QueuedSpawner, queued

__all__ = ["HotdeskSpawner", "LocalWorkspaces", "QueuedSpawner", "queued"]
