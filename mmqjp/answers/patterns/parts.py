"""What the parts of an event are called, in every store and process: documents with nodes, or published events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b

import numpy as np

from mmqjp.documents.record import Record
from pattern_stage.columns import Column, Columns, Ints
from pattern_stage.lineage import COMPOSED, TOGETHER, Lineage, Origin
from pattern_stage.values import Texts
from templates.witness import plain_node

DIGEST_SIZE = 16
"""The bytes of the digest of a published event."""


class Parts:
    """Names the parts of events, and finds the documents behind them."""

    def __init__(self, lineage: Lineage, records: Mapping[int, Record] | object) -> None:
        self._lineage, self._records = lineage, records
        self._origins: dict[int, Origin] = {}

    def load(self, numbers: Ints) -> None:
        """Reads what numbers stand for, and all that is behind them."""
        self._origins = self._lineage.origins(self._lineage.with_parts([numbers]))

    def docids(self) -> set[int]:
        """Returns the documents behind all that was loaded."""
        return {origin.docid for origin in self._origins.values() if origin.docid >= 0}

    def origin(self, number: int) -> Origin:
        """Returns what a number stands for, which was loaded."""
        return self._origins[number]

    def id(self, number: int) -> str:
        """Returns the name of a part, the same in every store: JSON."""
        return json.dumps(self._named(number), ensure_ascii=False)

    def _named(self, number: int) -> object:
        origin = self._origins[number]
        if origin.docid == COMPOSED:
            return [origin.stream, origin.digest.hex()]
        if origin.docid == TOGETHER:
            return sorted((self._named(part) for part in origin.parts), key=str)
        record: Record = self._records[origin.docid]  # type: ignore[index]  # records, or a mapping in tests
        return [origin.stream, record.stream, record.id, *map(plain_node, origin.nodes)]

    def documents(self, number: int) -> list[Origin]:
        """Returns the events of documents behind a part, in the order of time."""
        found: dict[int, Origin] = {}
        waiting = [number]
        while waiting:
            number = waiting.pop()
            origin = self._origins[number]
            if origin.docid < 0:
                waiting += origin.parts
            else:
                found[number] = origin
        return sorted(found.values(), key=lambda origin: (origin.t1, origin.t0, origin.docid, origin.nodes))

    def digests(self, identity: str, events: Columns, texts: Texts) -> Iterable[bytes]:
        """Returns a digest of each event as a statement of this identity publishes it."""
        self.load(events.parts)
        values = [written(column, texts) for column in events.values]
        rows = zip(events.t0.tolist(), events.t1.tolist(), events.parts.tolist(), *values, strict=True)
        for t0, t1, parts, *attributes in rows:
            named = [self._named(part) for part in parts if part >= 0]
            text = json.dumps([identity, t0, t1, attributes, named], ensure_ascii=False)
            yield blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_SIZE).digest()


def written(column: Column, texts: Texts) -> list[str | None]:
    """Returns the values of an attribute as texts: numbers as Python writes them."""
    if column.dtype == np.float64:
        return [None if value != value else repr(value) for value in column.tolist()]
    return texts.texts(column.astype(np.int64, copy=False))
