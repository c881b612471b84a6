"""Live names for tab completion: asked for with a short limit, remembered for seconds, never an error. Standard library only: quick."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from hotdesk_api.errors import HotdeskError

from hotdesk import settings

LIMIT_S = 1.0
REMEMBERED_S = 5.0
PATHS = {
    "jobs": "/v1/workloads",
    "projects": "/v1/projects",
    "nodes": "/v1/nodes",
    "images": "/v1/images",
    "node-types": "/v1/nodes",
    "departments": "/v1/departments",
}


class LiveNames:
    """`names("jobs", "team-a")`; the callable that `commands.complete` takes."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.environment = os.environ if environment is None else environment

    def __call__(self, kind: str, project: str | None) -> Sequence[str]:
        if kind not in PATHS:
            return ()
        try:
            return self._names(kind, project)
        except (HotdeskError, OSError, HTTPException, ValueError, KeyError, TypeError):
            return ()  # a completion that fails must look like one that finds nothing

    def _names(self, kind: str, project: str | None) -> Sequence[str]:
        current = settings.load(self.environment, project=project)
        url, token = current.reachable()
        query = {"project": current.project} if kind == "jobs" and current.project else {}
        address = url.rstrip("/") + PATHS[kind] + (f"?{urlencode(query)}" if query else "")
        items = self._remembered(address, token)
        field = "node_type" if kind == "node-types" else "name"
        return sorted({item[field] for item in items if item.get(field)})

    def _file(self, address: str, token: str) -> Path:
        base = self.environment.get("XDG_CACHE_HOME") or os.path.join(self.environment.get("HOME") or os.path.expanduser("~"), ".cache")
        return Path(base) / "hotdesk" / f"names-{hashlib.sha256(f'{address} {token}'.encode()).hexdigest()[:16]}.json"

    def _remembered(self, address: str, token: str) -> list[dict[str, str]]:
        file = self._file(address, token)
        try:
            if 0 <= time.time() - file.stat().st_mtime < REMEMBERED_S:
                return list(json.loads(file.read_text()))
        except (OSError, ValueError):
            pass  # nothing remembered, or half written: ask
        items = [{"name": item["name"], "node_type": item.get("node_type") or ""} for item in fetch_items(address, token)]
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary = file.with_suffix(f".{os.getpid()}")
            temporary.write_text(json.dumps(items))
            os.replace(temporary, file)
        except OSError:
            pass  # remembering only saves time
        return items


def fetch_items(address: str, token: str) -> list[dict[str, str]]:
    """The `items` of a list answer, within the time limit."""
    parts = urlsplit(address)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=LIMIT_S)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return list(json.loads(answer.read())["items"]) if answer.status == 200 else []
    finally:
        connection.close()
