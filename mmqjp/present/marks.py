"""Marks in titles: which parts of an item's title are values that were joined."""

from __future__ import annotations

from mmqjp.present.item import line
from mmqjp.present.match import Match

SHORTEST = 3
"""Shorter values are only marked if they are the whole title, in characters."""


def marked_title(match: Match, place: int) -> list[tuple[str, bool]]:
    """Returns the title of the item at a place in parts, each with whether it is marked."""
    title = match.items[place].title
    joined = () if match.reason is None else match.reason.joined
    operands = (operand for pair in joined for operand in (pair.left, pair.right))
    texts = {line(operand.text) for operand in operands if operand.document in (None, place)}
    if title in texts:
        return [(title, True)]
    found = [(start, start + len(text)) for text in texts if len(text) >= SHORTEST if (start := title.find(text)) >= 0]
    parts: list[tuple[str, bool]] = []
    end = 0
    for start, stop in sorted(found):
        if start >= end:
            parts += [(title[end:start], False), (title[start:stop], True)]
            end = stop
    return [part for part in [*parts, (title[end:], False)] if part[0]]
