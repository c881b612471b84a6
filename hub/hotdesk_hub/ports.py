"""Whether one can listen where the operator wants the pages, and if not, why and what to do, in a sentence."""

from __future__ import annotations

import errno
import socket

from hotdesk_api.errors import Conflict, HotdeskError, Invalid

LARGEST_PORT = 65535
ANOTHER = 8000


def check_public(address: str, port: int) -> None:
    """Raises Invalid or Conflict if nobody can listen there now."""
    if not 1 <= port <= LARGEST_PORT:
        raise Invalid(
            f"Port {port} is not between 1 and {LARGEST_PORT}.", field="--port", value=port, next_step=f"For example {_offer(ANOTHER)}."
        )
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
    except OSError as error:
        raise _refusal(error, address, port) from error


def _refusal(error: OSError, address: str, port: int) -> HotdeskError:
    if isinstance(error, PermissionError):
        what = f"You are not allowed to listen on port {port} (those below 1024 are usually root's)."
        return Conflict(what, field="--port", value=port, next_step=f"Choose another one: {_offer(ANOTHER)}.")
    if error.errno == errno.EADDRINUSE:
        what = f"Port {port} on {address} is taken by another program."
        return Conflict(
            what, field="--port", value=port, next_step=f"Choose another one: {_offer(port + 1 if port < LARGEST_PORT else ANOTHER)}."
        )
    what = f"{address} is not an address of this machine that one can listen on ({error.strerror or error})."
    return Invalid(what, field="--address", value=address, next_step="127.0.0.1 is this machine alone, 0.0.0.0 all that can reach it.")


def _offer(port: int) -> str:
    return f"`make up PORT={port}` or `hotdesk-hub up --port {port}`"
