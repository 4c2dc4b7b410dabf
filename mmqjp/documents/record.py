"""A document of the store, external, published, or a tuple of a hidden stream, and the documents of a match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring as json_text
from typing import Literal

from common.lazy import lazy
from xpath_stage.binder import Node
from xpath_stage.parse import ParsedDocument, parse_document

DocumentKind = Literal["external", "published", "hidden"]


@dataclass
class Record:
    """A stored document. Times are UTC microseconds; `xml` is the document without comments and PIs.

    `parts` identify the documents behind a chain's outputs: the document itself, or for a tuple of a hidden stream the
    documents of its blocks. `part_ids` are their ids with their streams, and `appeared` says when each of them
    appeared: the docid of the external document that completed it, or its own docid if a backfill published it. These
    three have one length. `sources` are the external documents behind the record as (id, stream), left to right. For a
    tuple, `bound` has the (docid, node) of each variable. `arrival` is the latest arrival behind the record (see
    `mmqjp.answers.quota`).
    """

    docid: int
    id: str
    stream: str
    t0: int
    t1: int
    xml: str
    kind: DocumentKind
    parts: tuple[int, ...]
    part_ids: tuple[str, ...]
    sources: tuple[tuple[str, str], ...]
    bound: tuple[tuple[int, Node], ...] = ()
    arrival: int = -1
    appeared: tuple[int, ...] = ()

    @lazy
    def tree(self) -> ParsedDocument:
        return parse_document(self.xml.encode(), trusted=True)

    @property
    def has_namespaces(self) -> bool:
        """Whether the document may declare namespaces."""
        return "xmlns" in self.xml

    @lazy
    def fragments(self) -> dict[int, str]:
        """The elements that were serialized so far, by number. They live as long as the tree."""
        return {}

    def number(self, docid: int, arrival: int) -> None:
        """Numbers the document as it enters; `arrival` applies to external ones. May be called again if the batch is
        begun again."""
        self.docid = docid
        if self.kind == "external":
            self.parts = self.appeared = (docid,)
            self.arrival = arrival
            return
        if self.kind != "hidden":
            self.parts = (docid,)
        if not self.appeared:
            self.appeared = (docid,)


def own_part_id(stream: str, document_id: str) -> str:
    """Returns the part id of a document: its stream and id as JSON."""
    return f"[{json_text(stream)}, {json_text(document_id)}]"  # in a tenth of the time that `json.dumps` takes


class Inputs(tuple[Record, ...]):
    """The documents of a match, in the query's order, and what everybody who gets the match needs of them: computed
    once for all subscribers.

    `t0` is the earliest start and `t1` the latest end, in microseconds. `arrival` is the latest arrival, and `appeared`
    says when the first part appeared.
    """

    # Lists are faster than generators here: there are one or two documents, and mostly one source of each.

    def __init__(self, records: Sequence[Record]) -> None:
        first, last = records[0], records[-1]
        self.t0 = first.t0 if first.t0 <= last.t0 else last.t0
        self.t1 = first.t1 if first.t1 >= last.t1 else last.t1
        self.arrival = first.arrival if first.arrival >= last.arrival else last.arrival
        self.appeared = min(first.appeared + last.appeared)

    def are_seen_by(self, sees: Callable[[Iterable[int]], bool]) -> bool:
        """Returns whether all documents are seen. `sees` is told when the parts of one appeared."""
        return all(sees(record.appeared) for record in self)

    @lazy
    def parts(self) -> tuple[int, ...]:
        """The docids of all parts."""
        return self[0].parts if len(self) == 1 else self[0].parts + self[1].parts

    @lazy
    def part_ids(self) -> tuple[str, ...]:
        """The ids of all parts: one for each of `parts`."""
        return self[0].part_ids if len(self) == 1 else self[0].part_ids + self[1].part_ids

    @lazy
    def part_ids_json(self) -> str:
        """The ids of all parts as a JSON list."""
        return f"[{', '.join(map(json_text, self.part_ids))}]"

    @lazy
    def sources(self) -> tuple[tuple[str, str], ...]:
        """The external documents, as pairs of id and stream."""
        return self[0].sources if len(self) == 1 else self[0].sources + self[1].sources

    @lazy
    def documents(self) -> tuple[str, ...]:
        """The ids of the external documents: one for each of `sources`."""
        return tuple([source[0] for source in self.sources])

    @lazy
    def streams(self) -> tuple[str, ...]:
        """The streams of the external documents: one for each of `sources`."""
        return tuple([source[1] for source in self.sources])


def published_record(stream: str, inputs: Inputs, xml: str, id: str, *, within: bool) -> Record:
    """Returns an output over some documents as a document of a stream, without a docid.

    With `within`, it appears when the latest of these documents did; otherwise it appears now.
    """
    appeared = (max(at for record in inputs for at in record.appeared),) if within else ()
    return _record_over(inputs, id, stream, xml, "published", (), (own_part_id(stream, id),), (), appeared)


def tuple_record(stream: str, inputs: Inputs, xml: str, bound: tuple[tuple[int, Node], ...]) -> Record:
    """Returns a tuple over some documents as a document of a hidden stream, without a docid. `bound` has the (docid,
    node) of each variable."""
    appeared = tuple(at for record in inputs for at in record.appeared)
    return _record_over(inputs, "", stream, xml, "hidden", inputs.parts, inputs.part_ids, bound, appeared)


def _record_over(
    inputs: Inputs,
    id: str,
    stream: str,
    xml: str,
    kind: DocumentKind,
    parts: tuple[int, ...],
    part_ids: tuple[str, ...],
    bound: tuple[tuple[int, Node], ...],
    appeared: tuple[int, ...],
) -> Record:
    return Record(
        -1,
        id,
        stream,
        inputs.t0,
        inputs.t1,
        xml,
        kind,
        parts,
        part_ids,
        inputs.sources,
        bound,
        inputs.arrival,
        appeared,
    )
