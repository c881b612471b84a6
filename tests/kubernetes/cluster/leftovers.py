"""What a killed keeper leaves: the cluster's folder, and of a real node containers and mounts. Removed before the next cluster starts."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cluster import machine

_NAME = "hotdesk-kube"


def folder_of(session: str, level: int, worker: str = "") -> Path:
    """Short: unix sockets lie in it."""
    return Path(tempfile.gettempdir()) / f"{_name_of(session)}{worker}-{level}"


def users_file(folder: Path) -> Path:
    """Every user of the cluster has a shared lock on it."""
    return folder.with_name(folder.name + ".users")


def starting_file(folder: Path) -> Path:
    """Locked by the one user who starts the keeper."""
    return folder.with_name(folder.name + ".starting")


def keeper_file(folder: Path) -> Path:
    """Locked by the keeper as long as it lives."""
    return folder / "keeper.lock"


def left_file(folder: Path) -> Path:
    """Written by the keeper at its end, if something outlived the cluster: one line each."""
    return folder.with_name(folder.name + ".left")


def files_of(session: str) -> list[Path]:
    """Of all its clusters: folders and the files beside them."""
    return sorted(Path(tempfile.gettempdir()).glob(f"{_name_of(session)}*"))


def _name_of(session: str) -> str:
    return f"{_NAME}-{os.getuid()}-{hashlib.sha256(session.encode()).hexdigest()[:8]}"


def is_kept(folder: Path) -> bool:
    return folder.exists() and not _can_lock(keeper_file(folder))


def keeper_of(folder: Path) -> int:
    """Its process."""
    (found,) = (number for number, command in processes() if f"cluster.keeper {folder} " in command)
    return found


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
    machine.restore_if_free()


def end_containers(folder: Path) -> None:
    """Supervisors, their sockets (in a folder fixed by containerd), mounts."""
    for address in folder.glob("containerd/state/io.containerd.runtime.v2.task/*/*/address"):
        Path(address.read_text().removeprefix("unix://")).unlink(missing_ok=True)
    for number, command in processes():
        if "containerd-shim" in command and f"{folder}/" in command:
            os.kill(number, signal.SIGKILL)
    for mount in sorted(mounts(folder), reverse=True):
        subprocess.run(["umount", "-l", mount], capture_output=True, check=False)


def left_of(folder: Path) -> set[str]:
    """Programs with this folder on their command line (Hotdesk's own, of a test, too) and mounts below it, one line each."""
    found = {f"process {number}: {command[:300]}" for number, command in processes() if f"{folder}/" in command}
    return found | {f"mount {mount}" for mount in mounts(folder)}


def mounts(folder: Path) -> list[str]:
    found = [line.split(" ")[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return [mount for mount in found if mount.startswith(f"{folder}/")]


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
