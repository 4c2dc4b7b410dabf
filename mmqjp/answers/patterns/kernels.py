"""What runs event statements, as far as batches ask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from pattern_stage.columns import Column, Columns, Ints
from pattern_stage.limits import Excess
from pattern_stage.lineage import Lineage
from pattern_stage.values import Texts
from xscl.algebra.event_sequences import Statement
from xscl.algebra.events import Schema


class Results(Protocol):
    """Results of statements of one schema: statement `statements[i]` has the event `events[at[i]]`."""

    @property
    def schema(self) -> Schema: ...

    @property
    def events(self) -> Columns: ...

    @property
    def at(self) -> Ints: ...

    @property
    def statements(self) -> Ints: ...


class Kernel(Protocol):
    """See `pattern_stage.kernel.Kernel`."""

    @property
    def exceeded(self) -> Mapping[int, Excess]: ...

    def add(self, statement: int, stream: Statement, since: int) -> None: ...

    def narrow(self, statement: int, since: int) -> None: ...

    def remove(self, statements: Sequence[int]) -> None: ...

    def begin(self, until: int) -> None: ...

    def feed(self, events: Mapping[str, Columns]) -> Sequence[Results]: ...

    def end(self) -> Sequence[Results]: ...

    def parts(self) -> Iterable[Ints]: ...

    def instances(self) -> tuple[Ints, Ints]: ...

    def due(self) -> int | None: ...

    def codes(self) -> Iterable[Ints]: ...

    def state(self) -> dict[str, pa.Table]: ...

    def restore(self, state: Mapping[str, pa.Table]) -> None: ...


MakeKernel = Callable[[Texts, Lineage], Kernel]
"""Makes a kernel without statements."""


def no_events(schema: Schema) -> Columns:
    """Returns no events of a schema."""
    none = np.zeros(0, np.int64)
    values: tuple[Column, ...] = tuple([none if kind == "string" else np.zeros(0) for _, kind in schema])
    return Columns(none, none, values, np.zeros((0, 1), np.int64))
