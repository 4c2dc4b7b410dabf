"""Migrates the outputs of stores up to format 4: they get numbers and ids, and sinks get positions by number."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from join_stage.joiner import JoinEngine
from mmqjp.answers.outbox import SINK_PREFIX, Position
from mmqjp.answers.output import Output, json_nodes, sorted_outputs
from mmqjp.answers.stored_outputs import outputs_in
from mmqjp.queries.identity import digest
from mmqjp.tables import answers
from mmqjp.tables.commit_metadata import CommitMetadata
from mmqjp.tables.ledger import Ledger

EARLIER = "earlier_outputs"
"""The table of outputs up to format 5."""

_DELIVERED, _WRITTEN = "delivered", "written"
"""The settings with the last batch that was delivered, and the file that it was written to."""


def number_outputs(store: JoinEngine, ledger: Ledger) -> None:
    """Numbers, within a batch, the outputs of a store in the order in which they were committed.

    The id is the digest of the output's line. The position of `--output`, which was stored as a batch, becomes a
    number.
    """
    rows = store.read(EARLIER, answers.TABLES[EARLIER].names).sort_by("batch")
    if len(rows):
        store.drop_before(EARLIER, "batch", rows["batch"][-1].as_py() + 1)
    delivered, acked = int(ledger.setting(_DELIVERED) or -1), -1
    alike: Counter[str] = Counter()
    for batch, found in _batches(rows):
        ready = []
        for output in sorted_outputs(outputs_in(found)):
            line = _line(output)
            ready.append(replace(output, id=digest(f"{line} {alike[line]}"), seq=ledger.next_seq))
            alike[line] += 1
            ledger.next_seq += 1
        store.append(EARLIER, _rows_of(ready, batch))
        if batch <= delivered:
            acked = ledger.next_seq - 1
    written = ledger.setting(_WRITTEN)
    if acked >= 0 or written:
        position = Position(acked, json.loads(written or "{}"))
        ledger.save_metadata(CommitMetadata(settings={f"{SINK_PREFIX}output": position.to_setting()}))


def _batches(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yields each batch and its rows, from rows that are sorted by batch."""
    if not len(rows):
        return
    batches, starts = np.unique(rows["batch"].to_numpy(), return_index=True)
    for batch, start, end in zip(batches.tolist(), starts, [*starts[1:], len(rows)], strict=True):
        yield batch, rows.slice(start, end - start)


def _rows_of(outputs: Sequence[Output], batch: int) -> pa.Table:
    arrow_schema = answers.TABLES[EARLIER]
    given = {"nodes": [json_nodes(output.nodes) for output in outputs], "batch": [batch] * len(outputs)}
    columns = {name: given.get(name) or [getattr(output, name) for output in outputs] for name in arrow_schema.names}
    return pa.table(columns, arrow_schema)


def _line(output: Output) -> str:
    line = output.to_dict()
    del line["id"], line["seq"]
    return json.dumps(line, ensure_ascii=False)
