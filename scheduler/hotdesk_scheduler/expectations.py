"""What a scenario expects against what came out, and how states are written for `simulate --json`."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
