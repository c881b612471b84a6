"""The `nvidia-smi` a job finds first: its own share and its own processes, labelled for what it is. Standard library only.

The share is in HOTDESK_GPU_VIEW (the engine's word). On simulated GPUs everything shown is SIMULATED. On a share of a real GPU the
total is the share ("share view") and the used memory comes from the real tool; a job with whole real GPUs gets the real tool itself.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib

TYPE_CHECKING = False  # `typing` would cost a third of our start
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    App = tuple[int, str, int]  # pid, name, MiB

VERSION = "SIMULATED"
WIDTH = 91
QUERIES = (
    *("timestamp", "driver_version", "count", "index", "name", "gpu_name", "uuid", "gpu_uuid", "memory.total", "memory.used"),
    *("memory.free", "utilization.gpu", "utilization.memory", "temperature.gpu", "power.draw", "power.limit", "pstate", "compute_mode"),
)
UNITS = {"memory.total": "MiB", "memory.used": "MiB", "memory.free": "MiB", "utilization.gpu": "%", "utilization.memory": "%"}
UNITS |= {"power.draw": "W", "power.limit": "W"}
HELP = """nvidia-smi of Hotdesk: shows this job's share of its GPU(s).

    -h, --help                     this text
    -L, --list-gpus                one line for each GPU
    -i, --id=ID                    only the GPU with this index or UUID
    --query-gpu=FIELD,…            with --format=csv[,noheader][,nounits]
    --query-compute-apps=FIELD,…   pid, process_name, gpu_uuid, used_memory; same formats
    -l SEC, --loop=SEC             again and again
"""


def read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def own_processes() -> list[tuple[int, str]]:
    """(pid, name) of this job's Python programs: what would hold a GPU. Shells and this tool do not."""
    job = os.environ.get("JOB_UUID", "")
    found = []
    for entry in os.listdir("/proc") if job else ():
        if entry.isdigit() and int(entry) != os.getpid() and f"JOB_UUID={job}".encode() in read(f"/proc/{entry}/environ").split(b"\0"):
            words = [word.decode(errors="replace") for word in read(f"/proc/{entry}/cmdline").rstrip(b"\0").split(b"\0")]
            if os.path.basename(words[0]).startswith("python") and not is_service(words):
                found.append((int(entry), words[0]))
    return sorted(found)


def is_service(words: list[str]) -> bool:
    """Programs beside the work: servers, Hotdesk's own commands."""
    names = ("jupyterhub-singleuser", "jupyter-lab", "jupyter", "hotdesk", "runai", "nvidia_smi.py", "pip")
    return any(os.path.basename(word) in names for word in words[1:3]) or (words[1:2] == ["-m"] and words[2:3] in (["jupyter"], ["pip"]))


class Gpu:
    """One device of the share, with the processes on it."""

    def __init__(self, view: dict[str, Any], processes: list[tuple[int, str]]) -> None:
        self.index: int = view["index"]
        self.uuid: str = view["uuid"]
        self.model: str = view["model"]
        self.memory_mib: int = view["memory_mib"]
        self.limit_mib: int = view["limit_mib"]
        self.millis: int = view["millis"]
        self.simulated: bool = view["simulated"]
        self.apps = self.simulated_apps(processes) if self.simulated else real_apps(self.uuid, {pid for pid, _ in processes})
        self.used = sum(memory for _, _, memory in self.apps)
        self.busy = (60 + zlib.crc32(f"{self.uuid}{int(time.time()) // 2}".encode()) % 40) if self.apps else 0

    def simulated_apps(self, processes: list[tuple[int, str]]) -> list[App]:
        """Each program holds an equal part of most of the share; always the same for the same program."""
        room = self.limit_mib * 95 // 100
        part = room // max(1, len(processes))
        return [(pid, name, max(1, part - zlib.crc32(f"{pid}".encode()) % max(1, part // 20))) for pid, name in processes]

    @property
    def shown_name(self) -> str:
        return f"SIMULATED {self.model}" if self.simulated else self.model

    def value(self, field: str) -> Any:
        idle = not self.apps
        values = {
            "timestamp": time.strftime("%Y/%m/%d %H:%M:%S.000"),
            "driver_version": VERSION if self.simulated else "share view",
            "index": self.index, "name": self.shown_name, "gpu_name": self.shown_name, "uuid": self.uuid, "gpu_uuid": self.uuid,
            "memory.total": self.limit_mib, "memory.used": self.used, "memory.free": self.limit_mib - self.used,
            "utilization.gpu": self.busy, "utilization.memory": self.used * 100 // max(1, self.limit_mib),
            "temperature.gpu": 33 if idle else 61, "power.draw": "42.00" if idle else "203.00", "power.limit": "300.00",
            "pstate": "P0", "compute_mode": "Default",
        }  # fmt: skip
        return values.get(field)


def real_tool() -> str | None:
    """The real nvidia-smi, further down the PATH."""
    here = os.environ.get("HOTDESK_BIN", "")
    for directory in os.environ.get("PATH", "").split(":"):
        path = os.path.join(directory, "nvidia-smi")
        if directory and os.path.realpath(directory) != os.path.realpath(here) and os.access(path, os.X_OK):
            return path
    return None


def real_apps(uuid: str, own: set[int]) -> list[App]:
    import subprocess

    tool = real_tool()
    if not tool:
        return []
    query = [tool, "-i", uuid, "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines()]
    apps = [(int(row[0]), row[1], int(row[2])) for row in rows if len(row) == 3 and row[0].isdigit() and row[2].isdigit()]
    return [app for app in apps if app[0] in own]


def banner(gpus: list[Gpu]) -> str:
    gpu = gpus[0]
    if gpu.simulated:
        return "SIMULATED by Hotdesk: no GPU is here; memory and load are made up, the share is what you were given."
    tier = os.environ.get("HOTDESK_TIER", "cooperative")
    return f"share view by Hotdesk: {gpu.millis / 1000:g} of {gpu.model} ({gpu.memory_mib} MiB), tier {tier}; real tool: {real_tool()}"


def line(*cells: str) -> str:
    return "|" + "|".join(cells) + "|"


def table(gpus: list[Gpu]) -> str:
    """The table people know, with the share as its total."""
    driver, cuda = (VERSION, "none") if gpus[0].simulated else ("share view", "see real tool")
    rule = "+" + "+".join("-" * width for width in (41, 24, 22)) + "+"
    double = rule.replace("-", "=")
    out = [time.strftime("%a %b %d %H:%M:%S %Y"), banner(gpus), "+" + "-" * (WIDTH - 2) + "+"]
    head = f" NVIDIA-SMI {driver:<22} Driver Version: {driver:<14} CUDA Version: {cuda}"
    out += ["|" + head[: WIDTH - 2].ljust(WIDTH - 2) + "|", rule]
    out += [
        line(" GPU  Name                 Persistence-M ", " Bus-Id          Disp.A ", " Volatile Uncorr. ECC "),
        line(" Fan  Temp   Perf          Pwr:Usage/Cap ", "           Memory-Usage ", " GPU-Util  Compute M. "),
        double,
    ]
    for gpu in gpus:
        memory = f"{gpu.used}MiB / {gpu.limit_mib}MiB"
        power = f"{float(gpu.value('power.draw')):.0f}W / 300W" if gpu.simulated else "n/a"
        temperature = f"{gpu.value('temperature.gpu')}C" if gpu.simulated else "n/a"
        out += [
            line(
                f" {gpu.index:>3}  {gpu.shown_name[:30]:<31} On ",
                f" {f'00000000:{gpu.index:02X}:00.0':<16} Off  ".ljust(24),
                " " * 20 + "0 ",
            ),
            line(f" N/A  {temperature:>4}    P0 {power:>24}  "[:41].ljust(41), f" {memory:>22} ", f"    {gpu.busy:>3}%      Default "),
            line(f"  share {gpu.millis / 1000:g} of the GPU's {gpu.memory_mib} MiB".ljust(41), " " * 24, " " * 22),
            rule,
        ]
    out += ["", "+" + "-" * (WIDTH - 2) + "+"]
    out += [
        "|" + text.ljust(WIDTH - 2) + "|"
        for text in (" Processes:", "  GPU        PID   Type   Process name" + " " * 32 + "GPU Memory Usage")
    ]
    out.append("|" + "=" * (WIDTH - 2) + "|")
    rows = [f"  {gpu.index:>3}  {pid:>9}      C   {name[-42:]:<42} {memory:>12}MiB" for gpu in gpus for pid, name, memory in gpu.apps]
    out += ["|" + row.ljust(WIDTH - 2) + "|" for row in rows or ["  No running processes found"]]
    out.append("+" + "-" * (WIDTH - 2) + "+")
    return "\n".join(out)


def csv(rows: Iterable[Sequence[Any]], fields: list[str], formats: list[str]) -> str:
    units = {} if "nounits" in formats else UNITS
    head = [] if "noheader" in formats else [", ".join(f"{field} [{units[field]}]" if field in units else field for field in fields)]
    cells = (
        [f"{value} {units[field]}" if field in units else str(value) for field, value in zip(fields, row, strict=True)] for row in rows
    )
    return "\n".join([*head, *(", ".join(row) for row in cells)])


def query_gpus(gpus: list[Gpu], fields: list[str], formats: list[str]) -> int:
    unknown = [field for field in fields if field not in QUERIES]
    if unknown:
        return fail(f'Field "{unknown[0]}" is not a valid field to query. Valid ones: {", ".join(QUERIES)}.')
    rows = [[len(gpus) if field == "count" else gpu.value(field) for field in fields] for gpu in gpus]
    print(csv(rows, fields, formats))
    return 0


def query_apps(gpus: list[Gpu], fields: list[str], formats: list[str]) -> int:
    names = {"pid": 0, "process_name": 1, "name": 1, "used_memory": 2, "used_gpu_memory": 2, "gpu_uuid": 3, "gpu_name": 4}
    unknown = [field for field in fields if field not in names]
    if unknown:
        return fail(f'Field "{unknown[0]}" is not a valid field to query. Valid ones: {", ".join(names)}.')
    UNITS.update(used_memory="MiB", used_gpu_memory="MiB")
    rows = [(*app, gpu.uuid, gpu.shown_name) for gpu in gpus for app in gpu.apps]
    print(csv([[row[names[field]] for field in fields] for row in rows], fields, formats))
    return 0


def fail(sentence: str) -> int:
    print(f"nvidia-smi (Hotdesk): {sentence}", file=sys.stderr)
    return 2


def parse(arguments: list[str]) -> dict[str, str] | str:
    """Options by their long name, or a sentence."""
    long = {"-h": "help", "-L": "list-gpus", "-i": "id", "-l": "loop"}
    takes = {"id", "loop", "format", "query-gpu", "query-compute-apps"}
    options: dict[str, str] = {}
    todo = list(arguments)
    while todo:
        word = todo.pop(0)
        name, equals, value = word.partition("=")
        name = long.get(name) or (name[2:] if name.startswith("--") else "")
        if name in takes and not equals:
            if not todo:
                return f"{word} needs a value."
            value = todo.pop(0)
        if name not in {*long.values(), *takes}:
            return f"{word} is not known to this nvidia-smi; -h lists what is."
        options[name] = value
    return options


def show(views: list[dict[str, Any]], options: dict[str, str]) -> int:
    processes = own_processes()
    gpus = [Gpu(view, processes) for view in views]
    formats = options.get("format", "").replace(" ", "").split(",")
    if "id" in options:
        gpus = [gpu for gpu in gpus if options["id"] in (str(gpu.index), gpu.uuid)]
        if not gpus:
            return fail(f"No devices were found for -i {options['id']}.")
    queries = {"query-gpu": query_gpus, "query-compute-apps": query_apps}
    for name, query in queries.items():
        if name in options:
            if "csv" not in formats:
                return fail(f"--{name} needs --format=csv.")
            return query(gpus, [field.strip() for field in options[name].split(",")], formats)
    if "list-gpus" in options:
        for gpu in gpus:
            print(f"GPU {gpu.index}: {gpu.shown_name} (UUID: {gpu.uuid}) share {gpu.millis / 1000:g}, {gpu.limit_mib} MiB")
        return 0
    print(table(gpus))
    return 0


def main(arguments: list[str]) -> int:
    views = json.loads(os.environ.get("HOTDESK_GPU_VIEW") or "[]")
    whole_and_real = bool(views) and all(not view["simulated"] and view["millis"] >= 1000 for view in views)
    tool = real_tool()
    if whole_and_real and tool:
        os.execv(tool, [tool, "-i", ",".join(view["uuid"] for view in views), *arguments])  # noqa: S606  # no shell is what is wanted
    options = parse(arguments)
    if isinstance(options, str):
        return fail(options)
    if "help" in options:
        print(HELP, end="")
        return 0
    if not views:
        print("No devices were found: this job has no GPU (submit with -g to ask for one).")
        return 6
    try:
        every_s = float(options["loop"]) if options.get("loop") else None
    except ValueError:
        return fail(f"--loop {options['loop']} is not a number of seconds.")
    while True:
        code = show(views, options)
        if every_s is None or code:
            return code
        sys.stdout.flush()
        time.sleep(max(0.1, every_s))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(130)
