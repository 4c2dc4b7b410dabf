"""The registered existential filters, a bit for each distinct branch and condition, evaluated bottom-up.

The filters that hold at a node are a bit mask; what requires a few of very many bits is found by an index.

The class of a node has the filters that hold there. It follows from the node's name and from what its children satisfy;
classes are interned and found by one look-up per child and one per node, whatever the number of filters (the bottom-up
states of XPush). lxml evaluates conditions that are not compiled. Comparisons of node sets read each side once, value
by value: in linear time, with at most one long text in memory."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import chain, compress, count, product, starmap
from operator import not_
from typing import Any, Generic, NamedTuple, TypeVar

from lxml import etree

from common.dates import parse_timestamp
from common.tools import Few, Memo, NumberSet, decrease, each, with_item, without_item
from xpath_stage.documents import ElementColumns, ParsedDocument, Tags, Vocabulary, element_text, owner_test
from xpath_stage.keywords import INDEXES, LiteralIndex, keyword_of
from xscl.algebra.joins import EXTENSION_PREFIX, PatternNode, Test, node_texts
from xscl.algebra.near import has_phrase, has_words, near, similar
from xscl.algebra.regex import PatternError, PatternLimit
from xscl.algebra.values import (
    DERIVED,
    ORDER,
    PARTS,
    TESTS,
    CompareOp,
    FunctionChain,
    NodeKind,
    concat_text,
    derive_all,
    each_value,
    matches_regex,
    number_text,
    parts_of,
    xpath_number,
)

Failures = dict[str, Exception]
"""What raised, and so counted as false or empty: conditions in XPath and functions of values, with the first error."""

_XPathValue = list[etree._Element | str] | str | float
"""An operand as lxml returns it: a node set, a string or a number."""

_LONGEST = 64  # maximum length of a text held as it is; longer ones are held as digests


def compare_values(op: CompareOp, left: _XPathValue, right: _XPathValue) -> bool:
    """Whether a comparison of texts or numbers holds between any values of two sides; see `values.compare`."""
    if op in ("=", "!=") and not isinstance(left, float) and not isinstance(right, float):
        return _any(op, _texts(left), _texts(right))
    return _any(op, _numbers(left), _numbers(right))


def _any(op: CompareOp, left: Iterator[Any], right: Iterator[Any]) -> bool:
    """Whether a comparison holds between any two values. None is not a number or time: only `!=` holds with it."""
    if op == "!=":
        return _differ(left, right)
    lefts, rights = (value for value in left if value is not None), (value for value in right if value is not None)
    if op == "=":
        known = set(lefts)
        return bool(known) and any(value in known for value in rights)
    best, worst = (min, max) if op in ("<", "<=") else (max, min)
    one = best(lefts, default=None)
    if one is None:
        return False
    other = worst(rights, default=None)
    return other is not None and ORDER[op](one, other)


def _differ(left: Iterator[Hashable | None], right: Iterator[Hashable | None]) -> bool:
    """Whether two values differ. If both sides have values, and not all are equal, two across the sides differ."""
    for one in left:
        for other in right:
            return one is None or any(value is None or value != one for value in chain((other,), left, right))
    return False


def _strings(value: _XPathValue) -> Iterator[str]:
    if not isinstance(value, list):
        yield str(value)
        return
    for node in value:
        yield element_text(node) if isinstance(node, etree._Element) else str(node)


def _numbers(value: _XPathValue) -> Iterator[float | None]:
    numbers = iter((value,)) if isinstance(value, float) else map(xpath_number, _strings(value))
    return (number if number == number else None for number in numbers)


def _texts(value: _XPathValue) -> Iterator[str | bytes]:
    for text in _strings(value):
        yield text if len(text) <= _LONGEST else blake2b(text.encode(), digest_size=32).digest()


_NAMESPACE = "urn:mmqjp:functions"
_PREFIXES = {EXTENSION_PREFIX: _NAMESPACE}
_functions = etree.FunctionNamespace(_NAMESPACE)


for _name, _derive in DERIVED.items():
    _functions[_name] = lambda _context, text, derive=_derive: derive(text)
_functions["ends-with"] = lambda _context, text, end: text.endswith(end)
_functions["matches"] = lambda _context, text, pattern, flags="": matches_regex(text, pattern, flags)
_functions["near"] = lambda _context, text, other, threshold: near(text, other, threshold)
_functions["similar"] = lambda _context, text, other, threshold: similar(text, other, threshold)
_functions["concat"] = lambda _context, *texts: concat_text(texts, str)
_functions["has-words"] = lambda _context, text, wanted: has_words(text, wanted)
_functions["has-phrase"] = lambda _context, text, wanted: has_phrase(text, wanted)
_functions[PARTS] = lambda _context, nodes, parts: concat_text(json.loads(parts), partial(_text_at, nodes[0]))
_functions["values"] = lambda _context, chain, text: list(each_value(tuple(json.loads(chain)), text))
_functions["some"] = lambda _context, name, *args: any(
    starmap(TESTS[name], product(*(list(_strings(arg)) for arg in args)))
)
_functions["number"] = lambda _context, text: xpath_number(text)
_functions["compare"] = lambda _context, left, op, right: compare_values(op, left, right)
_functions["compare-times"] = lambda _context, left, op, right: _any(
    op, *(map(parse_timestamp, _strings(side)) for side in (left, right))
)
_functions["string"] = lambda _context, value: number_text(value)


_TOKEN = re.compile(r"""("[^"]*"|'[^']*'|[A-Za-z_][\w.-]*)|([0-9]+\.?[0-9]*|\.[0-9]+)""")
_EXACT_DIGITS = 15


def _exact(xpath: str) -> str:
    """Wraps each number that libxml2 may read inexactly in our number(): it reads 1.64 as the double after the nearest
    one. It reads short integers exactly.

    >>> _exact('count(./a1.5) = 2 and string(.) != "0.5" or number(.) > -1.64')
    'count(./a1.5) = 2 and string(.) != "0.5" or number(.) > -mmqjp:number("1.64")'
    """

    def token(found: re.Match[str]) -> str:
        number = found[2]
        if number is None or (number.isdigit() and len(number) <= _EXACT_DIGITS):
            return found[0]
        return f'{EXTENSION_PREFIX}:number("{number}")'

    return _TOKEN.sub(token, xpath)


_SIGN = re.compile(r"""\"[^\"]*\"|'[^']*'|[()\[\],]|[ ]!?=[ ]|[ ]""")


def _by_sets(xpath: str) -> str:
    """Replaces each `=` and `!=` of two paths, for which libxml2 takes quadratic time, by our compare(). Done here
    because the texts of conditions are stored.

    >>> _by_sets('not(./a[boolean(./b = ./c)] != ./d) and (./a = "./b")')
    'not(mmqjp:compare(./a[boolean(mmqjp:compare(./b, "=", ./c))], "!=", ./d)) and (./a = "./b")'
    """
    parts: list[str] = []
    starts, operators = [0], [0]  # of each open bracket; an operator is 0 if none has been met, -1 if it does not count
    place = 0

    def end() -> None:
        start, middle = starts[-1], operators[-1]
        if middle > 0:
            left, right = "".join(parts[start:middle]), "".join(parts[middle + 1 :])
            if all(side == "." or side.startswith(("./", ".//")) for side in (left, right)):
                parts[start:] = [f'{EXTENSION_PREFIX}:compare({left}, "{parts[middle].strip()}", {right})']

    for found in _SIGN.finditer(xpath):
        parts.append(xpath[place : found.start()])
        place, sign = found.end(), found[0]
        if sign in ")],":
            end()
            starts.pop()
            operators.pop()
        elif "=" in sign and sign[0] == " ":
            operators[-1] = -1 if operators[-1] else len(parts)
        elif sign == " ":
            operators[-1] = -1
        parts.append(sign)
        if sign in "([,":
            starts.append(len(parts))
            operators.append(0)
    parts.append(xpath[place:])
    end()
    return "".join(parts)


@lru_cache(maxsize=65536)
def _compiled(xpath: str, on_attribute: bool) -> etree.XPath:
    # lxml cannot take an attribute as the context node. It is selected from its element by position.
    xpath = _exact(_by_sets(xpath))
    text = f"boolean(@*[$place][{xpath}])" if on_attribute else f"boolean({xpath})"
    return etree.XPath(text, namespaces=_PREFIXES, smart_strings=False)


def xpath_holds(xpath: str, element: etree._Element, attribute: int = 0) -> bool:
    """Whether XPath holds at an element or attribute (from 1). False past limits of regular expressions or libxml2."""
    try:
        if attribute:
            return bool(_compiled(xpath, True)(element, place=attribute))
        return bool(_compiled(xpath, False)(element))
    except (PatternError, PatternLimit, etree.XPathError):
        return False


_CHILD = re.compile(r"\./([A-Za-z_][\w.-]*)", re.ASCII)


@lru_cache(maxsize=4096)
def _first_text(path: str) -> Callable[[etree._Element], str]:
    """Reads the string value of the first node of a path below an element; "" if there is none."""
    if path == ".":
        return element_text
    if child := _CHILD.fullmatch(path):  # a tenth of the time of XPath

        def text_of_child(element: etree._Element, name: str = child[1]) -> str:
            found = next(element.iterchildren(name), None)
            return "" if found is None else element_text(found)

        return text_of_child
    find = etree.XPath(f"({_exact(_by_sets(path))})[1]", namespaces=_PREFIXES, smart_strings=False)

    def text_of_path(element: etree._Element) -> str:
        try:
            return next(_strings(find(element)), "")  # type: ignore[arg-type]  # a path in parentheses selects nodes
        except (PatternError, PatternLimit, etree.XPathError):
            return ""

    return text_of_path


def _text_at(node: etree._Element | str, path: str) -> str:
    """The text of the first node of a path from a node, which is an attribute if it is a text."""
    return node if isinstance(node, str) else _first_text(path)(node)


def derived_text(
    text: Callable[[], str], element: Callable[[], etree._Element] | None, functions: FunctionChain
) -> str:
    """A derived value of a node with a `text`, which is an attribute's without an `element`."""
    parts = parts_of(functions[0])
    if parts is None:
        return derive_all(functions, text())
    if element is None:
        return derive_all(functions[1:], concat_text(parts, lambda _: text()))
    above = element()
    return derive_all(functions[1:], concat_text(parts, lambda path: _first_text(path)(above)))


def tree_value(tree: ParsedDocument, node: tuple[int, int], functions: FunctionChain = ()) -> str:
    """A value of a node of a document: its string value, with functions applied."""
    if not functions:
        return tree.string_value(*node)
    element = None if node[1] else lambda: tree.elements[node[0]]
    return derived_text(lambda: tree.string_value(*node), element, functions)


K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")

Bits = tuple[int, ...]  # ascending bit numbers


def bits(mask: int) -> Iterator[int]:
    """The numbers of the set bits, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def bit_mask(numbers: Iterable[int]) -> int:
    """The mask with these bits, in time linear in its length and their number."""
    octets = bytearray()
    set_bits(octets, list(numbers))
    return int.from_bytes(octets, "little")


def set_bits(octets: bytearray, numbers: Collection[int]) -> None:
    octets.extend(bytes(max(max(numbers, default=-1) // 8 + 1 - len(octets), 0)))
    for number in numbers:
        octets[number >> 3] |= 1 << (number & 7)


class MaskIndex(Generic[T]):
    """Items, indexed by one of their required bits: a look-up visits only items under set bits. Built at the first
    look-up, because most items belong to documents that never arrive."""

    __slots__ = ("_bit_of", "_by_bit", "_items", "_need")
    _bit_of: dict[T, int]

    def __init__(self) -> None:
        self._items: dict[T, Bits] | tuple[T, Bits] | None = None  # mostly one, and a dictionary once it is indexed
        self._by_bit: dict[int, Few[T]] | None = None  # mostly one
        self._need = 0

    @property
    def need(self) -> int:
        """The mask of all bits that some item requires or required: it does not shrink."""
        self._index()
        return self._need

    def __contains__(self, item: T) -> bool:
        return item in self._all()

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, item: T, required: Bits) -> None:
        if self._items is None and self._by_bit is None:
            self._items = item, required
            return
        self._items = self._all()
        self._items[item] = required
        if self._by_bit is not None:
            self._need |= bit_mask(required)
            self._sort_in(item, required, self._by_bit)

    def remove(self, item: T) -> None:
        self._items = self._all()
        del self._items[item]
        if self._by_bit is not None:
            bit = self._bit_of.pop(item)
            if (left := without_item(self._by_bit.pop(bit), item)) is not None:
                self._by_bit[bit] = left

    def satisfied(self, mask: int) -> Iterator[T]:
        return (item for item, _ in self.satisfied_with(mask))

    def satisfied_with(self, mask: int) -> Iterator[tuple[T, Bits]]:
        """`satisfied`, with the bits that each item requires."""
        by_bit, items = self._index(), self._all()
        for item in each(by_bit.get(-1)):
            yield item, items[item]
        held = frozenset(bits(mask & self._need))
        for bit in sorted(held):
            for item in each(by_bit.get(bit)):
                if held.issuperset(required := items[item]):
                    yield item, required

    def _index(self) -> dict[int, Few[T]]:
        if self._by_bit is None:
            self._by_bit, self._bit_of = {}, {}
            self._items = items = self._all()
            self._need = bit_mask(bit for required in items.values() for bit in required)
            for item, required in items.items():
                self._sort_in(item, required, self._by_bit)
        return self._by_bit

    def _all(self) -> dict[T, Bits]:
        return dict((self._items,)) if isinstance(self._items, tuple) else self._items or {}

    def _sort_in(self, item: T, required: Bits, by_bit: dict[int, Few[T]]) -> None:
        # The bit with the fewest items: rather a literal of few patterns than a branch of most.
        bit = min(required, key=lambda b: len(each(by_bit.get(b))), default=-1)
        by_bit[bit] = with_item(by_bit.get(bit), item)
        self._bit_of[item] = bit


class BranchFilter(NamedTuple):
    bit: int
    axis: str


class Guarded(NamedTuple):
    """A condition in XPath, and the other filters that a pattern requires of the same node."""

    xpath: str
    guard: Bits


@dataclass(slots=True)
class AtName:
    """The filters at nodes of one kind and name: conditions, and branches whose top they may be. `literals` maps
    literals to their bits. A condition in XPath is evaluated only where the filters required with it hold; those that
    are in `keywords`, by path and function, are looked up together."""

    kind: NodeKind
    name: str
    need: int = 0
    literals: dict[str, int] = field(default_factory=dict)
    xpaths: MaskIndex[Guarded] = field(default_factory=MaskIndex)
    keywords: dict[str, dict[str, tuple[LiteralIndex, dict[str, int]]]] = field(default_factory=dict)
    branches: list[MaskIndex[BranchFilter]] = field(default_factory=list)
    reads_attributes: bool = False

    @property
    def tests_values(self) -> bool:
        return bool(self.xpaths or self.keywords)

    def found_at(self, element: etree._Element, place: int) -> int:
        """The mask of the `keywords` that an element has, or its attribute at a position from 1."""
        mask = 0
        for path, tests in self.keywords.items():
            text = str(element.attrib.values()[place - 1]) if place else _first_text(path)(element)
            for index, bit_of in tests.values():
                for literal in index.found_in(text):
                    mask |= 1 << bit_of[literal]
        return mask


class FilterBank:
    def __init__(self, vocabulary: Vocabulary, failures: Failures | None = None) -> None:
        self._vocabulary, self._failures = vocabulary, failures
        self.bit_of: defaultdict[str, dict[str, int]] = defaultdict(dict)  # by kind and name
        self._uses: list[int] = []  # of each bit
        self._free: list[int] = []
        self._branches: defaultdict[Test, MaskIndex[BranchFilter]] = defaultdict(MaskIndex)
        self._literals: defaultdict[Test, dict[str, int]] = defaultdict(dict)  # their bits
        self._again: Counter[tuple[Test, str]] = Counter()  # uses of literals beyond the first
        self._guarded: defaultdict[Test, Counter[Guarded]] = defaultdict(Counter)
        self._keywords: defaultdict[Test, Counter[str]] = defaultdict(Counter)  # conditions in XPath
        self._needs: defaultdict[Test, bytearray] = defaultdict(bytearray)  # bits, which are only added
        self.element_literals: Counter[str | None] = Counter()  # literals compared with element values, counted
        self.owners = Tags()  # tags of elements whose attributes some filter reads
        self.selective = NumberSet()  # the bits of value filters

    def __bool__(self) -> bool:
        return any(self.bit_of.values())

    @property
    def reads_trees(self) -> bool:
        return any(self._guarded.values()) or any(self._keywords.values())

    @property
    def tests_attributes(self) -> bool:
        kinds = (self._literals, self._guarded, self._keywords)
        return any(test.kind == "attribute" and by for kind in kinds for test, by in kind.items())

    def holds(self, xpath: str, element: etree._Element, place: int) -> bool:
        try:
            return xpath_holds(xpath, element, place)
        except Exception as error:
            if self._failures is None:
                raise
            self._failures.setdefault(xpath, error)
            return False

    def keywords_at(self, name: AtName, element: etree._Element, place: int) -> int:
        try:
            return name.found_at(element, place)
        except Exception as error:
            if self._failures is None:
                raise
            self._failures |= {xpath: error for xpaths in self._keywords.values() for xpath in xpaths}
            return 0

    # ------------------------------------------------------------ registration

    def require(self, node: PatternNode) -> Bits:
        """Registers a pattern node's conditions and branches. Returns the bits that a node must have."""
        test = node.test
        self._vocabulary.add(test)
        if not node.children and not node.conditions:
            return ()
        found: set[int] = set()
        for child, name in zip(node.children, node_texts(node.children), strict=True):
            required = self.require(child)
            if child.test.kind == "attribute":
                self.owners.add(owner_test(test, child.axis))
            bit = self._acquire("branch", name, selective=not self.selective.isdisjoint(required))
            if self._uses[bit] == 1:  # it is new
                self._branches[child.test].add(BranchFilter(bit, child.axis), required)
            found.add(bit)
        if node.conditions:
            for literal in _literals(node):
                bit = self._acquire("literal", literal, selective=True)
                if literal in self._literals[test]:
                    self._again[test, literal] += 1
                self._literals[test][literal] = bit
                if test.kind == "element":
                    self.element_literals[literal] += 1
                found.add(bit)
            guard = tuple(sorted(found))
            for xpath in _xpaths(node):
                if keyword_of(xpath) is None:
                    self._guarded[test][Guarded(xpath, guard)] += 1
                else:
                    self._keywords[test][xpath] += 1
                found.add(self._acquire("xpath", xpath, selective=True))
        set_bits(self._needs[test], found)
        return tuple(sorted(found))

    def selective_of(self, required: Bits) -> Bits:
        """Those of the bits that are of value filters."""
        return tuple([bit for bit in required if bit in self.selective])

    def release(self, node: PatternNode) -> None:
        found = {self.bit_of["branch"][str(child)] for child in node.children}
        found.update(self.bit_of["literal"][literal] for literal in _literals(node))
        guard = tuple(sorted(found))
        for xpath in _xpaths(node):
            if keyword_of(xpath) is None:
                decrease(self._guarded[node.test], Guarded(xpath, guard))
            else:
                decrease(self._keywords[node.test], xpath)
            self._let_go("xpath", xpath)
        for literal in _literals(node):
            if (node.test, literal) in self._again:
                decrease(self._again, (node.test, literal))
            else:
                del self._literals[node.test][literal]
            if node.test.kind == "element":
                decrease(self.element_literals, literal)
            self._let_go("literal", literal)
        for child in node.children:
            self.release(child)
            if child.test.kind == "attribute":
                self.owners.remove(owner_test(node.test, child.axis))
            branch = BranchFilter(self.bit_of["branch"][str(child)], child.axis)
            if self._let_go("branch", str(child)):
                self._branches[child.test].remove(branch)
        self._vocabulary.remove(node.test)

    def _acquire(self, kind: str, name: str, *, selective: bool) -> int:
        of_kind = self.bit_of[kind]
        if (bit := of_kind.get(name)) is None:
            bit = of_kind[name] = self._free.pop() if self._free else len(self._uses)
            if bit == len(self._uses):
                self._uses.append(0)
            if selective:
                self.selective.add(bit)
        self._uses[bit] += 1
        return bit

    def _let_go(self, kind: str, name: str) -> bool:
        bit = self.bit_of[kind][name]
        self._uses[bit] -= 1
        if self._uses[bit]:
            return False
        del self.bit_of[kind][name]
        self.selective.discard(bit)
        self._free.append(bit)
        return True

    # ------------------------------------------------------------ what they are at nodes

    def at(self, kind: NodeKind, name: str) -> AtName:
        made = AtName(kind, name)
        literals = [by for by in _accepting(self._literals, kind, name) if by]
        # Of one test they are its own, which may be very many: whoever changes them forgets what was made.
        made.literals = literals[0] if len(literals) == 1 else {key: by[key] for by in literals for key in by}
        for guarded in _accepting(self._guarded, kind, name):
            for item in guarded:
                if item not in made.xpaths:
                    made.xpaths.add(item, item.guard)
        for xpaths in _accepting(self._keywords, kind, name):
            for xpath in xpaths:
                if keyword := keyword_of(xpath):
                    tests = made.keywords.setdefault(keyword.path, {})
                    index, bit_of = tests.setdefault(keyword.name, (INDEXES[keyword.name](), {}))
                    if keyword.literal not in bit_of:
                        index.add(keyword.literal)
                    bit_of[keyword.literal] = self.bit_of["xpath"][xpath]
        made.branches += _accepting(self._branches, kind, name)
        for need in _accepting(self._needs, kind, name):
            made.need |= int.from_bytes(need, "little")
        made.reads_attributes = kind == "element" and name in self.owners
        return made


def _accepting(by_test: Mapping[Test, T], kind: NodeKind, label: str) -> Iterator[T]:
    return (item for test, item in by_test.items() if test.kind == kind and test.accepts(label))


def _literals(node: PatternNode) -> list[str]:
    return [condition.literal for condition in node.conditions if condition.literal is not None]


def _xpaths(node: PatternNode) -> list[str]:
    return [condition.xpath for condition in node.conditions if condition.xpath is not None]


class Tests(NamedTuple):
    """The tests of an element, beside its children: the names of its `attributes`, whether its value is one of
    `literals`, and anything `elsewhere`."""

    attributes: bool
    literals: dict[str, int]
    elsewhere: bool


class _Upward:
    """Masks of the filters satisfied for nodes above: on the `child` axis, and on the descendant axis (`any`)."""

    __slots__ = ("any", "child", "some")

    def __init__(self, child: int, any_: int) -> None:
        self.child, self.any, self.some = child, any_, bool(child or any_)


@dataclass(slots=True, eq=False)
class NodeClass:
    """Nodes of one name at which the filters in `mask` hold. `selective`: some are value filters."""

    kind: NodeKind
    name: str
    mask: int
    upward: _Upward
    selective: bool


@dataclass(slots=True, eq=False)
class _MarkedElement:
    """The label of an element whose value equals the literal of bit `own`, or whose attributes satisfy filters."""

    tag: str
    own: int | None
    attributes: _Upward


class _Attribute:
    """Classes of attributes of one name, by the bit of the literal that they equal; `plain` if none."""

    __slots__ = ("by_literal", "literals", "name", "plain", "tests_values")

    def __init__(self, name: AtName, plain: NodeClass) -> None:
        self.name, self.plain = name, plain
        self.literals, self.tests_values = name.literals, name.tests_values
        self.by_literal: dict[int | None, NodeClass] = {}


class _Siblings(dict[_Upward, "_Siblings"]):
    """What a node's first children satisfy together. Maps what the next child satisfies to the result."""

    __slots__ = ("by_label", "classes", "upward")

    def __init__(self, classes: NodeClasses, upward: _Upward) -> None:
        super().__init__()
        self.classes, self.upward = classes, upward
        self.by_label: dict[str | _MarkedElement, NodeClass] = {}

    def __missing__(self, child: _Upward) -> _Siblings:
        return self.classes.joined(self, child)


class NodeClasses:
    """A cache of at most `limit` node classes."""

    def __init__(self, bank: FilterBank, vocabulary: Vocabulary, limit: int) -> None:
        self._bank, self._vocabulary, self._limit = bank, vocabulary, limit
        self.forget()

    def forget(self) -> None:
        self.made = 0
        canonical = self._vocabulary.canonical
        # There are no more of these than the registered tests distinguish.
        elements: Memo[str, AtName] = Memo(lambda name: self._bank.at("element", name))
        attributes: Memo[str, _Attribute] = Memo(self._attribute)
        self._elements: Memo[str, AtName] = Memo(lambda tag: elements[canonical(tag)], self._limit)
        self._attributes: Memo[str, _Attribute] = Memo(lambda name: attributes[canonical(name)], self._limit)
        self._marked: Memo[tuple[str, int | None, _Upward], _MarkedElement] = Memo(
            lambda marks: _MarkedElement(*marks), self._limit
        )
        self._upward: dict[tuple[int, int], _Upward] = {}
        self._by_upward: dict[tuple[int, int], _Siblings] = {}
        self._interned: dict[tuple[NodeKind, str, int, _Upward], NodeClass] = {}
        self._leaf = self._below(0, 0)

    def tests_of(self, tag: str) -> Tests:
        """The tests of elements with this tag, beside their children."""
        name = self._elements[tag]
        # The attributes are not known here, and any of them may have conditions.
        elsewhere = name.tests_values or (name.reads_attributes and self._bank.tests_attributes)
        return Tests(name.reads_attributes, name.literals, elsewhere)

    # ------------------------------------------------------------ elements

    def of_elements(self, columns: ElementColumns, attributes: Sequence[NodeClass]) -> list[NodeClass]:
        labels, counts = self._labels(columns, attributes), columns.counts
        found: list[NodeClass] = []
        waiting: list[_Upward] = []
        leaf, leaves = self._leaf, self._leaf.by_label
        # Backwards, so that children come before their parents.
        for label, children in zip(reversed(labels), reversed(counts), strict=True):
            if children:
                below = leaf
                for _ in range(children):
                    below = below[waiting.pop()]
                node = below.by_label.get(label)
            else:
                below, node = leaf, leaves.get(label)
            if node is None:
                node = self._class_of(label, below, columns, len(labels) - 1 - len(found))
            found.append(node)
            waiting.append(node.upward)
        found.reverse()
        return found

    def _labels(self, columns: ElementColumns, attributes: Sequence[NodeClass]) -> Sequence[str | _MarkedElement]:
        tags, names, nothing = columns.tags, self._elements, self._leaf.upward
        own = self._satisfied_literals(columns) if self._bank.element_literals else {}
        below: dict[int, _Siblings] = {}
        for owner, node in zip(columns.owners, attributes, strict=True):
            if node.upward.some and names[tags[owner]].reads_attributes:
                below[owner] = below.get(owner, self._leaf)[node.upward]
        if not (own or below):
            return tags
        labels: list[str | _MarkedElement] = list(tags)
        for number in own.keys() | below.keys():
            upward = below[number].upward if number in below else nothing
            labels[number] = self._marked[tags[number], own.get(number), upward]
        return labels

    def _satisfied_literals(self, columns: ElementColumns) -> dict[int, int]:
        tags, texts, names, literals = columns.tags, columns.texts, self._elements, self._bank.element_literals
        columns.read_values(number for number in tuple(columns.unread) if names[tags[number]].literals)
        found: dict[int, int] = {}
        for number in compress(count(), map(literals.__contains__, texts)):
            if (bit := names[tags[number]].literals.get(texts[number] or "")) is not None:
                found[number] = bit
        if "" in literals:
            for number in compress(count(), map(not_, texts)):
                if (bit := names[tags[number]].literals.get("")) is not None:
                    found[number] = bit
        return found

    def joined(self, below: _Siblings, child: _Upward) -> _Siblings:
        """What the children `below` and one more satisfy together, cached in `below`."""
        upward = below.upward
        found = self._below(upward.child | child.child, upward.any | child.any)
        return self._kept(below, child, found)

    def _kept(self, cache: dict[K, V], key: K, value: V) -> V:
        if self.made < self._limit:
            cache[key] = value
            self.made += 1
        return value

    def _class_of(self, label: str | _MarkedElement, below: _Siblings, columns: ElementColumns, at: int) -> NodeClass:
        if isinstance(label, _MarkedElement):
            name, own, joined = self._elements[label.tag], label.own, below[label.attributes]
        else:
            name, own, joined = self._elements[label], None, below
        mask = joined.upward.child | joined.upward.any | _mask(own)
        if name.tests_values:
            return self._intern(name, self._own(name, mask, columns.element(at), 0), joined.upward.any)
        return self._kept(below.by_label, label, self._intern(name, mask, joined.upward.any))

    # ------------------------------------------------------------ attributes

    def of_attributes(self, columns: ElementColumns) -> list[NodeClass]:
        known, found = self._attributes, []
        for label, value in zip(columns.names, columns.values, strict=True):
            name = known[label]
            own = name.literals.get(value)
            if own is None and not name.tests_values:
                found.append(name.plain)
            else:
                found.append(self._attribute_class(name, own, columns, len(found)))
        return found

    def _attribute(self, label: str) -> _Attribute:
        name = self._bank.at("attribute", label)
        return _Attribute(name, self._intern(name, 0, 0))

    def _attribute_class(self, attribute: _Attribute, own: int | None, columns: ElementColumns, at: int) -> NodeClass:
        name = attribute.name
        if name.tests_values:
            mask = self._own(name, _mask(own), columns.element(columns.owners[at]), columns.places[at])
            return self._intern(name, mask, 0)
        node = attribute.by_literal.get(own)
        if node is None:
            node = attribute.by_literal[own] = self._intern(name, _mask(own), 0)
        return node

    # ------------------------------------------------------------ both

    def _own(self, name: AtName, mask: int, element: etree._Element, place: int) -> int:
        for xpath in {item.xpath for item in name.xpaths.satisfied(mask)}:
            if self._bank.holds(xpath, element, place):
                mask |= 1 << self._bank.bit_of["xpath"][xpath]
        return mask | self._bank.keywords_at(name, element, place) if name.keywords else mask

    def _intern(self, name: AtName, mask: int, below_any: int) -> NodeClass:
        by_child, by_any = 0, below_any
        for index in name.branches:
            for branch in index.satisfied(mask):
                if branch.axis == "/":
                    by_child |= 1 << branch.bit
                else:
                    by_any |= 1 << branch.bit
        upward = self._upward.get((by_child, by_any))
        if upward is None:
            upward = self._kept(self._upward, (by_child, by_any), _Upward(by_child, by_any))
        key = (name.kind, name.name, mask & name.need, upward)
        found = self._interned.get(key)
        if found is None:
            selective = not self._bank.selective.isdisjoint(bits(mask & name.need))
            found = self._kept(self._interned, key, NodeClass(*key, selective))
        return found

    def _below(self, child: int, any_: int) -> _Siblings:
        found = self._by_upward.get((child, any_))
        if found is None:
            found = self._kept(self._by_upward, (child, any_), _Siblings(self, _Upward(child, any_)))
        return found


def _mask(bit: int | None) -> int:
    return 0 if bit is None else 1 << bit
