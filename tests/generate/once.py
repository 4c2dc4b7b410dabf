"""Adds random ONCE PER to the queries of a script."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.generate.blocks import derived
from tests.generate.documents import SECOND, chance
from tests.generate.queries import DERIVED
from xscl.algebra.values import Expr, NameTest, Step, VarPath
from xscl.check_expressions import NameKind, visible_names
from xscl.syntax import Once, Query, Script, Window

WINDOWS = (None, None, 1, SECOND, 2 * SECOND, 3 * SECOND, 8 * SECOND)


def with_once(rng: Random, script: Script, share: int = 50) -> Script:
    """The script, where `share` percent of the queries get ONCE PER, and a name if they have none."""
    return replace(script, statements=tuple(_once(rng, one, n, share) for n, one in enumerate(script.queries)))


def _once(rng: Random, query: Query, number: int, share: int) -> Query:
    names = [(name, kind) for name, kind in visible_names(query.source).items() if kind != "constant"]
    if not names or not chance(rng, share):
        return query
    keys = tuple(_key(rng, *rng.choice(names)) for _ in range(rng.choice((1, 1, 1, 2))))
    us = rng.choice(WINDOWS)
    return replace(query, publish=query.publish or f"once{number}", once=Once(keys, None if us is None else Window(us)))


def _key(rng: Random, name: str, kind: NameKind) -> Expr:
    steps = (Step(rng.choice(("/", "//")), NameTest("element", "*")),) if kind == "element" and chance(rng, 15) else ()
    key: Expr = VarPath(name, steps)
    return derived(rng, DERIVED, key) if chance(rng, 25) else key
