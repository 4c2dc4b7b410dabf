"""The cells of a state by what their runs remember, and, where an edge asks a register to equal something of the event,
by the value in it: so an event finds the runs that it may concern, without a look at the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from pattern_stage.matching.cells import Cell

Name = tuple[Any, ...]


class Equal(NamedTuple):
    """What an edge asks: that a register has the value in a slot of the event."""

    register: int
    slot: int


class CellTable(dict[Name, Cell]):
    """Cells by name. `registers` are those of which there is a hash."""

    __slots__ = ("_by",)

    def __init__(self, registers: Iterable[int]) -> None:
        super().__init__()
        self._by: dict[int, dict[Any, dict[Name, Cell]]] = {register: {} for register in registers}

    def __setitem__(self, name: Name, cell: Cell) -> None:
        super().__setitem__(name, cell)
        for register, by in self._by.items():
            by.setdefault(cell.registers[register], {})[name] = cell

    def __delitem__(self, name: Name) -> None:
        cell = self[name]
        super().__delitem__(name)
        for register, by in self._by.items():
            same = by[cell.registers[register]]
            del same[name]
            if not same:
                del by[cell.registers[register]]

    def asked(self, edges: Sequence[Equal | None], event: Sequence[Any]) -> Collection[Cell]:
        """Returns the cells that have what one of some edges asks of an event; all, if one asks no equality."""
        found: dict[Name, Cell] = {}
        for number, equal in enumerate(edges):
            if equal is None:
                return self.values()
            same = self._by[equal.register].get(event[equal.slot])
            if same:
                if number == len(edges) - 1 and not found:
                    return same.values()
                found |= same
        return found.values()
