"""Namespaces that are not for a project's workloads."""

from __future__ import annotations


def why_not(namespace: str, *, own: str, reservations: str, is_named: bool) -> str:
    """A sentence; empty if a project may live there. `own`: where Hotdesk is installed, only for a project that names it itself
    (`is_named`), as one with the homes of a hub that was there before.
    """
    if namespace == reservations:
        return f"Namespace {namespace} is for the pods that set GPUs aside for sharing."
    if namespace == own:
        return "" if is_named else f"Namespace {namespace} is where Hotdesk itself is installed."
    if namespace == "default" or namespace.startswith("kube-"):
        return f"Namespace {namespace} is Kubernetes' own."
    return ""
