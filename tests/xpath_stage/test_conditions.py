"""Conditions of filters in one document, as stage 1 evaluates them, held against Saxon: numbers and their strings above
all, which libxml2 reads and writes otherwise than XPath says."""

import tracemalloc
from dataclasses import replace
from random import Random

import pytest
from lxml import etree

from mmqjp.answers import bindings
from tests.generate.seeds import seeds
from tests.support.saxon import saxon_of_document
from xpath_stage import filters
from xpath_stage.filters import xpath_holds
from xscl.algebra import values
from xscl.algebra.values import And, Call, Compare, CompareOp, Expr, NameTest, Not, Number, Or, Rel, Step, String
from xscl.lower import PatternBuilder

OPERATORS: tuple[CompareOp, ...] = ("=", "!=", "<", "<=", ">", ">=")
TEXTS = """
    2026-07-16 2026-07-16T08:30:00Z 2026-07-16T10:30:00+02:00 2026-07-15T24:00:00 2026-07-16T00:00:00.5
    0.1 0.3 1.64 4.69 2.675 1 2 10 1.1 -0 1000000000000 0.00001 9007199254740993 0.30000000000000004
    -1 0 1. .5 3.14159 123456789012345678901234567890
    1.0 1e3 +1 a ab 2026-02-30 NaN ΣÄ
"""
TIMES, COMMON, NUMBERS, OTHERS = map(str.split, TEXTS.strip().splitlines())
NUMERALS, VALUES = [*COMMON, *NUMBERS], [*COMMON, *TIMES, *OTHERS, "", " ", " 1 ", "a  b", "\t1\n"]
PATTERNS = ("^[0-9]+$", "1", r"^\s*$", r"^\w+$", "b$", r"\.0")


def document(rng: Random) -> str:
    root = etree.Element("r")
    for _ in range(rng.randrange(1, 6)):
        child = etree.SubElement(root, rng.choice("ab"))
        if rng.random() < 0.5:
            child.set("k", rng.choice(VALUES))
        child.text = rng.choice(VALUES)
    return etree.tostring(root, encoding="unicode")


class Maker:
    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def condition(self, depth: int = 2) -> Expr:
        rng = self._rng
        shape = rng.randrange(10)
        if depth and shape < 3:
            arms = self.condition(depth - 1), self.condition(depth - 1)
            return rng.choice((And(arms), Or(arms), Not(arms[0])))
        if shape < 5:
            name = rng.choice(("contains", "starts-with", "ends-with", "matches"))
            if name == "matches":
                flags = (String(rng.choice(("i", "s", "x", "ix"))),) if rng.random() < 0.5 else ()
                return Call(name, (self._value(1), String(rng.choice(PATTERNS)), *flags))
            return Call(name, (self._value(1), self._value(1)))
        if shape < 6:
            if rng.random() < 0.3:
                return Compare(rng.choice(OPERATORS[2:]), self._path(), String(rng.choice(TIMES)))
            time: Expr = Call("date", (self._value(1),))
            other: Expr = Call("date", (self._path(),)) if rng.random() < 0.3 else String(rng.choice(TIMES))
            return Compare(rng.choice(OPERATORS), *((other, time) if rng.random() < 0.2 else (time, other)))
        return Compare(rng.choice(OPERATORS), self._value(2), self._value(2))

    def _value(self, depth: int) -> Expr:
        rng = self._rng
        shape = rng.randrange(10)
        if shape < 3 or (not depth and shape < 6):
            return self._path()
        if shape < 5:
            return Number(rng.choice(NUMERALS))
        if shape < 6 or not depth:
            return String(rng.choice(VALUES))
        name = rng.choice(("normalize-space", "lower-case", "upper-case", "string", "string-length", "number", "count"))
        return Call(name, (self._path() if name == "count" else self._value(depth - 1),))

    def _path(self) -> Rel:
        child = Step(self._rng.choice(("/", "/", "//")), NameTest("element", self._rng.choice("abc*")))
        if self._rng.random() < 0.3:
            return Rel((child, Step("/", NameTest("attribute", "k"))))
        return Rel((child,)) if self._rng.random() < 0.8 else Rel(())


def in_xquery(expr: Expr) -> str:
    """The condition for Saxon, with XPath 1.0's rules spelled out; values are strings, numbers or nodes."""
    match expr:
        case Rel(steps=steps):
            return "$r" + "".join(f"{s.axis}{'@' * (s.test.kind == 'attribute')}{s.test.local}" for s in steps)
        case String(value=value):
            codes = ", ".join(str(ord(char)) for char in value)
            return f"codepoints-to-string(({codes}))"
        case Number(text=text):
            return f"local:number('{text}')"
        case And(args=(one, other)):
            return f"({in_xquery(one)} and {in_xquery(other)})"
        case Or(args=(one, other)):
            return f"({in_xquery(one)} or {in_xquery(other)})"
        case Not(arg=arg):
            return f"not({in_xquery(arg)})"
        case Compare(op=op, left=left, right=right) if values.is_of_times(expr):
            sides = [text_of(side.args[0]) if isinstance(side, Call) else in_xquery(side) for side in (left, right)]
            return f"local:any-times({sides[0]}, '{op}', {sides[1]})"
        case Compare(op=op, left=left, right=right):
            return f"local:any({in_xquery(left)}, '{op}', {in_xquery(right)})"
        case Call(name="count", args=(arg,)):
            return f"xs:double(count({in_xquery(arg)}))"
        case Call(name="number", args=(arg,)):
            return f"local:number({text_of(arg)})"
        case Call(name="string-length", args=(arg,)):
            return f"xs:double(string-length({text_of(arg)}))"
        case Call(name="string", args=(arg,)):
            return text_of(arg)
        case Call(name=name, args=args):
            return f"{name}({', '.join(map(text_of, args))})"
    raise AssertionError(expr)


def text_of(expr: Expr) -> str:
    return f"local:string({in_xquery(expr)})"


@pytest.mark.parametrize("seed", seeds(1, 100))
def test_conditions(seed: int) -> None:
    rng = Random(seed)
    for _ in range(5):
        xml = document(rng)
        root = etree.fromstring(xml)
        conditions = [Maker(rng).condition() for _ in range(100)]
        answers = saxon_of_document([in_xquery(condition) for condition in conditions], xml)
        for condition, answer in zip(conditions, answers, strict=True):
            written = PatternBuilder({})._xpath(condition)
            assert xpath_holds(written, root) is (answer == "true"), (written, xml)


def test_a_pattern_that_an_earlier_version_took_matches_nothing() -> None:
    root = etree.fromstring("<r>a</r>")
    assert xpath_holds('mmqjp:matches(string(.), "a")', root) and not xpath_holds(
        r'mmqjp:matches(string(.), "\X")', root
    )
    pattern = Call("matches", (String("a"), String(r"\X")))
    assert not bindings.residual_holds(pattern, str) and bindings.residual_holds(
        replace(pattern, args=(String("a"), String("a"))), str
    )


@pytest.mark.parametrize(
    "condition", ['mmqjp:compare(./a, "<", ./b)', 'mmqjp:compare-times(./a, ">=", ./b)', "./a = ./b", "not(./a != ./b)"]
)
def test_each_text_is_read_once(condition: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[etree._Element] = []

    def text_of(node: etree._Element) -> str:
        read.append(node)
        return str(node.text)

    monkeypatch.setattr(filters, "element_text", text_of)
    xpath_holds(condition, etree.fromstring("<r>" + "<a>1</a><b>1</b>" * 50 + "</r>"))
    assert 0 < len(read) == len(set(read)) <= 100


@pytest.mark.parametrize(
    "condition",
    ['mmqjp:compare-times(.//a, ">=", "2026-07-16")', 'mmqjp:compare(.//a, ">", 5)', ".//a = ./b", "not(.//a != .//a)"],
)
def test_one_text_at_a_time_is_in_memory(condition: str) -> None:
    size = 1 << 20
    root = etree.fromstring("<r>" + "<a>" * 50 + "x" * size + "</a>" * 50 + "<b/></r>")
    tracemalloc.start()
    try:
        xpath_holds(condition, root)
        assert tracemalloc.get_traced_memory()[1] < 8 * size
    finally:
        tracemalloc.stop()


def test_only_comparisons_of_two_paths_become_ours() -> None:
    others = ['./a = "./b = ./c"', ".5 = 0.5", "./a = 1 and ./b = ./c", 'contains(./a, " = ./b")']
    for condition in (*others, '*[local-name() = "a" and . = "b"]', 'concat("a", \'"\', " = ") = ./b'):
        assert filters._by_sets(condition) == condition
