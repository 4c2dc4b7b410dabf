"""Arranges what reads each other in columns: each stands right of all that it reads, and the way to one that is farther
off has a lane in each column between, so that it passes no box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SWEEPS = 4
"""How often columns are put into the order of their neighbours. More change little."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a column: the box of a key, or the lane of what leads from its box to columns farther right."""

    key: str
    column: int
    lane: bool = False


@dataclass(frozen=True, slots=True)
class Layers:
    """The places of each column, from the top; the steps from a column to the next; and how many each column lacks."""

    columns: Sequence[Sequence[Place]]
    steps: Sequence[tuple[Place, Place]]
    left_out: Mapping[int, int]


def layered(reads: Mapping[str, Sequence[str]], most: int, most_in_column: int) -> Layers:
    """Arranges the first `most` keys, of which a column has so many at most. What is read comes before what reads it;
    what does not is not shown as read.

    >>> found = layered({"a": [], "b": ["a"], "c": ["a", "b"]}, 9, 9)
    >>> [[place.key + "-" * place.lane for place in column] for column in found.columns]
    [['a'], ['b', 'a-'], ['c']]
    """
    depths: dict[str, int] = {}
    for key, others in reads.items():
        depths[key] = 1 + max((depths.get(other, -1) for other in others), default=-1)
    columns: list[list[Place]] = []
    left_out: dict[int, int] = {}
    boxes: dict[str, Place] = {}
    for key in list(reads)[:most]:
        depth = depths[key]
        columns += [[] for _ in range(depth + 1 - len(columns))]
        if len(columns[depth]) < most_in_column:
            boxes[key] = Place(key, depth)
            columns[depth].append(boxes[key])
        else:
            left_out[depth] = left_out.get(depth, 0) + 1
    steps: dict[tuple[Place, Place], None] = {}
    for key, box in boxes.items():
        for other in reads[key]:
            if other in boxes and depths[other] < box.column:
                lanes = [Place(other, column, True) for column in range(depths[other] + 1, box.column)]
                steps |= dict.fromkeys(zip([boxes[other], *lanes], [*lanes, box], strict=True))
    for place in dict.fromkeys(end for _, end in steps if end.lane):
        columns[place.column].append(place)
    return Layers(_ordered(columns, list(steps)), list(steps), left_out)


def _ordered(columns: Sequence[Sequence[Place]], steps: Sequence[tuple[Place, Place]]) -> list[list[Place]]:
    """Puts each column into the order of what its places lead to or come from, so that few steps cross."""
    before: dict[Place, list[Place]] = {}
    after: dict[Place, list[Place]] = {}
    for start, end in steps:
        before.setdefault(end, []).append(start)
        after.setdefault(start, []).append(end)
    found = [list(column) for column in columns]
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 1  # the last one is: what is read tells best where what reads it belongs
        beside = before if forward else after
        order = range(1, len(found)) if forward else range(len(found) - 2, -1, -1)
        for number in order:
            neighbour = found[number - 1 if forward else number + 1]
            heights = {place: (n + 0.5) / len(neighbour) for n, place in enumerate(neighbour)}
            column = found[number]
            wanted = {
                place: sum(heights[other] for other in beside[place]) / len(beside[place])
                if place in beside
                else (n + 0.5) / len(column)
                for n, place in enumerate(column)
            }
            column.sort(key=wanted.__getitem__)
    return found
