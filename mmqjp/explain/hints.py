"""What may be meant where nothing passes a stage: other names and values that the documents have in the place of a part
of a block, and values of both sides of an equality that are nearly equal: but for a function, a few words, or letters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from fractions import Fraction
from itertools import chain, islice
from sys import maxsize

from mmqjp.answers.matches import text_of_operand
from mmqjp.explain.shown import apply_functions
from mmqjp.explain.terms import StepBudget, TooLong, cut, truncate_value
from mmqjp.process import printable_line, printable_text
from xpath_stage.binder import Node, PreparedNode, each_binding
from xpath_stage.documents import ParsedDocument, split_name
from xscl.algebra.trees import naming
from xscl.algebra.values import Call, Expr, Rel, Step, derivation, operands_of
from xscl.algebra.words import LEAST, encode_words, first_keys, join_threshold, overlap
from xscl.lower import PatternBuilder

MAX_SAMPLE_STEPS, VALUE_WIDTH = 1_000_000, 40
"""Step limit of a path in a document, and characters shown of a value of a condition."""


class PathHints:
    """Says what documents have instead of a path, or of values for which a condition holds."""

    def __init__(self, builder: PatternBuilder, trees: Sequence[ParsedDocument]) -> None:
        self._builder, self._trees = builder, trees

    def of(self, above: tuple[Step, ...], condition: Expr | None) -> str:
        """A hint for a condition on the node at the end of a path; for None, for the last step of the path."""
        if condition is None:
            return self._name(above)
        found = _operands(condition)
        for part in ((*above, *path.steps[:end]) for path, _ in found for end in range(1, len(path.steps) + 1)):
            with suppress(TooLong):
                if not any(True for tree in self._trees for _ in self._nodes(part, tree)):
                    return self._name(part)
        path, functions = found[0] if found else (Rel(), ())
        return self._values((*above, *path.steps), functions)

    def _nodes(self, path: tuple[Step, ...], tree: ParsedDocument) -> Iterator[Node]:
        """The nodes at the end of a path. Raises TooLong."""
        *steps, last = path
        pattern = self._builder.path((*steps, Step(last.axis, last.test, last.filters)), last_var="end")
        take = StepBudget(maxsize, MAX_SAMPLE_STEPS).take_here
        for ((_, node),) in each_binding(PreparedNode(naming(pattern, ("end",))), tree, {}, take):
            yield node

    def _name(self, path: tuple[Step, ...]) -> str:
        *above, last = path
        wanted, sign = last.test.local, "@" if last.test.kind == "attribute" else ""
        own, other, deeper = Counter[str](), Counter[str](), Counter[str]()
        for tree in self._trees:
            with suppress(TooLong):
                numbers = [number for number, place in self._nodes(tuple(above), tree) if not place] if above else None
                elements, attributes = _names(tree, numbers, deep=last.axis == "//")
                wanted_kind, other_kind = (attributes, elements) if sign else (elements, attributes)
                own.update(wanted_kind[0])
                deeper.update(wanted_kind[1])
                other.update(other_kind[0])
        for name in own:
            uri, local = split_name(name)
            if local == wanted and uri and last.test.prefix is None:
                return f"it is in the namespace {printable_line(uri)}: write {sign}*:{wanted} ({_in(own[name])})"
        local_names = Counter[str]()
        for name, count in own.items():
            local_names[split_name(name)[1]] += count
        if other[wanted]:
            mark = "" if sign else "@"
            return f"it is {'an element' if sign else 'an attribute'}: write {mark}{wanted} ({_in(other[wanted])})"
        if wanted not in own and deeper[wanted]:
            return f"it is deeper: write //{sign}{wanted} ({_in(deeper[wanted])})"
        folded = [name for name in local_names if name.lower() == wanted.lower()]
        for close in folded or get_close_matches(wanted, local_names, n=1):
            return f"did you mean {sign}{close} ({_in(local_names[close])})?"
        if not local_names:
            return f"there are no {'attributes' if sign else 'elements'} in it"
        listed = ", ".join(f"{sign}{name}" for name, _ in local_names.most_common(8))
        return f"there are {listed}{' and others' if len(local_names) > 8 else ''}"

    def _values(self, path: tuple[Step, ...], functions: tuple[str, ...]) -> str:
        values = Counter[str]()
        for tree in self._trees:
            with suppress(TooLong):
                texts = dict.fromkeys(tree.string_value(*node) for node in self._nodes(path, tree))
                values.update(list(dict.fromkeys(apply_functions(text, functions) for text in texts)))
        if not values:
            return ""
        most = [(cut(printable_text(value), VALUE_WIDTH), count) for value, count in values.most_common(3)]
        shown = ", ".join(f'"{value}" ({_in(count)})' for value, count in most)
        return f"the values are {shown}{' and others' if len(values) > 3 else ''}"


def _names(tree: ParsedDocument, numbers: Sequence[int] | None, *, deep: bool) -> tuple[list[list[str]], ...]:
    """Returns the names of elements, and of attributes: those in some elements of a document (None: in the document
    itself), and those anywhere below, each once, in order."""
    below: Sequence[int] = range(len(tree.elements))
    children, owners = below[:1], below[:0]
    if numbers is not None:
        below = sorted({n for number in numbers for n in range(number + 1, tree.end[number])})
        parents = set(numbers)
        children, owners = [n for n in below if tree.parent[n] in parents], numbers
    if deep:
        children, owners = below, sorted({*(numbers or ()), *below})
    elements = [[str(tree.elements[n].tag) for n in some] for some in (children, below)]
    attributes = [[str(name) for n in some for name in tree.elements[n].attrib] for some in (owners, below)]
    return tuple([list(dict.fromkeys(names)) for names in found] for found in (elements, attributes))


def _operands(expr: Expr, functions: tuple[str, ...] = ()) -> list[tuple[Rel, tuple[str, ...]]]:
    """The paths in a condition, in text order, each with the functions around it, the innermost first."""
    match expr:
        case Rel():
            return [(expr, functions)]
        case Call(args=(arg, *_)) if name := derivation(expr):
            return _operands(arg, (name, *functions))
    return [found for operand in operands_of(expr) for found in _operands(operand)]


def _in(count: int) -> str:
    return f"in {count:,}"


# ---------------------------------------------------------------- values of two sides

DocumentsByText = dict[str, list[Sequence[int]]]
"""Maps a text to at most two rows of documents that have it, by their docids."""

TRIED = (("lower-case",), ("normalize-space",), ("normalize-space", "lower-case"), ("canonical-url",))
"""Functions that might equate values with the same meaning, the innermost first."""

MOST_NEAR, MOST_COMPARED, LONGEST_COMPARED = 3, 1_000, 200
"""Limits for near misses: values reported, values compared, and characters per value."""


def note(values: DocumentsByText, text: str, documents: Sequence[Sequence[int]]) -> None:
    """Adds documents to a value; two at most."""
    known = values.setdefault(text, [])
    known += [one for one in documents if one not in known][: 2 - len(known)]


def shared(left: DocumentsByText, right: DocumentsByText) -> int:
    """How many values two different documents share."""
    return sum(1 for text, ones in left.items() if any(one != other for one in ones for other in right.get(text, ())))


def mended(left: DocumentsByText, right: DocumentsByText) -> tuple[str, ...]:
    """Returns the functions, the innermost first, that would equate values of both sides; () if none."""
    return next((one for one in TRIED if shared(_derived(left, one), _derived(right, one))), ())


def _derived(values: DocumentsByText, functions: tuple[str, ...]) -> DocumentsByText:
    found: DocumentsByText = {}
    for text, documents in values.items():
        if derived := apply_functions(text, functions):
            note(found, derived, documents)
    return found


def near_values(left: DocumentsByText, right: DocumentsByText, functions: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yields nearly equal values of both sides: equal after `functions`, or without these by their letters."""
    if functions:
        by_value: dict[str, list[str]] = {}
        for text in right:
            by_value.setdefault(apply_functions(text, functions), []).append(text)
        for text in left:
            yield from ((text, other) for other in by_value.get(apply_functions(text, functions), ()) if other != text)
        return
    few, many = sorted((left, right), key=len)
    among = [text for text in islice(many, MOST_COMPARED) if len(text) <= LONGEST_COMPARED]
    for text in islice(few, MOST_NEAR):
        if len(text) <= LONGEST_COMPARED:
            for close in get_close_matches(text, among, MOST_NEAR + 1):
                if close != text:  # a text of the same document
                    yield (text, close) if few is left else (close, text)


# ---------------------------------------------------------------- words of two texts

FEWEST, MOST_TEXT_PAIRS, MOST_TEXTS = 3, 2_000, 1_000
"""Texts with fewer words are never near. Maximum number of text pairs compared, and of texts read per side."""


def _nearest(texts: Iterable[Sequence[str]]) -> tuple[Fraction, Sequence[str]]:
    """The largest share of common words of two texts, and these texts. `texts` may not be empty."""
    found = ((Fraction(*overlap(*pair)) if any(overlap(*pair)) else Fraction(0), pair) for pair in texts)
    return max(islice(found, MOST_TEXT_PAIRS), key=lambda one: one[0])


def _in_common(pair: Sequence[str]) -> str:
    common, union = overlap(*pair)
    one, other = map(truncate_value, pair)
    return f'"{one}" and "{other}" have {common} of {union} words in common'


def nearness(expr: Expr, bindings: Sequence[Mapping[str, str]]) -> str | None:
    """Describes a near() that holds for no binding (variables to texts); None for another condition."""
    match expr:
        case Call(name="near", args=(one, other, _)):
            texts = (tuple(text_of_operand(arg, some.__getitem__) for arg in (one, other)) for some in bindings)
            part, pair = _nearest(texts)
            return f"{_in_common(pair)}, which is {float(part):.2f}"
    return None


def near_instead(left: Iterable[str], right: Iterable[str], one: str, other: str) -> tuple[str, str] | None:
    """Returns message and hint if no texts of two sides are equal but some are near. `one` and `other` are the
    operands. Reads at most MOST_TEXTS per side."""
    least = join_threshold(str(float(LEAST)))
    having: dict[str, list[str]] = {}
    for text in islice(right, MOST_TEXTS):
        for key in _keys(text, least):
            having.setdefault(key, []).append(text)
    pairs = (
        (text, close)
        for text in islice(left, MOST_TEXTS)
        for close in dict.fromkeys(close for key in _keys(text, least) for close in having.get(key, ()))
        if text != close
    )
    part, pair = _nearest(chain([("", "")], pairs))
    if part < LEAST:
        return None
    tenths = part * 10 // 1
    threshold = f"{tenths // 10}.{tenths % 10}"
    return _in_common(pair), f"use near({one}, {other}, {threshold}) to find texts that differ in a word"


def _keys(text: str, threshold: str) -> list[str]:
    words = encode_words(text, threshold) if len(text.split(maxsplit=FEWEST)) >= FEWEST else ""  # no address, no name
    return first_keys(words) if words else []
