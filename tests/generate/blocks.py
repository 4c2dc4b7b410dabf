"""Random query blocks and paths, grown from nodes of a sample document so that they match it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from lxml import etree

from tests.generate.documents import NAMESPACE, TIMES, chance
from tests.oracle.match import Matcher, Node, Tree
from tests.oracle.values import word_list
from xscl.algebra.values import (
    WITH_LITERAL,
    And,
    Axis,
    Call,
    Compare,
    CompareOp,
    Expr,
    NameTest,
    Not,
    Number,
    Or,
    Rel,
    Step,
    String,
)
from xscl.syntax import Block


@dataclass(frozen=True, slots=True)
class Name:
    """A name that a predicate or SELECT may use, with what it stands for in the sample document. `value` is the
    function that it is the value of, if it is one of an inner SELECT."""

    var: str
    text: str
    at: etree._Element | None = None
    leaf: bool = False
    value: str | None = None


class BlockMaker:
    """Makes the blocks of one query; variables are numbered through it."""

    def __init__(self, rng: Random, namespaced: bool) -> None:
        self._rng = rng
        self._namespaced = namespaced
        self._variables = 0
        self._tree: Tree

    def fresh(self, letter: str) -> str:
        """A name that the query has not used yet."""
        self._variables += 1
        return f"{letter}{self._variables}"

    def block(self, stream: str, sample: bytes | str, bind_root: bool = False) -> tuple[Block, tuple[Name, ...]]:
        """A block that matches the sample document, unless one of its boolean filters does not, and its variables."""
        rng, names = self._rng, list[Name]()
        self._tree = Tree(sample)
        inner = [element for element in self._tree.elements if len(element)]
        at = rng.choice(inner) if inner and chance(rng, 65) else rng.choice(self._tree.elements)
        steps = self._path_to(at, names)
        if at.attrib and chance(rng, 8):
            last, text = self._attribute_step("/", at)
            if chance(rng, 30):
                last = replace(last, filters=(Compare("!=", Rel(), String(rng.choice(LITERALS))),))
            if bind_root or not names or chance(rng, 70):
                last = replace(last, var=self._bind(names, text, None, leaf=True))
            return Block(stream, (*steps, last)), tuple(names)
        # A leaf has little to filter.
        count = rng.choice((1, 2, 1, 2, 0, 3) if len(at) else (0, 0, 0, 1))
        filters = tuple(self._filter(names, at) for _ in range(count))
        last = replace(steps[-1], filters=filters)
        if bind_root or not names or chance(rng, 50):
            last = replace(last, var=self._bind(names, _text(at), at))
        return Block(stream, (*steps[:-1], last)), tuple(names)

    def path(self, at: etree._Element) -> tuple[tuple[Step, ...], str] | None:
        """A path without bindings below an element and the text of a node that it leads to; None for a leaf."""
        found = self._rel(at, None)
        return found and (found[0].steps, found[1])

    # ------------------------------------------------------------ steps

    def _path_to(self, at: etree._Element, names: list[Name]) -> list[Step]:
        """The steps from the document's root to an element: all or the last ones, exact or loose."""
        rng = self._rng
        above = list(at.iterancestors())
        shape = rng.randrange(100)
        if not above and shape < 35:
            return [Step("/", NameTest("element", "*") if shape < 12 else self._element_test(at))]
        if not above or shape < 50:
            return [Step("//", self._element_test(at))]
        last = Step("//" if above[0] is not at.getparent() or chance(rng, 35) else "/", self._element_test(at))
        top = rng.choice(above)
        if top is not above[0]:
            last = replace(last, axis="//")
        first = Step("/" if top.getparent() is None and chance(rng, 60) else "//", self._element_test(top))
        if chance(rng, 40):
            first = replace(first, var=self._bind(names, _text(top), top))
        return [first, last]

    def _element_test(self, at: etree._Element) -> NameTest:
        name, shape = etree.QName(at), self._rng.randrange(100)
        if shape >= 95:
            return NameTest("element", "*")
        if name.namespace and not (self._namespaced and shape < 60):
            return NameTest("element", name.localname, "*")
        if name.namespace:
            return NameTest("element", "*" if shape < 15 else name.localname, "p")
        return NameTest("element", name.localname, "*" if shape >= 92 else None)

    def _attribute_step(self, axis: Axis, owner: etree._Element) -> tuple[Step, str]:
        name = self._rng.choice([str(name) for name in owner.attrib])
        qname = etree.QName(name)
        if chance(self._rng, 10):
            test = NameTest("attribute", qname.localname, "*")
        elif qname.namespace == NAMESPACE and self._namespaced:
            test = NameTest("attribute", qname.localname, "p")
        elif qname.namespace or chance(self._rng, 8):
            test = NameTest("attribute", "*")
        else:
            test = NameTest("attribute", qname.localname)
        return Step(axis, test), str(owner.attrib[name])

    def _bind(self, names: list[Name], text: str, at: etree._Element | None, leaf: bool = False) -> str:
        var = self.fresh("x") + ("'" if chance(self._rng, 5) else "")
        names.append(Name(var, text, at, leaf))
        return var

    def _rel(self, at: etree._Element, names: list[Name] | None, nested: bool = True) -> tuple[Rel, str] | None:
        """A path from an element to a node below it and that node's text; its end is bound if `names` can take it."""
        rng = self._rng
        below = list(at.iterchildren(etree.Element) if chance(rng, 65) else at.iterdescendants(etree.Element))
        owners = [element for element in (at, *below) if element.attrib]
        if owners and (not below or chance(rng, 18)):
            owner = rng.choice(owners)
            last, text = self._attribute_step("/" if owner is at and chance(rng, 70) else "//", owner)
            return Rel((self._bound(last, names, text, None),)), text
        if not below:
            return None
        end = rng.choice(below)
        steps: list[Step] = []
        between = list(end.iterancestors())[: _depth(end) - _depth(at) - 1]
        axis: Axis = "/" if not between and chance(rng, 60) else "//"
        if between and chance(rng, 40):
            axis = "/" if len(between) == 1 else "//"
            steps.append(Step(axis, self._element_test(between[-1])))
        text = _text(end)
        last = self._bound(Step(axis, self._element_test(end)), names, text, end)
        if nested and chance(rng, 20):
            inner = self._rel(end, names if chance(rng, 60) else None, nested=False)
            last = replace(last, filters=(inner[0],) if inner else ())
        return Rel((*steps, last)), text

    def _bound(self, step: Step, names: list[Name] | None, text: str, at: etree._Element | None) -> Step:
        leaf = at is None or not len(at)
        return step if names is None else replace(step, var=self._bind(names, text, at, leaf))

    # ------------------------------------------------------------ filters

    def _filter(self, names: list[Name], at: etree._Element) -> Expr:
        shape = self._rng.randrange(100)
        found = self._rel(at, names) if shape < 85 else None
        if found is None:
            return self._condition(at)
        return flat_and(found[0], self._condition(at)) if shape >= 78 else found[0]

    def _condition(self, at: etree._Element) -> Expr:
        """A boolean filter that mostly holds of the element."""
        node, matcher = Node(self._tree.elements.index(at)), Matcher(self._tree, {"p": NAMESPACE})
        for _ in range(4):
            expr = self._boolean(at)
            if matcher.holds(node, expr):
                break
        return expr

    def _boolean(self, at: etree._Element, depth: int = 0) -> Expr:
        """A filter without bindings, true of the element or not."""
        rng = self._rng
        shape = rng.randrange(100 if depth < 2 else 70)
        path, text = self._plain(at)
        if shape < 20 and path.steps:
            return path
        if shape < 48:
            other = self._plain(at)[0] if shape >= 44 else None
            return comparison(rng, path, text, other)
        if shape < 58:
            return string_test(rng, argument(rng, path), text)
        if shape < 70:
            name = rng.choice(
                ("count", "count", "count", "date", "number", "string-length", *TEXT_FUNCTIONS, "concat", "string")
            )
            value = derived(rng, (name,), path if name == "count" else argument(rng, path))
            return comparison(rng, value, text, None)
        if shape < 80:
            return Not(self._boolean(at, depth + 1))
        arms = (self._boolean(at, depth + 1), self._boolean(at, depth + 1))
        return flat_or(*arms) if shape < 95 else flat_and(*arms)

    def _plain(self, at: etree._Element) -> tuple[Rel, str]:
        found = self._rel(at, None, nested=False) if chance(self._rng, 60) else None
        return found or (Rel(), _text(at))


def flat_and(*arms: Expr) -> Expr:
    """`arms` joined by `and` as the parser does it: no `and` directly in another; one arm is itself."""
    flat = _flat(And, arms)
    return And(flat) if len(flat) > 1 else flat[0]


def flat_or(*arms: Expr) -> Expr:
    """`arms` joined by `or`, likewise."""
    return Or(_flat(Or, arms))


def _flat(kind: type[And] | type[Or], arms: Sequence[Expr]) -> tuple[Expr, ...]:
    return tuple(part for arm in arms for part in (arm.args if isinstance(arm, kind) else (arm,)))


def _text(element: etree._Element) -> str:
    return "".join(str(text) for text in element.itertext(etree.Element))


def _depth(element: etree._Element) -> int:
    return sum(1 for _ in element.iterancestors())


LITERALS = ("1", "2", "u", "10", "")
NUMBERS = ("1", "2", "10", "1.5", "-1")
PATTERNS = ("1", "^[0-9]+$", "^u?$", "[a-z]")
FLAGGED = (("U", "i"), ("^[T-V]$", "i"), ("1.*1", "s"), ("^ 1 $", "x"), ("[^U-Z ]+ $", "ix"))
OPERATORS: tuple[CompareOp, ...] = ("=", "!=", "<", "<=", ">", ">=")
TEXT_FUNCTIONS = (
    *("normalize-space", "lower-case", "upper-case", "canonical-url", "host") * 2,
    *("words", *("domain", "year-month", "substring-before", "substring-after") * 2),
)
"""The functions of texts. What is mostly empty is there less often: queries that compare it have no outputs."""
NUMBER_FUNCTIONS = ("number", "string-length", "count")


def argument(rng: Random, operand: Expr) -> Expr:
    return derived(rng, (*TEXT_FUNCTIONS, "concat", "date", "string-length"), operand) if chance(rng, 25) else operand


def derived(rng: Random, names: Sequence[str], operand: Expr) -> Call:
    name = rng.choice(names)
    if name == "concat":
        return Call(name, (operand, String(rng.choice(("", " ", "1"))), operand))
    literals = (String(rng.choice(("1", "u", " ", "/"))),) if name in WITH_LITERAL else ()
    return Call(name, (operand, *literals))


def kind_of(operand: Expr) -> str:
    if isinstance(operand, Number) or (isinstance(operand, Call) and operand.name in NUMBER_FUNCTIONS):
        return "number"
    return "time" if isinstance(operand, Call) and operand.name == "date" else "text"


def comparison(
    rng: Random, operand: Expr, text: str, other: Expr | None, kind: Callable[[Expr], str] = kind_of
) -> Compare:
    """A comparison of an operand, whose text in a sample is given, with another operand or with a literal."""
    operator = rng.choice(("=", "=", *OPERATORS)) if other is None else rng.choice(OPERATORS)
    if other is None:
        other = literal(rng, kind(operand), operator, text)
    pair = (other, operand) if chance(rng, 15) else (operand, other)
    return Compare(operator, *alike(*pair, kind))


def alike(one: Expr, other: Expr, kind: Callable[[Expr], str] = kind_of) -> tuple[Expr, Expr]:
    """The two operands: times, if one is a time."""
    if "time" not in (kind(one), kind(other)):
        return one, other
    dated = [
        side if kind(side) == "time" or isinstance(side, String | Number) else Call("date", (side,))
        for side in (one, other)
    ]
    return dated[0], dated[1]


def literal(rng: Random, kind: str, operator: CompareOp, text: str) -> Expr:
    """A literal that a value of a kind can be compared with."""
    if kind == "time" or (kind == "text" and operator not in ("=", "!=") and chance(rng, 30)):
        return String(rng.choice(TIMES))
    if kind == "number" or chance(rng, 40):
        return Number(rng.choice(NUMBERS)) if chance(rng, 80) else String(rng.choice(NUMBERS))
    if operator not in ("=", "!="):
        return String(rng.choice(NUMBERS))
    return String(text if chance(rng, 60) else rng.choice(LITERALS))


def string_test(rng: Random, operand: Expr, text: str, other: Expr | None = None) -> Call:
    name = rng.choice(("contains", "starts-with", "ends-with", "matches", "has-words", "has-phrase"))
    if name.startswith("has"):
        literal = text if 0 < len(word_list(text)) < 256 else ""
        return Call(name, (operand, String(rng.choice((literal or "1", literal[:4] + "1", "u", "ex.org u")))))
    if name != "matches":
        return Call(name, (operand, other or String(rng.choice((text[:1], *LITERALS)))))
    if chance(rng, 70):
        return Call(name, (operand, String(rng.choice(PATTERNS))))
    pattern, flags = rng.choice(FLAGGED)
    return Call(name, (operand, String(pattern), String(flags)))
