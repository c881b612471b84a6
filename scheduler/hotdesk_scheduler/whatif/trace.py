"""The jobs of a trace: a CSV file with a line for each job (its columns: `COLUMNS`; other usual names are understood)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from hotdesk_api import units
from hotdesk_api.errors import Invalid

from hotdesk_scheduler.core.model import WHOLE_GPU, GpuRequest, Kind, PodRequest
from hotdesk_scheduler.whatif.sheet import Column, Row, read_rows

COLUMNS = (
    Column("submit", ("submitted", "submit_time", "submitted_at", "arrival", "arrival_time", "creation_time", "created", "created_at",
                      "queued", "time", "timestamp"), is_time=True),
    Column("duration", ("runtime", "run_time", "elapsed", "length", "service_time"), is_time=True),
    Column("start", ("started", "start_time", "started_at", "scheduled_time"), is_time=True),
    Column("end", ("ended", "end_time", "ended_at", "finished", "deletion_time"), is_time=True),
    Column("gpus", ("gpu", "num_gpu", "num_gpus", "n_gpus", "gpu_num", "gpu_count")),
    Column("gpu_millis", ("gpu_milli", "millis", "gpu_thousandths")),
    Column("project", ("team", "group", "queue", "account", "vc", "tenant")),
    Column("gpu_model", ("gpu_type", "model", "node_type", "gpu_spec", "gpu_models")),
    Column("pods", ("workers", "replicas", "num_tasks", "tasks", "num_pods")),
    Column("cpu", ("cpus", "cores", "num_cpus")),
    Column("cpu_millis", ("cpu_milli",)),
    Column("memory", ("mem", "ram", "memory_mib")),
    Column("kind", ("type", "class", "workload_type", "qos")),
    Column("priority", ("prio",)),
    Column("preemptible", ("preemptable",)),
    Column("user", ("owner", "user_name", "username")),
    Column("name", ("job", "job_name", "jobname", "job_id", "jobid", "id")),
)  # fmt: skip

KINDS: dict[str, tuple[Kind, int, bool]] = {
    "train": (Kind.TRAIN, 50, True),
    "interactive": (Kind.INTERACTIVE, 100, False),
    "interactive-preemptible": (Kind.INTERACTIVE, 75, True),
    "inference": (Kind.INFERENCE, 125, False),
}
"""Kind, priority and preemptibility of what the column `kind` may say."""
_OTHER_WORDS = {
    "training": "train", "batch": "train", "hpo": "train", "mpi": "train", "pytorch": "train", "job": "train", "build": "interactive",
    "workspace": "interactive", "notebook": "interactive", "jupyter": "interactive", "serving": "inference", "service": "inference",
}  # fmt: skip
_CLOCK = re.compile(r"^(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)(?:\.\d+)?$")
A_TIME = "a time: seconds, or a date and time such as 2026-03-02T09:00:00"
A_DURATION = "a duration: seconds, or such as 90s, 15m, 2h30m, 1:30:00"
MOST_MS = 10**13


@dataclass(frozen=True, slots=True)
class Job:
    """One line of a trace. Times are milliseconds, `submit_ms` since the first submit; `pods` of them start together or not at all."""

    name: str
    project: str
    submit_ms: int
    duration_ms: int
    request: PodRequest
    pods: int = 1
    kind: Kind = Kind.TRAIN
    priority: int = 50
    preemptible: bool = True
    gpu_model: str = ""
    user: str = ""
    line: int = 0

    @property
    def gpu_millis(self) -> int:
        """What all its pods hold together."""
        gpu = self.request.gpu
        return (gpu.whole * WHOLE_GPU + gpu.millis * gpu.devices) * self.pods


def read_jobs(path: Path) -> list[Job]:
    """The jobs of a trace in the order of their submission. Raises Invalid with file, line and column of what cannot be read."""
    rows = read_rows(path, COLUMNS, need=("submit", "project"))
    if not rows:
        raise Invalid(f"{path} has no jobs, only a line of columns.")
    known = rows[0].headings
    if "duration" not in known and not {"start", "end"} <= set(known):
        raise Invalid(
            f"{path} has no column duration (or runtime, elapsed), and not both of start and end; its columns do not say how long."
        )
    if "gpus" not in known and "gpu_millis" not in known:
        raise Invalid(f"{path} has no column gpus (or gpu, num_gpus) and none gpu_millis; its columns do not say how many GPUs.")
    written = [_times(row) for row in rows]
    dated = [is_date for _, is_date, _ in written]
    if any(dated) and not all(dated):
        other = rows[dated.index(not dated[0])]
        first = "a date" if dated[0] else "a number"
        raise other.wrong("submit", f"{other.texts['submit']!r} is not {first} as the lines before; write all of them in one way")
    begin = min(at for at, _, _ in written)
    jobs = [_job(row, number, at - begin, duration) for number, (row, (at, _, duration)) in enumerate(zip(rows, written, strict=True), 1)]
    return sorted(jobs, key=lambda job: (job.submit_ms, job.line))


def _times(row: Row) -> tuple[int, bool, int]:
    """When it was submitted (milliseconds), whether that is written as a date, and how long it runs."""
    at, is_date = row.need("submit", lambda text: _moment(text, row.unit_ms["submit"]), A_TIME)
    return at, is_date, _duration(row)


def _duration(row: Row) -> int:
    found = row.read("duration", lambda text: duration_ms(text, row.unit_ms["duration"]), A_DURATION)
    if found is not None:
        return found
    if not {"start", "end"} <= set(row.headings):
        return row.need("duration", lambda text: duration_ms(text, 1000), A_DURATION)
    start, _ = row.need("start", lambda text: _moment(text, row.unit_ms["start"]), A_TIME)
    end, _ = row.need("end", lambda text: _moment(text, row.unit_ms["end"]), A_TIME)
    if end < start:
        raise row.wrong("end", f"{row.texts['end']!r} is before its start {row.texts['start']!r}")
    return end - start


def _moment(text: str, unit_ms: int) -> tuple[int, bool]:
    try:
        return _scaled(text, unit_ms), False
    except (ValueError, ArithmeticError):
        moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000, True


def _scaled(text: str, unit: int) -> int:
    amount = Decimal(text) * unit
    if not amount.is_finite() or not 0 <= amount <= MOST_MS:
        raise ValueError(text)
    return round(amount)


def duration_ms(text: str, unit_ms: int = 1000) -> int:
    """Milliseconds of `90`, `1.5` (in the heading's unit), `2h30m`, `1:30:00`, `1-12:00:00`. Raises ValueError or Invalid."""
    clock = _CLOCK.match(text)
    if clock:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    try:
        return _scaled(text, unit_ms)
    except ArithmeticError:
        return units.parse_duration_s(text) * 1000


def _job(row: Row, number: int, submit_ms: int, duration: int) -> Job:
    kind, priority, preemptible = row.read("kind", _kind, f"a kind: {', '.join(KINDS)}") or KINDS["train"]
    asked = row.read("priority", int, "a whole number")
    may_stop = row.read("preemptible", _yes_or_no, "yes or no")
    return Job(
        name=row.texts.get("name", f"job-{number}"),
        project=row.need("project", str, "the name of a project"),
        submit_ms=submit_ms,
        duration_ms=duration,
        request=PodRequest(_gpu(row), _cpu_millis(row), row.read("memory", units.parse_memory_mib, "memory: MiB, or such as 4G") or 0),
        pods=row.read("pods", _count, "a whole number from 1 to 10000") or 1,
        kind=kind,
        priority=priority if asked is None else asked,
        preemptible=preemptible if may_stop is None else may_stop,
        gpu_model=row.texts.get("gpu_model", ""),
        user=row.texts.get("user", ""),
        line=row.line,
    )


def _cpu_millis(row: Row) -> int:
    millis = row.read("cpu_millis", lambda text: _scaled(text, 1), "thousandths of a core")
    return row.read("cpu", lambda text: _scaled(text, 1000), "a number of CPU cores") or 0 if millis is None else millis


def _gpu(row: Row) -> GpuRequest:
    """`gpus` alone (decimals below one), `gpu_millis` alone (in all), or so many `gpus` of `gpu_millis` each."""
    gpus = row.read("gpus", lambda text: units.parse_gpus(text, field="gpus"), "a number of GPUs: whole, or a fraction below 1")
    millis = row.read("gpu_millis", lambda text: _scaled(text, 1), "thousandths of a GPU")
    if gpus is None and millis is None:
        raise row.wrong("gpus", "it is empty; expected is a number of GPUs, 0 for none")
    if gpus is not None and millis is not None and gpus % WHOLE_GPU == 0 and millis < WHOLE_GPU:
        return GpuRequest(millis=millis, devices=max(1, gpus // WHOLE_GPU)) if gpus else GpuRequest()
    amount = millis if gpus is None else gpus
    assert amount is not None
    if amount > WHOLE_GPU and amount % WHOLE_GPU:
        raise row.wrong("gpu_millis", f"{amount} is not whole GPUs; above 1000 only whole ones can be asked for")
    return GpuRequest(whole=amount // WHOLE_GPU) if amount % WHOLE_GPU == 0 else GpuRequest(millis=amount)


def _kind(text: str) -> tuple[Kind, int, bool]:
    word = text.lower().replace("_", "-")
    word = _OTHER_WORDS.get(word, word)
    if word not in KINDS:
        raise ValueError(text)
    return KINDS[word]


def _count(text: str) -> int:
    count = int(text)
    if not 1 <= count <= 10_000:
        raise ValueError(text)
    return count


def _yes_or_no(text: str) -> bool:
    words: Sequence[tuple[bool, tuple[str, ...]]] = ((True, ("yes", "true", "1", "y")), (False, ("no", "false", "0", "n")))
    for value, known in words:
        if text.lower() in known:
            return value
    raise ValueError(text)
