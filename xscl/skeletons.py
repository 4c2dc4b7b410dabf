"""Reuses what was parsed: statements that differ only in their constants and PUBLISH names share a skeleton.

A skeleton is the text without string and number literals and PUBLISH name. It is parsed once, when it comes a second
time; its tree is filled in for the others. This is sound because the lexer gives them the same tokens, the grammar
ignores the contents of literals, and the builder changes none but windows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

from xscl.algebra.values import Number, Span, String
from xscl.builder import unquoted
from xscl.event_forms import RESERVED
from xscl.syntax import Percentage, Window
from xscl.text import KEYWORDS, window_us

MAX_SKELETONS = 5_000
"""Maximum number of cached skeletons; the cache is cleared when it is full."""

_PUBLISHED = re.compile(
    r"[ \t\r\n]+publish[ \t\r\n]+"
    rf"(?!(?:{'|'.join(sorted(RESERVED.union(KEYWORDS)))})[ \t\r\n]*\Z)"
    r"([a-z_][a-z_0-9]*)[ \t\r\n]*\Z",
    re.ASCII | re.IGNORECASE,
)
"""The end of a statement with a simple name, which is no keyword."""

Fill = Callable[[Sequence[Any]], Any]
"""Builds a part of a tree from the literals of a statement, or from their values."""

S = TypeVar("S")


def unpublished(text: str) -> tuple[str, str | None]:
    """A statement without PUBLISH, and the name that it PUBLISHes."""
    body, *_ = text.rsplit(None, 2) or [""]
    found = _PUBLISHED.match(text, len(body))
    return (text, None) if found is None else (body, found[1])


class Skeletons(Generic[S]):
    """What is made of each skeleton's first text. `literal` finds strings, its first group, and numbers, its second."""

    def __init__(self, literal: re.Pattern[str], make: Callable[[str], S | None]) -> None:
        self._literal, self._make = literal, make
        self._found: dict[tuple[object, ...], S | None] = {}
        self._unused: dict[tuple[object, ...], str] = {}

    def of(self, text: str) -> tuple[S | None, list[str]]:
        """What was made, if the skeleton of `text` is cached and can be used for other texts; and the literals."""
        parts = self._literal.split(text)
        strings, numbers = parts[1::3], parts[2::3]
        literals = [number if string is None else string for string, number in zip(strings, numbers, strict=True)]
        key = (*parts[::3], *[string is None for string in strings])
        if key in self._unused:
            # What makes other trees takes long to find, and most statements may have a skeleton of their own.
            self._found[key] = self._make(self._unused.pop(key))
        elif key not in self._found:
            if len(self._found) + len(self._unused) >= MAX_SKELETONS:
                self._found.clear()
                self._unused.clear()
            self._unused[key] = text
        return self._found.get(key), literals


_UNIT = re.compile(r"\s*([^\W\d][\w.\-]*)")


class Recipe:
    """Rebuilds a tree with other literals. `met` are its slots for literals, and `kinds` their kinds: "string",
    "number", "percentage", or the unit of a window."""

    def __init__(self, slots: dict[int, tuple[int, Span]], text: str) -> None:
        self.slots, self._text = slots, text
        self.met: set[int] = set()
        self.kinds: dict[int, str] = {}

    def of(self, node: Any) -> Fill | None:
        """A builder of a node with other literals; None if it has none."""
        match node:
            case String(span=span) if self._is_slot(span):
                return self._string(span)
            case Number(span=span) if self._is_slot(span):
                return self._number(span)
            case Percentage(span=Span(start, end)) if self._is_slot(Span(start, end - 1)):
                slot = self._slot(Span(start, end - 1))
                self.kinds[slot] = "percentage"
                return lambda literals: Percentage(literals[slot])
            case Window(us=us, span=span) if us is not None and span.start in self.slots:
                return self._window(span)
        return rebuilt(node, self.of)

    def _is_slot(self, span: Span) -> bool:
        return span.start in self.slots and self.slots[span.start][1] == span

    def _slot(self, span: Span) -> int:
        slot = self.slots[span.start][0]
        self.met.add(slot)
        return slot

    def _string(self, span: Span) -> Fill:
        slot = self._slot(span)
        self.kinds[slot] = "string"
        return lambda literals: String(unquoted(literals[slot]))

    def _number(self, span: Span) -> Fill:
        slot = self._slot(span)
        self.kinds[slot] = "number"
        return lambda literals: Number(literals[slot])

    def _window(self, span: Span) -> Fill:
        slot = self._slot(span)
        found = _UNIT.match(self._text, self.slots[span.start][1].end, span.end)
        unit = self.kinds[slot] = found[1] if found else "s"
        return lambda literals: Window(window_us(literals[slot], unit, span))


def recipe_of(tree: Any, text: str, literal: re.Pattern[str]) -> tuple[Recipe, Fill] | None:
    """What makes other trees of a text's tree; None if the lexer found other literals than `literal` does."""
    places = [Span(*found.span()) for found in literal.finditer(text)]
    recipe = Recipe({place.start: (slot, place) for slot, place in enumerate(places)}, text)
    fill = recipe.of(tree) or (lambda literals: tree)
    return (recipe, fill) if recipe.met == set(range(len(places))) else None


def rebuilt(node: Any, fill_of: Callable[[Any], Fill | None]) -> Fill | None:
    """A builder of a tuple or a dataclass with other parts; None if none of its parts has one."""
    make: Callable[..., Any]
    if isinstance(node, tuple):
        make, parts = (lambda *made: made), list(node)
    elif is_dataclass(node) and not isinstance(node, Span | type):
        make, parts = type(node), [getattr(node, field.name) for field in fields(node)]
    else:
        return None
    changing = [(place, fill) for place, part in enumerate(parts) if (fill := fill_of(part)) is not None]
    if not changing:
        return None

    def fill_in(literals: Sequence[Any]) -> Any:
        values = list(parts)
        for place, fill in changing:
            values[place] = fill(literals)
        return make(*values)

    return fill_in
