"""Conditions of runs with constants of rows: which rows one holds for, as a set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pattern_stage.columns import Column, Columns, Ints, column_of
from pattern_stage.flow import numbered, same
from pattern_stage.formula import leaves, values_of
from pattern_stage.matching.masks import mask_of_flags
from pattern_stage.operators import RowVectors
from pattern_stage.predicates import Pairs, compile_condition
from pattern_stage.values import Texts
from xscl.algebra.events import Condition, Parameter, Schema

_FEW = 4
"""So few rows are tested one by one."""


class RowTest:
    """A condition on values of a run and of an event, and on parameters. Rows with equal parameters are tested once."""

    def __init__(
        self,
        texts: Texts,
        condition: Condition,
        values: Schema,
        gathered: Callable[[Any, Any], Sequence[tuple[Any, ...]]],
        scalar: Callable[[Any, Any], bool],
    ) -> None:
        """`gathered` returns, of registers and an event, the vectors of `values` that the condition must hold for."""
        self._values, self._gathered, self._scalar = values, gathered, scalar
        self._holds = compile_condition(condition, values, None, texts)
        used = {leaf.index for value in values_of(condition) for leaf in leaves(value) if isinstance(leaf, Parameter)}
        self._columns = sorted(used)
        self._rows: Ints = np.zeros(0, np.int64)
        self._heads = self._class_of = self._rows
        self._parameters: tuple[Column, ...] = ()

    def follow(self, rows: RowVectors, numbers: Ints) -> None:
        """Takes in which rows there are."""
        self._rows, self._parameters = numbers, rows.parameters
        size = int(numbers.max(initial=-1)) + 1
        self._class_of = np.full(size, -1, np.int64)
        if len(numbers):
            heads, of = numbered([same(rows.parameters[place][numbers]) for place in self._columns])
            self._heads = numbers[heads]
            self._class_of[numbers] = of

    def mask(self, registers: Any, event: Any, mask: int) -> int:
        """Returns the rows among these that the condition holds for."""
        for vector in self._gathered(registers, event):
            if not mask:
                break
            mask &= self._few(vector, mask) if len(self._rows) <= _FEW else self._many(vector)
        return mask

    def _few(self, vector: tuple[Any, ...], mask: int) -> int:
        held = 0
        for row in self._rows.tolist():
            if mask >> row & 1:
                parameters = [column[row].item() for column in self._parameters]
                if self._scalar(vector, parameters):
                    held |= 1 << row
        return held

    def _many(self, vector: tuple[Any, ...]) -> int:
        columns = tuple(
            column_of([value], are_texts=kind == "string")
            for value, (_, kind) in zip(vector, self._values, strict=True)
        )
        none = np.zeros(1, np.int64)
        one = Columns(none, none, columns, none.reshape(1, 1))
        at = np.zeros(len(self._heads), np.int64)
        held = self._holds(Pairs(one, at, None, None, None, self._heads, self._parameters))
        return mask_of_flags(np.append(held, False)[self._class_of])
