"""A text of the service that outlives its process: an annotation of the Lease, which every leader has and may write anyway."""

from __future__ import annotations

from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError

NOTE = "hotdesk.io/kept"


async def keep(api: Api, path: str, text: str) -> dict[str, str]:
    """On what lies at `path`; the one before is forgotten. Its annotations from now on. Raises ApiError."""
    while True:
        there = await api.get(path)
        notes = {name: value for name, value in (there["metadata"].get("annotations") or {}).items() if name != NOTE}
        if text:
            notes[NOTE] = text
        try:
            await api.put(path, {**there, "metadata": {**there["metadata"], "annotations": notes}})
            return notes
        except ApiError as error:
            if error.status != 409:  # it was renewed in between: again
                raise


async def kept(api: Api, path: str) -> str:
    """Empty if there is none. Raises ApiError."""
    return str(((await api.get(path))["metadata"].get("annotations") or {}).get(NOTE, ""))
