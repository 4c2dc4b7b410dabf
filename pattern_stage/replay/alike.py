"""Statements that are one question: those of a form, as long as they have the constants in common that it fixes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from pattern_stage.columns import Column, Ints
from pattern_stage.definition import Form, Forms
from pattern_stage.replay.scope import AsConstant
from pattern_stage.values import Texts
from xscl.algebra.event_sequences import Statement

Constants = dict[int, str | float]
"""Constants of a form, by their numbers."""


@dataclass(slots=True)
class Alike:
    """Statements that are one question: their form, the constants in it, and what is different in each."""

    form: Form
    fixed: Constants
    numbers: list[int] = field(default_factory=list)
    since: list[int] = field(default_factory=list)
    vectors: list[tuple[str | float, ...]] = field(default_factory=list)
    widths: list[tuple[int, ...]] = field(default_factory=list)

    def windows(self) -> list[Ints]:
        """Returns a column for each window."""
        return [np.array(column, np.int64) for column in zip(*self.widths, strict=True)]

    def constants(self, texts: Texts) -> dict[int, Column]:
        """Returns a column for each constant that the question does not fix."""
        found: dict[int, Column] = {}
        columns = zip(*self.vectors, strict=True)
        for slot, (column, kind) in enumerate(zip(columns, self.form.kinds, strict=True)):
            if slot not in self.fixed:
                found[slot] = texts.codes(map(str, column)) if kind == "string" else np.array(column, np.float64)
        return found


class AlikeStatements:
    """Sorts statements by the questions that they are."""

    def __init__(self, asked: Callable[[Form, Constants], object]) -> None:
        """`asked` makes the question of a form with fixed constants; see `fixed_constants`."""
        self._asked = asked
        self._forms = Forms()
        self._fixed: dict[int, frozenset[int]] = {}
        self._alike: dict[tuple[object, ...], Alike] = {}

    def add(self, number: int, statement: Statement, since: int) -> None:
        """Adds a statement."""
        form, constants, windows = self._forms.form(statement)
        if id(form) not in self._fixed:
            self._fixed[id(form)] = fixed_constants(form, self._asked)
        fixed = {slot: constants[slot] for slot in sorted(self._fixed[id(form)])}
        alike = self._alike.setdefault((id(form), *fixed.values()), Alike(form, fixed))
        alike.numbers.append(number)
        alike.since.append(since)
        alike.vectors.append(constants)
        alike.widths.append(windows)

    def __iter__(self) -> Iterator[Alike]:
        return iter(self._alike.values())


def fixed_constants(form: Form, asked: Callable[[Form, Constants], object]) -> frozenset[int]:
    """Returns the constants that stand in the question itself: the others are parameters of it.

    What `asked` raises but AsConstant is passed on.
    """
    fixed: Constants = {}
    while True:
        try:
            asked(form, fixed)
        except AsConstant as needed:
            fixed |= {slot: "" if form.kinds[slot] == "string" else 0.0 for slot in needed.slots}
        else:
            return frozenset(fixed)
