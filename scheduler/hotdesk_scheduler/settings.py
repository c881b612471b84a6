"""Every setting of `hotdesk-scheduler serve`, once: its flag, its variable, its default and what it means."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from hotdesk_api import units
from hotdesk_api.errors import Invalid


def _about(help_text: str, *, parse: Any = str, variable: str | None = None, metavar: str | None = None) -> Mapping[str, Any]:
    return {"help": help_text, "parse": parse, "variable": variable, "metavar": metavar}


def _path(text: str) -> Path:
    return Path(text).expanduser()


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float(units.parse_duration_s(text))
    if not 0 <= value < float("inf"):
        raise ValueError("it is to be a number of seconds, 0 or more")
    return value


def _lease(text: str) -> float:
    if not 2 <= (value := _seconds(text)) <= 300:
        raise ValueError("it is to be from 2 s to 5 minutes")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError("it is to be 0 or more")
    return value


def _engine(text: str) -> str:
    if text not in ("local", "kubernetes"):
        raise ValueError("it is to be local or kubernetes")
    return text


def _half_life(text: str) -> float:
    if (value := _seconds(text)) < 1:
        raise ValueError("it is to be a second or more, such as 7d")
    return value


def _weight(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1000 or round(value, 3) != value:
        raise ValueError("it is to be a number from 0 to 1000 with at most three decimals")
    return value


def _placement(text: str) -> str:
    if text not in ("binpack", "spread"):
        raise ValueError("it is to be binpack or spread")
    return text


DEFAULT_STATE = Path("~/.local/state/hotdesk").expanduser()


@dataclass(frozen=True, slots=True)
class Settings:
    """A field is a flag (`state_dir` -> `--state`, else the name with dashes) and a variable (`HOTDESK_…`). Flags win."""

    state_dir: Path = field(default=DEFAULT_STATE, metadata=_about("where everything is kept (0700)", parse=_path, metavar="DIR"))
    engine: str = field(default="local", metadata=_about("what runs pods: local (this machine) or kubernetes", parse=_engine))
    simulate: str = field(default="", metadata=_about("simulated nodes instead of real GPUs, such as 2x8xV100-SXM2-32GB", metavar="SHAPE"))
    host: str = field(default="127.0.0.1", metadata=_about("address to listen on; loopback unless you mean it"))
    port: int = field(default=8010, metadata=_about("port to listen on; 0 = any free one, written to STATE/scheduler/port", parse=int))
    advertise_url: str = field(
        default="", metadata=_about("where jobs reach this, to report their progress; default: host and port", metavar="URL")
    )
    seed_projects: str = field(
        default="", metadata=_about("projects and GPU quotas made on the very first start, such as team-a=4,team-b=2", metavar="A=N,…")
    )
    tokens_file: Path | None = field(
        default=None,
        metadata=_about(
            "take callers from this JSON file (0600) instead of JupyterHub; for tests and use without a hub", parse=_path, metavar="FILE"
        ),
    )
    records_url: str = field(
        default="", metadata=_about("SQLAlchemy URL of events and audit; default: SQLite in the state directory", metavar="URL")
    )
    decisions_mib: int = field(
        default=256, metadata=_about("MiB of disk for the record of decisions that `replay` reads; 0 = keep none", parse=_count)
    )
    decisions_keep_s: float = field(default=30 * 86_400.0, metadata=_about("how long the record of decisions is kept", parse=_seconds))
    service_name: str = field(default="hotdesk", metadata=_about("the part of the custom scopes that names this service"))
    grace_s: float = field(
        default=30.0, metadata=_about("seconds between the notice (SIGTERM) and SIGKILL of a pod that is stopped", parse=_seconds)
    )
    min_runtime_s: float = field(default=0.0, metadata=_about("a workload that has run less is not stopped for others", parse=_seconds))
    preemption_delay_s: float = field(default=0.0, metadata=_about("a workload younger than this stops nobody", parse=_seconds))
    reserve_after_s: float = field(
        default=600.0,
        metadata=_about("who waited longer within his fair share gets nodes kept for him; 0 = never", parse=_seconds),
    )
    history_weight: float = field(
        default=0.0,
        metadata=_about("how much past use corrects over-quota weights, 0 = not at all, 1 = as much as the weight", parse=_weight),
    )
    history_half_life_s: float = field(default=604_800.0, metadata=_about("past use counts half after this time", parse=_half_life))
    placement: str = field(default="binpack", metadata=_about("binpack or spread", parse=_placement))
    tick_s: float = field(default=30.0, metadata=_about("the loop also runs this often when nothing changes", parse=_seconds))
    workspace_poll_s: float = field(
        default=12.0, metadata=_about("how often the hub's list of servers is compared with the workspaces", parse=_seconds)
    )
    workspace_wait_s: float = field(
        default=600.0, metadata=_about("how long a waiting workspace keeps its place without its spawner", parse=_seconds)
    )
    grant_s: float = field(default=300.0, metadata=_about("how long a granted workspace may take to be taken up", parse=_seconds))
    namespace: str = field(
        default="hotdesk", metadata=_about("kubernetes: where Hotdesk is installed, with its projects, departments and lease")
    )
    namespace_prefix: str = field(
        default="hotdesk-", metadata=_about("kubernetes: prefix and project name are the namespace of its workloads", metavar="PREFIX")
    )
    kubeconfig: Path | None = field(
        default=None,
        metadata=_about("kubernetes: the cluster; default: KUBECONFIG, or the pod's own service account", parse=_path, metavar="FILE"),
    )
    node_patience_s: float = field(
        default=60.0, metadata=_about("kubernetes: how long a node may be not ready before its pods are given up", parse=_seconds)
    )
    lease_s: float = field(
        default=12.0,
        metadata=_about("kubernetes: how long a leader may be silent before another replica takes over", parse=_lease),
    )
    reservation_namespace: str = field(
        default="",
        metadata=_about("kubernetes: where GPUs are set aside for sharing; default: HOTDESK_NAMESPACE-reservations", metavar="NAMESPACE"),
    )
    reservation_image: str = field(
        default="",
        metadata=_about("kubernetes: what the pods there run, it needs sh; default: docker.io/library/busybox:stable", metavar="IMAGE"),
    )
    reservation_patience_s: float = field(
        default=120.0,
        metadata=_about("kubernetes: how long setting a GPU aside may take, its image's pull included", parse=_seconds),
    )
    pod_name: str = field(
        default="",
        metadata=_about("kubernetes: the pod this runs in, in the same namespace; it is marked while it leads", variable="POD_NAME"),
    )
    report_key_file: Path | None = field(
        default=None, metadata=_about("the key of jobs' report tokens, when several schedulers share one", parse=_path, metavar="FILE")
    )
    log_level: str = field(default="info", metadata=_about("debug, info, warning or error"))
    hub_api_url: str = field(default="", metadata=_about("the hub's API, set by the hub", variable="JUPYTERHUB_API_URL", metavar="URL"))
    hub_pid: int = field(
        default=0, metadata=_about("the hub's process, set by the hub: with it this ends and gives way to its successor", parse=int)
    )
    hub_token: str = field(
        default="", metadata=_about("this service's own token, set by the hub; never a flag", variable="JUPYTERHUB_API_TOKEN")
    )
    service_url: str = field(
        default="", metadata=_about("where the hub expects this service, set by the hub", variable="JUPYTERHUB_SERVICE_URL", metavar="URL")
    )
    service_prefix: str = field(
        default="", metadata=_about("the path below which the proxy shows it", variable="JUPYTERHUB_SERVICE_PREFIX")
    )

    @property
    def scheduler_dir(self) -> Path:
        return self.state_dir / "scheduler"


_FLAGS = {"state_dir": "--state", "tokens_file": "--tokens"}
NO_FLAG = frozenset({"hub_token"})


def flag_of(name: str) -> str:
    return _FLAGS.get(name, "--" + name.replace("_", "-"))


def variable_of(name: str) -> str:
    given = next(item.metadata["variable"] for item in fields(Settings) if item.name == name)
    return str(given or "HOTDESK_" + flag_of(name)[2:].replace("-", "_").upper())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for item in fields(Settings):
        if item.name in NO_FLAG:
            continue
        default = "" if item.default is MISSING or item.default in ("", None) else f"; default {item.default}"
        parser.add_argument(
            flag_of(item.name),
            dest=item.name,
            metavar=item.metadata["metavar"] or item.name.rpartition("_")[2].upper(),
            help=f"{item.metadata['help']} ({variable_of(item.name)}{default})".replace("%", "%%"),
        )


def _parsed(name: str, parse: Any, text: str, *, source: str) -> Any:
    try:
        return parse(text)
    except (ValueError, Invalid) as error:
        raise Invalid(f"{source} {text!r} is not usable: {error}", field=name, value=text) from error


def load(namespace: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Settings:
    """Flag > variable > default. Raises Invalid for values that cannot be read."""
    values: dict[str, Any] = {}
    for item in fields(Settings):
        flag = getattr(namespace, item.name, None)
        variable = environment.get(variable_of(item.name))
        if flag is not None:
            values[item.name] = _parsed(item.name, item.metadata["parse"], flag, source=flag_of(item.name))
        elif variable:
            values[item.name] = _parsed(item.name, item.metadata["parse"], variable, source=variable_of(item.name))
    return Settings(**values)


def parse_seed_projects(text: str) -> Sequence[tuple[str, int | None]]:
    """`team-a=4,team-b=unlimited` as (name, quota in thousandths of a GPU). Raises Invalid."""
    found = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, quota = part.partition("=")
        found.append((name.strip(), units.parse_quota(quota or "0", field="--seed-projects")))
    return found
