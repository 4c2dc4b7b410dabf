"""The limits of the caches of stage 1, which bound its memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest number of cached `states` of the automaton, `classes` of nodes and names, `emissions` of nodes, and
    `shapes` of documents (0 for no shape cache). Past a limit a cache is cleared, which `flushes` counts.

    A state takes about 3 KB, with its classes and its emission.
    """

    states: int = 100_000
    classes: int = 200_000
    emissions: int = 200_000
    shapes: int = 10_000


DEFAULT = Limits()
