"""`hotdesk-scheduler simulate --jobs JOBS.csv`: its options, and what it does with them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hotdesk_api import units
from hotdesk_api.errors import Invalid
from rich.console import Console
from rich.progress import Progress

from hotdesk_scheduler.core.model import Policy
from hotdesk_scheduler.whatif import chart, cluster, report, trace
from hotdesk_scheduler.whatif.cluster import Change, Cluster
from hotdesk_scheduler.whatif.figures import DEFINITIONS, figures
from hotdesk_scheduler.whatif.play import Rules, Story, play
from hotdesk_scheduler.whatif.trace import Job, duration_ms

DEFAULT_SHAPE = "2x8xV100-SXM2-32GB"
ABOUT = f"""Plays the jobs of a trace on a cluster, with the service's own decisions and a virtual clock, and says what comes of it. With
--quota, --limit, --weight or --add-nodes it plays twice, as it is and as it would be: "what if team-a had 6?"

JOBS.csv has a line for each job and names its columns in the first: submit and duration (seconds; also 2h30m, 1:30:00, dates; or start and
end), gpus (0.5, 1, 4) or gpu_millis, project; and, where they matter: gpu_model, pods (start together), kind ({", ".join(trace.KINDS)}),
priority, preemptible, cpu, memory, user, name. Other usual names are understood.

{DEFINITIONS}"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="hotdesk-scheduler simulate --jobs", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--jobs", type=Path, required=True, metavar="JOBS.csv", help="the trace")
    nodes = made.add_mutually_exclusive_group()
    nodes.add_argument("--nodes", type=Path, metavar="NODES.csv", help="nodes: gpus, and name, gpu_model, cpu_millis, memory_mib")
    nodes.add_argument("--simulate", default=DEFAULT_SHAPE, metavar="SHAPE", help=f"nodes of this shape (default {DEFAULT_SHAPE})")
    made.add_argument(
        "--projects", type=Path, metavar="FILE", help="quotas: CSV, JSON or YAML with name, quota, limit, weight, priority, department"
    )
    what_if = made.add_argument_group("what if (each may be said several times)")
    for name, amount in (("quota", "GPUS"), ("limit", "GPUS"), ("weight", "W")):
        what_if.add_argument(f"--{name}", action="append", default=[], metavar=f"PROJECT={amount}", help=f"a project had this {name}")
    what_if.add_argument("--add-nodes", action="append", default=[], metavar="SHAPE", help="there were these nodes besides")
    rules = made.add_argument_group("how it is played (defaults as the service's)")
    for name, default, text in (
        ("checkpoint-every", "600s", "jobs go on from their last checkpoint when they were stopped; 0: from the beginning"),
        ("grace", "30s", "how long a stopped job keeps its GPUs"),
        ("min-runtime", "0s", "a job that has run less is not stopped for others"),
        ("preemption-delay", "0s", "a job younger than this stops nobody"),
        ("reserve-after", "600s", "who waited longer within his fair share gets nodes kept for him; 0 = never"),
        ("half-life", "7d", "with --history: past use counts half after this time"),
    ):
        rules.add_argument(f"--{name}", default=default, metavar="TIME", help=f"{text} (default {default})")
    rules.add_argument("--history", type=float, default=0.0, metavar="K", help="how much past use corrects weights (default 0: not at all)")
    rules.add_argument("--placement", choices=("binpack", "spread"), default="binpack")
    made.add_argument("--chart", type=Path, metavar="FILE.svg", help="draw GPUs held over time, by project, and the queue")
    made.add_argument("--json", action="store_true", help="print the figures as JSON")
    return made


def main(argv: Sequence[str]) -> int:
    """0 done; HotdeskError says what cannot be read."""
    if {"-h", "--help"} & set(argv):
        parser().print_help()
        return 0
    options = parser().parse_args(argv)
    if options.chart and options.chart.suffix.lower() != ".svg":
        raise Invalid(f"--chart {options.chart}: charts are SVG.", field="chart", next_step="Give a name that ends in .svg.")
    jobs, rules = trace.read_jobs(options.jobs), _rules(options)
    now = cluster.with_projects_of(_cluster(options), jobs)
    changes = _changes(options)
    stories = [_played(now, jobs, rules, options.jobs, "As it is")]
    what_if = ", ".join((*(change.words for change in changes), *(f"{shape} more" for shape in options.add_nodes)))
    if what_if:
        then = cluster.changed(now, changes)
        for shape in options.add_nodes:
            then = replace(then, nodes=(*then.nodes, *cluster.simulated(shape, taken=(node.name for node in then.nodes))))
        stories.append(_played(then, jobs, rules, options.jobs, "What if"))
    if options.chart:
        titles = ["Now", f"What if: {what_if}"] if what_if else [""]
        _write(options.chart, chart.draw([(title, story) for title, story in zip(titles, stories, strict=False)]))
    found = [figures(story) for story in stories]
    second = found[1] if what_if else None
    if options.json:
        print(json.dumps(report.as_json(found[0], second, what_if=what_if, notes=now.notes), indent=2))
    else:
        counts = ((len(jobs), "job"), (len(now.projects), "project"), (len(now.nodes), "node"), (now.gpu_millis // 1000, "GPU"))
        of_jobs, of_projects, on_nodes, with_gpus = (f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts)
        title = f"{of_jobs} of {of_projects} on {on_nodes} with {with_gpus}"
        report.print_report(found[0], second, title=title, what_if=what_if, notes=now.notes)
    return 0


def _rules(options: argparse.Namespace) -> Rules:
    def seconds(name: str) -> float:
        text = getattr(options, name)
        try:
            return duration_ms(text) / 1000
        except (ValueError, Invalid) as error:
            raise Invalid(f"--{name.replace('_', '-')} {text} is not {trace.A_DURATION}.", field=name, value=text) from error

    if not 0 <= options.history <= 1000:
        raise Invalid(f"--history {options.history} is not from 0 to 1000.", field="history")
    if not seconds("half_life"):
        raise Invalid("--half-life 0 leaves no past.", field="half_life", next_step="Write for example 7d.")
    policy = Policy(
        grace_s=seconds("grace"),
        min_runtime_s=seconds("min_runtime"),
        preemption_delay_s=seconds("preemption_delay"),
        reserve_after_s=seconds("reserve_after") or None,
        placement=options.placement,
        history_weight=options.history,
    )
    return Rules(policy, round(seconds("checkpoint_every") * 1000), round(seconds("half_life") * 1000))


def _cluster(options: argparse.Namespace) -> Cluster:
    nodes = cluster.read_nodes(options.nodes) if options.nodes else cluster.simulated(options.simulate)
    projects, departments = cluster.read_projects(options.projects) if options.projects else ((), ())
    return Cluster(nodes, projects, departments)


def _changes(options: argparse.Namespace) -> list[Change]:
    changes = []
    for name in ("quota", "limit", "weight"):
        for text in getattr(options, name):
            project, sign, amount = text.partition("=")
            if not sign or not project or not amount:
                raise Invalid(f"--{name} {text} is not PROJECT=NUMBER.", field=name, value=text, next_step=f"Write --{name} team-a=6.")
            changes.append(Change(name, project, units.parse_quota(amount, field=f"--{name} {project}=")))
    return changes


def _played(on: Cluster, jobs: Sequence[Job], rules: Rules, path: Path, title: str) -> Story:
    """With a progress bar where somebody looks."""
    if not sys.stderr.isatty():
        return play(on, jobs, rules, path=path)
    with Progress(console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(title, total=len(jobs))
        done: Callable[[int], None] = lambda count: bar.update(task, completed=count)  # noqa: E731  # named for its type
        return play(on, jobs, rules, path=path, progress=done)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Invalid(f"{path} cannot be written: {error.strerror}.", field="chart") from error
