"""The state of all m-ops as tables that any process can take over: rows have keys there that say what they are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from common.distinct import distinct
from pattern_stage.columns import Ints
from pattern_stage.operators import Operator
from pattern_stage.plan import MOp, Plan, extra_columns, is_aggregate
from pattern_stage.saved import flat, ints

FORMAT = 1
"""The version of what is saved."""

_FORMAT, _ROWS = "format", "/rows"


def save(plan: Plan, operators: Mapping[int, Operator]) -> dict[str, pa.Table]:
    """Returns what waits in the m-ops, by their names, and the keys of the rows that it waits for."""
    keys = Keys(plan)
    saved = {_FORMAT: pa.table({"version": [FORMAT]})}
    for number, operator in operators.items():
        state = operator.state()
        if not len(state):
            continue
        rows = distinct(flat(state, "rows")[0] if "rows" in state.column_names else ints(state, "row"))
        mop = plan.mops[number]
        saved[keys.name(mop)] = state
        saved[keys.name(mop) + _ROWS] = pa.table(
            {"row": rows, "key": pa.array(keys.of(mop, rows, stored=True), pa.binary())}
        )
    return saved


def restore(plan: Plan, operators: Mapping[int, Operator], saved: Mapping[str, pa.Table]) -> None:
    """Gives the m-ops what waited for their rows. What waited for rows that are gone is dropped.

    Raises:
        ValueError: if another version has saved it.
    """
    if not saved:
        return
    version = saved[_FORMAT]["version"][0].as_py()
    if version != FORMAT:
        raise ValueError(f"the state of event patterns has format {version}; this version reads {FORMAT}")
    keys = Keys(plan)
    for number, operator in operators.items():
        mop = plan.mops[number]
        state = saved.get(keys.name(mop))
        if state is None:
            continue
        table = saved[keys.name(mop) + _ROWS]
        there = mop.rows.numbers()
        row_of = dict(zip(keys.of(mop, there, stored=True), there.tolist(), strict=True))
        before = ints(table, "row")
        now = np.array([row_of.get(key, -1) for key in table["key"].to_pylist()], np.int64)

        def renumber(rows: Ints, before: Ints = before, now: Ints = now) -> Ints:
            return now[np.searchsorted(before, rows)]

        operator.restore(state, renumber)


def parts(operators: Mapping[int, Operator]) -> list[Ints]:
    """Returns the numbers of all events that something which waits was made of."""
    return [numbers.ravel() for operator in operators.values() for numbers in operator.parts()]


class Keys:
    """Names of m-ops and keys of rows: digests of what they are, the same in every process."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._names: dict[int, str] = {}
        self._definitions = {
            mop.number: {shape: (definition.name, places) for definition, (shape, places) in mop.shapes.items()}
            for mop in plan
        }

    def name(self, mop: MOp) -> str:
        """Returns the name of an m-op."""
        found = self._names.get(mop.number)
        if found is None:
            inputs = [self.name(self._plan.mops[number]) for number in mop.inputs]
            found = _digest(repr((self._kind(mop), mop.stream, mop.schema, inputs)).encode()).hex()
            self._names[mop.number] = found
        return found

    def _kind(self, mop: MOp) -> str:
        if mop.placement is None:
            return "source"
        return repr(mop.placement.key[:-1])

    def of(self, mop: MOp, rows: Ints, *, stored: bool = False) -> list[bytes]:
        """Returns the keys of rows of an m-op. `stored`: those of rows that have one store are the same."""
        if mop.placement is None:
            return [mop.stream.encode()] * len(rows)
        sides = []
        for column, number in zip((mop.rows.left, mop.rows.right), mop.inputs, strict=False):
            distinct, at = np.unique(column[rows], return_inverse=True)
            keys = self.of(self._plan.mops[number], distinct)
            sides.append([keys[place] for place in at.tolist()])
        texts = self._plan.texts
        columns = [
            texts.texts(column[rows].astype(np.int64)) if column.dtype == np.int64 else column[rows].tolist()
            for column in mop.rows.parameters
        ]
        windows = zip(mop.rows.within[rows].tolist(), mop.rows.apart[rows].tolist(), strict=True)
        together = stored and is_aggregate(mop.placement) and not mop.placement.own_since
        own = is_aggregate(mop.placement) and mop.placement.own_rows
        shapes = mop.rows.shape[rows].tolist()
        found = []
        for row, (shape, window) in enumerate(zip(shapes, windows, strict=True)):
            name, places = self._definitions[mop.number][shape]
            kinds = len(places) - extra_columns(mop.placement)
            vector = [columns[place][row] for place in (*places[:kinds], *places[-1:] * own)]
            apart = None if together else window
            found.append(_digest(repr((name, [side[row] for side in sides], vector, apart)).encode()))
        return found


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
