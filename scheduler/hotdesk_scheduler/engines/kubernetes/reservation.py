"""What stands for a shared GPU of a real node: the pod that takes it whole, and the ConfigMap that tells a pod its share. Pure.

A reservation pod asks the node's device plugin for one GPU, as everybody does, so that every scheduler finds it taken. Its init
container says which one it was given, in its termination message: news of a pod like any other, there after every restart, and
no log has to be read. Init and main container of a pod are given the same device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hotdesk_api.units import format_gpus

from hotdesk_scheduler.core.model import Share
from hotdesk_scheduler.engines import cooperative
from hotdesk_scheduler.engines.kubernetes.codec import Json
from hotdesk_scheduler.engines.kubernetes.resources import MANAGED

Key = tuple[str, str]
GPU = "nvidia.com/gpu"
GROUP = "hotdesk.io/shared-gpu"
_GROUP_VARIABLE, _INSTALLATION_VARIABLE = "HOTDESK_SHARED_GPU", "HOTDESK_INSTALLATION"
TIER = "cooperative"
DEFAULT_IMAGE = "docker.io/library/busybox:stable"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
_REPORT = "report"
_MEMORY = "256Mi"  # nvidia-smi needs some

# NVIDIA's plugin names the device by variable, by a file it mounts, or (CDI) not at all: then there is nvidia-smi. One, or it is not known.
SAY = """
found="${NVIDIA_VISIBLE_DEVICES:-}"
case "$found" in
  GPU-*|MIG-*) ;;
  *) found=$(ls /var/run/nvidia-container-devices 2>/dev/null)
     [ -n "$found" ] || found=$(nvidia-smi --query-gpu=uuid --format=csv,noheader 2>/dev/null) ;;
esac
case "$found" in
  *[!A-Za-z0-9/_-]*|"") echo "it saw ${found:-no GPU} where it expected one" > /dev/termination-log; sleep 2; exit 1 ;;
  *) printf %s "$found" > /dev/termination-log ;;
esac
"""
_HOLD = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a reservation pod says: which shared GPU it stands for, the device it was given ("" until it has said so), and its trouble.

    `is_elsewhere`: not where they are made now. It stays for those who share it; nobody more joins them.
    """

    group: str
    device: str = ""
    trouble: str = ""
    is_elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Reserved:
    """One device, held by the reservation pod of that uid."""

    uid: str
    device: str


@dataclass(frozen=True, slots=True)
class Told:
    """How a pod is told of its share: its ConfigMap, the variables in it, and what is held for it."""

    config_map: str
    data: Mapping[str, str] = field(default_factory=dict)
    reserved: tuple[Reserved, ...] = ()


def pod_name(node: str, group: str) -> str:
    """The same for the same shared GPU, so that it can exist only once."""
    tail = hashlib.sha256(f"{node} {group}".encode()).hexdigest()[:8]
    return f"gpu-{node[:40].strip('.-')}-{tail}"


def pod_object(node: str, group: str, *, namespace: str, image: str, installation: str = "") -> Json:
    """On its node at once, past all schedulers: the place was decided. It may do nothing but hold the GPU."""
    amounts = {"requests": {GPU: "1", "cpu": "0", "memory": "0"}, "limits": {GPU: "1", "memory": _MEMORY}}
    container = {
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": _GROUP_VARIABLE, "value": group}, {"name": _INSTALLATION_VARIABLE, "value": installation}],
        "resources": amounts,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(node, group),
            "namespace": namespace,
            "labels": {**MANAGED, "app.kubernetes.io/component": "gpu-reservation"},
            "annotations": {GROUP: group},
        },
        "spec": {
            "nodeName": node,
            "restartPolicy": "Always",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 2,
            "tolerations": [{"operator": "Exists"}],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "initContainers": [{"name": _REPORT, "command": ["sh", "-c", SAY], **container}],
            "containers": [{"name": "hold", "command": ["sh", "-c", _HOLD], **container}],
        },
    }


def read(item: Json) -> Reservation | None:
    """None if it is another pod that somebody put there."""
    group = _group(item)
    if not group:
        return None
    started = (item.get("status") or {}).get("initContainerStatuses") or [{}]
    state, last = started[0].get("state") or {}, started[0].get("lastState") or {}
    end = state.get("terminated") or last.get("terminated") or {}
    said = (end.get("message") or "").strip()
    if end.get("exitCode") == 0:
        return Reservation(group, device=said)
    return Reservation(group, trouble=said[:300])


def _group(item: Json) -> str:
    """Its variable says it, which no hand can change; its annotation says it to people."""
    return _variable(item, _GROUP_VARIABLE) or str((item["metadata"].get("annotations") or {}).get(GROUP, ""))


def installation_of(item: Json) -> str:
    """Whose it is: the namespace of the scheduler that made it."""
    return _variable(item, _INSTALLATION_VARIABLE)


def _variable(item: Json, name: str) -> str:
    containers = (item.get("spec") or {}).get("containers") or [{}]
    return next((str(one.get("value") or "") for one in containers[0].get("env") or [] if one["name"] == name), "")


def variables(shares: Sequence[Share], devices: Sequence[str], memory_mib: int) -> dict[str, str]:
    """A share in every form programs look for, as the local engine has it. `memory_mib` of one GPU; 0 = nobody has told."""
    uuids, first = ",".join(devices), shares[0].millis
    found = {
        "GPU_PORTION": format_gpus(first),
        "HOTDESK_TIER": TIER,
        "NVIDIA_VISIBLE_DEVICES": uuids,
        "CUDA_VISIBLE_DEVICES": uuids,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    if not memory_mib:
        return {**found, **cooperative.caps_of_unknown(first)}
    limits = [memory_mib * share.millis // 1000 for share in shares]
    amounts = {"RUNAI_GPU_MEMORY_LIMIT": str(sum(limits)), "HOTDESK_GPU_MEMORY_MIB": str(sum(limits))}
    return {**found, **amounts, **cooperative.caps(limits[0], memory_mib)}


def config_map(told: Told, namespace: str, owner: Json) -> Json:
    meta = {"name": told.config_map, "namespace": namespace, "labels": dict(MANAGED), "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "immutable": True, "data": dict(told.data)}


def pod_owner(made: Json) -> Json:
    meta = made["metadata"]
    return {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}


def reserved_out(reserved: Sequence[Reserved]) -> str:
    return ",".join(f"{one.uid}={one.device}" for one in reserved)


def reserved_in(text: str | None) -> tuple[Reserved, ...]:
    """() if it is not one of ours."""
    pairs = [part.partition("=") for part in (text or "").split(",") if part]
    return tuple(Reserved(uid, device) for uid, _, device in pairs if uid and device)
