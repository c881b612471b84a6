"""Tab completion from the table: which words may stand where the cursor is. Live names come from the caller, who must be quick."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hotdesk.commands.flags import Flag, Verb, Word
from hotdesk.commands.table import VERBS, flags_of

Names = Callable[[str, str | None], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Candidate:
    text: str
    help: str = ""


def _verb_of(words: Sequence[str]) -> tuple[Verb, int] | None:
    by_path = {path: verb for verb in VERBS for path in verb.paths}
    for length in (2, 1):
        verb = by_path.get(tuple(words[:length]))
        if verb and len(words) >= length:
            return verb, length
    return None


def _next_verb_words(words: Sequence[str]) -> dict[str, str]:
    """Words that may come next in a verb's path, with what they do."""
    found: dict[str, str] = {}
    for verb in VERBS:
        for path in () if verb.later else verb.paths:
            if len(path) > len(words) and path[: len(words)] == tuple(words):
                whole = len(path) == len(words) + 1
                found.setdefault(path[len(words)], verb.summary if whole else "")
    return found


def complete(words: Sequence[str], partial: str, names: Names) -> list[Candidate]:
    """What `partial` may become after `words` (the words before it, without the program's own). `names(kind, project)` gives live names."""
    found = _verb_of(words)
    options: dict[str, str] = {}
    if found is None or len(words) < 2:
        options |= _next_verb_words(words)
    if found is not None:
        verb, length = found
        options |= _after_verb(verb, words[length:], partial, names)
    return [Candidate(text, help_text) for text, help_text in options.items() if text.startswith(partial)]


def _after_verb(verb: Verb, words: Sequence[str], partial: str, names: Names) -> dict[str, str]:
    if "--" in words or verb.later:
        return {}
    spellings = {spelling: flag for flag in flags_of(verb) for spelling in flag.spellings}
    project = _project_in(words)
    previous = spellings.get(words[-1]) if words else None
    if previous is not None and not previous.is_switch:
        return _values(previous, project, names)
    name, equals, _ = partial.partition("=")
    if equals and name in spellings:
        return {f"{name}={value}": text for value, text in _values(spellings[name], project, names).items()}
    if partial.startswith("-"):
        return {flag.name: flag.help for flag in flags_of(verb) if not flag.later}
    return _words(verb, words, spellings, project, names)


def _project_in(words: Sequence[str]) -> str | None:
    for at, word in enumerate(words):
        if word in ("-p", "--project") and at + 1 < len(words):
            return words[at + 1]
        if word.startswith("--project="):
            return word.partition("=")[2]
    return None


def _values(flag: Flag, project: str | None, names: Names) -> dict[str, str]:
    if flag.choices:
        return dict.fromkeys(flag.choices, "")
    return dict.fromkeys(names(flag.live, project), "") if flag.live else {}


def _words(verb: Verb, words: Sequence[str], spellings: dict[str, Flag], project: str | None, names: Names) -> dict[str, str]:
    typed = _positional(words, spellings)
    if not verb.words:
        return {}
    word: Word = verb.words[min(len(typed), len(verb.words) - 1)]
    if len(typed) >= len(verb.words) and not word.many:
        return {}
    if verb.path == ("help",):
        return _next_verb_words(typed)
    options = word.choices or (names(word.live, project) if word.live else ())
    return {option: "" for option in options if option not in typed}


def _positional(words: Sequence[str], spellings: dict[str, Flag]) -> list[str]:
    typed: list[str] = []
    skip = False
    for word in words:
        flag = spellings.get(word)
        if skip:
            skip = False
        elif flag is not None and not flag.is_switch:
            skip = True
        elif not word.startswith("-"):
            typed.append(word)
    return typed
