"""What a killed keeper leaves: the cluster's folder, and of a real node containers and mounts. Removed before the next cluster starts."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_NAME = "hotdesk-kube"


def folder_of(session: str, level: int) -> Path:
    """Short: unix sockets lie in it."""
    return Path(tempfile.gettempdir()) / f"{_NAME}-{os.getuid()}-{session}-{level}"


def users_file(folder: Path) -> Path:
    """Every user of the cluster has a shared lock on it."""
    return folder.with_name(folder.name + ".users")


def starting_file(folder: Path) -> Path:
    """Locked by the one user who starts the keeper."""
    return folder.with_name(folder.name + ".starting")


def keeper_file(folder: Path) -> Path:
    """Locked by the keeper as long as it lives."""
    return folder / "keeper.lock"


def is_kept(folder: Path) -> bool:
    return folder.exists() and not _can_lock(keeper_file(folder))


def remove(folder: Path) -> None:
    """A cluster nobody keeps: its programs died with the keeper, but containers and their mounts did not."""
    end_containers(folder)
    shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned() -> None:
    """Of all our earlier sessions; those that live, or are just starting, are left alone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_NAME}-{os.getuid()}-*-[0-9]"):
        if _can_lock(starting_file(folder)) and _can_lock(users_file(folder)) and not is_kept(folder):
            remove(folder)
            starting_file(folder).unlink(missing_ok=True)
            users_file(folder).unlink(missing_ok=True)


def end_containers(folder: Path) -> None:
    for number, command in processes():
        if "containerd-shim" in command and f"{folder}/" in command:
            os.kill(number, signal.SIGKILL)
    mounts = [line.split(" ")[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((mount for mount in mounts if mount.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "-l", mount], capture_output=True, check=False)


def processes() -> Iterator[tuple[int, str]]:
    """Of this machine: id and command line."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            yield int(process.name), (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue  # it has ended


def _can_lock(path: Path) -> bool:
    """True too where there is no such file."""
    try:
        with path.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True
