"""How much of a cluster stays unallocated when it is filled with a public trace (`../shared/traces`, where it is there)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from figure import Figure
from hotdesk_scheduler import fill
from hotdesk_scheduler.core.model import Node

TRACES = Path(__file__).parents[3] / "shared" / "traces"
DEFAULT = ("default-42", "default-43", "default-44")
BARS = {"default": 4.2, "multigpu20-42": 4.47, "gpushare40-42": 5.99}
"""Percent unallocated at 100 % arrived: the aim on the default trace, below what FGD reached on the others."""


def fragmentation() -> Iterator[Figure]:
    """The service's placement on 1,213 nodes; best fit beside it for what it turns away."""
    if not TRACES.is_dir():
        print(f"fragmentation: skipped, there is no {TRACES}")
        return
    nodes = fill.read_nodes(TRACES / "nodes.csv")
    names = sorted(path.stem for path in TRACES.glob("*.csv") if path.stem != "nodes")
    found = {name: _both(nodes, name) for name in names}
    for name, (ours, best_fit) in found.items():
        yield Figure(f"{name}: GPU unallocated at 100 % arrived", ours.at_100_percent or 100, "%", bar=BARS.get(name))
        yield Figure(f"{name}: GPU unallocated at the end", ours.at_end, "%")
        yield Figure(f"{name}: multi-GPU requests turned away", ours.multi_gpu_turned_away, "requests", bar=best_fit.multi_gpu_turned_away)
        yield Figure(f"{name}: best fit, GPU unallocated at 100 % arrived", best_fit.at_100_percent or 100, "%")
    mean = statistics.fmean(found[name][0].at_100_percent or 100 for name in DEFAULT)
    yield Figure("default, mean of three seeds: GPU unallocated at 100 % arrived", mean, "%", bar=BARS["default"])
    slowest = max(ours.seconds / ours.arrivals for ours, _ in found.values())
    yield Figure(f"a placement on {len(nodes)} nodes, mean of the slowest trace", slowest * 1000, "ms", bar=1000 / 300)


def _both(nodes: tuple[Node, ...], name: str) -> tuple[fill.Filled, fill.Filled]:
    arrivals = fill.read_arrivals(TRACES / f"{name}.csv")
    return fill.fill(nodes, arrivals), fill.fill(nodes, arrivals, "bestfit")
