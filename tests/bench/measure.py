"""`make bench`: measures what the README claims on this machine, one line a figure, and writes build/bench.json.

Figures are medians of several runs; where two things are compared they take turns in one run and the ratio is printed.
Exit code 1 if a bar does not hold.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "bench"), str(ROOT / "tests" / "kubernetes")]

from figure import Figure  # noqa: E402 - the path has to be set first


def measurements() -> list[Callable[[], Iterator[Figure]]]:
    from decide_figures import decisions, decisions_at_ten_thousand_nodes
    from fill_figures import fragmentation
    from kubernetes_figures import kubernetes
    from scheduler_figures import burst, listing, submit_to_first_line
    from trace_figures import traces
    from workspace_figures import workspace_ready

    return [
        decisions,
        decisions_at_ten_thousand_nodes,
        fragmentation,
        traces,
        submit_to_first_line,
        burst,
        listing,
        workspace_ready,
        kubernetes,
    ]


def main() -> int:
    """Run all (or those whose name is given), print and write them."""
    wanted = set(sys.argv[1:])
    figures: list[Figure] = []
    for measure in measurements():
        if wanted and measure.__name__ not in wanted:
            continue
        for figure in measure():
            figures.append(figure)
            bar = "" if figure.bar is None else f"  (bar {figure.bar:g} {figure.unit}: {'holds' if figure.holds else 'DOES NOT HOLD'})"
            print(f"{figure.name}: {figure.value:.3g} {figure.unit}{bar}", flush=True)
    (ROOT / "build").mkdir(exist_ok=True)
    rows = [asdict(figure) | {"holds": figure.holds} for figure in figures]
    (ROOT / "build" / "bench.json").write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    raise SystemExit(main())
