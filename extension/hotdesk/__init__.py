"""Hotdesk for people: `%runai` magics, widgets, the `hotdesk` and `runai` commands, and `hotdesk.submit(...)`.

Importing it is light; what talks to the scheduler is loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotdesk_api.version import VERSION as __version__

if TYPE_CHECKING:
    from hotdesk import report
    from hotdesk.python import Job, job, jobs, nodes, projects, submit, whoami

_FROM_JOB = ("Job", "job", "jobs", "nodes", "projects", "submit", "whoami")
__all__ = ["Job", "__version__", "job", "jobs", "load_ipython_extension", "nodes", "projects", "report", "submit", "whoami"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _FROM_JOB:
        value = getattr(import_module("hotdesk.python"), name)
        globals()[name] = value
        return value
    if name == "report":
        return import_module("hotdesk.report")
    raise AttributeError(f"module 'hotdesk' has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext hotdesk`."""
    from hotdesk.magics import register

    register(shell)


def unload_ipython_extension(shell: Any) -> None:
    from hotdesk.magics import unregister

    unregister(shell)
