"""The proxy's image: what its Dockerfile installs, made of this machine's node and the modules that `make install` fetched."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hotdesk_hub.proxy import BESIDE_THE_HUB, find_node

from cluster.images import Image, busybox, libraries


def node_image_of(dockerfile: Path, name: str) -> Image:
    """Raises FileNotFoundError without node."""
    text = dockerfile.read_text()
    node = find_node()
    if node is None or not BESIDE_THE_HUB.is_dir():
        raise FileNotFoundError("node and the proxy's modules are not installed: `make install` does it")
    files, links = busybox()
    folder = _found(r"^WORKDIR (\S+)$", text)
    for path in BESIDE_THE_HUB.rglob("*"):
        if path.is_file():
            files[f"{folder}/node_modules/{path.relative_to(BESIDE_THE_HUB)}"] = path.resolve()
    binary = Path(node).resolve()
    files["/usr/local/bin/node"] = binary
    files.update({str(path): path.resolve() for path in libraries([binary])})
    environment = dict(pair.split("=", 1) for pair in _found(r"^ENV (.*)$", text).split())
    entry = tuple(json.loads(_found(r"^ENTRYPOINT (\[.*\])$", text)))
    return Image(name, entry, files, links, environment, user=_found(r"^USER (\S+)$", text))


def _found(pattern: str, text: str) -> str:
    (found,) = re.findall(pattern, text, re.MULTILINE)
    return str(found)
