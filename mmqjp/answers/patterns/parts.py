"""What the parts of an event are called, in every store and process: documents with nodes, or published events."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from hashlib import blake2b

import numpy as np

from mmqjp.documents.records import Records
from pattern_stage.columns import Column, Columns, Ints
from pattern_stage.lineage import COMPOSED, TOGETHER, DocumentIds, Lineage, Origin
from pattern_stage.values import Texts
from templates.witness import plain_node

DIGEST_SIZE = 16
"""The bytes of the digest of a published event."""


class Parts:
    """Names the parts of events, and finds the documents behind them."""

    def __init__(self, lineage: Lineage, records: Records) -> None:
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
        record = self._records[origin.docid]
        return [origin.stream, record.stream, record.id, *map(plain_node, origin.nodes)]

    def members(self, number: int) -> list[int]:
        """Returns the numbers of the events that a part stands for, each of which comes before the next: those of a
        set, or its own."""
        origin = self._origins[number]
        if origin.docid != TOGETHER:
            return [number]
        return sorted(origin.parts, key=lambda part: self._origins[part].t1)

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
        return sorted(found.values(), key=self.place)

    def place(self, origin: Origin) -> tuple[object, ...]:
        """Returns where an event of a document stands in the order of time, the same in every store."""
        record = self._records[origin.docid]
        nodes = [plain_node(node) for node in origin.nodes]
        return origin.t1, origin.t0, record.stream, record.id, nodes, origin.stream

    def digests(self, identity: str, events: Columns, texts: Texts, *, ordered: bool) -> list[bytes]:
        """Returns a digest of each event as a statement of this identity publishes it. If parts are not `ordered`, it
        does not matter which event is which part."""
        self.load(events.parts)
        values = [written(column, texts) for column in events.values]
        rows = zip(events.t0.tolist(), events.t1.tolist(), events.parts.tolist(), *values, strict=True)
        found = []
        for t0, t1, parts, *attributes in rows:
            numbers = [part for part in parts if part >= 0]
            if not ordered:
                numbers = [member for number in numbers for member in self.members(number)]
            named = [self._named(number) for number in numbers]
            whole = [identity, t0, t1, attributes, named if ordered else sorted(named, key=str)]
            text = json.dumps(whole, ensure_ascii=False).encode("utf-8", "surrogatepass")
            found.append(blake2b(text, digest_size=DIGEST_SIZE).digest())
        return found


def ids_of(records: Records) -> DocumentIds:
    """Returns what says what documents are called in every store."""

    def found(docids: Collection[int]) -> Mapping[int, str]:
        records.load(docids)
        return {docid: records[docid].id for docid in docids}

    return found


def written(column: Column, texts: Texts) -> list[str | None]:
    """Returns the values of an attribute as texts: numbers as Python writes them."""
    if column.dtype == np.float64:
        return [None if value != value else repr(value) for value in column.tolist()]
    return texts.texts(column.astype(np.int64, copy=False))
