"""The names of the nodes of a PATTERN's output: they say which event filled which variable."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mmqjp.explain.operands import Condition
from mmqjp.explain.reasons import Reason

_NAME = re.compile(r"(\w+)(?:\[(\d+)\])?(?:\.e\d+)?")


@dataclass(frozen=True, slots=True)
class Filler:
    """An event of a match: its variable, or its letter, its place among the events of that, from 0, and the nodes that
    the output has of it, in the order of time: several if it is a published one, which has several events behind it."""

    variable: str
    place: int
    roots: tuple[int | str, ...]


def fillers(nodes: Mapping[str, int | str]) -> list[Filler]:
    """Returns the events of a match, given the nodes of its output, in the order of their first nodes.

    >>> fillers({"p[1]": 0, "q.e1": 3, "p[2]": 1, "q.e2": 0})
    [Filler(variable='p', place=0, roots=(0,)), Filler(variable='q', place=0, roots=(3, 0)), \
Filler(variable='p', place=1, roots=(1,))]
    """
    found: dict[tuple[str, int], tuple[int | str, ...]] = {}
    for name, node in nodes.items():
        match = _NAME.fullmatch(name)
        assert match is not None, "a PATTERN names its nodes so"
        key = match[1], int(match[2] or 1) - 1
        found[key] = (*found.get(key, ()), node)
    return [Filler(*key, roots) for key, roots in found.items()]


def is_pattern(text: str) -> bool:
    """Returns whether the text of a registered query is that of a PATTERN statement."""
    return text.startswith("PATTERN ")


def named_reason(nodes: Mapping[str, int | str]) -> Reason:
    """Returns what an output of a PATTERN says by itself: its variables, in the order of time."""
    named = list(dict.fromkeys(name.partition(".")[0] for name in nodes))
    return Reason(conditions=(Condition((f"{', '.join(named)}: the pattern's conditions hold for these events",)),))
