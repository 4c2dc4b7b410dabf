"""Answers and output documents. An answer is what a form's members get for one choice of documents and nodes; with a
query's name and id it becomes an output. Builds the XML (thesis, section 6.2: default pair of subtrees, SELECT items,
element constructors) and that of PATTERN statements, names their nodes, and defines the order of output lines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from json.encoder import encode_basestring as json_text
from typing import TYPE_CHECKING, Any, NamedTuple

from lxml import etree

from mmqjp.documents.record import Record
from mmqjp.queries.forms import OutputChild, Selection, element
from pattern_stage.lineage import EventOrigin
from xpath_stage.binder import Node
from xscl.algebra.events import ERRORS, EVENTS, NearPattern, Pattern, Schema, Statement, letters_of
from xscl.algebra.joins import NormalQuery
from xscl.algebra.values import ElementConstructor, Hole, derive, number_text

if TYPE_CHECKING:
    from mmqjp.answers.events_run import Parts


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


def json_nodes(nodes: Mapping[str, int | str]) -> str:
    texts = ((name, json_text(node) if isinstance(node, str) else node) for name, node in nodes.items())
    return f"{{{', '.join(f'{json_text(name)}: {text}' for name, text in texts)}}}"


def read_nodes(text: str) -> dict[str, int | str]:
    nodes: dict[str, int | str] = json.loads(text)
    return nodes


def node_order(node: int | str) -> tuple[int, str]:
    element, _, attribute = str(node).partition("/")
    return int(element), attribute


def node_orders(nodes: Mapping[str, int | str]) -> list[tuple[str, tuple[int, str]]]:
    return [(name, node_order(node)) for name, node in nodes.items()]


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

    @property
    def order(self) -> tuple[object, ...]:
        return self.t1, self.documents, node_orders(read_nodes(self.nodes)), self.choice, self.form


@dataclass(slots=True)
class BoundValue:
    """The node bound to a SELECT variable, with derived-value functions to apply."""

    record: Record
    node: Node
    functions: tuple[str, ...] = ()

    def text(self) -> str:
        value = self.record.tree.string_value(*self.node)
        for name in self.functions:
            value = derive(name, value)
        return value

    def is_element(self) -> bool:
        return not self.node[1] and not self.functions

    def markup(self) -> str:
        record, number = self.record, self.node[0]
        if number == 0 and record.kind == "external" and not record.has_namespaces:
            return record.xml  # which was serialized in the same way
        if (found := record.fragments.get(number)) is None:
            element = record.tree.elements[number]
            if record.has_namespaces:
                # In a tree of its own, so that namespaces are declared where they are used.
                etree.Element("match").append(element := self.copy())
            found = record.fragments[number] = etree.tostring(element, encoding="unicode", with_tail=False)
        return found

    def copy(self) -> etree._Element:
        copied = deepcopy(self.record.tree.elements[self.node[0]])
        copied.tail = None
        return copied

    def json_id(self) -> int | str:
        element, place = self.node
        return f"{element}/@{self.record.tree.attribute(element, place)[0]}" if place else element

    def json(self) -> str:
        return json_text(str(self.json_id())) if self.node[1] else str(self.node[0])


def body(
    selection: Selection, t0: int, t1: int, values: Sequence[BoundValue], holes: Sequence[BoundValue | str]
) -> Body:
    """Builds the output document from the values of the selection's terms, and of a constructor's holes in order."""
    normal = selection.normal
    if normal.constructor is not None:
        root = _Constructor(normal, holes).build(normal.constructor)
        return Body("", etree.tostring(root, encoding="unicode"))
    if all(map(BoundValue.is_element, values)):
        children = selection.children % tuple([value.markup() for value in values])
    else:
        rest = iter(values)
        children = "".join([item.constant or _child(item, next(rest), star=normal.star) for item in selection.items])
    return Body('<match query="', f'" t0="{t0}" t1="{t1}"{end_of_match(children)}')


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
    return element(name, value.text())


class _Constructor:
    def __init__(self, query: NormalQuery, holes: Sequence[BoundValue | str]) -> None:
        self._uris = dict(query.namespaces)
        self._holes = iter(holes)

    def build(self, constructor: ElementConstructor) -> etree._Element:
        prefix = constructor.name.rpartition(":")[0]
        nsmap = {prefix: self._uris[prefix]} if prefix and prefix != "xml" else None
        element = etree.Element(self._name(constructor.name), nsmap=nsmap)
        for name, parts in constructor.attributes:
            element.set(self._name(name), "".join(self._text(part) for part in parts))
        for child in constructor.children:
            if isinstance(child, ElementConstructor):
                element.append(self.build(child))
            elif isinstance(child, str):
                _append_text(element, child)
            else:
                value = next(self._holes)
                if isinstance(value, BoundValue) and value.is_element():
                    element.append(value.copy())
                else:
                    _append_text(element, value if isinstance(value, str) else value.text())
        return element

    def _text(self, part: str | Hole) -> str:
        if isinstance(part, str):
            return part
        value = next(self._holes)
        return value if isinstance(value, str) else value.text()

    def _name(self, name: str) -> str:
        prefix, _, local = name.rpartition(":")
        if prefix == "xml":
            return f"{{http://www.w3.org/XML/1998/namespace}}{local}"
        return f"{{{self._uris[prefix]}}}{local}" if prefix else local


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
        self._column = columns.get(EVENTS, -1)
        """Column of EVENTS, if there is no RETURN."""
        self._errors = -1
        self._letters: dict[str, OutputVariable] = {}
        """By stream, the letters of a pattern with ERRORS, whose matches have one part."""
        self._variables: list[OutputVariable] = []
        """By the parts of a match of another pattern."""
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
    return value if isinstance(value, str) else number_text(float(value))
