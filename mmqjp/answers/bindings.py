"""Joint bindings of matches, by columns. A match fixes the joined nodes; joint bindings extend it to all variables of a
conjunctive query (K+; docs/semantics.md, section 15), subject to residual predicates, comparisons that are not value
joins. Matches of parts that differ only in constants are bound together: where variables derive from joined nodes, by
arithmetic; else each document is searched once for each choice of its joined nodes. Values are coded, so that each pair
of distinct texts is compared once. Steps, which bound the work of a match, are counted before it is done."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from itertools import product, starmap
from json.encoder import encode_basestring as json_text
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from lxml import etree

from common.arrays import Ints, Mask, dictionary_encode, distinct, expand_ranges, number_rows
from common.bounds import EARLIEST
from common.dates import parse_timestamp
from common.tools import lazy
from mmqjp.documents.record import Inputs, Record, StoredRecords, parse_trees
from mmqjp.queries.forms import DerivedSide, DerivedVariable, HiddenSide, JointPlan, RowPart, SearchedSide
from templates.witness import ATTRIBUTE_SHIFT, ELEMENT, PLAIN, plain_node
from xpath_stage.binder import Node, SideBinder
from xpath_stage.filters import tree_value
from xscl.algebra import values as algebra
from xscl.algebra.joins import Term, as_term, constant_operand_text
from xscl.algebra.regex import PatternError, PatternLimit

CHARACTERS_READ_PER_STEP = 256  # comparing a value costs one step per this many characters


# ------------------------------------------------------------ residual predicates


@dataclass(frozen=True, slots=True)
class Predicate:
    """A residual predicate: the `test` of the texts of its operands. If it is a comparison, that is `op` between the
    values that `keys` make of the texts; what has none, as NaN, is only unequal to others."""

    operands: tuple[algebra.Expr, ...]
    test: Callable[..., bool]
    op: algebra.CompareOp | None = None
    keys: tuple[Callable[[str], Any], ...] = ()


@lru_cache(10_000)
def predicate_of(expr: algebra.Expr) -> Predicate:
    match expr:
        case algebra.Compare(op=op, left=left, right=right) if algebra.is_of_times(expr):
            times = parse_timestamp, parse_timestamp
            return Predicate((left, right), lambda one, other: algebra.compare_times(op, one, other), op, times)
        case algebra.Compare(op=op, left=left, right=right):
            (one, one_key), (other, other_key) = _compared(left), _compared(right)
            if op not in ("=", "!=") or one_key is not None or other_key is not None:
                one_key, other_key = one_key or algebra.xpath_number, other_key or algebra.xpath_number
            keys = one_key or str, other_key or str
            return Predicate((one, other), lambda a, b: algebra.compare(op, keys[0](a), keys[1](b)), op, keys)
        case algebra.Call(name=name, args=args) if name in algebra.TESTS:
            return Predicate(args, _Test(name))
    raise AssertionError(f"not a residual predicate: {expr!r}")


def _compared(expr: algebra.Expr) -> tuple[algebra.Expr, Callable[[str], Any] | None]:
    """Returns the operand whose text is read, and what makes a number of it, if it is one."""
    match expr:
        case algebra.Number(text=text):
            number = float(text)
            return expr, lambda _: number
        case algebra.Call(name=name, args=(arg,)) if name in algebra.NUMERIC:
            return arg, algebra.NUMERIC[name]
    return expr, None


class _Test:
    """A function that is a condition. A regular expression that times out does not match."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *texts: str) -> bool:
        try:
            return algebra.TESTS[self._name](*texts)
        except (PatternError, PatternLimit):
            return False


def residual_holds(expr: algebra.Expr, text_of: Callable[[Term], str]) -> bool:
    """Whether it holds for some values of its operands."""
    predicate = predicate_of(expr)
    return any(starmap(predicate.test, product(*[texts_of_operand(one, text_of) for one in predicate.operands])))


def text_of_operand(expr: algebra.Expr, text_of: Callable[[Term], str]) -> str:
    """The text of an operand with one value."""
    term = as_term(expr)
    return _constant(expr) if term is None else text_of(term)


def texts_of_operand(expr: algebra.Expr, text_of: Callable[[Term], str]) -> Sequence[str]:
    term = as_term(expr)
    if term is None or (split := algebra.split_values(term.functions)) is None:
        return [text_of_operand(expr, text_of)]
    return algebra.each_value(split[1], text_of(Term(term.var, split[0])))


def _constant(expr: algebra.Expr) -> str:
    text = constant_operand_text(expr)
    assert text is not None, f"not an operand: {expr!r}"
    return text


# ------------------------------------------------------------ matches


FEW = 20  # up to this many rows are faster as Python's values than by calls of Arrow

Lists: TypeAlias = list[list[str]] | Any  # an array of Arrow, if they are not few


class Match(NamedTuple):
    """A row of R_outT: the shared row of R_T, one or two documents, and nodes in the template's numbering."""

    row: int
    docid1: int
    docid2: int | None
    nodes: Sequence[int]


class MatchColumns:
    """Matches with their documents: `left` and `right` index `records`; a filter has no right one, -1. The times and
    the arrival are those of both documents, and `appeared` that of the first part. `width` is the least window that has
    the match, -1 in a filter: the time that both cover, or, if that is longer, from the beginning of one to the
    watermark of the other, which came later and was belated."""

    def __init__(self, chunk: pa.RecordBatch, records: StoredRecords) -> None:
        self.rows: Ints = chunk["qid"].to_numpy()
        left, right = chunk["docid1"].to_numpy(), chunk["docid2"].fill_null(-1).to_numpy(zero_copy_only=False)
        docids = distinct(np.concatenate([left, right]))
        docids = docids[docids >= 0]
        records.load(docids.tolist())
        self.records = [records[docid] for docid in docids.tolist()]
        self.left, self.right = docids.searchsorted(left), np.where(right < 0, -1, docids.searchsorted(right))
        self._nodes: Ints = chunk["nodes"].flatten().to_numpy()
        lengths = chunk["nodes"].value_lengths().to_numpy().astype(np.int64)
        self._starts: Ints = np.cumsum(lengths) - lengths
        t0, t1, arrival = (
            np.array(list(map(attrgetter(of), self.records)), np.int64) for of in ("t0", "t1", "arrival")
        )
        appeared = np.array(list(map(min, map(attrgetter("appeared"), self.records))), np.int64)
        one, other = self.left, np.where(self.right < 0, self.left, self.right)
        self.begins, self.ends = t0, t1
        self.t0, self.t1 = np.minimum(t0[one], t0[other]), np.maximum(t1[one], t1[other])
        self.arrival, self.appeared = (
            np.maximum(arrival[one], arrival[other]),
            np.minimum(appeared[one], appeared[other]),
        )
        self.width: Ints = np.where(self.right < 0, -1, self.t1 - self.t0)
        self._parts: Ints | None = None
        self._alike: Ints = np.full(len(self.records), -1)
        self._shapes: dict[object, int] = {}
        watermark = [EARLIEST if one.watermark is None else one.watermark for one in self.records]
        if len(watermark) and max(watermark) > EARLIEST:
            self._widen(arrival, np.array(watermark, np.int64))

    def _widen(self, arrival: Ints, watermark: Ints) -> None:
        for later, earlier in ((self.left, self.right), (self.right, self.left)):
            is_later = (self.right >= 0) & (arrival[later] >= arrival[earlier])
            reach = watermark[later] - self.begins[earlier]
            self.width = np.where(is_later, np.maximum(self.width, reach), self.width)

    def __len__(self) -> int:
        return len(self.rows)

    def key(self, place: int) -> tuple[int, tuple[int, ...]]:
        """Returns the first document of a match, and its nodes with the chains of functions."""
        start = self._starts[place]
        end = self._starts[place + 1] if place + 1 < len(self.rows) else len(self._nodes)
        return self.records[self.left[place]].docid, tuple(self._nodes[start:end].tolist())

    def node(self, places: Ints, slot: int) -> Ints:
        """Returns the plain ids of the matches' nodes at a template's slot."""
        return self._nodes[self._starts[places] + slot] & PLAIN

    def parts(self, number: Callable[[object], int]) -> Ints:
        """Returns numbers of the records' parts, by record: -1 and less are those that `number` gives."""
        if (found := self._parts) is None:
            of = (one.parts[0] if len(one.parts) == 1 else -1 - number(one.parts) for one in self.records)
            found = self._parts = np.fromiter(of, np.int64, len(self.records))
        return found

    def part_ids(self, places: Ints) -> tuple[Encoded, Encoded]:
        """Returns a JSON list's items, with ids and streams of the parts behind matches: those of the left record, and
        of the right one after a comma, if there is one."""
        left, right = self.left[places], self.right[places]
        first, second = self._part_ids
        return Encoded(left, first), Encoded(np.where(right < 0, len(self.records), right), second)

    @lazy
    def _part_ids(self) -> tuple[list[str], list[str]]:
        first = [", ".join(map(json_text, ids)) for ids in map(attrgetter("part_ids"), self.records)]
        return first, [*(f", {one}" for one in first), ""]

    def sources(self, places: Ints) -> tuple[Lists, Lists]:
        """Returns the ids and the streams of the external documents behind matches."""
        left, right = self.left[places], self.right[places]
        if len(places) <= FEW:
            sides = zip(left.tolist(), right.tolist(), strict=True)
            records = [self.records[at : at + 1] + (self.records[to : to + 1] if to >= 0 else []) for at, to in sides]
            behind = [[source for record in of for source in record.sources] for of in records]
            return [[id for id, _ in of] for of in behind], [[stream for _, stream in of] for of in behind]
        ends, ids, streams = self._sources
        of_match = np.stack((left, right), axis=1)
        end = np.append(ends, 0)[of_match]  # of none, which -1 indexes, nothing
        start = np.append(np.append(0, ends[:-1]), 0)[of_match]
        offsets = pa.array(np.append(0, (end - start).sum(axis=1).cumsum()), pa.int32())
        at = pa.array(expand_ranges(start.ravel(), end.ravel())[0])
        return tuple(pa.ListArray.from_arrays(offsets, texts.take(at)) for texts in (ids, streams))

    @lazy
    def _sources(self) -> tuple[Ints, pa.Array, pa.Array]:
        behind = [source for one in self.records for source in one.sources]
        ids, streams = (pa.array([source[of] for source in behind], pa.string()) for of in (0, 1))
        return np.cumsum([len(one.sources) for one in self.records]), ids, streams

    def alike(self, which: Ints) -> Ints:
        """Returns for each of some records one of the same shape. Documents whose shapes are not compared stand for
        themselves."""
        if len(new := distinct(which[self._alike[which] < 0])):
            places = new.tolist()
            records = [self.records[place] for place in places]
            parse_trees(records)
            outlines = [record.tree.outline for record in records]
            self._alike[new] = [
                place if outline is None else self._shapes.setdefault(outline, place)
                for place, outline in zip(places, outlines, strict=True)
            ]
        return self._alike[which]

    def inputs(self, place: int) -> Inputs:
        left, right = int(self.left[place]), int(self.right[place])
        found = Inputs([self.records[left]] if right < 0 else [self.records[left], self.records[right]])
        found.t1, found.arrival = int(self.t1[place]), int(self.arrival[place])
        return found

    def is_in_order(self, places: Ints) -> Mask:
        """Returns whether the first document ends before the second begins, if there is one."""
        right = self.right[places]
        found: Mask = (right < 0) | (self.ends[self.left[places]] < self.begins[right])
        return found

    def is_tied(self) -> Mask:
        """Returns whether the first document ends just as the second begins."""
        found: Mask = (self.right >= 0) & (self.ends[self.left] == self.begins[self.right])
        return found


# ------------------------------------------------------------ values


@dataclass(slots=True)
class BoundValue:
    """The node bound to a SELECT variable, with derived-value functions to apply."""

    record: Record
    node: Node
    functions: tuple[str, ...] = ()
    chosen: tuple[int, str] | None = None
    """One of several values: its place among them, from 1, and its text."""

    def text(self) -> str:
        if self.chosen is not None:
            return self.chosen[1]
        functions = self.functions
        if functions and functions[0] in algebra.OF_DOCUMENT:
            value = str(getattr(self.record, _OF_DOCUMENT[functions[0]]))
            for name in functions[1:]:
                value = algebra.derive(name, value)
            return value
        return tree_value(self.record.tree, self.node, functions)

    def is_element(self) -> bool:
        return not self.node[1] and not self.functions

    def markup(self) -> str:
        return markup_of(self.record, self.node[0])

    def copy(self) -> etree._Element:
        return _copied(self.record.tree.elements[self.node[0]])

    def copied_as(self, name: str) -> str:
        """The element's markup, with another name."""
        found = self.copy()
        found.tag = name
        return etree.tostring(found, encoding="unicode")

    def json_id(self) -> int | str:
        element, place = self.node
        node = f"{element}/@{self.record.tree.attribute(element, place)[0]}" if place else element
        return node if self.chosen is None else f"{node}/#{self.chosen[0]}"

    def json(self) -> str:
        return json_text(str(self.json_id())) if self.node[1] or self.chosen else str(self.node[0])

    def choices(self) -> list[BoundValue]:
        """The value, or each of several."""
        if (split := algebra.split_values(self.functions)) is None:
            return [self]
        texts = algebra.each_value(split[1], BoundValue(self.record, self.node, split[0]).text())
        return [BoundValue(self.record, self.node, self.functions, chosen) for chosen in enumerate(texts, 1)]


_OF_DOCUMENT = dict(zip(algebra.OF_DOCUMENT, ("id", "stream", "t1"), strict=True))


def markup_of(record: Record, number: int) -> str:
    """Returns an element of a document, serialised once as long as its tree lives."""
    if number == 0 and record.kind == "external" and not record.has_namespaces:
        return record.xml  # which was serialized in the same way
    if (found := record.fragments.get(number)) is None:
        outline, text = record.tree.outline, record.tree.text
        if outline is not None and text is not None and not record.has_namespaces:
            found = record.fragments[number] = outline.markup_of(number, text)
            return found
        element = record.tree.elements[number]
        if record.has_namespaces:
            # In a tree of its own, so that namespaces are declared where they are used.
            etree.Element("match").append(element := _copied(element))
        found = record.fragments[number] = etree.tostring(element, encoding="unicode", with_tail=False)
    return found


def _copied(element: etree._Element) -> etree._Element:
    copied = deepcopy(element)
    copied.tail = None
    return copied


def json_nodes(nodes: Mapping[str, int | str]) -> str:
    texts = ((name, json_text(node) if isinstance(node, str) else node) for name, node in nodes.items())
    return f"{{{', '.join(f'{json_text(name)}: {text}' for name, text in texts)}}}"


def read_nodes(text: str) -> dict[str, int | str]:
    nodes: dict[str, int | str] = json.loads(text)
    return nodes


def node_order(node: int | str) -> tuple[int, str]:
    """An element's number, and its attribute or which of several values it is."""
    element, _, attribute = str(node).partition("/")
    return int(element), attribute


def without_choice(node: int | str) -> int | str:
    """A node's id without which of several values it is.

    >>> without_choice("3/@k/#2"), without_choice("3/#2"), without_choice(3)
    ('3/@k', 3, 3)
    """
    plain, choice, _ = str(node).partition("/#")
    return int(plain) if choice and plain.isdecimal() else plain if choice else node


def node_orders(nodes: Mapping[str, int | str]) -> list[tuple[str, tuple[int, str]]]:
    return [(name, node_order(node)) for name, node in nodes.items()]


JointBinding = Mapping[str, BoundValue]


def value_of(binding: JointBinding, term: Term) -> BoundValue:
    one = binding[term.var]
    return BoundValue(one.record, one.node, term.functions)


MOST_COPIED = 64 << 20  # characters of a chunk's documents that are copied together


class Values:
    """The nodes of a chunk's variables, coded: the place of the record, and the plain node id. The variable of a tuple
    is a node of an earlier document."""

    def __init__(self, matches: MatchColumns, stored: StoredRecords) -> None:
        self._records, self._stored = list(matches.records), stored
        self._hidden: Mask = np.array([one.kind == "hidden" for one in self._records], np.bool_)
        self._docids: Ints = np.array([one.docid for one in self._records], np.int64)
        self.texts: dict[int, str] = {}

    @lazy
    def _places(self) -> dict[int, int]:
        return {docid: place for place, docid in enumerate(self._docids.tolist())}

    def codes(self, which: Ints, nodes: Ints) -> Ints:
        """Returns the codes of plain node ids, each in the record that `which` indexes."""
        codes = which << _NODE_BITS | nodes
        if self._hidden.any() and (hidden := self._hidden[which]).any():
            of, known = dictionary_encode(codes[hidden])
            codes[hidden] = np.array(list(map(self._behind, known.tolist())), np.int64)[of]
            self._docids = np.array([one.docid for one in self._records], np.int64)
        return codes

    def _behind(self, code: int) -> int:
        docid, (element, attribute) = self._records[code >> _NODE_BITS].bound[(code & 0xFFFFFFFF) - 1]
        if (place := self._places.get(docid)) is None:
            place = self._places[docid] = len(self._records)
            self._records.append(self._stored[docid])
        return place << _NODE_BITS | attribute << 32 | element

    def documents_and_nodes(self, codes: Ints) -> tuple[Ints, Ints]:
        return self._docids[codes >> _NODE_BITS], codes & PLAIN

    def value(self, code: int, functions: tuple[str, ...] = ()) -> BoundValue:
        return BoundValue(self._records[code >> _NODE_BITS], plain_node(code & PLAIN), functions)

    def column(self, codes: Ints, functions: tuple[str, ...]) -> ValueColumn:
        return ValueColumn(self, *dictionary_encode(codes), functions, codes & PLAIN)

    def texts_of(self, codes: Ints) -> list[str]:
        """Returns the string values of nodes."""
        known, records, keys = self.texts, self._records, codes.tolist()
        columns = codes >> _NODE_BITS, codes & ELEMENT, (codes & PLAIN) >> ATTRIBUTE_SHIFT
        for key, place, element, attribute in zip(keys, *(column.tolist() for column in columns), strict=True):
            if key not in known:
                known[key] = records[place].tree.string_value(element, attribute)
        return list(map(known.__getitem__, keys))

    @lazy
    def _documents(self) -> tuple[Mask, pa.Array]:
        """Which of a chunk's documents are external and without namespaces, and the texts of these; none if they are
        large."""
        are_small = sum(len(one.xml) for one in self._records) <= MOST_COPIED
        plain = [are_small and one.kind == "external" and not one.has_namespaces for one in self._records]
        texts = [one.xml if is_plain else "" for one, is_plain in zip(self._records, plain, strict=True)]
        return np.array(plain, np.bool_), pa.array(texts, pa.large_string())

    def whole_documents(self, codes: Ints) -> pa.Array | None:
        """Returns the texts of a chunk's documents; None unless all codes are roots whose markup is the whole text."""
        if (codes & PLAIN).any() or self._hidden.any():
            return None
        plain, texts = self._documents
        return texts if plain[codes >> _NODE_BITS].all() else None

    def markups(self, codes: Ints) -> list[str]:
        places, numbers = (codes >> _NODE_BITS).tolist(), (codes & PLAIN).tolist()
        return list(map(markup_of, map(self._records.__getitem__, places), numbers))


_NODE_BITS = PLAIN.bit_length()


@dataclass(frozen=True, slots=True)
class ValueColumn:
    """Values of rows: the place of each among the `distinct` codes, the functions applied, and plain node ids."""

    of: Values
    places: Ints
    distinct: Ints
    functions: tuple[str, ...]
    nodes: Ints
    choices: Sequence[BoundValue] | None = None
    """Instead of the distinct codes, values of which a node has several."""

    def values(self) -> Sequence[BoundValue]:
        if self.choices is not None:
            return self.choices
        return [self.of.value(code, self.functions) for code in self.distinct.tolist()]

    def texts(self, text_of: Callable[[BoundValue], str]) -> Encoded:
        return Encoded(self.places, list(map(text_of, self.values())))

    def json(self) -> Encoded | Ints:
        return self.texts(BoundValue.json) if self.choices or self._has_attributes() else self.nodes

    def markups(self) -> Encoded | None:
        """Returns the elements' markup; None if there are other values."""
        if self.functions or self._has_attributes():
            return None
        if len(self.places) > FEW and (documents := self.of.whole_documents(self.distinct)) is not None:
            return Encoded((self.distinct >> _NODE_BITS)[self.places], documents)
        return Encoded(self.places, self.of.markups(self.distinct))

    def _has_attributes(self) -> bool:
        return int(self.nodes.max(initial=0)) >> ATTRIBUTE_SHIFT > 0


def choice_numbers(codes: Ints, values: Sequence[BoundValue]) -> Ints:
    """Returns which of its node's values each row has, from 1."""
    return np.array([one.chosen[0] for one in values if one.chosen], np.int64)[codes]


class Encoded(NamedTuple):
    """Texts by code, distinct or not, and the code of each row."""

    codes: Ints
    texts: Any
    """A list, or an array of Arrow where they are only joined to others."""

    def costs(self) -> Ints:
        """Returns the steps for reading each row's text."""
        return np.array([len(text) // CHARACTERS_READ_PER_STEP for text in self.texts], np.int64)[self.codes]

    def rows(self) -> list[str]:
        texts = self.texts if isinstance(self.texts, list) else self.texts.to_pylist()
        return list(map(texts.__getitem__, self.codes.tolist()))

    def take(self) -> pa.Array:
        texts = pa.array(self.texts, pa.large_string()) if isinstance(self.texts, list) else self.texts
        return texts.take(pa.array(self.codes))


# ------------------------------------------------------------ joint bindings


class _TooManyStepsError(Exception): ...


class _TooManyBindingsError(Exception): ...


def _bindings(
    binder: SideBinder, record: Record, nodes: Sequence[int], allowed: int
) -> tuple[list[tuple[Node, ...]], int]:
    """Returns a match's bindings, and the steps to find them: more than `allowed`, if it was not searched to the end.
    Stage 1 has checked all conditions, so there are some."""
    steps = 0

    def take(number: int) -> None:
        nonlocal steps
        steps += number
        if steps > allowed:
            raise _TooManyStepsError

    try:
        return binder.find(record.tree, tuple(map(plain_node, nodes)), take, has_some=True), steps
    except _TooManyStepsError:
        return [], allowed + 1


@dataclass(frozen=True, slots=True)
class _Found:
    """Bindings of a side: `start` and `count` of each row's among the nodes of the variables."""

    start: Ints
    count: Ints
    nodes: Mapping[str, Ints]


BLOCK = 100_000  # maximum number of joint bindings in memory together


@dataclass(frozen=True, slots=True)
class PartRows:
    """Matches of parts with one plan: for each row, the index of its part and the place of its match."""

    parts: Sequence[RowPart]
    part: Ints
    place: Ints

    @classmethod
    def of(cls, parts: Sequence[tuple[RowPart, Ints]]) -> PartRows:
        """Returns the rows of parts, given with the places of their matches."""
        sizes = [len(places) for _, places in parts]
        return cls(
            [part for part, _ in parts], np.repeat(np.arange(len(parts)), sizes), np.concatenate([p for _, p in parts])
        )

    def __len__(self) -> int:
        return len(self.part)

    def take(self, those: Ints | Mask) -> PartRows:
        return PartRows(self.parts, self.part[those], self.place[those])


class Joints:
    """The joint bindings of rows. `steps` counts those of each row so far; what has more than `allowed` binds nothing
    more."""

    def __init__(self, plan: JointPlan, rows: PartRows, matches: MatchColumns, values: Values, allowed: int) -> None:
        self._plan, self._rows, self._matches, self.values, self._allowed = plan, rows, matches, values, allowed
        self.steps: Ints = np.ones(len(rows), np.int64)
        self._stopped: Mask = np.zeros(len(rows), np.bool_)
        self._which = [matches.left[rows.place], matches.right[rows.place]]
        self._side_of: dict[str, int] = {}
        for number, side in enumerate(plan.sides):
            match side:
                case HiddenSide(variables=pairs):
                    names: Sequence[str] = [var for var, _ in pairs]
                case DerivedSide(variables=derived):
                    names = [one.var for one in derived]
                    self.steps += len(names)
                case _:
                    names = side.variables
            self._side_of.update(dict.fromkeys(names, number))
        self._fixed: dict[str, Ints] = {}

    @property
    def variables(self) -> Collection[str]:
        return self._side_of

    def _searched(self, side: SearchedSide, number: int, some: Ints) -> tuple[_Found, Ints]:
        """Returns the bindings of a side for some rows, and the steps to find them. Raises _TooManyBindingsError."""
        rows, which = self._rows.take(some), self._which[number][some]
        fixed_sides = [part.sides[number] for part in rows.parts]
        known = {fixed: place for place, fixed in enumerate(dict.fromkeys(fixed_sides))}
        of_part = np.array([known[fixed] for fixed in fixed_sides], np.int64)[rows.part]
        nodes = [self._matches.node(rows.place, slot) for slot in side.slots]
        records, asked = self._matches.records, [fixed.binder for fixed in known]

        families: dict[object, int] = {}
        family = np.array([families.setdefault(one.family, place) for place, one in enumerate(asked)], np.int64)[
            of_part
        ]

        def distinct_rows(of_part: Ints, which: Ints) -> tuple[Ints, Iterator[tuple[SideBinder, Record, list[int]]]]:
            of, first = number_rows(of_part, which, *nodes)
            columns = (column[first].tolist() for column in (of_part, which, *nodes))
            return of, ((asked[one], records[at], ids) for one, at, *ids in zip(*columns, strict=True))

        alike = self._matches.alike(which)  # parses trees together
        of, those = distinct_rows(family, alike)
        is_of_shape = np.array(
            [one.is_of_shape(record.tree, tuple(map(plain_node, ids))) for one, record, ids in those]
        )
        place, those = distinct_rows(
            np.where(is_of_shape[of], family, of_part), np.where(is_of_shape[of], alike, which)
        )
        counts, steps, found = [], [], list[tuple[Node, ...]]()
        for binder, record, ids in those:
            bindings, took = _bindings(binder, record, ids, self._allowed)
            found += bindings
            counts.append(len(bindings))
            steps.append(took)
            if len(found) > BLOCK and len(some) > 1:
                raise _TooManyBindingsError
        count = np.array(counts, np.int64)
        start = np.cumsum(count) - count
        columns = zip(*found, strict=True) if found else ([] for _ in side.variables)
        packed = (np.array([element | at << 32 for element, at in column], np.int64) for column in columns)
        nodes_of = dict(zip(side.variables, packed, strict=True))
        return _Found(start[place], count[place], nodes_of), np.array(steps, np.int64)[place]

    def fixed_nodes(self, var: str) -> Ints:
        """Returns the nodes of a variable that rows determine."""
        if var not in self._fixed:
            self._fixed[var] = self._found_above(var)
        return self._fixed[var]

    def _found_above(self, var: str) -> Ints:
        number = self._side_of[var]
        match self._plan.sides[number]:
            case HiddenSide(variables=pairs):
                return np.full(len(self._rows), dict(pairs)[var])
            case DerivedSide(variables=derived):
                one = next(one for one in derived if one.var == var)
                ids = self._matches.node(self._rows.place, one.slot)
                return ids if not one.levels else self._above(self._which[number], ids, one.levels)
        raise AssertionError(f"{var} is searched for")

    def _above(self, which: Ints, ids: Ints, levels: int) -> Ints:
        place, keys = dictionary_encode(self._matches.alike(which) << _NODE_BITS | ids)
        records = self._matches.records
        found = [
            DerivedVariable("", 0, levels).node(records[key >> _NODE_BITS].tree, (key & PLAIN,))[0]
            for key in keys.tolist()
        ]
        return np.array(found, np.int64)[place]

    def stop(self, those: Mask) -> None:
        """Binds no more to some rows."""
        self._stopped |= those

    def blocks(self) -> Iterator[JointBlock]:
        """Yields the joint bindings that satisfy the residual predicates."""
        if any(isinstance(side, SearchedSide) for side in self._plan.sides):
            yield from self._searched_blocks(np.arange(len(self._rows)))
            return
        rows = np.flatnonzero(self.steps <= self._allowed)
        for start in range(0, len(rows), BLOCK):
            yield from self._satisfying(JointBlock(self, rows[start : start + BLOCK], {}))

    def _searched_blocks(self, rows: Ints) -> Iterator[JointBlock]:
        """Yields those of some rows; in halves, if their sides have too many bindings to hold together."""
        if not len(rows):
            return
        sides = [(number, side) for number, side in enumerate(self._plan.sides) if isinstance(side, SearchedSide)]
        try:
            searched = {number: self._searched(side, number, rows) for number, side in sides}
        except _TooManyBindingsError:
            for half in np.array_split(rows, 2):
                yield from self._searched_blocks(half)
            return
        number: Ints = np.ones(len(rows), np.int64)
        for found, steps in searched.values():
            self.steps[rows] += steps
            number = number * found.count
        self.steps[rows] += number
        number[self.steps[rows] > self._allowed] = 0
        ends = np.cumsum(number)
        for start in range(0, int(ends[-1]), BLOCK):
            joint = np.arange(start, min(start + BLOCK, int(ends[-1])))
            of = ends.searchsorted(joint, "right")
            joint -= (ends - number)[of]
            at: dict[int, tuple[_Found, Ints]] = {}
            for side, (found, _) in reversed(
                searched.items()
            ):  # the right side's bindings come in turn for each left one
                at[side] = found, found.start[of] + joint % found.count[of]
                joint = joint // found.count[of]
            yield from self._satisfying(JointBlock(self, rows[of], at))

    def _satisfying(self, block: JointBlock) -> Iterator[JointBlock]:
        if len(self.values.texts) > BLOCK:
            self.values.texts.clear()
        if self._stopped.any():
            block = block.take(~self._stopped[block.of])
        for expr in self._plan.residual:
            block = block.affordable()
            predicate = predicate_of(expr)
            several = list(map(_several, predicate.operands))
            operands = [
                block.text(operand) if some is None else block.column(some[0]).texts(BoundValue.text)
                for operand, some in zip(predicate.operands, several, strict=True)
            ]
            block, operands = block.charged(operands)
            if not len(block.of):
                return
            if any(several):
                block = block.take(_some_holding(predicate, operands, [some and some[1] for some in several]))
            else:
                block = block.take(_holding(predicate, operands))
        if len(block.of):
            yield block


@dataclass(frozen=True, slots=True)
class JointBlock:
    """Some joint bindings: the row `of` each, and for sides that are searched, the bindings and the place of each."""

    joints: Joints
    of: Ints
    at: Mapping[int, tuple[_Found, Ints]]

    def take(self, those: Ints | Mask) -> JointBlock:
        at = {side: (found, places[those]) for side, (found, places) in self.at.items()}
        return JointBlock(self.joints, self.of[those], at)

    def affordable(self) -> JointBlock:
        joints = self.joints
        if int(joints.steps.max(initial=0)) <= joints._allowed:
            return self
        return self.take(joints.steps[self.of] <= joints._allowed)

    def charged(self, operands: list[Encoded]) -> tuple[JointBlock, list[Encoded]]:
        """Charges the rows for reading texts, and leaves out those that cannot afford it."""
        costs = sum((one.costs() for one in operands), np.zeros(len(self.of), np.int64))
        if not costs.any():
            return self, operands
        joints = self.joints
        np.add.at(joints.steps, self.of, costs)
        stays = joints.steps[self.of] <= joints._allowed
        return self.take(stays), [Encoded(one.codes[stays], one.texts) for one in operands]

    def codes(self, var: str) -> Ints:
        """Returns the codes of a variable's nodes in `Values`."""
        joints = self.joints
        side = joints._side_of[var]
        which = joints._which[side][self.of]
        if side in self.at:
            found, places = self.at[side]
            nodes = found.nodes[var][places]
        else:
            nodes = joints.fixed_nodes(var)[self.of]
        return joints.values.codes(which, nodes)

    def text(self, expr: algebra.Expr) -> Encoded:
        """Returns the texts of an operand."""
        match expr:
            case algebra.VarPath(var=var):
                codes, distinct_codes = dictionary_encode(self.codes(var))
                return Encoded(codes, self.joints.values.texts_of(distinct_codes))
            case algebra.Call(name=algebra.PARTS, args=(algebra.VarPath(var=var), _)):
                return self.column(Term(var, (str(algebra.derivation(expr)),))).texts(BoundValue.text)
            case algebra.Call(args=(arg, *_)) if name := algebra.derivation(expr):
                codes, texts = self.text(arg)
                return Encoded(codes, [algebra.derive(name, text) for text in texts])
        return Encoded(np.zeros(len(self.of), np.int64), [_constant(expr)])

    def chosen(self, terms: Sequence[Term]) -> tuple[JointBlock, Ints, dict[int, tuple[Ints, list[BoundValue]]]]:
        """The bindings with each choice of values for those of `terms` that have several: the bindings, which ones of
        these they are, and for each such term, by place, the choice of each among some."""
        those, found = np.arange(len(self.of)), dict[int, tuple[Ints, list[BoundValue]]]()
        for place, term in enumerate(terms):
            if algebra.split_values(term.functions) is None:
                continue
            column = self.column(term)
            choices = [one.choices() for one in column.values()]
            counts = np.array(list(map(len, choices)), np.int64)
            ends = np.cumsum(counts)
            at, row = expand_ranges((ends - counts)[column.places[those]], ends[column.places[those]])
            found = {other: (codes[row], values) for other, (codes, values) in found.items()}
            found[place] = at, [one for some in choices for one in some]
            those = those[row]
        return self.take(those) if found else self, those, found

    def column(self, term: Term) -> ValueColumn:
        return self.joints.values.column(self.codes(term.var), term.functions)

    def bindings(self) -> Iterator[dict[str, BoundValue]]:
        """Yields the value of each variable."""
        joints = self.joints
        columns = [list(map(joints.values.value, self.codes(var).tolist())) for var in joints.variables]
        for values in zip(*columns, strict=True) if columns else ([()] * len(self.of)):
            yield dict(zip(joints.variables, values, strict=True))


@lru_cache(10_000)
def _several(operand: algebra.Expr) -> tuple[Term, tuple[str, ...]] | None:
    """The text of which an operand is several values, and the functions that give them; None for one value."""
    term = as_term(operand)
    split = None if term is None else algebra.split_values(term.functions)
    return None if term is None or split is None else (Term(term.var, split[0]), split[1])


def _some_holding(
    predicate: Predicate, operands: Sequence[Encoded], functions: Sequence[tuple[str, ...] | None]
) -> Mask:
    """Whether a predicate holds for some of the values of the texts."""
    place, first = number_rows(*(one.codes for one in operands))
    values = [
        [[text] if some is None else algebra.each_value(some, text) for text in one.texts]
        for one, some in zip(operands, functions, strict=True)
    ]
    columns = (map(of.__getitem__, one.codes[first].tolist()) for of, one in zip(values, operands, strict=True))
    rows = zip(*columns, strict=True)
    return np.array([any(starmap(predicate.test, product(*row))) for row in rows], np.bool_)[place]


_ORDER: Mapping[str, Callable[[Any, Any], Mask]] = {
    "=": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal
}  # fmt: skip


def _holding(predicate: Predicate, operands: Sequence[Encoded]) -> Mask:
    if predicate.op is not None:
        return _compared_by_rank(predicate, operands)
    place, first = number_rows(*(one.codes for one in operands))
    texts = zip(*(map(one.texts.__getitem__, one.codes[first].tolist()) for one in operands), strict=True)
    return np.array([predicate.test(*some) for some in texts], np.bool_)[place]


def _compared_by_rank(predicate: Predicate, operands: Sequence[Encoded]) -> Mask:
    keys = [list(map(key, one.texts)) for key, one in zip(predicate.keys, operands, strict=True)]
    known = {key for of_operand in keys for key in of_operand if key is not None and key == key}
    ranks = {key: rank for rank, key in enumerate(known if predicate.op in ("=", "!=") else sorted(known))}
    one, other = (
        np.array([ranks.get(key, -1) for key in of_operand], np.int64)[operand.codes]
        for of_operand, operand in zip(keys, operands, strict=True)
    )
    assert predicate.op is not None, "it is a comparison"
    holds = _ORDER[predicate.op](one, other)
    return np.where((one < 0) | (other < 0), predicate.op == "!=", holds)
