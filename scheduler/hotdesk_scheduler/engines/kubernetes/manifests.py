"""The pod a placed workload runs in: names, labels, its share in variables, nothing it does not need. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from hotdesk_api.models import PodGrant, WorkloadSpec
from hotdesk_api.units import WHOLE_GPU, format_gpus

from hotdesk_scheduler.core.model import Placement, Pod, Share, Workload
from hotdesk_scheduler.engines.base import Device
from hotdesk_scheduler.engines.kubernetes.codec import Json, encode, members, time_out
from hotdesk_scheduler.engines.kubernetes.extras import GPU
from hotdesk_scheduler.engines.kubernetes.observe import ATTEMPT_LABEL, ID_VARIABLE, INDEX_LABEL, PLACEMENT, SCHEDULER, STARTED_AT
from hotdesk_scheduler.engines.kubernetes.observe import RESERVED as RESERVED_GPUS
from hotdesk_scheduler.engines.kubernetes.reservation import Told, reserved_out
from hotdesk_scheduler.engines.kubernetes.resources import API_VERSION, GROUP, ID_LABEL, MANAGED, PROJECT_LABEL
from hotdesk_scheduler.engines.kubernetes.statuses import Held

PROGRAM_DIR = "/hotdesk/program"
NOTEBOOK = "notebook"  # KubeSpawner's name of the container that a workspace runs in; others may stand beside it
RESERVED = frozenset(
    {
        *("JOB_NAME", "JOB_UUID", "POD_INDEX", "NODE_NAME", "RUNAI_NUM_OF_GPUS", "RUNAI_PROJECT", "RUNAI_JOB_NAME", "GPU_PORTION"),
        *("RUNAI_GPU_MEMORY_LIMIT", "HOTDESK_GPU_MEMORY_MIB", "HOTDESK_TIER", "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
        "CUDA_DEVICE_ORDER",
        *("HOTDESK_REPORT_TOKEN", "HOTDESK_API_URL"),
    }
)


def pod_name(workload: Workload, uid: str, pod: Pod) -> str:
    """The same for the same attempt of the same creation, so that it can exist only once; another one for the next attempt."""
    tail = hashlib.sha256(f"{uid} {pod.index} {pod.attempt}".encode()).hexdigest()[:5]
    return f"{workload.name}-{pod.index}-{tail}"


def pod_object(
    workload: Workload,
    spec: WorkloadSpec,
    pod: Pod,
    *,
    uid: str,
    namespace: str,
    variables: Mapping[str, str],
    program: str | None = None,
    told: Told | None = None,
) -> Json:
    """`pod` has its placement; `variables` are ours, `spec.environment` comes on top. `program`: the ConfigMap that holds the source.

    `told`: its share of GPUs of a real node.
    """
    assert pod.placement is not None
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(workload, uid, pod),
            "namespace": namespace,
            "labels": {**spec.labels, **_labels(workload, pod)},
            "annotations": {
                **spec.annotations,
                PLACEMENT: placement_out(pod.placement),
                STARTED_AT: time_out(pod.started_at or 0.0),
                **reserved_note(told),
            },
            "ownerReferences": [owner(workload, uid)],
        },
        "spec": {
            "schedulerName": SCHEDULER,
            **({} if told else {"nodeName": pod.placement.node}),
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [encode(one) for one in workload.tolerations],
            "containers": [_container(spec, pod, variables, program=program, told=told)],
            "volumes": _volumes(spec, program),
        },
    }


def owner(workload: Workload, uid: str) -> Json:
    found = {"apiVersion": API_VERSION, "kind": "Workload", "name": workload.name, "uid": uid}
    return {**found, "controller": True, "blockOwnerDeletion": False}


def config_map_name(workload: Workload, uid: str, pod: Pod) -> str:
    """Of the one that tells a pod its share."""
    return f"{pod_name(workload, uid, pod)}-gpu"


def reserved_note(told: Told | None) -> dict[str, str]:
    return {RESERVED_GPUS: reserved_out(told.reserved)} if told else {}


def grant(workload: Workload, pod: Pod, namespace: str, told: Told | None = None) -> PodGrant:
    """For a workspace, whose pod the hub makes: what makes it count as this workload's."""
    assert pod.placement is not None
    return PodGrant(
        namespace=namespace,
        labels=_marks(workload, pod),
        annotations={PLACEMENT: placement_out(pod.placement), STARTED_AT: time_out(pod.started_at or 0.0), **reserved_note(told)},
        config_map=told.config_map if told else None,
        config_keys=sorted(told.data) if told else [],
        gpus=pod.placement.whole,
        cpu_millis=pod.request.cpu_millis,
        memory_mib=pod.request.memory_mib,
    )


def _labels(workload: Workload, pod: Pod) -> dict[str, str]:
    return {**MANAGED, **_marks(workload, pod)}


def _marks(workload: Workload, pod: Pod) -> dict[str, str]:
    return {
        ID_LABEL: workload.id,
        PROJECT_LABEL: workload.project,
        f"{GROUP}/workload": workload.name,
        INDEX_LABEL: str(pod.index),
        ATTEMPT_LABEL: str(pod.attempt),
    }


def _container(spec: WorkloadSpec, pod: Pod, variables: Mapping[str, str], *, program: str | None, told: Told | None) -> Json:
    command, args = list(spec.command), list(spec.args)
    if program is not None:
        command = [*(command or ["python3", "-u"]), f"{PROGRAM_DIR}/program"]
    mounts = [{"name": "program", "mountPath": PROGRAM_DIR, "readOnly": True}] if program is not None else []
    if spec.large_shm:
        mounts.append({"name": "dshm", "mountPath": "/dev/shm"})  # noqa: S108  inside the pod
    found: Json = {
        "name": "main",
        "image": spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "env": _environment(layered(variables, spec.environment), spec, told),
        "resources": _resources(pod, spec),
        "securityContext": {"allowPrivilegeEscalation": False},
        **({"command": command} if command else {}),
        **({"args": args} if args else {}),
        **({"workingDir": spec.working_dir} if spec.working_dir else {}),
        **({"volumeMounts": mounts} if mounts else {}),
    }
    if spec.ports:
        found["ports"] = [{"containerPort": port.container} for port in spec.ports]
    return found


def _environment(variables: Mapping[str, str], spec: WorkloadSpec, told: Told | None) -> list[Json]:
    """What its ConfigMap says it refers to, but for what the user may choose and has chosen."""
    found: list[Json] = []
    told_of = told.data if told else {}
    for name in {**variables, **told_of}:
        if told is not None and name in told_of and (name in RESERVED or name not in spec.environment):
            found.append({"name": name, "valueFrom": {"configMapKeyRef": {"name": told.config_map, "key": name}}})
        else:
            found.append({"name": name, "value": variables[name]})
    return found


def _volumes(spec: WorkloadSpec, program: str | None) -> list[Json]:
    found: list[Json] = []
    if program is not None:
        found.append({"name": "program", "configMap": {"name": program}})
    if spec.large_shm:
        found.append({"name": "dshm", "emptyDir": {"medium": "Memory"}})
    return found


def _resources(pod: Pod, spec: WorkloadSpec) -> Json:
    """CPU and memory as asked for; whole GPUs from the device plugin. Memory that somebody asked for is also the limit."""
    assert pod.placement is not None
    requests: dict[str, str] = {}
    if pod.request.cpu_millis:
        requests["cpu"] = f"{pod.request.cpu_millis}m"
    if pod.request.memory_mib:
        requests["memory"] = f"{pod.request.memory_mib}Mi"
    limits = {GPU: str(pod.placement.whole)} if pod.placement.whole else {}
    requests |= limits
    if spec.memory_mib:
        limits["memory"] = f"{spec.memory_mib}Mi"
    return {"requests": requests, **({"limits": limits} if limits else {})}


def layered(own: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """Ours with what the user asked for on top, except for what says who a job is and what it holds."""
    return {**own, **{name: value for name, value in asked.items() if name not in RESERVED}}


def identity(workload: Workload, pod: Pod) -> dict[str, str]:
    """Without GPUs it is told so: images of CUDA say `all` themselves, and NVIDIA's runtime would heed that."""
    assert pod.placement is not None
    return {
        "JOB_NAME": workload.name,
        ID_VARIABLE: workload.id,
        "POD_INDEX": str(pod.index),
        "NODE_NAME": pod.placement.node,
        "RUNAI_PROJECT": workload.project,
        "RUNAI_JOB_NAME": workload.name,
        "RUNAI_NUM_OF_GPUS": format_gpus(pod.placement.gpu_millis),
        **({} if pod.placement.gpu_millis else {"NVIDIA_VISIBLE_DEVICES": "void"}),
    }


def share(held: Sequence[Held], devices: Sequence[Device], tier: str) -> dict[str, str]:
    """The share of a pod whose devices are known. Whole GPUs of a real node are named by its device plugin, not by us."""
    if not held:
        return {}
    limits = [device.memory_mib * one.millis // 1000 for one, device in zip(held, devices, strict=True)]
    simulated = devices[0].simulated
    uuids = ",".join(device.uuid for device in devices)
    return {
        "GPU_PORTION": format_gpus(held[0].millis),
        "RUNAI_GPU_MEMORY_LIMIT": str(sum(limits)),
        "HOTDESK_GPU_MEMORY_MIB": str(sum(limits)),
        "HOTDESK_TIER": tier,
        "NVIDIA_VISIBLE_DEVICES": uuids,
        "CUDA_VISIBLE_DEVICES": "" if simulated else uuids,
    }


def placement_out(placement: Placement) -> str:
    return json.dumps(encode(placement), separators=(",", ":"))


def placement_in(text: str | None) -> Placement | None:
    """None if it is not one of ours."""
    try:
        data: dict[str, Any] = members(json.loads(text or ""))
        shares = tuple(Share(str(one["group"]), int(one["millis"])) for one in data.get("shares", ()))
        placement = Placement(str(data["node"]), int(data.get("whole", 0)), shares)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):  # whoever may edit the pod can write anything
        return None
    return placement if placement.whole >= 0 and all(0 < share.millis <= WHOLE_GPU for share in shares) else None
