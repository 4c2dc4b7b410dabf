"""What is wrong with a script: where, what, and what to do about it; as it is found, and as it is told."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property

from common.errors import InputError
from xscl.algebra.values import Span

LINE_WIDTH = 110
"""How many characters of a source line a rendering shows."""

MOST_SHOWN = 100
"""How many mistakes of a script are rendered. The others are counted."""

_UNPRINTABLE = re.compile("[^\t\x20-\x7e\xa0-\u2027\u202f-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Problem(Exception):
    """Something wrong at a span of a script, found where the script's text is not at hand.

    It never leaves `xscl`: the parser makes an XsclError of it.
    """

    def __init__(self, message: str, span: Span, hint: str = "") -> None:
        super().__init__(message, span, hint)
        self.message = message
        self.span = span
        self.hint = hint

    def __str__(self) -> str:
        return self.message

    def moved(self, by: int) -> Problem:
        """The same so many characters further on."""
        return Problem(self.message, Span(self.span.start + by, self.span.end + by), self.hint)


class Lines:
    """The lines of a script's `text`. Finding the line of one place does not go through all the text before it."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(found.end() for found in re.finditer("\n", self.text))]

    def place(self, at: int) -> tuple[int, int]:
        """The line and the column of a place, both from 1."""
        line = bisect_right(self._starts, at)
        return line, at - self._starts[line - 1] + 1

    def line(self, number: int) -> str:
        """The text of a line, without its end."""
        begin, following = self._starts[number - 1], self._starts[number : number + 1]
        return (self.text[begin : following[0] - 1] if following else self.text[begin:]).rstrip("\r")


class XsclError(InputError, ValueError):
    """One mistake in a script. `str()` is its rendering.

    `message` says what is wrong, and `hint` what to do ("" if nothing is known). `span` is its place in the script,
    `line` and `column` (both from 1) are those of its start, and `source` is the text of that line.
    """

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
        """The part of the source line that is shown, and white space as wide as what is left of the column in it."""
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


LACKS_EVENTS = "there are no events "
"""So begins what is said of events that a script does not have."""


class XsclErrors(InputError, ValueError):
    """All mistakes of a script, as `errors`, in the order of their places. `str()` renders them one after another, the
    first 100 of very many."""

    def __init__(self, errors: Iterable[XsclError]) -> None:
        self.errors = tuple(sorted(errors, key=lambda error: (error.span.start, error.span.end)))
        super().__init__(self.errors)

    @property
    def lacks_events(self) -> bool:
        """Whether a script only reads events that it does not have: a store may have them."""
        return all(error.message.startswith(LACKS_EVENTS) for error in self.errors)

    def render(self, file: str | None = None) -> str:
        """The renderings of the errors, as `rendered` gives them."""
        return rendered(self.errors, file)

    def __str__(self) -> str:
        return self.render()


def rendered(errors: Sequence[XsclError], file: str | None = None, kind: str = "error", noun: str = "mistake") -> str:
    """The renderings of errors, or of what looks like one, one after another, with `file` before line and column. If
    there are more than MOST_SHOWN, the others are counted."""
    shown = [error.render(file, kind) for error in errors[:MOST_SHOWN]]
    more = len(errors) - len(shown)
    return "\n".join(shown + ([f"and {more:,} more {noun}{'s' if more > 1 else ''}"] if more else []))
