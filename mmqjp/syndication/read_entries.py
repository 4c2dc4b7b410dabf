"""Reads the entries of outputs of a store: their documents and values. Keeps them, since they do not change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, NamedTuple

import pyarrow as pa
from lxml import etree

from common.batches import in_batches
from common.xml_parser import xml_parser
from mmqjp.answers.answer import Body
from mmqjp.answers.output import Output
from mmqjp.present.answer_table import Answer
from mmqjp.present.item import Item, item_of, missing_item
from mmqjp.present.match import Match
from mmqjp.present.output_why import items_of, selects_values
from mmqjp.present.recipients import Member
from mmqjp.present.remembered_documents import RememberedDocuments
from mmqjp.present.selected import selected
from mmqjp.queries.identity import Identity
from mmqjp.syndication.entries import Entry, entry_of
from mmqjp.tables import feed_sql

KEPT_CHARACTERS = 32 << 20
"""Entries are kept until they have so many characters; then the oldest ones go."""

SQL_CHARACTERS = 80_000
"""A question names ids of documents up to so many characters together."""

MOST_TOGETHER = 200
"""The most documents that are read at once, which may be long."""

Select = Callable[[str], pa.Table]
"""Returns the rows of SQL."""

_Document = tuple[str, str]
"""The stream and id of a document."""

_Output = tuple[int, int, int]
"""The answer and qid of an output, and its number if it is of an earlier format."""


class Told(NamedTuple):
    """An output of a query, as the tables have it: an answer and who gets it; the answer is -1 for one of an earlier
    format. Its number is between `first` and `last`."""

    answer: int
    qid: int
    first: int
    last: int


class EntryReader:
    """Reads entries. Methods may be called in any thread."""

    def __init__(self, select: Select, documents: RememberedDocuments | None = None) -> None:
        """Those `documents` that are remembered are not asked for."""
        self._select, self._documents = select, documents or RememberedDocuments(select)
        self._lock = Lock()
        self._kept: OrderedDict[_Output, tuple[Entry, bool]] = OrderedDict()
        self._characters = 0
        self._has_select: dict[int, bool] = {}

    def of(
        self, told: Sequence[Told], remembered: Mapping[tuple[int, int], tuple[Answer, Member]] | None = None
    ) -> tuple[tuple[Entry, ...], bool]:
        """Returns the entries of outputs in their order, and whether they show all: documents, and when
        outputs were committed, may be dropped. Outputs that are `remembered`, by answer and qid, are not asked for."""
        found = {key: kept for key in map(_key, told) if (kept := self._known(key)) is not None}
        known = {} if remembered is None else remembered
        new = [known[key[:2]] for key in map(_key, told) if key not in found and key[:2] in known]
        for answer, member, entry, is_whole in self._of_remembered(new):
            key = answer.answer, member.qid, -1
            found[key] = entry, is_whole
            self._keep(key, entry, is_whole)
        if wanted := [one for one in told if _key(one) not in found]:
            matches = list(self._matches(wanted))
            items = self._items(match.output for _, match, _ in matches)
            for one, match, committed_at in matches:
                output = match.output
                keys = zip(output.streams, output.documents, strict=True)
                shown = tuple(items.get(key) or missing_item(key[1], key[0]) for key in keys)
                entry = entry_of(replace(match, items=shown), output.t1 if committed_at is None else committed_at)
                found[_key(one)] = entry, committed_at is not None and all(item.is_kept for item in shown)
                self._keep(_key(one), *found[_key(one)])
        # An output may be dropped between two questions.
        there = [found[key] for key in map(_key, told) if key in found]
        return tuple(entry for entry, _ in there), len(there) == len(told) and all(is_whole for _, is_whole in there)

    # ------------------------------------------------------------ outputs

    def _of_remembered(
        self, remembered: Sequence[tuple[Answer, Member]]
    ) -> Iterator[tuple[Answer, Member, Entry, bool]]:
        """Yields the entries of those outputs that are of queries without values, and whether they show all."""
        some = [(answer, member) for answer, member in remembered if not self._selects(member)]
        records = self._documents.with_parts(
            docid for answer, _ in some for docids in answer.behind for docid in docids
        )
        sources = {answer.answer: list(zip(answer.documents, answer.streams, strict=True)) for answer, _ in some}
        items = items_of(self._select, (source for few in sources.values() for source in few), records, self._documents)
        for answer, member in some:
            id, shown = member.identity.id(answer.choice.encode()), tuple(items[one] for one in sources[answer.answer])
            output = Output(member.name, answer.t0, answer.t1, answer.documents, answer.streams, {}, "", id)
            committed_at = answer.t1 if answer.committed_at is None else answer.committed_at
            is_whole = answer.committed_at is not None and all(item.is_kept for item in shown)
            yield answer, member, entry_of(Match(output, shown), committed_at), is_whole

    def _selects(self, member: Member) -> bool:
        if (known := self._has_select.get(member.qid)) is None:
            known = self._has_select[member.qid] = selects_values(member.text, member.form)
        return known

    def _matches(self, told: Sequence[Told]) -> Iterator[tuple[Told, Match, int | None]]:
        """Yields outputs without their items, and when they were committed; None if that is not stored any more."""
        later = {(one.answer, one.qid): one for one in told if one.answer >= 0}
        earlier = {one.first: one for one in told if one.answer < 0}
        if later:
            selecting = self._selecting({qid for _, qid in later})
            for row in self._select(feed_sql.outputs_of(later, selecting)).to_pylist():
                one = later[row["answer"], row["qid"]]
                xml = "" if row["tail"] is None else Body(row["head"], row["tail"]).xml(row["query"])
                id = Identity(row["identity"]).id(row["choice"].encode())
                yield one, Match(_output(row, id, xml), (), None, selected(xml) if xml else ()), row["committed_at"]
        if earlier:
            for row in self._select(feed_sql.earlier_outputs_of(earlier)).to_pylist():
                yield earlier[row["seq"]], Match(_output(row, row["id"], ""), ()), row["committed_at"]

    def _selecting(self, qids: set[int]) -> list[int]:
        """Returns the queries that select values, instead of whole documents."""
        if unknown := qids - self._has_select.keys():
            for row in self._select(feed_sql.texts(sorted(unknown))).to_pylist():
                self._has_select[row["qid"]] = selects_values(row["text"], row["form"])
        return sorted(qid for qid in qids if self._has_select.get(qid))

    # ------------------------------------------------------------ items

    def _items(self, outputs: Iterable[Output]) -> dict[_Document, Item]:
        """Returns the items of the documents behind outputs that are stored."""
        some = list(outputs)
        wanted = {key for one in some for key in zip(one.streams, one.documents, strict=True)}
        ids = sorted({id for _, id in wanted if len(id) < SQL_CHARACTERS and "\0" not in id})
        first, last = min((one.t0 for one in some), default=0), max((one.t1 for one in some), default=0)
        found: dict[_Document, Item] = {}
        for few in in_batches(ids, MOST_TOGETHER, SQL_CHARACTERS, lambda id: len(id) + 8):
            for row in self._select(feed_sql.documents_of(few, first, last)).to_pylist():
                if (row["stream"], row["id"]) in wanted:
                    found[row["stream"], row["id"]] = _item(**row)
        return found

    # ------------------------------------------------------------ what is kept

    def _known(self, key: _Output) -> tuple[Entry, bool] | None:
        with self._lock:
            if (kept := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
            return kept

    def _keep(self, key: _Output, entry: Entry, is_whole: bool) -> None:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = entry, is_whole
                self._characters += len(entry.xml)
            while self._characters > KEPT_CHARACTERS:
                self._characters -= len(self._kept.popitem(last=False)[1][0].xml)


def _key(one: Told) -> _Output:
    return one.answer, one.qid, one.first if one.answer < 0 else -1


def _output(row: dict[str, Any], id: str, xml: str) -> Output:
    documents, streams = tuple(row["documents"]), tuple(row["streams"])
    return Output(row["query"], row["t0"], row["t1"], documents, streams, {}, xml, id)


def _item(stream: str, id: str, t0: int, xml: str, is_cut: bool) -> Item:
    """What is shown of a document. One that is cut is read as far as it goes: titles and addresses stand first."""
    if is_cut:
        beginning = etree.fromstring(xml.encode(), xml_parser(trusted=True, recover=True))
        xml = etree.tostring(beginning, encoding="unicode")
    return item_of(id, stream, t0, xml)
