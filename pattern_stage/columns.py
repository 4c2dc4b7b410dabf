"""Events of one schema as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Column = NDArray[np.int64] | NDArray[np.float64]
"""The values of an attribute: of a string attribute the codes of `pattern_stage.values.Texts`, NULL_TEXT for NULL; of a
number attribute float64, NaN for NULL."""

NULL_TEXT = -1
"""The code of a string attribute that is NULL."""


def column_of(values: Sequence[Any], *, are_texts: bool) -> Column:
    """Returns codes of texts, or numbers, as a column."""
    return np.array(values, np.int64) if are_texts else np.array(values, np.float64)


@dataclass(frozen=True, slots=True)
class Columns:
    """Events of one schema: times in microseconds, a column for each attribute in the order of the schema, and parts.

    `parts` has a row for each event and a column for each place of a part: the numbers of the events that it was made
    of, as `pattern_stage.lineage` gives them; -1 for none.
    """

    t0: Ints
    t1: Ints
    values: tuple[Column, ...]
    parts: Ints

    def __len__(self) -> int:
        return len(self.t1)

    def take(self, places: Ints | Mask) -> Columns:
        """Returns the events at these places."""
        return Columns(
            self.t0[places], self.t1[places], tuple(column[places] for column in self.values), self.parts[places]
        )


def joined(all_columns: Sequence[Columns]) -> Columns:
    """Returns the events of one or more, one after the other. They have one schema and the same places of parts."""
    if len(all_columns) == 1:
        return all_columns[0]
    return Columns(
        np.concatenate([columns.t0 for columns in all_columns]),
        np.concatenate([columns.t1 for columns in all_columns]),
        tuple(np.concatenate(column) for column in zip(*(columns.values for columns in all_columns), strict=True)),
        np.concatenate([columns.parts for columns in all_columns]),
    )
