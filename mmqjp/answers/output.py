"""Matches of stage 2, their answers, and output documents. A match fixes the joined nodes; joint bindings extend it to
all variables of a conjunctive query (K+; docs/semantics.md, section 15), subject to residual predicates, comparisons
that are not value joins. Also decides whether a match has a mirror. An answer is what a form's members get for one
choice of documents and nodes; with a query's name and id it becomes an output. Builds the XML (thesis, section 6.2:
default pair of subtrees, SELECT items, element constructors) and that of PATTERN statements, names their nodes, and
defines the order of output lines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from json.encoder import encode_basestring as json_text
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from lxml import etree

from common.arrays import Ints
from common.tools import ClearedCache
from join_stage.protocol import RESULT
from mmqjp.answers.bindings import (
    CHARACTERS_READ_PER_STEP,
    BoundValue,
    Match,
    json_nodes,
    node_orders,
    read_nodes,
    residual_holds,
    value_of,
)
from mmqjp.answers.quota import Steps
from mmqjp.documents.record import Inputs, Record
from mmqjp.queries.forms import OutputChild, Selection, element
from mmqjp.tables.schema import ANSWER_TABLES
from pattern_stage.lineage import EventOrigin
from templates.witness import PLAIN
from xpath_stage.binder import HELD, PreparedNode, each_binding
from xscl.algebra import values as algebra
from xscl.algebra.events import ERRORS, EVENTS, NearPattern, Pattern, Schema, Statement, letters_of
from xscl.algebra.joins import Conjunct, Mirror, naming, needed

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

        def text(bound: Mapping[str, BoundValue], var: str) -> str:
            return read_value(bound[var], steps)

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

    def to_dict(self) -> dict[str, object]:
        found = {name: getattr(self, name) for name in ("id", "seq", "query", "t0", "t1")}
        lists = {"documents": list(self.documents), "streams": list(self.streams)}
        return found | lists | {"nodes": dict(self.nodes), "xml": self.xml}

    def to_line(self) -> bytes:
        """Returns the output line as UTF-8 JSON, four times as fast as `json.dumps`."""
        return (
            f'{{"id": {json_text(self.id)}, "seq": {self.seq}, "query": {json_text(self.query)}, "t0": {self.t0}, '
            f'"t1": {self.t1}, "documents": {json_texts(self.documents)}, "streams": {json_texts(self.streams)}, '
            f'"nodes": {json_nodes(self.nodes)}, "xml": {json_text(self.xml)}}}\n'
        ).encode()


def json_texts(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(json_text, texts))}]"


def output_order(output: Output) -> tuple[Any, ...]:
    """Sort key of an output line: t1, query, documents, nodes."""
    return output.t1, output.query, output.documents, node_orders(output.nodes)


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
        return cls(body=Body(given.pop("head"), given.pop("tail")), **given)

    @property
    def order(self) -> tuple[object, ...]:
        return self.t1, self.documents, node_orders(read_nodes(self.nodes)), self.choice, self.form


_INTS = ("t0", "t1", "width", "appeared", "first_qid", "arrival")

ANSWER_COLUMNS = (*_INTS, "form", "documents", "streams", "nodes", "head", "tail", "choice", "withheld")
"""An answer's attributes; its body is `head` and `tail`."""


class AnswerColumns:
    """The uncommitted answers of a step, by columns. Each has an id, by which matches behind it are linked to it."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in (*ANSWER_COLUMNS, "id")}
        self._links: list[tuple[Ints, Ints]] = []
        self.next_id = 0

    def __len__(self) -> int:
        return len(self._columns["id"])

    def add(self, columns: Mapping[str, Sequence[Any]], ids: Sequence[int]) -> None:
        """Adds answers with ids that `next_id` gave."""
        for name in ANSWER_COLUMNS:
            self._columns[name] += columns[name]
        self._columns["id"] += ids

    def append(self, answer: Answer) -> None:
        given = {name: getattr(answer, name) for name in ANSWER_COLUMNS if name not in ("head", "tail")}
        given |= {"head": answer.body.before, "tail": answer.body.after}
        self.add({name: (value,) for name, value in given.items()}, (self.next_id,))
        if answer.matches:
            self.link(np.full(len(answer.matches), self.next_id), np.array(answer.matches, np.int64))
        self.next_id += 1

    def link(self, ids: Ints, matches: Ints) -> None:
        """Notes that answers come of matches, by number."""
        self._links.append((ids, matches))

    def clear(self) -> None:
        for column in self._columns.values():
            column.clear()
        self._links.clear()

    def forms(self) -> set[str]:
        return set(self._columns["form"])

    def __getitem__(self, name: str) -> list[Any]:
        """A column, in the order of addition."""
        return self._columns[name]

    def ints(self, name: str) -> Ints:
        return np.array(self._columns[name], np.int64)

    def links(self) -> tuple[Ints, Ints]:
        """Returns places of answers, and the match of each; other ids are of answers that were not added."""
        if not self._links:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        ids, matches = (np.concatenate(column) for column in zip(*self._links, strict=True))
        own = self.ints("id")
        order = np.argsort(own, kind="stable")
        at = np.minimum(own[order].searchsorted(ids), max(len(own) - 1, 0))
        known = own[order][at] == ids if len(own) else np.zeros(len(ids), np.bool_)
        return order[at[known]] if len(own) else at[known], matches[known]

    def split(self, part: Ints, parts: int) -> list[AnswerColumns]:
        """Returns the answers of each part, given the part of each answer."""
        places, matches = self.links()
        found = []
        for number in range(parts):
            one = AnswerColumns()
            those = np.flatnonzero(part == number)
            for name, column in self._columns.items():
                one._columns[name] = list(map(column.__getitem__, those.tolist()))
            own = part[places] == number
            one.link(self.ints("id")[places[own]], matches[own])
            one.next_id = self.next_id
            found.append(one)
        return found

    def extend(self, other: AnswerColumns, matches_of: Ints | None = None, first: int = 0) -> None:
        """Adds all answers of other columns. Their matches, `matches_of` in order, are then numbered from `first`."""
        for name in ANSWER_COLUMNS:
            self._columns[name] += other._columns[name]
        self._columns["id"] += [id + self.next_id for id in other._columns["id"]]
        for ids, matches in other._links:
            numbers = matches if matches_of is None else matches_of.searchsorted(matches) + first
            self.link(ids + self.next_id, numbers)
        self.next_id += other.next_id


@dataclass(frozen=True, slots=True)
class AnswerTexts:
    """What answers of one selection show, in parallel lists: the texts before and after the query's name, the nodes as
    a JSON object, and as a JSON list."""

    heads: list[str]
    tails: list[str]
    nodes: list[str]
    node_lists: list[str]


_Column = tuple[Ints, Mapping[int, BoundValue]]  # the code of each row's value, and the values by code


def answer_texts(
    selection: Selection, t0: Ints, t1: Ints, values: Sequence[_Column], holes: Sequence[_Column | str]
) -> AnswerTexts:
    """Returns the output documents of rows, given the columns of the selection's terms, and of a constructor's holes in
    order."""
    count, constructor = len(t0), selection.constructor
    nodes = [_texts(column, BoundValue.json) for column in values]
    shared = (
        list(map(template.__mod__, zip(*nodes, strict=True))) if nodes else [template % ()] * count
        for template in (selection.nodes, selection.node_list)
    )
    if constructor is not None:
        return AnswerTexts([""] * count, _constructed(selection, count, holes), *shared)
    rest, children, texts = iter(values), "", list[list[str]]()
    for item in selection.items:
        if item.constant is None:
            texts.append(_texts(next(rest), partial(_child, item, star=selection.star)))
        children += "%s" if item.constant is None else item.constant.replace("%", "%%")
    tail = f'" t0="%s" t1="%s"{end_of_match(children)}'
    tails = list(map(tail.__mod__, zip(t0.tolist(), t1.tolist(), *texts, strict=True)))
    return AnswerTexts(['<match query="'] * count, tails, *shared)


def _texts(column: _Column, text_of: Callable[[BoundValue], T]) -> list[T]:
    codes, values = column
    texts = {code: text_of(value) for code, value in values.items()}
    return list(map(texts.__getitem__, codes.tolist()))


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


def _constructed(selection: Selection, count: int, holes: Sequence[_Column | str]) -> list[str]:
    constructor = selection.constructor
    assert constructor is not None, "the output is constructed"
    template, are_attributes = _template(constructor, selection.namespaces)
    texts: list[list[str]] = []
    for hole, is_attribute in zip(holes, are_attributes, strict=True):
        if isinstance(hole, str):
            texts.append([_escaped(hole, is_attribute)] * count)
        elif any(one.is_element() and one.record.has_namespaces for one in hole[1].values()) and not is_attribute:
            break
        else:
            texts.append(_texts(hole, partial(_in_hole, is_attribute=is_attribute)))
    else:
        return list(map(template.__mod__, zip(*texts, strict=True))) if texts else [template % ()] * count
    # Where prefixes are declared depends on what is around them.
    values = [[hole] * count if isinstance(hole, str) else _texts(hole, lambda value: value) for hole in holes]
    made = (_build(constructor, selection.namespaces, iter(row)) for row in zip(*values, strict=True))
    return [etree.tostring(root, encoding="unicode") for root in made]


_HOLE = "hole" + token_hex(8)
"""Stands for a hole. No constructor has it, because it is random."""


@lru_cache(1_000)
def _template(
    constructor: algebra.ElementConstructor, namespaces: tuple[tuple[str, str], ...]
) -> tuple[str, tuple[bool, ...]]:
    """Returns the text with `%s` for each hole, and which holes are in attributes."""
    holes = list(algebra.holes_of(constructor))
    root = _build(constructor, namespaces, iter([_HOLE] * len(holes)))
    parts = etree.tostring(root, encoding="unicode").split(_HOLE)
    in_tag = [part.rfind("<") > part.rfind(">") for part in _prefixes(parts)]
    return "%s".join(part.replace("%", "%%") for part in parts), tuple(in_tag)


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
            found = [one for one in pattern.variables if not one.negated]
            self._variables = [OutputVariable(one.name, one.kleene, _names(one.source.schema)) for one in found]
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


def _item(name: str, text: str | None, *, several: bool) -> Iterator[str]:
    if text is not None and not several:
        yield element(name, text)
    elif text is not None:
        yield from (element(name, _text(value)) for value in json.loads(text) if value is not None)


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else algebra.number_text(float(value))
