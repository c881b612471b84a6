"""Help texts and docs/commands.md, made from the table. `python -m hotdesk.commands.document > docs/commands.md`."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from hotdesk.commands.flags import EVERYWHERE, Flag, Verb, Word
from hotdesk.commands.parse import find_verb
from hotdesk.commands.table import VERBS

INTRODUCTION = """# Commands

One table stands behind `%runai` and `%%runai` in a notebook and `runai` (or `hotdesk`) in a terminal, so every line below works in both.
This page is made from it: `python -m hotdesk.commands.document > docs/commands.md`.

- In a notebook results are HTML and live, in a terminal rich text; into a pipe data goes to stdout as plain text that is never cut, talk to
  stderr. `-o json|yaml` has fixed keys and UTC times, `-o name` one name a line.
- Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused by policy or quota, 4 waited in vain, 130 Ctrl-C (what was followed goes on).
  `exec` and `bash` exit as the command inside did.
- Settings: flag > environment (`HOTDESK_API_URL`, `HOTDESK_TOKEN` or `JUPYTERHUB_API_TOKEN`, `HOTDESK_PROJECT` or `RUNAI_PROJECT`) >
  `~/.config/hotdesk/config.json`. In a workspace the environment's project is the workspace's; a `config project` choice wins over it.
- After `%runai` a line is read as a shell reads it: quotes, `\\` at the end of a line, `$NAME` (a Python variable, else the
  environment's) and `{name}` (a Python variable). `x = %runai list` gives the data as Python values.
- A name may stand first or after `--name`. The command: `--command X --args Y --args Z`, or `--command -- X Y Z`; after ` -- ` alone come
  arguments. A `--command` value with blanks is split as a shell would; each `--args` stays whole.
- The same from Python: `job = hotdesk.submit(name="x", image="python", gpu="0.5", command=["python", "train.py"])`, then `job.state`,
  `job.why()`, `job.logs()`, `job.follow()`, `job.wait(timeout_s=60)`, `await job`, `job.suspend()`, `job.resume()`, `job.delete()`;
  `hotdesk.job(name)`, `jobs()`, `projects()`, `nodes()`, `whoami()`. Inside a job: `from hotdesk import report`, then
  `report.progress(0.3, "epoch 3 of 10")` and `report.metrics(loss=0.1)`; what is reported shows in `list`.
"""


def _shape(verb: Verb) -> str:
    words = " ".join(_word(word) for word in verb.words)
    rest = f" [-- {verb.rest}]" if verb.rest and not any(word.raw for word in verb.words) else ""
    return " ".join(part for part in (verb.title, words, "[flags]" if verb.flags else "") if part) + rest


def _word(word: Word) -> str:
    name = "[--] COMMAND…" if word.raw else f"{word.name}…" if word.many else word.name
    return name if word.required else f"[{name}]"


def _spelled(flag: Flag) -> str:
    value = f" {'|'.join(flag.choices) if flag.choices else flag.value}" if flag.value else ""
    return ", ".join(flag.spellings) + value


def _flag_help(flag: Flag) -> str:
    repeat = " (may be repeated)" if flag.repeat else ""
    return f"{flag.help}{repeat}" + (f" [later: {flag.later}]" if flag.later else "")


def _columns(pairs: Iterable[tuple[str, str]], width: int = 34) -> Iterator[str]:
    for left, right in pairs:
        yield f"  {left.ljust(width)}{right}" if len(left) < width else f"  {left}\n  {' ' * width}{right}"


def _groups(flags: Sequence[Flag]) -> dict[str, list[Flag]]:
    grouped: dict[str, list[Flag]] = {}
    for flag in flags:
        grouped.setdefault(flag.group or "Flags", []).append(flag)
    return grouped


def verb_help(verb: Verb, *, word: str) -> str:
    lines = [verb.summary, "", f"  {word} {_shape(verb)}"]
    if verb.later:
        lines += ["", f"Comes with a later version: {verb.later}."]
    if verb.details:
        lines += ["", verb.details]
    if verb.also:
        lines += ["", "Also: " + ", ".join(" ".join(path) for path in verb.also)]
    for group, flags in _groups([flag for flag in (*verb.flags, *EVERYWHERE) if not flag.later]).items():
        lines += ["", f"{group}:", *_columns((_spelled(flag), _flag_help(flag)) for flag in dict.fromkeys(flags))]
    later = [flag.name for flag in verb.flags if flag.later]
    if later:
        lines += ["", "With a later version (until then each says so):", *_wrapped(", ".join(later))]
    if verb.examples:
        lines += ["", "Examples:", *(f"  {word} {example}" for example in verb.examples)]
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def overview(*, word: str) -> str:
    now = [(_shape(verb), verb.summary) for verb in VERBS if not verb.later and not verb.hidden]
    spelled = [
        f"{' '.join(path)} = {verb.title}"
        for verb in VERBS
        for path in verb.also
        if path[0] != verb.path[0] and not (verb.later or verb.hidden)
    ]
    lines = [
        "Hotdesk shares GPUs: submit jobs, see what runs, what waits and why.",
        "",
        *_columns(now, 38),
        "",
        "Other spellings:",
        *_wrapped(", ".join(spelled)),
        "",
        "With a later version:",
        *_wrapped(", ".join(verb.title for verb in VERBS if verb.later)),
        "",
    ]
    return "\n".join([*lines, f"`{word} help COMMAND` explains one."]) + "\n"


def help_for(words: Sequence[str], *, word: str = "runai") -> str:
    """Of a verb; of a word that begins several (`project`, `list`) the verb it stands for, if any, and the others."""
    if not words:
        return overview(word=word)
    family = [verb for verb in VERBS if not verb.later and any(path[0] == words[0] and len(path) > 1 for path in verb.paths)]
    alone = any(path == (words[0],) for verb in VERBS for path in verb.paths)
    if len(words) > 1 or len(family) < 2:
        return verb_help(family[0] if family and not alone and len(words) == 1 else find_verb(list(words))[0], word=word)
    others = "\n".join(_columns(((_shape(verb), verb.summary) for verb in family), 38)) + "\n"
    if not alone:
        return f"{others}\n`{word} help {family[0].title}` explains one.\n"
    return f"{verb_help(find_verb(list(words))[0], word=word)}\nCommands with `{words[0]}`:\n{others}"


def _rows(flags: Sequence[Flag]) -> Iterator[str]:
    yield "| Flag | Meaning |\n|---|---|"
    for flag in flags:
        spelled, meaning = (text.replace("|", "\\|") for text in (_spelled(flag), _flag_help(flag)))
        yield f"| `{spelled}` | {meaning} |"


def _markdown_verb(verb: Verb) -> Iterator[str]:
    yield f"## `{verb.title}`\n"
    yield verb.summary + "\n"
    if verb.later:
        yield f"Comes with a later version: {verb.later}. Until then the command says so and does nothing.\n"
    else:
        yield f"`{_shape(verb)}`" + (" · also " + ", ".join(f"`{' '.join(path)}`" for path in verb.also) if verb.also else "") + "\n"
    if verb.details:
        yield verb.details + "\n"
    if verb.flags:
        yield from _rows(verb.flags)
        yield ""
    if verb.examples:
        yield "```sh\n" + "\n".join(f"runai {example}" for example in verb.examples) + "\n```\n"


def markdown() -> str:
    """The whole of docs/commands.md."""
    everywhere = ["## Every command\n", *_rows(EVERYWHERE), ""]
    parts = [INTRODUCTION, *(line for verb in VERBS if not verb.hidden for line in _markdown_verb(verb)), *everywhere]
    return "\n".join(parts).rstrip("\n") + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
