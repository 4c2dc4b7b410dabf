"""A query as explanations evaluate it: its syntax with places, its normal form with its own names, and both as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from mmqjp.explain.terms import applied
from xscl import Query, parse_script, to_xscl
from xscl.algebra.expressions import Call, Compare, Expr, Span, VarPath
from xscl.algebra.normal import NormalQuery, Term
from xscl.lower import normalize_readably
from xscl.lower_paths import PatternBuilder
from xscl.parser import located_queries
from xscl.scope import blocks
from xscl.syntax import Block


@dataclass(frozen=True)
class ReadableQuery:
    """A query of a store. `paths` are the paths on variables, by the variables that stand for their ends."""

    text: str
    query: Query
    normal: NormalQuery
    paths: Mapping[str, VarPath]
    builder: PatternBuilder

    @staticmethod
    def of(text: str) -> ReadableQuery:
        """Returns the query of a text that was checked when it was registered."""
        script = parse_script(text, stored=True)
        namespaces = dict(script.namespaces)
        normal, paths = normalize_readably(script.queries[0], namespaces)
        (query,) = located_queries(text, (0,), stored=True)
        return ReadableQuery(text, query, normal, paths, PatternBuilder(namespaces))

    @cached_property
    def blocks(self) -> list[Block]:
        """Its blocks, left to right."""
        return blocks(self.query.source)

    def part(self, span: Span) -> str:
        """Returns a part of the text."""
        return self.text[span.start : span.end]

    def variable(self, var: str) -> str:
        """Returns a variable, or a path on one, as the query has it."""
        return to_xscl(self.paths[var]) if var in self.paths else var

    def term(self, term: Term) -> str:
        """Returns a term as the query has it."""
        return applied(term.functions, self.variable(term.var))

    def expression(self, expr: Expr) -> str:
        """Returns a predicate as the query has it."""
        return to_xscl(self._spelled(expr))

    def _spelled(self, expr: Expr) -> Expr:
        match expr:
            case VarPath(var=var):
                return self.paths.get(var, expr)
            case Call(name=name, args=args):
                return Call(name, tuple(map(self._spelled, args)))
            case Compare(op=op, left=left, right=right):
                return Compare(op, self._spelled(left), self._spelled(right))
        return expr
