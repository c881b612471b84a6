"""A line of text into words as a POSIX shell would: quotes, escapes, continuations, comments, variables. Nothing is ever executed."""

from __future__ import annotations

import re
from collections.abc import Callable

from hotdesk_api.errors import Invalid

Lookup = Callable[[str], str | None]
_CONTINUED = re.compile(r"\\[ \t]*\r?\n")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_PYTHON = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NOT_HERE = {"|": "a pipe", ">": "a redirection", "<": "a redirection", ";": "a second command", "&": "the background", "`": "a command"}
PROGRAM_WORDS = frozenset({"runai", "hotdesk", "%runai", "%%runai", "!runai", "!hotdesk", "$", "!", "%hotdesk"})


def _unset(_name: str) -> None:
    return None


class _Splitter:
    """One pass over the line. `variable` answers `$NAME`, `python` answers `{name}`; None leaves the text as it is."""

    def __init__(self, line: str, variable: Lookup, python: Lookup) -> None:
        self.line = _CONTINUED.sub(" ", line).rstrip("\\\n")
        self.variable, self.python = variable, python
        self.at = 0
        self.words: list[str] = []
        self.word: list[str] | None = None

    def split(self) -> list[str]:
        while self.at < len(self.line):
            self._step(self.line[self.at])
        self._end_word()
        return self.words

    def _end_word(self) -> None:
        if self.word is not None:
            self.words.append("".join(self.word))
        self.word = None

    def _step(self, char: str) -> None:
        if char.isspace():
            self._end_word()
            self.at += 1
        elif char == "#" and self.word is None:
            end = self.line.find("\n", self.at)
            self.at = len(self.line) if end < 0 else end
        elif char == "'":
            end = self._closing(char)
            self._take(self.line[self.at + 1 : end], end + 1)
        elif char == '"':
            self._double_quoted()
        elif char == "\\":
            self._take(self.line[self.at + 1 : self.at + 2], self.at + 2)
        elif char in _NOT_HERE:
            raise Invalid(
                f"{char} ({_NOT_HERE[char]}) works in a shell, not after %runai.",
                value=char,
                next_step="Put it in quotes if it belongs to a value, or run the line in a shell: `!runai …`.",
            )
        else:
            self._take(*self._expanded(char))

    def _take(self, text: str, next_at: int) -> None:
        if self.word is None:
            self.word = []
        self.word.append(text)
        self.at = next_at

    def _expanded(self, char: str) -> tuple[str, int]:
        """The text for what stands here, and where to go on."""
        for first, pattern, lookup in (("$", _VARIABLE, self.variable), ("{", _PYTHON, self.python)):
            match = pattern.match(self.line, self.at) if char == first else None
            value = lookup(next(group for group in match.groups() if group)) if match else None
            if match and value is not None:
                return value, match.end()
        return char, self.at + 1

    def _double_quoted(self) -> None:
        end = self._closing('"')
        self._take("", self.at + 1)
        while self.at < end:
            char = self.line[self.at]
            if char == "\\" and self.line[self.at + 1] in '"\\$`':
                self._take(self.line[self.at + 1], self.at + 2)
            else:
                self._take(*self._expanded(char))
        self.at = end + 1

    def _closing(self, quote: str) -> int:
        at = self.at + 1
        while at < len(self.line) and self.line[at] != quote:
            at += 2 if quote == '"' and self.line[at] == "\\" else 1
        if at >= len(self.line):
            raise Invalid(
                f"The quote {quote} is opened and never closed.", value=quote, next_step="Close it, or escape it as \\" + quote + "."
            )
        return at


def split_line(line: str, *, variable: Lookup = _unset, python: Lookup = _unset) -> list[str]:
    """The words of a line copied from a shell, without a leading `!runai`, `runai` or prompt. Raises Invalid for pipes and open quotes."""
    words = _Splitter(line, variable, python).split()
    while words and words[0] in PROGRAM_WORDS:
        words.pop(0)
    return words
