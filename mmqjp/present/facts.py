"""The facts behind a match in words: the values that were joined, other conditions, and the selected values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from mmqjp.explain.operands import Condition, JoinedValue, Operand
from mmqjp.explain.reasons import Timing
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
    return list(dict.fromkeys(found)) or [(Word("plain", FILTERED),)]


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
