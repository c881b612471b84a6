"""How a spawn is refused so that the person reads a sentence: JupyterHub 6's SpawnException, or what stands in for it on 5.x."""

from __future__ import annotations

from html import escape
from typing import Any

from hotdesk_api.errors import HotdeskError
from tornado.web import HTTPError

try:
    from jupyterhub.spawner import SpawnException
except ImportError:  # JupyterHub 5.x
    SpawnException = None


class Refusal(HTTPError):
    """For JupyterHub 5.x."""

    reason: str | None


def refusal(error: HotdeskError) -> Any:
    """The exception to raise for an error of ours. It counts as a policy matter, not as a failing hub, unless the status is 5xx."""
    message = str(error)
    if SpawnException is not None:
        refused = SpawnException(message, reason=error.code, status_code=error.status)
    else:
        refused = Refusal(error.status, "%s", message)
    refused.jupyterhub_message = message  # what pages and the progress stream show, on both versions
    refused.jupyterhub_html_message = escape(message)
    return refused
