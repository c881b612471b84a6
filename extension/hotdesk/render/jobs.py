"""Jobs as views: Run:ai's tables and `describe`, with the reason of what waits always in sight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from hotdesk_api.models import DeviceOut, EventOut, Explanation, PodOut, WorkloadDetail, WorkloadOut
from hotdesk_api.units import WHOLE_GPU, format_age, format_gpus

from hotdesk.render import why
from hotdesk.render.view import SIMULATED, Cell, Facts, Table, Tone, View

COLUMNS = ("NAME", "STATUS", "AGE", "NODE", "IMAGE", "TYPE", "PROJECT", "USER", "GPUs", "SERVICE URL(S)")
COLUMNS_ALL = (*COLUMNS[:-1], "CREATED BY CLI", COLUMNS[-1])
COLUMNS_WIDE = (
    *COLUMNS[:-2],
    "GPUs Allocated (Requested)",
    "PODs Running (Pending)",
    "PROGRESS",
    "QUEUE",
    "CREATED BY CLI",
    "SERVICE URL(S)",
    "REASON",
)
TOP_COLUMNS = (
    "NAME",
    "PROJECT",
    "USER",
    "TYPE",
    "DURATION",
    "NODE",
    "GPUs ALLOCATED",
    "GPU UTILISATION",
    "GPU MEMORY ALLOCATED",
    "GPU MEMORY USAGE",
    "CPU REQUESTED",
    "MEMORY REQUESTED",
)
TONES: Mapping[str, Tone] = {
    "Running": "good",
    "Pending": "wait",
    "ContainerCreating": "wait",
    "Terminating": "wait",
    "Suspended": "dim",
    "Deleting": "dim",
    "Stopped": "dim",
    "Succeeded": "done",
    "Failed": "bad",
    "TimedOut": "bad",
}
_WAITS = frozenset({"Pending", "Suspended", "Terminating"})
_OVER = frozenset({"Succeeded", "Failed", "TimedOut", "Stopped"})


def age(moment: datetime | None, now: float) -> str:
    return format_age(now - moment.timestamp()) if moment else "-"


def mib(amount: int | None) -> str:
    """`512M`, `31.7G`; nothing asked is `-`."""
    if not amount:
        return "-"
    return f"{amount}M" if amount < 1024 else f"{amount / 1024:.1f}".removesuffix(".0") + "G"


def cores(cpu_millis: int) -> str:
    return "-" if not cpu_millis else format_gpus(cpu_millis)


def node_of(job: WorkloadOut) -> str:
    return "<multiple>" if len(job.nodes) > 1 else job.nodes[0] if job.nodes else "-"


def reason_of(job: WorkloadOut) -> str:
    """Why it waits, stopped or failed; nothing for what runs well."""
    return "" if job.reason is None or job.status in ("Running", "Succeeded") else job.reason.sentence


def progress_of(job: WorkloadOut) -> str:
    """How far it is, as it reports itself: `8% step 276 of 3600`."""
    return " ".join(part for part in ("" if job.progress is None else f"{job.progress:.0%}", job.message) if part)


def requested(job: WorkloadOut) -> str:
    if job.gpu_memory_mib_requested:
        return mib(job.gpu_memory_mib_requested)
    return format_gpus(job.gpu_millis_requested)


def status_cell(job: WorkloadOut) -> Cell:
    if job.status == "Running":
        return Cell(job.status, TONES["Running"], note=progress_of(job), bar=job.progress)
    waits = job.status in _WAITS and job.queue_position is not None
    note = f"{job.queue_position}. in the queue: {reason_of(job)}" if waits and reason_of(job) else reason_of(job)
    return Cell(job.status, TONES.get(job.status, ""), note=note)


def _start(job: WorkloadOut, now: float) -> tuple[Cell, ...]:
    return (
        Cell(job.name, "strong"),
        status_cell(job),
        Cell(age(job.created_at, now)),
        Cell(node_of(job)),
        Cell(job.image or "-"),
        Cell(job.type),
        Cell(job.project),
        Cell(job.user),
    )


def _urls(job: WorkloadOut) -> Cell:
    return Cell(", ".join(job.service_urls))


def _gpus(job: WorkloadOut) -> Cell:
    return Cell(requested(job))


def _row(job: WorkloadOut, now: float) -> tuple[Cell, ...]:
    return (*_start(job, now), _gpus(job), _urls(job))


def _row_all(job: WorkloadOut, now: float) -> tuple[Cell, ...]:
    return (*_start(job, now), _gpus(job), Cell(str(job.created_by_cli).lower()), _urls(job))


def _row_wide(job: WorkloadOut, now: float) -> tuple[Cell, ...]:
    allocated = "-" if job.status in _OVER else format_gpus(job.gpu_millis_allocated)
    name, status, *more = _start(job, now)
    return (
        name,
        replace(status, note=""),  # its reason and progress have columns here
        *more,
        Cell(f"{allocated} ({requested(job)})"),
        Cell(f"{job.running_pods} ({job.pending_pods})"),
        Cell(progress_of(job), bar=job.progress),
        Cell("" if job.queue_position is None else str(job.queue_position)),
        Cell(str(job.created_by_cli).lower()),
        _urls(job),
        Cell(reason_of(job)),
    )


def job_list(
    jobs: Sequence[WorkloadOut], *, project: str | None, now: float, wide: bool = False, word: str = "runai", some: bool = False
) -> View:
    """The table of `list jobs`, sorted by project and name; `project` None: of all projects; `some`: only those asked for."""
    ordered = sorted(jobs, key=lambda job: (job.project, job.name))
    columns, row = (COLUMNS_WIDE, _row_wide) if wide else (COLUMNS, _row) if project else (COLUMNS_ALL, _row_all)
    title = f"Showing jobs for project {project}" if project else ""
    return View((Table(columns, tuple(row(job, now) for job in ordered)),), title, _list_footer(ordered, word, some=some))


def _list_footer(jobs: Sequence[WorkloadOut], word: str, *, some: bool) -> tuple[Cell, ...]:
    footer: list[Cell] = []
    waiting = [job for job in jobs if job.status == "Pending"]
    if waiting:
        many = f"{len(waiting)} jobs wait" if len(waiting) > 1 else f"{waiting[0].name} waits"
        footer.append(Cell(f"{many}; `{word} why {waiting[0].name} -p {waiting[0].project}` says for what.", "dim"))
    if not jobs:
        none = "None of the jobs is like that." if some else f"No jobs. `{word} submit NAME -i IMAGE -g 1` submits one."
        footer.append(Cell(none, "dim"))
    if any(job.simulated for job in jobs):
        is_mixed = not all(job.simulated for job in jobs)
        which = "some of these jobs" if is_mixed else "this cluster"
        footer.append(Cell(f"The GPUs of {which} are not real.", "dim", badge=SIMULATED))
    return tuple(footer)


def _devices(pod: PodOut) -> str:
    return ", ".join(f"GPU {device.index} ({device.uuid})" for device in pod.devices)


def _held_mib(devices: Sequence[DeviceOut], gpu_millis: int) -> int:
    share = min(gpu_millis, WHOLE_GPU)
    return sum(device.memory_mib * share // WHOLE_GPU for device in devices)


def allocated_mib(job: WorkloadDetail) -> int:
    return sum(_held_mib(pod.devices, pod.gpu_millis) for pod in job.pods if pod.ended_at is None)


def _duration(job: WorkloadOut, now: float) -> str:
    if job.started_at is None:
        return "-"
    end = job.finished_at.timestamp() if job.finished_at else now
    return format_age(end - job.started_at.timestamp())


def _facts(job: WorkloadDetail, now: float, answer: Explanation | None) -> Facts:
    """With the explanation's numbers where it waits; who took its place before also while it runs again."""
    waits = answer is not None and answer.starts_now is not None
    told = dict(why.facts(answer)) if answer and waits else {}
    pods = max(job.spec.parallelism or 1, 1)
    each_millis = job.gpu_millis_requested // max(1, len(job.pods))
    ended = [pod.status for pod in job.pods]
    badge = SIMULATED if job.simulated else ""
    pairs = [
        ("NAME", Cell(job.name, "strong")),
        ("NAMESPACE", Cell(job.namespace or "-")),
        ("PROJECT", Cell(job.project)),
        ("USER", Cell(job.user)),
        ("TYPE", Cell(job.type)),
        ("STATUS", Cell(job.status, TONES.get(job.status, ""))),
        ("REASON", Cell(answer.sentence if answer and waits else reason_of(job))),
        *((name, cell) for name, cell in told.items() if name != "STOPPED BEFORE"),
        *(() if told else (("PLACE IN THE QUEUE", Cell("" if job.queue_position is None else str(job.queue_position))),)),
        ("STOPPED BEFORE", Cell(why.stopped_before(answer) if answer else "")),
        ("PROGRESS", Cell(progress_of(job), bar=job.progress)),
        ("TRAINING DURATION", Cell(_duration(job, now))),
        ("IMAGE", Cell(job.image)),
        ("GPUS", Cell(mib(job.gpu_memory_mib_requested) if job.gpu_memory_mib_requested else format_gpus(each_millis))),
        ("TOTAL REQUESTED GPUS", Cell(format_gpus(job.gpu_millis_requested))),
        ("ALLOCATED GPUS", Cell(format_gpus(job.gpu_millis_allocated), badge=badge if job.gpu_millis_allocated else "")),
        ("ALLOCATED GPUS MEMORY", Cell(mib(allocated_mib(job)))),
        ("CPU", Cell(cores(job.cpu_millis))),
        ("MEMORY", Cell(mib(job.memory_mib))),
        ("RUNNING PODS", Cell(str(job.running_pods))),
        ("PENDING PODS", Cell(str(job.pending_pods))),
        ("PARALLELISM", Cell(str(pods))),
        ("COMPLETIONS", Cell(str(job.spec.completions or 1))),
        ("SUCCEEDED PODS", Cell(str(ended.count("Succeeded")))),
        ("FAILED PODS", Cell(str(ended.count("Failed")))),
        ("IS DISTRIBUTED WORKLOAD", Cell(str(job.kind in ("mpi", "pytorch")).lower())),
        ("PRIORITY", Cell(f"{job.priority} ({'preemptible' if job.preemptible else 'not preemptible'})")),
        ("ISOLATION", Cell(f"{job.tier_verified or 'none verified'} (requested {job.tier_requested})" if job.tier_requested else "")),
        ("CREATED BY CLI", Cell(str(bool(job.spec.command_line)).lower())),
        ("SERVICE URL(S)", _urls(job)),
        ("COMMAND LINE", Cell(job.spec.command_line)),
    ]
    optional = {"REASON", "PLACE IN THE QUEUE", "STOPPED BEFORE", "PROGRESS", "ISOLATION"}
    return Facts(tuple((name, cell) for name, cell in pairs if cell.text or name not in optional))


def describe(job: WorkloadDetail, events: Sequence[EventOut], *, now: float, answer: Explanation | None = None) -> View:
    pods = tuple(
        (
            Cell(pod.name),
            Cell(pod.status, TONES.get(pod.status, ""), note=pod.error),
            Cell(job.type),
            Cell(age(pod.started_at, now)),
            Cell(pod.node or "-"),
            Cell(_devices(pod), badge=SIMULATED if any(device.simulated for device in pod.devices) else ""),
        )
        for pod in job.pods
    )
    happened = tuple(
        (Cell(event.source), Cell(event.type), Cell(age(event.at, now)), Cell(f"[{event.reason}] {event.message}")) for event in events
    )
    return View(
        (
            _facts(job, now, answer),
            Table(("POD", "STATUS", "TYPE", "AGE", "NODE", "GPUs"), pods, heading="Pods:"),
            Table(("SOURCE", "TYPE", "AGE", "MESSAGE"), happened, heading="Events:"),
        )
    )


def card(job: WorkloadOut, *, now: float, last_line: str = "") -> View:
    """One job on a few lines, for the live display under `%%runai submit` and for a job shown in a notebook."""
    where = f" on {node_of(job)}" if job.nodes else ""
    held = f"{format_gpus(job.gpu_millis_allocated)} of {requested(job)} GPU" if job.status not in _OVER else f"{requested(job)} GPU"
    asks_gpu = bool(job.gpu_millis_requested or job.gpu_memory_mib_requested)
    facts = f"{job.type} · {job.project} · {held}{where} · {_duration(job, now) if job.started_at else age(job.created_at, now)}"
    row = (Cell(job.name, "strong"), status_cell(job), Cell(facts, badge=SIMULATED if job.simulated and asks_gpu else "", note=last_line))
    return View((Table(("NAME", "STATUS", "JOB"), (row,)),))


def _percent(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.0f}%" if values else "-"


def top(jobs: Sequence[WorkloadDetail], *, now: float) -> View:
    rows = []
    for job in sorted(jobs, key=lambda job: (job.project, job.name)):
        devices = [device for pod in job.pods if pod.ended_at is None for device in pod.devices]
        used = [device.memory_used_mib for device in devices if device.memory_used_mib is not None]
        busy = [device.utilisation_percent for device in devices if device.utilisation_percent is not None]
        rows.append(
            (
                Cell(job.name, "strong"),
                Cell(job.project),
                Cell(job.user),
                Cell(job.type),
                Cell(_duration(job, now)),
                Cell(node_of(job)),
                Cell(format_gpus(job.gpu_millis_allocated), badge=SIMULATED if job.simulated and devices else ""),
                Cell(_percent(busy)),
                Cell(mib(allocated_mib(job))),
                Cell(mib(sum(used)) if used else "-"),
                Cell(cores(job.cpu_millis)),
                Cell(mib(job.memory_mib)),
            )
        )
    return View((Table(TOP_COLUMNS, tuple(rows)),))
