"""A match of a pattern, and what waits for events of one key."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from pattern_stage.matching.arrivals import Key
from pattern_stage.matching.cell_table import CellTable
from pattern_stage.matching.choose import Candidate
from pattern_stage.matching.nodes import Event


class Match(NamedTuple):
    """A match of some rows."""

    known: int
    t0: int
    t1: int
    rows: int
    events: list[Event]
    components: list[int]
    """Of each event, ascending."""
    key: Key

    def candidate(self) -> Candidate:
        """Returns it as NON OVERLAPPING compares it."""
        return Candidate(self.known, self.t0, self.t1, self.rows, 0, len(self.events), self.key, self._ids)

    def _ids(self) -> list[int]:
        return [event[2] for event in self.events]


class Part:
    """What waits for events of one key."""

    __slots__ = ("absent", "cells", "pending")

    def __init__(self, hashed: Sequence[Collection[int]], negations: int) -> None:
        """`hashed` are the registers of each state of which there is a hash."""
        self.cells = [CellTable(registers) for registers in hashed]
        self.pending = CellTable(hashed[-1])
        """Matches that a negated event may still kill, in cells."""
        self.absent: list[list[tuple[Event, int]]] = [[] for _ in range(negations)]
        """Events of negated variables that matches have to be compared with, each with its rows, by t1."""

    def is_empty(self) -> bool:
        return not (any(self.cells) or self.pending or any(self.absent))


class Roles(NamedTuple):
    """Where the masks of an arrival are: those of begins, of takes (-1 for none) and of negations."""

    begins: tuple[int, ...]
    takes: tuple[int, ...]
    negations: tuple[int, ...]
