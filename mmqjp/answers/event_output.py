"""Answers of event queries: output documents of results, and the documents that others read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mmqjp.answers.answer import Answer, Body
from mmqjp.answers.answered import Pause
from mmqjp.answers.output import json_nodes
from mmqjp.answers.pattern_documents import PatternDocuments, element
from mmqjp.answers.patterns.limits import reason_of
from mmqjp.answers.patterns.parts import Parts, written
from mmqjp.answers.patterns.results import FormResults
from mmqjp.answers.patterns.running import Running
from mmqjp.answers.quota import Quota
from mmqjp.documents.record import Record, own_part_id
from mmqjp.documents.records import Records
from mmqjp.queries.event_statements import form_of, since_of
from mmqjp.queries.registry import Registry
from mmqjp.tables.ledger import Ledger
from pattern_stage.columns import Column
from pattern_stage.limits import Excess
from pattern_stage.lineage import Origin
from pattern_stage.values import Texts
from templates.witness import plain_node
from xscl.algebra.event_sequences import NearPattern, Pattern
from xscl.algebra.functions import number_text


class EventOutput:
    """Makes answers and documents of the results of event queries."""

    def __init__(self, registry: Registry, records: Records, ledger: Ledger) -> None:
        self._registry, self._records, self._ledger = registry, records, ledger

    def answers(
        self, results: Sequence[FormResults], running: Running, first_qid: int = 0
    ) -> tuple[list[Answer], list[Record]]:
        """Returns the answers that results are, and as documents those that queries over documents read. Only queries
        with at least `first_qid` get them. `running` found them."""
        answers: list[Answer] = []
        documents: list[Record] = []
        for found in results:
            made = self._answers(found, running, first_qid)
            answers += made
            documents += self._published(found.form_id, made, first_qid)
        return answers, documents

    def pauses(self, exceeded: Mapping[str, Excess], quota: Quota, horizon: int, first_qid: int = 0) -> Iterable[Pause]:
        """Yields the pauses of queries whose forms have exceeded a limit: of those with at least `first_qid`. What was
        released before the horizon they have got."""
        for form_id, excess in exceeded.items():
            for query in self._registry.events.members(form_id):
                if query.qid >= first_qid:
                    at = max(excess.time, horizon) - 1
                    yield Pause(query, at, self._ledger.next_arrival, reason_of(excess, quota))

    def _answers(self, found: FormResults, running: Running, first_qid: int) -> list[Answer]:
        """Returns the answers of one form."""
        events, parts = found.events, running.parts()
        parts.load(events.parts)
        self._records.load(parts.docids())
        form, withheld = form_of(found.form_id), self._registry.events.withheld(found.form_id)
        stream = self._registry.events.stream_of(form)
        pattern = PatternDocuments(stream) if isinstance(stream, Pattern | NearPattern) else None
        appeared = running.appeared(events)
        arrival, names = self._ledger.next_arrival - 1, [name for name, _ in found.schema]
        width = len(stream.schema)
        values = [written(column, running.texts) for column in events.values[:width]]
        shown = [_shown(column, running.texts) for column in events.values]
        answers = []
        rows = zip(
            events.t0.tolist(),
            events.t1.tolist(),
            events.parts.tolist(),
            appeared.tolist(),
            zip(*values, strict=True) if values else [()] * len(events),
            zip(*shown, strict=True) if shown else [()] * len(events),
            strict=True,
        )
        for t0, t1, numbers, first, attributes, texts in rows:
            of = [number for number in numbers if number >= 0]
            if pattern is None:
                roots, ending = _roots(parts, of), _children(names, texts)
            else:
                roots, ending = list(pattern.roots(of, parts)), pattern.document(texts, of, parts)
            documents, streams, nodes = self._behind(sorted(roots, key=lambda root: parts.place(root[1])))
            answers.append(
                Answer(
                    t0,
                    t1,
                    documents,
                    streams,
                    nodes,
                    Body('<match query="', f'" t0="{t0}" t1="{t1}"{ending}'),
                    _choice(t0, t1, attributes, [parts.id(number) for number in of]),
                    form,
                    0,
                    first,
                    first_qid,
                    arrival,
                    tuple([qid for qid, since in withheld if since >= first]),
                )
            )
        return answers

    def _behind(self, roots: Sequence[tuple[str, Origin]]) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        """Returns the external documents behind events of documents, each once for each of these: their ids and
        streams; and the root nodes of these events as `Output.nodes`. `roots` has the events in the order of time, with
        names for their nodes, or "" for e1, e2, and so on."""
        origins = {(origin.docid, origin.nodes): origin for _, origin in roots}.values()
        sources = [source for origin in origins for source in self._records[origin.docid].sources]
        nodes = {name or f"e{place}": self._root(origin) for place, (name, origin) in enumerate(roots, 1)}
        return tuple([id for id, _ in sources]), tuple([stream for _, stream in sources]), json_nodes(nodes)

    def _root(self, origin: Origin) -> int | str:
        element, place = plain_node(origin.nodes[0])
        if not place:
            return element
        return f"{element}/@{self._records[origin.docid].tree.attribute(element, place)[0]}"

    def _published(self, running_id: str, answers: Sequence[Answer], first_qid: int) -> list[Record]:
        """Returns answers as documents of the streams that their queries PUBLISH, if any query reads them."""
        events = self._registry.events
        publishers = [query for query in events.members(running_id) if query.publishes and query.qid >= first_qid]
        return [
            _document(query.name, query.identity.id(answer.choice.encode()), answer)
            for query in sorted(publishers, key=lambda query: (query.name, query.qid))
            if self._registry.is_read(query.name)
            for answer in answers
            if since_of(query) < answer.appeared
        ]


def _roots(parts: Parts, numbers: Iterable[int]) -> list[tuple[str, Origin]]:
    """Returns the events of documents behind the parts of a result, each once, without names."""
    origins: dict[tuple[int, tuple[int, ...]], Origin] = {}
    for number in numbers:
        for origin in parts.documents(number):
            origins.setdefault((origin.docid, origin.nodes), origin)
    return [("", origin) for origin in origins.values()]


def _document(stream: str, id: str, answer: Answer) -> Record:
    sources = tuple(zip(answer.documents, answer.streams, strict=True))
    xml = answer.body.xml(stream)
    own = (own_part_id(stream, id),)
    return Record(-1, id, stream, answer.t0, answer.t1, xml, "published", (), own, sources, arrival=answer.arrival)


def _children(names: Sequence[str], texts: Sequence[str | None]) -> str:
    """Returns the end of an output document: an element for each attribute that is not NULL."""
    children = "".join(element(name, text) for name, text in zip(names, texts, strict=True) if text is not None)
    return f">{children}</match>" if children else "/>"


def _choice(t0: int, t1: int, attributes: Sequence[str | None], parts: Sequence[str]) -> str:
    """Returns the part of the output's id that the outputs of all queries of the form share."""
    return f", {json.dumps([t0, t1, list(attributes), [json.loads(part) for part in parts]], ensure_ascii=False)}]"


def _shown(column: Column, texts: Texts) -> list[str | None]:
    """Returns the values of an attribute as they stand in output documents: numbers as XPath writes them."""
    if column.dtype == np.float64:
        return [None if value != value else number_text(value) for value in column.tolist()]
    return written(column, texts)
