"""Container images for the real node, made from files of this machine: no registry, no docker. OCI archives, one layer each."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

BUSYBOX = Path("/bin/busybox")
_PASSWD = b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_GROUP = b"root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n"


@dataclass(frozen=True, slots=True)
class Image:
    """`files`: path in the image -> its bytes (mode 0755). `links`: path -> target. `entry`: what runs without a command."""

    name: str
    entry: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)


def test_images() -> list[Image]:
    """`localhost/pause:1` under every pod, `localhost/busybox:1` for tests. Needs Debian's busybox-static."""
    names = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split()
    files = {"/bin/busybox": BUSYBOX.read_bytes(), "/etc/passwd": _PASSWD, "/etc/group": _GROUP}
    links = {f"/bin/{name}": "/bin/busybox" for name in names if name != "busybox"}
    pause = Image("localhost/pause:1", ("/bin/sleep", "2147483647"), files, links)
    return [pause, Image("localhost/busybox:1", ("/bin/sh",), files, links)]


def write(image: Image, archive: Path) -> None:
    """The same bytes for the same image: times and owners are 0."""
    layer = _layer(image)
    blobs: dict[str, bytes] = {}
    config = {"Env": ["PATH=/bin:/usr/bin"], "Entrypoint": list(image.entry)}
    layers = [_put(blobs, layer, "image.layer.v1.tar")]
    rootfs = {"type": "layers", "diff_ids": [layers[0]["digest"]]}
    settings = _put(blobs, _json({"architecture": "amd64", "os": "linux", "config": config, "rootfs": rootfs}), "image.config.v1+json")
    kind = "application/vnd.oci.image.manifest.v1+json"
    content = {"schemaVersion": 2, "mediaType": kind, "config": settings, "layers": layers}
    manifest = _put(blobs, _json(content), "image.manifest.v1+json")
    manifest["annotations"] = {"io.containerd.image.name": image.name, "org.opencontainers.image.ref.name": image.name.rpartition(":")[2]}
    manifest["platform"] = {"architecture": "amd64", "os": "linux"}
    blobs["index.json"] = _json({"schemaVersion": 2, "manifests": [manifest]})
    blobs["oci-layout"] = _json({"imageLayoutVersion": "1.0.0"})
    with tarfile.open(archive, "w") as tar:
        for path, content_bytes in blobs.items():
            _add(tar, path, content_bytes)


def _layer(image: Image) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as tar:
        paths = {*image.files, *image.links}
        folders = {str(parent) for path in paths for parent in Path(path).parents} | {
            "/tmp",
            "/proc",
            "/sys",
            "/dev",
            "/root",
            "/home/user",
            "/home",
        }
        for folder in sorted(folders - {"/"}):
            _add_folder(tar, folder, mode=0o1777 if folder == "/tmp" else 0o755, owner=1000 if folder == "/home/user" else 0)
        for path, content in sorted(image.files.items()):
            _add(tar, path.lstrip("/"), content)
        for path, target in sorted(image.links.items()):
            link = tarfile.TarInfo(path.lstrip("/"))
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
    return made.getvalue()


def _add(tar: tarfile.TarFile, path: str, content: bytes) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), 0o755
    tar.addfile(entry, io.BytesIO(content))


def _add_folder(tar: tarfile.TarFile, path: str, *, mode: int, owner: int) -> None:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, mode, owner, owner
    tar.addfile(entry)


def _put(blobs: dict[str, bytes], content: bytes, kind: str) -> dict[str, object]:
    digest = hashlib.sha256(content).hexdigest()
    blobs[f"blobs/sha256/{digest}"] = content
    return {"mediaType": f"application/vnd.oci.{kind}", "digest": f"sha256:{digest}", "size": len(content)}


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
