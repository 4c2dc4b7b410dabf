"""Random valid scripts, grown from sample documents so that their queries often have outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from feeds.documents import Document
from tests.generate.blocks import (
    LITERALS,
    TEXT_FUNCTIONS,
    BlockMaker,
    Name,
    alike,
    comparison,
    derived,
    flat_and,
    flat_or,
    kind_of,
    string_test,
)
from tests.generate.documents import NAMESPACE, PUBLISHED, SECOND, STREAMS, chance, document_xml
from tests.oracle.evaluation import evaluate
from xscl import syntax
from xscl.algebra import values
from xscl.algebra.joins import JoinOp
from xscl.algebra.values import Call, Compare, ElementConstructor, Expr, Hole, NameTest, Step, String, VarPath
from xscl.check_expressions import NameKind, visible_names
from xscl.printer import to_xscl

DERIVED = (*TEXT_FUNCTIONS, "concat", "concat", "normalize-space", "date", "number", "string-length")
WINDOWS = (8 * SECOND, None, 8 * SECOND, 5 * SECOND, None, 8 * SECOND, 2 * SECOND, 1_500_000, 0)


@dataclass(frozen=True, slots=True)
class Part:
    """An input under construction, with the names that it shows and the number of its blocks."""

    source: syntax.Input
    names: tuple[Name, ...]
    blocks: int = 1


@dataclass(frozen=True, slots=True)
class Choice:
    """An operand, its value in the sample documents, and the name that it starts from."""

    operand: Expr
    text: str
    name: Name


MOST_PUBLISHED = 60
"""Documents of a PUBLISHed stream: chains of streams grow beyond what a brute force can evaluate."""


def _derive(call: Call, text: str) -> str:
    if call.name == "concat":
        return "".join(one.value if isinstance(one, String) else text for one in call.args)
    name = values.derivation(call)
    assert name is not None, "it is a derived value"
    return values.derive(name, text)


def random_script(rng: Random, n_queries: int, samples: Sequence[Document]) -> syntax.Script:
    """A script of valid queries; some PUBLISH streams that others read, to any depth, in any order of statements."""
    namespaces = (("p", NAMESPACE),) if chance(rng, 30) else ()
    queries: list[syntax.Query] = []
    streams = {stream: [doc for doc in samples if doc.stream == stream] for stream in STREAMS}
    published: list[str] = []
    for _ in range(n_queries):
        maker = QueryMaker(rng, streams, published, namespaced=bool(namespaces))
        query = maker.query()
        if maker.blocks <= 2 and chance(rng, 70 if maker.reads_published else 35):
            # A union with an earlier publisher makes no cycle when the query reads no published stream.
            if published and not maker.reads_published and chance(rng, 25):
                query = replace(query, publish=rng.choice(published))
            elif len(published) < len(PUBLISHED):
                published.append(PUBLISHED[len(published)])
                query = replace(query, publish=published[-1])
        if query.publish:
            rows = evaluate(syntax.Script((*queries, query), namespaces), samples)
            made = [row for row in rows if row.query == query.publish]
            if len(made) <= MOST_PUBLISHED:
                streams[query.publish] = [
                    Document(f"{number}", row.xml, row.query, (row.t0, row.t1)) for number, row in enumerate(made)
                ]
            else:
                query = replace(query, publish=None)
                published = [name for name in published if name in streams]
        queries.append(query)
    if chance(rng, 50):
        rng.shuffle(queries)
    return syntax.Script(tuple(queries), namespaces)


class QueryMaker:
    def __init__(
        self, rng: Random, samples: Mapping[str, Sequence[Document]], published: Sequence[str], namespaced: bool
    ) -> None:
        self._rng = rng
        self._samples = samples
        self._published = published
        self._make = BlockMaker(rng, namespaced)
        self._namespaced = namespaced
        self._now = 0
        self.blocks = 0
        self.reads_published = False

    def query(self) -> syntax.Query:
        """A query without PUBLISH."""
        part = self._from()
        return syntax.Query(part.source, self._select(part))

    # ------------------------------------------------------------ FROM

    def _from(self) -> Part:
        shape = self._rng.randrange(100)
        if shape < 50:
            return self._join(self._block(), self._block())
        if shape < 65:
            return self._block()
        if shape < 77:
            return self._join(self._join(self._block(), self._block()), self._block())
        if shape < 83:
            return self._join(self._block(), self._join(self._block(), self._block()))
        if shape < 90:
            return self._join(self._block(), self._subquery())
        if shape < 97:
            return self._join(self._subquery(), self._block())
        if shape < 99:
            return self._subquery()
        return self._join(self._join(self._block(), self._block()), self._join(self._block(), self._block()))

    def _subquery(self) -> Part:
        """A parenthesised query with a SELECT, over one block or two."""
        single = chance(self._rng, 25)
        inner = self._block(bind_root=True) if single else self._join(self._block(), self._block())
        if chance(self._rng, 20):
            roots = _roots(inner)
            if roots:
                return Part(syntax.SubQuery(syntax.SelectStar(), inner.source), roots, inner.blocks)
        items, names = self._items(inner)
        return Part(syntax.SubQuery(items, inner.source), names, inner.blocks)

    def _join(self, left: Part, right: Part) -> Part:
        chain = left.blocks + right.blocks > 2
        op: JoinOp = "FOLLOWED BY"
        if chance(self._rng, 60 if chain else 45):
            op = "JOIN UNORDERED" if chance(self._rng, 30) else "JOIN"
        # FOLLOWED BY within 0 never holds, and a chain within a short time seldom does.
        us = self._rng.choice(WINDOWS[:3] if chain else WINDOWS[:-1] if op == "FOLLOWED BY" else WINDOWS)
        join = syntax.Join(op, left.source, right.source, self._predicate(left.names, right.names), syntax.Window(us))
        return Part(join, left.names + right.names, left.blocks + right.blocks)

    def _block(self, bind_root: bool = False) -> Part:
        rng = self._rng
        self.blocks += 1
        if self._published and chance(rng, 35):
            # The newest, mostly: so that chains of streams get deep.
            stream = self._published[-1] if chance(rng, 70) else rng.choice(self._published)
            self.reads_published = True
        else:
            stream = rng.choice(STREAMS)
        samples = self._samples[stream]
        if samples and not chance(rng, 5):
            # Mostly later ones than the block before has, so that FOLLOWED BY holds.
            later = [document for document in samples if document.t0 > self._now]
            document = rng.choice(later if later and chance(rng, 80) else samples)
            self._now, sample = document.t1, document.xml
        else:
            sample = document_xml(rng, root="match" if stream in PUBLISHED else None)
        block, names = self._make.block(stream, sample, bind_root)
        return Part(block, names)

    # ------------------------------------------------------------ predicates

    def _predicate(self, left: Sequence[Name], right: Sequence[Name]) -> Expr:
        if chance(self._rng, 10):
            return flat_or(self._conjunction(left, right), self._conjunction(left, right))
        pred = self._conjunction(left, right)
        if chance(self._rng, 6):
            return flat_and(pred, flat_or(self._residual(left, right), self._residual(left, right)))
        return pred

    def _conjunction(self, left: Sequence[Name], right: Sequence[Name]) -> Expr:
        rng = self._rng
        first, second = self._equal(left, right)
        literals: list[Expr] = [self._equality(first, second)]
        for _ in range(rng.choice((0, 0, 0, 0, 1, 1, 2))):
            # Sharing a leaf (x2=x5 and x2=x6) makes templates that trees of disjoint edges do not.
            one = [first.name] if chance(rng, 30) else left
            other = [second.name] if chance(rng, 20) else right
            literals.append(self._equality(*self._equal(one, other)))
        if chance(rng, 20):
            literals.append(self._residual(left, right))
        rng.shuffle(literals)
        return flat_and(*literals)

    def _equal(self, left: Sequence[Name], right: Sequence[Name]) -> tuple[Choice, Choice]:
        """An operand of each side, the same in the samples if some tries find such a pair."""
        for _ in range(16):
            one, other = self._choose(left), self._choose(right)
            if one.text == other.text:
                break
        return one, other

    def _equality(self, one: Choice, other: Choice) -> Compare:
        pair = (other.operand, one.operand) if chance(self._rng, 15) else (one.operand, other.operand)
        return Compare("=", *alike(*pair, _kinds(one, other)))

    def _residual(self, left: Sequence[Name], right: Sequence[Name]) -> Expr:
        """A predicate beside the equalities: a comparison that the samples often pass, or a test of strings."""
        rng = self._rng
        shape = rng.randrange(100)
        for _ in range(4):
            one, other = self._choose(left), self._choose(left if shape < 15 else right)
            kinds = _kinds(one, other)
            compared = comparison(rng, one.operand, one.text, other.operand if shape < 60 else None, kinds)
            if values.compare(compared.op, one.text, other.text):
                break
        if shape < 75:
            return compared
        return string_test(rng, one.operand, other.text, other.operand if chance(rng, 50) else None)

    def _choose(self, names: Sequence[Name]) -> Choice:
        """A variable, a path on it, or a derived value of either."""
        rng = self._rng
        leaves = [name for name in names if name.leaf]
        # Mostly leaves: whole records are seldom equal.
        name = rng.choice(leaves if leaves and chance(rng, 75) else names)
        operand, text, shape = VarPath(name.var), name.text, rng.randrange(100)
        below = self._make.path(name.at) if name.at is not None and shape >= (50 if len(name.at) else 80) else None
        if below:
            operand, text = VarPath(name.var, below[0]), below[1]
        if shape % 10 == 9:
            call = derived(rng, DERIVED, operand)
            if _derive(call, text) in ("", "NaN") and chance(rng, 90):
                call = Call("lower-case", (operand,))  # nothing is equal to what is no time and no number
            return Choice(call, _derive(call, text), name)
        return Choice(operand, text, name)

    # ------------------------------------------------------------ SELECT

    def _select(self, part: Part) -> syntax.SelectClause | None:
        shape = self._rng.randrange(100)
        if shape < 55:
            return None
        if shape < 65:
            return syntax.SelectStar()
        if shape >= 85:
            return self._constructor(part)
        items, _ = self._items(part)
        if chance(self._rng, 5):
            constant = syntax.SelectItem(String(self._rng.choice(LITERALS)), self._make.fresh("n"))
            return syntax.SelectItems((*items.items, constant))
        return items

    def _items(self, part: Part) -> tuple[syntax.SelectItems, tuple[Name, ...]]:
        found: dict[str, tuple[syntax.SelectItem, Name]] = {}
        for _ in range(self._rng.choice((1, 2, 3))):
            choice = self._choose(part.names)
            operand = choice.operand
            if isinstance(operand, VarPath) and not operand.steps:
                found[operand.var] = syntax.SelectItem(operand, operand.var), choice.name
            else:
                name = self._make.fresh("n")
                value = operand.name if isinstance(operand, Call) else None
                found[name] = syntax.SelectItem(operand, name), Name(name, choice.text, value=value)
        return syntax.SelectItems(tuple(item for item, _ in found.values())), tuple(name for _, name in found.values())

    def _constructor(self, part: Part) -> ElementConstructor:
        rng = self._rng

        def hole() -> Hole:
            operand = String(rng.choice(LITERALS)) if chance(rng, 5) else self._choose(part.names).operand
            return Hole(operand, to_xscl(operand))

        attribute: tuple[str, tuple[str | Hole, ...]] = ("who", (hole(),))
        if chance(rng, 50):
            attribute = ("note", ("{a} & ", hole(), '"'))
        inner = ElementConstructor("b", (), (hole(), " text"))
        children: tuple[str | Hole | ElementConstructor, ...] = (hole(),)
        if chance(rng, 60):
            children = (inner, hole()) if chance(rng, 50) else ("by ", hole(), inner)
        name = "p:alert" if self._namespaced and chance(rng, 30) else "alert"
        return ElementConstructor(name, (attribute,) if chance(rng, 60) else (), children)


def _kinds(*choices: Choice) -> Callable[[Expr], str]:
    """What the values of the operands are. A name may stand for the value of a function."""

    def kind(operand: Expr) -> str:
        for choice in choices:
            if choice.operand == operand and isinstance(operand, VarPath) and not operand.steps and choice.name.value:
                return kind_of(Call(choice.name.value, ()))
        return kind_of(operand)

    return kind


def _roots(part: Part) -> tuple[Name, ...]:
    """What `SELECT *` over one or two plain blocks shows, if the sample values of all roots are known."""
    blocks = (part.source.left, part.source.right) if isinstance(part.source, syntax.Join) else (part.source,)
    roots = [block.steps[-1].var for block in blocks if isinstance(block, syntax.Block)]
    by_var = {name.var: name for name in part.names}
    if not any(roots):
        return ()
    defaults = ("left", "right")
    return tuple(by_var[var] if var else Name(default, "") for var, default in zip(roots, defaults, strict=False))


ONCE_WITHIN = (None, None, 1, SECOND, 2 * SECOND, 3 * SECOND, 8 * SECOND)


def with_once(rng: Random, script: syntax.Script, share: int = 50) -> syntax.Script:
    """The script, where `share` percent of the queries get ONCE PER, and a name if they have none."""
    return replace(script, statements=tuple(_once(rng, one, n, share) for n, one in enumerate(script.queries)))


def with_hidden(rng: Random, script: syntax.Script, share: int) -> syntax.Script:
    """The script, where `share` percent of the queries with a PUBLISH name are hidden."""
    made = (
        replace(one, hidden=syntax.MadeForOthers()) if one.publish and chance(rng, share) else one
        for one in script.queries
    )
    return replace(script, statements=tuple(made))


def _once(rng: Random, query: syntax.Query, number: int, share: int) -> syntax.Query:
    names = [(name, kind) for name, kind in visible_names(query.source).items() if kind != "constant"]
    if not names or not chance(rng, share):
        return query
    keys = tuple(_key(rng, *rng.choice(names)) for _ in range(rng.choice((0, 1, 1, 1, 2))))
    us = rng.choice(ONCE_WITHIN)
    once = syntax.Once(keys, None if us is None else syntax.Window(us))
    return replace(query, publish=query.publish or f"once{number}", once=once)


def _key(rng: Random, name: str, kind: NameKind) -> Expr:
    steps = (Step(rng.choice(("/", "//")), NameTest("element", "*")),) if kind == "element" and chance(rng, 15) else ()
    key: Expr = VarPath(name, steps)
    return derived(rng, DERIVED, key) if chance(rng, 25) else key
