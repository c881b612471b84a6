"""Which of a workload's volumes lie within reach of some nodes only: a disk of one node, of one zone. Read when it is submitted.

A claim that has no volume yet ties it to nothing: its first pod says where it is made.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from hotdesk_scheduler.core.model import Volume
from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError
from hotdesk_scheduler.engines.kubernetes.claims import terms_in
from hotdesk_scheduler.engines.kubernetes.codec import Json

log = logging.getLogger(__name__)


async def tied(api: Api, namespace: str, claims: Sequence[str]) -> tuple[Volume, ...]:
    """Those of these claims that are bound to a volume with a required nodeAffinity. Raises ApiError."""
    found: list[Volume] = []
    for name in claims:
        claim = await _read(api, f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}")
        if bound := (claim.get("spec") or {}).get("volumeName"):
            volume = await _read(api, f"/api/v1/persistentvolumes/{bound}")
            affinity = (volume.get("spec") or {}).get("nodeAffinity") or {}
            if terms := terms_in(affinity.get("required") or {}):
                found.append(Volume(name, terms))
    return tuple(found)


async def _read(api: Api, path: str) -> Json:
    """Empty if it is not there, or is not ours to see: where the role is not the chart's, that must not stop every workspace."""
    try:
        return await api.get(path)
    except ApiError as error:
        if error.status == 403:
            log.warning("volume.not_readable path=%s error=%s", path, error)
        elif error.status != 404:
            raise
    return {}
