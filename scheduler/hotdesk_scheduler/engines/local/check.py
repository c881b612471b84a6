"""Whether this machine can ever run a spec: refused with a sentence before anything is queued."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from hotdesk_api.errors import Invalid, TooLarge
from hotdesk_api.models import WorkloadSpec

from hotdesk_scheduler.core.model import Node
from hotdesk_scheduler.engines.local import catalog

MAX_ARGUMENT_BYTES = 128 * 1024 - 1  # Linux: MAX_ARG_STRLEN, one argument or variable with its end
MAX_ALL_BYTES = 1024 * 1024  # half of what exec takes with the usual stack; the rest is our own variables'


def check(spec: WorkloadSpec, nodes: Iterable[Node]) -> None:
    """Raise `Invalid` (unknown image, node type, pool; strings no program can be given) or `TooLarge`."""
    catalog.find(spec)
    nodes = list(nodes)
    types = {node.node_type for node in nodes if node.node_type}
    if spec.node_type and spec.node_type not in types:
        raise _unknown("node type", spec.node_type, types, field="node_type")
    pools = {node.pool for node in nodes}
    for pool in spec.node_pools:
        if pool not in pools:
            raise _unknown("node pool", pool, pools, field="node_pools")
    _check_strings(spec)


def _unknown(what: str, value: str, known: set[str], *, field: str) -> Invalid:
    near = difflib.get_close_matches(value, known, n=1)
    valid = f"Valid ones: {', '.join(sorted(known))}." if known else f"The nodes here have no {what}."
    return Invalid(
        f"There is no {what} {value[:100]}.",
        field=field,
        value=value[:100],
        next_step=(f"Did you mean {near[0]}? " if near else "") + valid,
    )


def _check_strings(spec: WorkloadSpec) -> None:
    for name in spec.environment:
        if not name or "=" in name or "\0" in name:
            raise Invalid(
                f"{name[:100]!r} cannot be the name of a variable.",
                field="environment",
                value=name[:100],
                next_step="Write -e NAME=VALUE.",
            )
    words = {
        "command": spec.command,
        "args": spec.args,
        "environment": [f"{name}={value}" for name, value in spec.environment.items()],
        "working_dir": [spec.working_dir or ""],
    }
    for field, strings in words.items():
        for text in strings:
            if "\0" in text:
                raise Invalid(f"A NUL byte cannot be part of {field}.", field=field)
            if len(text.encode(errors="surrogateescape")) > MAX_ARGUMENT_BYTES:
                raise _too_large(field, len(text), MAX_ARGUMENT_BYTES)
    total = sum(len(text) + 9 for strings in words.values() for text in strings)
    if total > MAX_ALL_BYTES:
        raise _too_large("command, arguments and environment together", total, MAX_ALL_BYTES)
    if spec.command and not spec.command[0].strip():
        raise Invalid("The command is empty.", field="command", next_step="Write for example --command sleep --args infinity.")


def _too_large(field: str, size: int, limit: int) -> TooLarge:
    return TooLarge(
        f"{field[0].upper()}{field[1:]}: {size} bytes are more than a program can be given ({limit}).",
        field=field.split(",")[0],
        value=size,
        limit=limit,
        next_step="Put the data into a file and name the file.",
    )
