"""How much stage 1 keeps: the settings that bound its memory, whatever documents come."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What is kept for later documents of what could be made anew; past a limit it is, which `flushes` counts.

    `states` of the automaton; `classes` of nodes by what filters hold there, and names; `emissions`, what binds at
    nodes; `shapes` of documents, none with 0. A state takes some 3 KB, its classes and its emission included.
    """

    states: int = 100_000
    classes: int = 200_000
    emissions: int = 200_000
    shapes: int = 10_000


DEFAULT = Limits()
