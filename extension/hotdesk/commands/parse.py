"""Words into a verb with its flags, by the table. As in Run:ai (pflag) a flag's value is the next word, whatever it looks like."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hotdesk_api.errors import Invalid

from hotdesk.commands.flags import EVERYWHERE, Flag, Verb
from hotdesk.commands.table import VERBS, flags_of

_LONG_DASH = re.compile(r"^[\u2010-\u2015](?=\w)(.*)$", re.DOTALL)
_TRUE = frozenset({"true", "1", "yes"})
_FALSE = frozenset({"false", "0", "no"})


@dataclass(frozen=True, slots=True)
class Typed:
    """What was typed. Read flags with `text`, `every`, `on`; `rest` is what stood after ` -- ` (None: there was no ` -- `)."""

    verb: Verb
    words: tuple[str, ...] = ()
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rest: tuple[str, ...] | None = None
    argv: tuple[str, ...] = ()

    def text(self, name: str) -> str | None:
        values = self.flags.get(name)
        return values[-1] if values else None

    def every(self, name: str) -> tuple[str, ...]:
        return self.flags.get(name, ())

    def on(self, name: str) -> bool:
        return self.text(name) == "true"


def closest(word: str, valid: Iterable[str]) -> list[str]:
    """All valid words, those most like this one first."""
    known = list(dict.fromkeys(valid))
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    return near + sorted(set(known) - set(near))


def unknown(kind: str, word: str, valid: Sequence[str], *, later: Sequence[str] = (), next_step: str | None = None) -> Invalid:
    """The error for a word that is not one of the valid ones: names it, the likely one (`later` ones as well), and lists all."""
    ordered = closest(word, valid)
    near = difflib.get_close_matches(word, [*ordered, *later], n=1, cutoff=0.6)
    guess = f" Did you mean {near[0]}?" if near else ""
    return Invalid(f"{word} is not {kind}.{guess} Valid: {', '.join(ordered)}.", field=kind, value=word, next_step=next_step)


def find_verb(words: Sequence[str]) -> tuple[Verb, int]:
    """The verb these words begin with, and how many words it took."""
    by_path = {path: verb for verb in VERBS for path in verb.paths}
    for length in (2, 1):
        verb = by_path.get(tuple(words[:length]))
        if verb and len(words) >= length:
            return verb, length
    starts = [path[0] for path in by_path]
    if words and words[0] in starts:
        seconds = [path[1] for path in by_path if path[0] == words[0] and len(path) > 1]
        if len(words) > 1:
            raise unknown(f"something `{words[0]}` can do", words[1], seconds)
        raise Invalid(f"`{words[0]}` needs a word after it: {', '.join(seconds)}.", next_step=f"For example `{words[0]} {seconds[0]}`.")
    raise unknown("a command", words[0], [path[0] for verb in VERBS if not verb.later for path in verb.paths], next_step="See `help`.")


class _Reader:
    """Reads the words of one verb."""

    def __init__(self, verb: Verb, tokens: Sequence[str]) -> None:
        self.verb = verb
        self.by_spelling = {spelling: flag for flag in flags_of(verb) for spelling in flag.spellings}
        cut = list(tokens).index("--") if "--" in tokens else None
        self.rest = None if cut is None else tuple(tokens[cut + 1 :])
        self.tokens = list(tokens if cut is None else tokens[:cut])
        self.flags: dict[str, list[str]] = {}
        self.words: list[str] = []

    def read(self) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]], tuple[str, ...] | None]:
        while self.tokens:
            token = self._straightened(self.tokens.pop(0))
            if token.startswith("--"):
                self._long(token)
            elif token.startswith("-") and len(token) > 1:
                self._short(token)
            elif self._starts_raw():
                self.rest = (token, *self.tokens, *(("--", *self.rest) if self.rest is not None else ()))
                self.tokens = []
            else:
                self.words.append(token)
        return tuple(self.words), {name: tuple(values) for name, values in self.flags.items()}, self.rest

    def _straightened(self, token: str) -> str:
        """Documents turn `--flag` into a long dash; a word that begins with one and is else a flag of ours is that flag."""
        match = _LONG_DASH.match(token)
        dashed = (
            next((dash + match[1] for dash in ("--", "-") if (dash + match[1]).partition("=")[0] in self.by_spelling), None)
            if match
            else None
        )
        return dashed or token

    def _starts_raw(self) -> bool:
        """`exec NAME ls -l`: from the word that is the command on, nothing is ours."""
        at = len(self.words)
        return at < len(self.verb.words) and self.verb.words[at].raw

    def _long(self, token: str) -> None:
        spelling, equals, value = token.partition("=")
        flag = self.by_spelling.get(spelling)
        if flag is None:
            raise self._unknown(spelling)
        self._take(flag, spelling, value if equals else None)

    def _short(self, token: str) -> None:
        """`-g 1`, `-g1`, `-g=1`, and several switches in one word (`-it`)."""
        letters = token[1:]
        while letters:
            flag = self.by_spelling.get("-" + letters[0])
            if flag is None:
                raise self._unknown("-" + letters[0])
            spelling, letters = "-" + letters[0], letters[1:]
            if flag.is_switch and not letters.startswith("="):
                self._take(flag, spelling, None)
                continue
            self._take(flag, spelling, letters.removeprefix("=") if letters else None)
            return

    def _take(self, flag: Flag, spelling: str, value: str | None) -> None:
        switch = flag.is_switch or (flag.unless_rest and self.rest is not None and (value is None or value.lower() in _TRUE | _FALSE))
        if switch:
            value = self._switch(flag, spelling, value)
        elif value is None:
            value = self._implied(flag) or self._next(flag, spelling)
        if flag.choices and value not in flag.choices:
            raise unknown(f"a value of {spelling}", value, flag.choices)
        if flag.repeat:
            self.flags.setdefault(flag.key, []).append(value)
        else:
            self.flags[flag.key] = [value]

    def _implied(self, flag: Flag) -> str:
        """A flag that can do without a value takes the next word only if that is one of its values."""
        follows = bool(self.tokens) and self.tokens[0] in flag.choices
        return self.tokens.pop(0) if flag.implied and follows else flag.implied

    def _switch(self, flag: Flag, spelling: str, value: str | None) -> str:
        if value is None or value.lower() in _TRUE:
            return "true"
        if value.lower() in _FALSE:
            return "false"
        raise Invalid(
            f"{spelling} is a switch and takes no value such as {value}.", field=flag.key, value=value, next_step=f"Write {spelling}."
        )

    def _next(self, flag: Flag, spelling: str) -> str:
        verbatim = flag.repeat or flag.unless_rest
        if not self.tokens or (not verbatim and self.tokens[0].partition("=")[0] in self.by_spelling):
            found = f", but the next word is {self.tokens[0]}" if self.tokens else ""
            raise Invalid(
                f"{spelling} needs a value ({flag.value}){found}.", field=flag.key, next_step=f"Write {spelling} {flag.value}: {flag.help}."
            )
        return self.tokens.pop(0)

    def _unknown(self, spelling: str) -> Invalid:
        return unknown(
            f"a flag of `{self.verb.title}`",
            spelling,
            [flag.name for flag in flags_of(self.verb) if not flag.later],
            later=[flag.name for flag in flags_of(self.verb) if flag.later],
            next_step=f"See `help {self.verb.title}`.",
        )


def _checked_words(verb: Verb, words: tuple[str, ...], rest: tuple[str, ...] | None) -> None:
    takes_many = any(word.many for word in verb.words)
    room = sum(1 for word in verb.words if not word.raw)
    if len(words) > room and not takes_many:
        extra = words[room]
        raise Invalid(
            f"`{verb.title}` does not know what to do with {extra}.",
            value=extra,
            next_step=f"Is a flag missing before it? See `help {verb.title}`.",
        )
    for at, word in enumerate(verb.words):
        missing = rest is None or not rest if word.raw else len(words) <= at
        if word.required and missing:
            example = f" For example `{verb.examples[0]}`." if verb.examples else ""
            raise Invalid(f"`{verb.title}` needs {word.name}: {word.help}.", field=word.name, next_step=example.strip() or None)
        if word.choices and at < len(words) and words[at] not in word.choices:
            raise unknown(f"a {word.name.lower()} of `{verb.title}`", words[at], word.choices)


def _leading_flags(argv: list[str]) -> list[str]:
    """Flags of every verb may stand before it (`runai --url … list`, `runai -p team-a list`); they are moved behind it."""
    valued = {spelling: not flag.is_switch for flag in EVERYWHERE for spelling in flag.spellings} | {"-p": True, "--project": True}
    moved: list[str] = []
    while argv and argv[0].partition("=")[0] in valued:
        takes_next = valued[argv[0].partition("=")[0]] and "=" not in argv[0]
        moved += argv[: 2 if takes_next else 1]
        argv = argv[2 if takes_next else 1 :]
    if moved and not argv:
        return ["help"] if {"-h", "--help"} & set(moved) else [*moved]
    verb_length = find_verb(argv)[1] if argv else 0
    return [*argv[:verb_length], *moved, *argv[verb_length:]]


def parse(argv: Sequence[str]) -> Typed:
    """Read a whole line's words. Raises Invalid with what was wrong and what is valid; nothing is looked up on the cluster."""
    tokens = _leading_flags(list(argv))
    if not tokens or tokens[0].startswith("-"):
        tokens = ["help"]
    verb, length = find_verb(tokens)
    if verb.later:
        return Typed(verb, argv=tuple(argv))
    words, flags, rest = _Reader(verb, tokens[length:]).read()
    if flags.get("help"):
        return Typed(find_verb(["help"])[0], words=verb.path, argv=tuple(argv))
    for flag in flags_of(verb):
        if flag.later and flags.get(flag.key, ("false",)) != ("false",):
            raise Invalid(
                f"{flag.name} is for {flag.later}, which this version of Hotdesk does not have yet. Nothing was submitted.",
                field=flag.key,
                next_step="Leave the flag out.",
            )
    _checked_words(verb, words, rest)
    return Typed(verb, words, flags, rest, tuple(argv))
