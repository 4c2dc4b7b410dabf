"""Output documents of PATTERN statements, and what their nodes are called."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any
from xml.sax.saxutils import escape

from mmqjp.answers.patterns.parts import Parts
from mmqjp.queries.pattern_items import Contents, Item, Variable, contents
from pattern_stage.lineage import Origin
from xscl.algebra.event_sequences import ERRORS, NearPattern, Pattern
from xscl.algebra.functions import number_text

RETURN = {"\r": "&#13;"}
"""What XML's reading would make a line break."""


def element(name: str, text: str) -> str:
    """Returns an element with a text."""
    return f"<{name}>{escape(text, RETURN)}</{name}>"


class PatternDocuments:
    """Makes the documents of a pattern. Its attributes are those of `mmqjp.queries.pattern_items.told`."""

    def __init__(self, pattern: Pattern | NearPattern) -> None:
        self._contents: Contents = contents(pattern)
        self.width = len(pattern.schema)
        """How many attributes an output has as an event: these come first."""
        self._errors = -1
        if isinstance(pattern, NearPattern):
            self._errors = [name for name, _ in pattern.schema].index(ERRORS)

    def document(self, texts: Sequence[str | None], numbers: Sequence[int], parts: Parts) -> str:
        """Returns the end of a document, from behind `t1` on, given its attributes as texts, and its parts."""
        if self._contents.items is None:
            children = "".join(self._events(json.loads(texts[self._contents.events] or "[]"), numbers, parts))
        else:
            children = "".join(text for one in self._contents.items for text in _item(one, texts[one.column]))
        errors = f' {ERRORS}="{texts[self._errors]}"' if self._errors >= 0 else ""
        return f"{errors}>{children}</match>" if children else f"{errors}/>"

    def _events(self, values: Sequence[Sequence[Any]], numbers: Sequence[int], parts: Parts) -> Iterator[str]:
        """Yields an element for each event, with its attributes inside."""
        for (_, variable, number), row in zip(self.named(numbers, parts), values, strict=True):
            one = parts.origin(number)
            inside = "".join(
                element(name, _text(value))
                for name, value in zip(variable.attributes, row, strict=True)
                if value is not None
            )
            times = f't0="{one.t0}" t1="{one.t1}"'
            yield f"<{variable.name} {times}>{inside}</{variable.name}>" if inside else f"<{variable.name} {times}/>"

    def named(self, numbers: Sequence[int], parts: Parts) -> Iterator[tuple[str, Variable, int]]:
        """Yields the events of a match, given its parts: of each what it is called, such as `v` or `v[1]`, its
        variable, and its number. Variables come one after the other, or letters in the order of time."""
        counts: dict[str, int] = {}
        for place, number in enumerate(numbers):
            for member in parts.members(number):
                if self._contents.letters:
                    variable = self._contents.letters[parts.origin(member).stream]
                else:
                    variable = self._contents.variables[place]
                count = counts[variable.name] = counts.get(variable.name, 0) + 1
                yield f"{variable.name}[{count}]" if variable.several else variable.name, variable, member

    def roots(self, numbers: Sequence[int], parts: Parts) -> Iterator[tuple[str, Origin]]:
        """Yields the events of documents behind a match, with what their root nodes are called: as their event, or, if
        that is a published one that has several behind it, `v.e1`, `v.e2`, and so on."""
        for name, _, number in self.named(numbers, parts):
            behind = parts.documents(number)
            for place, origin in enumerate(behind, 1):
                yield name if len(behind) == 1 else f"{name}.e{place}", origin


def _item(item: Item, text: str | None) -> Iterator[str]:
    if text is None:
        return
    if not item.several:
        yield element(item.name, text)
        return
    for value in json.loads(text):
        if value is not None:
            yield element(item.name, _text(value))


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else number_text(float(value))
