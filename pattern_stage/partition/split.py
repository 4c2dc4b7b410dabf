"""What waits in a kernel, apart by keys: as it would wait in the kernels of the parts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pattern_stage.columns import Columns, Ints
from pattern_stage.definition import Operator
from pattern_stage.kernel import Kernel
from pattern_stage.partition.keys import Key, keys_of, part_of
from pattern_stage.partition.work import State
from pattern_stage.saved import ints, loaded, loaded_values
from pattern_stage.values import Texts
from xscl.algebra.event_sequences import NearPattern, Pattern
from xscl.algebra.events import Aggregate, Fold, Next, Schema

_Keeping = Next | Fold | Aggregate | Pattern | NearPattern
"""The operators in which anything may wait."""


def split(kernel: Kernel, texts: Texts, parts: int) -> list[State]:
    """Returns the state of each of so many parts. All statements of the kernel can be parted, in one way."""
    state = kernel.state()
    tables = {name: [table] * parts for name, table in state.items()}
    for name, operator, key in _keeping(kernel):
        if name in state:
            of = part_of(key, *_kept(operator, state[name], texts), texts, parts)
            tables[name] = [state[name].filter(pa.array(of == part)) for part in range(parts)]
    return [{name: some[part] for name, some in tables.items() if len(some[part])} for part in range(parts)]


def _keeping(kernel: Kernel) -> list[tuple[str, Operator, Key]]:
    """Returns the m-ops in which anything may wait, by their names in a state: how, and the key of their input."""
    found: dict[str, tuple[str, Operator, Key]] = {}
    names = kernel.names()
    for bound in kernel.statements.bound_forms():
        keys = keys_of(bound.form)
        assert keys is not None, "only what can be parted is in such a kernel"
        for node, mop in zip(bound.form.nodes, bound.mops, strict=True):
            if node.definition is not None and isinstance(node.definition.operator, _Keeping):
                name = names[mop.number]
                found[name] = name, node.definition.operator, keys.of[node.inputs[0]]
    return list(found.values())


def _kept(operator: Operator, table: pa.Table, texts: Texts) -> tuple[Columns, Schema]:
    """Returns what waits as events: the first ones of NEXT and FOLD, and the groups of AGGREGATE."""
    if isinstance(operator, Pattern | NearPattern):
        kinds = dict(next(iter(operator.streams.values())))
        schema = tuple((name, kinds[name]) for name in operator.keys)
        values = tuple(
            loaded_values(table, f"key_{at}", kind == "string", texts) for at, (_, kind) in enumerate(schema)
        )
        none: Ints = np.zeros(len(table), np.int64)
        return Columns(none, none, values, none.reshape(-1, 1)), schema
    if isinstance(operator, Next | Fold):
        schema = operator.left.schema
        return loaded(table, schema, texts, "0_"), schema
    assert isinstance(operator, Aggregate)
    kinds = dict(operator.source.schema)
    schema = tuple((name, kinds[name]) for name in operator.by)
    values = tuple(loaded_values(table, str(place), kind == "string", texts) for place, (_, kind) in enumerate(schema))
    t1: Ints = ints(table, "t1")
    return Columns(t1, t1, values, np.zeros((len(t1), 1), np.int64)), schema
