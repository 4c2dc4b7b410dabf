"""Matches of stage 2, their answers, and output documents. A match fixes the joined nodes; joint bindings extend it to
all variables of a conjunctive query (K+; docs/semantics.md, section 15), subject to residual predicates, comparisons
that are not value joins. Also decides whether a match has a mirror. An answer is what a form's members get for one
choice of documents and nodes; with a query's name and id it becomes an output. Builds the XML (thesis, section 6.2:
default pair of subtrees, SELECT items, element constructors) and that of PATTERN statements, names their nodes, and
defines the order of output lines."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from json.encoder import encode_basestring as json_text
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lxml import etree

from common.arrays import Ints
from common.dates import iso_utc
from common.errors import InvalidValue
from common.tools import ClearedCache
from feeds.json_documents import xml_to_json
from join_stage.protocol import RESULT
from mmqjp.answers.bindings import (
    CHARACTERS_READ_PER_STEP,
    FEW,
    BoundValue,
    Encoded,
    Match,
    ValueColumn,
    json_nodes,
    markup_of,
    node_orders,
    read_nodes,
    residual_holds,
    value_of,
)
from mmqjp.answers.quota import Steps
from mmqjp.documents.record import Inputs, Record
from mmqjp.queries.forms import OutputChild, Selection, element
from mmqjp.tables.schema import ANSWER_TABLES, rows_table
from pattern_stage.lineage import EventOrigin
from templates.witness import PLAIN
from xpath_stage.binder import HELD, PreparedNode, each_binding
from xpath_stage.documents import element_text
from xscl.algebra import values as algebra
from xscl.algebra.events import ERRORS, EVENTS, NearPattern, Pattern, Schema, Statement, Stories, Together, letters_of
from xscl.algebra.joins import Conjunct, Mirror, Term, naming, needed
from xscl.algebra.near import words_again
from xscl.algebra.weights import chosen_weights

if TYPE_CHECKING:
    from mmqjp.answers.events_run import Parts

T = TypeVar("T")


def as_batch(matches: Sequence[Match]) -> pa.RecordBatch:
    columns = [list(column) for column in zip(*matches, strict=True)]
    return pa.table(columns, schema=RESULT).combine_chunks().to_batches()[0]


def match_rows(found: pa.RecordBatch, t0: Ints, t1: Ints, first: int, template_of: Callable[[int], int]) -> pa.Table:
    """Converts rows of `join_stage.protocol.RESULT`, which begin at `t0` and end at `t1`, to rows of `match_rows`,
    numbered from `first`. `template_of` maps rows of R_T to templates."""
    qids, place = np.unique(found["qid"].to_numpy(), return_inverse=True)
    templates = np.array([template_of(qid) for qid in qids.tolist()], np.int64)[place]
    offsets = np.append(0, found["nodes"].value_lengths().to_numpy().cumsum())
    plain = found["nodes"].flatten().to_numpy() & PLAIN
    columns = [
        np.arange(first, first + len(t0)), templates, found["docid1"], found["docid2"], t0, t1,
        pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(plain)),
    ]  # fmt: skip
    return pa.table([pa.array(column) for column in columns], schema=ANSWER_TABLES["match_rows"])


MAX_CACHED_PAIRS = 100_000  # the cache is cleared at this many document pairs


class Mirrors:
    """Detects JOIN UNORDERED matches that their mirrors already cover. Caches results by document pair for the step."""

    def __init__(self) -> None:
        self._tests: dict[Mirror, list[_Join]] = {}
        self._found = ClearedCache[tuple[Mirror, int, int], tuple[int, bool]](MAX_CACHED_PAIRS)

    def tell(self, mirror: Mirror | None, inputs: Inputs, steps: Steps) -> bool:
        """Returns whether a match has a mirror whose first document is less by (t1, stream, id). Raises OutOfSteps."""
        if mirror is None or not _place(inputs[1]) < _place(inputs[0]):
            return False
        if mirror.always:
            return True
        key = mirror, inputs[0].docid, inputs[1].docid
        if (known := self._found.get(key)) is not None:
            taken, found = known
            steps.take(taken)
            return found
        if mirror not in self._tests:
            self._tests[mirror] = list(map(_Join, mirror.conjuncts))
        before = steps.left
        found = any(join.holds(inputs[1], inputs[0], steps) for join in self._tests[mirror])
        self._found[key] = before - steps.left, found
        return found


def _place(record: Record) -> tuple[int, str, str]:
    return record.t1, record.stream, record.id


class _Join:
    """Tests pairs of documents against a conjunctive query of a join."""

    def __init__(self, conjunct: Conjunct) -> None:
        assert conjunct.right is not None, "a join has two inputs"
        sides = conjunct.left, conjunct.right
        self._left, self._right = (PreparedNode(naming(side.pattern, needed(conjunct))) for side in sides)
        self._equal, self._residual = conjunct.equalities(), conjunct.residual

    def holds(self, left: Record, right: Record, steps: Steps) -> bool:
        """Raises OutOfSteps."""

        def bindings(part: PreparedNode, record: Record) -> Iterator[dict[str, BoundValue]]:
            for found in each_binding(part, record.tree, {}, steps.take):
                yield {var: BoundValue(record, node) for var, node in found}

        def text(bound: Mapping[str, BoundValue], term: Term) -> str:
            return read_value(value_of(bound, term), steps)

        def texts(bound: Mapping[str, BoundValue], side: int) -> tuple[str, ...]:
            return tuple([read_value(value_of(bound, pair[side]), steps) for pair in self._equal])

        by_values: dict[tuple[str, ...], list[dict[str, BoundValue]]] = {}
        for bound in bindings(self._right, right):
            steps.take(HELD)
            by_values.setdefault(texts(bound, 1), []).append(bound)
        for bound in bindings(self._left, left) if by_values else ():
            for other in by_values.get(texts(bound, 0), ()):
                steps.take()
                text_of = partial(text, {**bound, **other})
                if all(residual_holds(expr, text_of) for expr in self._residual):
                    return True
        return False


def read_value(value: BoundValue, steps: Steps) -> str:
    text = value.text()
    steps.take(len(text) // CHARACTERS_READ_PER_STEP)
    return text


@dataclass(frozen=True, slots=True)
class Output:
    """An output document of a query. Times are UTC microseconds.

    `documents` and `streams` are parallel: ids of the external documents behind the output, in the query's order, and
    their streams. `nodes` maps SELECT variables to an element's number in document order, or "owner/@name". `xml` is
    the output document. `id` is a digest, equal on every engine and after every restart. `seq` numbers outputs
    consecutively in commit order; it is -1 before commit.
    """

    query: str
    t0: int
    t1: int
    documents: tuple[str, ...]
    streams: tuple[str, ...]
    nodes: Mapping[str, int | str]
    xml: str
    id: str = ""
    seq: int = -1

    @property
    def story(self) -> str:
        """The id of the story that the output tells of, "" if it is of no story query."""
        return story_of(self.xml)[0]

    @property
    def change(self) -> str:
        """What happened to the story: opened, grew, merged or closed; "" without one."""
        return story_of(self.xml)[1]

    def to_dict(self) -> dict[str, object]:
        found = {name: getattr(self, name) for name in ("id", "seq", "query", "t0", "t1")}
        lists = {"documents": list(self.documents), "streams": list(self.streams)}
        story = {"story": self.story, "change": self.change} if self.story else {}
        return found | lists | {"nodes": dict(self.nodes)} | story | {"xml": self.xml}

    def to_line(self) -> bytes:
        """Returns the output line as UTF-8 JSON, four times as fast as `json.dumps`."""
        story = f'"story": "{self.story}", "change": "{self.change}", ' if self.story else ""
        return (
            f'{{"id": {json_text(self.id)}, "seq": {self.seq}, "query": {json_text(self.query)}, "t0": {self.t0}, '
            f'"t1": {self.t1}, "documents": {json_texts(self.documents)}, "streams": {json_texts(self.streams)}, '
            f'"nodes": {json_nodes(self.nodes)}, {story}"xml": {json_text(self.xml)}}}\n'
        ).encode()


STORY_HEAD = '<story query="'
_STORY = re.compile(r'<story query="[^"]*" t0="-?\d+" t1="-?\d+" id="([0-9a-f]{32})" change="(\w+)"')
_GROWN = re.compile(r'[^>]* members="(\d+)"')


def story_of(xml: str) -> tuple[str, str]:
    """Returns the id of the story that an output document tells of, and what happened to it; "" and "" of others."""
    found = _STORY.match(xml) if xml.startswith(STORY_HEAD) else None
    return (found[1], found[2]) if found else ("", "")


def size_of_story(tail: str) -> int:
    """Returns the number of members of a story, given what follows the head of its document. Of the changes of a story
    that have one time, and of those that it took up, the later ones have more."""
    return int(_GROWN.match(tail)[1])  # type: ignore[index]  # each story has members


BodyForm = Literal["xml", "json"]


def output_json(shown: Mapping[str, object], body: BodyForm) -> str:
    """The fields of an output as JSON. With the body "json", the last is `json`, the output document as JSON, in place
    of `xml`: as text, because numbers stay as they were written. What an older version stored and is no XML stays."""
    if body == "xml" or not isinstance(xml := shown.get("xml"), str):
        return json.dumps(shown, ensure_ascii=False)
    try:
        found = xml_to_json(xml)
    except InvalidValue:
        return json.dumps(shown, ensure_ascii=False)
    rest = {key: value for key, value in shown.items() if key != "xml"}
    return f'{json.dumps(rest, ensure_ascii=False)[:-1]}, "json": {found}}}'


def json_texts(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(json_text, texts))}]"


def output_order(output: Output) -> tuple[Any, ...]:
    """Sort key of an output line: t1, query, members of a story, documents, nodes."""
    size = size_of_story(output.xml) if output.xml.startswith(STORY_HEAD) else 0
    return output.t1, output.query, size, output.documents, node_orders(output.nodes)


@dataclass(frozen=True, slots=True)
class Body:
    """An output document, split where the query's name is inserted; without a name, `before` is empty."""

    before: str
    after: str

    def xml(self, name: str) -> str:
        """Returns a query's output document. Query names need no XML escapes."""
        return f"{self.before}{name}{self.after}" if self.before else self.after

    def __len__(self) -> int:
        return len(self.before) + len(self.after)


@dataclass(eq=False, slots=True)
class Answer:
    """An uncommitted answer.

    `t0`, `t1`, `documents`, `streams` and `nodes` (JSON) are those of its outputs, and `choice` is the shared part of
    their ids. `form`, `width`, `appeared`, `first_qid`, `arrival` and the qids `withheld` determine the recipients, as
    in the table `answers`. `matches` are match numbers.
    """

    t0: int
    t1: int
    documents: tuple[str, ...]
    streams: tuple[str, ...]
    nodes: str
    body: Body
    choice: str
    form: str
    width: int
    appeared: int
    first_qid: int
    arrival: int
    withheld: tuple[int, ...] = ()
    matches: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Any]], place: int) -> Answer:
        """Returns the answer at a place of `ANSWER_COLUMNS`."""
        given = {name: columns[name][place] for name in ANSWER_COLUMNS}
        given |= {name: tuple(given[name]) for name in ("documents", "streams")}
        return cls(body=Body(given.pop("head"), given.pop("tail")), **given)

    @property
    def order(self) -> tuple[object, ...]:
        return self.t1, self.documents, node_orders(read_nodes(self.nodes)), self.choice, self.form


_INTS = ("t0", "t1", "width", "appeared", "first_qid", "arrival")

ANSWER_COLUMNS = (*_INTS, "form", "documents", "streams", "nodes", "head", "tail", "choice")
"""An answer's attributes; its body is `head` and `tail`."""


def _type_of(name: str) -> pa.DataType:
    # Many bodies are longer than what strings can address.
    given = ANSWER_TABLES["answers"].field(name).type if name in ANSWER_COLUMNS else pa.int64()
    return pa.large_string() if given == pa.string() else given


_ROWS = pa.schema([(name, _type_of(name)) for name in (*ANSWER_COLUMNS, "id")])

TextColumn: TypeAlias = list[str] | Any
"""Up to FEW texts as a list, more as an array of Arrow."""

TextPart = str | Encoded | Ints
"""A text that all rows have, or that of each row."""


def joined_texts(count: int, parts: Sequence[TextPart]) -> TextColumn:
    """Returns texts put together of parts, for each row."""
    merged: list[TextPart] = [""]
    for part in parts:
        if isinstance(part, str) and isinstance(last := merged[-1], str):
            merged[-1] = last + part
        else:
            merged.append(part)
    if count <= FEW:
        rows = [[part] * count if isinstance(part, str) else _rows(part) for part in merged]
        return list(map("".join, zip(*rows, strict=True)))
    if len(merged) == 1:
        return pa.repeat(pa.scalar(merged[0], pa.large_string()), count)
    columns = [pa.scalar(part, pa.large_string()) if isinstance(part, str) else _arrow(part) for part in merged]
    return pc.binary_join_element_wise(*columns, pa.scalar("", pa.large_string()))


def _rows(part: Encoded | Ints) -> list[str]:
    return part.rows() if isinstance(part, Encoded) else list(map(str, part.tolist()))


def _arrow(part: Encoded | Ints) -> pa.Array:
    return part.take() if isinstance(part, Encoded) else pa.array(part).cast(pa.large_string())


def lengths(texts: TextColumn) -> Ints:
    """Returns the number of characters of each text."""
    found = list(map(len, texts)) if isinstance(texts, list) else pc.utf8_length(texts)
    return np.asarray(found, np.int64)


def between(pieces: Sequence[str], columns: Iterable[TextPart]) -> list[TextPart]:
    """Returns the pieces with columns between them."""
    return [part for pair in zip(pieces, columns, strict=False) for part in pair] + [pieces[-1]]


class AnswerColumns:
    """The uncommitted answers of a step, by columns. Each has an id, by which matches behind it are linked to it, and
    the qids `withheld` from it, if there are any."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._few: dict[str, list[Any]] = {name: [] for name in _ROWS.names}  # what came in small numbers
        self._links: list[tuple[Ints, Ints]] = []
        self.withheld: dict[int, tuple[int, ...]] = {}
        self.next_id = 0

    def __len__(self) -> int:
        return len(self._few["id"]) + sum(map(len, self._tables))

    def add(self, columns: Mapping[str, Any], ids: Ints) -> None:
        """Adds answers with ids that `next_id` gave, by columns as sequences or as arrays."""
        given: Mapping[str, Any] = {**columns, "id": ids}
        if len(ids) <= FEW:
            for name, column in self._few.items():
                column += given[name].tolist() if isinstance(given[name], np.ndarray) else given[name]
        else:
            self._tables.append(pa.table({name: given[name] for name in _ROWS.names}, _ROWS))

    def append(self, answer: Answer) -> None:
        given = {name: getattr(answer, name) for name in ANSWER_COLUMNS if name not in ("head", "tail")}
        given |= {"head": answer.body.before, "tail": answer.body.after, "id": self.next_id}
        for name, column in self._few.items():
            column.append(given[name])
        if answer.withheld:
            self.withheld[self.next_id] = answer.withheld
        if answer.matches:
            self.link(np.full(len(answer.matches), self.next_id), np.array(answer.matches, np.int64))
        self.next_id += 1

    def link(self, ids: Ints, matches: Ints) -> None:
        """Notes that answers come of matches, by number."""
        self._links.append((ids, matches))

    def clear(self) -> None:
        self._tables.clear()
        for column in self._few.values():
            column.clear()
        self._links.clear()
        self.withheld.clear()

    @property
    def rows(self) -> pa.Table:
        """The answers: ANSWER_COLUMNS and `id`."""
        if self._few["id"]:
            self._tables.append(rows_table(list(zip(*self._few.values(), strict=True)), _ROWS))
            self._few = {name: [] for name in _ROWS.names}
        if len(self._tables) != 1:
            self._tables = [pa.concat_tables([_ROWS.empty_table(), *self._tables]).combine_chunks()]
        return self._tables[0]

    def forms(self) -> set[str]:
        found = set[str](self._few["form"])
        return found.union(*(table["form"].unique().to_pylist() for table in self._tables))

    def ints(self, name: str) -> Ints:
        found: Ints = self.rows[name].to_numpy()
        return found

    def places(self, ids: Ints) -> Ints:
        """Returns the places of answers in `rows`, -1 of ids that were not added."""
        own = self.ints("id")
        if not len(own):
            return np.full(len(ids), -1)
        order = np.argsort(own, kind="stable")
        at = np.minimum(own[order].searchsorted(ids), len(own) - 1)
        return np.where(own[order][at] == ids, order[at], -1)

    def links(self) -> tuple[Ints, Ints]:
        """Returns places of answers, and the match of each; other ids are of answers that were not added."""
        if not self._links:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        ids, matches = (np.concatenate(column) for column in zip(*self._links, strict=True))
        places = self.places(ids)
        return places[places >= 0], matches[places >= 0]

    def split(self, part: Ints, parts: int) -> list[AnswerColumns]:
        """Returns the answers of each part, given the part of each answer."""
        places, matches = self.links()
        ids, found = self.ints("id"), []
        for number in range(parts):
            one = AnswerColumns()
            at = np.flatnonzero(part == number)
            one._tables.append(self.rows if len(at) == len(part) else self.rows.take(pa.array(at)))
            own = part[places] == number
            one.link(ids[places[own]], matches[own])
            those = set(one.ints("id").tolist()) if self.withheld else ()
            one.withheld = {id: qids for id, qids in self.withheld.items() if id in those}
            one.next_id = self.next_id
            found.append(one)
        return found

    def extend(self, other: AnswerColumns, matches_of: Ints | None = None, first: int = 0) -> None:
        """Adds all answers of other columns. Their matches, `matches_of` in order, are then numbered from `first`."""
        ids = pa.array(other.ints("id") + self.next_id)
        self._tables.append(other.rows.set_column(_ROWS.get_field_index("id"), "id", ids))
        for of, matches in other._links:
            numbers = matches if matches_of is None else matches_of.searchsorted(matches) + first
            self.link(of + self.next_id, numbers)
        self.withheld |= {id + self.next_id: qids for id, qids in other.withheld.items()}
        self.next_id += other.next_id


@dataclass(frozen=True, slots=True)
class AnswerTexts:
    """What answers of one selection show: the texts before and after the query's name, the nodes as a JSON object, and
    the parts of a JSON list of them."""

    head: str
    tails: TextColumn
    nodes: TextColumn
    node_list: list[TextPart]


def answer_texts(
    selection: Selection, t0: Ints, t1: Ints, values: Sequence[ValueColumn], holes: Sequence[ValueColumn | str]
) -> AnswerTexts:
    """Returns the output documents of rows, given the columns of the selection's terms, and of a constructor's holes in
    order."""
    count = len(t0)
    nodes = [column.json() for column in values]
    shared = joined_texts(count, between(selection.nodes, nodes)), between(selection.node_list, nodes)
    if selection.constructor is not None:
        return AnswerTexts("", _constructed(selection, count, holes), *shared)
    rest, children = iter(values), list[TextPart]()
    for item in selection.items:
        if item.constant is not None:
            children.append(item.constant)
        elif (markups := (column := next(rest)).markups()) is not None:
            children += item.before, markups, item.after
        else:
            children.append(column.texts(partial(_child, item, star=selection.star)))
    inside: list[TextPart] = [">", *children, "</match>"] if children else ["/>"]
    return AnswerTexts('<match query="', joined_texts(count, ['" t0="', t0, '" t1="', t1, '"', *inside]), *shared)


def end_of_match(children: str) -> str:
    """Returns the end of a default output, after its attributes."""
    return f">{children}</match>" if children else "/>"


def _child(item: OutputChild, value: BoundValue, *, star: bool) -> str:
    """Returns a child of a default output. With `star`, the element itself, or a new element that holds an attribute
    under its name or a derived value under its key."""
    if value.is_element():
        return f"{item.before}{value.markup()}{item.after}"
    name = item.name
    if star and not value.functions:
        name = value.record.tree.attribute(*value.node)[0]
    if name.startswith("{"):  # a prefix is declared where it is used
        made = etree.Element(name)
        made.text = value.text()
        return etree.tostring(made, encoding="unicode")
    return element(name, value.text())


def _constructed(selection: Selection, count: int, holes: Sequence[ValueColumn | str]) -> TextColumn:
    constructor = selection.constructor
    assert constructor is not None, "the output is constructed"
    pieces, are_attributes = _template(constructor, selection.namespaces)
    texts: list[TextPart] = []
    for hole, is_attribute in zip(holes, are_attributes, strict=True):
        if isinstance(hole, str):
            texts.append(_escaped(hole, is_attribute))
        elif not is_attribute and any(one.is_element() and one.record.has_namespaces for one in hole.values()):
            break
        else:
            texts.append(hole.texts(partial(_in_hole, is_attribute=is_attribute)))
    else:
        return joined_texts(count, between(pieces, texts))
    # Where prefixes are declared depends on what is around them.
    values = [
        [hole] * count if isinstance(hole, str) else list(map(hole.values().__getitem__, hole.places.tolist()))
        for hole in holes
    ]
    made = (_build(constructor, selection.namespaces, iter(row)) for row in zip(*values, strict=True))
    return [etree.tostring(root, encoding="unicode") for root in made]


_HOLE = "hole" + token_hex(8)
"""Stands for a hole. No constructor has it, because it is random."""


@lru_cache(1_000)
def _template(
    constructor: algebra.ElementConstructor, namespaces: tuple[tuple[str, str], ...]
) -> tuple[list[str], tuple[bool, ...]]:
    """Returns the text around the holes, and which holes are in attributes."""
    holes = list(algebra.holes_of(constructor))
    root = _build(constructor, namespaces, iter([_HOLE] * len(holes)))
    parts = etree.tostring(root, encoding="unicode").split(_HOLE)
    in_tag = [part.rfind("<") > part.rfind(">") for part in _prefixes(parts)]
    return parts, tuple(in_tag)


def _prefixes(parts: Sequence[str]) -> Iterator[str]:
    return ("".join(parts[:end]) for end in range(1, len(parts)))


def _in_hole(value: BoundValue, *, is_attribute: bool) -> str:
    if value.is_element() and not is_attribute:
        return value.markup()
    return _escaped(value.text(), is_attribute)


def _escaped(text: str, is_attribute: bool) -> str:
    if is_attribute:
        return etree.tostring(etree.Element("x", {"x": text}), encoding="unicode")[len('<x x="') : -len('"/>')]
    element = etree.Element("x")
    element.text = text
    return etree.tostring(element, encoding="unicode")[len("<x>") : -len("</x>")]


def _build(
    constructor: algebra.ElementConstructor, namespaces: Sequence[tuple[str, str]], holes: Iterator[BoundValue | str]
) -> etree._Element:
    uris = dict(namespaces)

    def qualified(name: str) -> str:
        prefix, _, local = name.rpartition(":")
        if prefix == "xml":
            return f"{{http://www.w3.org/XML/1998/namespace}}{local}"
        return f"{{{uris[prefix]}}}{local}" if prefix else local

    def text_of(part: str | algebra.Hole) -> str:
        value = part if isinstance(part, str) else next(holes)
        return value if isinstance(value, str) else value.text()

    def build(constructor: algebra.ElementConstructor) -> etree._Element:
        prefix = constructor.name.rpartition(":")[0]
        nsmap = {prefix: uris[prefix]} if prefix and prefix != "xml" else None
        element = etree.Element(qualified(constructor.name), nsmap=nsmap)
        for name, parts in constructor.attributes:
            element.set(qualified(name), "".join(map(text_of, parts)))
        for child in constructor.children:
            if isinstance(child, algebra.ElementConstructor):
                element.append(build(child))
                continue
            value = child if isinstance(child, str) else next(holes)
            if isinstance(value, BoundValue) and value.is_element():
                element.append(value.copy())
            else:
                _append_text(element, value if isinstance(value, str) else value.text())
        return element

    return build(constructor)


def _append_text(element: etree._Element, text: str) -> None:
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text


class OutputVariable(NamedTuple):
    """A non-negated variable: name, whether it has several events, and attribute names."""

    name: str
    several: bool
    attributes: tuple[str, ...]


def with_output_attributes(stream: Statement) -> Statement:
    """Returns a statement with all attributes that its output documents need, its own first."""
    if not isinstance(stream, Pattern | NearPattern):
        return stream
    if stream.returned is None:
        return replace(stream, schema=(*stream.schema, (EVENTS, "string")))
    if isinstance(stream, NearPattern):
        return stream
    several: Schema = tuple((item.name, "string") for item in stream.returned if item.each is not None)
    return replace(stream, schema=(*stream.schema, *several))


def _names(schema: Schema) -> tuple[str, ...]:
    return tuple(name for name, _ in schema)


class PatternDocuments:
    """Builds a pattern's documents. Attributes as in `with_output_attributes`."""

    def __init__(self, pattern: Pattern | NearPattern) -> None:
        columns = {name: place for place, (name, _) in enumerate(with_output_attributes(pattern).schema)}
        self._column = columns.get(EVENTS, -1)  # column of EVENTS, if there is no RETURN
        self._errors = -1
        self._letters: dict[str, OutputVariable] = {}
        """By stream, the letters of a pattern with ERRORS, whose matches have one part."""
        self._variables: list[OutputVariable] = []  # by the parts of a match of another pattern
        self._items: list[tuple[str, int, bool]] | None = None
        """The items of RETURN: element name, column, and whether it has a value per event."""
        if isinstance(pattern, NearPattern):
            self._errors = columns[ERRORS]
            count = Counter(one.source.stream for one in letters_of(pattern.letters, repeated=2))
            for source in (one.source for one in letters_of(pattern.letters)):
                several = count[source.stream] > 1
                self._letters[source.stream] = OutputVariable(source.stream, several, _names(source.schema))
            if pattern.returned is not None:
                self._items = [(name, columns[name], False) for name, _ in pattern.returned]
        else:
            is_whole = isinstance(pattern, Together)  # then its part is the last event of its matches
            found = pattern.variables[-1:] if is_whole else [one for one in pattern.variables if not one.negated]
            self._variables = [
                OutputVariable(one.name, one.kleene and not is_whole, _names(one.source.schema)) for one in found
            ]
            if pattern.returned is not None:
                self._items = [(one.name, columns[one.name], one.each is not None) for one in pattern.returned]

    def document(self, texts: Sequence[str | None], numbers: Sequence[int], parts: Parts) -> str:
        """Returns the end of a document, after `t1`."""
        if self._items is None:
            children = "".join(self._events(json.loads(texts[self._column] or "[]"), numbers, parts))
        else:
            items = (_item(name, texts[column], several=several) for name, column, several in self._items)
            children = "".join(text for found in items for text in found)
        errors = f' {ERRORS}="{texts[self._errors]}"' if self._errors >= 0 else ""
        return errors + end_of_match(children)

    def _events(self, values: Sequence[Sequence[Any]], numbers: Sequence[int], parts: Parts) -> Iterator[str]:
        for (_, variable, number), row in zip(self.named(numbers, parts), values, strict=True):
            one = parts.origin(number)
            values_of = zip(variable.attributes, row, strict=True)
            inside = "".join(element(name, _text(value)) for name, value in values_of if value is not None)
            times = f't0="{one.t0}" t1="{one.t1}"'
            yield f"<{variable.name} {times}>{inside}</{variable.name}>" if inside else f"<{variable.name} {times}/>"

    def named(self, numbers: Sequence[int], parts: Parts) -> Iterator[tuple[str, OutputVariable, int]]:
        """Yields a match's events: name (`v` or `v[1]`), variable, number. Variables come in turn, letters by time."""
        counts: dict[str, int] = {}
        for place, number in enumerate(numbers):
            for member in parts.members(number):
                letter = self._letters.get(parts.origin(member).stream)
                variable = self._variables[place] if letter is None else letter
                count = counts[variable.name] = counts.get(variable.name, 0) + 1
                yield f"{variable.name}[{count}]" if variable.several else variable.name, variable, member

    def roots(self, numbers: Sequence[int], parts: Parts) -> Iterator[tuple[str, EventOrigin]]:
        """Yields the document events behind a match with their root nodes' names: the event's own, or `v.e1`, `v.e2`,
        ... for a published event with several behind it."""
        for name, _, number in self.named(numbers, parts):
            behind = parts.documents(number)
            for place, origin in enumerate(behind, 1):
                yield name if len(behind) == 1 else f"{name}.e{place}", origin


class ListedDocument(NamedTuple):
    """A document of a story, as its event has it: `time` is that of its end."""

    stream: str
    id: str
    time: int
    feed: str

    def attributes(self) -> str:
        texts = self.id, self.stream, self.feed, iso_utc(self.time)
        pairs = zip(("document", "stream", "feed", "time"), texts, strict=True)
        return "".join(f' {name}="{_escaped(text, True)}"' for name, text in pairs)


class StoryDocuments:
    """Builds the documents of stories. They list the documents that no earlier one of the same story listed."""

    def __init__(self, stories: Stories) -> None:
        self._names = [name for name, _ in stories.schema]
        self._counts = [name for name, kind in stories.schema if kind == "number"]

    def document(
        self, texts: Sequence[str | None], earliest: Sequence[Record], last: Sequence[Record]
    ) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """Returns the end of a document, after `t1`, and the ids and streams of the documents that it names. The
        records are those of which events about the first and the latest document were made: mostly one pair."""
        of = dict(zip(self._names, texts, strict=True))
        first, latest, *listed = (
            ListedDocument(*one) for name in ("first", "latest", "joined") for one in json.loads(of[name] or "[]")
        )
        shown = _in_pair(earliest, first), _in_pair(last, latest)
        attributes = {
            "id": of["story"],
            "change": of["change"],
            "first": iso_utc(first.time),
            "latest": iso_utc(latest.time),
        }
        attributes |= {name: of[name] for name in self._counts}
        words = common_words(*(text for text, _ in shown)) if first != latest else []
        children = [element("words", " ".join(words))] if words else []
        for name, one, (_, markup) in zip(("first", "latest"), (first, latest), shown, strict=True):
            children.append(f"<{name}{one.attributes()}>{markup}</{name}>")
        children += (f'<merged id="{id}"/>' for id in json.loads(of["merged"] or "[]"))
        children += (f"<member{one.attributes()}/>" for one in listed)
        named = list(dict.fromkeys((one.id, one.stream) for one in (first, *listed, latest)))
        opening = "".join(f' {name}="{value}"' for name, value in attributes.items())
        ids, streams = (tuple(column) for column in zip(*named, strict=True))
        return f"{opening}>{''.join(children)}</story>", ids, streams


def _in_pair(pairs: Iterable[Record], one: ListedDocument) -> tuple[str, str]:
    """Returns the text of a document of a pair, and the markup of its element, if it has one."""
    for pair in pairs:
        for side in pair.tree.elements[0].iterchildren("*"):
            if (side.get("stream"), side.get("id")) == (one.stream, one.id) and (own := side.find("*")) is not None:
                texts = [child for child in own if child.tag in _SHOWN] or [own]
                number = pair.tree.elements.index(own)
                return " ".join(map(element_text, texts)), markup_of(pair, number)
    return "", ""  # a pair of other events than those of a join with STORIES


_SHOWN = "title", "description"

MOST_WORDS, LEAST_WEIGHT = 8, 40
"""How many words a story shows, and the weight below which a word says little: *from* has 23, *its* 33, *city* 43."""


def common_words(text: str, other: str) -> list[str]:
    """Returns the heaviest words that two texts share."""
    weight = chosen_weights().weight
    common = (word for word in words_again(text) & words_again(other) if weight(word) >= LEAST_WEIGHT)
    return sorted(common, key=lambda word: (-weight(word), word))[:MOST_WORDS]


def _item(name: str, text: str | None, *, several: bool) -> Iterator[str]:
    if text is not None and not several:
        yield element(name, text)
    elif text is not None:
        yield from (element(name, _text(value)) for value in json.loads(text) if value is not None)


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else algebra.number_text(float(value))
