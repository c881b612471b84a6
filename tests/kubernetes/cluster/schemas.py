"""Fetches what several versions of Kubernetes say their objects look like, into the user's cache. Standard library only, like `programs`.

    cd tests/kubernetes && python3 -m cluster.schemas

Kubernetes publishes its OpenAPI definitions in its Go module, the Gateway API those of its resources in its own. Both are fetched by
`go mod download` into a folder that is thrown away (a version is 20 MB packed, 110 MB unpacked); kept is what validates, 0.3 MB a version.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path
from typing import Any

from cluster.programs import CannotBuildError, cache

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """`sum`: Go's checksum of the module. `inside`: the file that is wanted of it."""

    module: str
    version: str
    sum: str
    inside: str

    @property
    def file(self) -> Path:
        """Where it is kept."""
        return cache() / "schemas" / f"{self.module.rpartition('/')[2]}-{self.version}{Path(self.inside).suffix}"


def _kubernetes(version: str, checksum: str) -> Source:
    return Source("k8s.io/kubernetes", f"v{version}", f"h1:{checksum}", "api/openapi-spec/swagger.json")


# The oldest one that the chart names, the one the test cluster has, and some between.
KUBERNETES = (
    _kubernetes("1.30.14", "MrlKXh9uhLIJpyxOeXhcndzRVSvwiV9iJ8NgH8nqPsg="),
    _kubernetes("1.32.13", "5TGYdZ6YZqdp6h/Rp1vX/4TIoybMPdgv97LCZCtPuNQ="),
    _kubernetes("1.33.13", "bmH31xUdSzeA5vk0wZAK9MZp11mdLuzUSeKk0qN3hPQ="),
    _kubernetes("1.35.4", "o/8dBC/pHVpYoGV4OAIytAlNPZbdYVTXJHoYvXC4qzM="),
    _kubernetes("1.37.1", "LTUzSbp9n0W7649oVKBYfC48zcoD3vCk++1PZQn28q8="),
)
HTTP_ROUTE = Source(
    "sigs.k8s.io/gateway-api",
    "v1.2.1",
    "h1:fZZ/+RyRb+Y5tGkwxFKuYuSRQHu9dZtbjenblleOLHM=",
    "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
)
SOURCES = (*KUBERNETES, HTTP_ROUTE)


def why_not_fetched() -> str | None:
    """None if all of them are there."""
    missing = [source.file.name for source in SOURCES if not source.file.exists()]
    return f"not fetched yet: {', '.join(missing)} (`make kube` fetches them once, about a minute)" if missing else None


def fetch() -> None:
    """Raises CannotBuildError if a version cannot be had, or is not what it was."""
    if not why_not_fetched():
        return
    if not shutil.which("go"):
        raise CannotBuildError("Go is needed to fetch the schemas of Kubernetes' versions, and no go is on PATH")
    (cache() / "schemas").mkdir(parents=True, exist_ok=True)
    for source in SOURCES:
        if not source.file.exists():
            started = time.monotonic()
            _fetch(source)
            print(f"{source.file.name}: fetched in {time.monotonic() - started:.0f} s", flush=True)


def _fetch(source: Source) -> None:
    """Into a file of its own first; what gets its name is whole."""
    with tempfile.TemporaryDirectory(dir=cache() / "schemas", prefix=".new-") as folder:
        found = _download(source, Path(folder)).read_text()
        made = Path(folder) / "made"
        made.write_text(json.dumps(strict(json.loads(found))) if source.inside.endswith(".json") else found)
        made.rename(source.file)


def _download(source: Source, folder: Path) -> Path:
    """The file, in an unpacked module below `folder`."""
    environment = os.environ | {"GOMODCACHE": str(folder / "modules"), "GOFLAGS": "-modcacherw", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    command = ["go", "mod", "download", "-json", f"{source.module}@{source.version}"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    said: Json = json.loads(done.stdout or "{}")
    if done.returncode:
        raise CannotBuildError(f"{source.module} {source.version} cannot be had: {said.get('Error') or done.stderr.strip()}")
    if said["Sum"] != source.sum:
        raise CannotBuildError(f"{source.module} {source.version} is not what it was: {said['Sum']} in place of {source.sum}")
    return Path(said["Dir"]) / source.inside


def strict(swagger: Json) -> Json:
    """Kubernetes' definitions as a JSON schema that refuses what they do not name; `kinds` says which definition `apiVersion kind` is."""
    definitions: Json = {}
    kinds: dict[str, str] = {}
    for name, definition in swagger["definitions"].items():
        definitions[name] = closed(definition)
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            kinds["/".join(filter(None, (kind["group"], kind["version"]))) + f" {kind['kind']}"] = name
    definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"] = {"type": ["integer", "string"]}
    definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"] = {"type": ["number", "string"]}
    return {"definitions": definitions, "kinds": {kind: name for kind, name in kinds.items() if _is_a_kind(definitions[name])}}


def _is_a_kind(definition: Json) -> bool:
    """Options of requests name the groups they are used with, as if they were kinds of them."""
    return "metadata" in definition.get("properties", {})


def closed(schema: Json) -> Json:
    """The same, without descriptions, and for objects with named fields: no others."""
    kept: Json = {}
    for name, value in schema.items():
        if name == "properties":
            kept[name] = {field: closed(inner) for field, inner in value.items()}
        elif isinstance(value, dict) and name in ("items", "additionalProperties"):
            kept[name] = closed(value)
        elif name in (
            "type",
            "required",
            "enum",
            "pattern",
            "$ref",
            "minItems",
            "maxItems",
            "minLength",
            "maxLength",
            "minimum",
            "maximum",
        ):
            kept[name] = value
    if "properties" in kept and not schema.get("x-kubernetes-preserve-unknown-fields"):
        kept.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        kept = {"type": ["integer", "string"]}
    return kept


@once
def schema_of(source: Source) -> Json:
    """Of one version: `definitions` and `kinds`."""
    found: Json = json.loads(source.file.read_text())
    return found


def main() -> int:
    try:
        fetch()
    except CannotBuildError as problem:
        print(problem, file=sys.stderr)
        return 3
    print(f"up to date: {cache() / 'schemas'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
