"""Brute-force oracle: what a script's queries answer, straight from xscl.md sections 1, 3 and 4, by nested loops.

It shares the syntax tree with the engine and nothing else: its values are its own (`tests.oracle.values`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from itertools import product
from typing import Protocol

from lxml import etree

from tests.oracle.match import Matcher, Node, Tree
from tests.oracle.values import DERIVED, STRING_TESTS, compare, number, number_text
from xscl.algebra.expressions import And, Call, Compare, ElementConstructor, Expr, Hole, Number, Or, String, VarPath
from xscl.syntax import Block, Input, Join, Query, Script, Select, SelectItems, SelectStar, SubQuery

XML_NAMESPACE = "http://www.w3.org/XML/1998/namespace"
ROOTS = "*"
"""Stands for the block roots in a set of variable names that somebody needs."""


class Doc(Protocol):
    """An input document; times in microseconds."""

    @property
    def id(self) -> str: ...
    @property
    def stream(self) -> str: ...
    @property
    def t0(self) -> int: ...
    @property
    def t1(self) -> int: ...
    @property
    def xml(self) -> bytes | str: ...


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One output document, with the fields of an output line (interface.md)."""

    query: str
    t0: int
    t1: int
    documents: tuple[str, ...]
    streams: tuple[str, ...]
    nodes: tuple[tuple[str, int | str], ...]
    xml: str


def evaluate(script: Script, documents: Sequence[Doc]) -> list[OutputRow]:
    """Every output of every query, sorted; equal rows of different queries or over different inputs all stay."""
    evaluation = _Evaluation(script, documents)
    rows = [output.row for index in range(len(script.queries)) for output in evaluation.outputs(index)]
    return sorted(rows, key=lambda row: (row.t1, row.query, row.documents, repr(row.nodes), row.xml))


def comparable(rows: Iterable[OutputRow]) -> list[tuple[object, ...]]:
    """Rows as a sorted list of plain tuples that is equal for equal multisets: canonical XML, `nodes` by name.

    `nodes` may be a mapping too, so that an engine's output objects can be compared with the oracle's rows.
    """
    plain = []
    for row in rows:
        pairs = row.nodes.items() if isinstance(row.nodes, Mapping) else row.nodes
        nodes = tuple(sorted(pairs, key=str))
        xml = etree.canonicalize(row.xml, rewrite_prefixes=True)
        plain.append((row.t1, row.query, tuple(row.documents), tuple(row.streams), nodes, row.t0, xml))
    return sorted(plain, key=repr)


# ---------------------------------------------------------------- documents, values, matches


@dataclass(frozen=True, eq=False)
class Stored:
    """A document that blocks read: an external one or an output; equal only to itself."""

    t0: int
    t1: int
    xml: bytes | str
    externals: tuple[tuple[str, str], ...]
    """(id, stream) of the external documents it comes from, left to right."""

    @cached_property
    def tree(self) -> Tree:
        return Tree(self.xml)


@dataclass(frozen=True, slots=True)
class _Value:
    """What a name stands for: a node of a document, with a derived text or without; or a constant text alone."""

    document: Stored | None
    node: Node | None
    derived: str | None = None

    @property
    def text(self) -> str:
        if self.derived is not None:
            return self.derived
        assert self.document is not None and self.node is not None
        return self.document.tree.text(self.node)


@dataclass(frozen=True, slots=True)
class _Root:
    """One part of `SELECT *`: the root of the block with this number, or (named) an item of an inner SELECT."""

    block: int
    name: str | None
    value: _Value


@dataclass(frozen=True, slots=True)
class _Match:
    """One joint binding over the documents that the blocks read, left to right."""

    inputs: tuple[Stored, ...]
    visible: Mapping[str, _Value]
    roots: tuple[_Root, ...]

    @property
    def t0(self) -> int:
        return min(document.t0 for document in self.inputs)

    @property
    def t1(self) -> int:
        return max(document.t1 for document in self.inputs)

    def star(self) -> list[tuple[str, _Value]]:
        """The names and values that `SELECT *` means."""
        short = ("left", "right")
        count = len(self.inputs)
        return [(r.name or (short[r.block] if count <= 2 else f"b{r.block + 1}"), r.value) for r in self.roots]


@dataclass(frozen=True, slots=True)
class Answer:
    """One output: its row, the document that it is for the readers of its stream, and what tells it from the query's
    others: the documents that its blocks read, left to right, and its nodes."""

    row: OutputRow
    stored: Stored
    inputs: tuple[Stored, ...]
    nodes: tuple[tuple[str, int | str], ...]


# ---------------------------------------------------------------- evaluation


class _Evaluation:
    def __init__(self, script: Script, documents: Sequence[Doc]) -> None:
        self._script = script
        self._names = script.names()
        self._namespaces = {"xml": XML_NAMESPACE, **dict(script.namespaces)}
        self._outputs: dict[int, list[Answer]] = {}
        self._external: dict[tuple[str, str], Stored] = {}
        for doc in documents:
            key = (doc.stream, doc.id)
            self._external.setdefault(key, Stored(doc.t0, doc.t1, doc.xml, ((doc.id, doc.stream),)))

    def outputs(self, index: int) -> list[Answer]:
        """The outputs of one query; those of its publishers are found first, by recursion."""
        if index not in self._outputs:
            query, name = self._script.queries[index], self._names[index]
            select = query.select or SelectStar()
            found: dict[object, Answer] = {}
            for match in self._matches(query.source, frozenset(_needed(query))):
                for values in self._selections(select, match):
                    nodes = tuple((key, value.node.label()) for key, value in values.items() if value.node)
                    if (match.inputs, nodes) not in found:
                        found[match.inputs, nodes] = self._output(name, select, match, values, nodes)
            self._outputs[index] = list(found.values())
        return self._outputs[index]

    def _stream(self, name: str) -> list[Stored]:
        """Every document of a stream, external or published."""
        documents = [document for (stream, _), document in self._external.items() if stream == name]
        for index, query in enumerate(self._script.queries):
            if query.publish == name:
                documents += [output.stored for output in self.outputs(index)]
        return documents

    # ------------------------------------------------------------ FROM

    def _matches(self, source: Input, needed: frozenset[str]) -> list[_Match]:
        match source:
            case Block():
                return list(self._block(source, needed))
            case Join():
                return list(self._join(source, needed))
            case SubQuery():
                found: dict[object, _Match] = {}
                for inner in self._matches(source.source, needed):
                    for values in self._selections(source.select, inner):
                        roots = tuple(_Root(0, name, value) for name, value in values.items())
                        found.setdefault((inner.inputs, roots), replace(inner, visible=values, roots=roots))
                return list(found.values())

    def _block(self, block: Block, needed: frozenset[str]) -> Iterator[_Match]:
        for document in self._stream(block.stream):
            yield from self._in_document(block, needed, document)

    def _in_document(self, block: Block, needed: frozenset[str], document: Stored) -> Iterator[_Match]:
        matcher = Matcher(document.tree, self._namespaces, needed)
        found = matcher.embeddings(None, block.steps)
        if ROOTS not in needed:
            found = list(dict.fromkeys((None, bindings) for _, bindings in found))
        for root, bindings in found:
            visible = {name: _Value(document, node) for name, node in bindings}
            yield _Match((document,), visible, (_Root(0, block.steps[-1].var, _Value(document, root)),))

    def _join(self, join: Join, needed: frozenset[str]) -> Iterator[_Match]:
        lefts, rights = self._matches(join.left, needed), self._matches(join.right, needed)
        for left in lefts:
            for right in rights:
                if _in_time(join, left, right):
                    both = {**left.visible, **right.visible}
                    if self._holds(join.pred, both):
                        shifted = (replace(root, block=root.block + len(left.inputs)) for root in right.roots)
                        yield _Match(left.inputs + right.inputs, both, (*left.roots, *shifted))

    def _holds(self, pred: Expr, visible: Mapping[str, _Value]) -> bool:
        """Whether a join predicate holds under a joint binding; each path in it may choose its own node."""
        match pred:
            case And():
                return all(self._holds(arm, visible) for arm in pred.args)
            case Or():
                return any(self._holds(arm, visible) for arm in pred.args)
            case Compare():
                pairs = product(self._atoms(pred.left, visible), self._atoms(pred.right, visible))
                return any(compare(pred.op, left, right) for left, right in pairs)
            case Call():
                test = STRING_TESTS[pred.name]
                texts = product(*([_string(atom) for atom in self._atoms(arg, visible)] for arg in pred.args))
                return any(test(text, other) for text, other in texts)
        raise TypeError(f"not a join predicate: {pred!r}")

    def _atoms(self, operand: Expr, visible: Mapping[str, _Value]) -> list[str | float]:
        if isinstance(operand, Number):
            return [number(operand.text)]
        return [value.text for value in self._values(operand, visible)]

    def _values(self, operand: Expr, visible: Mapping[str, _Value]) -> list[_Value]:
        """The values that an operand may choose: one, or as many as its path finds nodes."""
        match operand:
            case VarPath():
                value = visible[operand.var]
                if not operand.steps:
                    return [value]
                assert value.document is not None and value.node is not None and value.derived is None
                matcher = Matcher(value.document.tree, self._namespaces)
                return [_Value(value.document, node) for node in matcher.nodes(value.node, operand.steps)]
            case String():
                return [_Value(None, None, operand.value)]
            case Number():
                return [_Value(None, None, number_text(number(operand.text)))]
            case Call():
                arguments = self._values(operand.args[0], visible)
                return [replace(value, derived=DERIVED[operand.name](value.text)) for value in arguments]
        raise TypeError(f"not an operand: {operand!r}")

    # ------------------------------------------------------------ SELECT and output documents

    def _selections(self, select: Select, match: _Match) -> Iterator[dict[str, _Value]]:
        """The values of the SELECT variables by name: one choice for each combination of nodes of their paths."""
        if isinstance(select, SelectStar):
            yield dict(match.star())
            return
        if isinstance(select, SelectItems):
            operands = {item.name: item.operand for item in select.items}
        else:
            operands = {hole_key(hole): hole.operand for hole in _holes(select)}
        for values in product(*(self._values(operand, match.visible) for operand in operands.values())):
            yield dict(zip(operands, values, strict=True))

    def _output(
        self,
        name: str,
        select: Select,
        match: _Match,
        values: Mapping[str, _Value],
        nodes: tuple[tuple[str, int | str], ...],
    ) -> Answer:
        if isinstance(select, ElementConstructor):
            element = self._construct(select, values)
        else:
            element = etree.Element("match", query=name, t0=str(match.t0), t1=str(match.t1))
            for key, value in values.items():
                if isinstance(select, SelectStar) and value.derived is None:
                    element.append(_as_element(value))
                else:
                    _append(etree.SubElement(element, key.replace("'", "_")), value)
        xml = etree.tostring(element, encoding="unicode")
        externals = tuple(external for document in match.inputs for external in document.externals)
        documents, streams = tuple(id for id, _ in externals), tuple(stream for _, stream in externals)
        row = OutputRow(name, match.t0, match.t1, documents, streams, nodes, xml)
        return Answer(row, Stored(match.t0, match.t1, xml, externals), match.inputs, nodes)

    def _construct(self, constructor: ElementConstructor, values: Mapping[str, _Value]) -> etree._Element:
        element = etree.Element(self._clark(constructor.name))
        for name, parts in constructor.attributes:
            texts = (part if isinstance(part, str) else values[hole_key(part)].text for part in parts)
            element.set(self._clark(name), "".join(texts))
        for child in constructor.children:
            if isinstance(child, str):
                _append_text(element, child)
            elif isinstance(child, Hole):
                _append(element, values[hole_key(child)])
            else:
                element.append(self._construct(child, values))
        return element

    def _clark(self, name: str) -> str:
        prefix, colon, local = name.rpartition(":")
        return f"{{{self._namespaces[prefix]}}}{local}" if colon else local


class QueryAnswers(_Evaluation):
    """What one query answers over streams whose documents the caller chooses, again and again as these change."""

    def __init__(self, query: Query, name: str, namespaces: tuple[tuple[str, str], ...]) -> None:
        super().__init__(Script((query,), namespaces), ())
        self._names = (name,)
        self._streams: Mapping[str, Sequence[Stored]] = {}
        self._found: dict[tuple[int, frozenset[str], Stored], list[_Match]] = {}

    def over(self, streams: Mapping[str, Sequence[Stored]]) -> list[Answer]:
        """Every answer over these documents."""
        self._streams = streams
        self._outputs.clear()
        return self.outputs(0)

    def _stream(self, name: str) -> list[Stored]:
        return list(self._streams.get(name, ()))

    def _in_document(self, block: Block, needed: frozenset[str], document: Stored) -> Iterator[_Match]:
        key = id(block), needed, document
        if key not in self._found:
            self._found[key] = list(super()._in_document(block, needed, document))
        return iter(self._found[key])


def hole_key(hole: Hole) -> str:
    """A hole's key in `nodes`: the variable, else the text inside the braces; constants have one too, but no node."""
    operand = hole.operand
    return operand.var if isinstance(operand, VarPath) and not operand.steps else hole.text


def _needed(part: object) -> Iterator[str]:
    """The variables that a part of a query mentions, and ROOTS where it says or means `SELECT *`."""
    if (isinstance(part, Query) and part.select is None) or isinstance(part, SelectStar):
        yield ROOTS
    if isinstance(part, VarPath):
        yield part.var
    if isinstance(part, tuple):
        for item in part:
            yield from _needed(item)
    elif is_dataclass(part):
        for field in fields(part):
            yield from _needed(getattr(part, field.name))


def _in_time(join: Join, left: _Match, right: _Match) -> bool:
    """The window and the order; for inner joins these are tests on the intervals of hidden documents."""
    if join.op == "FOLLOWED BY":
        ordered, distance = left.t1 < right.t0, right.t1 - left.t0
    else:
        # Only a block's document can be the very same on both sides: a hidden document differs from all others.
        ordered = left.inputs != right.inputs or len(left.inputs) > 1
        distance = max(left.t1, right.t1) - min(left.t0, right.t0)
    return ordered and (join.window.us is None or distance <= join.window.us)


def _holes(constructor: ElementConstructor) -> Iterator[Hole]:
    for _, parts in constructor.attributes:
        yield from (part for part in parts if isinstance(part, Hole))
    for child in constructor.children:
        if isinstance(child, Hole):
            yield child
        elif isinstance(child, ElementConstructor):
            yield from _holes(child)


def _string(atom: str | float) -> str:
    return atom if isinstance(atom, str) else number_text(atom)


def _as_element(value: _Value) -> etree._Element:
    """A copy of an element, or an element of an attribute's name with its text."""
    assert value.document is not None and value.node is not None
    tree, node = value.document.tree, value.node
    if node.attribute is not None:
        element = etree.Element(node.attribute)
        element.text = tree.text(node)
        return element
    element = copy.deepcopy(tree.elements[node.element])
    element.tail = None
    return element


def _append(parent: etree._Element, value: _Value) -> None:
    """Adds a copy of an element, or the text of anything else."""
    if value.derived is None and value.node is not None and value.node.attribute is None:
        parent.append(_as_element(value))
    else:
        _append_text(parent, value.text)


def _append_text(parent: etree._Element, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text
