"""Random valid XSCL scripts with odd names and texts, as trees in the form that the parser gives them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from tests.generate.absences import with_absences
from tests.generate.blocks import NUMBERS
from tests.generate.documents import TIMES, chance, document_set
from tests.generate.once import with_once
from tests.generate.queries import random_script
from tests.oracle.walk import walk
from xscl.algebra.values import Call, ElementConstructor, Hole, NameTest, Number, Span, Step, String, VarPath
from xscl.check_expressions import visible_names
from xscl.syntax import Block, Join, Once, Query, Script, SelectItem, Window

NAMES = (
    *("once", "a", "b", "title", "Titel-1", "x.y", "größe", "from", "and", "not", "as", "a-", "_z", "書", "book--old"),
)
STREAMS = ("S", "per", "blog", "feed-1", "ströme", "out", "q", "once", "q7x", "meldung-é", "x.y")
PREFIXES = ("p", "dc", "xml-ish")
PATTERNS = ("a+", "^[A-Z]{2,3}$", "(x|y)\\1?", "\\d", "[b-d] ", "[^a-c-[b]]+?", "\\p{Lu}*", "")
ATTRIBUTES = ("k", "href", "p:k", "from", "größe")
ELEMENTS = ("alert", "p:alert", "select", "b-1")
ODD_NUMBERS = ("0", "1", "-5", "3.25", ".5", "7.", "-0.0")
WINDOWS = (None, 1, 1_000_000, 604_800_000_000, 2**62)
IN_TEXTS = "{}<>&\"' \t;(:)-éß書"


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """A script of one to three valid queries, with the prefixes that they may use."""
    rng = draw(st.randoms(use_true_random=False))
    script = random_script(rng, rng.randint(1, 3), document_set(rng, 3, 8))
    script = with_once(rng, with_absences(rng, script, rng.choice((0, 0, 50))), 30)
    return _Speller(rng).script(script)


class _Speller:
    """Spells names and texts anew, each name the same wherever it stands for the same."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._streams: dict[str, str] = {}
        self._variables: dict[str, str] = {}
        self._free = rng.sample(STREAMS, len(STREAMS))

    def script(self, script: Script) -> Script:
        queries = tuple(self._query(query) for query in script.queries)
        return Script(queries, tuple((prefix, f"urn:{prefix}") for prefix in PREFIXES))

    def _query(self, query: Query) -> Query:
        self._variables = {}
        for name, is_bound in _names(query):
            primes = self._rng.choice(("", "'", "''")) if is_bound else ""
            stem = self._rng.choice(("x", "long-name.", "ä_"))
            self._variables.setdefault(name, f"{stem}{len(self._variables)}{primes}")
        made: Query = self._spelt(query)
        names = [VarPath(name) for name in visible_names(made.source)]
        if names and query.select is None and chance(self._rng, 40):
            made = replace(made, select=self._element(names))
        return replace(made, publish=None if query.publish is None else self._stream(query.publish))

    def _stream(self, name: str) -> str:
        if name not in self._streams:
            self._streams[name] = self._free.pop()
        return self._streams[name]

    def _element(self, names: Sequence[VarPath], depth: int = 1) -> ElementConstructor:
        rng = self._rng
        children: tuple[str | Hole | ElementConstructor, ...] = (self._text() or "-", Hole(rng.choice(names)))
        if depth:
            children = (*children, self._element(names, 0), self._text() or "{")
        attributes = tuple((name, children[:2]) for name in rng.sample(ATTRIBUTES, rng.randrange(3)))
        return ElementConstructor(rng.choice(ELEMENTS), attributes, children)  # type: ignore[arg-type]  # no elements

    def _text(self) -> str:
        return "".join(self._rng.choices(IN_TEXTS, k=self._rng.randrange(9)))

    def _spelt(self, node: Any) -> Any:
        rng = self._rng
        match node:
            case Span() | None | str() | int():
                return node
            case tuple():
                return tuple(map(self._spelt, node))
            case NameTest():
                prefix = node.prefix if node.prefix in (None, "*") else rng.choice(PREFIXES)
                if prefix is None and node.local != "*" and chance(rng, 20):
                    prefix = rng.choice(PREFIXES)
                return replace(node, local=node.local if node.local == "*" else rng.choice(NAMES), prefix=prefix)
            case String(value=value) if value not in NUMBERS and value not in TIMES and not value.isdigit():
                return replace(node, value=self._text())
            case Number():
                return replace(node, text=rng.choice(ODD_NUMBERS))
            case Call(name="contains" | "starts-with" | "ends-with" | "matches", args=(operand, *_)) if chance(rng, 60):
                flags = (String(rng.choice(("s", "sx", ""))),) if chance(rng, 40) else ()
                return Call("matches", (self._spelt(operand), String(rng.choice(PATTERNS)), *flags))
            case Call(name="matches", args=(operand, *more)):
                return replace(node, args=(self._spelt(operand), *more))
            case Window(us=us) if us is not None:
                return replace(node, us=rng.choice(WINDOWS[1:]))
            case Join(op="FOLLOWED BY" | "JOIN" | "JOIN UNORDERED") if chance(rng, 30):
                node = replace(node, window=Window(rng.choice((0, None))))
                return replace(
                    node, left=self._spelt(node.left), right=self._spelt(node.right), pred=self._spelt(node.pred)
                )
            case Once(window=None):
                return replace(node, keys=self._spelt(node.keys))
            case ElementConstructor():
                names = rng.sample(ATTRIBUTES, len(node.attributes))
                attributes = zip(names, (self._parts(parts) for _, parts in node.attributes), strict=True)
                children = self._parts(node.children)
                return replace(node, name=rng.choice(ELEMENTS), attributes=tuple(attributes), children=children)
        assert is_dataclass(node) and not isinstance(node, type)
        made = replace(node, **{field.name: self._spelt(getattr(node, field.name)) for field in fields(node)})
        match made:
            case Block():
                return replace(made, stream=self._stream(made.stream))
            case Step(var=str(var)) | VarPath(var=var):
                return replace(made, var=self._variables.get(var, var))
            case SelectItem():
                return replace(made, name=self._variables.get(made.name, made.name))
        return made

    def _parts(self, parts: Any) -> Any:
        return tuple((self._text() or "-") if isinstance(part, str) else self._spelt(part) for part in parts)


def _names(query: Query) -> Iterator[tuple[str, bool]]:
    """The names that a query binds, and those that it gives to items of SELECT."""
    for node in walk(query):
        if isinstance(node, Step) and node.var is not None:
            yield node.var, True
        if isinstance(node, SelectItem) and not isinstance(node.operand, VarPath):
            yield node.name, False
