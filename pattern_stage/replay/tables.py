"""The tables of a question: events and parameters, with what is derived from them; and results, out of its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from pattern_stage.columns import NULL_TEXT, Column, Columns, Ints
from pattern_stage.predicates import Pairs, compile_condition, compile_value, kind_of, single_events
from pattern_stage.replay.question import Question, SourceTable
from pattern_stage.replay.scope import Derived
from pattern_stage.values import Texts
from xscl.algebra.events import Function, Schema, TextTest, Value


def events_table(source: SourceTable, events: Columns, first: int, texts: Texts) -> pa.Table:
    """Returns the events of a source, numbered from `first` on."""
    count = len(events)
    every = np.arange(count)
    pairs = single_events(events, every, every, ())
    columns = {"t0": pa.array(events.t0), "t1": pa.array(events.t1), "k": pa.array(every + first)}
    for derived, name in source.columns.items():
        columns[name] = _derived(derived, source.schema, pairs, texts)
    return pa.table(columns)


def parameters_table(
    parameters: Mapping[Derived, str],
    since: Ints,
    windows: Sequence[Ints],
    constants: Mapping[int, Column],
    texts: Texts,
) -> pa.Table:
    """Returns a row for each statement. `parameters` says what is derived from its constants, of which `constants` has
    the columns of those that the question does not fix."""
    count = len(since)
    every, none = np.arange(count), np.zeros(count, np.int64)
    columns = {"q": pa.array(every), "since": pa.array(since)}
    columns |= {f"w{place}": pa.array(window) for place, window in enumerate(windows)}
    last = max(constants, default=-1) + 1
    values = tuple(constants.get(slot, none) for slot in range(last))
    pairs = single_events(Columns(none, none, (), none.reshape(-1, 1)), every, every, values)
    for derived, name in parameters.items():
        columns[name] = _derived(derived, (), pairs, texts)
    return pa.table(columns)


def _derived(derived: Derived, schema: Schema, pairs: Pairs, texts: Texts) -> pa.Array:
    item, form = derived
    if isinstance(item, TextTest):
        return pa.array(compile_condition(item, schema, None, texts)(pairs))
    wanted = "number" if form == "number" else "string"
    value: Value = item
    if kind_of(value) != wanted:
        value = Function("number", (item,), "number") if form == "number" else Function("concat", (item,), "string")
    column = compile_value(value, schema, None, texts)(pairs)
    if form == "number":
        return pa.array(column, pa.float64(), mask=np.isnan(column))
    codes: Ints = column.astype(np.int64)
    if form == "text":
        return pa.array(texts.texts(codes), pa.string())
    return pa.array(codes, pa.int64(), mask=codes == NULL_TEXT)


def results_of(question: Question, answer: pa.Table, schema: Schema, parts: Ints) -> tuple[Columns, Ints]:
    """Returns the results in an answer, and the row of the statement of each. `parts` has those of all events."""
    values: list[Column] = []
    for name, (_, kind) in zip(question.outputs, schema, strict=True):
        if kind == "string":
            values.append(_ints(answer, name, NULL_TEXT))
        else:
            values.append(answer[name].fill_null(np.nan).to_numpy().astype(np.float64))
    nobody = np.concatenate([parts, np.full((1, parts.shape[1]), -1)])
    made = np.concatenate([nobody[_ints(answer, f"k{place}", -1)] for place in range(question.events)], axis=1)
    return Columns(_ints(answer, "t0"), _ints(answer, "t1"), tuple(values), made), _ints(answer, "q")


def _ints(answer: pa.Table, name: str, null: int = 0) -> Ints:
    found: Ints = answer[name].fill_null(null).to_numpy().astype(np.int64)
    return found
