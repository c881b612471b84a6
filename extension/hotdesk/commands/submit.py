"""From the flags of `submit` to the `WorkloadSpec` that is sent. Pure: the project and the cell's text are arguments."""

from __future__ import annotations

import re
import shlex

from hotdesk_api.errors import Invalid, TooLarge
from hotdesk_api.models import MAX_ARGUMENTS_BYTES, MAX_PROGRAM_BYTES, KindName, Port, TolerationSpec, WorkloadSpec
from hotdesk_api.units import NAME_MAX, NAME_PATTERN, parse_cpu_millis, parse_duration_s, parse_gpus, parse_memory_mib

from hotdesk.commands.checked import bad_name, checked
from hotdesk.commands.parse import Typed, unknown

UNNAMED_PULL_POLICY = "IfNotPresent"  # of an image that is a workspace's: that it runs is no promise that it can be fetched
JUPYTER_IMAGE = "jupyter/scipy-notebook"
JUPYTER_PORT = 8888
GPU_MEMORY_MIN_MIB = 100
PRIORITIES = {
    "very-low": 25,
    "low": 40,
    "train": 50,
    "medium-low": 65,
    "interactive-preemptible": 75,
    "medium": 80,
    "medium-high": 90,
    "build": 100,
    "high": 125,
    "very-high": 150,
}
SERVICE_TYPES = ("portforward", "loadbalancer", "nodeport", "ingress", "external-url")
_SECRET = re.compile(r"(TOKEN|PASSWORD|PASSWD|SECRET|KEY|CREDENTIAL)", re.IGNORECASE)
_ENVIRONMENT_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_.-]*$")
_ENVIRONMENT_FLAG = re.compile(r"^(-e(?=[^-])|--env(ironment)?=)")


def spec_of(typed: Typed, project: str, *, program: str | None = None, program_image: str = "") -> WorkloadSpec:
    """What a submit line asks for. Raises Invalid (TooLarge for text beyond the limits) before anything is sent."""
    kind = _kind(typed)
    command, args = _command(typed)
    ports, service_type = _network(typed)
    _limit_size(typed, program)
    wanted = {
        "name": _name(typed),
        "name_prefix": _checked_name(typed.text("job-name-prefix"), "--job-name-prefix"),
        "project": project,
        "kind": kind,
        "image": _image(typed, program_image if program is not None else ""),
        "command": command,
        "args": args,
        "program": program,
        "environment": _environment(typed),
        "working_dir": typed.text("working-dir"),
        **_resources(typed),
        **_life_cycle(typed, kind),
        **_scheduling(typed),
        "service_type": service_type,
        "ports": ports,
        "large_shm": typed.on("large-shm") or None,
        "image_pull_policy": _pull_policy(typed) or (None if typed.text("image") or program is None else UNNAMED_PULL_POLICY),
        "labels": _pairs(typed, "label"),
        "annotations": _pairs(typed, "annotation"),
        "command_line": command_line(typed.argv),
    }
    return checked(WorkloadSpec, wanted)


def _kind(typed: Typed) -> KindName:
    interactive = typed.on("interactive") or typed.on("jupyter")
    many = [name for name in ("parallelism", "completions") if typed.text(name)]
    if interactive and many:
        raise Invalid(
            f"--{many[0]} does not go with --interactive: an interactive job is one pod.", field=many[0], next_step="Leave one of them out."
        )
    if interactive:
        return "interactive"
    if (_count(typed, "parallelism") or 1) > 1 and not typed.text("completions"):
        raise Invalid(
            f"--parallelism {typed.text('parallelism')} needs --completions: how many pods must succeed.",
            field="completions",
            next_step="Write for example --completions 4.",
        )
    return "hpo" if many else "train"


def _name(typed: Typed) -> str | None:
    positional = typed.words[0] if typed.words else None
    flagged = typed.text("name")
    if positional and flagged and positional != flagged:
        raise Invalid(
            f"The job is named twice: {positional} and --name {flagged}.", field="name", value=flagged, next_step="Leave one of them out."
        )
    return _checked_name(positional or flagged, "The name")


def _checked_name(name: str | None, what: str) -> str | None:
    if name is not None and (len(name) > NAME_MAX or not re.fullmatch(NAME_PATTERN.strip("^$"), name)):
        raise bad_name(name, what)
    return name


def _image(typed: Typed, otherwise: str) -> str:
    image = typed.text("image") or (JUPYTER_IMAGE if typed.on("jupyter") else "") or otherwise
    if not image:
        raise Invalid("submit needs an image (-i).", field="image", next_step="`list images` shows the known ones; for example -i python.")
    return image


def _command(typed: Typed) -> tuple[list[str], list[str]]:
    """All three spellings: `--command X --args Y`, `--command=X`, and the switch before ` -- X Y` (without it the rest are arguments).

    Without ` -- ` it is no switch: `--command false` runs the program of that name.
    """
    args = list(typed.every("args"))
    command = typed.text("command")
    rest = list(typed.rest or ())
    if command == "true" and typed.rest is not None:
        if not rest:
            raise Invalid(
                "--command is followed by -- and then nothing.", field="command", next_step="Write for example --command -- sleep 60."
            )
        return rest, args
    if command is None or (command == "false" and typed.rest is not None):
        return [], args + rest
    words = shlex.split(command) if " " in command else [command]
    return words, args + rest


def _environment(typed: Typed) -> dict[str, str]:
    environment = {}
    for pair in typed.every("environment"):
        name, equals, value = pair.partition("=")
        if not equals:
            raise Invalid(f"-e {pair} has no =.", field="environment", value=pair, next_step=f"Write -e {name or 'NAME'}=VALUE.")
        if not _ENVIRONMENT_NAME.match(name):
            raise Invalid(
                f"-e {pair}: {name} is not the name of a variable." if name else f"-e {pair} has no name before the =.",
                field="environment",
                value=name,
                next_step="Use letters, digits and _, a letter first.",
            )
        if value.startswith("SECRET:"):
            raise Invalid(
                f"-e {name}=SECRET:… is for secrets, which this version of Hotdesk does not have yet. Nothing was submitted.",
                field="environment",
            )
        environment[name] = value
    return environment


def _resources(typed: Typed) -> dict[str, object]:
    gpu, gpu_memory = typed.text("gpu"), typed.text("gpu-memory")
    if gpu and gpu_memory:
        raise Invalid(
            "-g and --gpu-memory are two ways to ask for the same.", field="gpu_memory", value=gpu_memory, next_step="Use one of them."
        )
    memory_mib = parse_memory_mib(gpu_memory, field="--gpu-memory") if gpu_memory is not None else None
    if memory_mib is not None and memory_mib < GPU_MEMORY_MIN_MIB:
        raise Invalid(
            f"--gpu-memory {gpu_memory} is below the least share of {GPU_MEMORY_MIN_MIB} MiB.",
            field="gpu_memory",
            value=gpu_memory,
            limit=GPU_MEMORY_MIN_MIB,
            next_step="Write for example --gpu-memory 5G.",
        )
    cpu, memory = typed.text("cpu"), typed.text("memory")
    return {
        "gpu_millis": parse_gpus(gpu, field="-g") if gpu is not None else None,
        "gpu_memory_mib": memory_mib,
        "cpu_millis": parse_cpu_millis(cpu) if cpu is not None else None,
        "memory_mib": parse_memory_mib(memory) if memory is not None else None,
    }


def _life_cycle(typed: Typed, kind: KindName) -> dict[str, object]:
    ttl = typed.text("ttl-after-finish")
    return {
        "preemptible": True if typed.on("preemptible") and kind == "interactive" else None,
        "parallelism": _count(typed, "parallelism"),
        "completions": _count(typed, "completions"),
        "backoff_limit": _count(typed, "backoff-limit", least=0),
        "ttl_after_finish_s": parse_duration_s(ttl, field="--ttl-after-finish") if ttl else None,
    }


def _count(typed: Typed, name: str, *, least: int = 1) -> int | None:
    text = typed.text(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise Invalid(
            f"--{name} {text} is not a whole number of at least {least}.",
            field=name,
            value=text,
            limit=least,
            next_step=f"Write --{name} {least + 1}.",
        )
    return int(text)


def _scheduling(typed: Typed) -> dict[str, object]:
    return {
        "node_type": typed.text("node-type"),
        "node_pools": (typed.text("node-pools") or "").replace(",", " ").split(),
        "tolerations": [_toleration(text) for text in typed.every("toleration")],
        "priority": _priority(typed.text("priority")),
    }


def _priority(text: str | None) -> int | None:
    if text is None or text in PRIORITIES:
        return PRIORITIES[text] if text else None
    if not text.isascii() or not text.isdigit() or int(text) > 1000:
        raise unknown("a priority (0 to 1000, or a name)", text, list(PRIORITIES))
    return int(text)


def _toleration(text: str) -> TolerationSpec:
    fields = dict(part.strip().partition("=")[::2] for part in text.split(","))
    fields.pop("seconds", None)
    wrong = set(fields) - {"operator", "key", "value", "effect"}
    if wrong or fields.get("operator", "Equal") not in ("Equal", "Exists"):
        raise Invalid(
            f"--toleration {text} is not a toleration.",
            field="toleration",
            value=text,
            next_step="Write operator=Equal|Exists,key=NAME,value=VALUE,effect=NoSchedule.",
        )
    return checked(TolerationSpec, fields)


def _network(typed: Typed) -> tuple[list[Port], str | None]:
    ports = [_port(text) for text in typed.every("port")]
    service_type = None
    for text in typed.every("service-type"):
        service_type, *options = text.split(",")
        if service_type not in SERVICE_TYPES:
            raise unknown("a value of --service-type", service_type, SERVICE_TYPES)
        ports += [_port(option.removeprefix("port=")) for option in options if option.startswith("port=")]
    if typed.on("jupyter"):
        ports = ports or [Port(container=JUPYTER_PORT)]
        service_type = service_type or "portforward"
    return ports, service_type


def _port(text: str) -> Port:
    host, colon, container = text.rpartition(":")
    numbers = [container, host] if colon else [container]
    if not all(number.isascii() and number.isdigit() and 1 <= int(number) <= 65535 for number in numbers):
        raise Invalid(
            f"--port {text} is not a port.",
            field="port",
            value=text,
            limit=65535,
            next_step="Write --port 8888 or --port 30022:22 (host:container).",
        )
    return Port(container=int(container), host=int(host) if colon else None)


def _pull_policy(typed: Typed) -> str | None:
    if typed.on("local-image"):
        return "Never"
    return "Always" if typed.on("always-pull-image") else typed.text("image-pull-policy")


def _pairs(typed: Typed, name: str) -> dict[str, str]:
    for pair in typed.every(name):
        if "=" not in pair:
            raise Invalid(f"--{name} {pair} has no =.", field=name, value=pair, next_step=f"Write --{name} {pair}=VALUE.")
    return dict(pair.partition("=")[::2] for pair in typed.every(name))


def _limit_size(typed: Typed, program: str | None) -> None:
    arguments = sum(len(word.encode()) for word in typed.argv)
    if arguments > MAX_ARGUMENTS_BYTES:
        raise TooLarge(
            f"The line has {arguments:,} bytes; at most {MAX_ARGUMENTS_BYTES:,} can be submitted.",
            field="args",
            value=arguments,
            limit=MAX_ARGUMENTS_BYTES,
            next_step="Put the data into a file the job reads, or the text into a cell: %%runai submit.",
        )
    if program is not None and len(program.encode()) > MAX_PROGRAM_BYTES:
        raise TooLarge(
            f"The cell has {len(program.encode()):,} bytes; at most {MAX_PROGRAM_BYTES:,} can be submitted.",
            field="program",
            value=len(program.encode()),
            limit=MAX_PROGRAM_BYTES,
            next_step="Put the program into a file the job reads.",
        )


def command_line(argv: tuple[str, ...]) -> str:
    """The line as typed, for `describe`; values of variables that sound secret are left out, others of the project may read it."""
    shown = []
    for at, word in enumerate(argv):
        after_flag = at > 0 and argv[at - 1] in ("-e", "--environment", "--env")
        flag = _ENVIRONMENT_FLAG.match(word)
        start = 0 if after_flag else flag.end() if flag else len(word)
        shown.append(word[:start] + _without_secret(word[start:]))
    return shlex.join(["runai", *shown])


def _without_secret(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    return f"{name}=…" if equals and _SECRET.search(name) else pair
