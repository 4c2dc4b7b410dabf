"""Makes the operator of an m-op at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pattern_stage.aggregate import Aggregating
from pattern_stage.definition import Operator as Defined
from pattern_stage.fold import Folding
from pattern_stage.limited import Bounded, Limited
from pattern_stage.limits import NO_LIMITS, Meter
from pattern_stage.matching.near import NearMatching
from pattern_stage.matching.runs import Running
from pattern_stage.matching.sets import SetMatching
from pattern_stage.operators import Index, Lineage, Operator, Origins
from pattern_stage.room import Sees
from pattern_stage.rows import Rows
from pattern_stage.select import Filtering, Selecting, Uniting
from pattern_stage.sequence import Sequencing
from pattern_stage.simultaneous import Simultaneous
from pattern_stage.static_index import StaticIndex
from pattern_stage.values import Texts
from xscl.algebra.event_sequences import NearPattern, Pattern
from xscl.algebra.events import Aggregate, Filter, Fold, Next, Schema, Select, Union


def due(operator: Operator) -> int | None:
    """Returns a time: nothing becomes known to an operator before without another event. None if nothing waits for time
    alone."""
    return operator.due() if isinstance(operator, Running | SetMatching) else None


def make_operator(
    definitions: Sequence[Any],
    rows: Rows,
    texts: Texts,
    lineage: Lineage,
    meter: Meter,
    sees: Sees,
    shared: Simultaneous | None = None,
    *,
    hashed: bool,
    indexed: bool,
    merged: bool,
) -> Operator:
    """Makes the operator of definitions of one kind, which may become more, and of rows. It counts with `meter`
    what rows see. `shared` has what an AGGREGATE has in common with others.

    `hashed`: one dynamic equality of a condition is. `indexed`: static clauses are found by an index. `merged`: runs of
    a PATTERN that remember the same are one.
    """

    def index(schema: Schema, texts: Texts) -> Index:
        found: Any = StaticIndex(schema, texts, hashed=indexed)  # the protocol knows no atoms
        return cast(Index, found)

    def limited(operator: Bounded) -> Operator:
        return operator if meter.limits == NO_LIMITS else Limited(operator, meter, sees)

    first: Defined = definitions[0]
    match first:
        case Filter():
            return Filtering(definitions, rows, texts, index)
        case Select():
            return Selecting(definitions, rows, texts)
        case Union():
            return Uniting(rows)
        case Next():
            return limited(Sequencing(definitions, rows, texts, index, hashed=hashed))
        case Fold():
            return limited(Folding(definitions, rows, texts, index, hashed=hashed))
        case Aggregate():
            return limited(Aggregating(definitions, rows, texts, lineage, shared))
        case Pattern():
            if first.has_sets or first.maximal:
                return SetMatching(definitions, rows, texts, cast(Origins, lineage), index, meter)
            return Running(definitions, rows, texts, cast(Origins, lineage), index, meter, merged=merged)
        case NearPattern():
            return NearMatching(definitions, rows, texts, cast(Origins, lineage), index, meter)
