"""Amounts of GPU, CPU and memory as vectors of integers, and how a request turns into one (scheduling.md 1).

A vector is (gpu_millis, cpu_millis, memory_mib). Unlimited is an integer larger than anything real, so that plain comparison works
and an unlimited quota or share never decides anything.
"""

from __future__ import annotations

from hotdesk_scheduler.core.model import WHOLE_GPU, GpuRequest, Placement, PodRequest

Vector = tuple[int, int, int]

GPU, CPU, MEMORY = 0, 1, 2
RESOURCES = (GPU, CPU, MEMORY)
RESOURCE_NAMES = ("gpu", "cpu", "memory")
NOTHING: Vector = (0, 0, 0)
UNLIMITED = 1 << 62
UNIT: Vector = (WHOLE_GPU, 1, 1)
"""What goes out as a whole when shares are divided: GPUs one by one, CPU and memory in their smallest unit."""


def plus(left: Vector, right: Vector) -> Vector:
    return (left[0] + right[0], left[1] + right[1], left[2] + right[2])


def total(vectors: list[Vector]) -> Vector:
    return (sum(v[0] for v in vectors), sum(v[1] for v in vectors), sum(v[2] for v in vectors))


def asked_resources(vector: Vector) -> tuple[int, ...]:
    """The resources an amount is about; a rule is judged on these alone (scheduling.md 3)."""
    return tuple(r for r in RESOURCES if vector[r] > 0)


def millis_on(request: GpuRequest, gpu_memory_mib: int) -> int:
    """Thousandths of one device that the request takes where a device has this much memory; above 1000 it does not fit there."""
    if request.memory_mib:
        return -(-WHOLE_GPU * request.memory_mib // gpu_memory_mib) if gpu_memory_mib else WHOLE_GPU + 1
    return request.millis


def gpu_millis_asked(request: GpuRequest, smallest_gpu_mib: int) -> int:
    """What counts towards quota before it is placed: a memory request counts on the cluster's smallest GPU, at most one GPU."""
    if request.whole:
        return request.whole * WHOLE_GPU
    if request.memory_mib:
        return min(WHOLE_GPU, millis_on(request, smallest_gpu_mib)) * request.devices
    return request.millis * request.devices


def asked(request: PodRequest, smallest_gpu_mib: int) -> Vector:
    """A pod's request as a vector, before it is placed."""
    whole = request.gpu.whole
    gpu = whole * WHOLE_GPU if whole else 0 if request.gpu.is_none else gpu_millis_asked(request.gpu, smallest_gpu_mib)
    return (gpu, request.cpu_millis, request.memory_mib)


def held(request: PodRequest, placement: Placement) -> Vector:
    """What a placed pod holds."""
    return (placement.gpu_millis, request.cpu_millis, request.memory_mib)


def gpus(millis: int) -> str:
    """`1500` -> `1.5`, for sentences."""
    if millis >= UNLIMITED:
        return "unlimited"
    whole, rest = divmod(millis, WHOLE_GPU)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)


def gpu_words(millis: int) -> str:
    """`1 GPU`, `0.5 GPU`, `4 GPUs`."""
    return f"{gpus(millis)} GPU{'s' if millis > WHOLE_GPU or millis == 0 else ''}"


def amount_words(amount: int, resource: int) -> str:
    """An amount of one resource in words: `2 GPUs`, `4 CPU cores`, `2048 MiB of memory`."""
    if resource == GPU:
        return gpu_words(amount)
    if resource == CPU:
        return f"{gpus(amount)} CPU core{'s' if amount > WHOLE_GPU or amount == 0 else ''}"
    return f"{'unlimited' if amount >= UNLIMITED else amount} MiB of memory"
