"""Compiles queries, from text to rows of R_T.

1. `xscl.parse_script`: text to syntax, checked.
2. `xscl.lower.normalize`: syntax to algebra, the value-join normal form: conjunctive queries over tree patterns.
3. `place`: each conjunctive query to a row of R_T of its template, through the catalog, which queries share.

`Compiler` does the first two, once for equal queries. The registry does the third when a query is registered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from join_stage.store.protocol import StoreError
from mmqjp.queries.identity import digest
from mmqjp.queries.model import Owner, Target, width_of
from templates.catalog import Catalog, Change
from xscl import Query, Script, XsclErrors, parse_script, to_xscl
from xscl.algebra.normal import Conjunct, Hidden, JoinOp, NormalQuery
from xscl.lower import normalize
from xscl.printer import around_window
from xscl.syntax import Join, Window

MAX_COMPILED = 20_000
"""The cache is cleared when it has this many queries."""

Namespaces = tuple[tuple[str, str], ...]
"""Pairs of a prefix and its URI."""


class SharedQuery:
    """What queries share that differ only in their PUBLISH names and the windows of their joins. `once` is the text of
    their ONCE PER, which follows the name."""

    __slots__ = ("_by_window", "_cut", "_first", "_form_id", "_namespaces", "_normal", "_query", "once")

    def __init__(self, query: Query, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self._query: Query | None = query
        self.once = "" if query.once is None else f" {to_xscl(query.once)}"
        self._normal: NormalQuery | None = None
        self._form_id: str | None = None
        unnamed = Query(query.source, query.select, None, query.span)
        window, (before, *behind) = _window_of(query), around_window(Script((unnamed,), namespaces))
        written = "" if window is None else to_xscl(window)
        # The place of the window in the text of the first one.
        self._cut = len(before), len(before) + len(written)
        self._first = UnnamedQuery(self, window, written.join((before, *behind)))
        self._by_window: dict[int | None, UnnamedQuery] | None = None

    def of(self, query: Query) -> UnnamedQuery:
        """Returns what a query is without its PUBLISH name. `query` is the first one or shares its inputs."""
        window, first = _window_of(query), self._first
        if window is None or window == first.window:
            return first
        if self._by_window is None:
            self._by_window = {}
        found = self._by_window.get(window.us)
        if found is None:
            begin, end = self._cut
            text = f"{first.text[:begin]}{to_xscl(window)}{first.text[end:]}"
            found = self._by_window[window.us] = UnnamedQuery(self, window, text)
        return found

    @property
    def normal(self) -> NormalQuery:
        """The normal form of the first one. Computed on first use."""
        if self._normal is None:
            assert self._query is not None, "the tree is kept until it is lowered"
            self._normal = normalize(self._query, dict(self._namespaces))
            self._query = None  # of very many queries, the trees take much memory
        return self._normal

    @property
    def form_id(self) -> str:
        """The id of their form. Stores keep it, and it is made of `repr`: no class or field that a normal form is made
        of can be renamed."""
        if self._form_id is None:
            self._form_id = digest(_described(_with_window(self.normal, None)))
        return self._form_id


class UnnamedQuery:
    """What a query of a script is without its PUBLISH name. `text` is its text as a script of its own, and `window`
    that of its join, None if it is not a join itself."""

    __slots__ = ("_normal", "shared", "text", "window")

    def __init__(self, shared: SharedQuery, window: Window | None, text: str) -> None:
        self.shared, self.window, self.text = shared, window, text
        self._normal: NormalQuery | None = None

    @property
    def normal(self) -> NormalQuery:
        """The normal form. Computed on first use: a query that is registered already does not need it."""
        if self._normal is None:
            normal = self.shared.normal
            self._normal = normal if self.window is None else _with_window(normal, self.window.us)
        return self._normal

    @property
    def form_id(self) -> str:
        """The id of its form. Absences with different windows end at different times, so they have different forms."""
        return digest(_described(self.normal)) if self.normal.absent else self.shared.form_id


def _described(normal: NormalQuery) -> str:
    """A text that equal normal forms have in common."""
    return repr(normal) + "".join(repr(part) for part in (normal.once, normal.absent) if part)


def _window_of(query: Query) -> Window | None:
    return query.source.window if isinstance(query.source, Join) else None


def _with_window(normal: NormalQuery, window: int | None) -> NormalQuery:
    """The normal form with another window, and with the same conjunctive queries."""
    if normal.window == window:
        return normal
    # Written out, because `replace` takes several times as long.
    return NormalQuery(
        normal.op,
        window,
        normal.conjuncts,
        normal.entries,
        normal.star,
        normal.constructor,
        normal.holes,
        normal.namespaces,
        normal.once,
        normal.absent,
    )


class CompiledQuery:
    """A query of a script, with the script's namespaces."""

    __slots__ = ("_unnamed", "publish")

    def __init__(self, unnamed: UnnamedQuery, publish: str | None) -> None:
        self._unnamed, self.publish = unnamed, publish

    @property
    def normal(self) -> NormalQuery:
        """The normal form."""
        return self._unnamed.normal

    @property
    def form_id(self) -> str:
        """The id of its form."""
        return self._unnamed.form_id

    @property
    def text(self) -> str:
        """The query as a script of its own."""
        unnamed = self._unnamed
        return unnamed.text if self.publish is None else f"{unnamed.text} PUBLISH {self.publish}{unnamed.shared.once}"


class StoredQuery:
    """A query of a store. Its text is parsed when its normal form is first used."""

    def __init__(self, text: str, compiler: Compiler) -> None:
        self._text, self._compiler = text, compiler

    @cached_property
    def normal(self) -> NormalQuery:
        """The normal form. Raises StoreError if this version cannot parse the text."""
        return self._compiled.normal

    @property
    def form_id(self) -> str:
        """The id of its form. Raises StoreError if this version cannot parse the text."""
        return self._compiled.form_id

    @cached_property
    def _compiled(self) -> CompiledQuery:
        return self._compiler.compile_text(self._text)


class Compiler:
    """Compiles queries. The parser returns the same tree for the same text, so cached queries are found by identity."""

    def __init__(self) -> None:
        # With its syntax tree, so that no others can have the identities of its parts.
        self._known: dict[tuple[object, ...], tuple[Query, SharedQuery]] = {}

    def compile(self, query: Query, namespaces: Namespaces) -> CompiledQuery:
        """Compiles a query of a script."""
        key = (*query.shared_parts(), namespaces)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_COMPILED:
                self._known.clear()
            found = self._known[key] = query, SharedQuery(query, namespaces)
        return CompiledQuery(found[1].of(query), query.publish)

    def compile_text(self, text: str) -> CompiledQuery:
        """Compiles a stored query, which is a script of its own. Raises StoreError if it cannot be parsed."""
        try:
            script = parse_script(text, stored=True)
        except XsclErrors as error:
            raise StoreError(f"the store has a query that this version cannot read: {error}") from error
        return self.compile(script.queries[0], script.namespaces)


def place(
    owner: Owner, catalog: Catalog, conjuncts: Sequence[Conjunct], op: JoinOp | None, window: int | None
) -> Iterator[tuple[Target, Change]]:
    """Places conjunctive queries of a plan node in the catalog, in their order. Yields for each its target, and what
    the stages must take up for it. Raises TooManyChains."""
    width = width_of(op, window)
    for disjunct, conjunct in enumerate(conjuncts):
        placement, change = catalog.add(conjunct, width, op == "FOLLOWED BY")
        streams = tuple(side.stream for side in conjunct.sides())
        yield Target(owner, catalog, disjunct, placement.row, placement.template, op, width, streams), change


def inner_join(normal: NormalQuery, stream: str) -> Hidden:
    """Returns the inner join of a query that makes the hidden stream of this name. Raises StoreError if there is
    none."""
    waiting: list[Conjunct] = list(normal.conjuncts)
    while waiting:
        for side in waiting.pop().sides():
            if side.hidden is not None:
                if side.stream == stream:
                    return side.hidden
                waiting += side.hidden.conjuncts
    raise StoreError(f"the store's tables do not agree: no inner join of the query makes {stream}")
