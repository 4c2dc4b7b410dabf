"""Random valid XSCL scripts, as trees in the form that the parser gives them."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.generate.comparisons import TEXT_FUNCTIONS, accepted
from xscl.algebra.joins import NEGATED, JoinOp
from xscl.algebra.values import (
    WITH_LITERAL,
    And,
    Call,
    CompareOp,
    ElementConstructor,
    Expr,
    Hole,
    NameTest,
    Not,
    Number,
    Or,
    Rel,
    Step,
    String,
    VarPath,
)
from xscl.syntax import (
    Block,
    Input,
    Join,
    Once,
    Query,
    Script,
    SelectClause,
    SelectItem,
    SelectItems,
    SelectStar,
    SubQuery,
    Window,
)

Draw = st.DrawFn
NEEDS_END = ("NOT FOLLOWED BY", "NOT JOIN")
"""The operators whose windows have an end."""

NAMES = (
    "once",
    "a",
    "b",
    "title",
    "Titel-1",
    "x.y",
    "größe",
    "from",
    "and",
    "not",
    "as",
    "a-",
    "_z",
    "書",
    "book--old",
)
STREAMS = ("S", "per", "blog", "feed-1", "ströme")
PREFIXES = ("p", "dc", "xml-ish")
OPS: tuple[CompareOp, ...] = ("=", "!=", "<", "<=", ">", ">=")
DERIVED = (*TEXT_FUNCTIONS, "date", "number", "string-length")
PATTERNS = ("a+", "^[A-Z]{2,3}$", "(x|y)\\1?", "\\d", "")
patterns = st.one_of(
    st.tuples(st.sampled_from(PATTERNS).map(String)),
    st.tuples(st.sampled_from(("a+", "[b-d] ", "")).map(String), st.sampled_from(("i", "sx", "")).map(String)),
)

literal_texts = st.text(
    st.characters(codec="utf-8", exclude_characters="\n", exclude_categories=["Cc", "Cs", "Cn", "Co"]), max_size=8
)
constructor_texts = st.text(
    st.one_of(
        st.sampled_from("{}<>&\"' \n\t;(:)-"), st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn", "Co"])
    ),
    min_size=1,
    max_size=8,
)
numbers = st.sampled_from(("0", "1", "-5", "3.25", ".5", "7.", "-0.0"))
windows = st.one_of(st.none(), st.integers(0, 2**63 - 1), st.sampled_from((0, 1, 1_000_000, 604_800_000_000)))


@dataclass
class Names:
    """Hands out the variables of one query, so that none is bound twice."""

    count: int = 0

    def fresh(self, draw: Draw) -> str:
        self.count += 1
        stem, primes = draw(st.sampled_from(("x", "long-name.", "ä_"))), draw(st.sampled_from(("", "'", "''")))
        return f"{stem}{self.count}{primes}"


@st.composite
def name_tests(draw: Draw, kind: str = "any") -> NameTest:
    """Tests of elements, and of attributes where `kind` is "any"."""
    local = draw(st.sampled_from(NAMES))
    prefix = draw(st.sampled_from((None, None, None, *PREFIXES)))
    if kind == "any" and draw(st.integers(0, 4)) == 0:
        return NameTest("attribute", "*") if draw(st.booleans()) else NameTest("attribute", local, prefix)
    forms = [NameTest("element", local, prefix), NameTest("element", "*"), NameTest("element", local, "*")]
    if prefix is not None:
        forms.append(NameTest("element", "*", prefix))
    return draw(st.sampled_from(forms))


def paths(draw: Draw, depth: int, names: Names | None, *, least: int = 1, most: int = 3) -> tuple[Step, ...]:
    """A path; with `names` its steps, and those of its filters, may bind variables."""
    count = draw(st.integers(least, most))
    return tuple(_step(draw, depth, names, last=i == count - 1) for i in range(count))


def _step(draw: Draw, depth: int, names: Names | None, *, last: bool) -> Step:
    test = draw(name_tests("any" if last else "element"))
    var = names.fresh(draw) if names and draw(st.booleans()) else None
    filters: tuple[Expr, ...] = ()
    if depth > 0 and test.kind == "element":
        filters = tuple(_filter(draw, depth - 1, names) for _ in range(draw(st.integers(0, 2))))
    return Step(draw(st.sampled_from(("/", "//"))), test, filters, var)


def _rel(draw: Draw, depth: int, names: Names | None) -> Rel:
    return Rel(paths(draw, depth, names, least=0, most=2))


def _filter(draw: Draw, depth: int, names: Names | None) -> Expr:
    if draw(st.booleans()):
        return _rel(draw, depth, names)
    if draw(st.booleans()):
        arms = tuple(
            _rel(draw, depth, names) if draw(st.booleans()) else _boolean(draw, depth, "and")
            for _ in range(draw(st.integers(2, 3)))
        )
        return And(arms)
    return _boolean(draw, depth, "")


def _boolean(draw: Draw, depth: int, above: str) -> Expr:
    """A condition that binds nothing; not an `and` in an `and`, nor an `or` in an `or`: the parser joins these."""
    kind = draw(st.sampled_from(("rel", "compare", "call", "not", "and", "or")))
    if kind == "not":
        return Not(_boolean(draw, depth - 1, "")) if depth > 0 else Not(Rel(()))
    if kind in ("and", "or") and kind != above and depth > 0:
        arms = tuple(_boolean(draw, depth - 1, kind) for _ in range(draw(st.integers(2, 3))))
        return And(arms) if kind == "and" else Or(arms)
    if kind == "compare":
        return accepted(draw(st.sampled_from(OPS)), _value(draw, depth), _value(draw, depth))
    if kind == "call":
        name = draw(st.sampled_from(("contains", "starts-with", "ends-with", "matches")))
        if name == "matches":
            return Call(name, (_value(draw, depth), *draw(patterns)))
        return Call(name, (_value(draw, depth), _value(draw, depth)))
    return _rel(draw, depth - 1, None)


def _value(draw: Draw, depth: int) -> Expr:
    kind = draw(st.sampled_from(("rel", "rel", "string", "number", "count", "call")))
    if kind == "string":
        return String(draw(literal_texts))
    if kind == "number":
        return Number(draw(numbers))
    if kind == "count":
        return Call("count", (_rel(draw, depth - 1, None),))
    if kind == "call" and depth > 0:
        return _call(draw, draw(st.sampled_from((*DERIVED, "string"))), _value(draw, depth - 1))
    return _rel(draw, depth - 1, None)


def _call(draw: Draw, name: str, operand: Expr) -> Call:
    return Call(name, (operand, String(draw(literal_texts))) if name in WITH_LITERAL else (operand,))


@dataclass(frozen=True)
class Source:
    """An input, the element nodes, attribute nodes and values that it shows, and whether it needs a name."""

    tree: Input
    nodes: tuple[str, ...]
    attributes: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    @property
    def joinable(self) -> tuple[str, ...]:
        return self.nodes + self.attributes + self.values


def _block(draw: Draw, names: Names) -> Source:
    if draw(st.integers(0, 5)) == 0:
        var = names.fresh(draw)
        return Source(Block(draw(st.sampled_from(STREAMS)), (Step("/", NameTest("element", "*"), (), var),)), (var,))
    # The root and a leaf are always bound, so that there is something to join on.
    root, leaf = names.fresh(draw), names.fresh(draw)
    steps = paths(draw, 2, names, least=0, most=1)
    steps = tuple(step for step in steps if step.test.kind == "element")
    kind = draw(name_tests())
    last = Step(
        "//",
        draw(name_tests("element")),
        (
            Rel((Step(draw(st.sampled_from(("/", "//"))), kind, (), leaf),)),
            *(_filter(draw, 1, names) for _ in range(draw(st.integers(0, 1)))),
        ),
        root,
    )
    nodes, attributes = ((root,), (leaf,)) if kind.kind == "attribute" else ((root, leaf), ())
    return Source(Block(draw(st.sampled_from(STREAMS)), (*steps, last)), nodes, attributes)


def _operand(draw: Draw, source: Source) -> Expr:
    """A node of the source, a path on one, or a value derived from one."""
    var = draw(st.sampled_from(source.joinable))
    steps = paths(draw, 1, None, most=2) if var in source.nodes and draw(st.integers(0, 3)) == 0 else ()
    operand: Expr = VarPath(var, steps)
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
        operand = _call(draw, draw(st.sampled_from(DERIVED)), operand)
    return operand


def _residual(draw: Draw, both: Source) -> Expr:
    other = draw(st.sampled_from(("node", "string", "number")))
    right: Expr = (
        String(draw(literal_texts))
        if other == "string"
        else Number(draw(numbers))
        if other == "number"
        else _operand(draw, both)
    )
    if draw(st.booleans()):
        return accepted(draw(st.sampled_from(OPS)), _operand(draw, both), right)
    if draw(st.booleans()):
        return Call("matches", (_operand(draw, both), *draw(patterns)))
    return Call(draw(st.sampled_from(("contains", "starts-with", "ends-with"))), (_operand(draw, both), right))


def _join(draw: Draw, left: Source, right: Source) -> Source:
    both = Source(left.tree, left.nodes + right.nodes, left.attributes + right.attributes, left.values + right.values)

    def conjunction() -> tuple[Expr, ...]:
        sides = [_operand(draw, left), _operand(draw, right)]
        if draw(st.booleans()):
            sides.reverse()
        return (accepted("=", sides[0], sides[1]), *(_residual(draw, both) for _ in range(draw(st.integers(0, 2)))))

    def joined(arms: tuple[Expr, ...]) -> Expr:
        return And(arms) if len(arms) > 1 else arms[0]

    disjuncts = tuple(joined(conjunction()) for _ in range(draw(st.sampled_from((1, 1, 2)))))
    pred = Or(disjuncts) if len(disjuncts) > 1 else disjuncts[0]
    if draw(st.integers(0, 4)) == 0:
        arms = conjunction()
        pred = (
            And((*arms, pred))
            if isinstance(pred, Or)
            else And((*arms, *(pred.args if isinstance(pred, And) else (pred,))))
        )
    op: JoinOp = draw(st.sampled_from(("FOLLOWED BY", "JOIN", "JOIN UNORDERED", *NEGATED)))
    us = draw(windows)
    tree = Join(op, left.tree, right.tree, pred, Window(1 if us is None and op in NEEDS_END else us))
    if op in NEGATED:
        return Source(tree, left.nodes, left.attributes, left.values)
    return Source(tree, both.nodes, both.attributes, both.values)


def _sub_query(draw: Draw, source: Source, names: Names) -> Source:
    items: list[SelectItem] = []
    nodes: list[str] = []
    values: list[str] = []
    for _ in range(draw(st.integers(1, 2))):
        name = names.fresh(draw).rstrip("'")
        var = draw(st.sampled_from(source.joinable))
        if var in source.nodes and draw(st.booleans()):
            items.append(SelectItem(VarPath(var), name))
            nodes.append(name)
        else:
            items.append(SelectItem(_call(draw, draw(st.sampled_from(TEXT_FUNCTIONS)), VarPath(var)), name))
            values.append(name)
    return Source(SubQuery(SelectItems(tuple(items)), source.tree), tuple(nodes), (), tuple(values))


def _source(draw: Draw, depth: int, names: Names) -> Source:
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        source = _block(draw, names)
    else:
        source = _join(draw, _source(draw, depth - 1, names), _source(draw, depth - 1, names))
    if depth < 2 and draw(st.integers(0, 4)) == 0:
        return _sub_query(draw, source, names)
    return source


def _select(draw: Draw, source: Source) -> SelectClause | None:
    kind = draw(st.sampled_from(("none", "items", "constructor")))
    if kind == "items":
        items: list[SelectItem] = []
        for i in range(draw(st.integers(1, 3))):
            operand = _operand(draw, source)
            bare = isinstance(operand, VarPath) and not operand.steps
            item = SelectItem(operand, operand.var if isinstance(operand, VarPath) and bare else f"item-{i}")
            if item.name not in [other.name for other in items]:
                items.append(item)
        return SelectItems(tuple(items))
    return _element(draw, source, 2) if kind == "constructor" else None


def _element(draw: Draw, source: Source, depth: int) -> ElementConstructor:
    def parts() -> tuple[str | Hole, ...]:
        found: list[str | Hole] = []
        for _ in range(draw(st.integers(0, 3))):
            if draw(st.booleans()):
                found.append(Hole(_operand(draw, source)))
            elif not found or isinstance(found[-1], Hole):
                found.append(draw(constructor_texts))
        return tuple(found)

    names = draw(st.lists(st.sampled_from(("k", "href", "p:k", "from", "größe")), unique=True, max_size=2))
    children: list[str | Hole | ElementConstructor] = list(parts())
    if depth and draw(st.booleans()):
        children.insert(draw(st.integers(0, len(children))), _element(draw, source, depth - 1))
    # Text beside text would be one text.
    merged = [c for i, c in enumerate(children) if not (isinstance(c, str) and i and isinstance(children[i - 1], str))]
    name = draw(st.sampled_from(("alert", "p:alert", "select", "b-1")))
    return ElementConstructor(name, tuple((attribute, parts()) for attribute in names), tuple(merged))


def _once(draw: Draw, source: Source) -> Once:
    keys = tuple(_operand(draw, source) for _ in range(draw(st.integers(1, 2))))
    us = draw(st.one_of(st.none(), st.integers(1, 2**63 - 1)))
    return Once(keys, None if us is None else Window(us))


@st.composite
def queries(draw: Draw) -> Query:
    """One valid query, perhaps PUBLISHed under a name that no query reads."""
    source = _source(draw, 2, Names())
    publish = draw(st.sampled_from((None, None, "out", "q", "once", "q7x", "q1", "q2", "meldung-é")))
    select = _select(draw, source)
    once = _once(draw, source) if publish is not None and draw(st.booleans()) else None
    if select is None and not isinstance(source.tree, SubQuery) and draw(st.booleans()):
        select = SelectStar()
    return Query(source.tree, select, publish, once=once)


@st.composite
def scripts(draw: Draw) -> Script:
    """A script of one to three valid queries, with the prefixes that they may use."""
    namespaces = tuple((prefix, f"urn:{prefix}") for prefix in PREFIXES)
    return Script(tuple(draw(st.lists(queries(), min_size=1, max_size=3))), namespaces)
