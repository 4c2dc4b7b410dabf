"""Reads the newest outputs of a query as matches, with items and reasons, by SELECTs that run in any thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from mmqjp.answers.answer import Body
from mmqjp.answers.output import Output, read_nodes
from mmqjp.documents.record import Record
from mmqjp.documents.record_rows import record_of
from mmqjp.present.item import Item, item_of, missing_item
from mmqjp.present.match import Match
from mmqjp.present.output_why import MOST_MATCHES, compiled, parts_of, reason_of
from mmqjp.present.selected import selected
from mmqjp.queries.compile import CompiledQuery
from mmqjp.queries.identity import Identity
from mmqjp.tables import page_sql
from mmqjp.tables.lookup import Select, documents_by_docid, documents_by_id, texts_of

KEPT_QUERIES = 2_000
"""The most queries that are kept compiled."""

Place = tuple[int, int, int]
"""Where an output stands among those of its name: the first number of its group, its place there, and the qid."""


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest matches of a name, the newest first, and where the next ones begin; None at the end. The places say
    which group each belongs to."""

    matches: tuple[Match, ...]
    places: tuple[Place, ...]
    next: Place | None


def newest_matches(select: Select, name: str, before: Place | None, most: int, *, numbered: bool = False) -> Newest:
    """Returns the newest outputs of a name before a place. Their `seq` is -1 unless they are to be `numbered`, which
    looks at the outputs of all other queries that came with them. Raises what `select` raises."""
    told = select(page_sql.newest_outputs(name, before, most + 1)).to_pylist()
    shown = told[:most]
    places = tuple((row["first_seq"], row["place"], row["qid"]) for row in shown)
    outputs = _outputs(select, name, shown)
    if numbered:
        outputs = _numbered(select, shown, outputs)
    return Newest(tuple(matches_of_told(select, outputs)), places, places[-1] if len(told) > most else None)


@dataclass(frozen=True, slots=True)
class Told:
    """An output, the documents of the matches behind it, and the texts of the queries that it may be of."""

    output: Output
    behind: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]


def _outputs(select: Select, name: str, told: Sequence[Mapping[str, Any]]) -> list[Told]:
    later = [row for row in told if row["answer"] >= 0]
    earlier = [row["first_seq"] for row in told if row["answer"] < 0]
    found: dict[tuple[int, int], Told] = {}
    if later:
        answers = {row["answer"]: row for row in select(page_sql.answers(row["answer"] for row in later)).to_pylist()}
        queries = {row["qid"]: row for row in select(page_sql.identities(row["qid"] for row in later)).to_pylist()}
        for row in later:
            answer, query = answers.get(row["answer"]), queries[row["qid"]]
            if answer is None:  # it was dropped between two questions
                continue
            id = Identity(query["identity"]).id(answer["choice"].encode())
            xml = "" if answer["tail"] is None else Body(answer["head"], answer["tail"]).xml(name)
            seq = row["first_seq"] if row["first_seq"] == row["last_seq"] else -1
            output = _output(name, answer, xml, id, seq)
            found[row["answer"], row["qid"]] = Told(output, _behind(answer), (query["text"],))
    if earlier:
        texts = tuple(texts_of(select, name, None, MOST_MATCHES))
        for row in select(page_sql.earlier_outputs(earlier)).to_pylist():
            output = _output(name, row, row["xml"], row["id"], row["seq"])
            found[-1, row["seq"]] = Told(output, _behind(row), texts)
    keys = [(row["answer"], row["qid"] if row["answer"] >= 0 else row["first_seq"]) for row in told]
    return [found[key] for key in keys if key in found]


def _output(name: str, row: Mapping[str, Any], xml: str, id: str, seq: int) -> Output:
    documents, streams = tuple(row["documents"]), tuple(row["streams"])
    return Output(name, row["t0"], row["t1"], documents, streams, read_nodes(row["nodes"]), xml, id, seq)


def _behind(row: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    pairs = (row["matches"] or ())[:MOST_MATCHES]
    return tuple((first,) if second is None else (first, second) for first, second in pairs)


def _numbered(select: Select, told: Sequence[Mapping[str, Any]], outputs: list[Told]) -> list[Told]:
    """Outputs with their numbers."""
    groups = {row["first_seq"] for row in told if row["answer"] >= 0 and row["first_seq"] != row["last_seq"]}
    if not groups or len(told) != len(outputs):
        return outputs
    wanted = {(row["answer"], row["qid"]) for row in told}
    numbers = {
        (row["answer"], row["qid"]): row["seq"] for row in select(page_sql.numbers_of(groups, wanted)).to_pylist()
    }
    return [
        replace(one, output=replace(one.output, seq=numbers.get((row["answer"], row["qid"]), one.output.seq)))
        for row, one in zip(told, outputs, strict=True)
    ]


def matches_of_told(select: Select, told: Sequence[Told]) -> Iterable[Match]:
    """Yields outputs as matches: with the items and reasons of all of them looked up together."""
    docids = {docid for one in told for docids in one.behind for docid in docids}
    records = {record.docid: record for record in map(record_of, documents_by_docid(select, docids))}
    parts = {part for record in records.values() for part in record.parts} - records.keys()
    if parts:
        records |= {record.docid: record for record in map(record_of, documents_by_docid(select, parts))}
    items = _items(select, [one.output for one in told], records)
    for one in told:
        queries = {text: query for text in one.texts if (query := _query(text)) is not None}
        sources = list(zip(one.output.documents, one.output.streams, strict=True))
        behind = [parts_of(ids, records) for ids in one.behind]
        reason, _ = reason_of(one.output, behind, sources, queries, whole=False)
        selects = any(not query.normal.star for query in queries.values())
        values = selected(one.output.xml) if selects and one.output.xml else ()
        yield Match(one.output, tuple(items[source] for source in sources), reason, values)


def _items(select: Select, outputs: Iterable[Output], records: Mapping[int, Record]) -> dict[tuple[str, str], Item]:
    """The items of the documents behind outputs, by id and stream."""
    wanted = {source for one in outputs for source in zip(one.documents, one.streams, strict=True)}
    external = (record for record in records.values() if record.kind == "external")
    found = {
        (one.id, one.stream): item_of(one.id, one.stream, one.t0, one.xml)
        for one in external
        if (one.id, one.stream) in wanted
    }
    if missing := wanted - found.keys():
        for row in documents_by_id(select, {id for id, _ in missing}):
            key = row["id"], row["stream"]
            if row["kind"] == "external" and key in missing:
                found[key] = item_of(*key, row["t0"], row["xml"])
    return {key: found.get(key) or missing_item(*key) for key in wanted}


@lru_cache(KEPT_QUERIES)
def _query(text: str) -> CompiledQuery | None:
    return compiled(text)
