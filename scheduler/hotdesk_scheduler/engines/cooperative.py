"""Limits that frameworks keep by themselves, read from the environment: the tier `cooperative`. Nothing enforces them. Pure."""

from __future__ import annotations


def caps(limit: int, memory_mib: int) -> dict[str, str]:
    """`limit` MiB of a GPU with `memory_mib`. They refuse nothing where they are unknown."""
    return {**_parts(limit * 100 // memory_mib), "CUPY_GPU_MEMORY_LIMIT": str(limit * 2**20)}


def caps_of_unknown(millis: int) -> dict[str, str]:
    """That part of a GPU whose memory nobody has told."""
    percent = millis // 10
    return {**_parts(percent), "CUPY_GPU_MEMORY_LIMIT": f"{percent}%"}


def _parts(percent: int) -> dict[str, str]:
    fraction = f"{percent / 100:.2f}"
    return {
        "XLA_CLIENT_MEM_FRACTION": fraction,
        "XLA_PYTHON_CLIENT_MEM_FRACTION": fraction,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
