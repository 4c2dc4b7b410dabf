"""The answer to a why-not question: why documents give no output of a query, or which outputs they give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.tools import JsonRecord
from mmqjp.documents.record import Record
from mmqjp.explain.terms import FunnelStage
from mmqjp.present.item import ShownItem, item_of


@dataclass(frozen=True, slots=True)
class Near:
    """The documents nearest to an output, in query order, and what is in their way."""

    items: tuple[ShownItem, ...]
    kind: str
    part: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class WhyNot(JsonRecord):
    """Why documents give no output of a query, or that they do.

    `kind` is the first obstacle in this order: "query" (none of the name), "document" (unknown), "dead letter",
    "pruned", "blocks" (more documents than blocks), "paused", "newer" (than a document), a
    `mmqjp.explain.terms.StageKind`, "partner" (an absence has one) or "waiting" (it is undecided), "told" (ONCE,
    before), "dropped" (the outputs, or a document before the other came, were deleted), "too large"; or "output": then
    `outputs` has ids. `part` is the obstacle's part of the query, `message` and `hint` describe it. `items` are the
    documents in the order of the query that got furthest, whose text is `text`; `stages` were evaluated for it. With
    fewer documents than blocks, `tried` stored ones were combined with them, and `nearest` got nearest.
    """

    query: str
    kind: str
    message: str
    hint: str = ""
    part: str = ""
    text: str = ""
    items: tuple[ShownItem, ...] = ()
    outputs: tuple[str, ...] = ()
    stages: tuple[FunnelStage, ...] = ()
    nearest: tuple[Near, ...] = ()
    tried: int = 0


def record_items(documents: Sequence[Record | None]) -> tuple[ShownItem, ...]:
    return tuple(item_of(record.id, record.stream, record.t0, record.xml) for record in documents if record is not None)
