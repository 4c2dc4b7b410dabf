"""Says how the tree of a statement is made again with other literals."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from xscl.algebra.expressions import Number, Span, String
from xscl.builder import unquoted
from xscl.event_expressions import Percentage
from xscl.syntax import Window
from xscl.windows import window_us

Fill = Callable[[Sequence[str]], Any]
"""Makes a part of a tree, given a statement's literals."""

_UNIT = re.compile(r"\s*([^\W\d][\w.\-]*)")


class Recipe:
    """Says how a tree is made again with other literals. `met` are the slots for literals found in it, and `kinds`
    says what they are: "string", "number", "percentage", or the unit of a window."""

    def __init__(self, slots: dict[int, tuple[int, Span]], text: str) -> None:
        self._slots, self._text = slots, text
        self.met: set[int] = set()
        self.kinds: dict[int, str] = {}

    def of(self, node: Any) -> Fill | None:
        """What makes a node with other literals; None if it holds none."""
        match node:
            case String(span=span) if self._is_slot(span):
                return self._string(span)
            case Number(span=span) if self._is_slot(span):
                return self._number(span)
            case Percentage(span=Span(start, end)) if self._is_slot(Span(start, end - 1)):
                slot = self._slot(Span(start, end - 1))
                self.kinds[slot] = "percentage"
                return lambda literals: Percentage(literals[slot])
            case Window(us=us, span=span) if us is not None and span.start in self._slots:
                return self._window(span)
            case tuple():
                return _rebuilt(lambda *parts: parts, node, list(map(self.of, node)))
        if is_dataclass(node) and not isinstance(node, Span | type):
            parts = [getattr(node, field.name) for field in fields(node)]
            return _rebuilt(type(node), parts, list(map(self.of, parts)))
        return None

    def _is_slot(self, span: Span) -> bool:
        return span.start in self._slots and self._slots[span.start][1] == span

    def _slot(self, span: Span) -> int:
        slot = self._slots[span.start][0]
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
        found = _UNIT.match(self._text, self._slots[span.start][1].end, span.end)
        unit = self.kinds[slot] = found[1] if found else "s"
        return lambda literals: Window(window_us(literals[slot], unit, span))


def _rebuilt(make: Callable[..., Any], parts: Sequence[Any], fills: Sequence[Fill | None]) -> Fill | None:
    """What calls `make` with the parts, those made anew that hold literals; None if none does."""
    changing = [(place, fill) for place, fill in enumerate(fills) if fill is not None]
    if not changing:
        return None

    def fill_in(literals: Sequence[str]) -> Any:
        values = list(parts)
        for place, fill in changing:
            values[place] = fill(literals)
        return make(*values)

    return fill_in
