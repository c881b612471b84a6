"""What a flag and a verb are, and the flags that several verbs share. Pure data: parsing, help, completion and docs all read it."""

from __future__ import annotations

from dataclasses import dataclass, field

OUTPUTS = ("json", "yaml", "wide", "name")


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `value` is the word for its value in help texts, "" for a switch; `implied` is the value of a flag given without one.

    `later` names a feature this version does not have: the flag is understood, and refused with a sentence. `live` says which
    names complete it (projects, jobs, nodes, images). `unless_rest`: takes a value only on lines without ` -- `.
    """

    name: str
    help: str
    value: str = ""
    short: str = ""
    also: tuple[str, ...] = ()
    repeat: bool = False
    choices: tuple[str, ...] = ()
    implied: str = ""
    live: str = ""
    later: str = ""
    unless_rest: bool = False
    group: str = ""

    @property
    def key(self) -> str:
        return self.name.removeprefix("--")

    @property
    def spellings(self) -> tuple[str, ...]:
        return tuple(word for word in (self.short, self.name, *self.also) if word)

    @property
    def is_switch(self) -> bool:
        return not self.value


@dataclass(frozen=True, slots=True)
class Word:
    """A positional word: `many` takes all that follow, `raw` everything after it unread (a command to run)."""

    name: str
    help: str = ""
    required: bool = True
    many: bool = False
    raw: bool = False
    live: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verb:
    """One command. `path` are its words, `also` other spellings of them; `action` is `module.function` under `hotdesk.commands`."""

    path: tuple[str, ...]
    summary: str
    action: str = ""
    words: tuple[Word, ...] = ()
    flags: tuple[Flag, ...] = ()
    also: tuple[tuple[str, ...], ...] = ()
    examples: tuple[str, ...] = ()
    rest: str = ""
    later: str = ""
    hidden: bool = False
    details: str = ""
    paths: tuple[tuple[str, ...], ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "paths", (self.path, *self.also))

    @property
    def title(self) -> str:
        return " ".join(self.path)


URL = Flag("--url", "the scheduler's address, instead of HOTDESK_API_URL or the one saved by `login`", "URL", group="Connection")
TOKEN = Flag("--token", "the JupyterHub API token, instead of HOTDESK_TOKEN or the saved one", "TOKEN", group="Connection")
LOGLEVEL = Flag(
    "--loglevel", "understood for old scripts; has no effect", "LEVEL", choices=("debug", "info", "warn", "error"), group="Connection"
)
HELP = Flag("--help", "show this text", short="-h", group="Connection")
EVERYWHERE = (URL, TOKEN, LOGLEVEL, HELP)

PROJECT = Flag("--project", "the project; default: see `config project`", "PROJECT", short="-p", live="projects")
OUTPUT = Flag("--output", "json, yaml, wide, or name (one a line)", "FORMAT", short="-o", choices=OUTPUTS)
ALL_PROJECTS = Flag("--all-projects", "of all projects one may see", short="-A")
WATCH = Flag("--watch", "keep showing changes until Ctrl-C", short="-w")
POD = Flag("--pod", "this pod of the job: its name or index", "POD")
YES = Flag("--yes", "do not ask for confirmation", short="-y")
JOB = Word("NAME", "name of the job", live="jobs")
JOBS = Word("NAME", "names of jobs", many=True, live="jobs")
