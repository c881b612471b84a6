"""Quota-aware spawners: a workspace waits in the scheduler's queue before it starts."""
