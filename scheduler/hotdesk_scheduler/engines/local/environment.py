"""The variables of a job: who and where it is, its share, its home. Nothing of the scheduler's own environment leaks into it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from hotdesk_api.units import format_gpus

from hotdesk_scheduler.core.model import WHOLE_GPU, Workload
from hotdesk_scheduler.engines.base import Device
from hotdesk_scheduler.engines.cooperative import caps
from hotdesk_scheduler.engines.local.runs import Run, limit_mib

USUAL_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
PASSED_ON = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
# what says who a job is and what it holds; `-e` cannot make a job claim something else
RESERVED = frozenset(
    {
        *("JOB_NAME", "JOB_UUID", "POD_INDEX", "NODE_NAME", "RUNAI_NUM_OF_GPUS", "RUNAI_PROJECT", "RUNAI_JOB_NAME", "GPU_PORTION"),
        *("RUNAI_GPU_MEMORY_LIMIT", "HOTDESK_GPU_MEMORY_MIB", "HOTDESK_GPU_VIEW", "HOTDESK_TIER", "CUDA_VISIBLE_DEVICES"),
        *("NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HOTDESK_REPORT_TOKEN", "HOTDESK_API_URL", "HOTDESK_RUN_TOKEN"),
    }
)
_PLAIN_USER = re.compile(r"^[A-Za-z0-9%][A-Za-z0-9%._@~-]{0,99}$")


def home_of(state_dir: Path, user: str) -> Path:
    """`homes/USER`, escaped as JupyterHub escapes names; what could still not be a directory of its own gets a safe name."""
    escaped = quote(user, safe="@~")
    if _PLAIN_USER.match(escaped):
        return state_dir / "homes" / escaped
    readable = re.sub(r"[^A-Za-z0-9]+", "-", user)[:30].strip("-") or "user"
    return state_dir / "homes" / f"{readable}~{hashlib.sha256(user.encode()).hexdigest()[:12]}"


def base(state_dir: Path, user: str) -> dict[str, str]:
    """What every process of a user starts with."""
    venv_bin = os.path.dirname(sys.executable)
    return {
        **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
        "HOME": str(home_of(state_dir, user)),
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/bash",
        "PATH": f"{state_dir / 'bin'}:{venv_bin}:{USUAL_PATH}",
        "HOTDESK_BIN": str(state_dir / "bin"),
        "PYTHONUNBUFFERED": "1",
    }


def identity(workload: Workload, index: int, node: str) -> dict[str, str]:
    return {
        "JOB_NAME": workload.name,
        "JOB_UUID": workload.id,
        "POD_INDEX": str(index),
        "NODE_NAME": node,
        "RUNAI_PROJECT": workload.project,
        "RUNAI_JOB_NAME": workload.name,
    }


def share(run: Run, devices: Sequence[Device]) -> dict[str, str]:
    """The GPUs of a run in every form programs look for. Simulated ones are hidden from CUDA: torch then says there is none."""
    if not devices:
        return {"RUNAI_NUM_OF_GPUS": "0", "CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
    uuids = ",".join(device.uuid for device in devices)
    limits = [limit_mib(run, device) for device in devices]
    total_mib = sum(limits)
    variables = {
        "RUNAI_NUM_OF_GPUS": format_gpus(sum(run.millis_of(device.index) for device in devices)),
        "RUNAI_GPU_MEMORY_LIMIT": str(total_mib),
        "HOTDESK_GPU_MEMORY_MIB": str(total_mib),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "" if devices[0].simulated else uuids,
        "NVIDIA_VISIBLE_DEVICES": uuids,
        "GPU_PORTION": format_gpus(run.millis_of(devices[0].index)),
        "HOTDESK_TIER": run.tier,
        "HOTDESK_GPU_VIEW": json.dumps(
            [
                {
                    "index": device.index,
                    "uuid": device.uuid,
                    "model": device.model,
                    "memory_mib": device.memory_mib,
                    "limit_mib": limit,
                    "millis": run.millis_of(device.index),
                    "simulated": device.simulated,
                }
                for device, limit in zip(devices, limits, strict=True)
            ],
            separators=(",", ":"),
        ),
    }
    return variables if run.millis_of(devices[0].index) >= WHOLE_GPU else {**variables, **caps(limits[0], devices[0].memory_mib)}


def ports(run: Run) -> dict[str, str]:
    """`PORT` is where the first asked-for port is served on this machine, `HOTDESK_PORT_8888` where 8888 is."""
    named = {f"HOTDESK_PORT_{container}": str(host) for container, host in run.ports}
    return {"PORT": str(run.ports[0][1]), **named} if run.ports else {}


def layered(own: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """Ours with what the user asked for on top, except for what is reserved."""
    return {**own, **{name: value for name, value in asked.items() if name not in RESERVED}}
