"""`hotdesk-scheduler simulate --fill NODES.csv ARRIVALS.csv`: how much of a cluster can be used before nothing more fits.

Nodes start empty, requests arrive one by one in the order of the file, are placed at once by the service's own placement code or turned
away for good, and nothing leaves (the experiment of "Beware of Fragmentation", USENIX ATC 2023). Columns: nodes `name, cpu_millis,
memory_mib, gpus, gpu_model`; arrivals `cpu_millis, memory_mib, gpus, gpu_millis, gpu_models` (`A|B`, empty = any).
"""

from __future__ import annotations

import csv
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from hotdesk_scheduler.core import placement
from hotdesk_scheduler.core.eligible import Eligible
from hotdesk_scheduler.core.ledger import Ledger
from hotdesk_scheduler.core.mix import Learner
from hotdesk_scheduler.core.model import (
    WHOLE_GPU,
    GpuRequest,
    Kind,
    Node,
    Placement,
    Pod,
    PodRequest,
    Policy,
    Project,
    Quota,
    Snapshot,
    Workload,
)
from hotdesk_scheduler.core.requests import Request
from hotdesk_scheduler.core.rooms import BOTH

POLICIES = ("stranded", "everyday", "bestfit", "random")
SEED = 1
NODE_COLUMNS = ("name", "cpu_millis", "memory_mib", "gpus", "gpu_model")
ARRIVAL_COLUMNS = ("cpu_millis", "memory_mib", "gpus", "gpu_millis", "gpu_models")


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request; `models` it may use (none: any)."""

    request: PodRequest
    models: tuple[str, ...] = ()

    @property
    def gpu_millis(self) -> int:
        gpu = self.request.gpu
        return gpu.whole * WHOLE_GPU + gpu.millis * gpu.devices


@dataclass(frozen=True, slots=True)
class Filled:
    """What came of it. Unallocated: percent of the GPUs; `at_100_percent` None if the demand never came to the capacity."""

    policy: str
    nodes: int
    gpus: int
    arrivals: int
    at_100_percent: float | None
    at_end: float
    turned_away: int
    multi_gpu_turned_away: int
    seconds: float

    @property
    def sentence(self) -> str:
        full = "never reached" if self.at_100_percent is None else f"{self.at_100_percent:.2f} %"
        rate = self.arrivals / self.seconds if self.seconds else 0
        return (
            f"{self.policy}: unallocated GPU {full} at 100 % arrived, {self.at_end:.2f} % at the end; "
            f"{self.multi_gpu_turned_away} multi-GPU requests turned away ({self.turned_away} of {self.arrivals} in all); "
            f"{self.seconds:.1f} s, {rate:.0f} placements a second on {self.nodes} nodes with {self.gpus} GPUs"
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a file, which says where a value is wrong."""

    path: Path
    line: int
    values: dict[str, str | None]

    def text(self, column: str) -> str:
        return (self.values[column] or "").strip()

    def number(self, column: str, most: int | None = None) -> int:
        """A whole number of at least 0."""
        text = self.text(column)
        if not (text.isascii() and text.isdigit()):
            raise self.wrong(column, f"{text!r} is not a whole number of at least 0")
        number = int(text)
        if most is not None and number > most:
            raise self.wrong(column, f"{number} is more than {most}")
        return number

    def wrong(self, column: str, what: str) -> SystemExit:
        return SystemExit(f"{self.path}, line {self.line}, column {column}: {what}.")


def read_nodes(path: Path) -> tuple[Node, ...]:
    """The cluster; a node's type is its GPU model. Raises SystemExit with a sentence where the file is wrong."""
    nodes: dict[str, Node] = {}
    for row in _rows(path, NODE_COLUMNS):
        name, model = row.text("name"), row.text("gpu_model")
        if not name or name in nodes:
            raise row.wrong("name", f"there is a node {name} above" if name else "it is empty")
        gpus, cpu_millis, memory_mib = (row.number(column) for column in ("gpus", "cpu_millis", "memory_mib"))
        nodes[name] = Node(name, gpus, cpu_millis=cpu_millis, memory_mib=memory_mib, gpu_model=model, node_type=model or None)
    if not any(node.gpus for node in nodes.values()):
        raise SystemExit(f"{path} has no node with a GPU, so there is nothing to fill.")
    return tuple(nodes.values())


def read_arrivals(path: Path) -> list[Arrival]:
    """The requests in the order of the file. Raises SystemExit with a sentence where the file is wrong."""
    return [_arrival(row) for row in _rows(path, ARRIVAL_COLUMNS)]


def _arrival(row: Row) -> Arrival:
    devices, millis = row.number("gpus"), row.number("gpu_millis", most=WHOLE_GPU)
    if not devices:
        gpu = GpuRequest()
    elif millis == WHOLE_GPU:
        gpu = GpuRequest(whole=devices)
    elif millis:
        gpu = GpuRequest(millis=millis, devices=devices)
    else:
        raise row.wrong("gpu_millis", f"{devices} GPUs of 0 thousandths each are none; a request without GPUs has gpus 0")
    models = tuple(sorted({name.strip() for name in row.text("gpu_models").split("|") if name.strip()}))
    return Arrival(PodRequest(gpu, row.number("cpu_millis"), row.number("memory_mib")), models)


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise SystemExit(f"{path}, line 1, has no column {missing[0]}. Columns: {', '.join(columns)}.")
            for values in reader:
                row = Row(path, reader.line_num, values)
                short = [name for name in columns if values[name] is None]
                if short:
                    raise row.wrong(short[0], "it is missing: the line is too short")
                yield row
    except OSError as error:
        raise SystemExit(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SystemExit(f"{path} is not a text in UTF-8: byte {error.start} is not one of a letter.") from error
    except csv.Error as error:
        raise SystemExit(f"{path} is not a CSV file: {error}.") from error


class Filling:
    """One run: a ledger that nothing leaves. `place` of each policy puts a request on it, or says that it does not fit."""

    def __init__(self, nodes: tuple[Node, ...], policy: str) -> None:
        project = Project("all", gpu=Quota(quota=None))
        self.ledger = Ledger(Snapshot(0, nodes, (), (project,), ()), Policy(), 0.0)
        self._account = self.ledger.projects["all"]
        self._stages: dict[tuple[str, ...], Eligible] = {}
        self._learner = Learner() if policy == "stranded" else None
        self._random = random.Random(SEED)  # noqa: S311  # a baseline, not a secret
        places: dict[str, Callable[[Request], bool]] = {"bestfit": self._best_fit, "random": self._anywhere}
        self._place = places.get(policy, self._by_the_service)
        self._count = 0

    def arrive(self, arrival: Arrival) -> bool:
        """Place it, or turn it away."""
        self._count += 1
        if self._learner:
            mix = self._learner.mix
            self._learner.note(arrival.request, arrival.models)
            if self._learner.mix is not mix:
                self.ledger.keep_room_for(self._learner.mix)
        stage = self._stage(arrival.models)
        name = str(self._count)
        workload = Workload(name, name, "all", Kind.TRAIN, pods=(Pod(0, arrival.request),))
        ask = (arrival.gpu_millis, arrival.request.cpu_millis, arrival.request.memory_mib)
        return self._place(Request(workload, self._account, workload.pods, ask, (0, 1, 2), False, 0, stage))

    def _stage(self, models: tuple[str, ...]) -> Eligible:
        if models not in self._stages:
            allowed = tuple(spot.node.node_type in models for spot in self.ledger.spots) if models else None
            self._stages[models] = Eligible(allowed, (Eligible(allowed),))
        return self._stages[models]

    def _by_the_service(self, request: Request) -> bool:
        return placement.place(self.ledger, request, BOTH) == 1

    def _best_fit(self, request: Request) -> bool:
        """The node with the least GPU left that fits, then the least CPU; the tightest device there."""
        found = [(self._left(place), place) for place in self._places(request)]
        return self._start(request, min(found, key=lambda entry: entry[0])[1] if found else None)

    def _left(self, place: Placement) -> tuple[int, int, str]:
        room = self.ledger.spot_of[place.node].now
        gpu = room.free_gpus * WHOLE_GPU + sum(WHOLE_GPU - used for used in room.groups.values())
        return gpu, room.cpu_millis, place.node

    def _anywhere(self, request: Request) -> bool:
        places = self._places(request)
        return self._start(request, self._random.choice(places) if places else None)

    def _places(self, request: Request) -> list[Placement]:
        asked = request.pods[0].request
        spots = (spot for spot in self.ledger.spots if spot.order in request.eligible)
        return [place for spot in spots if (place := placement.on_spot(spot, asked, BOTH))]

    def _start(self, request: Request, place: Placement | None) -> bool:
        if place is None:
            return False
        self.ledger.start(request.workload, request.pods[0], place)
        return True


def fill(nodes: tuple[Node, ...], arrivals: list[Arrival], policy: str = "stranded", progress: Callable[[], None] | None = None) -> Filled:
    """Run the experiment. Seconds are of the processor, so that they are the same on a busy machine."""
    run = Filling(nodes, policy)
    capacity = sum(node.gpus for node in nodes) * WHOLE_GPU
    asked = used = turned_away = multi = 0
    samples: list[float] = []
    began = time.process_time()
    for arrival in arrivals:
        asked += arrival.gpu_millis
        if run.arrive(arrival):
            used += arrival.gpu_millis
        else:
            turned_away += 1
            multi += arrival.request.gpu.whole > 1 or arrival.request.gpu.devices > 1
        if round(100 * asked / capacity) == 100:
            samples.append(100 - 100 * used / capacity)
        if progress:
            progress()
    seconds = time.process_time() - began
    mean = sum(samples) / len(samples) if samples else None
    return Filled(policy, len(nodes), capacity // WHOLE_GPU, len(arrivals), mean, 100 - 100 * used / capacity, turned_away, multi, seconds)


def run(nodes: Path, arrivals: Path, *, policy: str, as_json: bool) -> int:
    """The command: read, fill (with a progress bar where somebody looks), print."""
    cluster, requests = read_nodes(nodes), read_arrivals(arrivals)
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("filling", total=len(requests))
        filled = fill(cluster, requests, policy, lambda: progress.advance(task))
    print(json.dumps(asdict(filled)) if as_json else filled.sentence)
    return 0
