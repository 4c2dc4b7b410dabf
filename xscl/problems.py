"""The mistakes of a script: place, message and hint; as found (`Problem`), and as reported (`XsclError`)."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cached_property

from common.errors import InputError
from xscl.algebra.values import Span

LINE_WIDTH = 110
"""Maximum number of characters of a source line in a rendering."""

MOST_SHOWN = 100
"""Maximum number of rendered mistakes. The others are counted."""

_UNPRINTABLE = re.compile("[^\t\x20-\x7e\xa0-\u2027\u202f-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Problem(Exception):
    """A mistake at a span, found without the script's text. Never leaves `xscl`, whose parser raises XsclError."""

    def __init__(self, message: str, span: Span, hint: str = "") -> None:
        super().__init__(message, span, hint)
        self.message = message
        self.span = span
        self.hint = hint

    def __str__(self) -> str:
        return self.message

    def moved(self, by: int) -> Problem:
        return Problem(self.message, Span(self.span.start + by, self.span.end + by), self.hint)


class Lines:
    """The lines of a script's `text`, with fast look-up of a place's line."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(found.end() for found in re.finditer("\n", self.text))]

    def place(self, at: int) -> tuple[int, int]:
        """(line, column), both from 1."""
        line = bisect_right(self._starts, at)
        return line, at - self._starts[line - 1] + 1

    def line(self, number: int) -> str:
        begin, following = self._starts[number - 1], self._starts[number : number + 1]
        return (self.text[begin : following[0] - 1] if following else self.text[begin:]).rstrip("\r")


class XsclError(InputError, ValueError):
    """A mistake in a script. `str()` is its rendering, `message` says what is wrong, `hint` the remedy ("" if unknown).
    `span` is its place, `line` and `column` (both from 1) are those of its start, `source` is the text of that line."""

    def __init__(self, problem: Problem, lines: Lines) -> None:
        super().__init__(problem, lines)
        self.message = problem.message
        self.hint = problem.hint
        self.span = problem.span
        self.line, self.column = lines.place(self.span.start)
        self.source = lines.line(self.line)

    def render(self, file: str | None = None, kind: str = "error") -> str:
        """The place, the kind and the message, the source line, carets below the span, and the hint."""
        place = f"{file}:" if file else ""
        source, pad = self._shown()
        width = max(1, min(self.span.end - self.span.start, len(source) - len(pad)))
        lines = [f"{place}{self.line}:{self.column}: {kind}: {self.message}", f"  {source}", f"  {pad}{'^' * width}"]
        if self.hint:
            lines.append(f"help: {self.hint}")
        return "\n".join(_UNPRINTABLE.sub("\ufffd", line) for line in lines)

    def _shown(self) -> tuple[str, str]:
        source, offset = self.source, self.column - 1
        if len(source) > LINE_WIDTH:
            first = max(0, min(offset - LINE_WIDTH // 2, len(source) - LINE_WIDTH))
            head, tail = "..." if first else "", "..." if first + LINE_WIDTH < len(source) else ""
            source = head + source[first : first + LINE_WIDTH] + tail
            offset += len(head) - first
        # Tabs stay tabs, so that the caret is below its character however wide they are.
        return source, "".join("\t" if char == "\t" else " " for char in source[:offset])

    def __str__(self) -> str:
        return self.render()


EVENT_ADVICE = (
    "compute over events: DEFINE EVENT E FROM S//item->i (x := number(i/price)); FROM AGGREGATE{sum(x) AS y OVER 1 d} E"
)
"""The hint at aggregates in queries over documents."""

LACKS_EVENTS = "there are no events "
"""Prefix of messages about events that a script lacks."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint with the closest of the known names; "" if none is close."""
    close = get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]}?" if close else ""


class XsclErrors(InputError, ValueError):
    """All mistakes of a script, as `errors`, each once, in the order of their places. `str()` renders the first 100."""

    def __init__(self, errors: Iterable[XsclError]) -> None:
        distinct = {(error.span.start, error.span.end, error.message): error for error in errors}
        self.errors = tuple(distinct[key] for key in sorted(distinct, key=lambda key: key[:2]))
        super().__init__(self.errors)

    def render(self, file: str | None = None) -> str:
        return rendered(self.errors, file)

    def __str__(self) -> str:
        return self.render()


def rendered(errors: Sequence[XsclError], file: str | None = None, kind: str = "error", noun: str = "mistake") -> str:
    """Renders errors or the like, with `file` before line and column. Past MOST_SHOWN, the others are counted."""
    shown = [error.render(file, kind) for error in errors[:MOST_SHOWN]]
    more = len(errors) - len(shown)
    return "\n".join(shown + ([f"and {more:,} more {noun}{'s' if more > 1 else ''}"] if more else []))
