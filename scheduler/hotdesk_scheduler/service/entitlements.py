"""What projects and departments share: the checks of what is asked for, and quotas, limits, weight and priority as the core has them."""

from __future__ import annotations

from dataclasses import replace

from hotdesk_api.errors import Invalid
from hotdesk_api.models import Entitlement
from hotdesk_api.units import format_gpus

from hotdesk_scheduler.core.model import Department, Project, Quota

MAX_AMOUNT = 10**12


def check(spec: Entitlement) -> None:
    """Raises Invalid for what can be right on no cluster."""
    for name, value in spec.model_dump(exclude_unset=True).items():
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_AMOUNT:
            raise Invalid(f"{name} {value} is more than any cluster has.", field=name, value=str(value), limit=MAX_AMOUNT)
    for name in ("gpu_limit_millis", "cpu_limit_millis", "memory_limit_mib"):
        if name in spec.model_fields_set and getattr(spec, name) is None:
            raise Invalid(f"{name} needs a number; -1 means no limit.", field=name)


def changes(entitled: Department | Project, spec: Entitlement) -> dict[str, object]:
    """The core's members that `spec` sets. None as a quota leaves it as it is."""
    given = spec.model_fields_set
    found: dict[str, object] = {}
    for resource, unit in (("gpu", "millis"), ("cpu", "millis"), ("memory", "mib")):
        quota: Quota = getattr(entitled, resource)
        for part in ("quota", "limit"):
            name = f"{resource}_{part}_{unit}"
            value = getattr(spec, name)
            if name in given and value is not None:
                quota = replace(quota, **{part: None if value == -1 else value})
        found[resource] = quota
    found |= {name: getattr(spec, name) for name in ("over_quota", "priority") if getattr(spec, name) is not None}
    if "gpu_over_quota_weight" in given:
        found["weight"] = spec.gpu_over_quota_weight
    return found


def check_limit(entitled: Department | Project) -> None:
    """Raises Invalid where the GPU limit is below the quota. A quota that is a sum follows its projects, so a limit may be below it."""
    gpu = entitled.gpu
    if gpu.limit is not None and gpu.quota is not None and gpu.limit < gpu.quota:
        raise Invalid(
            f"The GPU limit {format_gpus(gpu.limit)} of {entitled.name} is below its quota {format_gpus(gpu.quota)}.",
            field="gpu_limit_millis",
            value=gpu.limit,
            limit=gpu.quota,
            next_step="Raise the limit or lower the quota.",
        )
