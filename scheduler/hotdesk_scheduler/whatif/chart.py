"""The chart of a played trace as SVG: GPUs held over time by project, quotas beside them, and the queue below. The same story, the same
bytes. Two stories are drawn side by side with one scale.

Colours are Okabe and Ito's, which people with any colour vision can tell apart; where there are more projects than colours, those that
held least are drawn together as "others".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.sax.saxutils import escape

from hotdesk_api.units import format_gpus

from hotdesk_scheduler.core.model import WHOLE_GPU
from hotdesk_scheduler.whatif.play import Story

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
OTHERS_COLOUR, INK, FAINT = "#999999", "#222222", "#d8d8d8"
OTHERS = "others"
LEFT, RIGHT, TOP, GPU_HEIGHT, GAP, QUEUE_HEIGHT, BOTTOM = 64, 120, 76, 280, 46, 110, 58
TITLE = 34
ALONE_WIDTH, BESIDE_WIDTH = 820, 540
BINS = 400
TICKS = 5
FACTORS = {
    "days": ((1, 2, 7), 10),
    "hours": ((1, 2, 3, 4, 6, 12, 24), 24),
    "minutes": ((1, 2, 5, 10, 15, 30, 60), 60),
    "seconds": ((1, 2, 5, 10, 15, 30, 60), 60),
}
"""Steps of a time axis in each unit, and how much larger the next ones are."""
UNITS = ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes"), (1000, "seconds"))


@dataclass(frozen=True, slots=True)
class Band:
    """What is drawn in one colour: a project, or the smallest ones together (`members` are places in the cluster's order)."""

    name: str
    colour: str
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """From `begin_ms` to `end_ms`, by band: thousandths of GPUs held, and jobs that wait (both means over the step)."""

    begin_ms: int
    end_ms: int
    held: tuple[float, ...]
    waiting: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Scale:
    """What all panels share: the end of time, the top of both axes, the width of a plot in pixels."""

    end_ms: int
    gpu_millis: int
    waiting: int
    width: int

    def x(self, at_ms: float) -> float:
        return self.width * at_ms / self.end_ms


def draw(stories: Sequence[tuple[str, Story]]) -> str:
    """The SVG of one story, or of two beside each other, each under its title."""
    bands = _bands([story for _, story in stories])
    drawn = [(title, story, _steps(story, bands)) for title, story in stories]
    scale = Scale(
        end_ms=max(1, *(story.end_ms for _, story, _ in drawn)),
        gpu_millis=max(WHOLE_GPU, *(story.cluster.gpu_millis for _, story, _ in drawn)),
        waiting=_round_up(max(1, *(round(sum(step.waiting)) for _, _, steps in drawn for step in steps))),
        width=ALONE_WIDTH if len(drawn) == 1 else BESIDE_WIDTH,
    )
    panel = LEFT + scale.width + RIGHT
    rows = -(-len(bands) * 150 // (panel * len(drawn) - LEFT))
    width, height = panel * len(drawn), TOP + GPU_HEIGHT + GAP + QUEUE_HEIGHT + BOTTOM + 22 * max(1, rows)
    top = TOP if any(title for title, _, _ in drawn) else TOP - TITLE
    height -= TOP - top
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="13" fill="{INK}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (title, story, steps) in enumerate(drawn):
        parts.append(f'<g transform="translate({panel * number + LEFT} {top})">')
        parts += _panel(title, story, steps, bands, scale)
        parts.append("</g>")
    parts += _legend(bands, LEFT, top + GPU_HEIGHT + GAP + QUEUE_HEIGHT + BOTTOM + 4, width)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


# --- what is drawn ---------------------------------------------------------------------------------------------------------------------


def _bands(stories: Sequence[Story]) -> tuple[Band, ...]:
    names = [project.name for project in stories[0].cluster.projects]
    served = {i: sum(story.served[name] for story in stories) for i, name in enumerate(names)}
    own = list(range(len(names)))
    if len(names) > len(COLOURS):
        own = sorted(sorted(own, key=lambda i: (-served[i], i))[: len(COLOURS)])
    bands = [Band(names[i], colour, (i,)) for i, colour in zip(own, COLOURS, strict=False)]
    rest = tuple(i for i in range(len(names)) if i not in own)
    return (*bands, Band(f"{len(rest)} {OTHERS}", OTHERS_COLOUR, rest)) if rest else tuple(bands)


def _steps(story: Story, bands: Sequence[Band]) -> list[Step]:
    """Every change as it was; where there are too many to see, means over equal parts of the time."""
    ends = [sample.at_ms for sample in story.samples[1:]] + [story.end_ms]
    exact = [
        Step(
            sample.at_ms,
            end,
            tuple(float(sum(sample.held[i] for i in band.members)) for band in bands),
            tuple(float(sum(sample.waiting[i] for i in band.members)) for band in bands),
        )
        for sample, end in zip(story.samples, ends, strict=True)
    ]
    return exact if len(exact) <= BINS else _means(exact, story.end_ms)


def _means(steps: Sequence[Step], end_ms: int) -> list[Step]:
    edges = [end_ms * i // BINS for i in range(BINS + 1)]
    found, first = [], 0
    for begin, end in pairwise(edges):
        while steps[first].end_ms <= begin and first + 1 < len(steps):
            first += 1
        held, waiting, at = [0.0] * len(steps[0].held), [0.0] * len(steps[0].held), first
        while at < len(steps) and steps[at].begin_ms < end:
            part = min(end, steps[at].end_ms) - max(begin, steps[at].begin_ms)
            for i in range(len(held)):
                held[i] += steps[at].held[i] * part / (end - begin)
                waiting[i] += steps[at].waiting[i] * part / (end - begin)
            at += 1
        found.append(Step(begin, end, tuple(held), tuple(waiting)))
    return found


# --- how -------------------------------------------------------------------------------------------------------------------------------


def _panel(title: str, story: Story, steps: Sequence[Step], bands: Sequence[Band], scale: Scale) -> list[str]:
    queue_top = GPU_HEIGHT + GAP
    gpus = scale.gpu_millis // WHOLE_GPU
    gpu_step = _nice(gpus / TICKS, (1, 2, 4, 8, 16, 32, 64) if gpus % 8 == 0 else (1, 2, 5))
    gpu_ticks = range(0, gpus + 1, gpu_step)
    wait_ticks = (0, scale.waiting // 2, scale.waiting) if scale.waiting > 1 else (0, 1)
    parts = [_text(0, -46, title, size=16, weight="bold")] if title else []
    parts.append(_text(0, -16, f"GPUs held (of {format_gpus(story.cluster.gpu_millis)})", weight="bold"))
    parts += _y_axis(gpu_ticks, gpus, 0, GPU_HEIGHT, scale.width)
    parts += _areas([step.held for step in steps], steps, bands, scale, top=0, height=GPU_HEIGHT, most=scale.gpu_millis)
    parts += _quotas(story, bands, scale)
    parts.append(_text(0, queue_top - 14, "Jobs waiting", weight="bold"))
    parts += _y_axis(wait_ticks, scale.waiting, queue_top, QUEUE_HEIGHT, scale.width)
    parts += _areas([step.waiting for step in steps], steps, bands, scale, top=queue_top, height=QUEUE_HEIGHT, most=scale.waiting)
    return parts + _x_axis(scale, queue_top + QUEUE_HEIGHT)


def _areas(
    values: Sequence[tuple[float, ...]], steps: Sequence[Step], bands: Sequence[Band], scale: Scale, *, top: int, height: int, most: float
) -> list[str]:
    """Stacked, the first band at the bottom; each area's outline goes along its top and back along its bottom."""
    parts = []
    below = [0.0] * len(steps)
    for number, band in enumerate(bands):
        above = [low + value[number] for low, value in zip(below, values, strict=True)]
        if above != below:
            edge = _outline(steps, above, scale, top, height, most) + _outline(steps, below, scale, top, height, most)[::-1]
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in edge) + "Z"
            name = escape(band.name, {'"': "&quot;"})
            parts.append(f'<path d="{path}" fill="{band.colour}"><title>{name}</title></path>')
        below = above
    return parts


def _outline(steps: Sequence[Step], values: Sequence[float], scale: Scale, top: int, height: int, most: float) -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []
    for step, value in zip(steps, values, strict=True):
        y = top + height - height * value / most
        if len(points) > 1 and points[-1][1] == y:
            points.pop()
        else:
            points.append((scale.x(step.begin_ms), y))
        points.append((scale.x(step.end_ms), y))
    return points


def _quotas(story: Story, bands: Sequence[Band], scale: Scale) -> list[str]:
    """What each band is guaranteed, stacked in the same order: a bar beside the plot, and a dashed line across it."""
    projects, parts, low = story.cluster.projects, [], 0
    x = scale.width + 8
    for band in bands:
        quota = sum(projects[i].gpu.quota or 0 for i in band.members)
        top = min(low + quota, scale.gpu_millis)
        y, bottom = (GPU_HEIGHT - GPU_HEIGHT * value / scale.gpu_millis for value in (top, min(low, scale.gpu_millis)))
        low += quota
        if top <= low - quota:
            continue
        parts.append(f'<rect x="{x}" y="{y:.1f}" width="9" height="{bottom - y:.1f}" fill="{band.colour}" stroke="#ffffff"/>')
        parts.append(
            f'<line x1="0" x2="{x}" y1="{y:.1f}" y2="{y:.1f}" stroke="{INK}" stroke-width="1" stroke-dasharray="5 4" opacity="0.75"/>'
        )
        if bottom - y >= 11:
            parts.append(_text(x + 14, (y + bottom) / 2 + 4, _short(f"{band.name} {format_gpus(quota)}"), size=12))
    return [*parts, _text(x, -16, "quotas", size=12)] if parts else []


def _y_axis(ticks: Sequence[int], most: int, top: int, height: int, width: int) -> list[str]:
    parts = []
    for tick in ticks:
        y = top + height - height * tick / most
        parts.append(f'<line x1="0" x2="{width}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}"/>')
        parts.append(_text(-8, y + 4, str(tick), anchor="end"))
    return parts


def _x_axis(scale: Scale, bottom: int) -> list[str]:
    """In the largest unit of which there are at least three."""
    unit_ms, unit = next((entry for entry in UNITS if scale.end_ms >= 3 * entry[0]), UNITS[-1])
    step = _nice(scale.end_ms / unit_ms / TICKS, *FACTORS[unit])
    parts = [f'<line x1="0" x2="{scale.width}" y1="{bottom}" y2="{bottom}" stroke="{INK}"/>']
    for count in range(0, scale.end_ms // unit_ms + 1, step):
        x = scale.x(count * unit_ms)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}" stroke="{INK}"/>')
        parts.append(_text(x, bottom + 19, str(count), anchor="middle"))
    return [*parts, _text(scale.width / 2, bottom + 40, f"{unit} since the first submit", anchor="middle")]


def _legend(bands: Sequence[Band], x: int, y: int, width: int) -> list[str]:
    parts, at = [], x
    for band in bands:
        long = 40 + 8 * len(_short(band.name))
        if at + long > width:
            at, y = x, y + 22
        parts.append(f'<rect x="{at}" y="{y}" width="13" height="13" fill="{band.colour}"/>')
        parts.append(_text(at + 19, y + 11, _short(band.name)))
        at += long
    sign = "quotas, stacked in the same order"
    return [*parts, f'<path d="M{at} {y + 7}h26" stroke="{INK}" stroke-dasharray="5 4" opacity="0.75"/>', _text(at + 32, y + 11, sign)]


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 13, weight: str = "normal") -> str:
    style = "".join(
        f' {name}="{value}"'
        for name, value, usual in (("text-anchor", anchor, "start"), ("font-size", size, 13), ("font-weight", weight, "normal"))
        if value != usual
    )
    return f'<text x="{x:.1f}" y="{y:.1f}"{style}>{escape(text)}</text>'


def _short(text: str) -> str:
    return text if len(text) <= 16 else text[:15] + "…"


def _nice(step: float, factors: Sequence[int] = (1, 2, 5), times: int = 10) -> int:
    """The first of 1, 2, 5, 10, 20, … (or other factors, each time so much larger) that is not smaller."""
    size = 1
    while True:
        for factor in factors:
            if size * factor >= step:
                return size * factor
        size *= times


def _round_up(count: int) -> int:
    """An even number above, so that the middle of the axis is whole."""
    step = _nice(count / 10)
    most = -(-count // step) * step
    return most + step if most > 1 and most % 2 else most
