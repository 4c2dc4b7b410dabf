"""What is said of documents that give no output of a query, and of those that do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mmqjp.documents.record import Record
from mmqjp.explain.terms import FunnelStage
from mmqjp.present.item import ShownItem, item_of


@dataclass(frozen=True, slots=True)
class Near:
    """Documents that came nearest to an output, in the order of the query, and what stands in their way."""

    items: tuple[ShownItem, ...]
    kind: str
    part: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class WhyNot:
    """Why documents give no output of a query, or that they do.

    `kind` says what is in the way, the first thing in this order: "query" (there is none of the name), "document" (it
    is not known), "dead letter", "pruned", "blocks" (there are more documents than blocks), "paused", "newer" (than a
    document), a stage as `mmqjp.explain.terms.StageKind` has them, "partner" (what an absence says did not come did)
    or "waiting" (that is not decided yet), "told" (once, before), "dropped" (the outputs were, or a document before the
    other came), "too large"; or "output": then `outputs` has the ids of what they give.
    `part` is the part of the query that is in the way, `message` and `hint` say it in words. `items` are the documents,
    in the order of the query that came furthest, whose text is `text`; `stages` what was evaluated of it. If there are
    fewer documents than blocks, so many kept ones were `tried` with them, and `nearest` are those that came nearest.
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

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON object."""
        return asdict(self)

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> WhyNot:
        """Returns what such an object says."""
        nearest = tuple(Near(**one | {"items": _items(one["items"])}) for one in found["nearest"])
        stages = tuple(map(FunnelStage.from_dict, found["stages"]))
        rest = {"items": _items(found["items"]), "outputs": tuple(found["outputs"])}
        return WhyNot(**dict(found) | rest | {"stages": stages, "nearest": nearest})


def _items(found: Sequence[Mapping[str, Any]]) -> tuple[ShownItem, ...]:
    return tuple(ShownItem(**item) for item in found)


def record_items(documents: Sequence[Record | None]) -> tuple[ShownItem, ...]:
    return tuple(item_of(record.id, record.stream, record.t0, record.xml) for record in documents if record is not None)
