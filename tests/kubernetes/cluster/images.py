"""Container images for the real node, made from files of this machine: no registry, no docker. OCI archives."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

BUSYBOX = Path("/bin/busybox")
_PASSWD = b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_GROUP = b"root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n"
_ALWAYS = ("/tmp", "/proc", "/sys", "/dev", "/root", "/home", "/home/user")


@dataclass(frozen=True, slots=True)
class Image:
    """`files`: path in the image -> its bytes, or the file of this machine. `links`: path -> target. `entry`: runs without a command.

    `base`: whose files lie below, in a layer of their own that the node keeps once.
    """

    name: str
    entry: tuple[str, ...]
    files: dict[str, bytes | Path] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    user: str = ""
    base: Image | None = None


def test_images() -> list[Image]:
    """`localhost/pause:1` under every pod, `localhost/busybox:1` for tests."""
    files, links = busybox()
    pause = Image("localhost/pause:1", ("/bin/sleep", "2147483647"), files, links)
    return [pause, Image("localhost/busybox:1", ("/bin/sh",), files, links)]


def busybox() -> tuple[dict[str, bytes | Path], dict[str, str]]:
    """Files and links of a small system. Needs Debian's busybox-static."""
    names = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split()
    files: dict[str, bytes | Path] = {"/bin/busybox": BUSYBOX, "/etc/passwd": _PASSWD, "/etc/group": _GROUP}
    return files, {f"/bin/{name}": "/bin/busybox" for name in names if name != "busybox"}


def libraries(files: Iterable[Path]) -> set[Path]:
    """The shared libraries that these programs and libraries are linked with, as ldd finds them."""
    listed = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    return {Path(os.path.normpath(match)) for match in re.findall(r"(?:=> )?(/\S+) \(0x", listed)}


def write(image: Image, archive: Path) -> None:
    with ExitStack() as stack, tarfile.open(archive, "w") as tar:
        files = [stack.enter_context(tempfile.TemporaryFile(dir=archive.parent)) for _ in _layers(image)]
        for layer, file in zip(_layers(image), files, strict=True):
            _write_layer(layer, file)
        layers = [_described(file, "image.layer.v1.tar") for file in files]
        config = {
            "Env": [f"{name}={value}" for name, value in ({"PATH": "/usr/local/bin:/usr/bin:/bin"} | image.environment).items()],
            "Entrypoint": list(image.entry),
            "User": image.user,
        }
        rootfs = {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]}
        settings = _put(tar, _json({"architecture": "amd64", "os": "linux", "config": config, "rootfs": rootfs}), "image.config.v1+json")
        kind = "application/vnd.oci.image.manifest.v1+json"
        content = _json({"schemaVersion": 2, "mediaType": kind, "config": settings, "layers": layers})
        manifest = _put(tar, content, "image.manifest.v1+json")
        manifest["annotations"] = {
            "io.containerd.image.name": image.name,
            "org.opencontainers.image.ref.name": image.name.rpartition(":")[2],
        }
        manifest["platform"] = {"architecture": "amd64", "os": "linux"}
        _add(tar, "index.json", _json({"schemaVersion": 2, "manifests": [manifest]}))
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        for described, file in zip(layers, files, strict=True):
            _add_layer(tar, str(described["digest"])[7:], file)


def _layers(image: Image) -> list[Image]:
    """The lowest first."""
    return [*(_layers(image.base) if image.base else []), image]


def _add_layer(tar: tarfile.TarFile, digest: str, file: IO[bytes]) -> None:
    entry = tarfile.TarInfo(f"blobs/sha256/{digest}")
    entry.size = file.seek(0, io.SEEK_END)
    file.seek(0)
    tar.addfile(entry, file)


def _write_layer(image: Image, layer: IO[bytes]) -> None:
    """Everything is root's, and readable by all; times are kept, so that compiled Python is taken for new."""
    with tarfile.open(fileobj=layer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        paths = {*image.files, *image.links}
        folders = {str(parent) for path in paths for parent in Path(path).parents} | set(_ALWAYS)
        for folder in sorted(folders - {"/"}):
            _add_folder(tar, folder, mode=0o1777 if folder == "/tmp" else 0o755, owner=1000 if folder == "/home/user" else 0)
        for path, content in sorted(image.files.items()):
            if isinstance(content, bytes):
                _add(tar, path.lstrip("/"), content)
            else:
                _add_file(tar, path.lstrip("/"), content)
        for path, target in sorted(image.links.items()):
            link = tarfile.TarInfo(path.lstrip("/"))
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)


def _add(tar: tarfile.TarFile, path: str, content: bytes) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), 0o755
    tar.addfile(entry, io.BytesIO(content))


def _add_file(tar: tarfile.TarFile, path: str, source: Path) -> None:
    facts = source.stat()
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode, entry.mtime = facts.st_size, facts.st_mode & 0o777 | 0o444, int(facts.st_mtime)
    with source.open("rb") as file:
        tar.addfile(entry, file)


def _add_folder(tar: tarfile.TarFile, path: str, *, mode: int, owner: int) -> None:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, mode, owner, owner
    tar.addfile(entry)


def _described(content: IO[bytes], kind: str) -> dict[str, object]:
    size = content.seek(0, io.SEEK_END)
    content.seek(0)
    digest = hashlib.file_digest(content, "sha256").hexdigest()  # type: ignore[arg-type]  # typeshed wants a BufferedReader
    return {"mediaType": f"application/vnd.oci.{kind}", "digest": f"sha256:{digest}", "size": size}


def _put(tar: tarfile.TarFile, content: bytes, kind: str) -> dict[str, object]:
    described = _described(io.BytesIO(content), kind)
    _add(tar, f"blobs/sha256/{str(described['digest'])[7:]}", content)
    return described


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
