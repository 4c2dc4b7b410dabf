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
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from json.encoder import encode_basestring as json_text
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from lxml import etree

from common.tools import ClearedCache
from join_stage.protocol import RESULT
from mmqjp.answers.quota import Steps
from mmqjp.documents.record import Inputs, Record
from mmqjp.queries.forms import FixedSide, OutputChild, RowPart, Selection, element
from mmqjp.tables.schema import ANSWER_TABLES
from pattern_stage.lineage import EventOrigin
from templates.witness import PLAIN, plain_node
from xpath_stage.binder import HELD, Node, PreparedNode, each_binding
from xscl.algebra import values as algebra
from xscl.algebra.events import ERRORS, EVENTS, NearPattern, Pattern, Schema, Statement, letters_of
from xscl.algebra.joins import Conjunct, Mirror, NormalQuery, Side, Term, naming, needed
from xscl.algebra.regex import PatternError, PatternLimit

if TYPE_CHECKING:
    from mmqjp.answers.events_run import Parts


def residual_holds(expr: algebra.Expr, text_of: Callable[[str], str]) -> bool:
    """Evaluates a residual predicate. A regular expression that times out does not match."""
    match expr:
        case algebra.Compare(op=op, left=left, right=right) if algebra.is_of_times(expr):
            return algebra.compare_times(op, text_of_operand(left, text_of), text_of_operand(right, text_of))
        case algebra.Compare(op=op, left=left, right=right):
            return algebra.compare(op, _value(left, text_of), _value(right, text_of))
        case algebra.Call(name=name, args=args) if name in algebra.TESTS:
            try:
                return algebra.TESTS[name](*[text_of_operand(arg, text_of) for arg in args])
            except (PatternError, PatternLimit):
                return False
    raise AssertionError(f"not a residual predicate: {expr!r}")


def _value(expr: algebra.Expr, text_of: Callable[[str], str]) -> str | float:
    match expr:
        case algebra.Number(text=text):
            return float(text)
        case algebra.Call(name=name, args=(arg,)) if name in algebra.NUMERIC:
            return algebra.NUMERIC[name](text_of_operand(arg, text_of))
    return text_of_operand(expr, text_of)


def text_of_operand(expr: algebra.Expr, text_of: Callable[[str], str]) -> str:
    match expr:
        case algebra.VarPath(var=var):
            return text_of(var)
        case algebra.String(value=value):
            return value
        case algebra.Number(text=text):
            return algebra.number_string(text)
        case algebra.Call(args=(arg, *_)) if name := algebra.derivation(expr):
            return algebra.derive(name, text_of_operand(arg, text_of))
    raise AssertionError(f"not an operand: {expr!r}")


SideBinding = Mapping[str, Node]

JointBinding = Mapping[str, tuple[Record, Node]]

MAX_CACHED_PER_DOCUMENT, MAX_CACHED_BINDINGS = 1_000, 100_000
"""Maximum number of cached bindings per document; the cache is cleared above MAX_CACHED_BINDINGS in all."""

MAX_CACHED_TEXT, MAX_CACHED_TEXTS = 10_000, 1_000
"""Longest text, in characters, that is cached; the cache is cleared at MAX_CACHED_TEXTS."""


class JointBindings:
    """Finds the joint bindings of matches, caching each document's bindings for the step."""

    def __init__(self) -> None:
        self._bound: dict[tuple[object, ...], tuple[int, list[SideBinding]]] = {}
        self._held = 0
        self._parts: dict[FixedSide, PreparedNode] = {}
        self._texts = ClearedCache[tuple[int, Node], str](MAX_CACHED_TEXTS)

    def of(self, part: RowPart, inputs: Sequence[Record], nodes: Sequence[int], steps: Steps) -> Iterator[JointBinding]:
        """Yields a part's joint bindings with the match's nodes that satisfy its residual predicates. `inputs` has one
        document per side. Each binding tried takes a step."""
        for joint in self._joint(part, inputs, nodes, steps):
            if part.residual:
                text_of = partial(self._text, joint, steps)
                if not all(residual_holds(expr, text_of) for expr in part.residual):
                    continue
            yield joint

    def _joint(
        self, part: RowPart, inputs: Sequence[Record], nodes: Sequence[int], steps: Steps
    ) -> Iterator[JointBinding]:
        if part.derived is not None:
            steps.take(len(part.derived) + 1)
            yield {one.var: (record := inputs[side], one.node(record.tree, nodes)) for side, one in part.derived}
            return
        sides = [
            self._side(fixed, record, nodes, steps, is_right=bool(i))
            for i, (fixed, record) in enumerate(zip(part.sides, inputs, strict=True))
        ]
        for choice in _choices(sides):
            steps.take()
            joint: dict[str, tuple[Record, Node]] = {}
            for record, bound in zip(inputs, choice, strict=True):
                for var, node in bound.items():
                    joint[var] = record, node
            yield joint

    def text(self, operand: algebra.Expr, joint: JointBinding, steps: Steps) -> str:
        return text_of_operand(operand, partial(self._text, joint, steps))

    def _side(
        self, fixed_side: FixedSide, record: Record, nodes: Sequence[int], steps: Steps, *, is_right: bool
    ) -> Iterable[SideBinding]:
        """Returns the bindings of a side's variables, given the joined nodes. A right side returns a list: it is
        iterated once per left binding."""
        side = fixed_side.side
        if side.hidden is not None:
            return [_tuple_binding(side)]
        derived = fixed_side.derived
        key = (fixed_side, record.docid, *(nodes[slot] for _, slot in fixed_side.fixed))
        found: Iterable[SideBinding]
        if (known := self._bound.get(key)) is not None:
            taken, found = known
            steps.take(taken)
        elif derived is not None:
            steps.take(len(derived))
            found = [{one.var: one.node(record.tree, nodes) for one in derived}]
            self._keep(key, len(derived), found)
        else:
            found = self._search(key, fixed_side, record, nodes, steps)
        if derived is not None or not is_right:
            return found
        held = []
        for bound in found:
            steps.take(HELD)
            held.append(bound)
        return held

    def _search(
        self, key: tuple[object, ...], fixed_side: FixedSide, record: Record, nodes: Sequence[int], steps: Steps
    ) -> Iterator[SideBinding]:
        if fixed_side not in self._parts:
            self._parts[fixed_side] = PreparedNode(fixed_side.side.pattern)
        part = self._parts[fixed_side]
        fixed = {path: plain_node(nodes[slot]) for path, slot in fixed_side.fixed}
        few: list[SideBinding] | None = []
        before = steps.left
        took = 0
        for binding in each_binding(part, record.tree, fixed, steps.take):
            took += before - steps.left
            bound = dict(binding)
            if few is not None:
                few.append(bound)
                if len(few) > MAX_CACHED_PER_DOCUMENT:
                    few = None
            yield bound
            before = steps.left  # the consumer takes steps, too
        if few is not None:
            self._keep(key, took + before - steps.left, few)

    def _keep(self, key: tuple[object, ...], took: int, found: list[SideBinding]) -> None:
        if self._held > MAX_CACHED_BINDINGS:
            self._bound.clear()
            self._held = 0
        self._bound[key] = took, found
        self._held += 1 + len(found)

    def _text(self, joint: JointBinding, steps: Steps, var: str) -> str:
        record, node = joint[var]
        key = record.docid, node
        if (text := self._texts.get(key)) is None:
            text = BoundValue(record, node).text()
            if len(text) <= MAX_CACHED_TEXT:
                self._texts[key] = text
        steps.take(len(text) // CHARACTERS_READ_PER_STEP)
        return text


def _choices(sides: Sequence[Iterable[SideBinding]]) -> Iterator[tuple[SideBinding, ...]]:
    if len(sides) == 1:
        return ((one,) for one in sides[0])
    left, right = sides
    return ((one, other) for one in left for other in right)


class Match(NamedTuple):
    """A row of R_outT: the shared row of R_T, one or two documents, and nodes in the template's numbering."""

    row: int
    docid1: int
    docid2: int | None
    nodes: Sequence[int]

    @property
    def docids(self) -> tuple[int, ...]:
        return (self.docid1,) if self.docid2 is None else (self.docid1, self.docid2)


def matches_in(found: pa.RecordBatch) -> list[Match]:
    values = found["nodes"].flatten().to_pylist()
    offsets = found["nodes"].value_lengths().to_numpy().cumsum()
    nodes = [values[start:end] for start, end in pairwise([0, *offsets.tolist()])]
    rows, *docids = (found[name].to_pylist() for name in ("qid", "docid1", "docid2"))
    return list(map(Match, rows, *docids, nodes))


def as_batch(matches: Sequence[Match]) -> pa.RecordBatch:
    columns = [list(column) for column in zip(*matches, strict=True)]
    return pa.table(columns, schema=RESULT).combine_chunks().to_batches()[0]


def match_rows(
    found: pa.RecordBatch, times: Sequence[tuple[int, int]], first: int, template_of: Callable[[int], int]
) -> pa.Table:
    """Converts rows of `join_stage.protocol.RESULT` to rows of `match_rows`, numbered from `first`. `times` has t0 and
    t1 of each; `template_of` maps rows of R_T to templates."""
    qids, place = np.unique(found["qid"].to_numpy(), return_inverse=True)
    templates = np.array([template_of(qid) for qid in qids.tolist()], np.int64)[place]
    t0, t1 = zip(*times, strict=True)
    offsets = np.append(0, found["nodes"].value_lengths().to_numpy().cumsum())
    plain = found["nodes"].flatten().to_numpy() & PLAIN
    columns = [
        np.arange(first, first + len(times)), templates, found["docid1"], found["docid2"], t0, t1,
        pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(plain)),
    ]  # fmt: skip
    return pa.table([pa.array(column) for column in columns], schema=ANSWER_TABLES["match_rows"])


CHARACTERS_READ_PER_STEP = 256
"""Comparing a value costs one step per this many characters."""

MAX_CACHED_PAIRS = 100_000
"""The cache is cleared at this many document pairs."""


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
        self._left, self._right = _Bound(conjunct, conjunct.left), _Bound(conjunct, conjunct.right)
        equal = conjunct.equalities()
        self._ours, self._theirs = [one for one, _ in equal], [other for _, other in equal]
        self._residual = conjunct.residual

    def holds(self, left: Record, right: Record, steps: Steps) -> bool:
        """Raises OutOfSteps."""
        by_values: dict[tuple[str, ...], list[SideBinding]] = {}
        for bound in self._right.bindings(right, steps):
            steps.take(HELD)
            by_values.setdefault(_values(self._theirs, right, bound, steps), []).append(bound)
        if not by_values:
            return False
        for bound in self._left.bindings(left, steps):
            for other in by_values.get(_values(self._ours, left, bound, steps), ()):
                steps.take()
                text_of = partial(_path_text, ((right, other), (left, bound)), steps)
                if all(residual_holds(expr, text_of) for expr in self._residual):
                    return True
        return False


def _tuple_binding(side: Side) -> SideBinding:
    """The variables of a hidden stream are the children of its tuples."""
    return {child.var: (number, 0) for number, child in enumerate(side.pattern.children, 1) if child.var}


class _Bound:
    def __init__(self, conjunct: Conjunct, side: Side) -> None:
        self._part = PreparedNode(naming(side.pattern, needed(conjunct)))
        self._tuple = None if side.hidden is None else _tuple_binding(side)

    def bindings(self, record: Record, steps: Steps) -> Iterable[SideBinding]:
        if self._tuple is not None:
            return (self._tuple,)
        return map(dict, each_binding(self._part, record.tree, {}, steps.take))


def _values(terms: Sequence[Term], record: Record, bound: SideBinding, steps: Steps) -> tuple[str, ...]:
    return tuple([read_value(BoundValue(record, bound[term.var], term.functions), steps) for term in terms])


def _path_text(sides: Sequence[tuple[Record, SideBinding]], steps: Steps, var: str) -> str:
    record, bound = next(side for side in sides if var in side[1])
    return read_value(BoundValue(record, bound[var]), steps)


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
            value = algebra.derive(name, value)
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

    def build(self, constructor: algebra.ElementConstructor) -> etree._Element:
        prefix = constructor.name.rpartition(":")[0]
        nsmap = {prefix: self._uris[prefix]} if prefix and prefix != "xml" else None
        element = etree.Element(self._name(constructor.name), nsmap=nsmap)
        for name, parts in constructor.attributes:
            element.set(self._name(name), "".join(self._text(part) for part in parts))
        for child in constructor.children:
            if isinstance(child, algebra.ElementConstructor):
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

    def _text(self, part: str | algebra.Hole) -> str:
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
    return value if isinstance(value, str) else algebra.number_text(float(value))
