"""The commands a job finds first on its PATH: the labelled `nvidia-smi` and `start-notebook.sh`, written into STATE/bin."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from hotdesk_scheduler.engines.local.catalog import PROGRAMS

# command -> (program, options of the interpreter: nvidia-smi needs nothing but the standard library, so it starts in milliseconds)
_COMMANDS = {"nvidia-smi": ("nvidia_smi.py", "-I -S -E"), "start-notebook.sh": ("start_notebook.py", "")}


def install(state_dir: Path) -> None:
    """Idempotent; a command is replaced whole, so that a job that starts one meanwhile gets the old or the new."""
    directory = state_dir / "bin"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, (program, options) in _COMMANDS.items():
        text = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {options} {shlex.quote(str(PROGRAMS / program))} "$@"\n'
        path = directory / name
        if path.exists() and path.read_text() == text:
            continue
        new = directory / f".{name}.{os.getpid()}"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        new.rename(path)
