"""What that chart documents for `hub.extraConfig`: its values, and secrets, as files that are mounted. Here below $Z2JH_FILES."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # ships no types

FILES = Path(os.environ["Z2JH_FILES"])


@cache
def _values() -> Any:
    return yaml.safe_load((FILES / "secret" / "values.yaml").read_text())


def get_config(key: str, default: Any = None) -> Any:
    """`singleuser.image.name`: the value there, `default` if there is none."""
    value = _values()
    for name in key.split("."):
        if not isinstance(value, dict) or name not in value:
            return default
        value = value[name]
    return value


def get_secret_value(key: str) -> str:
    return (FILES / "secret" / key).read_text()


def get_name(name: str) -> str:
    return (FILES / "config" / name).read_text()
