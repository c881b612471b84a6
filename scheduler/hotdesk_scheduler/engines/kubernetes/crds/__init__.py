"""The definitions of Project, Department and Workload, as the Helm chart installs them; and the same by hand, for tests and trying."""

from __future__ import annotations

import asyncio
from pathlib import Path

import yaml  # type: ignore[import-untyped]  # ships no types

from hotdesk_scheduler.engines.kubernetes.api import Api, ApiError
from hotdesk_scheduler.engines.kubernetes.codec import Json

FILES = tuple(sorted(Path(__file__).parent.glob("*.yaml")))
_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def definitions() -> list[Json]:
    return [yaml.safe_load(file.read_text()) for file in FILES]


async def install(api: Api, *, within_s: float = 30.0) -> None:
    """Make or update them, and wait until they are served. Raises ApiError, TimeoutError."""
    for definition in definitions():
        await _put(api, definition)
    async with asyncio.timeout(within_s):
        for definition in definitions():
            while not _is_served(await api.get(f"{_PATH}/{definition['metadata']['name']}")):  # noqa: ASYNC110  # no event of ours
                await asyncio.sleep(0.1)  # the API server tells nobody sooner


async def _put(api: Api, definition: Json) -> None:
    path = f"{_PATH}/{definition['metadata']['name']}"
    while True:
        try:
            await api.create(_PATH, definition)
            return
        except ApiError as error:
            if error.status != 409:
                raise
        there = await api.get(path)
        version = {"resourceVersion": there["metadata"]["resourceVersion"]}
        try:
            await api.put(path, {**definition, "metadata": {**definition["metadata"], **version}})
            return
        except ApiError as error:  # another one was quicker
            if error.status != 409:
                raise


def _is_served(definition: Json) -> bool:
    conditions = {one["type"]: one["status"] for one in definition.get("status", {}).get("conditions", [])}
    return conditions.get("Established") == "True"
