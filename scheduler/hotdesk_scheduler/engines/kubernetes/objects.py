"""Writes to single objects: namespaces, projects, programs, the end of a workload. Each may be said twice."""

from __future__ import annotations

import asyncio
import contextlib

from hotdesk_api.errors import Conflict, Invalid, TooLarge, Unavailable
from hotdesk_api.models import WorkloadSpec

from hotdesk_scheduler.core.model import Workload
from hotdesk_scheduler.engines.kubernetes import manifests, resources
from hotdesk_scheduler.engines.kubernetes.api import STEPS, Api, ApiError
from hotdesk_scheduler.engines.kubernetes.codec import Json
from hotdesk_scheduler.engines.kubernetes.resources import FINALIZER, MANAGED, PROJECT_LABEL

MAX_PROGRAM_BYTES = 900 * 1024  # a ConfigMap has 1 MiB with everything
TRIES = 3
_PAUSES_S = (0.05, 0.05, 0.1, 0.1, 0.2, 0.2, 0.3, 0.5, 0.5, 1, 1, 1)


@contextlib.contextmanager
def told():  # type: ignore[no-untyped-def]  # contextmanager's generator type says nothing here
    """What the API server refuses, in our words."""
    try:
        yield
    except ApiError as error:
        if error.is_passing or error.status in (401, 403):
            raise error.for_people() from error
        raise Invalid(f"The API server refused it: {error.message}", next_step="Change what it names, and try again.") from error


async def check_definitions(api: Api) -> None:
    """`Unavailable` if the cluster does not know our resources."""
    try:
        served = await api.get(resources.ROOT)
    except ApiError as error:
        if error.status != 404:
            raise
        served = {"resources": []}
    kinds = {one["kind"] for one in served["resources"]}
    missing = sorted({"Project", "Department", "Workload"} - kinds)
    if missing:
        raise Unavailable(
            f"The cluster does not know {', '.join(missing)} of {resources.API_VERSION}.",
            next_step="Install Hotdesk's chart, or its definitions: kubectl apply --server-side -f the files in engines/kubernetes/crds.",
        )


async def add_namespace(api: Api, name: str, labels: dict[str, str]) -> None:
    """One that is there is taken as it is. Returns when pods can be made there: they need its default service account."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    try:
        await api.create("/api/v1/namespaces", body)
    except ApiError as error:
        if error.status != 409:
            raise
    for pause_s in _PAUSES_S:
        if await _has_account(api, name):
            return
        await asyncio.sleep(pause_s)
    raise ApiError(0, "NoServiceAccount", f"namespace {name} has no default service account yet: it is just being made, or deleted")


async def add_project_namespace(api: Api, name: str, project: str) -> None:
    await add_namespace(api, name, {**MANAGED, PROJECT_LABEL: project})


async def _has_account(api: Api, namespace: str) -> bool:
    try:
        await api.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return True


async def put(api: Api, body: Json) -> Json:
    """Create it, or give it this spec."""
    meta = body["metadata"]
    path = resources.path(body["kind"], meta["namespace"])
    while True:
        try:
            return await api.create(path, body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
        try:
            there = await api.get(f"{path}/{meta['name']}")
            return await api.put(f"{path}/{meta['name']}", {**there, "spec": _kept(there, body)})
        except ApiError as error:  # gone or changed since: again
            if error.status not in (404, 409):
                raise


async def remove_annotation(api: Api, path: str, name: str) -> None:
    """Of an object that may be gone."""
    while True:
        try:
            there = await api.get(path)
            there["metadata"].get("annotations", {}).pop(name, None)
            await api.put(path, there)
            return
        except ApiError as error:
            if error.status == 404:
                return
            if error.status != 409:  # changed since: again
                raise


def _kept(there: Json, body: Json) -> Json:
    """The namespace of a project stays as it is."""
    kept = {"namespace": there["spec"]["namespace"]} if "namespace" in there.get("spec", {}) else {}
    spec: Json = {**body["spec"], **kept}
    return spec


async def put_program(api: Api, workload: Workload, spec: WorkloadSpec, item: Json) -> None:
    """The source of a job, where its pods find it; it goes with the workload. Raises Conflict as `check_program_place` does."""
    if spec.program is None:
        return
    meta = item["metadata"]
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": _program_name(workload),
            "namespace": meta["namespace"],
            "labels": dict(MANAGED),
            "ownerReferences": [manifests.owner(workload, meta["uid"])],
        },
        "immutable": True,
        "data": {"program": spec.program},
    }
    path = f"/api/v1/namespaces/{meta['namespace']}/configmaps"
    for left in reversed(range(TRIES)):
        try:
            await api.create(path, body)
            return
        except ApiError as error:
            if error.reason != "AlreadyExists" or not left:
                raise
        await _make_way(api, workload, meta["namespace"])


async def check_program_place(api: Api, workload: Workload, spec: WorkloadSpec, namespace: str) -> None:
    """Conflict if somebody else's ConfigMap has the name that its program needs."""
    if spec.program is not None:
        await _program_of_ours(api, workload, namespace)


async def _make_way(api: Api, workload: Workload, namespace: str) -> None:
    meta = await _program_of_ours(api, workload, namespace)
    if meta is None:
        return
    try:
        await api.delete(f"/api/v1/namespaces/{namespace}/configmaps/{meta['name']}", {"preconditions": {"uid": meta["uid"]}})
    except ApiError as error:
        if error.status != 409:  # another one of that name by now
            raise


async def _program_of_ours(api: Api, workload: Workload, namespace: str) -> Json | None:
    """Metadata of the one that is there already: of this workload, or of an earlier one of its name."""
    try:
        there = await api.get(f"/api/v1/namespaces/{namespace}/configmaps/{_program_name(workload)}")
    except ApiError as error:
        if error.status != 404:
            raise
        return None
    meta: Json = there["metadata"]
    owners = {(one["apiVersion"], one["kind"], one["name"]) for one in meta.get("ownerReferences") or []}
    is_managed = MANAGED.items() <= (meta.get("labels") or {}).items()
    if not is_managed or owners != {(resources.API_VERSION, "Workload", workload.name)}:
        raise Conflict(
            f"The program of {workload.name} would need the name of a ConfigMap that is not Hotdesk's: {meta['name']} in {namespace}.",
            field="name",
            value=workload.name,
            next_step="Choose another name for the workload, or move that ConfigMap away.",
        )
    return meta


def _program_name(workload: Workload) -> str:
    return f"{workload.name}-program"


def check_program(spec: WorkloadSpec) -> None:
    size = len((spec.program or "").encode(errors="surrogatepass"))
    if size > MAX_PROGRAM_BYTES:
        raise TooLarge(
            f"The program has {size:,} bytes; at most {MAX_PROGRAM_BYTES:,} are possible on a cluster.",
            field="program",
            limit=MAX_PROGRAM_BYTES,
            value=size,
            next_step="Put it into the image or a volume, and run that.",
        )


async def remove_workload(api: Api, namespace: str, name: str, uid: str) -> None:
    """Its resource, which holds on to its end (finalizer) until now; pods and program go with it.

    Deleted first: who sees it without its finalizer, and not leaving, puts that back.
    """
    path = resources.path("Workload", namespace, name)
    steps = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/metadata/finalizers/0", "value": FINALIZER},
        {"op": "remove", "path": "/metadata/finalizers/0"},
    ]
    await _delete(api, path, uid)
    try:
        await api.request("PATCH", path, steps, content_type=STEPS)
    except ApiError as error:
        if error.status == 422:
            await _let_go(api, path, uid)
        elif error.status != 404:
            raise


async def _delete(api: Api, path: str, uid: str) -> None:
    """Its children in the background."""
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background", "preconditions": {"uid": uid}}
    try:
        await api.delete(path, options)
    except ApiError as error:
        if error.status != 409:  # another one of that name by now
            raise


async def _let_go(api: Api, path: str, uid: str) -> None:
    """Our finalizer is not the first, or not there, or the workload is another one by now."""
    while True:
        try:
            there = await api.get(path)
            if there["metadata"]["uid"] != uid:
                return
            left = [one for one in there["metadata"].get("finalizers", []) if one != FINALIZER]
            version = there["metadata"]["resourceVersion"]
            await api.merge(path, {"metadata": {"resourceVersion": version, "finalizers": left}})
            return
        except ApiError as error:
            if error.status == 404:
                return
            if error.status != 409:
                raise


async def pods_with(api: Api, namespace: str, selector: str) -> list[str]:
    """Names of the pods there that a label selector finds."""
    found = await api.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)
    return [item["metadata"]["name"] for item in found["items"]]


async def label_pod(api: Api, namespace: str, name: str, labels: dict[str, str | None]) -> None:
    """None takes a label away."""
    await api.merge(f"/api/v1/namespaces/{namespace}/pods/{name}", {"metadata": {"labels": labels}})
