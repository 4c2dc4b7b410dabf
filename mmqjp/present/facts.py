"""The facts behind a match in words: the values that were joined, other conditions, and the selected values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from feeds.dates import iso_utc
from mmqjp.explain.operands import Condition, JoinedValue, Operand
from mmqjp.explain.reasons import Timing
from mmqjp.explain.retrace.filled import Filling, Seen
from mmqjp.explain.retrace.said import value_text
from mmqjp.explain.terms import duration_text, window_text
from mmqjp.present.item import clipped, line
from mmqjp.present.match import Match

MOST_CHARACTERS = 160
"""Longer values are cut short, in characters."""

UNKNOWN = "the reason is not known: a document is no longer stored, or too large to search"
OF_EVENTS = "the query's conditions hold for these events, in this order"
FILTERED = "passes the filter"


class Word(NamedTuple):
    """A part of a fact: the name of an element or function, a value of a document, or what stands between them, with
    its spaces."""

    kind: Literal["name", "value", "plain"]
    text: str


Fact = tuple[Word, ...]


def why(match: Match) -> list[Fact]:
    """Returns what made a match, each fact once."""
    if match.reason is None:
        return [(Word("plain", OF_EVENTS if _is_of_events(match) else UNKNOWN),)]
    found = [*map(_equality, match.reason.joined), *map(_condition, match.reason.conditions)]
    if not found:
        found = [*map(_condition, match.reason.filters)]
    return list(dict.fromkeys(found)) or [(Word("plain", OF_EVENTS if _is_of_events(match) else FILTERED),)]


def _is_of_events(match: Match) -> bool:
    """Returns whether an output without a reason names its nodes like that of an event query."""
    nodes = match.output.nodes
    return bool(nodes) and list(nodes) == [f"e{place}" for place in range(1, len(nodes) + 1)]


def filters(match: Match) -> list[Fact]:
    """Returns the conditions on single documents that held, each once, if they were asked for."""
    return list(dict.fromkeys(map(_condition, () if match.reason is None else match.reason.filters)))


def timings(match: Match) -> list[Fact]:
    """Returns how far apart the inputs of the joins were, if it was asked for."""
    return [_timing(one) for one in (() if match.reason is None else match.reason.timings)]


def _timing(timing: Timing) -> Fact:
    op = Word("name", timing.op)
    if timing.distance:
        far = Word("plain", f"{duration_text(timing.distance)} from the first to the last; ")
    else:
        far = Word("plain", "at the same time; ")
    if timing.window is None:
        return far, op, Word("plain", " allows any time")
    return far, op, Word("plain", f" allows {window_text(timing.window)}")


def values(match: Match) -> list[tuple[str, str]]:
    """Returns the selected values that do not stand in the items already, as pairs of name and text."""
    known = {text for item in match.items for text in (item.title, item.link)}
    return [(name, text) for name, text in match.selected if text not in known]


def plain(fact: Fact) -> str:
    """Returns a fact as text: `title "A" = "a" by lower-case`."""
    return "".join(f'"{word.text}"' if word.kind == "value" else word.text for word in fact)


def events(filling: Filling) -> Iterator[Fact]:
    """Yields the events that filled the parts of an event query, with their attributes: each in a line, which says when
    it ended if there are several."""
    for part in filling.parts:
        if part.count == 1:
            yield Word("name", part.name), *_attributes(part.events[0])
            continue
        more = part.count - len(part.events)
        yield Word("name", part.name), Word("plain", f": {part.count:,} events{', these among them' if more else ''}")
        for seen in part.events:
            yield Word("plain", iso_utc(seen.t1)), *_attributes(seen)


def _attributes(seen: Seen) -> Iterator[Word]:
    for number, (name, value) in enumerate(seen.attributes):
        yield Word("plain", ", " if number else "  ")
        yield Word("name", name)
        yield _SPACE
        if isinstance(value, str):
            yield Word("value", clipped(line(value), MOST_CHARACTERS))
        else:
            yield Word("plain", value_text(value))


def spans(filling: Filling) -> Iterator[Fact]:
    """Yields how long the parts of an event query took, and may take."""
    for span in filling.spans:
        gap = "" if span.gap is None else f", GAP {duration_text(span.gap)}"
        limit = "for any time" if span.limit is None else f"at most {window_text(span.limit)}"
        yield Word("name", span.part), Word("plain", f": DUR {duration_text(span.duration)}, {limit}{gap}")


def _equality(joined: JoinedValue) -> Fact:
    left, right = joined.left, joined.right
    name, value = _name(left.name), Word("value", _short(left))
    if left.text == right.text:
        if left.name == right.name:
            return Word("plain", "same "), name, _SPACE, value
        return name, Word("plain", " = "), _name(right.name), _SPACE, value
    other = () if left.name == right.name else (_name(right.name), _SPACE)
    return name, _SPACE, value, Word("plain", " = "), *other, Word("value", _short(right)), *_how(left, right)


def _how(left: Operand, right: Operand) -> Iterator[Word]:
    """Yields the functions that made two texts equal, and the value if neither text shows it."""
    if functions := dict.fromkeys((*left.functions, *right.functions)):
        yield Word("plain", " by ")
        yield _name(", ".join(functions))
    if line(left.value).casefold() not in (line(left.text).casefold(), line(right.text).casefold()):
        yield Word("plain", ": ")
        yield Word("value", clipped(line(left.value), MOST_CHARACTERS))


def _condition(condition: Condition) -> Fact:
    words: list[Word] = []
    for part in condition.parts:
        if isinstance(part, str):
            words.append(Word("plain", "".join(char if char.isprintable() else "\ufffd" for char in part)))
            continue
        words.append(_name(part.name))
        if len(part.text) <= MOST_CHARACTERS and not _is_stated(
            part.text, condition
        ):  # the content of an item would hide everything else
            words += [_SPACE, Word("value", _short(part))]
    return tuple(words)


def _is_stated(text: str, condition: Condition) -> bool:
    """Whether a condition says no more than that a node has this text."""
    return condition.parts[1:] == (' = "{}"'.format(text.replace('"', '""')),)


def _name(text: str) -> Word:
    return Word("name", text)


_SPACE = Word("plain", " ")


def _short(operand: Operand) -> str:
    return clipped(line(operand.text), MOST_CHARACTERS)
