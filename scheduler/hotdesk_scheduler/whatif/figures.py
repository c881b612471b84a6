"""What a played trace comes to, by project and in all: allocation, utilisation, waits, preemptions, fairness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotdesk_scheduler.core.model import WHOLE_GPU
from hotdesk_scheduler.whatif.play import Course, Story

ALL = "all"
HOUR_MS = 3_600_000

DEFINITIONS = """allocation: GPUs held, mean over time, in percent of the cluster's
utilisation: the same, of work that counted: without what was lost to preemption and notice
wait: from submit to first start, of the jobs that started (p50, p99: nearest rank)
preempted: how often a job that ran was stopped for others; lost: GPU hours held for work that was lost by it
served: GPU time held in percent of the fair share, over the time the project had jobs
fairness: Jain's index of what the projects were served, (sum x)^2 / (n sum x^2): 1 = all equally, 1/n = one alone"""


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one project, or of all together. Times in seconds; percent of the cluster; None where there is nothing to say."""

    project: str
    quota_gpus: float | None
    jobs: int
    finished: int
    allocation: float
    utilisation: float
    wait_mean_s: float | None
    wait_p50_s: float | None
    wait_p99_s: float | None
    preempted: int
    moved: int
    lost_gpu_hours: float
    gpu_hours: float
    served: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Rows by project in the cluster's order; `waiting` are jobs that never started, with why."""

    rows: tuple[Row, ...]
    total: Row
    fairness: float | None
    makespan_s: float
    gpus: float
    waiting: tuple[tuple[str, str, str], ...]


def figures(story: Story) -> Figures:
    """Sums are exact integers; only what is shown is divided."""
    quotas = {project.name: project.gpu.quota for project in story.cluster.projects}
    by_project: dict[str, list[Course]] = {name: [] for name in quotas}
    for course in story.courses:
        by_project[course.job.project].append(course)
    available = story.cluster.gpu_millis * story.end_ms
    rows = tuple(_row(story, name, courses, quotas[name], available) for name, courses in by_project.items())
    served = [row.served for row in rows if row.served is not None]
    waiting = tuple((c.job.project, c.job.name, c.why_waiting) for c in story.courses if c.first_start_ms is None)
    total = _row(story, ALL, story.courses, None, available)
    return Figures(rows, total, jain(served), story.end_ms / 1000, story.cluster.gpu_millis / WHOLE_GPU, waiting)


def _row(story: Story, name: str, courses: Sequence[Course], quota: int | None, available: int) -> Row:
    held = sum(course.job.gpu_millis * course.held_ms for course in courses)
    lost = sum(course.job.gpu_millis * course.lost_ms for course in courses)
    waits = sorted(course.first_start_ms - course.job.submit_ms for course in courses if course.first_start_ms is not None)
    names = list(story.served) if name == ALL else [name]
    entitled = sum(story.entitled[one] for one in names)
    served = sum(story.served[one] for one in names)
    return Row(
        project=name,
        quota_gpus=None if quota is None else quota / WHOLE_GPU,
        jobs=len(courses),
        finished=sum(course.end_ms is not None for course in courses),
        allocation=_percent(held, available) or 0.0,
        utilisation=_percent(held - lost, available) or 0.0,
        wait_mean_s=round(sum(waits) / len(waits) / 1000, 3) if waits else None,
        wait_p50_s=_rank(waits, 50),
        wait_p99_s=_rank(waits, 99),
        preempted=sum(course.preempted for course in courses),
        moved=sum(course.moved for course in courses),
        lost_gpu_hours=round(lost / WHOLE_GPU / HOUR_MS, 3),
        gpu_hours=round(held / WHOLE_GPU / HOUR_MS, 3),
        served=_percent(served, entitled),
    )


def _percent(part: int, whole: int) -> float | None:
    return round(100 * part / whole, 3) if whole else None


def _rank(ordered: Sequence[int], percent: int) -> float | None:
    """Nearest rank: the smallest that at least so many percent do not exceed. Seconds."""
    return ordered[-(-len(ordered) * percent // 100) - 1] / 1000 if ordered else None


def jain(values: Sequence[float]) -> float | None:
    """Jain's index of fairness; None without values."""
    squares = sum(value * value for value in values)
    return round(sum(values) ** 2 / (len(values) * squares), 4) if squares else None
