"""Migrates the outputs of stores up to format 4: they get numbers and ids, and sinks get positions by number."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

import pyarrow as pa

from join_stage.joiner import JoinEngine
from mmqjp.answers.outbox import SINK_PREFIX, Position, output_of, output_row
from mmqjp.answers.output import Output, digest, sorted_outputs
from mmqjp.tables import answers
from mmqjp.tables.commit_metadata import CommitMetadata
from mmqjp.tables.ledger import Ledger
from mmqjp.tables.table_rows import TableRows

_DELIVERED, _WRITTEN = "delivered", "written"
"""The settings with the last batch that was delivered, and the file that it was written to."""


def number_outputs(store: JoinEngine, ledger: Ledger) -> None:
    """Numbers, within a batch, the outputs of a store in the order in which they were committed.

    The id is the digest of the output's line. The position of `--output`, which was stored as a batch, becomes a
    number.
    """
    rows = store.read("outputs", answers.TABLES["outputs"].names).sort_by("batch")
    if len(rows):
        store.drop_before("outputs", "batch", rows["batch"][-1].as_py() + 1)
    delivered, acked = int(ledger.setting(_DELIVERED) or -1), -1
    alike: Counter[str] = Counter()
    table = TableRows(store)
    for batch, found in groupby(_rows(rows), key=lambda row: row["batch"]):
        ready = []
        for output in sorted_outputs(map(output_of, found)):
            line = _line(output)
            ready.append(replace(output, id=digest(f"{line} {alike[line]}"), seq=ledger.next_seq))
            alike[line] += 1
            ledger.next_seq += 1
        table.append("outputs", [output_row(output, batch) for output in ready])
        if batch <= delivered:
            acked = ledger.next_seq - 1
    written = ledger.setting(_WRITTEN)
    if acked >= 0 or written:
        position = Position(acked, json.loads(written or "{}"))
        ledger.save_metadata(CommitMetadata(settings={f"{SINK_PREFIX}output": position.to_setting()}))


def _rows(rows: pa.Table) -> Iterator[dict[str, Any]]:
    for chunk in rows.to_batches(max_chunksize=1_000):
        yield from chunk.to_pylist()


def _line(output: Output) -> str:
    line = output.to_dict()
    del line["id"], line["seq"]
    return json.dumps(line, ensure_ascii=False)
