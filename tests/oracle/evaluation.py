"""Brute-force oracle: what a script's queries answer, by nested loops (docs/semantics.md, sections 6 to 12).

It shares the syntax tree with the engine and nothing else. Its values are its own (`tests.oracle.values`).
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, cast

from lxml import etree

from tests.oracle.bindings import Answer, Match, OutputRow, Root, Stored, Value, choice_of
from tests.oracle.course import ENDED, Course
from tests.oracle.match import Matcher
from tests.oracle.values import STRING_TESTS, Literal, Typed, apply, compare, number, number_text, several, text_of
from tests.oracle.walk import walk
from xscl.algebra.joins import NEGATED
from xscl.algebra.values import And, Call, Compare, ElementConstructor, Expr, Hole, Number, Or, String, VarPath
from xscl.printer import to_xscl
from xscl.syntax import Block, Input, Join, Query, Script, SelectClause, SelectItems, SelectStar, SubQuery

XML_NAMESPACE = "http://www.w3.org/XML/1998/namespace"
ROOTS = "*"
"""Stands for the roots of blocks in a set of names of needed variables."""


Doc = Any
"""An input document, with id, stream, t0 and t1 in microseconds, and xml."""


def evaluate(script: Script, documents: Sequence[Doc], course: Course = ENDED) -> list[OutputRow]:
    """Every output of every query, sorted. Equal rows of different queries or from different inputs are all kept."""
    evaluation = Evaluation(script, documents, course)
    rows = [output.row for index in range(len(script.queries)) for output in evaluation.outputs(index)]
    return sorted(rows, key=lambda row: (row.t1, row.query, row.documents, repr(row.nodes), row.xml))


def comparable(rows: Iterable[OutputRow]) -> list[tuple[object, ...]]:
    """Rows as a sorted list of plain tuples: canonical XML, `nodes` by name. Equal multisets give equal lists."""
    plain = []
    for row in rows:
        xml = etree.canonicalize(row.xml, rewrite_prefixes=True)
        nodes = tuple(sorted(row.nodes, key=str))
        plain.append((row.t1, row.query, row.documents, row.streams, nodes, row.t0, xml))
    return sorted(plain, key=repr)


def external(doc: Doc, course: Course = ENDED) -> Stored:
    arrived = course.taken.get((doc.stream, doc.id), (-1, None))
    return Stored(doc.stream, doc.id, doc.t0, doc.t1, doc.xml, ((doc.id, doc.stream),), *arrived)


class Evaluation:
    _is_backfill = False
    """Then partners of absences count that came after their decision, and what is derived is as belated as the document
    that came last."""

    def __init__(self, script: Script, documents: Sequence[Doc], course: Course = ENDED) -> None:
        self._script, self._course = script, course
        self._names = script.names()
        self._namespaces = {"xml": XML_NAMESPACE, **dict(script.namespaces)}
        self._outputs: dict[int, list[Answer]] = {}
        self._external: dict[tuple[str, str], Stored] = {}
        for doc in documents:
            key = (doc.stream, doc.id)
            self._external.setdefault(key, external(doc, course))

    def outputs(self, index: int) -> list[Answer]:
        """The outputs of one query. Those of its publishers are found first, recursively."""
        if index not in self._outputs:
            query, name = self._script.queries[index], self._names[index]
            select = query.select or SelectStar()
            found: dict[object, Answer] = {}
            for match in self._matches(query.source, frozenset(mentioned(query)), is_whole=True):
                keys = self._keys(query, match)
                if keys is None:
                    continue
                for values in self._selections(select, match):
                    nodes = tuple((key, value.label()) for key, value in values.items() if value.node)
                    if (match.inputs, nodes) not in found:
                        id = self._id(index, match.inputs, nodes)
                        found[match.inputs, nodes] = self._output(name, id, select, match, values, nodes)
                    answer = found[match.inputs, nodes]
                    found[match.inputs, nodes] = replace(answer, keys=answer.keys | keys)
            self._outputs[index] = _without_mirrors(query.source, found.values())
        return self._outputs[index]

    def _stream(self, name: str) -> list[Stored]:
        documents = [document for (stream, _), document in self._external.items() if stream == name]
        for index, query in enumerate(self._script.queries):
            if query.publish == name:
                documents += [output.stored for output in self.outputs(index)]
        return documents

    def _id(self, index: int, inputs: Sequence[Stored], nodes: Iterable[tuple[str, int | str]]) -> str:
        """The id of an output: a digest of its query, the documents that its blocks read, and its nodes."""
        text = to_xscl(Script((self._script.queries[index],), self._script.namespaces))
        begun = json.dumps([self._names[index], text, self._occurrence(index)], ensure_ascii=False)[:-1]
        return hashlib.sha256((begun + choice_of(inputs, nodes)).encode()).hexdigest()[:32]

    def _occurrence(self, index: int) -> int:
        """How many queries before this one equal it."""
        return self._script.queries[:index].count(self._script.queries[index])

    # ------------------------------------------------------------ FROM

    def _matches(self, source: Input, needed: frozenset[str], *, is_whole: bool = False) -> list[Match]:
        """The matches of an input, or of a whole query: then mirrors are left in."""
        match source:
            case Block():
                return list(self._block(source, needed))
            case Join() if source.op in NEGATED:
                return list(self._absences(source, needed))
            case Join():
                return list(self._join(source, needed, is_whole))
            case SubQuery():
                found: dict[object, Match] = {}
                for inner in self._matches(source.source, needed, is_whole=is_whole):
                    for values in self._selections(source.select, inner):
                        roots = tuple(Root(0, name, value) for name, value in values.items())
                        found.setdefault((inner.inputs, roots), replace(inner, visible=values, roots=roots))
                return list(found.values())

    def _block(self, block: Block, needed: frozenset[str]) -> Iterator[Match]:
        for document in self._stream(block.stream):
            yield from self._in_document(block, needed, document)

    def _in_document(self, block: Block, needed: frozenset[str], document: Stored) -> Iterator[Match]:
        matcher = Matcher(document.tree, self._namespaces, needed)
        found = matcher.embeddings(None, block.steps)
        if ROOTS not in needed:
            found = list(dict.fromkeys((None, bindings) for _, bindings in found))
        for root, bindings in found:
            visible = {name: Value(document, node) for name, node in bindings}
            yield Match((document,), visible, (Root(0, block.steps[-1].var, Value(document, root)),))

    def _join(self, join: Join, needed: frozenset[str], is_whole: bool) -> Iterator[Match]:
        found = list(self._pairs(join, self._matches(join.left, needed), self._matches(join.right, needed)))
        pairs = {left.inputs + right.inputs for left, right in found}
        for left, right in found:
            is_told = not (left.hidden or right.hidden) and _is_told(left.inputs + right.inputs, pairs)
            if not is_whole and join.op == "JOIN UNORDERED" and is_told:
                continue
            shifted = (replace(root, block=root.block + len(left.inputs)) for root in right.roots)
            visible = {**left.visible, **right.visible}
            until, decided = max(left.until, right.until), max(left.decided, right.decided)
            yield Match(left.inputs + right.inputs, visible, (*left.roots, *shifted), True, until, decided)

    def _absences(self, join: Join, needed: frozenset[str]) -> Iterator[Match]:
        """The matches of the left side whose time is over, and that have no partner on the right."""
        rights = cache(lambda: self._rights(join, needed))
        for left in self._matches(join.left, needed):
            until = left.t1 if join.op == "NOT PRECEDED BY" else max(left.t1, left.t0 + cast(int, join.window.us))
            decided = self._decided_by(join, left)
            if decided is not None and self._is_alone(join, left, decided, rights):
                yield replace(left, hidden=True, until=until, decided=decided)

    def _rights(self, join: Join, needed: frozenset[str]) -> list[Match]:
        return self._matches(join.right, needed)

    def _decided_by(self, join: Join, left: Match) -> float | None:
        """The arrival from which on nothing that may still come can be a partner of a match of the left side."""
        due = left.t0 if join.op == "NOT PRECEDED BY" else left.t0 + cast(int, join.window.us) + 1
        decided = max(left.arrival, self._course.came_to(self._sources(join.right), due))
        return None if decided == math.inf else decided

    def _can_be_told(self, join: Join, left: Match) -> bool:
        """Whether all that could be partners of a match of the left side were in the window when it came."""
        watermark, window = self._watermark(join.left, left), join.window.us
        if watermark is None or window is None:
            return True
        return (left.t1 + 1 if join.op == "NOT FOLLOWED BY" else left.t1 - window) >= watermark - window

    def _is_alone(self, join: Join, left: Match, decided: float, rights: Callable[[], Sequence[Match]]) -> bool:
        if not self._can_be_told(join, left):
            return False
        in_time = [right for right in rights() if self._is_backfill or right.arrival <= decided]
        return not any(True for _ in self._pairs(join, [left], in_time))

    def _sources(self, source: Input) -> set[str]:
        """The external streams behind an input."""
        match source:
            case Block():
                return self._sources_of(source.stream)
            case Join():
                return self._sources(source.left) | self._sources(source.right)
            case SubQuery():
                return self._sources(source.source)

    def _sources_of(self, stream: str) -> set[str]:
        makers = [query for query in self._script.queries if query.publish == stream]
        return {one for maker in makers for one in self._sources(maker.source)} or {stream}

    def _pairs(self, join: Join, lefts: Sequence[Match], rights: Sequence[Match]) -> Iterator[tuple[Match, Match]]:
        for left in lefts:
            for right in rights:
                near = self._in_time(join, left, right) and self._is_above_horizon(join, left, right)
                if near and self._holds(join.pred, {**left.visible, **right.visible}):
                    yield left, right

    def _is_above_horizon(self, join: Join, left: Match, right: Match) -> bool:
        """Whether neither of two matches came so late that the other was out of its window by then."""
        if join.window.us is None or join.op in NEGATED:
            return True
        belated: list[tuple[float | None, Match]] = []
        if left.arrival >= right.arrival:
            belated.append((self._watermark(join.left, left), right))
        if right.arrival >= left.arrival:
            belated.append((self._watermark(join.right, right), left))
        return all(watermark is None or join.window.us >= watermark - other.t0 for watermark, other in belated)

    def _watermark(self, source: Input, match: Match) -> float | None:
        """The watermark of an input when a match of it arrived, if the match ends before it."""
        return self._of_derived(self._sources(source), match) if match.hidden else match.inputs[0].watermark

    def _of_derived(self, sources: Collection[str], match: Match) -> float | None:
        if self._is_backfill:
            return match.watermark
        watermark = self._course.as_of(sources, match.arrival)
        return watermark if match.t1 < watermark else None

    def _in_time(self, join: Join, left: Match, right: Match) -> bool:
        """Checks the window and the order. For inner joins, these apply to the intervals of hidden documents."""
        if join.op in ("FOLLOWED BY", "NOT FOLLOWED BY"):
            ordered, distance = left.t1 < right.t0, right.t1 - left.t0
        elif join.op == "NOT PRECEDED BY":
            ordered, distance = right.t1 < left.t0, left.t1 - right.t0
        else:
            # Only a block's document can be the very same on both sides: a hidden document differs from all others.
            ordered = left.inputs != right.inputs or left.hidden or right.hidden
            distance = max(left.t1, right.t1) - min(left.t0, right.t0)
        return ordered and (join.window.us is None or distance <= join.window.us)

    def _holds(self, pred: Expr, visible: Mapping[str, Value]) -> bool:
        """Whether a join predicate holds for a joint binding. Each path in it may choose its own node."""
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
                texts = product(*([text_of(atom) for atom in self._atoms(arg, visible)] for arg in pred.args))
                return any(test(*some) for some in texts)
        raise TypeError(f"not a join predicate: {pred!r}")

    def _atoms(self, operand: Expr, visible: Mapping[str, Value]) -> list[Typed]:
        if isinstance(operand, Number):
            return [number(operand.text)]
        return [value.typed for value in self._values(operand, visible)]

    def _values(self, operand: Expr, visible: Mapping[str, Value]) -> list[Value]:
        """The values that an operand may take: one, or as many as its path finds nodes."""
        match operand:
            case VarPath():
                value = visible[operand.var]
                if not operand.steps:
                    return [value]
                assert value.document is not None and value.node is not None and value.derived is None
                matcher = Matcher(value.document.tree, self._namespaces)
                return [Value(value.document, node) for node in matcher.nodes(value.node, operand.steps)]
            case String():
                return [Value(None, None, Literal(operand.value))]
            case Number():
                return [Value(None, None, number_text(number(operand.text)))]
            case Call(name="concat"):
                node = next((visible[one.var] for one in walk(operand) if isinstance(one, VarPath)), Value(None, None))
                return [replace(node, derived=text_of(self._first(operand, visible)))]
            case Call(name="extract" | "tokens"):
                return [
                    replace(value, derived=text, choice=number)
                    for value in self._values(operand.args[0], visible)
                    for number, text in enumerate(several(operand, text_of(value.typed)), 1)
                ]
            case Call():
                arguments = self._values(operand.args[0], visible)
                more = [literal.value for literal in operand.args[1:] if isinstance(literal, String)]
                return [replace(value, derived=apply(operand.name, value.typed, *more)) for value in arguments]
        raise TypeError(f"not an operand: {operand!r}")

    def _first(self, operand: Expr, visible: Mapping[str, Value]) -> Typed:
        """A part of concat(): the value of the first node of its path, or of the empty text if there is none."""
        match operand:
            case Call(name="concat"):
                return "".join(text_of(self._first(one, visible)) for one in operand.args)
            case Call():
                more = [literal.value for literal in operand.args[1:] if isinstance(literal, String)]
                return apply(operand.name, self._first(operand.args[0], visible), *more)
        return next((value.typed for value in self._values(operand, visible)), "")

    # ------------------------------------------------------------ SELECT and output documents

    def _selections(self, select: SelectClause, match: Match) -> Iterator[dict[str, Value]]:
        """The values of the SELECT variables by name, once for each combination of the nodes of their paths."""
        if isinstance(select, SelectStar):
            yield dict(match.star())
            return
        if isinstance(select, SelectItems):
            operands = {item.name: item.operand for item in select.items}
        else:
            operands = {hole_key(hole): hole.operand for hole in holes_of(select)}
        for values in product(*(self._values(operand, match.visible) for operand in operands.values())):
            yield dict(zip(operands, values, strict=True))

    def _keys(self, query: Query, match: Match) -> frozenset[tuple[str, ...]] | None:
        """What a binding says of that which is told once: a tuple for each choice of nodes for the paths in it. None if
        a path finds no node: then there is no output, as for a path in SELECT."""
        if query.once is None:
            return frozenset()
        choices = product(*(self._values(operand, match.visible) for operand in query.once.keys))
        return frozenset(tuple(value.text for value in choice) for choice in choices) or None

    def _output(
        self,
        name: str,
        id: str,
        select: SelectClause,
        match: Match,
        values: Mapping[str, Value],
        nodes: tuple[tuple[str, int | str], ...],
    ) -> Answer:
        if isinstance(select, ElementConstructor):
            element = construct(select, values, self._namespaces)
        else:
            element = etree.Element("match", query=name, t0=str(match.t0), t1=str(match.t1))
            for key, value in values.items():
                if isinstance(select, SelectStar) and value.derived is None:
                    element.append(as_element(value))
                else:
                    append(etree.SubElement(element, key.replace("'", "_")), value)
        xml = etree.tostring(element, encoding="unicode")
        externals = tuple(external for document in match.inputs for external in document.externals)
        documents, streams = tuple(id for id, _ in externals), tuple(stream for _, stream in externals)
        row = OutputRow(name, match.t0, match.t1, documents, streams, nodes, xml)
        watermark = self._of_derived(self._sources_of(name), match)
        stored = Stored(name, id, match.t0, match.t1, xml, externals, match.arrival, watermark)
        return Answer(row, stored, match.inputs, nodes)


def mentioned(part: object) -> Iterator[str]:
    """The variables that a part of a query mentions; also ROOTS if it says or means `SELECT *`."""
    for one in walk(part):
        if isinstance(one, SelectStar) or (isinstance(one, Query) and one.select is None):
            yield ROOTS
        elif isinstance(one, VarPath):
            yield one.var


def _without_mirrors(source: Input, answers: Collection[Answer]) -> list[Answer]:
    """The answers of a query. If it is a JOIN UNORDERED, those that others mirror are left out."""
    while isinstance(source, SubQuery):
        source = source.source
    if not isinstance(source, Join) or source.op != "JOIN UNORDERED" or not (_is_block(source.left, source.right)):
        return list(answers)
    pairs = {answer.inputs for answer in answers}
    return [answer for answer in answers if not _is_told(answer.inputs, pairs)]


def _is_block(*sources: Input) -> bool:
    """Whether all inputs are blocks, and no joins or absences."""
    return all(isinstance(one, Block) or (isinstance(one, SubQuery) and _is_block(one.source)) for one in sources)


def _is_told(pair: tuple[Stored, ...], pairs: Collection[tuple[Stored, ...]]) -> bool:
    """Whether the documents of a match, if they are two, match the other way round, too, and in that order stand as
    (t1, stream, id) does."""
    places = [(document.t1, document.stream, document.id) for document in pair]
    return len(pair) == 2 and pair[::-1] in pairs and places[1] < places[0]


def hole_key(hole: Hole) -> str:
    """The key of a hole in `nodes`: the variable, else the text inside the braces. A constant has a key too, but no
    node."""
    operand = hole.operand
    return operand.var if isinstance(operand, VarPath) and not operand.steps else hole.text


def holes_of(constructor: ElementConstructor) -> Iterator[Hole]:
    """The holes of a constructor, first in its attributes, then in its content."""
    for _, parts in constructor.attributes:
        yield from (part for part in parts if isinstance(part, Hole))
    for child in constructor.children:
        if isinstance(child, Hole):
            yield child
        elif isinstance(child, ElementConstructor):
            yield from holes_of(child)


def as_element(value: Value) -> etree._Element:
    """A copy of an element; for an attribute, an element of its name with its text."""
    assert value.document is not None and value.node is not None
    tree, node = value.document.tree, value.node
    if node.attribute is not None:
        element = etree.Element(node.attribute)
        element.text = tree.text(node)
        return element
    element = copy.deepcopy(tree.elements[node.element])
    element.tail = None
    return element


def append(parent: etree._Element, value: Value) -> None:
    """Appends a copy of an element, or the text of anything else."""
    if value.derived is None and value.node is not None and value.node.attribute is None:
        parent.append(as_element(value))
    else:
        _append_text(parent, value.text)


def _append_text(parent: etree._Element, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text


def construct(
    constructor: ElementConstructor, values: Mapping[str, Value], namespaces: Mapping[str, str]
) -> etree._Element:
    """The element of a constructor. `values` fills its holes, by key."""
    element = etree.Element(_clark(constructor.name, namespaces))
    for name, parts in constructor.attributes:
        texts = (part if isinstance(part, str) else values[hole_key(part)].text for part in parts)
        element.set(_clark(name, namespaces), "".join(texts))
    for child in constructor.children:
        if isinstance(child, str):
            _append_text(element, child)
        elif isinstance(child, Hole):
            append(element, values[hole_key(child)])
        else:
            element.append(construct(child, values, namespaces))
    return element


def _clark(name: str, namespaces: Mapping[str, str]) -> str:
    prefix, colon, local = name.rpartition(":")
    return f"{{{namespaces[prefix]}}}{local}" if colon else local


class _Ties(Evaluation):
    """Answers of a query as if its outermost FOLLOWED BY asked for the right document to begin just when the left one
    ends."""

    def __init__(self, script: Script, documents: Sequence[Doc], index: int) -> None:
        super().__init__(script, documents)
        source = script.queries[index].source
        while isinstance(source, SubQuery):
            source = source.source
        self.join = source if isinstance(source, Join) and source.op == "FOLLOWED BY" else None

    def _in_time(self, join: Join, left: Match, right: Match) -> bool:
        if join is not self.join:
            return super()._in_time(join, left, right)
        externals = [{external for one in match.inputs for external in one.externals} for match in (left, right)]
        near = join.window.us is None or right.t1 - left.t0 <= join.window.us
        return left.t1 == right.t0 and near and not externals[0] & externals[1]


def ties(script: Script, documents: Sequence[Doc]) -> dict[str, int]:
    """How many pairs of each query FOLLOWED BY excludes by equal times alone (docs/semantics.md, section 18); those of
    one name together. Only names that have some."""
    found: dict[str, int] = {}
    for index, name in enumerate(script.names()):
        evaluation = _Ties(script, documents, index)
        if evaluation.join is not None:
            pairs = [answer.inputs for answer in evaluation.outputs(index)]
            distinct = {frozenset(pair) if len(pair) == 2 else pair for pair in pairs}
            found[name] = found.get(name, 0) + len(distinct)
    return {name: count for name, count in found.items() if count}
